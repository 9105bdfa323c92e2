//! Eight threads, each with reservations of its own: the runtime itself failed 67 of 32,000 such
//! cycles (6.4.3), as what one thread maps lands in the holes that another's unmapping leaves.

use crate::amd_runtime::on_each;
use crate::machine::{Library, access, at};
use crate::process::descriptors;
use hsa_vmm::{Access, HandleType};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 8;
const SIZE: usize = 64 << 10;
const TIME: Duration = Duration::from_secs(2);

#[test]
fn eight_threads_of_whole_lives() {
    on_each("threads::eight_threads_of_whole_lives", |ground| {
        let library = Library::load(ground.runtime());
        // The runtime makes its queues when they are first needed.
        life(&library, 0);
        let before = descriptors();
        let (lives, barrier) = (AtomicUsize::new(0), Barrier::new(THREADS));
        std::thread::scope(|scope| {
            for number in 1..=THREADS {
                let (library, lives, barrier) = (&library, &lives, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let begun = Instant::now();
                    while begun.elapsed() < TIME {
                        life(library, number as u8);
                        lives.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        println!("{}: {} lives in {TIME:?}", ground.release(), lives.load(Ordering::Relaxed));
        assert!(lives.into_inner() > 10 * THREADS);
        assert_eq!(descriptors(), before);
        library.assert_nothing_held();
    });
}

/// A whole life, told apart by its number.
fn life(library: &Library, number: u8) {
    let vmm = &library.vmm;
    let (gpu, peer) = (number as usize % 2, 1 - number as usize % 2);
    let base = library.reserve(3 * SIZE);
    let memory = library.create(gpu, SIZE);
    library.map(base, SIZE, memory);
    library.map(at(base, 2 * SIZE), SIZE, memory);
    let owner = [library.cpu(0), library.gpu(gpu)].map(|id| access(id, Access::ReadWrite));
    vmm.set_access(base, SIZE, &owner).unwrap();
    vmm.write(base, &[number; 64]).unwrap();
    vmm.copy(library.gpu(gpu), at(base, 64), base, 64).unwrap();
    library.grant(base, SIZE, library.gpu(peer), Access::Read);
    let file = HandleType::PosixFileDescriptor;
    let shared = vmm.export_to_shareable_handle(memory, file, 0).unwrap();
    let imported = vmm.import_from_shareable_handle(shared, file).unwrap();
    library.map(at(base, SIZE), SIZE, imported);
    vmm.revoke(base, SIZE, &[library.gpu(gpu)]).unwrap();
    library.grant(at(base, SIZE), 2 * SIZE, library.cpu(0), Access::Read);
    for place in 0..3 {
        let mut bytes = [0; 128];
        vmm.read(at(base, place * SIZE), &mut bytes).unwrap();
        assert_eq!(bytes, [number; 128], "at {place}");
    }
    library.grant(base, SIZE, library.cpu(0), Access::None);
    vmm.release(imported).unwrap();
    vmm.unmap(base, 3 * SIZE).unwrap();
    vmm.release(memory).unwrap();
    vmm.address_free(base, 3 * SIZE).unwrap();
}
