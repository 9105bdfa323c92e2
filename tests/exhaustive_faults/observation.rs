//! The observable state, and its comparison with the expected one.

use crate::executor::{Executor, tag_of};
use crate::machine::at;
use crate::model::{AGENTS, CPU, GPUS, Model, Operation, SLOTS};
use crate::process;
use hsa_vmm::simulation::Usage as Native;
use hsa_vmm::vmm::{MappingInfo, Quarantined, Usage};
use hsa_vmm::{Access, Address};

/// Everything that must not change when an operation fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    reservations: Vec<(Address, usize)>,
    mappings: Vec<MappingInfo>,
    usage: Usage,
    quarantine: Vec<Quarantined>,
    /// For each mapping: the access of each agent, by `get_access`.
    access: Vec<[Access; AGENTS]>,
    /// For each mapping and GPU: the permissions in its page table.
    pages: Vec<[(bool, bool); GPUS.len()]>,
    /// For each mapping and GPU: whether there is an entry. With AMD's driver it would allow everything.
    entries: Vec<[bool; GPUS.len()]>,
    /// For each granule of each reservation: the access of this process.
    process: Vec<Vec<Access>>,
    /// For each mapping that the CPU can read: the byte.
    contents: Vec<Option<u8>>,
    runtime: (usize, usize, usize, usize, Vec<u64>),
    /// Open descriptors, without the runtime's own.
    descriptors: usize,
}

impl Observation {
    /// Returns the current state; an error if an invariant does not hold.
    pub fn of(executor: &Executor) -> Result<Self, String> {
        let vmm = &executor.machine.vmm;
        vmm.check().map_err(|defect| format!("Vmm::check: {defect}"))?;
        let mappings = vmm.mappings();
        let (mut access, mut contents) = (Vec::new(), Vec::new());
        let (mut pages, mut entries) = (Vec::new(), Vec::new());
        for mapping in &mappings {
            let granted = granted(executor, mapping)?;
            access.push(granted);
            let entry = |gpu| executor.machine.simulation.page(gpu - 1, mapping.address.get());
            let allowed = |gpu| entry(gpu).map(|page| (page.readable, page.writable));
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
        let native = executor.machine.simulation.usage();
        let descriptors = process::descriptors() - native.descriptors;
        let Native { reservations, handles, allocations, vram_used, .. } = native;
        Ok(Self {
            process: process_access(executor, &vmm.reservations())?,
            reservations: vmm.reservations(),
            usage: vmm.usage(),
            quarantine: vmm.quarantine(),
            access,
            pages,
            entries,
            contents,
            runtime: (reservations, handles, native.mappings, allocations, vram_used),
            descriptors,
            mappings,
        })
    }

    /// Returns the number of quarantined entries.
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Returns the first difference.
    pub fn difference(&self, after: &Self) -> Result<(), String> {
        fn differ<T: std::fmt::Debug + PartialEq>(what: &str, a: &T, b: &T) -> Result<(), String> {
            if a == b { Ok(()) } else { Err(format!("{what} changed: {a:x?} is now {b:x?}")) }
        }
        differ("the list of reservations", &self.reservations, &after.reservations)?;
        differ("the list of mappings", &self.mappings, &after.mappings)?;
        differ("usage", &self.usage, &after.usage)?;
        differ("get_access", &self.access, &after.access)?;
        differ("the GPUs' page tables", &self.pages, &after.pages)?;
        self.entries_may_only_go(after)?;
        differ("this process's mappings", &self.process, &after.process)?;
        differ("the contents", &self.contents, &after.contents)?;
        differ("what the runtime holds", &self.runtime, &after.runtime)?;
        differ("the number of descriptors", &self.descriptors, &after.descriptors)?;
        differ("the quarantine", &self.quarantine, &after.quarantine)
    }

    /// Returns whether only forbidden GPUs have lost their entries. A GPU that was forbidden access keeps its
    /// entry until the memory is mapped again, which a rollback may do. No other GPU may lose or gain an entry.
    fn entries_may_only_go(&self, after: &Self) -> Result<(), String> {
        for (mapping, entries) in self.entries.iter().enumerate() {
            for (index, &gpu) in GPUS.iter().enumerate() {
                let (had, has) = (entries[index], after.entries[mapping][index]);
                let was_to_have = self.access[mapping][gpu] != Access::None;
                if has && !had || had && !has && was_to_have {
                    return Err(format!(
                        "GPU {gpu}'s entry of {:?} was {had}, is {has}",
                        self.mappings[mapping]
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the same state without memory of this process that the runtime has pinned.
    pub fn difference_but_for_pinned(&self, after: &Self) -> Result<(), String> {
        let mut after = after.clone();
        after.runtime.3 = self.runtime.3;
        self.difference(&after)
    }

    /// Compares with the model.
    pub fn agrees_with(&self, executor: &Executor, model: &Model) -> Result<(), String> {
        let fail = |what: String| Err(format!("not what the model says: {what}"));
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
        let address = |it: &crate::model::MappingState| executor.address(it.reservation, it.slot);
        let mut expected: Vec<_> = model.mappings.iter().map(|it| (address(it), it)).collect();
        expected.sort_by_key(|&(address, _)| address.get());
        for (index, &(address, mapping)) in expected.iter().enumerate() {
            if self.mappings[index].address != address {
                return fail(format!("nothing is mapped at {address}"));
            }
            if self.access[index] != mapping.access {
                return fail(format!("get_access says {:?} of {mapping:?}", self.access[index]));
            }
            let may = |gpu: usize| {
                let access = mapping.access[gpu];
                (access >= Access::Read, access == Access::ReadWrite)
            };
            if self.pages[index] != GPUS.map(may) {
                return fail(format!("the GPUs may {:?} in {mapping:?}", self.pages[index]));
            }
            let memory = model.handles[mapping.handle].memory;
            let tag = if model.written.contains(&memory) { tag_of(memory) } else { 0 };
            let seen = (mapping.access[CPU] != Access::None).then_some(tag);
            if self.contents[index] != seen {
                return fail(format!("{mapping:?} holds {:?}", self.contents[index]));
            }
        }
        self.process_agrees_with(executor, model)
    }

    fn process_agrees_with(&self, executor: &Executor, model: &Model) -> Result<(), String> {
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
                let seen = &self.process[index];
                return Err(format!("this process may {seen:?} instead of {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Returns the access of each agent, which must be equal at the first and at the last byte.
fn granted(executor: &Executor, mapping: &MappingInfo) -> Result<[Access; AGENTS], String> {
    let vmm = &executor.machine.vmm;
    let last = at(mapping.address, mapping.size - 1);
    let mut granted = [Access::None; AGENTS];
    for (agent, entry) in executor.agents.iter().zip(&mut granted) {
        let answers = [mapping.address, last].map(|at| vmm.get_access(*agent, at));
        match answers {
            [Ok(first), Ok(second)] if first == second => *entry = first,
            _ => return Err(format!("get_access inside {mapping:?} says {answers:?}")),
        }
    }
    Ok(granted)
}

/// Returns the access of this process to every granule of the reservations, all of which must be mapped.
fn process_access(
    executor: &Executor,
    reservations: &[(Address, usize)],
) -> Result<Vec<Vec<Access>>, String> {
    if reservations.is_empty() {
        return Ok(Vec::new());
    }
    let regions = process::regions();
    let granule = executor.reservation_size() / SLOTS;
    let at = |address: usize| {
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
    let of = |&(base, size): &(Address, usize)| {
        (base.get()..base.get() + size).step_by(granule).map(at).collect()
    };
    reservations.iter().map(of).collect()
}

/// Checks the state after an operation has quarantined a range: the range is listed and never used again, and
/// everything else works as before.
///
/// The range may have a hole, if the kernel refused to fill it.
pub fn check_quarantine(
    executor: &Executor,
    before: &Observation,
    operation: Operation,
    may_have_hole: bool,
) -> Result<(), String> {
    let vmm = &executor.machine.vmm;
    vmm.check().map_err(|defect| format!("Vmm::check: {defect}"))?;
    let listed = vmm.quarantine();
    if listed.len() <= before.quarantine.len() {
        return Err("nothing is in quarantine".to_owned());
    }
    let lost = |address: Address| listed.iter().any(|entry| entry.address == address);
    let reservations = vmm.reservations().into_iter();
    let whole: Vec<_> = reservations.filter(|&(base, _)| !may_have_hole || !lost(base)).collect();
    process_access(executor, &whole)?;
    let elsewhere = |mappings: &[MappingInfo]| -> Vec<MappingInfo> {
        let is_lost = |it: &&MappingInfo| {
            listed.iter().any(|entry| {
                (entry.address.get()..entry.address.get() + entry.size).contains(&it.address.get())
            })
        };
        mappings.iter().filter(|it| !is_lost(it)).cloned().collect()
    };
    // If the unmap succeeded, only the memory is lost.
    let unmapped = matches!(operation, Operation::Unmap(_))
        && listed.iter().all(|entry| entry.address == Address::NULL);
    if !unmapped && elsewhere(&before.mappings) != elsewhere(&vmm.mappings()) {
        return Err("a mapping that is not in quarantine has changed".to_owned());
    }
    for (base, size) in vmm.reservations() {
        let free = vmm.address_free(base, size);
        let refused = matches!(
            free.as_ref().map_err(hsa_vmm::Error::kind),
            Err(hsa_vmm::ErrorKind::Quarantined { now: false, .. })
        );
        if lost(base) != refused {
            return Err(format!("{operation:?}: to free {base} returned {free:?}: {listed:?}"));
        }
    }
    Ok(())
}
