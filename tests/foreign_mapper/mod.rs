//! Threads that continuously try to map foreign memory in and around a reservation, while the library changes mappings
//! in the reservation.

use crate::machine::{Library, access, at};
use crate::process::assert_mapped;
use hsa_vmm::{Access, Address};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES_PER_MAPPING: usize = 4;
/// The number of mappings in the reservation.
const MAPPINGS: usize = 4;
/// The maximum number of foreign mappings that a thread keeps from one round to the next.
const MAX_FOREIGN: usize = 64;
const MIN_DURATION: Duration = Duration::from_millis(600);

struct ForeignMapping {
    start: usize,
    size: usize,
    mark: u8,
}

impl ForeignMapping {
    /// Maps memory near the hint, or anywhere if the hint is 0. With `MAP_FIXED_NOREPLACE` in `flags`, maps exactly at
    /// the hint, or returns `None`.
    fn map(hint: usize, size: usize, flags: i32, mark: u8) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: without MAP_FIXED, the kernel replaces no mapping.
        let start = unsafe { libc::mmap(hint as *mut _, size, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the `size` bytes were just mapped, and only this thread uses them.
        unsafe { start.cast::<u8>().write_bytes(mark, size) };
        Some(Self { start: start as usize, size, mark })
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.start < range.end && range.start < self.start + self.size
    }

    /// Returns whether every byte is unchanged. If the memory was unmapped, this call crashes the test.
    fn is_unchanged(&self) -> bool {
        // SAFETY: `map` created the mapping, and only `drop` unmaps it, unless the library has a defect.
        let bytes = unsafe { core::slice::from_raw_parts(self.start as *const u8, self.size) };
        bytes.iter().all(|&byte| byte == self.mark)
    }
}

impl Drop for ForeignMapping {
    fn drop(&mut self) {
        // SAFETY: `map` created the mapping, and only this value uses it.
        unsafe { libc::munmap(self.start as *mut _, self.size) };
    }
}

/// What the threads have counted.
#[derive(Debug, Default)]
struct Outcomes {
    /// How often a thread tried to map memory.
    attempts: AtomicUsize,
    /// How often a check found a foreign mapping in the reservation.
    inside: AtomicUsize,
    /// How often a check found a foreign mapping with changed contents.
    damaged: AtomicUsize,
}

/// Tries to map memory in and around a reservation until `stop` is set.
fn map_foreign(reservation: &Range<usize>, mark: u8, stop: &AtomicBool, outcomes: &Outcomes) {
    let mut mappings: Vec<ForeignMapping> = Vec::new();
    let check = |mapping: &ForeignMapping| {
        outcomes.inside.fetch_add(usize::from(mapping.overlaps(reservation)), Ordering::Relaxed);
        outcomes.damaged.fetch_add(usize::from(!mapping.is_unchanged()), Ordering::Relaxed);
    };
    while !stop.load(Ordering::Relaxed) {
        for hint in (reservation.start - PAGE..=reservation.end).step_by(PAGE) {
            let at_hint = ForeignMapping::map(hint, PAGE, libc::MAP_FIXED_NOREPLACE, mark);
            let near_hint = ForeignMapping::map(hint, PAGES_PER_MAPPING * PAGE, 0, mark);
            let anywhere = ForeignMapping::map(0, PAGE, 0, mark);
            outcomes.attempts.fetch_add(3, Ordering::Relaxed);
            mappings.extend([at_hint, near_hint, anywhere].into_iter().flatten());
        }
        mappings.iter().for_each(check);
        mappings.drain(..mappings.len().saturating_sub(MAX_FOREIGN));
    }
    mappings.iter().for_each(check);
}

/// Repeats operations that change access in a reservation, while threads map foreign memory. Fails if a foreign
/// mapping overlaps the reservation or was changed.
#[track_caller]
pub fn map_during_changes(library: &Library, name: &str) {
    let size = MAPPINGS * PAGES_PER_MAPPING * PAGE;
    let base = library.reserve(size);
    let (stop, outcomes) = (AtomicBool::new(false), Outcomes::default());
    let mut rounds = 0;
    std::thread::scope(|scope| {
        for mark in [0x71, 0x72] {
            let (stop, outcomes) = (&stop, &outcomes);
            scope
                .spawn(move || map_foreign(&(base.get()..base.get() + size), mark, stop, outcomes));
        }
        let begun = Instant::now();
        let run_rounds = || {
            while begun.elapsed() < MIN_DURATION || rounds < 10 {
                change_access(library, base, &format!("{name}, round {rounds}"));
                rounds += 1;
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run_rounds));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let attempts = outcomes.attempts.into_inner();
    println!("{name}: {attempts} attempts in {rounds} rounds");
    assert!(attempts > 100, "{name}: too few attempts");
    assert_eq!(outcomes.inside.into_inner(), 0, "{name}: foreign mappings in the reservation");
    assert_eq!(outcomes.damaged.into_inner(), 0, "{name}: foreign mappings changed");
    assert_eq!(library.vmm.quarantined_ranges(), [], "{name}");
    library.vmm.address_free(base, size).expect("nothing is mapped in the reservation");
    library.assert_everything_freed();
}

/// Maps memory in the reservation, changes the access of the CPU and of GPUs, and unmaps the memory. Some calls change
/// the whole reservation, others a part.
fn change_access(library: &Library, base: Address, name: &str) {
    let vmm = &library.vmm;
    let (granule, size) = (PAGES_PER_MAPPING * PAGE, MAPPINGS * PAGES_PER_MAPPING * PAGE);
    let [cpu, gpu, peer] = [library.cpu(0), library.gpu(0), library.gpu(1)];
    let assert_reserved = |step: &str| assert_mapped(base.get(), size, &format!("{name}: {step}"));
    let memory = [library.create(0, granule), library.create(1, granule)];
    for index in 0..MAPPINGS {
        library.map(at(base, index * granule), granule, memory[index % 2]);
    }
    assert_reserved("mapped");
    for requested in [Access::Read, Access::ReadWrite, Access::None, Access::ReadWrite] {
        library.grant(base, size, cpu, requested);
        library.grant(at(base, granule), granule, cpu, Access::None);
        library.grant(at(base, granule), granule, cpu, requested);
        assert_reserved("the CPU's access changed");
    }
    vmm.write(base, &[0x11; 64]).expect("granted");
    let gpus = [gpu, peer].map(|gpu| access(gpu, Access::ReadWrite));
    vmm.set_access(base, size, &gpus).expect("the GPUs are peers");
    vmm.copy(gpu, at(base, 2 * granule + 64), base, 64).expect("granted");
    assert_reserved("granted to GPUs, and copied");
    vmm.revoke(at(base, granule), 2 * granule, &[gpu]).expect("mapped");
    assert_reserved("revoked from a GPU");
    let mut bytes = [0; 64];
    vmm.read(at(base, 2 * granule + 64), &mut bytes).expect("the CPU still has access");
    assert_eq!(bytes, [0x11; 64], "{name}");
    vmm.revoke(base, granule, &[cpu, peer]).expect("mapped");
    assert_reserved("revoked from the CPU");
    vmm.unmap(at(base, granule), 2 * granule).expect("mapped");
    assert_reserved("unmapped in the middle");
    library.map(at(base, 2 * granule), granule, memory[1]);
    library.grant(at(base, 2 * granule), 2 * granule, cpu, Access::ReadWrite);
    vmm.unmap(at(base, 2 * granule), 2 * granule).expect("mapped");
    for handle in memory {
        vmm.release(handle).expect("referenced");
    }
    vmm.unmap(base, granule).expect("mapped");
    assert_reserved("unmapped");
}
