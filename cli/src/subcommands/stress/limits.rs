//! The scenarios near a limit. They allocate until the limit is reached, release a part and allocate again.

use super::shared_state::SharedState;
use fastrand::Rng;
use hsa_vmm::{Access, Allocation, AllocationProperties, HandleType, Mapping, Reservation};
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The number of allocations with which a thread fills its share of a GPU's memory.
const ALLOCATIONS: usize = 256;
/// The number of mappings kept free for stacks, heaps and the runtime.
const FREE_MAPPINGS: u64 = 2048;
/// A thread unmaps a part of its mappings when the mappings of the process reach this percentage of the target. The
/// target is the number of allowed mappings minus [`FREE_MAPPINGS`].
const NEARLY_FULL: u64 = 97;

/// Allocates memory until the GPUs have none left, releases a part, and repeats. `total_threads` is the number of
/// threads of all processes.
pub fn run_vram(state: &SharedState<'_>, mut rng: Rng, total_threads: usize) {
    let gpus: Vec<_> = state.runtime.gpus().collect();
    let mut sizes = Vec::new();
    let mut total = 0;
    for gpu in &gpus {
        let Some(pool) = gpu.vmem_pool() else { continue };
        total += pool.size as u64;
        let unit = pool.recommended_granule.max(pool.granule).max(4096);
        let size = (pool.size / ALLOCATIONS / total_threads).next_multiple_of(unit);
        sizes.push((gpu.id(), size));
    }
    state.limit.store(total, Ordering::Relaxed);
    let mut held: Vec<Allocation> = Vec::new();
    while state.is_running() && !sizes.is_empty() {
        let (gpu, size) = sizes[rng.usize(..sizes.len())];
        match state.count(Allocation::create(state.vmm, size, &AllocationProperties::on(gpu))) {
            Some(memory) => {
                state.add_held(size as u64);
                held.push(memory);
            }
            // The memory is full.
            None => release_some(state, &mut rng, &mut held, |memory| memory.size() as u64),
        }
    }
    held.into_iter().for_each(|memory| state.remove_held(memory.size() as u64));
}

/// Exports descriptors until the process can open no more, makes other calls that need a descriptor,
/// releases a part, and repeats.
pub fn run_descriptors(state: &SharedState<'_>, mut rng: Rng) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    state.limit.store(limit.unwrap_or_default(), Ordering::Relaxed);
    let Some(gpu) = state.runtime.gpus().next() else { return };
    let size = gpu.vmem_pool().map_or(4096, |pool| pool.granule);
    let properties =
        AllocationProperties::on(gpu.id()).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
    let Some(memory) = state.count(Allocation::create(state.vmm, size, &properties)) else {
        return;
    };
    let mut held: Vec<OwnedFd> = Vec::new();
    while state.is_running() {
        match state.count(memory.export()) {
            Some(descriptor) => {
                state.add_held(1);
                held.push(descriptor);
            }
            None => {
                // Other calls must succeed or return an error that the scenario expects.
                if let Some(reservation) =
                    state.count(Reservation::builder(size).reserve(state.vmm))
                    && let Some(mapping) = state.count(reservation.map(0, &memory))
                    && let Some(cpu) = state.cpu()
                {
                    // Grant access to the CPU, not to a GPU: AMD's runtime, built with assertions as in Debian,
                    // would abort the process (GRANT_WITHOUT_DESCRIPTOR_ABORTS in the library's tests/defects).
                    state.count(mapping.grant(&[cpu], Access::ReadWrite));
                }
                if let Some(descriptor) = held.last() {
                    state.count(Allocation::import(state.vmm, descriptor));
                }
                release_some(state, &mut rng, &mut held, |_| 1);
            }
        }
    }
    state.remove_held(held.len() as u64);
}

/// Maps one allocation at many addresses until the process has nearly as many mappings as the kernel
/// allows, unmaps a part, and repeats.
pub fn run_mappings(state: &SharedState<'_>, mut rng: Rng) {
    let (Some(gpu), Some(cpu)) = (state.runtime.gpus().next(), state.cpu()) else { return };
    let allowed = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let allowed: u64 = allowed.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65_530);
    state.limit.store(allowed, Ordering::Relaxed);
    let size = gpu.vmem_pool().map_or(4096, |pool| pool.granule);
    let properties = AllocationProperties::on(gpu.id());
    let Some(memory) = state.count(Allocation::create(state.vmm, size, &properties)) else {
        return;
    };
    let target = allowed.saturating_sub(FREE_MAPPINGS);
    let mut held: Vec<Mapping> = Vec::new();
    while state.is_running() {
        let reservation = state.count(Reservation::builder(size).reserve(state.vmm));
        let mapping = reservation.and_then(|reservation| state.count(reservation.map(0, &memory)));
        let Some(mapping) = mapping else { continue };
        state.count(mapping.grant(&[cpu], Access::ReadWrite));
        held.push(mapping);
        // The kernel's count grows by at most two: the mapping and a gap. Near the limit, count exactly.
        if state.held.fetch_add(2, Ordering::Relaxed) < target {
            continue;
        }
        // Only one thread counts at a time: with outdated counts, threads would exceed the limit. After
        // waiting for the lock, check again, because another thread can have unmapped some mappings.
        let _counting = state.counting.lock().unwrap_or_else(PoisonError::into_inner);
        if state.held.load(Ordering::Relaxed) < target {
            continue;
        }
        let mappings = count_mappings();
        state.held.store(mappings, Ordering::Relaxed);
        state.update_max_held(mappings);
        if mappings * 100 >= target * NEARLY_FULL {
            release_some(state, &mut rng, &mut held, |_| 1);
        }
    }
    // Record the count even if the time was too short to reach the limit.
    state.update_max_held(count_mappings());
}

/// Counts the mappings of this process in `/proc/self/maps`.
fn count_mappings() -> u64 {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Releases a random eighth of `held`. `amount` returns how much of the scenario's resource an item holds.
fn release_some<T>(
    state: &SharedState<'_>,
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
        state.remove_held(amount(&item));
        drop(item);
    }
}
