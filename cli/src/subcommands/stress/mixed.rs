//! The scenario "mixed": creates and removes mappings and checks that their contents stay.

use super::arguments::DeliberateLeak;
use super::setup::Setup;
use fastrand::Rng;
use hsa_vmm::{
    Access, AgentId, Allocation, AllocationProperties, HandleType, Mapping, Reservation, Vmm,
};
use std::os::fd::IntoRawFd;
use std::sync::Once;

/// The maximum number of items of a thread.
const ITEMS: usize = 24;
/// Guards the descriptor that is kept once in a process ([`DeliberateLeak::OpenedOnce`]).
static KEPT: Once = Once::new();
/// The maximum size of an item, in granules.
const GRANULES: usize = 4;

/// A mapping with a stamp written at its beginning and its end.
struct Item {
    mapping: Mapping,
    owner: AgentId,
    stamp: u64,
}

/// Runs the scenario in one thread until its end.
pub fn work(setup: &Setup<'_>, mut rng: Rng, leak_kind: Option<DeliberateLeak>) {
    let gpus: Vec<_> = setup.runtime.gpus().collect();
    let mut items: Vec<Item> = Vec::new();
    while setup.is_running() {
        let some = rng.usize(..ITEMS);
        match rng.u32(..16) {
            0..=5 if items.len() < ITEMS => {
                let gpu = gpus[rng.usize(..gpus.len())];
                let granule = gpu.vmem_pool().map_or(4096, |pool| pool.granule);
                if let Some(item) = item(setup, &mut rng, gpu.id(), granule) {
                    setup.add_held(1);
                    items.push(item);
                }
            }
            6..=8 if some < items.len() => {
                let item = items.swap_remove(some);
                check(setup, &mut rng, &item);
                setup.remove_held(1);
                setup.call(item.mapping.unmap().map_err(hsa_vmm::Error::from));
            }
            9 | 10 if some < items.len() => check(setup, &mut rng, &items[some]),
            11 | 12 if some < items.len() => change_access(setup, &mut rng, &items[some]),
            13 if some < items.len() => share(setup, &mut rng, &items[some]),
            14 if some < items.len() => alias(setup, &mut rng, &items[some]),
            15 if some < items.len() => revoke(setup, &mut rng, &items[some]),
            _ => {}
        }
        if let Some(kind) = leak_kind.filter(|_| rng.u32(..64) == 0) {
            leak(setup, kind, gpus[0].id());
        }
    }
    setup.remove_held(items.len() as u64);
    for item in items {
        check(setup, &mut rng, &item);
    }
}

fn item(setup: &Setup<'_>, rng: &mut Rng, owner: AgentId, granule: usize) -> Option<Item> {
    let size = granule * rng.usize(1..=GRANULES);
    let shareable = HandleType::POSIX_FILE_DESCRIPTOR;
    let properties = AllocationProperties::on(owner).shareable_as(shareable);
    let reservation = setup.call(Reservation::builder(size).reserve(setup.vmm))?;
    let memory = setup.call(Allocation::create(setup.vmm, size, &properties))?;
    let mapping = setup.call(reservation.map(0, &memory))?;
    let all: Vec<_> = [owner].into_iter().chain(setup.cpu()).collect();
    setup.call(mapping.grant(&all, Access::ReadWrite))?;
    let stamp = rng.u64(..);
    let item = Item { mapping, owner, stamp };
    for (offset, value) in item.stamps(size) {
        let (address, bytes) = (item.mapping.address().checked_add(offset)?, value.to_ne_bytes());
        setup.call(match setup.cpu().filter(|_| rng.bool()) {
            Some(_) => setup.vmm.write(address, &bytes),
            None => setup.vmm.copy_from_host(owner, address, &bytes),
        })?;
    }
    Some(item)
}

impl Item {
    /// Returns the stamps by offset.
    fn stamps(&self, size: usize) -> [(usize, u64); 2] {
        [(0, self.stamp), (size - 8, !self.stamp)]
    }
}

fn check(setup: &Setup<'_>, rng: &mut Rng, item: &Item) {
    read(setup, rng, item, &item.mapping);
}

/// Checks the stamps of an item, through its own or another mapping.
fn read(setup: &Setup<'_>, rng: &mut Rng, item: &Item, view: &Mapping) {
    for (offset, expected) in item.stamps(view.size()) {
        let Some(address) = view.address().checked_add(offset) else { continue };
        let mut bytes = [0; 8];
        let read = setup.call(match setup.cpu().filter(|_| rng.bool()) {
            Some(_) => setup.vmm.read(address, &mut bytes),
            None => setup.vmm.copy_to_host(item.owner, &mut bytes, address),
        });
        if read.is_some() && u64::from_ne_bytes(bytes) != expected {
            setup.report_unexpected("memory does not contain what was written");
        }
    }
}

/// Changes the access of another agent than the owner.
fn change_access(setup: &Setup<'_>, rng: &mut Rng, item: &Item) {
    let Some(other) = other(setup, rng, item) else { return };
    let access = [Access::None, Access::Read, Access::ReadWrite][rng.usize(..3)];
    let set = setup.call(item.mapping.grant(&[other], access));
    let found = setup.call(item.mapping.access(other));
    if set.is_some() && found.is_some_and(|found| found != access) {
        setup.report_unexpected("an agent does not have the access that was set");
    }
}

fn revoke(setup: &Setup<'_>, rng: &mut Rng, item: &Item) {
    let Some(other) = other(setup, rng, item) else { return };
    setup.call(item.mapping.revoke(&[other]));
    check(setup, rng, item);
}

/// Returns a random GPU other than the owner that can access the owner's memory.
fn other(setup: &Setup<'_>, rng: &mut Rng, item: &Item) -> Option<AgentId> {
    let reaches = |gpu: &&hsa_vmm::Agent| gpu.id() != item.owner && gpu.reaches(item.owner);
    let others: Vec<_> = setup.runtime.gpus().filter(reaches).collect();
    (!others.is_empty()).then(|| others[rng.usize(..others.len())].id())
}

/// Exports the memory, imports it as another handle and maps that.
fn share(setup: &Setup<'_>, rng: &mut Rng, item: &Item) {
    let Some(descriptor) = setup.call(item.mapping.allocation().export()) else { return };
    let Some(memory) = setup.call(Allocation::import(setup.vmm, &descriptor)) else { return };
    drop(descriptor);
    second_view(setup, rng, item, &memory);
}

/// Maps the memory at a second address.
fn alias(setup: &Setup<'_>, rng: &mut Rng, item: &Item) {
    let address = item.mapping.address();
    if let Some(memory) = setup.call(Allocation::at(setup.vmm, address)) {
        second_view(setup, rng, item, &memory);
    }
}

fn second_view(setup: &Setup<'_>, rng: &mut Rng, item: &Item, memory: &Allocation) {
    let size = item.mapping.size();
    let Some(reservation) = setup.call(Reservation::builder(size).reserve(setup.vmm)) else {
        return;
    };
    let Some(view) = setup.call(reservation.map(0, memory)) else { return };
    let all: Vec<_> = [item.owner].into_iter().chain(setup.cpu()).collect();
    if setup.call(view.grant(&all, Access::ReadWrite)).is_some() {
        read(setup, rng, item, &view);
    }
}

/// Leaks something on purpose.
fn leak(setup: &Setup<'_>, kind: DeliberateLeak, gpu: AgentId) {
    let shareable = HandleType::POSIX_FILE_DESCRIPTOR;
    let properties = AllocationProperties::on(gpu).shareable_as(shareable);
    let memory = |vmm: &Vmm| Allocation::create(vmm, 1 << 21, &properties);
    let mapping = |vmm: &Vmm| Reservation::builder(1 << 21).reserve(vmm)?.map(0, &memory(vmm)?);
    match kind {
        DeliberateLeak::Vmm => {
            if let Ok(vmm) = Vmm::open(setup.runtime) {
                std::mem::forget(mapping(&vmm));
                std::mem::forget(vmm);
            }
        }
        DeliberateLeak::Mapping => std::mem::forget(mapping(setup.vmm)),
        DeliberateLeak::Descriptor => {
            if let Ok(descriptor) = memory(setup.vmm).and_then(|memory| memory.export()) {
                let _ = descriptor.into_raw_fd();
            }
        }
        DeliberateLeak::OpenedOnce => {
            KEPT.call_once(|| leak(setup, DeliberateLeak::Descriptor, gpu))
        }
        DeliberateLeak::Addresses => {
            std::mem::forget(Reservation::builder(1 << 21).reserve(setup.vmm))
        }
    }
}
