//! Threads of somebody else's that map memory all the time, in and around a reservation wherever
//! the kernel lets them, while the library uses it.

use crate::machine::{Library, access, at};
use crate::process::assert_taken;
use hsa_vmm::{Access, Address};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 4;
const PLACES: usize = 4;
/// Pages that a stranger keeps at a time.
const KEPT: usize = 64;
const TIME: Duration = Duration::from_millis(600);

/// Memory of a stranger's.
struct Own {
    start: usize,
    size: usize,
    mark: u8,
}

impl Own {
    /// Maps where the kernel likes, or near a hint, or exactly there if nothing is.
    fn map(hint: usize, size: usize, flags: i32, mark: u8) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: nothing that is there is replaced: not without MAP_FIXED.
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

    /// Whether every byte is as it was left; should the memory be gone, the test dies here.
    fn is_whole(&self) -> bool {
        // SAFETY: mapped by `map` and unmapped by `drop` only, unless what is tested here fails.
        let bytes = unsafe { core::slice::from_raw_parts(self.start as *const u8, self.size) };
        bytes.iter().all(|&byte| byte == self.mark)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody else knows of it.
        unsafe { libc::munmap(self.start as *mut _, self.size) };
    }
}

/// What strangers came to.
#[derive(Debug, Default)]
struct Tries {
    tried: AtomicUsize,
    let_in: AtomicUsize,
    damaged: AtomicUsize,
}

/// Tries to get in until it is over.
fn intrude(reservation: &Range<usize>, mark: u8, over: &AtomicBool, tries: &Tries) {
    let mut kept: Vec<Own> = Vec::new();
    let check = |own: &Own| {
        tries.let_in.fetch_add(usize::from(own.overlaps(reservation)), Ordering::Relaxed);
        tries.damaged.fetch_add(usize::from(!own.is_whole()), Ordering::Relaxed);
    };
    while !over.load(Ordering::Relaxed) {
        for page in (reservation.start - PAGE..=reservation.end).step_by(PAGE) {
            let exactly = Own::map(page, PAGE, libc::MAP_FIXED_NOREPLACE, mark);
            let near = Own::map(page, PAGES * PAGE, 0, mark);
            let anywhere = Own::map(0, PAGE, 0, mark);
            tries.tried.fetch_add(3, Ordering::Relaxed);
            kept.extend([exactly, near, anywhere].into_iter().flatten());
        }
        kept.iter().for_each(check);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    kept.iter().for_each(check);
}

/// Has strangers try to get into a reservation while everything is done to it that changes who may
/// use its memory, and fails if one got in or lost anything.
#[track_caller]
pub fn besiege(library: &Library, name: &str) {
    let size = PLACES * PAGES * PAGE;
    let base = library.reserve(size);
    let (over, tries) = (AtomicBool::new(false), Tries::default());
    let mut rounds = 0;
    std::thread::scope(|scope| {
        for mark in [0x71, 0x72] {
            let (over, tries) = (&over, &tries);
            scope.spawn(move || intrude(&(base.get()..base.get() + size), mark, over, tries));
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
    let tried = tries.tried.into_inner();
    println!("{name}: {tried} tries in {rounds} rounds");
    assert!(tried > 100, "{name}: the strangers had their chances");
    assert_eq!(tries.let_in.into_inner(), 0, "{name}: times a stranger was let in");
    assert_eq!(tries.damaged.into_inner(), 0, "{name}: times a stranger lost something");
    assert_eq!(library.vmm.quarantine(), [], "{name}");
    library.vmm.address_free(base, size).expect("nothing is in it");
    library.assert_nothing_held();
}

/// Everything that changes the CPU's view of a reservation, in all of it and in parts.
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
