//! A report for people.

use super::{AccessEntry, Free, Idle, MemoryEntry, Report, ReservationEntry, Run, Size, runs};
use crate::vmm::Access;
use core::fmt;
use std::collections::BTreeMap;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_totals(f)?;
        for reservation in &self.reservations {
            self.write_reservation(f, reservation)?;
        }
        self.write_memory(f)?;
        self.write_pool_memory(f)?;
        self.write_idle(f)?;
        for (index, entry) in self.quarantine.iter().enumerate() {
            if index == 0 {
                f.write_str("\nin quarantine: not used any more\n")?;
            }
            let (address, size) = (entry.address, Size(entry.size));
            writeln!(f, "  {address}  {size:>9}  since {}: {}", entry.operation, entry.reason)?;
        }
        Ok(())
    }
}

/// ` "a name"`, or nothing. What would break the line is escaped.
struct Named<'a>(&'a Option<String>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |name| write!(f, "  {name:?}"))
    }
}

impl AccessEntry {
    /// What the agent may do, and what it can do beyond that.
    pub(super) fn words(&self) -> &'static str {
        match (self.access, self.can_do_more) {
            (Access::ReadWrite, _) => "rw",
            (Access::Read, false) => "r",
            (Access::Read, true) => "r (can write)",
            (Access::None, true) => "none (can read and write)",
            (Access::None, false) => "none",
        }
    }
}

fn plural(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

impl Report {
    fn write_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = self.reservations.iter().map(|it| it.size).sum();
        let mapped = self.reservations.iter().map(ReservationEntry::mapped).sum();
        let mappings = self.reservations.iter().map(|it| it.mappings.len()).sum();
        let held = self.memory.iter().map(|it| it.size).sum();
        let pool = self.pool_memory.iter().map(|it| it.size).sum();
        writeln!(
            f,
            "{} of {}; {} of {}; memory: {} of {}; pool memory: {} of {}",
            plural(self.reservations.len(), "reservation", "reservations"),
            Size(reserved),
            plural(mappings, "mapping", "mappings"),
            Size(mapped),
            plural(self.memory.len(), "piece", "pieces"),
            Size(held),
            plural(self.pool_memory.len(), "piece", "pieces"),
            Size(pool),
        )
    }

    fn write_reservation(
        &self,
        f: &mut fmt::Formatter<'_>,
        reservation: &ReservationEntry,
    ) -> fmt::Result {
        let (address, size) = (reservation.address, Size(reservation.size));
        write!(f, "\n{address}  {size}{}  ", Named(&reservation.name))?;
        let free @ Free { holes, largest, .. } = reservation.free();
        write!(f, "{} mapped", Size(reservation.mapped()))?;
        match holes {
            0 => {}
            1 => write!(f, ", {} free", Size(free.size))?,
            _ => write!(
                f,
                ", {} free in {holes} holes, the largest {} ({} % fragmented)",
                Size(free.size),
                Size(largest),
                free.fragmentation()
            )?,
        }
        writeln!(f, "{}", if reservation.quarantined { ", in quarantine" } else { "" })?;
        runs(reservation).iter().try_for_each(|run| self.write_run(f, run))
    }

    fn write_run(&self, f: &mut fmt::Formatter<'_>, run: &Run<'_>) -> fmt::Result {
        write!(f, "  +{:#013x}  {:>9}  ", run.offset, Size(run.size))?;
        let Some(mapping) = run.mapping else { return writeln!(f, "free") };
        let several =
            if run.count > 1 { format!(" in {} mappings", run.count) } else { String::new() };
        let name = Named(&mapping.name);
        write!(f, "{}{several}{name}: ", self.label(mapping.agent))?;
        if mapping.access.is_empty() {
            f.write_str("nobody may use it")?;
        }
        for (index, entry) in mapping.access.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            write!(f, "{} {}", self.label(Some(entry.agent)), entry.words())?;
        }
        writeln!(f)
    }

    /// Pieces that only their handles tell apart are one line.
    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut alike: Vec<(&MemoryEntry, usize)> = Vec::new();
        let mut places = BTreeMap::new();
        for memory in &self.memory {
            let MemoryEntry { handle: _, name, size, agent, imported, references, mappings } =
                memory;
            let look = (name, size, agent, imported, references, mappings);
            let place = *places.entry(look).or_insert(alike.len());
            match alike.get_mut(place) {
                Some((_, count)) => *count += 1,
                None => alike.push((memory, 1)),
            }
        }
        for (index, &(memory, count)) in alike.iter().enumerate() {
            if index == 0 {
                f.write_str("\nmemory\n")?;
            }
            let which = match count {
                1 => memory.handle.to_string(),
                several => format!("{several} pieces of"),
            };
            let (size, label) = (Size(memory.size), self.label(memory.agent));
            write!(f, "  {which:>18}  {size:>9}  {label}{}", Named(&memory.name))?;
            let references = plural(memory.references as usize, "reference", "references");
            write!(f, ": {references}{}", if count > 1 { " each" } else { "" })?;
            match memory.mappings {
                0 => f.write_str(", mapped nowhere")?,
                places => write!(f, ", mapped in {}", plural(places as usize, "place", "places"))?,
            }
            writeln!(f, "{}", if memory.imported { ", imported" } else { "" })?;
        }
        Ok(())
    }

    fn write_pool_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, memory) in self.pool_memory.iter().enumerate() {
            if index == 0 {
                f.write_str("\npool memory\n")?;
            }
            let labels: Vec<_> = memory.agents.iter().map(|&it| self.label(Some(it))).collect();
            let (address, size) = (memory.address, Size(memory.size));
            let owner = self.label(Some(memory.agent));
            write!(f, "  {address}  {size:>9}  {owner}{}", Named(&memory.name))?;
            writeln!(f, ": open to {}", labels.join(", "))?;
        }
        Ok(())
    }

    fn write_idle(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.idle();
        for (index, idle) in all.iter().enumerate() {
            if index == 0 {
                f.write_str("\nheld, and of no use to anybody now\n")?;
            }
            match *idle {
                Idle::Reservation(it) => {
                    let (address, size, name) = (it.address, Size(it.size), Named(&it.name));
                    writeln!(f, "  {address}  {size:>9}{name}  nothing is mapped in it")?;
                }
                Idle::Mapping(it) => {
                    let (address, size, name) = (it.address, Size(it.size), Named(&it.name));
                    writeln!(f, "  {address}  {size:>9}{name}  no agent may use it")?;
                }
                Idle::Memory(it) => {
                    let (handle, size, name) = (it.handle, Size(it.size), Named(&it.name));
                    writeln!(f, "  {handle}  {size:>9}{name}  mapped nowhere")?;
                }
            }
        }
        Ok(())
    }
}
