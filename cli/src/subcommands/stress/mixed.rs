//! The scenario "mixed": creates and removes mappings and checks that their contents do not change.

use super::arguments::DeliberateLeak;
use super::shared_state::SharedState;
use fastrand::Rng;
use hsa_vmm::{
    Access, AgentId, Allocation, AllocationProperties, HandleType, Mapping, Reservation, Vmm,
};
use std::os::fd::IntoRawFd;
use std::sync::Once;

/// The maximum number of items of a thread.
const MAX_ITEMS: usize = 24;
/// Ensures that [`DeliberateLeak::OpenedOnce`] keeps only one descriptor in a process.
static OPENED_ONCE: Once = Once::new();
/// The maximum size of an item, in granules.
const MAX_GRANULES: usize = 4;

/// The size of memory and addresses that are leaked on purpose.
const LEAK_SIZE: usize = 2 << 20;

/// A mapping whose memory contains a random number, the stamp, at its beginning, and the complement at its end.
struct Item {
    mapping: Mapping,
    owner: AgentId,
    stamp: u64,
}

/// Runs the scenario in one thread until the scenario ends.
pub fn run_mixed(state: &SharedState<'_>, mut rng: Rng, leak_kind: Option<DeliberateLeak>) {
    let gpus: Vec<_> = state.runtime.gpus().collect();
    let mut items: Vec<Item> = Vec::new();
    // A busy machine can stop the threads for longer than a short run takes. Even then, each run leaks.
    if let Some(kind) = leak_kind {
        leak(state, kind, gpus[0].id());
    }
    while state.is_running() {
        let index = rng.usize(..MAX_ITEMS);
        // The number of values in a range is the relative frequency of the range's operation.
        match rng.u32(..16) {
            0..=5 if items.len() < MAX_ITEMS => {
                let gpu = gpus[rng.usize(..gpus.len())];
                let granule = gpu.vmem_pool().map_or(4096, |pool| pool.granule);
                if let Some(item) = create_item(state, &mut rng, gpu.id(), granule) {
                    state.add_held(1);
                    items.push(item);
                }
            }
            6..=8 if index < items.len() => {
                let item = items.swap_remove(index);
                check_item(state, &mut rng, &item);
                state.remove_held(1);
                state.count(item.mapping.unmap().map_err(hsa_vmm::Error::from));
            }
            9 | 10 if index < items.len() => check_item(state, &mut rng, &items[index]),
            11 | 12 if index < items.len() => change_access(state, &mut rng, &items[index]),
            13 if index < items.len() => share_and_check(state, &mut rng, &items[index]),
            14 if index < items.len() => alias_and_check(state, &mut rng, &items[index]),
            15 if index < items.len() => revoke_and_check(state, &mut rng, &items[index]),
            _ => {}
        }
        if let Some(kind) = leak_kind.filter(|_| rng.u32(..64) == 0) {
            leak(state, kind, gpus[0].id());
        }
    }
    state.remove_held(items.len() as u64);
    for item in items {
        check_item(state, &mut rng, &item);
    }
}

/// Maps new memory and writes its stamps.
fn create_item(
    state: &SharedState<'_>,
    rng: &mut Rng,
    owner: AgentId,
    granule: usize,
) -> Option<Item> {
    let size = granule * rng.usize(1..=MAX_GRANULES);
    let shareable = HandleType::POSIX_FILE_DESCRIPTOR;
    let properties = AllocationProperties::on(owner).shareable_as(shareable);
    let reservation = state.count(Reservation::builder(size).reserve(state.vmm))?;
    let memory = state.count(Allocation::create(state.vmm, size, &properties))?;
    let mapping = state.count(reservation.map(0, &memory))?;
    let agents: Vec<_> = [owner].into_iter().chain(state.cpu()).collect();
    state.count(mapping.grant(&agents, Access::ReadWrite))?;
    let stamp = rng.u64(..);
    let item = Item { mapping, owner, stamp };
    for (offset, value) in item.stamps(size) {
        let (address, bytes) = (item.mapping.address().checked_add(offset)?, value.to_ne_bytes());
        state.count(match state.cpu().filter(|_| rng.bool()) {
            Some(_) => state.vmm.write(address, &bytes),
            None => state.vmm.copy_from_host(owner, address, &bytes),
        })?;
    }
    Some(item)
}

impl Item {
    /// Returns the offset and the value of each stamp.
    fn stamps(&self, size: usize) -> [(usize, u64); 2] {
        [(0, self.stamp), (size - 8, !self.stamp)]
    }
}

fn check_item(state: &SharedState<'_>, rng: &mut Rng, item: &Item) {
    check_stamps(state, rng, item, &item.mapping);
}

/// Checks the stamps of an item through `mapping`, which is the item's mapping or another mapping of the same memory.
fn check_stamps(state: &SharedState<'_>, rng: &mut Rng, item: &Item, mapping: &Mapping) {
    for (offset, expected) in item.stamps(mapping.size()) {
        let Some(address) = mapping.address().checked_add(offset) else { continue };
        let mut bytes = [0; 8];
        let read = state.count(match state.cpu().filter(|_| rng.bool()) {
            Some(_) => state.vmm.read(address, &mut bytes),
            None => state.vmm.copy_to_host(item.owner, &mut bytes, address),
        });
        if read.is_some() && u64::from_ne_bytes(bytes) != expected {
            state.report_unexpected("memory does not contain what was written");
        }
    }
}

/// Changes the access of a GPU other than the owner. Checks that the library reports the new access.
fn change_access(state: &SharedState<'_>, rng: &mut Rng, item: &Item) {
    let Some(gpu) = other_gpu(state, rng, item) else { return };
    let access = [Access::None, Access::Read, Access::ReadWrite][rng.usize(..3)];
    let set = state.count(item.mapping.grant(&[gpu], access));
    let reported = state.count(item.mapping.access(gpu));
    if set.is_some() && reported.is_some_and(|reported| reported != access) {
        state.report_unexpected("an agent does not have the access that was set");
    }
}

fn revoke_and_check(state: &SharedState<'_>, rng: &mut Rng, item: &Item) {
    let Some(gpu) = other_gpu(state, rng, item) else { return };
    state.count(item.mapping.revoke(&[gpu]));
    check_item(state, rng, item);
}

/// Returns a random GPU other than the owner that can access the owner's memory.
fn other_gpu(state: &SharedState<'_>, rng: &mut Rng, item: &Item) -> Option<AgentId> {
    let can_access = |gpu: &&hsa_vmm::Agent| gpu.id() != item.owner && gpu.can_access(item.owner);
    let others: Vec<_> = state.runtime.gpus().filter(can_access).collect();
    (!others.is_empty()).then(|| others[rng.usize(..others.len())].id())
}

/// Exports the memory of an item, imports it as another handle, and checks the stamps through a mapping of that handle.
fn share_and_check(state: &SharedState<'_>, rng: &mut Rng, item: &Item) {
    let Some(descriptor) = state.count(item.mapping.allocation().export()) else { return };
    let Some(memory) = state.count(Allocation::import(state.vmm, &descriptor)) else { return };
    drop(descriptor);
    check_at_second_address(state, rng, item, &memory);
}

/// Maps the memory of an item at a second address, and checks the stamps there.
fn alias_and_check(state: &SharedState<'_>, rng: &mut Rng, item: &Item) {
    let address = item.mapping.address();
    if let Some(memory) = state.count(Allocation::at(state.vmm, address)) {
        check_at_second_address(state, rng, item, &memory);
    }
}

fn check_at_second_address(
    state: &SharedState<'_>,
    rng: &mut Rng,
    item: &Item,
    memory: &Allocation,
) {
    let size = item.mapping.size();
    let Some(reservation) = state.count(Reservation::builder(size).reserve(state.vmm)) else {
        return;
    };
    let Some(mapping) = state.count(reservation.map(0, memory)) else { return };
    let agents: Vec<_> = [item.owner].into_iter().chain(state.cpu()).collect();
    if state.count(mapping.grant(&agents, Access::ReadWrite)).is_some() {
        check_stamps(state, rng, item, &mapping);
    }
}

/// Leaks a resource on purpose.
fn leak(state: &SharedState<'_>, kind: DeliberateLeak, gpu: AgentId) {
    let shareable = HandleType::POSIX_FILE_DESCRIPTOR;
    let properties = AllocationProperties::on(gpu).shareable_as(shareable);
    let memory = |vmm: &Vmm| Allocation::create(vmm, LEAK_SIZE, &properties);
    let mapping = |vmm: &Vmm| Reservation::builder(LEAK_SIZE).reserve(vmm)?.map(0, &memory(vmm)?);
    match kind {
        DeliberateLeak::Vmm => {
            if let Ok(vmm) = Vmm::open(state.runtime) {
                std::mem::forget(mapping(&vmm));
                std::mem::forget(vmm);
            }
        }
        DeliberateLeak::Mapping => std::mem::forget(mapping(state.vmm)),
        DeliberateLeak::Descriptor => {
            if let Ok(descriptor) = memory(state.vmm).and_then(|memory| memory.export()) {
                let _ = descriptor.into_raw_fd();
            }
        }
        DeliberateLeak::OpenedOnce => {
            OPENED_ONCE.call_once(|| leak(state, DeliberateLeak::Descriptor, gpu))
        }
        DeliberateLeak::Addresses => {
            std::mem::forget(Reservation::builder(LEAK_SIZE).reserve(state.vmm))
        }
    }
}
