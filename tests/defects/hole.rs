//! If the CPU had access to memory, the runtime's `unmap` leaves a hole in the reservation. The runtime later
//! overwrites or removes a foreign mapping that was created in the hole.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE, load, store};
use crate::machine::{Library, access};
use crate::process::{assert_mapped, permissions};
use crate::table::HOLE_IN_THE_RESERVATION;
use hsa_vmm::{Access, Address, AgentId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maps foreign memory near an address, or exactly at the address if the kernel considers it free.
fn map_foreign_near(address: usize) -> usize {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: without MAP_FIXED, the kernel replaces no mapping.
    let memory = unsafe { libc::mmap(address as *mut _, SIZE, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as usize
}

#[test]
fn foreign_mapping_is_removed_on_the_runtime() {
    HOLE_IN_THE_RESERVATION.check_on_each_release(
        "hole::foreign_mapping_is_removed_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, memory) = raw.map_new_memory(SIZE, &[(raw.cpu, RW)]);
            raw.unmap(base, SIZE).unwrap();
            if map_foreign_near(base) != base {
                return false;
            }
            store(base, 5);
            raw.map(base, SIZE, 0, memory).unwrap();
            raw.set_access(base, SIZE, &[(raw.cpu, RW)]).unwrap();
            let overwritten = load(base) != 5;
            raw.unmap(base, SIZE).unwrap();
            assert_eq!(map_foreign_near(base), base, "the hole exists again");
            raw.free(base, SIZE).unwrap();
            let removed = permissions(base, SIZE) == Err(base);
            overwritten && removed
        },
    );
}

/// The minimum duration of all rounds.
const MIN_DURATION: Duration = Duration::from_secs(1);
/// The minimum number of rounds.
const MIN_ROUNDS: usize = 20;

/// A thread continuously maps memory near the reservation, and never gets addresses in the reservation.
#[test]
fn no_hole_appears_through_the_library() {
    on_each("hole::no_hole_appears_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let size = 4 * SIZE;
        let base = library.reserve(size);
        let (stop, overlapping, attempts) =
            (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for index in 0..4 {
                        let memory = map_foreign_near(base.get() + index * SIZE);
                        let overlaps = memory + SIZE > base.get() && memory < base.get() + size;
                        overlapping.fetch_add(usize::from(overlaps), Ordering::Relaxed);
                        attempts.fetch_add(1, Ordering::Relaxed);
                        // SAFETY: this thread created the mapping, and only this thread uses it.
                        assert_eq!(unsafe { libc::munmap(memory as *mut _, SIZE) }, 0);
                    }
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let begun = Instant::now();
                let mut round = 0;
                while round < MIN_ROUNDS || begun.elapsed() < MIN_DURATION {
                    change_access_and_unmap(&library, base, round);
                    round += 1;
                }
            }));
            stop.store(true, Ordering::Relaxed);
            result.unwrap();
        });
        assert!(attempts.into_inner() > MIN_ROUNDS, "the thread maps often enough");
        assert_eq!(overlapping.into_inner(), 0, "no foreign mapping in the reservation");
        assert_eq!(library.vmm.quarantined_ranges(), []);
        library.vmm.check().unwrap();
    });
}

/// Makes two mappings, changes their access for the CPU and a GPU several times, and unmaps the mappings.
fn change_access_and_unmap(library: &Library, base: Address, round: usize) {
    let vmm = &library.vmm;
    let (second, size) = (crate::machine::at(base, SIZE), 2 * SIZE);
    let assert_reserved =
        |step: &str| assert_mapped(base.get(), 4 * SIZE, &format!("{round}: {step}"));
    let set = |agent: AgentId, requested| {
        vmm.set_access(base, size, &[access(agent, requested)]).unwrap()
    };
    let memory = [library.create(0, SIZE), library.create(1, SIZE)];
    library.map(base, SIZE, memory[0]);
    library.map(second, SIZE, memory[1]);
    assert_reserved("mapped");
    for requested in [Access::ReadWrite, Access::Read, Access::None, Access::ReadWrite] {
        set(library.cpu(0), requested);
        assert_reserved("CPU access changed");
    }
    set(library.gpu(0), Access::ReadWrite);
    vmm.write(base, &[round as u8; 64]).unwrap();
    vmm.revoke(base, size, &[library.gpu(0)]).unwrap();
    assert_reserved("revoked from a GPU");
    let mut bytes = [0; 64];
    vmm.read(base, &mut bytes).unwrap();
    assert_eq!(bytes, [round as u8; 64], "{round}");
    vmm.revoke(base, size, &[library.cpu(0)]).unwrap();
    assert_reserved("revoked from the CPU");
    set(library.cpu(0), Access::ReadWrite);
    vmm.unmap(base, size).unwrap();
    assert_reserved("unmapped");
    for memory in memory {
        vmm.release(memory).unwrap();
    }
}
