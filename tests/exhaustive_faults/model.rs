//! The expected state after a sequence of operations, and the operations that can follow.
//!
//! The model implements only a part of HIP's documents. The search compares each state with the model, and leaves out
//! two kinds of sequences. One kind ends with an operation that fails before the library calls the runtime. The other
//! kind differs from a tested sequence only in the numbers of reservations or GPUs.

use hsa_vmm::Access;

/// The agents: the CPU and two GPUs, by their index in the runtime's list.
pub const CPU: usize = 0;
pub const GPUS: [usize; 2] = [1, 2];
pub const AGENTS: usize = 3;

/// The number of granules of a reservation.
pub const SLOTS: usize = 2;

/// One granule of a reservation, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRange {
    pub reservation: usize,
    pub slot: usize,
    pub slots: usize,
}

/// An operation. Reservations and handles are numbered in the order of their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Reserve,
    /// Aligned to more than the runtime's own alignment.
    ReserveAligned,
    Free(usize),
    /// Creates a GPU's memory.
    Create(usize),
    Release(usize),
    /// Maps a granule of a handle: the handle, the number of the granule in its memory, and the addresses.
    Map(usize, usize, SlotRange),
    Unmap(SlotRange),
    SetAccess(SlotRange, &'static [(usize, Access)]),
    Revoke(SlotRange, &'static [usize]),
    Retain(SlotRange),
    Export(usize),
    /// Exports the addresses of mappings.
    ExportRange(SlotRange),
    /// Creates memory of the host.
    CreateOnHost,
    /// Imports the last export.
    Import,
    Fill(SlotRange),
    Copy(SlotRange),
}

/// The access lists to set: for all agents, for one agent, and for two agents with different access.
const GRANTS: &[&[(usize, Access)]] = &[
    &[(GPUS[0], Access::ReadWrite), (GPUS[1], Access::ReadWrite), (CPU, Access::ReadWrite)],
    &[(CPU, Access::Read)],
    &[(CPU, Access::ReadWrite)],
    &[(CPU, Access::None)],
    &[(GPUS[0], Access::ReadWrite)],
    &[(GPUS[1], Access::Read)],
    &[(GPUS[0], Access::None), (CPU, Access::Read)],
];

const REVOKED_AGENTS: &[&[usize]] = &[&[GPUS[0]], &[CPU, GPUS[1]]];

#[derive(Clone, Debug, PartialEq)]
pub struct HandleState {
    /// The number of the memory. Handles of the same memory have the same number.
    pub memory: usize,
    /// The agent that owns the memory: a GPU or the CPU.
    pub owner: usize,
    pub references: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MappingState {
    pub reservation: usize,
    pub slot: usize,
    pub handle: usize,
    /// The number of the mapped granule in the memory.
    pub part: usize,
    pub access: [Access; AGENTS],
}

/// The expected state after a sequence of operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// For each reservation ever created, whether it still exists.
    pub reservations: Vec<bool>,
    pub handles: Vec<HandleState>,
    pub mappings: Vec<MappingState>,
    /// The handle that was exported last.
    pub exported: Option<usize>,
    /// The parts to which the CPU has written their tag (`executor::tag_of`): pairs of memory and part.
    pub written: Vec<(usize, usize)>,
    /// The number of granules of each memory: two if memory can be mapped from an offset, otherwise one.
    pub parts: usize,
}

impl Model {
    /// Returns whether a handle is alive: referenced or mapped.
    pub fn is_alive(&self, handle: usize) -> bool {
        let mapped = self.mappings.iter().any(|mapping| mapping.handle == handle);
        mapped || self.handles.get(handle).is_some_and(|state| state.references > 0)
    }

    /// Returns the mappings of a range, by slot.
    pub fn mappings_at(&self, range: SlotRange) -> impl Iterator<Item = &MappingState> {
        let inside = move |mapping: &&MappingState| is_inside(mapping, range);
        self.mappings.iter().filter(inside)
    }

    fn can_access(&self, range: SlotRange, agent: usize, access: Access) -> bool {
        self.mappings_at(range).all(|mapping| mapping.access[agent] >= access)
    }

    fn has_mappings(&self, reservation: usize) -> bool {
        self.mappings.iter().any(|mapping| mapping.reservation == reservation)
    }

    /// Returns the operations that can follow. The library rejects none of them.
    pub fn next_operations(&self) -> Vec<Operation> {
        let mut all = Vec::new();
        self.add_reservation_operations(&mut all);
        self.add_handle_operations(&mut all);
        self.add_map_operations(&mut all);
        for range in self.ranges() {
            self.add_range_operations(range, &mut all);
        }
        all
    }

    fn add_reservation_operations(&self, all: &mut Vec<Operation>) {
        let alive = self.reservations.iter().filter(|&&alive| alive).count();
        if alive < 2 && self.reservations.len() < 3 {
            all.extend([Operation::Reserve, Operation::ReserveAligned]);
        }
        let empty = |&index: &usize| self.reservations[index] && !self.has_mappings(index);
        // Empty reservations differ only in their numbers, so freeing one of them is enough.
        all.extend((0..self.reservations.len()).find(empty).map(Operation::Free));
    }

    fn add_handle_operations(&self, all: &mut Vec<Operation>) {
        match self.handles.len() {
            // By symmetry, the first memory is created on the first GPU.
            0 => all.push(Operation::Create(GPUS[0])),
            1 => all.extend(GPUS.map(Operation::Create)),
            _ => {}
        }
        if self.handles.len() < 2 {
            all.push(Operation::CreateOnHost);
        }
        for (index, handle) in self.handles.iter().enumerate() {
            if handle.references > 0 {
                all.extend([Operation::Release(index), Operation::Export(index)]);
            }
        }
        if self.exported.is_some() && self.handles.len() < 3 {
            all.push(Operation::Import);
        }
    }

    fn add_map_operations(&self, all: &mut Vec<Operation>) {
        let mut has_empty = false;
        for reservation in (0..self.reservations.len()).filter(|&index| self.reservations[index]) {
            // Mapping in one empty reservation is enough, because empty reservations differ only in their numbers.
            if !self.has_mappings(reservation) && std::mem::replace(&mut has_empty, true) {
                continue;
            }
            for slot in 0..SLOTS {
                let range = SlotRange { reservation, slot, slots: 1 };
                if self.mappings_at(range).next().is_some() {
                    continue;
                }
                for (handle, state) in self.handles.iter().enumerate() {
                    if state.references > 0 {
                        all.extend((0..self.parts).map(|part| Operation::Map(handle, part, range)));
                    }
                }
            }
        }
    }

    /// Returns every range of whole mappings.
    fn ranges(&self) -> Vec<SlotRange> {
        let range = |mapping: &MappingState| SlotRange {
            reservation: mapping.reservation,
            slot: mapping.slot,
            slots: 1,
        };
        let mut ranges: Vec<SlotRange> = self.mappings.iter().map(range).collect();
        let all_slots = |single: &SlotRange| SlotRange { slot: 0, slots: SLOTS, ..*single };
        let is_full = |single: &SlotRange| {
            single.slot == 0 && self.mappings_at(all_slots(single)).count() == SLOTS
        };
        let full_ranges: Vec<SlotRange> =
            ranges.iter().filter(|single| is_full(single)).map(all_slots).collect();
        ranges.extend(full_ranges);
        ranges
    }

    fn add_range_operations(&self, range: SlotRange, all: &mut Vec<Operation>) {
        all.extend([Operation::Unmap(range), Operation::ExportRange(range)]);
        let changes = |list: &&&[(usize, Access)]| {
            let differs = |mapping: &MappingState| {
                list.iter().any(|&(agent, requested)| mapping.access[agent] != requested)
            };
            self.mappings_at(range).any(differs)
        };
        all.extend(GRANTS.iter().filter(changes).map(|list| Operation::SetAccess(range, list)));
        all.extend(REVOKED_AGENTS.iter().map(|agents| Operation::Revoke(range, agents)));
        if range.slots == 1 {
            all.push(Operation::Retain(range));
        }
        let writers = GPUS.iter().filter(|&&gpu| self.can_access(range, gpu, Access::ReadWrite));
        if writers.clone().next().is_some() {
            let owner_can_write = |mapping: &MappingState| {
                let owner = self.handles[mapping.handle].owner;
                mapping.access[owner] == Access::ReadWrite
            };
            if self.mappings_at(range).all(owner_can_write) {
                all.push(Operation::Fill(range));
            }
            all.push(Operation::Copy(range));
        }
    }

    /// Returns whether no sequence continues after an operation. Continuing would test nothing new, because other
    /// operations reach the same state. After `CreateOnHost`, continuing would test something new, but would take too
    /// many sequences.
    pub fn is_always_last(operation: Operation) -> bool {
        use Operation::{Copy, CreateOnHost, ExportRange, Fill, ReserveAligned};
        matches!(operation, ReserveAligned | Fill(_) | Copy(_) | CreateOnHost | ExportRange(_))
    }

    /// Returns the state after an operation that [`next_operations`](Self::next_operations) has returned.
    pub fn after(&self, operation: Operation) -> Self {
        let mut next = self.clone();
        match operation {
            Operation::Reserve | Operation::ReserveAligned => next.reservations.push(true),
            Operation::Free(index) => next.reservations[index] = false,
            Operation::Create(owner) => {
                let memory = next.handles.len();
                next.handles.push(HandleState { memory, owner, references: 1 });
            }
            Operation::Release(handle) => next.handles[handle].references -= 1,
            Operation::CreateOnHost => {
                let memory = next.handles.len();
                next.handles.push(HandleState { memory, owner: CPU, references: 1 });
            }
            Operation::Map(handle, part, SlotRange { reservation, slot, .. }) => {
                let access = [Access::None; AGENTS];
                next.mappings.push(MappingState { reservation, slot, handle, part, access });
                next.mappings.sort_by_key(|mapping| (mapping.reservation, mapping.slot));
            }
            Operation::Unmap(range) => next.mappings.retain(|mapping| !is_inside(&mapping, range)),
            Operation::SetAccess(range, list) => {
                for mapping in
                    next.mappings.iter_mut().filter(|mapping| is_inside(&&**mapping, range))
                {
                    for &(agent, access) in list {
                        mapping.access[agent] = access;
                    }
                }
            }
            Operation::Revoke(range, agents) => {
                for mapping in
                    next.mappings.iter_mut().filter(|mapping| is_inside(&&**mapping, range))
                {
                    for &agent in agents {
                        mapping.access[agent] = Access::None;
                    }
                }
            }
            Operation::Retain(range) => {
                let handle = self.mappings_at(range).next().expect("the range is mapped").handle;
                next.handles[handle].references += 1;
            }
            Operation::Export(handle) => next.exported = Some(handle),
            Operation::Import => {
                let HandleState { memory, owner, .. } =
                    self.handles[self.exported.expect("something was exported")];
                next.handles.push(HandleState { memory, owner, references: 1 });
            }
            Operation::ExportRange(_) | Operation::Fill(_) | Operation::Copy(_) => {}
        }
        let tagged =
            next.mappings.iter().filter(|mapping| mapping.access[CPU] == Access::ReadWrite);
        let tagged: Vec<_> =
            tagged.map(|mapping| (next.handles[mapping.handle].memory, mapping.part)).collect();
        next.written.extend(tagged);
        next.written.sort_unstable();
        next.written.dedup();
        next
    }
}

fn is_inside(mapping: &&MappingState, range: SlotRange) -> bool {
    let slots = range.slot..range.slot + range.slots;
    mapping.reservation == range.reservation && slots.contains(&mapping.slot)
}
