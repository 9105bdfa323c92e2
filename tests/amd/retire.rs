//! Retire queues: signals of AMD's runtime, retirements by several threads, and the cost of a retirement.

use crate::amd_runtime::{on_each, on_each_within};
use crate::machine::Library;
use crate::process::{FAULT, descriptors, load_in_child};
use crate::retire_load::Load;
use crate::signals::Signal;
use hsa_rocr::{Release, test};
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Access, Address, Allocation, ErrorKind, Mapping, Reservation};
use std::time::{Duration, Instant};

const SIZE: usize = 64 << 10;
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

fn map(library: &Library, reservation: &Reservation, offset: usize) -> Mapping {
    let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
    let mapping = reservation.map(offset, &memory).unwrap();
    mapping.grant(&[library.gpu(0), library.cpu(0)], Access::ReadWrite).unwrap();
    mapping.write(0, b"used").unwrap();
    mapping
}

#[track_caller]
fn assert_readable(library: &Library, address: Address, tag: u8) {
    let mut byte = [0];
    library.vmm.copy_to_host(library.gpu(0), &mut byte, address).unwrap();
    assert_eq!(byte, [tag], "by the GPU");
    // SAFETY: a load has no effect; if the memory is not mapped, SIGSEGV fails the test.
    let byte = unsafe { (address.get() as *const u8).read_volatile() };
    assert_eq!(byte, tag, "by the CPU");
}

#[test]
fn mappings_are_unmapped_when_signals_fire() {
    on_each("retire::mappings_are_unmapped_when_signals_fire", |fixture| {
        let library = Library::load(fixture.runtime());
        let [done, late] = [1, 1].map(|value| Signal::new(&library.runtime, value));
        let queue = RetireQueue::builder(4).with_time_limit(Duration::from_millis(500));
        let queue = queue.open(&library.vmm).unwrap();
        let reservation = Reservation::builder(3 * SIZE).reserve(&library.vmm).unwrap();
        // The runtime creates its queues for copies at the first copy.
        let warm_up_mapping = map(&library, &reservation, 2 * SIZE);
        assert_readable(&library, warm_up_mapping.address(), b'u');
        warm_up_mapping.unmap().unwrap();
        let before = descriptors();
        let [first, second] = [0, SIZE].map(|offset| map(&library, &reservation, offset));
        let [address, quarantined] = [&first, &second].map(Mapping::address);
        // SAFETY: the queue is dropped before the signals.
        unsafe { queue.submit(first, &[done.at_most(0)]) }.unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_readable(&library, address, b'u');
        done.set(0);
        assert_eq!(queue.drain(LONG_TIMEOUT).unwrap().retired, 1);
        assert_eq!(load_in_child(address.get()), FAULT);

        // SAFETY: the queue is dropped before the signals.
        unsafe { queue.submit(second, &[done.at_most(0), late.at_most(0)]) }.unwrap();
        let report = queue.drain(LONG_TIMEOUT).unwrap();
        assert_eq!((report.retired, report.failures.len()), (0, 1));
        late.set(0);
        drop((queue, reservation));
        assert_readable(&library, quarantined, b'u');
        let error = library.vmm.unmap(quarantined, SIZE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Quarantined { now: false, .. }), "{error}");
        assert_eq!(library.vmm.usage().mappings, 1);
        assert!(
            descriptors() <= before + 4,
            "the quarantined mapping has at most four descriptors"
        );
        let Library { vmm, runtime } = library;
        drop(vmm);
        // The library does not stop the runtime, because a mapping is quarantined. The mapping stays.
        drop((done, late, runtime));
        // SAFETY: a load has no effect; if the memory is not mapped, SIGSEGV fails the test.
        let byte = unsafe { (quarantined.get() as *const u8).read_volatile() };
        assert_eq!(byte, b'u');
    });
}

#[test]
fn nothing_is_unmapped_before_its_signals_fire() {
    let name = "retire::nothing_is_unmapped_before_its_signals_fire";
    on_each_within(name, Duration::from_secs(600), |fixture| {
        let library = Library::load(fixture.runtime());
        let read = |address: Address, tag: u8| {
            // SAFETY: a load has no effect; if the memory is not mapped, SIGSEGV fails the test.
            let byte = unsafe { (address.get() as *const u8).read_volatile() };
            assert_eq!(byte, tag, "{address}");
            // A GPU's copy takes much longer than the CPU's read.
            if (address.get() / SIZE).is_multiple_of(8) {
                assert_readable(&library, address, tag);
            }
        };
        // With `HSA_VMM_LONG`, 80,000 retirements on 6.4.3 take two minutes. Other runs make a tenth of them.
        let is_long = fixture.release() == Release::R6_4_3 && test::is_long();
        let load = Load {
            library: &library,
            threads: 8,
            retirements_per_thread: if is_long { 10_000 } else { 1_000 },
            capacity: 512,
            time_limit: Duration::from_secs(20),
            read: &read,
        };
        let begun = Instant::now();
        let outcome = load.run();
        test::report(&format!("{}: {outcome:?} in {:?}", fixture.release(), begun.elapsed()));
    });
}

/// Prints how long the steps of a retirement take on the emulated driver. Fails unless retiring a mapping takes less
/// time than four unmaps plus two milliseconds.
#[test]
fn retirement_costs_little_more_than_unmap() {
    on_each("retire::retirement_costs_little_more_than_unmap", |fixture| {
        const COUNT: usize = 100;
        let library = Library::load(fixture.runtime());
        let queue = RetireQueue::builder(COUNT).without_thread().open(&library.vmm).unwrap();
        let reservation = Reservation::builder(COUNT * SIZE).reserve(&library.vmm).unwrap();
        let time_per_mapping = |begun: Instant| begun.elapsed() / COUNT as u32;
        let map_all = || -> Vec<_> {
            (0..COUNT).map(|index| map(&library, &reservation, index * SIZE)).collect()
        };
        drop(map_all());
        let begun = Instant::now();
        let mappings = map_all();
        let map_time = time_per_mapping(begun);
        let begun = Instant::now();
        drop(mappings);
        let unmap_time = time_per_mapping(begun);
        let mappings = map_all();
        let begun = Instant::now();
        for mapping in mappings {
            // SAFETY: no agent uses the mapping, and there are no signals that could be destroyed too early.
            unsafe { queue.submit(mapping, &[]) }.unwrap();
        }
        let submit_time = time_per_mapping(begun);
        let begun = Instant::now();
        assert_eq!(queue.poll().unwrap().retired, COUNT);
        let retire_time = time_per_mapping(begun);
        test::report(&format!(
            "{}: map and grant {map_time:?}, unmap {unmap_time:?}, submit {submit_time:?}, retire {retire_time:?}",
            fixture.release()
        ));
        assert!(retire_time < 4 * unmap_time + Duration::from_millis(2));
        drop(reservation);
        library.assert_everything_freed();
    });
}
