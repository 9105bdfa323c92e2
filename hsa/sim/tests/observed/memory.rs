//! Creating, releasing and querying memory.

use crate::fixture::*;
use crate::rig::*;
use core::ffi::c_void;
use core::ptr::{null_mut, without_provenance_mut};

#[test]
fn create_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let vram = r.vram[0];
        let create = |pool, size, kind, flags| status(r.try_create(pool, size, kind, flags));
        let pinned = |size| create(vram, size, MEMORY_TYPE_PINNED, 0);
        v.check("size 0", pinned(0), INVALID_ARGUMENT);
        v.check("size 1", pinned(1), INVALID_ARGUMENT);
        let small = r.create(4096);
        assert_eq!(small, 0x0002_8000_0000_1000);
        v.check("size 4097", pinned(4097), INVALID_ARGUMENT);
        v.check("2 MiB + 4 KiB", pinned(2 * MIB + 4 * KIB), OK);
        v.check("65 GiB on a 64 GiB GPU", pinned(65 * GIB), INVALID_ALLOCATION);
        let large = r.create(63 * GIB);
        // 6.1.2 returned SUCCESS although its kernel call failed.
        v.check("2 GiB more", pinned(2 * GIB), [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES]);
        assert_eq!(r.release(large), OK);
        v.check("type 7", create(vram, N, 7, 0), INVALID_ARGUMENT);
        v.check("type NONE", create(vram, N, MEMORY_TYPE_NONE, 0), OK);
        v.check("flags 0xff", create(vram, N, MEMORY_TYPE_PINNED, 0xff), OK);
        v.check("on the CPU pool", create(r.system, N, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        let pool = |handle| hsa_amd_memory_pool_t { handle };
        v.check("on pool 0", create(pool(0), N, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        // The next two calls crashed AMD's runtime.
        v.check("garbage pool", create(pool(GARBAGE), N, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        let create = r.vmem.hsa_amd_vmem_handle_create;
        let null_handle = unsafe { create(vram, N, MEMORY_TYPE_PINNED, 0, null_mut()) };
        v.check("NULL handle", null_handle, INVALID_ARGUMENT);
    });
}

#[test]
fn release_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        v.check("handle 0", r.release(0), INVALID_ALLOCATION);
        v.check("garbage", r.release(GARBAGE), INVALID_ALLOCATION);
        let (base, handle) = r.mapped(N, &v.all());
        let elsewhere = r.reserve(N);
        write(base, 3);
        v.check("while mapped", r.release(handle), OK);
        assert_eq!(read(base), 3, "the memory is still mapped");
        v.check("again", r.release(handle), INVALID_ALLOCATION);
        v.check("map it at other addresses", r.map(elsewhere, N, handle), OK);
        v.check("unmap it there", r.unmap(elsewhere, N), OK);
        v.check("export", status(r.export(handle)), OK);
        assert_eq!(r.retain(base), Ok(handle));
        v.check("release the retained reference", r.release(handle), OK);
        v.check("unmap: last use", r.unmap(base, N), OK);
        v.check("release after that", r.release(handle), INVALID_ALLOCATION);
        v.check("export after the last release", status(r.export(handle)), INVALID_ALLOCATION);
        v.check("map after the last release", r.map(base, N, handle), INVALID_ARGUMENT);
        let first = r.create(N);
        assert_eq!(r.release(first), OK);
        v.check("create, release, release", r.release(first), INVALID_ALLOCATION);
        assert_eq!((r.create(N), first), (0x0002_8000_0020_0000, 0x0002_8000_0020_0000));
    });
}

#[test]
fn retain_and_properties_match_amd() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = r.mapped(N, &[]);
        let reserved = r.reserve(N);
        v.check("retain a reserved address", status(r.retain(reserved)), INVALID_ALLOCATION);
        v.check("retain NULL", status(r.retain(0)), INVALID_ARGUMENT);
        assert_eq!(r.retain(base), Ok(handle));
        v.check("retain inside", status(r.retain(base + 4096)), INVALID_ALLOCATION);
        assert_eq!(r.properties(handle), Ok((r.vram[0].handle, MEMORY_TYPE_PINNED)));
        v.check("properties of 0", status(r.properties(0)), INVALID_ALLOCATION);
        v.check("properties of garbage", status(r.properties(GARBAGE)), INVALID_ALLOCATION);
        v.check("release x1", r.release(handle), OK);
        v.check("release x2", r.release(handle), OK);
        v.check("release x3", r.release(handle), INVALID_ALLOCATION);
    });
}

#[test]
fn pointer_info_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = (r.reserve(2 * N), r.create(N));
        assert_eq!(r.map(base, N, handle), OK);
        assert_eq!(r.set(base, N, &v.gpu(0, RW)), OK);
        let info = |address| {
            let info = r.pointer_info(address);
            let (agent, host) = (info.agentBaseAddress.addr(), info.hostBaseAddress.addr());
            let owned = info.agentOwner == r.gpus[0];
            (info.type_, agent, host, info.sizeInBytes, owned)
        };
        let reserved =
            [(0, base, base, 2 * N, false), (5, base, 0, 2 * N, false), (5, 0, base, 2 * N, false)];
        assert_eq!(info(base + N), reserved[v.index]);
        let at = base + 100;
        let mapped = [reserved[0], reserved[1], (6, at, at, N, true)];
        assert_eq!(info(at), mapped[v.index]);
        assert_eq!(info(handle as usize), (0, 0, 0, 0, false), "the handle's value");
        v.check("memory_pool_free", r.pool_free(base), INVALID_ALLOCATION);
        let allow = r.allow(&[r.gpus[1]], base);
        v.check("agents_allow_access GPU1", allow, [ERROR, OK, OK]);
        let (mut fd, mut offset) = (0, 0);
        let export = r.hsa.hsa_amd_portable_export_dmabuf.expect("in the table");
        let address = without_provenance_mut(base);
        let dmabuf = unsafe { export(address, N, &mut fd, &mut offset) };
        v.check("portable_export_dmabuf", dmabuf, INVALID_ALLOCATION);
        let lock = r.hsa.hsa_amd_memory_lock.expect("in the table");
        let mut agent_address = without_provenance_mut(1);
        let locked = unsafe { lock(address, N, null_mut(), 0, &mut agent_address) };
        v.check("memory_lock", locked, ERROR);
        assert!(agent_address.is_null());
    });
}

#[test]
fn lock_and_unlock_match_amd() {
    on_each(|v| {
        let r = &v.rig;
        let lock = r.hsa.hsa_amd_memory_lock.expect("in the table");
        let unlock = r.hsa.hsa_amd_memory_unlock.expect("in the table");
        let mut words = vec![0u64; 512];
        let (at, mut agent_address): (*mut c_void, _) = (words.as_mut_ptr().cast(), null_mut());
        let pointer_type = || r.pointer_info(at.addr()).type_;
        for _ in 0..2 {
            let again = unsafe { lock(at, 4096, null_mut(), 0, &mut agent_address) };
            v.check("lock the same twice", again, OK);
        }
        for locked in [HSA_EXT_POINTER_TYPE_LOCKED, HSA_EXT_POINTER_TYPE_UNKNOWN] {
            v.check("unlock it twice", unsafe { unlock(at) }, OK);
            assert_eq!(pointer_type(), locked);
        }
        // 7.2.4 aborted the process.
        v.check("unlock it once more", unsafe { unlock(at) }, [OK, OK, INVALID_ARGUMENT]);
    });
}
