//! Foreign mappings are never created in a reservation.

use crate::amd_runtime::on_each;
use crate::foreign_mapper::map_during_changes;
use crate::machine::{Library, access, at};
use crate::process::{assert_inaccessible, assert_mapped, permissions};
use hsa_rocr::test::Fixture;
use hsa_vmm::Access;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn foreign_mappings_stay_outside() {
    on_each("foreign_mappings::foreign_mappings_stay_outside", |fixture| {
        map_during_changes(&Library::load(fixture.runtime()), &fixture.release().to_string());
    });
}

/// Compiles `read_only_exports.c` into a shim that loads AMD's runtime. Returns the shim's path.
fn build_shim(fixture: &Fixture) -> PathBuf {
    let name = format!("read-only-exports-{}.so", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/amd/read_only_exports.c");
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/hsa/sys/include");
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
        .args(["-shared", "-fPIC", "-O1", "-I", headers, "-Wl,--no-as-needed", "-o"])
        .args([file.as_os_str(), source.as_ref(), fixture.runtime().as_os_str()])
        .output()
        .expect("a C compiler, $CC or cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

/// Returns how often `hsa_amd_vmem_set_access` was called through the shim.
fn access_changes(shim: &Path) -> i32 {
    let name = CString::new(shim.to_str().unwrap()).unwrap();
    // SAFETY: the shim is loaded already, and its variable is an int.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!library.is_null());
        let variable = libc::dlsym(library, c"shim_changes_of_access".as_ptr());
        assert!(!variable.is_null());
        variable.cast::<i32>().read_volatile()
    }
}

/// AMD's runtimes 6.1 and 6.4 revoke the CPU's access with `munmap`. When they grant access again, they call `mmap`
/// with `MAP_FIXED`, which replaces a foreign mapping that was created meanwhile.
#[test]
fn cpu_access_changes_make_no_hole() {
    on_each("foreign_mappings::cpu_access_changes_make_no_hole", |fixture| {
        let shim = build_shim(fixture);
        let library = Library::load(&shim);
        let (vmm, cpu, size) = (&library.vmm, library.cpu(0), 64 << 10);
        let base = library.reserve(2 * size);
        for (number, gpu) in [0, 1].into_iter().enumerate() {
            library.map(at(base, number * size), size, library.create(gpu, size));
        }
        library.grant(base, 2 * size, cpu, Access::Read);
        let before = access_changes(&shim);
        assert!(before > 0, "the runtime has mapped the memory for the CPU");
        for (requested, expected) in [
            (Access::Read, "r--"),
            (Access::ReadWrite, "rw-"),
            (Access::None, "---"),
            (Access::ReadWrite, "rw-"),
        ] {
            library.grant(base, 2 * size, cpu, requested);
            let parts = permissions(base.get(), 2 * size).expect("no hole");
            assert!(parts.iter().all(|part| part.2.starts_with(expected)), "{parts:x?}");
        }
        assert_eq!(access_changes(&shim), before, "no call of the runtime");
        vmm.write(at(base, size), b"kept").unwrap();
        // In 6.1, the library also names the CPU in each call that changes GPUs' access.
        for gpu in 0..2 {
            library.grant(base, size, library.gpu(gpu), Access::ReadWrite);
        }
        library.grant(base, 2 * size, cpu, Access::None);
        library.grant(at(base, size), size, library.gpu(0), Access::ReadWrite);
        assert_inaccessible(base.get(), 2 * size, "access set to none");
        vmm.set_access(base, 2 * size, &[access(cpu, Access::Read)]).unwrap();
        let mut bytes = [0; 4];
        vmm.revoke(base, 2 * size, &[library.gpu(0)]).unwrap();
        assert_mapped(base.get(), 2 * size, "revoked");
        vmm.read(at(base, size), &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        let parts = permissions(base.get(), 2 * size).unwrap();
        assert!(parts.iter().all(|part| part.2.starts_with("r--")), "{parts:x?}");
        vmm.unmap(base, 2 * size).unwrap();
        assert_inaccessible(base.get(), 2 * size, "unmapped");
        assert_eq!(vmm.quarantined_ranges(), []);
        vmm.check().unwrap();
        std::fs::remove_file(shim).unwrap();
    });
}
