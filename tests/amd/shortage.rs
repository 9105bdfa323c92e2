//! Shortages of memory and of file descriptors.

use crate::amd_runtime::{on_each, set_variable};
use crate::machine::{Library, MIB, access, at};
use crate::process::assert_inaccessible;
use crate::process::limit::{limit_free_descriptors, raise_limit};
use hsa_rocr::Release;
use hsa_vmm::{Access, Address, Error, ErrorKind, Handle, HandleType, Ipc, PoolMemory, Runtime};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// Allocates all memory of a GPU, in allocations of `size` bytes.
fn allocate_all(library: &Library, gpu: usize, size: usize) -> Vec<Handle> {
    let mut handles = Vec::new();
    loop {
        match library.vmm.create(size, &library.shareable_on(gpu)) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                let ErrorKind::OutOfMemory { size: requested, .. } = *error.kind() else {
                    panic!("{error}")
                };
                assert_eq!(requested, size);
                return handles;
            }
        }
        assert!(handles.len() < 1000, "allocation eventually fails");
    }
}

#[test]
fn exhausted_memory_is_usable_after_free() {
    on_each("shortage::exhausted_memory_is_usable_after_free", |fixture| {
        set_variable("HSA_KFD", "gpus=2,vram=64MiB");
        let library = Library::load(fixture.runtime());
        let base = library.reserve(4 * MIB);
        let mut count = None;
        for _ in 0..3 {
            let handles = allocate_all(&library, 0, 4 * MIB);
            assert!((8..=16).contains(&handles.len()), "{} allocations", handles.len());
            assert_eq!(
                *count.get_or_insert(handles.len()),
                handles.len(),
                "all memory is free again"
            );
            // The allocated memory is usable, and the other GPU still has free memory.
            library.map(base, 4 * MIB, handles[0]);
            library.grant(base, 4 * MIB, library.cpu(0), Access::ReadWrite);
            library.grant(base, 4 * MIB, library.gpu(1), Access::ReadWrite);
            library.vmm.write(base, b"last").unwrap();
            library.vmm.unmap(base, 4 * MIB).unwrap();
            let peer_memory = library.create(1, 4 * MIB);
            library.vmm.release(peer_memory).unwrap();
            library.vmm.check().unwrap();
            for handle in handles {
                library.vmm.release(handle).unwrap();
            }
        }
        library.vmm.address_free(base, 4 * MIB).unwrap();
        library.assert_everything_freed();
    });
}

#[test]
fn calls_without_descriptors_change_nothing() {
    let test = "shortage::calls_without_descriptors_change_nothing";
    on_each(test, |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let size = 64 << 10;
        let base = library.reserve(2 * size);
        let [first, second, third] = [0, 1, 0].map(|gpu| library.create(gpu, size));
        library.map(base, size, first);
        library.grant(base, size, library.gpu(0), Access::Read);
        library.map(at(base, size), size, second);
        let shared = vmm.export_to_shareable_handle(first, DESCRIPTOR).unwrap();
        let free_address = library.reserve(size);
        let state = || (vmm.usage(), vmm.mappings());
        let before = state();

        limit_free_descriptors(0);
        let grants = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let grants = grants.map(|agent| access(agent, Access::ReadWrite));
        let results = [
            ("export", vmm.export_to_shareable_handle(first, DESCRIPTOR).map(drop)),
            ("set_access", vmm.set_access(base, size, &grants)),
            ("set_access of two", vmm.set_access(base, 2 * size, &grants)),
            ("map", vmm.map(free_address, size, 0, third)),
        ];
        for (name, result) in results {
            let is_shortage =
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(is_shortage, "{name}: {result:?}");
        }
        // Importing memory that is already open needs no further descriptor.
        let imported = vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
        vmm.release(imported).unwrap();
        raise_limit();

        assert_eq!(state(), before);
        vmm.check().unwrap();
        assert_eq!(vmm.quarantined_ranges(), []);
        assert_inaccessible(base.get(), 2 * size, "after the shortage");
        vmm.set_access(base, 2 * size, &grants).unwrap();
        vmm.map(free_address, size, 0, third).unwrap();
        vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
    });
}

/// AMD's runtime 7.2.4 would end the process with an assertion in its function `IPCCreate`.
#[test]
fn ipc_handle_without_descriptors_fails() {
    on_each("shortage::ipc_handle_without_descriptors_fails", |fixture| {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let ipc = Ipc::open(&runtime).unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let memory = PoolMemory::allocate(&runtime, gpu, 2 * MIB).unwrap();
        limit_free_descriptors(0);
        let result = ipc.get_mem_handle(memory.address());
        raise_limit();
        result.expect_err("a handle needs a descriptor");
        // 6.1.2 shares memory by a driver call that only the kernel driver of AMD's package has.
        if fixture.release() != Release::R6_1_2 {
            ipc.get_mem_handle(memory.address()).unwrap();
        }
    });
}

/// The library has a spare descriptor for the runtime's calls, so one further descriptor is enough.
#[test]
fn set_access_needs_one_free_descriptor() {
    on_each("shortage::set_access_needs_one_free_descriptor", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let size = 64 << 10;
        let base = library.reserve(4 * size);
        for number in 0..4 {
            library.map(at(base, number * size), size, library.create(number % 2, size));
        }
        let grants = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let grants = grants.map(|agent| access(agent, Access::ReadWrite));
        for (free_descriptors, succeeds) in [(0, false), (1, true)] {
            let before = (vmm.usage(), vmm.mappings());
            limit_free_descriptors(free_descriptors);
            let result = vmm.set_access(base, 4 * size, &grants);
            raise_limit();
            if succeeds {
                result.unwrap();
                continue;
            }
            assert_eq!(result.unwrap_err().kind(), &ErrorKind::OutOfDescriptors);
            assert_eq!((vmm.usage(), vmm.mappings()), before);
            assert_eq!(vmm.quarantined_ranges(), []);
            assert_inaccessible(base.get(), 4 * size, "without descriptors");
        }
        vmm.check().unwrap();
    });
}

/// The library rejects the grant. The runtime would abort this process, because the runtime asserts that it gets a
/// descriptor.
#[test]
fn grant_to_gpu_needs_a_descriptor() {
    on_each("shortage::grant_to_gpu_needs_a_descriptor", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let size = 64 << 10;
        let (base, _) = library.map_new_memory(0, size);
        let gpus = [library.gpu(0), library.gpu(1)].map(|id| access(id, Access::ReadWrite));
        limit_free_descriptors(0);
        let result = vmm.set_access(base, size, &gpus);
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)),
            "{result:?}"
        );
        assert_eq!(vmm.get_access(library.gpu(0), base).unwrap(), Access::None);
        raise_limit();
        vmm.set_access(base, size, &gpus).unwrap();
        // Changing a permission needs no descriptor. Revoking needs a descriptor, because the library grants the other
        // GPU access again.
        limit_free_descriptors(0);
        library.grant(base, size, library.gpu(1), Access::Read);
        let result = vmm.revoke(base, size, &[library.gpu(1)]);
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)),
            "{result:?}"
        );
        assert_eq!(vmm.get_access(library.gpu(1), base).unwrap(), Access::Read);
        raise_limit();
        vmm.revoke(base, size, &[library.gpu(1)]).unwrap();
        vmm.check().unwrap();
        assert_eq!(vmm.quarantined_ranges(), []);
    });
}

/// Without its server, AMD's runtime crashes if memory is freed while the runtime exports it.
#[test]
fn memory_can_be_freed_while_it_is_exported() {
    on_each("shortage::memory_can_be_freed_while_it_is_exported", |fixture| {
        // Earlier releases use no server by default.
        if fixture.release() == Release::R7_2_4 {
            set_variable("HSA_ENABLE_IPC_MODE_LEGACY", "1");
        }
        let library = Library::load(fixture.runtime());
        let ipc = Ipc::on(&library.runtime, library.gpu(0)).unwrap();
        let (address, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    let _ = ipc.get_mem_handle(Address::new(address.load(Relaxed)));
                }
            });
            for _ in 0..10_000 {
                // The runtime takes such small memory from a larger block.
                let memory = PoolMemory::allocate(&library.runtime, library.gpu(0), 100_000);
                let memory = memory.unwrap();
                address.store(memory.address().get(), Relaxed);
                memory.free().unwrap();
            }
            is_done.store(true, Relaxed);
        });
    });
}
