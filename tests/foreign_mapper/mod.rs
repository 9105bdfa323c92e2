//! Threads that map foreign memory continuously, in and around a reservation wherever the kernel allows
//! it, while the library uses the reservation.

use crate::machine::{Library, access, at};
use crate::process::assert_taken;
use hsa_vmm::{Access, Address};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 4;
const PLACES: usize = 4;
/// The number of mappings that a thread keeps.
const KEPT: usize = 64;
const TIME: Duration = Duration::from_millis(600);

/// A foreign mapping.
struct Foreign {
    start: usize,
    size: usize,
    mark: u8,
}

impl Foreign {
    /// Maps at any address, or near a hint, or exactly there if nothing is mapped there.
    fn map(hint: usize, size: usize, flags: i32, mark: u8) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: without MAP_FIXED, no mapping is replaced.
        let start = unsafe { libc::mmap(hint as *mut _, size, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: just mapped, and known to this thread only.
        unsafe { start.cast::<u8>().write_bytes(mark, size) };
        Some(Self { start: start as usize, size, mark })
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.start < range.end && range.start < self.start + self.size
    }

    /// Returns whether every byte is unchanged. If the memory was unmapped, the test crashes here.
    fn is_unchanged(&self) -> bool {
        // SAFETY: mapped by `map` and unmapped by `drop` only, unless the library is at fault.
        let bytes = unsafe { core::slice::from_raw_parts(self.start as *const u8, self.size) };
        bytes.iter().all(|&byte| byte == self.mark)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used by this value alone.
        unsafe { libc::munmap(self.start as *mut _, self.size) };
    }
}

/// The outcomes of all attempts.
#[derive(Debug, Default)]
struct Outcomes {
    attempts: AtomicUsize,
    inside: AtomicUsize,
    damaged: AtomicUsize,
}

/// Maps memory in and around a reservation until `over` is set.
fn map_foreign(reservation: &Range<usize>, mark: u8, over: &AtomicBool, outcomes: &Outcomes) {
    let mut kept: Vec<Foreign> = Vec::new();
    let check = |own: &Foreign| {
        outcomes.inside.fetch_add(usize::from(own.overlaps(reservation)), Ordering::Relaxed);
        outcomes.damaged.fetch_add(usize::from(!own.is_unchanged()), Ordering::Relaxed);
    };
    while !over.load(Ordering::Relaxed) {
        for page in (reservation.start - PAGE..=reservation.end).step_by(PAGE) {
            let exactly = Foreign::map(page, PAGE, libc::MAP_FIXED_NOREPLACE, mark);
            let near = Foreign::map(page, PAGES * PAGE, 0, mark);
            let anywhere = Foreign::map(0, PAGE, 0, mark);
            outcomes.attempts.fetch_add(3, Ordering::Relaxed);
            kept.extend([exactly, near, anywhere].into_iter().flatten());
        }
        kept.iter().for_each(check);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    kept.iter().for_each(check);
}

/// Has threads map foreign memory while every operation that changes access is done in a reservation.
/// Fails if a foreign mapping is inside the reservation or was changed.
#[track_caller]
pub fn map_during_changes(library: &Library, name: &str) {
    let size = PLACES * PAGES * PAGE;
    let base = library.reserve(size);
    let (over, outcomes) = (AtomicBool::new(false), Outcomes::default());
    let mut rounds = 0;
    std::thread::scope(|scope| {
        for mark in [0x71, 0x72] {
            let (over, outcomes) = (&over, &outcomes);
            scope
                .spawn(move || map_foreign(&(base.get()..base.get() + size), mark, over, outcomes));
        }
        let begun = Instant::now();
        let use_it = || {
            while begun.elapsed() < TIME || rounds < 10 {
                use_it(library, base, &format!("{name}, round {rounds}"));
                rounds += 1;
            }
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(use_it));
        over.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let attempts = outcomes.attempts.into_inner();
    println!("{name}: {attempts} attempts in {rounds} rounds");
    assert!(attempts > 100, "{name}: too few attempts");
    assert_eq!(outcomes.inside.into_inner(), 0, "{name}: foreign mappings inside");
    assert_eq!(outcomes.damaged.into_inner(), 0, "{name}: foreign mappings changed");
    assert_eq!(library.vmm.quarantine(), [], "{name}");
    library.vmm.address_free(base, size).expect("nothing is in it");
    library.assert_nothing_held();
}

/// Does everything that changes the CPU's access to a reservation, in all of it and in parts.
fn use_it(library: &Library, base: Address, name: &str) {
    let vmm = &library.vmm;
    let (granule, all) = (PAGES * PAGE, PLACES * PAGES * PAGE);
    let [cpu, gpu, peer] = [library.cpu(0), library.gpu(0), library.gpu(1)];
    let whole = |step: &str| assert_taken(base.get(), all, &format!("{name}: {step}"));
    let memory = [library.create(0, granule), library.create(1, granule)];
    for place in 0..PLACES {
        library.map(at(base, place * granule), granule, memory[place % 2]);
    }
    whole("mapped");
    for wanted in [Access::Read, Access::ReadWrite, Access::None, Access::ReadWrite] {
        library.grant(base, all, cpu, wanted);
        library.grant(at(base, granule), granule, cpu, Access::None);
        library.grant(at(base, granule), granule, cpu, wanted);
        whole("the CPU's access changed");
    }
    vmm.write(base, &[0x11; 64]).expect("granted");
    let gpus = [gpu, peer].map(|gpu| access(gpu, Access::ReadWrite));
    vmm.set_access(base, all, &gpus).expect("in reach");
    vmm.copy(gpu, at(base, 2 * granule + 64), base, 64).expect("granted");
    whole("granted to GPUs, and copied");
    vmm.revoke(at(base, granule), 2 * granule, &[gpu]).expect("mapped");
    whole("revoked from a GPU");
    let mut bytes = [0; 64];
    vmm.read(at(base, 2 * granule + 64), &mut bytes).expect("still the CPU's");
    assert_eq!(bytes, [0x11; 64], "{name}");
    vmm.revoke(base, granule, &[cpu, peer]).expect("mapped");
    whole("revoked from the CPU");
    vmm.unmap(at(base, granule), 2 * granule).expect("mapped");
    whole("unmapped in the middle");
    library.map(at(base, 2 * granule), granule, memory[1]);
    library.grant(at(base, 2 * granule), 2 * granule, cpu, Access::ReadWrite);
    vmm.unmap(at(base, 2 * granule), 2 * granule).expect("mapped");
    for handle in memory {
        vmm.release(handle).expect("referenced");
    }
    vmm.unmap(base, granule).expect("mapped");
    whole("unmapped");
}
