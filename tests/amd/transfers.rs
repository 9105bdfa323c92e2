//! A GPU faults when it reads memory of this process that is not locked, on AMD's runtime as in the simulation.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{Fault, RW, RawRuntime, SIZE};

#[test]
fn gpu_faults_on_host_memory_that_is_not_locked() {
    on_each("transfers::gpu_faults_on_host_memory_that_is_not_locked", |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[0], RW)]);
        raw.write_by(raw.gpus[0], base, 6).expect("the GPU has access");
        let heap = vec![0u64; 512];
        assert_eq!(raw.read_by(raw.gpus[0], heap.as_ptr().addr()), Err(Fault));
    });
}

#[test]
fn gpu_faults_on_host_memory_that_was_unlocked() {
    on_each("transfers::gpu_faults_on_host_memory_that_was_unlocked", |fixture| {
        let raw = RawRuntime::start(fixture);
        let mut heap = vec![7u64; 3 * 512];
        let page = heap.as_mut_ptr().addr().next_multiple_of(4096);
        let address = raw.lock(page, 4096, &raw.gpus).expect("host memory");
        assert_eq!(raw.read_by(raw.gpus[0], address), Ok(7));
        raw.unlock(page).expect("the page is locked");
        assert_eq!(raw.read_by(raw.gpus[0], address), Err(Fault));
    });
}
