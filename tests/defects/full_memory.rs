//! The first copies of a GPU whose memory is full. The runtime needs memory of the GPU to create its queue.

use crate::amd_runtime::raw::{PAGE, RW, RawRuntime};
use crate::amd_runtime::{on_each, set_variable};
use crate::machine::{Library, MIB};
use crate::table::FIRST_COPY_NEEDS_MEMORY;
use hsa_vmm::{Access, Allocation, AllocationProperties, Mapping, Reservation};

/// GPUs on which AMD's runtime allocates memory of the GPU for a queue at the first copy.
const DRIVER_SETTING: &str = "gpus=1,profile=mi210,vram=256MiB";

#[test]
fn first_copy_aborts_on_the_runtime() {
    let test = "full_memory::first_copy_aborts_on_the_runtime";
    FIRST_COPY_NEEDS_MEMORY.check_on_each_release(test, |fixture| {
        set_variable("HSA_KFD", DRIVER_SETTING);
        let raw = RawRuntime::start(fixture);
        let (address, _) = raw.map_new_memory(PAGE, &[(raw.gpus[0], RW)]);
        for size in [MIB, PAGE] {
            // 6.1.2 returns success with the handle 0 if no memory is left.
            while matches!(raw.create(size), Ok(1..)) {}
        }
        // Small copies succeed with 6.1.2, and fail with 6.4.3.
        let _ = raw.begin_copy(raw.gpus[0], address, address + PAGE / 2, 64);
        false
    });
}

#[test]
fn copies_work_after_earlier_copies() {
    on_each("full_memory::copies_work_after_earlier_copies", |fixture| {
        set_variable("HSA_KFD", DRIVER_SETTING);
        let library = Library::load(fixture.runtime());
        let (vmm, gpu) = (&library.vmm, library.gpus()[0]);
        let size = 4 * MIB;
        let addresses = Reservation::builder(256 * MIB).reserve(vmm).unwrap();
        let mut mappings: Vec<Mapping> = Vec::new();
        while let Ok(memory) = Allocation::create(vmm, size, &AllocationProperties::on(gpu)) {
            let mapping = addresses.map(mappings.len() * size, &memory).unwrap();
            mapping.grant(&[gpu], Access::ReadWrite).unwrap();
            if mappings.is_empty() {
                mapping.copy_to_host(gpu, 0, &mut [0; 64]).unwrap();
                mapping.copy_to_host(gpu, 0, &mut vec![0; 2 * MIB]).unwrap();
            }
            mappings.push(mapping);
        }
        let (first, second) = (&mappings[0], &mappings[1]);
        for bytes in [64, size] {
            let data = vec![7; bytes];
            let mut read = vec![0; bytes];
            first.copy_from_host(gpu, 0, &data).unwrap();
            vmm.copy(gpu, second.address(), first.address(), bytes).unwrap();
            second.copy_to_host(gpu, 0, &mut read).unwrap();
            assert!(read == data);
            second.fill(0, 9, bytes).unwrap();
        }
    });
}
