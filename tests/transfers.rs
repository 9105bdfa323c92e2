//! Copies, fills, reads and writes on the simulation: waits that return early, and races.

mod machine;

use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, Area, PoolMemory};
use machine::{Machine, at, generations};
use std::thread;

/// Larger than one portion of a copy.
const LARGE: usize = (3 << 20) + 17;

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|byte| (byte % 251) as u8).collect()
}

/// Fails unless every copy was waited for twice: once too early, and once to its end.
#[track_caller]
fn assert_waited_again(machine: &Machine) {
    let calls = |name| machine.simulation.calls(name);
    let copies = calls("hsa_amd_memory_async_copy");
    assert!(copies > 0);
    assert!(calls("hsa_signal_wait_scacquire") >= 2 * copies, "no wait returned early");
}

#[test]
fn early_wakeups_are_waited_again() {
    for (generation, config) in generations() {
        println!("{generation}");
        let machine = Machine::new(config.with_early_waits(true));
        let (gpu, expected) = (machine.gpu(0), text(LARGE));
        let mut bytes = vec![0; LARGE];

        let pool = PoolMemory::allocate(&machine.runtime, gpu, LARGE).unwrap();
        let other = PoolMemory::allocate(&machine.runtime, gpu, LARGE).unwrap();
        pool.write(0, &expected).unwrap();
        other.copy(0, &pool, 0, LARGE).unwrap();
        other.read(0, &mut bytes).unwrap();
        assert!(bytes == expected, "pool memory");
        other.fill(4, 0x0101_0101, LARGE / 8 * 4).unwrap();
        other.read(0, &mut bytes).unwrap();
        assert!(bytes[4..LARGE / 8 * 4].iter().all(|&byte| byte == 1), "filled");

        let size = LARGE.next_multiple_of(machine.granule());
        let ((one, _), (two, _)) = (machine.mapped(0, size), machine.mapped(0, size));
        machine.grant(one, size, gpu, Access::ReadWrite);
        machine.grant(two, size, gpu, Access::ReadWrite);
        machine.vmm.copy_from_host(gpu, at(one, 3), &expected[3..]).unwrap();
        machine.vmm.copy(gpu, two, one, size).unwrap();
        machine.vmm.copy_to_host(gpu, &mut bytes[3..], at(two, 3)).unwrap();
        assert!(bytes[3..] == expected[3..], "virtual memory");
        machine.vmm.fill(two, 7, size).unwrap();

        let mut host = vec![0; 5000];
        let area = Area::new(&machine.vmm, 0, AreaFlags::DEFAULT).unwrap();
        let device = area.mmap(5000, MmapOptions::new()).unwrap();
        device.write(0, &expected[..5000]).unwrap();
        let mapping = Area::new(&machine.vmm, 0, AreaFlags::MAPPED).unwrap();
        let mapped = mapping.mmap(5000, MmapOptions::new().with_host_memory(&mut host)).unwrap();
        mapped.copy(0, &device, 0, 5000).unwrap();
        drop((mapped, device));
        assert!(host == expected[..5000], "an area");
        assert_waited_again(&machine);
    }
}

/// The thread sanitizer finds a race here if the library's accesses are not atomic.
#[test]
fn racing_writes_mix_their_bytes() {
    const SIZE: usize = 10_007;
    let machine = Machine::new(Config::mi300x(1));
    let pool = PoolMemory::allocate(&machine.runtime, machine.cpu(0), SIZE).unwrap();
    pool.fill(0, 0x0101_0101, SIZE / 4 * 4).unwrap();
    let mut host = vec![1; SIZE];
    let area = Area::new(&machine.vmm, 0, AreaFlags::MAPPED).unwrap();
    let locked = area.mmap(SIZE, MmapOptions::new().with_host_memory(&mut host)).unwrap();
    let written = |bytes: &[u8]| bytes.iter().all(|byte| (1..=3).contains(byte));
    thread::scope(|scope| {
        for writer in 1..=3_usize {
            // At odd addresses, so that the words of different threads overlap.
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
                    assert!(written(&bytes[1..]));
                }
            });
        }
    });
    let mut bytes = vec![0; SIZE / 4 * 4];
    pool.read(0, &mut bytes).unwrap();
    assert!(written(&bytes));
    drop(locked);
    assert!(written(&host));
}
