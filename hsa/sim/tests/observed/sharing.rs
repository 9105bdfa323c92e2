//! Export and import as descriptors.

use crate::fixture::*;
use crate::setup::*;
use core::ptr::null_mut;
use std::fs::File;
use std::os::fd::AsRawFd;

#[test]
fn export_and_import_match_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        version.check("export handle 0", status(setup.export(0)), INVALID_ALLOCATION);
        let original = setup.create(SIZE);
        let (first_fd, second_fd) = (
            setup.export(original).expect("a descriptor"),
            setup.export(original).expect("a descriptor"),
        );
        assert_ne!(first_fd, second_fd, "a new descriptor each time");
        let cloexec = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC != 0;
        assert!(cloexec(first_fd) && cloexec(second_fd));
        let export = setup.vmem.hsa_amd_vmem_export_shareable_handle;
        let handle = hsa_amd_vmem_alloc_handle_t { handle: original };
        version.check(
            "export to a null pointer",
            unsafe { export(null_mut(), handle, 0) },
            INVALID_ARGUMENT,
        );
        version.check("import -1", status(setup.import(-1)), INVALID_ARGUMENT);
        version.check("import a closed descriptor", status(setup.import(9999)), INCOMPATIBLE);
        let null = File::open("/dev/null").expect("it exists");
        version.check("import /dev/null", status(setup.import(null.as_raw_fd())), INCOMPATIBLE);
        let plain = unsafe { libc::memfd_create(c"plain".as_ptr(), 0) };
        version.check("import a plain memory file", status(setup.import(plain)), INCOMPATIBLE);
        let import = setup.vmem.hsa_amd_vmem_import_shareable_handle;
        version.check(
            "import to a null pointer",
            unsafe { import(first_fd, null_mut()) },
            INVALID_ARGUMENT,
        );
        let first = setup.import(first_fd).expect("import");
        let second = setup.import(first_fd).expect("the same fd again");
        let values = [0x0002_8000_0020_0000, 0x0002_8000_0080_0000, 0x0002_8000_00e0_0000];
        assert_eq!([original, first, second], values);
        let (pool, kind) = setup.properties(first).expect("properties");
        assert_ne!(pool, setup.vram[0].handle, "another pool");
        assert_eq!(kind, MEMORY_TYPE_NONE);
        let flags = HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS;
        let pool = hsa_amd_memory_pool_t { handle: pool };
        assert_eq!(pool_info::<u32>(setup.hsa, pool, flags), Ok(2), "the fine-grained pool");
        version.check("release the original", setup.release(original), OK);
        unsafe { (libc::close(first_fd), libc::close(second_fd)) };
        let base = setup.reserve(2 * SIZE);
        version.check("map an import", setup.map(base, SIZE, first), OK);
        version.check("map the other import", setup.map(base + SIZE, SIZE, second), OK);
        version.check("set_access", setup.set(base, 2 * SIZE, &version.all()), OK);
        write(base, 9);
        assert_eq!(read(base + SIZE), 9, "both imports refer to the same memory");
        version.check("re-export an import", status(setup.export(first)), OK);
        assert_eq!((setup.unmap(base, SIZE), setup.unmap(base + SIZE, SIZE)), (OK, OK));
        assert_eq!((setup.release(first), setup.release(second)), (OK, OK));
    });
}
