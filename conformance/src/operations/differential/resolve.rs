//! Resolves the selectors in operations to addresses, handles and agents.

use super::{
    AgentSelector, Alignment, Amount, DifferentialTest, Edge, HandleSelector, Hint, Region, Shift,
    Span, Spot,
};
use crate::model::{Mapping, Reservation};
use hsa_vmm::{Access, AgentId, Handle, HandleType};

/// Bits of the index in an agent's identifier. No runtime has enough agents for an index with these bits.
const NO_SUCH_AGENT: u64 = 0x00ff_0000;

impl DifferentialTest {
    pub(super) fn granule(&self) -> usize {
        self.model.machine().granule
    }

    pub(super) fn amount(&self, amount: Amount) -> usize {
        match amount {
            Amount::Granules(count) => usize::from(count) * self.granule(),
            Amount::Unaligned(count) => usize::from(count) * self.granule() + 1,
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
        let reservation = |index| nth(&self.reservations_except_window(), index);
        match hint {
            Hint::None => None,
            Hint::Behind(index) => reservation(index).map(|it| it.base + it.size),
            Hint::Inside(index) => reservation(index).map(|it| it.base + it.size / 2),
            Hint::Freed(index) => self.freed_range(index).map(|(base, _)| base),
            Hint::Unaligned(index) => reservation(index).map(|it| it.base + it.size + 4097),
        }
    }

    pub(super) fn handle(&self, selector: HandleSelector) -> Handle {
        let live: Vec<_> = self
            .model
            .handles()
            .iter()
            .map(|state| state.handle)
            .filter(|&handle| self.window.is_none_or(|window| window.handle != handle))
            .collect();
        match selector {
            HandleSelector::Live(index) => {
                nth(&live, index).or_else(|| self.returned_handle(index))
            }
            HandleSelector::Past(index) => self.returned_handle(index),
            HandleSelector::Invented(bits) => Some(Handle::from_bits(bits)),
        }
        .unwrap_or(Handle::from_bits(0))
    }

    pub(super) fn agent(&self, selector: AgentSelector) -> AgentId {
        let machine = self.model.machine();
        let agents: Vec<_> = machine.agents.iter().map(|agent| agent.id).collect();
        let gpus: Vec<_> = machine.gpus().map(|gpu| agents[gpu]).collect();
        let first = agents.first().map_or(0, |id| id.to_bits());
        let first_agent = AgentId::from_bits(first);
        match selector {
            AgentSelector::Agent(index) => nth(&agents, index),
            AgentSelector::Gpu(index) => nth(&gpus, index),
            AgentSelector::Invented(number) => {
                Some(AgentId::from_bits(first | NO_SUCH_AGENT | u64::from(number)))
            }
            AgentSelector::Foreign(number) => {
                Some(AgentId::from_bits(first ^ (1 + u64::from(number)) << 48))
            }
        }
        .unwrap_or(first_agent)
    }

    pub(super) fn handle_type(number: u8) -> HandleType {
        match number {
            2 => HandleType::WIN32,
            4 => HandleType::WIN32_KMT,
            8 => HandleType::FABRIC,
            _ => HandleType::POSIX_FILE_DESCRIPTOR,
        }
    }

    /// Returns the address and size of a span.
    pub(super) fn span(&self, span: Span) -> (usize, usize) {
        let (start, size) = self.region(span.region);
        let end = start.wrapping_add(size);
        let shifted = |edge: usize, opposite_edge: usize, shift| match shift {
            Shift::None => edge,
            Shift::GranuleOn => edge.wrapping_add(self.granule()),
            Shift::GranuleBack => edge.wrapping_sub(self.granule()),
            Shift::ByteOn => edge.wrapping_add(1),
            Shift::ByteBack => edge.wrapping_sub(1),
            Shift::Away => opposite_edge,
        };
        let (start, end) = (shifted(start, end, span.start), shifted(end, start, span.end));
        (start, end.wrapping_sub(start))
    }

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
        let reservation = |index| nth(&self.reservations_except_window(), index);
        let invalid = (0, self.granule());
        let mappings = || self.mappings_except_window();
        match region {
            Region::Adjacent(first, count) => {
                adjacent_range(&mappings(), first, count).unwrap_or(invalid)
            }
            Region::Writable(first, count) => {
                let writable = |it: &Mapping| it.access.contains(&Access::ReadWrite);
                let mappings: Vec<_> = mappings().into_iter().filter(writable).collect();
                adjacent_range(&mappings, first, count).unwrap_or(invalid)
            }
            Region::Mappings(first, count) => {
                range_with_holes(&mappings(), first, count).unwrap_or(invalid)
            }
            Region::Granules(index, first, count) => {
                let base = reservation(index).map_or(0, |it| it.base);
                (base.wrapping_add(granules(first)), granules(count))
            }
            Region::Gap(index, count) => (self.gap(index, granules(count)), granules(count)),
            Region::Reservation(index) => {
                reservation(index).map_or(invalid, |it| (it.base, it.size))
            }
            Region::Freed(index) => self.freed_range(index).unwrap_or(invalid),
            Region::Anything(address, size) => (address as usize, size as usize),
        }
    }

    /// Returns the address of the first hole of at least `size` bytes. Searches all reservations, beginning with the
    /// reservation at `index`. If every hole is smaller, returns the last address that was tried.
    pub(super) fn gap(&self, index: u8, size: usize) -> usize {
        let mut reservations = self.reservations_except_window();
        let first = usize::from(index) % reservations.len().max(1);
        reservations.rotate_left(first);
        let mut address = 0;
        for reservation in reservations {
            let end = reservation.base + reservation.size;
            address = reservation.base;
            for mapping in self.model.mappings() {
                let is_inside = reservation.base <= mapping.start && mapping.start < end;
                if is_inside && mapping.start < address + size {
                    address = mapping.start + mapping.size;
                }
            }
            if address + size <= end {
                break;
            }
        }
        address
    }

    pub(super) fn reservations_except_window(&self) -> Vec<Reservation> {
        let all = self.model.reservations().iter().copied();
        all.filter(|it| self.window.is_none_or(|window| window.reservation != it.base)).collect()
    }

    pub(super) fn mappings_except_window(&self) -> Vec<Mapping> {
        let all = self.model.mappings().iter();
        all.filter(|it| self.window.is_none_or(|window| window.address != it.start))
            .cloned()
            .collect()
    }

    fn returned_handle(&self, index: u8) -> Option<Handle> {
        from_newest(&self.returned_handles, index)
    }

    fn freed_range(&self, index: u8) -> Option<(usize, usize)> {
        from_newest(&self.freed, index)
    }
}

/// Returns the element at an index. Indexes that are too large wrap around.
pub(super) fn nth<T: Clone>(all: &[T], index: u8) -> Option<T> {
    all.get(usize::from(index) % all.len().max(1)).cloned()
}

/// Returns the element at an index from the end. Indexes that are too large wrap around.
fn from_newest<T: Clone>(all: &[T], index: u8) -> Option<T> {
    all.iter().rev().nth(usize::from(index) % all.len().max(1)).cloned()
}

/// Returns the range of up to `count` adjacent mappings. `first` is the index of the first mapping.
fn adjacent_range(all: &[Mapping], first: u8, count: u8) -> Option<(usize, usize)> {
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

/// Returns the range of up to `count` mappings and the holes between them. `first` is the index of the first mapping.
fn range_with_holes(all: &[Mapping], first: u8, count: u8) -> Option<(usize, usize)> {
    let start = nth(all, first)?.start;
    let last = all.iter().filter(|it| it.start >= start).take(count.max(1).into()).last()?;
    Some((start, last.range().end - start))
}
