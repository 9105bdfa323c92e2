//! Copies, fills, reads and writes on the simulation: when a wait for a copy returns early, and when threads race. If
//! the caller's closure in `Mapping::with_access` calls the library, the library panics. A success without a result is
//! an error.

mod machine;

use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::error::{Operation, Problem};
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, Allocation, Area, Mapping, PoolMemory, Reservation};
use machine::{Machine, at, generations};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// The size of a copy, in bytes. The library splits copies of this size.
const LARGE: usize = (3 << 20) + 17;

/// Returns bytes that repeat every 251 bytes.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// Fails unless the library has made at least two waits per copy. The first wait for a copy returns early, so the
/// library must wait again.
#[track_caller]
fn assert_waited_again(machine: &Machine) {
    let calls = |name| machine.simulation.calls(name);
    let copies = calls("hsa_amd_memory_async_copy");
    assert!(copies > 0);
    assert!(calls("hsa_signal_wait_scacquire") >= 2 * copies, "no wait returned early");
}

#[test]
fn waits_are_repeated_after_early_returns() {
    for (generation, config) in generations() {
        println!("{generation}");
        let machine = Machine::new(config.with_early_waits(true));
        let (gpu, expected) = (machine.gpu(0), pattern(LARGE));
        let mut bytes = vec![0; LARGE];

        let pool = PoolMemory::allocate(&machine.runtime, gpu, LARGE).unwrap();
        let pool_copy = PoolMemory::allocate(&machine.runtime, gpu, LARGE).unwrap();
        pool.write(0, &expected).unwrap();
        pool_copy.copy(0, &pool, 0, LARGE).unwrap();
        pool_copy.read(0, &mut bytes).unwrap();
        assert!(bytes == expected, "a copy of pool memory");
        pool_copy.fill(4, 0x0101_0101, LARGE / 8 * 4).unwrap();
        pool_copy.read(0, &mut bytes).unwrap();
        assert!(bytes[4..LARGE / 8 * 4].iter().all(|&byte| byte == 1), "a fill of pool memory");

        let size = LARGE.next_multiple_of(machine.granule());
        let ((source, _), (destination, _)) =
            (machine.map_new_memory(0, size), machine.map_new_memory(0, size));
        machine.grant(source, size, gpu, Access::ReadWrite);
        machine.grant(destination, size, gpu, Access::ReadWrite);
        machine.vmm.copy_from_host(gpu, at(source, 3), &expected[3..]).unwrap();
        machine.vmm.copy(gpu, destination, source, size).unwrap();
        machine.vmm.copy_to_host(gpu, &mut bytes[3..], at(destination, 3)).unwrap();
        assert!(bytes[3..] == expected[3..], "copies of virtual memory");
        machine.vmm.fill(destination, 7, size).unwrap();

        let mut host = vec![0; 5000];
        let area = Area::new(&machine.vmm, 0, AreaFlags::DEFAULT).unwrap();
        let device = area.mmap(5000, MmapOptions::new()).unwrap();
        device.write(0, &expected[..5000]).unwrap();
        let host_area = Area::new(&machine.vmm, 0, AreaFlags::MAPPED).unwrap();
        let mapped = host_area.mmap(5000, MmapOptions::new().with_host_memory(&mut host)).unwrap();
        mapped.copy(0, &device, 0, 5000).unwrap();
        drop((mapped, device));
        assert!(host == expected[..5000], "a copy of an area");
        assert_waited_again(&machine);
    }
}

/// The simulation returns success, but no address and no signal.
#[test]
fn lost_preparations_of_a_copy_are_errors() {
    let machine = Machine::new(Config::mi300x(1));
    let pool = PoolMemory::allocate(&machine.runtime, machine.gpu(0), 4096).unwrap();
    for call in ["hsa_amd_memory_lock", "hsa_signal_create"] {
        machine.simulation.set_faults(format!("{call}=lost").parse().unwrap());
        let error = pool.write(0, b"text").unwrap_err();
        let message = format!("cannot write: {call} returned success without a result");
        assert!(error.to_string().starts_with(&message), "{error}");
    }
    assert_eq!(machine.simulation.calls("hsa_amd_memory_async_copy"), 0);
}

/// Every byte that a thread reads is a byte that some thread has written. The thread sanitizer also reports a race if
/// the library's accesses are not atomic.
/// Memory of this process that stays locked is never freed.
#[test]
fn failed_unlock_is_repeated() {
    for options in [VmmOptions::new(), VmmOptions::new().with_page_tables(true)] {
        let machine = Machine::with_options(Config::mi300x(1), options);
        let granule = machine.granule();
        let (base, _) = machine.map_new_memory(0, granule);
        let before = machine.simulation.usage();
        let fault = || FaultPlan::none().fail("hsa_amd_memory_unlock", 1, HSA_STATUS_ERROR);
        machine.simulation.set_faults(fault());
        machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
        machine.simulation.set_faults(fault());
        machine.vmm.copy_from_host(machine.gpu(0), base, b"text").unwrap();
        assert_eq!(machine.simulation.failed_calls().len(), 1);
        assert_eq!(machine.simulation.usage().allocations, before.allocations);
    }
}

#[test]
fn racing_writes_are_not_data_races() {
    const SIZE: usize = 10_007;
    let machine = Machine::new(Config::mi300x(1));
    let pool = PoolMemory::allocate(&machine.runtime, machine.cpu(0), SIZE).unwrap();
    pool.fill(0, 0x0101_0101, SIZE / 4 * 4).unwrap();
    let mut host = vec![1; SIZE];
    let area = Area::new(&machine.vmm, 0, AreaFlags::MAPPED).unwrap();
    let locked = area.mmap(SIZE, MmapOptions::new().with_host_memory(&mut host)).unwrap();
    let are_written = |bytes: &[u8]| bytes.iter().all(|byte| (1..=3).contains(byte));
    thread::scope(|scope| {
        for writer in 1..=3_usize {
            // Writes at odd addresses, so that the words of different threads overlap.
            let (pool, locked, bytes) = (&pool, &locked, vec![writer as u8; SIZE - 7]);
            scope.spawn(move || {
                for _ in 0..20 {
                    pool.write(writer, &bytes).unwrap();
                    locked.write(writer, &bytes).unwrap();
                }
            });
            scope.spawn(move || {
                let mut bytes = vec![0; SIZE - 7];
                for _ in 0..20 {
                    pool.read(writer * 2, &mut bytes[1..]).unwrap();
                    locked.read(writer * 2, &mut bytes[1..]).unwrap();
                    assert!(are_written(&bytes[1..]));
                }
            });
        }
    });
    let mut bytes = vec![0; SIZE / 4 * 4];
    pool.read(0, &mut bytes).unwrap();
    assert!(are_written(&bytes));
    drop(locked);
    assert!(are_written(&host));
}

#[test]
fn closure_that_calls_the_library_panics() {
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let memory = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
    let reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
    let mapping = reservation.map(0, &memory).unwrap();
    let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
    let error = mapping.with_access(gpu, Access::Read, |_| ()).unwrap_err();
    assert!(matches!(error.problem(), Some(Problem::NotGranted { .. })), "{error}");
    assert_eq!(error.operation(), Operation::WithAccess);
    mapping.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    let read = || mapping.read(0, &mut [0; 4]);
    let call = || mapping.with_access(gpu, Access::Read, |_| read());
    let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    let text = panic.downcast_ref::<&str>().unwrap();
    assert!(text.contains("Mapping::with_access"), "{text}");
    read().unwrap();
}

/// While the panic of the closure unwinds, a second panic would end the process.
#[test]
fn values_dropped_by_a_panicking_closure_stay() {
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let new = || Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
    let reserve = |size| Reservation::builder(size).reserve(&machine.vmm).unwrap();
    // The closure may not lock reservations at lower addresses than its own.
    let mut reservations = [reserve(granule), reserve(2 * granule)];
    reservations.sort_by_key(Reservation::address);
    let [lower, reservation] = reservations;
    let mapping = reservation.map(0, &new()).unwrap();
    mapping.grant(&[machine.gpu(0)], Access::ReadWrite).unwrap();
    let dropped = (lower.map(0, &new()).unwrap(), lower);
    let call = || {
        mapping.with_access(machine.gpu(0), Access::Read, move |_| {
            let _dropped = dropped;
            panic!("the closure fails");
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(call)).map(drop).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the closure fails"));
    let usage = machine.vmm.usage();
    assert_eq!((usage.reservations, usage.mappings), (2, 2), "kept until the `Vmm` is dropped");
    drop((mapping, reservation));
    machine.vmm.check().unwrap();
    machine.close();
}

#[test]
fn write_many_finds_a_gap_before_it_writes() {
    let machine = Machine::new(Config::mi300x(2));
    let granule = machine.granule();
    // Frees the addresses of a large reservation, to reserve them as two adjacent reservations.
    let start = Reservation::builder(4 * granule).reserve(&machine.vmm).unwrap().address();
    let [first, second] = [(0, 1), (1, 3)].map(|(index, count)| {
        let builder = Reservation::builder(count * granule).exactly_at(at(start, index * granule));
        builder.reserve(&machine.vmm).unwrap()
    });
    let properties = machine.shareable_on(0);
    let parts = [(&first, 0), (&second, 0), (&second, 2 * granule)];
    let mappings = parts.map(|(reservation, offset)| {
        let allocation = Allocation::create(&machine.vmm, granule, &properties).unwrap();
        reservation.map(offset, &allocation).unwrap()
    });
    for mapping in &mappings {
        mapping.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    }
    let bytes = vec![7; 4 * granule];
    let error = Mapping::write_many(&mappings.each_ref(), start, &bytes).unwrap_err();
    let end = second.address().get() + granule;
    let size = bytes.len();
    assert_eq!(error.problem(), Some(Problem::OutOfBounds { size, end }), "{error}");
    let mut found = [1; 4];
    mappings[0].read(0, &mut found).unwrap();
    assert_eq!(found, [0; 4]);
}
