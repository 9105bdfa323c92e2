//! Pool memory: peer access, export, IPC handles and locks.
#![allow(clippy::undocumented_unsafe_blocks)] // system calls on locals and on pool memory

mod setup;
use core::ptr::{null, null_mut, without_provenance, without_provenance_mut};
use setup::*;

const SIZE: usize = 4 * MIB;

fn cpu(setup: &Setup, permission: u32) -> [(hsa_agent_t, u32); 1] {
    [(setup.cpus[0], permission)]
}

fn gpu(setup: &Setup, number: usize, permission: u32) -> [(hsa_agent_t, u32); 1] {
    [(setup.gpus[number], permission)]
}

#[test]
fn pointer_info_describes_pool_memory() {
    // In the parent process, threads of other tests could reuse the freed addresses and closed descriptors.
    succeeds_in_child(pointer_info_describes_pool_memory_in_child);
}

fn pointer_info_describes_pool_memory_in_child() {
    let setup = start("era=b,gpus=2");
    let address = setup.allocate(setup.vram[0], SIZE + 5).expect("memory");
    write(address, 1);
    let info = setup.pointer_info(address + SIZE);
    assert_eq!(info.type_, HSA_EXT_POINTER_TYPE_HSA);
    assert_eq!(info.agentBaseAddress.addr(), address);
    assert_eq!(info.hostBaseAddress.addr(), address);
    assert_eq!(info.sizeInBytes, SIZE + 5);
    assert_eq!(info.agentOwner, setup.gpus[0]);
    assert_eq!(info.global_flags, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED);
    let accessible = || {
        static AGENTS: std::sync::Mutex<[u64; 64]> = std::sync::Mutex::new([0; 64]);
        unsafe extern "C" fn allocate(_: usize) -> *mut core::ffi::c_void {
            AGENTS.lock().expect("no panic").as_mut_ptr().cast()
        }
        let mut info: hsa_amd_pointer_info_t = unsafe { core::mem::zeroed() };
        info.size = 16; // the struct of an old caller
        let (mut count, mut list) = (0, null_mut());
        let query = setup.hsa.hsa_amd_pointer_info.expect("in the table");
        let address = without_provenance(address);
        let status = unsafe { query(address, &mut info, Some(allocate), &mut count, &mut list) };
        assert_eq!((status, info.size, info.sizeInBytes), (OK, 16, 0), "writes at most 16 bytes");
        unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec()
    };
    assert_eq!(accessible(), [setup.gpus[0]]);
    assert_eq!(setup.allow(&[setup.gpus[1]], address), OK);
    assert_eq!(accessible(), setup.gpus);
    assert_eq!(setup.allow(&[hsa_agent_t { handle: 1 }], address), INVALID_AGENT);
    assert_eq!(setup.allow(&[], address), INVALID_ARGUMENT);
    assert_eq!(setup.pool_free(address + 1), INVALID_ALLOCATION);
    assert_eq!(setup.pool_free(address), OK);
    assert_eq!(setup.pool_free(address), INVALID_ALLOCATION);
    assert_eq!(setup.pool_free(0), OK);
    assert!(!readable(address));
    let group = pools(setup.hsa, setup.gpus[0]).pop().expect("pools");
    assert_eq!(setup.allocate(group, 4096), Err(INVALID_ALLOCATION));
    let invalid = hsa_amd_memory_pool_t { handle: 0xdead_beef };
    assert_eq!(setup.allocate(invalid, 4096), Err(HSA_STATUS_ERROR_INVALID_MEMORY_POOL));
}

#[test]
fn pool_memory_is_exported() {
    // In the parent process, threads of other tests could reuse the freed addresses and closed descriptors.
    succeeds_in_child(pool_memory_is_exported_in_child);
}

fn pool_memory_is_exported_in_child() {
    let setup = start("era=b");
    let address = setup.allocate(setup.vram[0], SIZE).expect("memory");
    write(address + 8192, 21);
    let export = setup.hsa.hsa_amd_portable_export_dmabuf.expect("in the table");
    let close = setup.hsa.hsa_amd_portable_close_dmabuf.expect("in the table");
    let (mut descriptor, mut offset) = (-1, 0);
    let at = without_provenance_mut(address + 8192);
    assert_eq!(unsafe { export(at, 4096, &mut descriptor, &mut offset) }, OK);
    assert_eq!(offset, 8192);
    let imported = setup.import(descriptor).expect("an import");
    let base = setup.reserve(SIZE);
    assert_eq!(setup.map(base, SIZE, imported), OK);
    assert_eq!(setup.set(base, SIZE, &cpu(&setup, RW)), OK);
    assert_eq!(read(base + 8192), 21);
    assert_eq!(unsafe { close(descriptor) }, OK);
    assert_eq!(unsafe { close(descriptor) }, RESOURCE_FREE);
    let host = setup.allocate(setup.system, SIZE).expect("memory");
    let host = without_provenance_mut(host);
    assert_eq!(unsafe { export(host, SIZE, &mut descriptor, &mut offset) }, INVALID_AGENT);
}

#[test]
fn ipc_attaches_only_valid_handles() {
    let setup = start("era=b");
    let create = setup.hsa.hsa_amd_ipc_memory_create.expect("in the table");
    let address = setup.allocate(setup.vram[0], SIZE).expect("memory");
    write(address, 1234);
    let mut handle = hsa_amd_ipc_memory_t { handle: [0; 8] };
    let mut export =
        |at: usize, size| unsafe { create(without_provenance_mut(at), size, &mut handle) };
    assert_eq!(export(address + 4096, SIZE - 4096), INVALID_ARGUMENT, "not the base");
    assert_eq!(export(address, SIZE - 4096), INVALID_ARGUMENT, "not the size");
    let (mapped, _) = setup.mapped(SIZE, &gpu(&setup, 0, RW));
    assert_eq!(export(mapped, SIZE), INVALID_ARGUMENT, "virtual memory");
    assert_eq!(export(address, SIZE), OK);
    let child = || {
        let other = start("era=b");
        let attach = other.hsa.hsa_amd_ipc_memory_attach.expect("in the table");
        let detach = other.hsa.hsa_amd_ipc_memory_detach.expect("in the table");
        let mut attached = null_mut();
        for length in [0, 1, SIZE - 4096, SIZE - 1, SIZE + 1, SIZE + 4096, 2 * SIZE, usize::MAX] {
            let status = unsafe { attach(&handle, length, 0, null(), &mut attached) };
            assert_eq!(status, INVALID_ARGUMENT, "{length:#x}");
        }
        for word in 0..8 {
            let mut forged = handle;
            forged.handle[word] ^= 1 << 20;
            for length in [SIZE, SIZE ^ 1 << 20] {
                let status = unsafe { attach(&forged, length, 0, null(), &mut attached) };
                assert_eq!(status, INVALID_ARGUMENT, "word {word}, {length:#x}");
            }
        }
        assert_eq!(unsafe { attach(&handle, SIZE, 0, null(), &mut attached) }, OK);
        let info = other.pointer_info(attached.addr() + 10);
        assert_eq!((info.type_, info.sizeInBytes), (HSA_EXT_POINTER_TYPE_IPC, SIZE));
        assert_eq!(read(attached.addr()), 1234);
        write(attached.addr(), 4321);
        assert_eq!(other.pool_free(attached.addr()), INVALID_ALLOCATION);
        assert_eq!(unsafe { detach(attached) }, OK);
        assert_eq!(unsafe { detach(attached) }, INVALID_ARGUMENT);
    };
    assert_eq!(in_child(child), Ended::Exit(0));
    assert_eq!(read(address), 4321);
    assert_eq!(setup.pool_free(address), OK);
    let attach = setup.hsa.hsa_amd_ipc_memory_attach.expect("in the table");
    let mut attached = null_mut();
    let stale = unsafe { attach(&handle, SIZE, 1, &setup.gpus[0], &mut attached) };
    assert_eq!(stale, INVALID_ARGUMENT);
    handle.handle = [7; 8];
    assert_eq!(
        unsafe { attach(&handle, SIZE, 1, &setup.gpus[0], &mut attached) },
        INVALID_ARGUMENT
    );
}

/// As in AMD's releases, addresses after the end of the memory are not mapped.
#[test]
fn ipc_accepts_any_length_if_configured() {
    let setup = start("era=b");
    let create = setup.hsa.hsa_amd_ipc_memory_create.expect("in the table");
    let address = setup.allocate(setup.vram[0], SIZE).expect("memory");
    let mut handle = hsa_amd_ipc_memory_t { handle: [0; 8] };
    assert_eq!(unsafe { create(without_provenance_mut(address), SIZE, &mut handle) }, OK);
    let child = || {
        let other = start("era=b,ipc-lengths=believed");
        let attach = other.hsa.hsa_amd_ipc_memory_attach.expect("in the table");
        let detach = other.hsa.hsa_amd_ipc_memory_detach.expect("in the table");
        let mut attached = null_mut();
        for length in [1, SIZE - 4096, SIZE + 4096, 2 * SIZE] {
            assert_eq!(
                unsafe { attach(&handle, length, 0, null(), &mut attached) },
                OK,
                "{length:#x}"
            );
            let first = other.pointer_info(attached.addr());
            assert_eq!((first.type_, first.sizeInBytes), (HSA_EXT_POINTER_TYPE_IPC, length));
            let beyond = other.pointer_info(attached.addr() + SIZE);
            assert_eq!(beyond.type_, HSA_EXT_POINTER_TYPE_UNKNOWN, "{length:#x}");
            assert_eq!(unsafe { detach(attached) }, OK);
        }
    };
    assert_eq!(in_child(child), Ended::Exit(0));
}

#[test]
fn locks_are_counted() {
    let setup = start("era=b");
    let lock = setup.hsa.hsa_amd_memory_lock.expect("in the table");
    let unlock = setup.hsa.hsa_amd_memory_unlock.expect("in the table");
    let mut words = vec![0u64; 512];
    let (at, size) = (words.as_mut_ptr().cast(), 4096);
    let mut agents = setup.gpus.clone();
    let mut agent_address = null_mut();
    assert_eq!(unsafe { lock(at, size, agents.as_mut_ptr(), 1, &mut agent_address) }, OK);
    assert_eq!(agent_address, at);
    let info = setup.pointer_info(agent_address.addr() + 8);
    assert_eq!((info.type_, info.sizeInBytes), (HSA_EXT_POINTER_TYPE_LOCKED, size));
    // A second lock of the same range is counted. A lock of a part of the range fails.
    assert_eq!(unsafe { lock(at, size, null_mut(), 0, &mut agent_address) }, OK);
    assert_eq!(agent_address, at);
    assert_eq!(unsafe { lock(at, size / 2, null_mut(), 0, &mut agent_address) }, ERROR);
    assert_eq!(setup.simulation.usage().allocations, 1);
    let is_locked = || setup.pointer_info(at.addr()).type_ == HSA_EXT_POINTER_TYPE_LOCKED;
    assert_eq!(unsafe { unlock(at) }, OK);
    assert!(is_locked(), "one lock is left");
    assert_eq!(unsafe { unlock(at) }, OK);
    assert!(!is_locked());
    assert_eq!(unsafe { unlock(at) }, INVALID_ARGUMENT);
    let nowhere = without_provenance_mut(4096);
    assert_eq!(unsafe { lock(nowhere, size, null_mut(), 0, &mut agent_address) }, ERROR);
    // Like AMD's driver, the simulation rejects a range with an inaccessible or a read-only page in the middle.
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let range = unsafe { libc::mmap(null_mut(), SIZE, protection, flags, -1, 0) };
    for protection in [libc::PROT_NONE, libc::PROT_READ] {
        let result = unsafe { libc::mprotect(range.byte_add(SIZE / 2), size, protection) };
        assert_eq!(result, 0);
        assert_eq!(unsafe { lock(range, SIZE, null_mut(), 0, &mut agent_address) }, ERROR);
    }
    assert_eq!(unsafe { lock(range, SIZE / 2, null_mut(), 0, &mut agent_address) }, OK);
    assert_eq!(unsafe { unlock(range) }, OK);
}
