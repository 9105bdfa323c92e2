//! The scene "mixed": items come and go, and each keeps what was written in it.

use super::arguments::Plant;
use super::stage::Stage;
use fastrand::Rng;
use hsa_vmm::{
    Access, AgentId, Allocation, AllocationProperties, HandleType, Mapping, Reservation, Vmm,
};
use std::os::fd::IntoRawFd;
use std::sync::Once;

/// How many items a thread has at most.
const ITEMS: usize = 24;
/// What is kept once in a process ([`Plant::Kept`]).
static KEPT: Once = Once::new();
/// How large they are at most, in granules.
const GRANULES: usize = 4;

/// Memory at an address, and what was written at its beginning and its end.
struct Item {
    mapping: Mapping,
    owner: AgentId,
    stamp: u64,
}

/// What a thread does until the end.
pub fn work(stage: &Stage<'_>, mut rng: Rng, plant: Option<Plant>) {
    let gpus: Vec<_> = stage.runtime.gpus().collect();
    let mut items: Vec<Item> = Vec::new();
    while stage.goes_on() {
        let some = rng.usize(..ITEMS);
        match rng.u32(..16) {
            0..=5 if items.len() < ITEMS => {
                let gpu = gpus[rng.usize(..gpus.len())];
                let granule = gpu.handle_pool().map_or(4096, |pool| pool.granule);
                if let Some(item) = item(stage, &mut rng, gpu.id(), granule) {
                    stage.holds(1);
                    items.push(item);
                }
            }
            6..=8 if some < items.len() => {
                let item = items.swap_remove(some);
                check(stage, &mut rng, &item);
                stage.gives(1);
                stage.call(item.mapping.unmap().map_err(hsa_vmm::Error::from));
            }
            9 | 10 if some < items.len() => check(stage, &mut rng, &items[some]),
            11 | 12 if some < items.len() => regrant(stage, &mut rng, &items[some]),
            13 if some < items.len() => share(stage, &mut rng, &items[some]),
            14 if some < items.len() => alias(stage, &mut rng, &items[some]),
            15 if some < items.len() => revoke(stage, &mut rng, &items[some]),
            _ => {}
        }
        if let Some(plant) = plant.filter(|_| rng.u32(..64) == 0) {
            leak(stage, plant, gpus[0].id());
        }
    }
    stage.gives(items.len() as u64);
    for item in items {
        check(stage, &mut rng, &item);
    }
}

fn item(stage: &Stage<'_>, rng: &mut Rng, owner: AgentId, granule: usize) -> Option<Item> {
    let size = granule * rng.usize(1..=GRANULES);
    let shareable = HandleType::POSIX_FILE_DESCRIPTOR;
    let properties = AllocationProperties::on(owner).shareable_as(shareable);
    let reservation = stage.call(Reservation::builder(size).reserve(stage.vmm))?;
    let memory = stage.call(Allocation::create(stage.vmm, size, &properties))?;
    let mapping = stage.call(reservation.map(0, &memory))?;
    let all: Vec<_> = [owner].into_iter().chain(stage.cpu()).collect();
    stage.call(mapping.grant(&all, Access::ReadWrite))?;
    let stamp = rng.u64(..);
    let item = Item { mapping, owner, stamp };
    for (offset, value) in item.stamps(size) {
        let (address, bytes) = (item.mapping.address().checked_add(offset)?, value.to_ne_bytes());
        stage.call(match stage.cpu().filter(|_| rng.bool()) {
            Some(_) => stage.vmm.write(address, &bytes),
            None => stage.vmm.copy_from_host(owner, address, &bytes),
        })?;
    }
    Some(item)
}

impl Item {
    /// What is written where.
    fn stamps(&self, size: usize) -> [(usize, u64); 2] {
        [(0, self.stamp), (size - 8, !self.stamp)]
    }
}

fn check(stage: &Stage<'_>, rng: &mut Rng, item: &Item) {
    read(stage, rng, item, &item.mapping);
}

/// Reads an item's memory, there or at another address.
fn read(stage: &Stage<'_>, rng: &mut Rng, item: &Item, view: &Mapping) {
    for (offset, expected) in item.stamps(view.size()) {
        let Some(address) = view.address().checked_add(offset) else { continue };
        let mut bytes = [0; 8];
        let read = stage.call(match stage.cpu().filter(|_| rng.bool()) {
            Some(_) => stage.vmm.read(address, &mut bytes),
            None => stage.vmm.copy_to_host(item.owner, &mut bytes, address),
        });
        if read.is_some() && u64::from_ne_bytes(bytes) != expected {
            stage.wrong("memory does not hold what was written in it");
        }
    }
}

/// Another agent gets or loses something; the owner keeps what it has.
fn regrant(stage: &Stage<'_>, rng: &mut Rng, item: &Item) {
    let Some(other) = other(stage, rng, item) else { return };
    let access = [Access::None, Access::Read, Access::ReadWrite][rng.usize(..3)];
    let set = stage.call(item.mapping.grant(&[other], access));
    let found = stage.call(item.mapping.access(other));
    if set.is_some() && found.is_some_and(|found| found != access) {
        stage.wrong("an agent has not the access that it was given");
    }
}

fn revoke(stage: &Stage<'_>, rng: &mut Rng, item: &Item) {
    let Some(other) = other(stage, rng, item) else { return };
    stage.call(item.mapping.revoke(&[other]));
    check(stage, rng, item);
}

/// Some GPU that is not the owner and reaches its memory.
fn other(stage: &Stage<'_>, rng: &mut Rng, item: &Item) -> Option<AgentId> {
    let reaches = |gpu: &&hsa_vmm::Agent| gpu.id() != item.owner && gpu.reaches(item.owner);
    let others: Vec<_> = stage.runtime.gpus().filter(reaches).collect();
    (!others.is_empty()).then(|| others[rng.usize(..others.len())].id())
}

/// The memory leaves as a descriptor and comes back as another handle.
fn share(stage: &Stage<'_>, rng: &mut Rng, item: &Item) {
    let Some(descriptor) = stage.call(item.mapping.allocation().export()) else { return };
    let Some(memory) = stage.call(Allocation::import(stage.vmm, &descriptor)) else { return };
    drop(descriptor);
    second_view(stage, rng, item, &memory);
}

/// The memory is at another address besides.
fn alias(stage: &Stage<'_>, rng: &mut Rng, item: &Item) {
    let address = item.mapping.address();
    if let Some(memory) = stage.call(Allocation::at(stage.vmm, address)) {
        second_view(stage, rng, item, &memory);
    }
}

fn second_view(stage: &Stage<'_>, rng: &mut Rng, item: &Item, memory: &Allocation) {
    let size = item.mapping.size();
    let Some(reservation) = stage.call(Reservation::builder(size).reserve(stage.vmm)) else {
        return;
    };
    let Some(view) = stage.call(reservation.map(0, memory)) else { return };
    let all: Vec<_> = [item.owner].into_iter().chain(stage.cpu()).collect();
    if stage.call(view.grant(&all, Access::ReadWrite)).is_some() {
        read(stage, rng, item, &view);
    }
}

/// Leaks something on purpose.
fn leak(stage: &Stage<'_>, plant: Plant, gpu: AgentId) {
    let shareable = HandleType::POSIX_FILE_DESCRIPTOR;
    let properties = AllocationProperties::on(gpu).shareable_as(shareable);
    let memory = |vmm: &Vmm| Allocation::create(vmm, 1 << 21, &properties);
    let mapping = |vmm: &Vmm| Reservation::builder(1 << 21).reserve(vmm)?.map(0, &memory(vmm)?);
    match plant {
        Plant::Vmm => {
            if let Ok(vmm) = Vmm::open(stage.runtime) {
                std::mem::forget(mapping(&vmm));
                std::mem::forget(vmm);
            }
        }
        Plant::Mapping => std::mem::forget(mapping(stage.vmm)),
        Plant::Descriptor => {
            if let Ok(descriptor) = memory(stage.vmm).and_then(|memory| memory.export()) {
                let _ = descriptor.into_raw_fd();
            }
        }
        Plant::Kept => KEPT.call_once(|| leak(stage, Plant::Descriptor, gpu)),
        Plant::Addresses => std::mem::forget(Reservation::builder(1 << 21).reserve(stage.vmm)),
    }
}
