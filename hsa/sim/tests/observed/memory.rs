//! Creating, releasing and querying memory.

use crate::fixture::*;
use crate::setup::*;
use core::ffi::c_void;
use core::ptr::{null_mut, without_provenance_mut};

#[test]
fn create_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let vram = setup.vram[0];
        let create = |pool, size, kind, flags| status(setup.try_create(pool, size, kind, flags));
        let pinned = |size| create(vram, size, MEMORY_TYPE_PINNED, 0);
        version.check("size 0", pinned(0), INVALID_ARGUMENT);
        version.check("size 1", pinned(1), INVALID_ARGUMENT);
        let small = setup.create(4096);
        assert_eq!(small, 0x0002_8000_0000_1000);
        version.check("size 4097", pinned(4097), INVALID_ARGUMENT);
        version.check("2 MiB + 4 KiB", pinned(2 * MIB + 4 * KIB), OK);
        version.check("65 GiB on a 64 GiB GPU", pinned(65 * GIB), INVALID_ALLOCATION);
        let large = setup.create(63 * GIB);
        // 6.1.2 returns SUCCESS although its kernel call fails.
        version.check("2 GiB more", pinned(2 * GIB), [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES]);
        assert_eq!(setup.release(large), OK);
        version.check("type 7", create(vram, SIZE, 7, 0), INVALID_ARGUMENT);
        version.check("type NONE", create(vram, SIZE, MEMORY_TYPE_NONE, 0), OK);
        version.check("flags 0xff", create(vram, SIZE, MEMORY_TYPE_PINNED, 0xff), OK);
        version.check(
            "on the CPU pool",
            create(setup.system, SIZE, MEMORY_TYPE_PINNED, 0),
            INVALID_ARGUMENT,
        );
        let pool = |handle| hsa_amd_memory_pool_t { handle };
        version.check("on pool 0", create(pool(0), SIZE, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        // The next two calls crash AMD's runtime.
        version.check(
            "an invalid pool handle",
            create(pool(GARBAGE), SIZE, MEMORY_TYPE_PINNED, 0),
            INVALID_ARGUMENT,
        );
        let create = setup.vmem.hsa_amd_vmem_handle_create;
        let null_handle = unsafe { create(vram, SIZE, MEMORY_TYPE_PINNED, 0, null_mut()) };
        version.check("a null pointer for the handle", null_handle, INVALID_ARGUMENT);
    });
}

#[test]
fn release_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        version.check("handle 0", setup.release(0), INVALID_ALLOCATION);
        version.check("garbage handle", setup.release(GARBAGE), INVALID_ALLOCATION);
        let (base, handle) = setup.mapped(SIZE, &version.all());
        let elsewhere = setup.reserve(SIZE);
        write(base, 3);
        version.check("while mapped", setup.release(handle), OK);
        assert_eq!(read(base), 3, "the memory is still mapped");
        version.check("release again", setup.release(handle), INVALID_ALLOCATION);
        version.check("map it at other addresses", setup.map(elsewhere, SIZE, handle), OK);
        version.check("unmap it there", setup.unmap(elsewhere, SIZE), OK);
        version.check("export", status(setup.export(handle)), OK);
        assert_eq!(setup.retain(base), Ok(handle));
        version.check("release the retained reference", setup.release(handle), OK);
        version.check("unmap: last use", setup.unmap(base, SIZE), OK);
        version.check("release after that", setup.release(handle), INVALID_ALLOCATION);
        version.check(
            "export after the last release",
            status(setup.export(handle)),
            INVALID_ALLOCATION,
        );
        version.check(
            "map after the last release",
            setup.map(base, SIZE, handle),
            INVALID_ARGUMENT,
        );
        let first = setup.create(SIZE);
        assert_eq!(setup.release(first), OK);
        version.check("create, release, release", setup.release(first), INVALID_ALLOCATION);
        assert_eq!((setup.create(SIZE), first), (0x0002_8000_0020_0000, 0x0002_8000_0020_0000));
    });
}

#[test]
fn retain_and_properties_match_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let (base, handle) = setup.mapped(SIZE, &[]);
        let reserved = setup.reserve(SIZE);
        version.check(
            "retain a reserved address",
            status(setup.retain(reserved)),
            INVALID_ALLOCATION,
        );
        version.check("retain a null address", status(setup.retain(0)), INVALID_ARGUMENT);
        assert_eq!(setup.retain(base), Ok(handle));
        version.check(
            "retain an address inside the mapping",
            status(setup.retain(base + 4096)),
            INVALID_ALLOCATION,
        );
        assert_eq!(setup.properties(handle), Ok((setup.vram[0].handle, MEMORY_TYPE_PINNED)));
        version.check("properties of 0", status(setup.properties(0)), INVALID_ALLOCATION);
        version.check(
            "properties of garbage",
            status(setup.properties(GARBAGE)),
            INVALID_ALLOCATION,
        );
        version.check("the first release", setup.release(handle), OK);
        version.check("the second release", setup.release(handle), OK);
        version.check("a third release", setup.release(handle), INVALID_ALLOCATION);
    });
}

#[test]
fn pointer_info_matches_amd() {
    const UNKNOWN: hsa_amd_pointer_type_t = HSA_EXT_POINTER_TYPE_UNKNOWN;
    const RESERVED: hsa_amd_pointer_type_t = HSA_EXT_POINTER_TYPE_RESERVED_ADDR;
    const MAPPED: hsa_amd_pointer_type_t = HSA_EXT_POINTER_TYPE_HSA_VMEM;
    run_on_versions(|version| {
        let setup = &version.setup;
        let (base, handle) = (setup.reserve(2 * SIZE), setup.create(SIZE));
        assert_eq!(setup.map(base, SIZE, handle), OK);
        assert_eq!(setup.set(base, SIZE, &version.gpu(0, RW)), OK);
        // Type, address for agents, address for the CPU, size, and whether the first GPU is the owner.
        let info = |address| {
            let info = setup.pointer_info(address);
            let (agent, host) = (info.agentBaseAddress.addr(), info.hostBaseAddress.addr());
            let owned = info.agentOwner == setup.gpus[0];
            (info.type_, agent, host, info.sizeInBytes, owned)
        };
        let reserved = [
            (UNKNOWN, base, base, 2 * SIZE, false),
            (RESERVED, base, 0, 2 * SIZE, false),
            (RESERVED, 0, base, 2 * SIZE, false),
        ];
        assert_eq!(info(base + SIZE), reserved[version.index]);
        let at = base + 100;
        let mapped = [reserved[0], reserved[1], (MAPPED, at, at, SIZE, true)];
        assert_eq!(info(at), mapped[version.index]);
        assert_eq!(info(handle as usize), (UNKNOWN, 0, 0, 0, false), "the handle's value");
        version.check("memory_pool_free", setup.pool_free(base), INVALID_ALLOCATION);
        let allow = setup.allow(&[setup.gpus[1]], base);
        version.check("agents_allow_access GPU1", allow, [ERROR, OK, OK]);
        let (mut descriptor, mut offset) = (0, 0);
        let export = setup.hsa.hsa_amd_portable_export_dmabuf.expect("in the table");
        let address = without_provenance_mut(base);
        let dmabuf = unsafe { export(address, SIZE, &mut descriptor, &mut offset) };
        version.check("portable_export_dmabuf", dmabuf, INVALID_ALLOCATION);
        let lock = setup.hsa.hsa_amd_memory_lock.expect("in the table");
        let mut agent_address = without_provenance_mut(1);
        let locked = unsafe { lock(address, SIZE, null_mut(), 0, &mut agent_address) };
        version.check("memory_lock", locked, ERROR);
        assert!(agent_address.is_null());
    });
}

#[test]
fn lock_and_unlock_match_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let lock = setup.hsa.hsa_amd_memory_lock.expect("in the table");
        let unlock = setup.hsa.hsa_amd_memory_unlock.expect("in the table");
        let mut words = vec![0u64; 512];
        let (at, mut agent_address): (*mut c_void, _) = (words.as_mut_ptr().cast(), null_mut());
        let pointer_type = || setup.pointer_info(at.addr()).type_;
        for _ in 0..2 {
            let again = unsafe { lock(at, 4096, null_mut(), 0, &mut agent_address) };
            version.check("lock the same twice", again, OK);
        }
        for locked in [HSA_EXT_POINTER_TYPE_LOCKED, HSA_EXT_POINTER_TYPE_UNKNOWN] {
            version.check("unlock it twice", unsafe { unlock(at) }, OK);
            assert_eq!(pointer_type(), locked);
        }
        // 7.2.4 aborts the process.
        version.check("unlock it once more", unsafe { unlock(at) }, [OK, OK, INVALID_ARGUMENT]);
    });
}
