//! After the CPU had access, `unmap` leaves a hole in the reservation. A foreign mapping created in the hole is
//! overwritten or removed by the runtime.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, Raw, SIZE, load, store};
use crate::machine::{Library, access};
use crate::process::{assert_taken, permissions};
use crate::table::HOLE_IN_THE_RESERVATION;
use hsa_vmm::{Access, Address, AgentId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maps foreign memory near an address: exactly there if the kernel takes it for free.
fn map_foreign_near(address: usize) -> usize {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: without MAP_FIXED nothing is replaced.
    let memory = unsafe { libc::mmap(address as *mut _, SIZE, access, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as usize
}

#[test]
fn on_the_runtime() {
    HOLE_IN_THE_RESERVATION.is_as_recorded("hole::on_the_runtime", |fixture| {
        let raw = Raw::start(fixture);
        let (base, memory) = raw.mapped(SIZE, &[(raw.cpu, RW)]);
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
    });
}

/// The minimum duration and number of rounds.
const TIME: Duration = Duration::from_secs(1);
const ROUNDS: usize = 20;

/// A thread maps memory near the reservation all the time, and never gets addresses in it.
#[test]
fn through_the_library() {
    on_each("hole::through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let size = 4 * SIZE;
        let base = library.reserve(size);
        let (over, inside, asked) =
            (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for place in 0..4 {
                        let memory = map_foreign_near(base.get() + place * SIZE);
                        let overlaps = memory + SIZE > base.get() && memory < base.get() + size;
                        inside.fetch_add(usize::from(overlaps), Ordering::Relaxed);
                        asked.fetch_add(1, Ordering::Relaxed);
                        // SAFETY: mapped above, and used by this thread only.
                        assert_eq!(unsafe { libc::munmap(memory as *mut _, SIZE) }, 0);
                    }
                }
            });
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let begun = Instant::now();
                let mut round = 0;
                while round < ROUNDS || begun.elapsed() < TIME {
                    use_it(&library, base, round);
                    round += 1;
                }
            }));
            over.store(true, Ordering::Relaxed);
            ended.unwrap();
        });
        assert!(asked.into_inner() > ROUNDS, "enough attempts");
        assert_eq!(inside.into_inner(), 0, "foreign mappings in the reservation");
        assert_eq!(library.vmm.quarantine(), []);
        library.vmm.check().unwrap();
    });
}

/// Makes two mappings, performs every operation that changes the CPU's access, and unmaps them.
fn use_it(library: &Library, base: Address, round: usize) {
    let vmm = &library.vmm;
    let (second, both) = (crate::machine::at(base, SIZE), 2 * SIZE);
    let looked = |step: &str| assert_taken(base.get(), 4 * SIZE, &format!("{round}: {step}"));
    let set =
        |agent: AgentId, wanted| vmm.set_access(base, both, &[access(agent, wanted)]).unwrap();
    let memory = [library.create(0, SIZE), library.create(1, SIZE)];
    library.map(base, SIZE, memory[0]);
    library.map(second, SIZE, memory[1]);
    looked("mapped");
    for wanted in [Access::ReadWrite, Access::Read, Access::None, Access::ReadWrite] {
        set(library.cpu(0), wanted);
        looked("CPU access changed");
    }
    set(library.gpu(0), Access::ReadWrite);
    vmm.write(base, &[round as u8; 64]).unwrap();
    vmm.revoke(base, both, &[library.gpu(0)]).unwrap();
    looked("revoked from a GPU");
    let mut bytes = [0; 64];
    vmm.read(base, &mut bytes).unwrap();
    assert_eq!(bytes, [round as u8; 64], "{round}");
    vmm.revoke(base, both, &[library.cpu(0)]).unwrap();
    looked("revoked from the CPU");
    set(library.cpu(0), Access::ReadWrite);
    vmm.unmap(base, both).unwrap();
    looked("unmapped");
    for memory in memory {
        vmm.release(memory).unwrap();
    }
}
