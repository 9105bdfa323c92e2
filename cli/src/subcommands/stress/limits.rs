//! The scenarios near a limit. They allocate until the limit is reached, release a part and allocate again.

use super::setup::Setup;
use fastrand::Rng;
use hsa_vmm::{Access, Allocation, AllocationProperties, HandleType, Mapping, Reservation};
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The number of allocations with which a thread fills its share of a GPU's memory.
const ALLOCATIONS: usize = 256;
/// The number of mappings kept free for stacks, heaps and the runtime.
const FREE_MAPPINGS: u64 = 2048;

/// Allocates memory until the GPUs have none left, releases a part, and repeats.
pub fn run_vram(setup: &Setup<'_>, mut rng: Rng, threads: usize) {
    let gpus: Vec<_> = setup.runtime.gpus().collect();
    let mut sizes = Vec::new();
    let mut total = 0;
    for gpu in &gpus {
        let Some(pool) = gpu.vmem_pool() else { continue };
        total += pool.size as u64;
        let unit = pool.recommended_granule.max(pool.granule).max(4096);
        let size = (pool.size / ALLOCATIONS / threads).next_multiple_of(unit);
        sizes.push((gpu.id(), size));
    }
    setup.limit.store(total, Ordering::Relaxed);
    let mut held: Vec<Allocation> = Vec::new();
    while setup.is_running() && !sizes.is_empty() {
        let (gpu, size) = sizes[rng.usize(..sizes.len())];
        match setup.count(Allocation::create(setup.vmm, size, &AllocationProperties::on(gpu))) {
            Some(memory) => {
                setup.add_held(size as u64);
                held.push(memory);
            }
            // The memory is full.
            None => release_some(setup, &mut rng, &mut held, |memory| memory.size() as u64),
        }
    }
    held.into_iter().for_each(|memory| setup.remove_held(memory.size() as u64));
}

/// Exports descriptors until the process can open no more, makes other calls that need a descriptor,
/// releases a part, and repeats.
pub fn run_descriptors(setup: &Setup<'_>, mut rng: Rng) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    setup.limit.store(limit.unwrap_or_default(), Ordering::Relaxed);
    let Some(gpu) = setup.runtime.gpus().next() else { return };
    let size = gpu.vmem_pool().map_or(4096, |pool| pool.granule);
    let properties =
        AllocationProperties::on(gpu.id()).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
    let Some(memory) = setup.count(Allocation::create(setup.vmm, size, &properties)) else {
        return;
    };
    let mut held: Vec<OwnedFd> = Vec::new();
    while setup.is_running() {
        match setup.count(memory.export()) {
            Some(descriptor) => {
                setup.add_held(1);
                held.push(descriptor);
            }
            None => {
                // Other calls must succeed or return an error that the scenario expects.
                if let Some(reservation) =
                    setup.count(Reservation::builder(size).reserve(setup.vmm))
                    && let Some(mapping) = setup.count(reservation.map(0, &memory))
                    && let Some(cpu) = setup.cpu()
                {
                    // Grant the CPU, not a GPU: AMD's runtime, built with assertions as in Debian,
                    // would abort the process (GRANT_WITHOUT_DESCRIPTOR_ABORTS in the library's tests/defects).
                    setup.count(mapping.grant(&[cpu], Access::ReadWrite));
                }
                if let Some(descriptor) = held.last() {
                    setup.count(Allocation::import(setup.vmm, descriptor));
                }
                release_some(setup, &mut rng, &mut held, |_| 1);
            }
        }
    }
    setup.remove_held(held.len() as u64);
}

/// Maps one allocation at many addresses until the process has nearly as many mappings as the kernel
/// allows, unmaps a part, and repeats.
pub fn run_mappings(setup: &Setup<'_>, mut rng: Rng) {
    let (Some(gpu), Some(cpu)) = (setup.runtime.gpus().next(), setup.cpu()) else { return };
    let allowed = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let allowed: u64 = allowed.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65_530);
    setup.limit.store(allowed, Ordering::Relaxed);
    let size = gpu.vmem_pool().map_or(4096, |pool| pool.granule);
    let properties = AllocationProperties::on(gpu.id());
    let Some(memory) = setup.count(Allocation::create(setup.vmm, size, &properties)) else {
        return;
    };
    let target = allowed.saturating_sub(FREE_MAPPINGS);
    let mut held: Vec<Mapping> = Vec::new();
    while setup.is_running() {
        let reservation = setup.count(Reservation::builder(size).reserve(setup.vmm));
        let mapping = reservation.and_then(|reservation| setup.count(reservation.map(0, &memory)));
        let Some(mapping) = mapping else { continue };
        setup.count(mapping.grant(&[cpu], Access::ReadWrite));
        held.push(mapping);
        // The kernel's count grows by at most two: the mapping and a gap. Near the limit, count exactly.
        if setup.held.fetch_add(2, Ordering::Relaxed) < target {
            continue;
        }
        // Only one thread counts at a time: with outdated counts, threads would exceed the limit. After
        // waiting for the lock, check again, because another thread may have unmapped some mappings.
        let _counting = setup.counting.lock().unwrap_or_else(PoisonError::into_inner);
        if setup.held.load(Ordering::Relaxed) < target {
            continue;
        }
        let mappings = count_mappings();
        setup.held.store(mappings, Ordering::Relaxed);
        setup.update_max_held(mappings);
        if mappings * 100 >= target * 97 {
            release_some(setup, &mut rng, &mut held, |_| 1);
        }
    }
    // Record the count even if the time was too short to reach the limit.
    setup.update_max_held(count_mappings());
}

/// Counts the mappings of this process in `/proc/self/maps`.
fn count_mappings() -> u64 {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Releases a random eighth of `held`.
fn release_some<T>(
    setup: &Setup<'_>,
    rng: &mut Rng,
    held: &mut Vec<T>,
    amount: impl Fn(&T) -> u64,
) {
    if held.is_empty() {
        // The other threads hold all of the resource.
        std::thread::yield_now();
    }
    for _ in 0..held.len().div_ceil(8) {
        let item = held.swap_remove(rng.usize(..held.len()));
        setup.remove_held(amount(&item));
        drop(item);
    }
}
