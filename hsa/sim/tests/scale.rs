//! Creates hundreds of thousands of mappings and handles, and fills eight GPUs. Untouched allocations must use no
//! memory and no descriptors. Calls must not become slower as the number of objects grows.

mod setup;
use setup::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A generous time limit for unoptimised code on a busy machine. A quadratic algorithm exceeds it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[track_caller]
fn timed<T>(label: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    eprintln!("{label}: {took:.2?}");
    assert!(took < TIME_LIMIT, "{label} took {took:?}");
    result
}

/// Returns the growth of this process's resident memory in bytes, or 0 if the memory has shrunk.
fn growth_since(before: usize) -> usize {
    resident_memory().saturating_sub(before)
}

/// Keeps the other tests of this program waiting, because two of the tests measure the memory of the
/// process.
fn lock_tests() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the resident memory of this process in bytes.
fn resident_memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4096
}

#[test]
fn one_handle_is_mapped_many_times() {
    let _lock = lock_tests();
    const SIZE: usize = 4096;
    // With this number a quadratic algorithm takes minutes.
    let count = 250_000;
    for generation in ["era=b", "era=d"] {
        let setup = start(&format!("gpus=1,{generation}"));
        let (base, handle) = (setup.reserve(count * SIZE), setup.create(SIZE));
        timed(&format!("{generation}: map {count}"), || {
            (0..count).for_each(|i| assert_eq!(setup.map(base + i * SIZE, SIZE, handle), OK));
        });
        assert_eq!(setup.simulation.usage().mappings, count);
        let (last, gpu) = (base + (count - 1) * SIZE, setup.gpus[0]);
        assert_eq!(setup.get(last, gpu), Ok(NONE));
        timed(&format!("{generation}: set_access {count} in one call, one GPU"), || {
            assert_eq!(setup.set(base, count * SIZE, &[(gpu, RW)]), OK);
        });
        assert!(setup.simulation.page(0, last).is_some());
        timed(&format!("{generation}: unmap {count} in one call"), || {
            assert_eq!(setup.unmap(base, count * SIZE), OK);
        });
        timed(&format!("{generation}: free"), || assert_eq!(setup.free(base, count * SIZE), OK));
        assert_eq!(setup.release(handle), OK);
        assert_eq!(setup.simulation.usage().vram_used, [0]);
    }
}

#[test]
fn supports_100_000_handles() {
    let _lock = lock_tests();
    const COUNT: usize = 100_000;
    for generation in ["era=b", "era=d"] {
        let setup = start(&format!("gpus=1,{generation},vram=1t"));
        let before = resident_memory();
        let mut handles: Vec<u64> = timed(&format!("{generation}: create 100,000"), || {
            (0..COUNT).map(|_| setup.create(2 * MIB)).collect()
        });
        assert!(growth_since(before) < 256 * MIB, "untouched allocations use no memory");
        assert_eq!(setup.simulation.usage().descriptors, 0);
        timed(&format!("{generation}: release every other, and create again"), || {
            handles.iter().step_by(2).for_each(|handle| assert_eq!(setup.release(*handle), OK));
            handles.iter_mut().step_by(2).for_each(|handle| *handle = setup.create(2 * MIB));
        });
        let different: std::collections::HashSet<_> = handles.iter().collect();
        assert_eq!(different.len(), COUNT);
        timed(&format!("{generation}: map and unmap each"), || {
            let base = setup.reserve(2 * MIB);
            for handle in &handles {
                assert_eq!(setup.map(base, 2 * MIB, *handle), OK);
                assert_eq!(setup.unmap(base, 2 * MIB), OK);
            }
        });
        timed(&format!("{generation}: release 100,000"), || {
            handles.iter().for_each(|handle| assert_eq!(setup.release(*handle), OK));
        });
    }
}

#[test]
fn eight_gpus_can_be_filled() {
    let _lock = lock_tests();
    let setup = start("gpus=8,era=b");
    let before = resident_memory();
    for (number, pool) in setup.vram.iter().enumerate() {
        let handle =
            setup.try_create(*pool, 192 * GIB, MEMORY_TYPE_PINNED, 0).expect("all video memory");
        let base = setup.reserve(192 * GIB);
        assert_eq!(setup.map(base, 192 * GIB, handle), OK);
        assert_eq!(
            setup.set(base, 192 * GIB, &[(setup.gpus[number], RW), (setup.cpus[0], RW)]),
            OK
        );
        write(base + 191 * GIB, number as u64 + 1);
        assert_eq!(setup.peek(base + 191 * GIB), number as u64 + 1);
        assert_eq!(setup.peek(base + 3), 0);
        let excess = setup.try_create(*pool, 4096, MEMORY_TYPE_PINNED, 0);
        assert_eq!(excess, Err(OUT_OF_RESOURCES));
    }
    assert!(growth_since(before) < 64 * MIB);
}
