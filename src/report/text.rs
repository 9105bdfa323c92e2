//! Prints a report as text.

use super::{FreeSpace, IdleItem, MemoryEntry, Report, ReservationEntry, ReservationPart};
use crate::agent::AgentId;
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
            write_heading(f, index, "quarantined: not used any more")?;
            let (address, size) = (entry.address, Size(entry.size));
            writeln!(f, "  {address}  {size:>9}  since {}: {}", entry.operation, entry.reason())?;
        }
        Ok(())
    }
}

/// Returns two spaces and the quoted name, with control characters escaped. Returns an empty text if there is no
/// name.
fn name_suffix(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!("  {name:?}"))
}

fn owner_name(agent: Option<AgentId>) -> String {
    agent.map_or_else(|| "unknown owner".to_owned(), |agent| agent.to_string())
}

/// Writes the heading of a section before its first entry.
fn write_heading(f: &mut fmt::Formatter<'_>, index: usize, heading: &str) -> fmt::Result {
    if index == 0 { writeln!(f, "\n{heading}") } else { Ok(()) }
}

fn counted(number: usize, singular: &str, plural: &str) -> String {
    format!("{number} {}", if number == 1 { singular } else { plural })
}

impl Report {
    fn write_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = self.reservations.iter().map(|it| it.size).sum();
        let mapped = self.reservations.iter().map(ReservationEntry::mapped_size).sum();
        let mappings = self.reservations.iter().map(|it| it.mappings.len()).sum();
        let allocated = self.memory.iter().map(|it| it.size).sum();
        let pool = self.pool_memory.iter().map(|it| it.size).sum();
        writeln!(
            f,
            "{} of {}; {} of {}; memory: {} of {}; pool memory: {} of {}",
            counted(self.reservations.len(), "reservation", "reservations"),
            Size(reserved),
            counted(mappings, "mapping", "mappings"),
            Size(mapped),
            counted(self.memory.len(), "allocation", "allocations"),
            Size(allocated),
            counted(self.pool_memory.len(), "allocation", "allocations"),
            Size(pool),
        )
    }

    fn write_reservation(
        &self,
        f: &mut fmt::Formatter<'_>,
        reservation: &ReservationEntry,
    ) -> fmt::Result {
        let (address, size) = (reservation.address, Size(reservation.size));
        write!(f, "\n{address}  {size}{}  ", name_suffix(&reservation.name))?;
        let free @ FreeSpace { gaps, largest, .. } = reservation.free_space();
        write!(f, "{} mapped", Size(reservation.mapped_size()))?;
        match gaps {
            0 => {}
            1 => write!(f, ", {} free", Size(free.size))?,
            _ => write!(
                f,
                ", {} free in {gaps} gaps, the largest {} ({} % fragmented)",
                Size(free.size),
                Size(largest),
                free.fragmentation()
            )?,
        }
        writeln!(f, "{}", if reservation.quarantined { ", quarantined" } else { "" })?;
        reservation.parts().iter().try_for_each(|part| write_part(f, part))
    }

    /// Writes one line for each group of entries that differ only in their handles.
    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<(&MemoryEntry, usize)> = Vec::new();
        let mut indices = BTreeMap::new();
        for memory in &self.memory {
            let MemoryEntry { handle: _, name, size, agent, imported, references, mappings } =
                memory;
            let key = (name, size, agent, imported, references, mappings);
            let index = *indices.entry(key).or_insert(groups.len());
            match groups.get_mut(index) {
                Some((_, count)) => *count += 1,
                None => groups.push((memory, 1)),
            }
        }
        for (index, &(memory, count)) in groups.iter().enumerate() {
            write_heading(f, index, "memory")?;
            let label = match count {
                1 => memory.handle.to_string(),
                count => format!("{count} allocations of"),
            };
            let (size, owner) = (Size(memory.size), owner_name(memory.agent));
            write!(f, "  {label:>18}  {size:>9}  {owner}{}", name_suffix(&memory.name))?;
            let references = counted(memory.references as usize, "reference", "references");
            write!(f, ": {references}{}", if count > 1 { " each" } else { "" })?;
            match memory.mappings {
                0 => f.write_str(", not mapped")?,
                count => write!(f, ", mapped in {}", counted(count as usize, "place", "places"))?,
            }
            writeln!(f, "{}", if memory.imported { ", imported" } else { "" })?;
        }
        Ok(())
    }

    fn write_pool_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, memory) in self.pool_memory.iter().enumerate() {
            write_heading(f, index, "pool memory")?;
            let agents: Vec<_> = memory.agents.iter().map(AgentId::to_string).collect();
            let (address, size) = (memory.address, Size(memory.size));
            let owner = memory.agent;
            write!(f, "  {address}  {size:>9}  {owner}{}", name_suffix(&memory.name))?;
            writeln!(f, ": accessible to {}", agents.join(", "))?;
        }
        Ok(())
    }

    /// Writes one line for each group of entries that differ only in their addresses or handles.
    fn write_idle(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // For each group: its key, the label of its first entry, and the number of entries.
        let mut groups = Vec::new();
        let mut indices = BTreeMap::new();
        for idle in self.idle() {
            let (label, size, name, state) = match idle {
                IdleItem::Reservation(it) => {
                    (it.address.to_string(), it.size, &it.name, "reservation without mappings")
                }
                IdleItem::Mapping(it) => {
                    (it.address.to_string(), it.size, &it.name, "mapping without access")
                }
                IdleItem::Memory(it) => {
                    (it.handle.to_string(), it.size, &it.name, "memory that is not mapped")
                }
            };
            let key = (size, name, state);
            let index = *indices.entry(key).or_insert(groups.len());
            match groups.get_mut(index) {
                Some((_, _, count)) => *count += 1,
                None => groups.push((key, label, 1)),
            }
        }
        for (index, ((size, name, state), label, count)) in groups.into_iter().enumerate() {
            write_heading(f, index, "idle: allocated, and not in use")?;
            let label = if count == 1 { label } else { format!("{:>18}", format!("{count} of")) };
            writeln!(f, "  {label}  {:>9}{}  {state}", Size(size), name_suffix(name))?;
        }
        Ok(())
    }
}

fn write_part(f: &mut fmt::Formatter<'_>, part: &ReservationPart<'_>) -> fmt::Result {
    write!(f, "  +{:#013x}  {:>9}  ", part.offset, Size(part.size))?;
    let Some(mapping) = part.mapping else { return writeln!(f, "free") };
    let mapping_count =
        if part.count > 1 { format!(" in {} mappings", part.count) } else { String::new() };
    let name = name_suffix(&mapping.name);
    write!(f, "{}{mapping_count}{name}: ", owner_name(mapping.agent))?;
    if mapping.access.is_empty() {
        f.write_str("no access")?;
    }
    for (index, entry) in mapping.access.iter().enumerate() {
        f.write_str(if index > 0 { ", " } else { "" })?;
        write!(f, "{} {entry}", entry.agent)?;
    }
    writeln!(f)
}

/// A size in bytes, displayed as a whole number in the largest unit that divides the size: `2 MiB`, `2052 KiB`. If this
/// number has more than four digits, the size is displayed in a larger unit, rounded to one decimal: `62.3 GiB`.
///
/// ```
/// assert_eq!(hsa_vmm::report::Size(2 << 20).to_string(), "2 MiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut whole, mut unit) = (self.0, 0);
        while whole != 0 && whole.is_multiple_of(1024) {
            (whole, unit) = (whole / 1024, unit + 1);
        }
        if whole < 10_000 {
            return f.pad(&format!("{whole} {}", UNITS[unit]));
        }
        let (mut value, mut unit) = (self.0 as f64, 0);
        // Values from 1023.95 on would be displayed as 1024.0.
        while value >= 1023.95 {
            (value, unit) = (value / 1024.0, unit + 1);
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn size_is_short_and_exact_if_possible() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (9999, "9999 B"),
            (10_000, "9.8 KiB"),
            (2 << 20, "2 MiB"),
            ((2 << 20) + 4096, "2052 KiB"),
            ((62 << 30) + 4096, "62.0 GiB"),
            ((1 << 40) - 4096, "1.0 TiB"),
            (usize::MAX, "16.0 EiB"),
            (1 << 63, "8 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Size(4096)), "   4 KiB");
    }
}
