//! The observable state, and its comparison with the expected state.

use crate::executor::{Executor, tag_of};
use crate::machine::at;
use crate::model::{AGENTS, CPU, GPUS, Model, Operation, SLOTS};
use crate::process;
use hsa_vmm::simulation::Usage as RuntimeUsage;
use hsa_vmm::vmm::{MappingInfo, Quarantined, Usage};
use hsa_vmm::{Access, Address};

/// The observable state of the library, the runtime and this process. A failed operation must not change it.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    controls_page_tables: bool,
    reservations: Vec<(Address, usize)>,
    mappings: Vec<MappingInfo>,
    usage: Usage,
    quarantine: Vec<Quarantined>,
    /// For each mapping: the access of each agent, by `get_access`.
    access: Vec<[Access; AGENTS]>,
    /// For each mapping and GPU: whether the GPU's page table allows reads and writes, and the offset in the memory.
    /// The offset is 0 without access.
    pages: Vec<[(bool, bool, usize); GPUS.len()]>,
    /// For each mapping and GPU: whether the page table has an entry. If the library does not control page tables, an
    /// entry of AMD's driver allows all access.
    entries: Vec<[bool; GPUS.len()]>,
    /// For each granule of each reservation: the access of this process.
    process: Vec<Vec<Access>>,
    /// For each mapping that the CPU can read: the byte at its start, if the first four bytes are equal.
    contents: Vec<Option<u8>>,
    /// The runtime's reservations, handles, mappings and allocations, and the used memory of each GPU.
    runtime: (usize, usize, usize, usize, Vec<u64>),
    /// Open descriptors, without the runtime's own.
    descriptors: usize,
}

impl Observation {
    /// Returns the current state, or an error if an invariant does not hold.
    pub fn of(executor: &Executor) -> Result<Self, String> {
        let vmm = &executor.machine.vmm;
        vmm.check().map_err(|defect| format!("Vmm::check: {defect}"))?;
        let mappings = vmm.mappings();
        let (mut access, mut contents) = (Vec::new(), Vec::new());
        let (mut pages, mut entries) = (Vec::new(), Vec::new());
        for mapping in &mappings {
            let granted = agents_access(executor, mapping)?;
            access.push(granted);
            let entry = |gpu| executor.machine.simulation.page(gpu - 1, mapping.address.get());
            let allowed = |gpu| {
                let page = entry(gpu).filter(|page| page.readable || page.writable)?;
                Some((page.readable, page.writable, page.offset as usize))
            };
            pages.push(GPUS.map(|gpu| allowed(gpu).unwrap_or_default()));
            entries.push(GPUS.map(|gpu| entry(gpu).is_some()));
            let mut tag = [0; 4];
            contents.push(if granted[CPU] == Access::None {
                None
            } else {
                vmm.read(mapping.address, &mut tag).map_err(|error| error.to_string())?;
                tag.iter().all(|byte| *byte == tag[0]).then_some(tag[0])
            });
        }
        let runtime_usage = executor.machine.simulation.usage();
        let descriptors = process::descriptors() - runtime_usage.descriptors;
        let RuntimeUsage { reservations, handles, allocations, vram_used, .. } = runtime_usage;
        Ok(Self {
            controls_page_tables: vmm.can_map_offsets(),
            process: process_access(executor, &vmm.reservations())?,
            reservations: vmm.reservations(),
            usage: vmm.usage(),
            quarantine: vmm.quarantined_ranges(),
            access,
            pages,
            entries,
            contents,
            runtime: (reservations, handles, runtime_usage.mappings, allocations, vram_used),
            descriptors,
            mappings,
        })
    }

    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Fails with the first difference.
    pub fn check_unchanged(&self, after: &Self) -> Result<(), String> {
        fn compare<T: std::fmt::Debug + PartialEq>(name: &str, a: &T, b: &T) -> Result<(), String> {
            if a == b { Ok(()) } else { Err(format!("{name} changed: {a:x?} is now {b:x?}")) }
        }
        compare("the list of reservations", &self.reservations, &after.reservations)?;
        compare("the list of mappings", &self.mappings, &after.mappings)?;
        compare("usage", &self.usage, &after.usage)?;
        compare("get_access", &self.access, &after.access)?;
        compare("the GPUs' page tables", &self.pages, &after.pages)?;
        self.check_entries(after)?;
        compare("this process's mappings", &self.process, &after.process)?;
        compare("the contents", &self.contents, &after.contents)?;
        compare("the runtime's usage", &self.runtime, &after.runtime)?;
        compare("the number of descriptors", &self.descriptors, &after.descriptors)?;
        compare("the quarantine", &self.quarantine, &after.quarantine)
    }

    /// Fails if a GPU has gained an entry, or has lost the entry of memory that it can access.
    ///
    /// A GPU whose access was set to none keeps its entry only until the memory is mapped again. A rollback can map the
    /// memory again. If the library controls page tables, a GPU may also gain an entry without permissions.
    fn check_entries(&self, after: &Self) -> Result<(), String> {
        for (mapping, entries) in self.entries.iter().enumerate() {
            for (index, &gpu) in GPUS.iter().enumerate() {
                let (before, now) = (entries[index], after.entries[mapping][index]);
                let had_access = self.access[mapping][gpu] != Access::None;
                let gained = now && !before && !self.controls_page_tables;
                if gained || before && !now && had_access {
                    return Err(format!(
                        "GPU {gpu}'s entry of {:?} was {before}, is {now}",
                        self.mappings[mapping]
                    ));
                }
            }
        }
        Ok(())
    }

    /// Fails with the first difference. Ignores memory of this process that the runtime has locked.
    pub fn check_unchanged_except_locked(&self, after: &Self) -> Result<(), String> {
        let mut after = after.clone();
        after.runtime.3 = self.runtime.3;
        self.check_unchanged(&after)
    }

    /// Fails with the first difference. Allows one open descriptor fewer, because the library may have closed its spare
    /// descriptor, so that the runtime can open one.
    pub fn check_unchanged_except_spare(&self, mut after: Self) -> Result<(), String> {
        if after.descriptors + 1 == self.descriptors {
            after.descriptors = self.descriptors;
        }
        self.check_unchanged(&after)
    }

    /// Fails unless the state matches the model.
    pub fn check_against(&self, executor: &Executor, model: &Model) -> Result<(), String> {
        let fail = |difference: String| Err(format!("differs from the model: {difference}"));
        let reserved = model.reservations.iter().filter(|&&alive| alive).count();
        let alive = (0..model.handles.len()).filter(|&handle| model.is_alive(handle)).count();
        let mapped = model.mappings.len();
        let usage = Usage { reservations: reserved, handles: alive, mappings: mapped };
        if self.usage != usage {
            return fail(format!("{:?} instead of {usage:?}", self.usage));
        }
        if (self.runtime.0, self.runtime.1, self.runtime.2) != (reserved, alive, mapped) {
            return fail(format!("the runtime holds {:?} instead of {usage:?}", self.runtime));
        }
        if !self.quarantine.is_empty() {
            return fail(format!("something is in quarantine: {:?}", self.quarantine));
        }
        let address = |mapping: &crate::model::MappingState| {
            executor.address(mapping.reservation, mapping.slot)
        };
        let mut expected: Vec<_> =
            model.mappings.iter().map(|mapping| (address(mapping), mapping)).collect();
        expected.sort_by_key(|&(address, _)| address.get());
        for (index, &(address, mapping)) in expected.iter().enumerate() {
            if self.mappings[index].address != address {
                return fail(format!("nothing is mapped at {address}"));
            }
            if self.access[index] != mapping.access {
                return fail(format!(
                    "get_access returns {:?} for {mapping:?}",
                    self.access[index]
                ));
            }
            let expected_permissions = |gpu: usize| {
                let access = mapping.access[gpu];
                let offset = mapping.part * executor.reservation_size() / SLOTS;
                let offset = if access == Access::None { 0 } else { offset };
                (access >= Access::Read, access == Access::ReadWrite, offset)
            };
            if self.pages[index] != GPUS.map(expected_permissions) {
                return fail(format!(
                    "the GPUs' permissions are {:?} for {mapping:?}",
                    self.pages[index]
                ));
            }
            let (memory, part) = (model.handles[mapping.handle].memory, mapping.part);
            let is_written = model.written.contains(&(memory, part));
            let tag = if is_written { tag_of(memory, part) } else { 0 };
            let expected_contents = (mapping.access[CPU] != Access::None).then_some(tag);
            if self.contents[index] != expected_contents {
                return fail(format!("{mapping:?} contains {:?}", self.contents[index]));
            }
        }
        self.check_process(executor, model)
    }

    fn check_process(&self, executor: &Executor, model: &Model) -> Result<(), String> {
        for (index, (base, _)) in self.reservations.iter().enumerate() {
            let mut expected = [Access::None; SLOTS];
            for mapping in &model.mappings {
                if executor.reservations[mapping.reservation] == *base
                    && model.reservations[mapping.reservation]
                {
                    expected[mapping.slot] = mapping.access[CPU];
                }
            }
            if self.process[index] != expected {
                let found = &self.process[index];
                return Err(format!("this process's access is {found:?} instead of {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Returns the access of each agent to a mapping. Fails if an agent's access differs at the first and the last byte.
fn agents_access(executor: &Executor, mapping: &MappingInfo) -> Result<[Access; AGENTS], String> {
    let vmm = &executor.machine.vmm;
    let last = at(mapping.address, mapping.size - 1);
    let mut granted = [Access::None; AGENTS];
    for (agent, entry) in executor.agents.iter().zip(&mut granted) {
        let results = [mapping.address, last].map(|address| vmm.get_access(*agent, address));
        match results {
            [Ok(first), Ok(second)] if first == second => *entry = first,
            _ => return Err(format!("get_access inside {mapping:?} returns {results:?}")),
        }
    }
    Ok(granted)
}

/// Returns the access of this process to every granule of the reservations. Fails if a granule is not mapped in this
/// process. A granule without access is also mapped.
fn process_access(
    executor: &Executor,
    reservations: &[(Address, usize)],
) -> Result<Vec<Vec<Access>>, String> {
    if reservations.is_empty() {
        return Ok(Vec::new());
    }
    let regions = process::regions();
    let granule = executor.reservation_size() / SLOTS;
    let access_at = |address: usize| {
        let hole = || format!("{address:#x} of a reservation is not mapped");
        let region = regions.iter().find(|region| (region.start..region.end).contains(&address));
        let permissions = &region.ok_or_else(hole)?.permissions;
        match permissions.get(..3) {
            Some("---") => Ok(Access::None),
            Some("r--") => Ok(Access::Read),
            Some("rw-") => Ok(Access::ReadWrite),
            _ => Err(format!("{address:#x} of a reservation is {permissions}")),
        }
    };
    let accesses = |&(base, size): &(Address, usize)| {
        (base.get()..base.get() + size).step_by(granule).map(access_at).collect()
    };
    reservations.iter().map(accesses).collect()
}

/// Checks the state after an operation has quarantined a range. The library lists the range and rejects calls on it,
/// and other mappings are unchanged.
///
/// If `may_have_hole` is set, the range may have a hole: the kernel has rejected the call that would have filled it.
pub fn check_quarantine(
    executor: &Executor,
    before: &Observation,
    operation: Operation,
    may_have_hole: bool,
) -> Result<(), String> {
    let vmm = &executor.machine.vmm;
    vmm.check().map_err(|defect| format!("Vmm::check: {defect}"))?;
    let listed = vmm.quarantined_ranges();
    if listed.len() <= before.quarantine.len() {
        return Err("nothing is in quarantine".to_owned());
    }
    let is_quarantined = |address: Address| listed.iter().any(|entry| entry.address == address);
    let reservations = vmm.reservations().into_iter();
    let complete: Vec<_> =
        reservations.filter(|&(base, _)| !may_have_hole || !is_quarantined(base)).collect();
    process_access(executor, &complete)?;
    let unaffected = |mappings: &[MappingInfo]| -> Vec<MappingInfo> {
        let is_inside = |mapping: &&MappingInfo| {
            listed.iter().any(|entry| {
                (entry.address.get()..entry.address.get() + entry.size)
                    .contains(&mapping.address.get())
            })
        };
        mappings.iter().filter(|mapping| !is_inside(mapping)).cloned().collect()
    };
    // If the unmap itself succeeded, the library has quarantined only the memory.
    let unmapped = matches!(operation, Operation::Unmap(_))
        && listed.iter().all(|entry| entry.address == Address::NULL);
    if !unmapped && unaffected(&before.mappings) != unaffected(&vmm.mappings()) {
        return Err("a mapping that is not in quarantine has changed".to_owned());
    }
    for (base, size) in vmm.reservations() {
        let result = vmm.address_free(base, size);
        let rejected = matches!(
            result.as_ref().map_err(hsa_vmm::Error::kind),
            Err(hsa_vmm::ErrorKind::Quarantined { now: false, .. })
        );
        if is_quarantined(base) != rejected {
            return Err(format!("{operation:?}: freeing {base} returned {result:?}: {listed:?}"));
        }
    }
    Ok(())
}
