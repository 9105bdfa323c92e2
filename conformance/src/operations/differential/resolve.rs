//! Resolves the names in operations.

use super::{
    AgentName, Alignment, Amount, DifferentialTest, Edge, HandleName, Hint, Region, Shift, Span,
    Spot,
};
use crate::model::{Mapped, Reservation};
use hsa_vmm::{Access, AgentId, Handle, HandleType};

/// Bits of an agent's identifier that no runtime sets.
const NO_SUCH_AGENT: u64 = 0x00ff_0000;

impl DifferentialTest {
    pub(super) fn granule(&self) -> usize {
        self.model.world().granule
    }

    pub(super) fn amount(&self, amount: Amount) -> usize {
        match amount {
            Amount::Granules(count) => usize::from(count) * self.granule(),
            Amount::Odd(count) => usize::from(count) * self.granule() + 1,
            Amount::Huge => 1 << 50,
        }
    }

    pub(super) fn alignment(alignment: Alignment) -> usize {
        match alignment {
            Alignment::None => 0,
            Alignment::PowerOfTwo(power) => 1 << (power % 63),
            Alignment::Wrong => 3 << 12,
        }
    }

    pub(super) fn hint(&self, hint: Hint) -> Option<usize> {
        let of = |which| nth(&self.open_reservations(), which);
        match hint {
            Hint::None => None,
            Hint::Behind(which) => of(which).map(|it| it.base + it.size),
            Hint::Inside(which) => of(which).map(|it| it.base + it.size / 2),
            Hint::Freed(which) => self.freed(which).map(|(base, _)| base),
            Hint::Odd(which) => of(which).map(|it| it.base + it.size + 4097),
        }
    }

    pub(super) fn handle(&self, name: HandleName) -> Handle {
        let live: Vec<_> = self
            .model
            .handles()
            .iter()
            .map(|held| held.handle)
            .filter(|&handle| self.window.is_none_or(|window| window.handle != handle))
            .collect();
        match name {
            HandleName::Live(which) => nth(&live, which).or_else(|| self.past(which)),
            HandleName::Past(which) => self.past(which),
            HandleName::Invented(bits) => Some(Handle::from_bits(bits)),
        }
        .unwrap_or(Handle::from_bits(0))
    }

    pub(super) fn agent(&self, who: AgentName) -> AgentId {
        let world = self.model.world();
        let all: Vec<_> = world.agents.iter().map(|agent| agent.id).collect();
        let gpus: Vec<_> = world.gpus().map(|gpu| all[gpu]).collect();
        let host = all.first().map_or(0, |id| id.to_bits());
        let invented = |bits| AgentId::from_bits(bits);
        match who {
            AgentName::Agent(which) => nth(&all, which),
            AgentName::Gpu(which) => nth(&gpus, which),
            AgentName::Invented(number) => Some(invented(host | NO_SUCH_AGENT | u64::from(number))),
            AgentName::Foreign(number) => Some(invented(host ^ (1 + u64::from(number)) << 48)),
        }
        .unwrap_or(invented(host))
    }

    pub(super) fn handle_type(number: u8) -> HandleType {
        match number {
            2 => HandleType::WIN32,
            4 => HandleType::WIN32_KMT,
            8 => HandleType::FABRIC,
            _ => HandleType::POSIX_FILE_DESCRIPTOR,
        }
    }

    /// Returns address and size of a span.
    pub(super) fn span(&self, span: Span) -> (usize, usize) {
        let (start, size) = self.region(span.region);
        let end = start.wrapping_add(size);
        let moved = |edge: usize, other: usize, shift| match shift {
            Shift::None => edge,
            Shift::GranuleOn => edge.wrapping_add(self.granule()),
            Shift::GranuleBack => edge.wrapping_sub(self.granule()),
            Shift::ByteOn => edge.wrapping_add(1),
            Shift::ByteBack => edge.wrapping_sub(1),
            Shift::Away => other,
        };
        let (start, end) = (moved(start, end, span.start), moved(end, start, span.end));
        (start, end.wrapping_sub(start))
    }

    /// Returns the address of a spot.
    pub(super) fn spot(&self, spot: Spot) -> usize {
        let (start, size) = self.span(spot.span);
        match spot.edge {
            Edge::First => start,
            Edge::Middle => start.wrapping_add(size / 2),
            Edge::BeforeEnd(bytes) => start.wrapping_add(size).wrapping_sub(usize::from(bytes)),
            Edge::End => start.wrapping_add(size),
        }
    }

    fn region(&self, region: Region) -> (usize, usize) {
        let granules = |count: u8| usize::from(count) * self.granule();
        let reservation = |which| nth(&self.open_reservations(), which);
        let invalid = (0, self.granule());
        let open = || self.open_mappings();
        match region {
            Region::Run(first, count) => run(&open(), first, count).unwrap_or(invalid),
            Region::Writable(first, count) => {
                let writable = |it: &Mapped| it.access.contains(&Access::ReadWrite);
                let all: Vec<_> = open().into_iter().filter(writable).collect();
                run(&all, first, count).unwrap_or(invalid)
            }
            Region::Mappings(first, count) => all_from(&open(), first, count).unwrap_or(invalid),
            Region::Granules(which, first, count) => {
                let base = reservation(which).map_or(0, |it| it.base);
                (base.wrapping_add(granules(first)), granules(count))
            }
            Region::Gap(which, count) => (self.gap(which, granules(count)), granules(count)),
            Region::Reservation(which) => {
                reservation(which).map_or(invalid, |it| (it.base, it.size))
            }
            Region::Freed(which) => self.freed(which).unwrap_or(invalid),
            Region::Anything(address, size) => (address as usize, size as usize),
        }
    }

    /// Returns the first hole of `size` bytes from a reservation on; otherwise the last address that was
    /// tried.
    pub(super) fn gap(&self, which: u8, size: usize) -> usize {
        let mut all = self.open_reservations();
        let first = usize::from(which) % all.len().max(1);
        all.rotate_left(first);
        let mut at = 0;
        for reservation in all {
            let end = reservation.base + reservation.size;
            at = reservation.base;
            for mapping in self.model.mappings() {
                let is_here = reservation.base <= mapping.start && mapping.start < end;
                if is_here && mapping.start < at + size {
                    at = mapping.start + mapping.size;
                }
            }
            if at + size <= end {
                break;
            }
        }
        at
    }

    pub(super) fn open_reservations(&self) -> Vec<Reservation> {
        let all = self.model.reservations().iter().copied();
        all.filter(|it| self.window.is_none_or(|window| window.reservation != it.base)).collect()
    }

    pub(super) fn open_mappings(&self) -> Vec<Mapped> {
        let all = self.model.mappings().iter();
        all.filter(|it| self.window.is_none_or(|window| window.address != it.start))
            .cloned()
            .collect()
    }

    fn past(&self, which: u8) -> Option<Handle> {
        from_newest(&self.given_out, which)
    }

    fn freed(&self, which: u8) -> Option<(usize, usize)> {
        from_newest(&self.freed, which)
    }
}

/// Returns the element at an index, which wraps around.
pub(super) fn nth<T: Clone>(all: &[T], which: u8) -> Option<T> {
    all.get(usize::from(which) % all.len().max(1)).cloned()
}

fn from_newest<T: Clone>(all: &[T], which: u8) -> Option<T> {
    all.iter().rev().nth(usize::from(which) % all.len().max(1)).cloned()
}

/// Returns the range of up to `count` adjacent mappings from one on.
fn run(all: &[Mapped], first: u8, count: u8) -> Option<(usize, usize)> {
    let start = nth(all, first)?.start;
    let mut end = start;
    for mapping in all.iter().filter(|it| it.start >= start).take(count.max(1).into()) {
        if end != start && end != mapping.start {
            break;
        }
        end = mapping.range().end;
    }
    Some((start, end - start))
}

/// Returns the range of `count` mappings from one on, holes included.
fn all_from(all: &[Mapped], first: u8, count: u8) -> Option<(usize, usize)> {
    let start = nth(all, first)?.start;
    let last = all.iter().filter(|it| it.start >= start).take(count.max(1).into()).last()?;
    Some((start, last.range().end - start))
}
