//! A small runtime in C, which the tests compile. On request, its calls wait, fail, or create foreign mappings.

#![allow(dead_code, reason = "each test binary uses a different part")]

use core::ffi::{CStr, c_int};
use hsa_vmm::vmm::{Probing, VmmOptions};
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Error, ErrorKind, Runtime,
    Vmm,
};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The byte in foreign pages. `runtime.c` defines the same value.
pub const FOREIGN_BYTE: u8 = 0x77;

/// Compiles a C file into a library. The file can include the header with HSA's types. The library's symbols have the
/// same symbol version as those of AMD's releases.
pub fn compile(name: &str, source: &Path) -> PathBuf {
    compile_with(name, source, &[])
}

/// Compiles `runtime.c` with these compiler options and the soname of AMD's runtime.
pub fn fake_runtime(name: &str, options: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/runtime.c");
    let soname = ["-Wl,-soname,libhsa-runtime64.so.1"];
    compile_with(name, Path::new(source), &[&soname[..], options].concat())
}

fn compile_with(name: &str, source: &Path, options: &[&str]) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("{name}-{}-{number}.so", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/hsa/sys/include");
    let versions =
        concat!("-Wl,--version-script=", env!("CARGO_MANIFEST_DIR"), "/tests/hostile/rocr.map");
    let has_own_versions = options.iter().any(|option| option.contains("--version-script"));
    let versions = (!has_own_versions).then_some(versions);
    let output = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-I", headers])
        .args(versions)
        .args(options)
        .arg("-o")
        .args([file.as_os_str(), source.as_os_str()])
        .output()
        .expect("a C compiler, $CC or cc");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} does not compile:\n{messages}");
    file
}

/// Compiles lines of C into a library, and returns its path.
pub fn compile_source(name: &str, lines: &str) -> PathBuf {
    let file = format!("{name}-{}.c", std::process::id());
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    std::fs::write(&source, lines).expect("the folder is writable");
    let library_file = compile(name, &source);
    std::fs::remove_file(source).expect("the file was just written");
    library_file
}

/// The runtime that is compiled from `runtime.c`.
pub struct HostileRuntime {
    pub path: PathBuf,
    library: *mut core::ffi::c_void,
}

impl HostileRuntime {
    pub fn new() -> Self {
        Self::with_options(&[])
    }

    /// Compiles the runtime with these compiler options.
    pub fn with_options(options: &[&str]) -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/runtime.c");
        let path = compile_with("hostile", Path::new(source), options);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: this test compiled the library, which has no constructors.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null());
        Self { path, library }
    }

    fn variable(&self, name: &CStr) -> *mut c_int {
        // SAFETY: the library stays loaded, and the name ends in a zero byte.
        let address = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address.cast()
    }

    /// Sets a variable that controls the runtime.
    pub fn set(&self, name: &CStr, value: c_int) {
        // SAFETY: `variable` returns the address of an `int` of the loaded library, which reads it during calls.
        unsafe { self.variable(name).write_volatile(value) };
    }

    pub fn get(&self, name: &CStr) -> c_int {
        // SAFETY: `variable` returns the address of an `int` of the loaded library.
        unsafe { self.variable(name).read_volatile() }
    }

    /// Loads the runtime and opens a `Vmm` without probes, whose calls would change the counters of the test's calls.
    pub fn open(&self) -> (Runtime, Vmm, AgentId) {
        // SAFETY: this test compiled the runtime, which implements HSA's functions.
        let runtime = unsafe { Runtime::load_from(&self.path) }.expect("the runtime starts");
        let options = VmmOptions::new().with_probing(Probing::Never);
        let vmm = Vmm::open_with(&runtime, options).expect("the runtime has virtual memory");
        let gpu = runtime.gpus().next().expect("the runtime has a GPU").id();
        (runtime, vmm, gpu)
    }
}

impl HostileRuntime {
    /// Returns the address of the foreign mapping that the runtime has created last, or null if it has created none.
    pub fn foreign_address(&self) -> Address {
        let variable: *mut usize = self.variable(c"hostile_foreign_address").cast();
        // SAFETY: the variable is a `uintptr_t` of the loaded library.
        Address::new(unsafe { variable.read_volatile() })
    }
}

impl Drop for HostileRuntime {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns whether the foreign page at this address still has its contents. Makes the page readable.
pub fn foreign_page_is_at(address: Address) -> bool {
    // SAFETY: a foreign page was mapped at the address, and only this function accesses its contents.
    if unsafe { libc::mprotect(address.as_ptr(), 4096, libc::PROT_READ) } != 0 {
        return false;
    }
    let page: *const u8 = address.as_ptr().cast_const().cast();
    // SAFETY: a foreign page was mapped at the address. If it was unmapped since, SIGSEGV fails the test.
    unsafe { [0, 4095].into_iter().all(|offset| page.add(offset).read_volatile() == FOREIGN_BYTE) }
}

/// Makes two adjacent mappings at the start of a reservation of four pages. The hostile runtime also maps their memory
/// for the CPU. Returns the reservation's address.
pub fn make_two_mappings(vmm: &Vmm, gpu: AgentId) -> Address {
    let properties = AllocationProperties::on(gpu);
    let base = vmm.address_reserve(4 * 4096, 0, None).unwrap();
    let cpu = vmm.runtime().host().id();
    for number in 0..2 {
        let handle = vmm.create(4096, &properties).unwrap();
        let address = base.checked_add(number * 4096).unwrap();
        vmm.map(address, 4096, 0, handle).unwrap();
        let access = Access::ReadWrite;
        let grants = [gpu, cpu].map(|agent| AccessDescriptor { agent, access });
        vmm.set_access(address, 4096, &grants).unwrap();
        vmm.write(address, b"mine").unwrap();
    }
    base
}

/// Fails unless the operation has quarantined its range.
#[track_caller]
pub fn assert_quarantines(result: Result<(), Error>) {
    let quarantined = matches!(
        result.as_ref().map_err(Error::kind),
        Err(ErrorKind::Quarantined { now: true, .. })
    );
    assert!(quarantined, "{result:?}");
}
