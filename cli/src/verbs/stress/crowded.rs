//! The scenes near a limit: as much as there can be of something, given back and taken anew.

use super::stage::Stage;
use fastrand::Rng;
use hsa_vmm::{Access, Allocation, AllocationProperties, HandleType, Mapping, Reservation};
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// How many pieces the memory of all GPUs is taken in, by all threads together.
const PIECES: usize = 256;
/// What a process has left of its mappings when it counts as full: for stacks, heaps, the runtime.
const MAPPINGS_LEFT: u64 = 2048;

/// Memory, until the GPUs have none; then some is given back, and so on.
pub fn vram(stage: &Stage<'_>, mut rng: Rng, threads: usize) {
    let gpus: Vec<_> = stage.runtime.gpus().collect();
    let mut all = Vec::new();
    let mut total = 0;
    for gpu in &gpus {
        let Some(pool) = gpu.handle_pool() else { continue };
        total += pool.size as u64;
        let unit = pool.recommended_granule.max(pool.granule).max(4096);
        let piece = (pool.size / PIECES / threads).next_multiple_of(unit);
        all.push((gpu.id(), piece));
    }
    stage.limit.store(total, Ordering::Relaxed);
    let mut held: Vec<Allocation> = Vec::new();
    while stage.goes_on() && !all.is_empty() {
        let (gpu, piece) = all[rng.usize(..all.len())];
        match stage.call(Allocation::create(stage.vmm, piece, &AllocationProperties::on(gpu))) {
            Some(memory) => {
                stage.holds(piece as u64);
                held.push(memory);
            }
            // Full. A part is given back, so that there is something to do.
            None => give_back(stage, &mut rng, &mut held, |memory| memory.size() as u64),
        }
    }
    held.into_iter().for_each(|memory| stage.gives(memory.size() as u64));
}

/// Descriptors, until the process can open no more; and what else needs one meanwhile.
pub fn descriptors(stage: &Stage<'_>, mut rng: Rng) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    stage.limit.store(limit.unwrap_or_default(), Ordering::Relaxed);
    let Some(gpu) = stage.runtime.gpus().next() else { return };
    let size = gpu.handle_pool().map_or(4096, |pool| pool.granule);
    let properties =
        AllocationProperties::on(gpu.id()).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
    let Some(memory) = stage.call(Allocation::create(stage.vmm, size, &properties)) else { return };
    let mut held: Vec<OwnedFd> = Vec::new();
    while stage.goes_on() {
        match stage.call(memory.export()) {
            Some(descriptor) => {
                stage.holds(1);
                held.push(descriptor);
            }
            None => {
                // Everything else must go on well, or say what it lacks.
                if let Some(reservation) = stage.call(Reservation::builder(size).reserve(stage.vmm))
                    && let Some(mapping) = stage.call(reservation.map(0, &memory))
                    && let Some(cpu) = stage.cpu()
                {
                    // Not a GPU: AMD's runtime, with assertions as Debian builds it, gives the whole
                    // process up then (GRANT_WITHOUT_DESCRIPTOR_ABORTS in the library's tests/defects).
                    stage.call(mapping.grant(&[cpu], Access::ReadWrite));
                }
                if let Some(descriptor) = held.last() {
                    stage.call(Allocation::import(stage.vmm, descriptor));
                }
                give_back(stage, &mut rng, &mut held, |_| 1);
            }
        }
    }
    stage.gives(held.len() as u64);
}

/// Mappings of one memory, each at an address of its own, until the process has nearly as many as
/// the kernel allows.
pub fn mappings(stage: &Stage<'_>, mut rng: Rng) {
    let (Some(gpu), Some(cpu)) = (stage.runtime.gpus().next(), stage.cpu()) else { return };
    let allowed = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let allowed: u64 = allowed.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65_530);
    stage.limit.store(allowed, Ordering::Relaxed);
    let size = gpu.handle_pool().map_or(4096, |pool| pool.granule);
    let properties = AllocationProperties::on(gpu.id());
    let Some(memory) = stage.call(Allocation::create(stage.vmm, size, &properties)) else { return };
    let full = allowed.saturating_sub(MAPPINGS_LEFT);
    let mut held: Vec<Mapping> = Vec::new();
    while stage.goes_on() {
        let reservation = stage.call(Reservation::builder(size).reserve(stage.vmm));
        let mapping = reservation.and_then(|reservation| stage.call(reservation.map(0, &memory)));
        let Some(mapping) = mapping else { continue };
        stage.call(mapping.grant(&[cpu], Access::ReadWrite));
        held.push(mapping);
        // At most two: itself and a gap. When that could be too many, it is counted.
        if stage.held.fetch_add(2, Ordering::Relaxed) < full {
            continue;
        }
        // By one thread at a time: on a busy machine what another has counted long ago would make
        // all of them go too far. Who waited here finds that there is room again.
        let _counting = stage.counting.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.held.load(Ordering::Relaxed) < full {
            continue;
        }
        let lines = lines();
        stage.held.store(lines, Ordering::Relaxed);
        stage.reaches(lines);
        if lines * 100 >= full * 97 {
            give_back(stage, &mut rng, &mut held, |_| 1);
        }
    }
    // Also if time was too short for more.
    stage.reaches(lines());
}

/// How many mappings this process really has.
fn lines() -> u64 {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Gives back about an eighth, from anywhere.
fn give_back<T>(stage: &Stage<'_>, rng: &mut Rng, held: &mut Vec<T>, weight: impl Fn(&T) -> u64) {
    if held.is_empty() {
        // The others have it all.
        std::thread::yield_now();
    }
    for _ in 0..held.len().div_ceil(8) {
        let one = held.swap_remove(rng.usize(..held.len()));
        stage.gives(weight(&one));
        drop(one);
    }
}
