//! Export and import as descriptors.

use crate::fixture::*;
use crate::rig::*;
use core::ptr::null_mut;
use std::fs::File;
use std::os::fd::AsRawFd;

#[test]
fn export_and_import_match_amd() {
    on_each(|v| {
        let r = &v.rig;
        v.check("export handle 0", status(r.export(0)), INVALID_ALLOCATION);
        let original = r.create(N);
        let (first_fd, second_fd) =
            (r.export(original).expect("a descriptor"), r.export(original).expect("a descriptor"));
        assert_ne!(first_fd, second_fd, "a new descriptor each time");
        let cloexec = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC != 0;
        assert!(cloexec(first_fd) && cloexec(second_fd));
        let export = r.vmem.hsa_amd_vmem_export_shareable_handle;
        let handle = hsa_amd_vmem_alloc_handle_t { handle: original };
        v.check("export NULL", unsafe { export(null_mut(), handle, 0) }, INVALID_ARGUMENT);
        v.check("import -1", status(r.import(-1)), INVALID_ARGUMENT);
        v.check("import a closed fd", status(r.import(9999)), INCOMPATIBLE);
        let null = File::open("/dev/null").expect("it exists");
        v.check("import /dev/null", status(r.import(null.as_raw_fd())), INCOMPATIBLE);
        let plain = unsafe { libc::memfd_create(c"plain".as_ptr(), 0) };
        v.check("import a memfd", status(r.import(plain)), INCOMPATIBLE);
        let import = r.vmem.hsa_amd_vmem_import_shareable_handle;
        v.check("import NULL", unsafe { import(first_fd, null_mut()) }, INVALID_ARGUMENT);
        let first = r.import(first_fd).expect("import");
        let second = r.import(first_fd).expect("the same fd again");
        let values = [0x0002_8000_0020_0000, 0x0002_8000_0080_0000, 0x0002_8000_00e0_0000];
        assert_eq!([original, first, second], values);
        let (pool, kind) = r.properties(first).expect("properties");
        assert_ne!(pool, r.vram[0].handle, "another pool");
        assert_eq!(kind, MEMORY_TYPE_NONE);
        let flags = HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS;
        let pool = hsa_amd_memory_pool_t { handle: pool };
        assert_eq!(pool_info::<u32>(r.hsa, pool, flags), Ok(2), "the fine-grained pool");
        v.check("release the original", r.release(original), OK);
        unsafe { (libc::close(first_fd), libc::close(second_fd)) };
        let base = r.reserve(2 * N);
        v.check("map an import", r.map(base, N, first), OK);
        v.check("map the other", r.map(base + N, N, second), OK);
        v.check("set_access", r.set(base, 2 * N, &v.all()), OK);
        write(base, 9);
        assert_eq!(read(base + N), 9, "both imports alias");
        v.check("re-export an import", status(r.export(first)), OK);
        assert_eq!((r.unmap(base, N), r.unmap(base + N, N)), (OK, OK));
        assert_eq!((r.release(first), r.release(second)), (OK, OK));
    });
}
