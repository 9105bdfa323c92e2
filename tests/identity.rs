//! The library identifies runtimes, even if a runtime reports a false version or lacks functions, or if a process has
//! loaded several runtimes.

mod hostile;
mod log;
mod machine;
mod process;

use hostile::{compile_source, fake_runtime};
use hsa_vmm::error::Feature;
use hsa_vmm::runtime::{Implementation, Origin, loaded_libraries};
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::{Probing, Quirks, VmmOptions};
use hsa_vmm::{Access, AllocationProperties, ErrorKind, Runtime, Vmm};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A runtime compiled from `hostile/runtime.c`. Its file is deleted when this value is dropped.
struct FakeLibrary(PathBuf);

impl FakeLibrary {
    fn new(name: &str, options: &[&str]) -> Self {
        Self(fake_runtime(name, options).canonicalize().unwrap())
    }

    #[track_caller]
    fn load(&self) -> Runtime {
        // SAFETY: this test compiled the runtime, which implements HSA's functions.
        unsafe { Runtime::load_from(&self.0) }.expect("the runtime starts")
    }

    /// Loads the library as another part of the program would, but does not start the runtime.
    fn load_without_starting(&self) {
        load_without_starting(&self.0);
    }
}

impl Drop for FakeLibrary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn load_without_starting(path: &Path) {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: this test compiled the library, which has no constructors.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{}", path.display());
}

/// Returns the quirks that the library works around on an unknown runtime without probes.
fn quirks_if_unknown() -> Quirks {
    let mut quirks = Quirks::default();
    for quirk in Quirks::KNOWN {
        quirks.set(quirk, quirk.probed || quirk.if_unknown);
    }
    // A probe cannot exclude this quirk.
    quirks.peer_after_owner_fails = false;
    quirks
}

fn without_probes() -> VmmOptions {
    VmmOptions::new().with_probing(Probing::Never)
}

/// Returns the reasons why the library does not know a runtime. Fails if the library knows the runtime.
#[track_caller]
fn reasons(runtime: &Runtime) -> String {
    match &runtime.info().implementation {
        Implementation::Unknown { reasons, .. } => reasons.join("; "),
        known => panic!("identified as {known}"),
    }
}

/// Maps memory of the first GPU, grants access and removes everything.
fn use_memory(vmm: &Vmm) {
    let gpu = vmm.runtime().gpus().next().unwrap().id();
    let base = vmm.address_reserve(8192, 0, None).unwrap();
    let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
    for offset in [0, 4096] {
        vmm.map(machine::at(base, offset), 4096, 0, handle).unwrap();
    }
    vmm.set_access(base, 8192, &[machine::access(gpu, Access::ReadWrite)]).unwrap();
    vmm.unmap(base, 4096).unwrap();
    vmm.unmap(machine::at(base, 4096), 4096).unwrap();
    vmm.release(handle).unwrap();
    vmm.address_free(base, 8192).unwrap();
}

#[test]
fn simulation_is_identified() {
    for (release, config) in machine::releases() {
        let expected_quirks = machine::quirks_of(&config);
        let runtime = Runtime::simulated(config).unwrap();
        let info = runtime.info();
        assert_eq!(info.implementation, Implementation::Simulation, "{release}");
        assert_eq!(info.origin, None);
        assert_eq!(Quirks::of_runtime(info), expected_quirks, "{release}");
    }
}

#[test]
fn rocr_is_identified_by_its_build() {
    let fake = FakeLibrary::new("rocr", &[]);
    let runtime = fake.load();
    assert_eq!(runtime.info().implementation.to_string(), "ROCr 1.15 (ROCm 6.4)");
    assert_eq!(runtime.info().origin, Some(Origin::Program));
    let vmm = Vmm::open_with(&runtime, without_probes()).unwrap();
    assert_eq!(vmm.quirks(), Quirks::of_extension((1, 7)));
    use_memory(&vmm);
    // The fake runtime accepts every import. ROCm 6.4 does not.
    let probed = Vmm::open(&runtime).unwrap();
    let differing = probed.probes().iter().filter(|probe| probe.found != probe.expected);
    let differing: Vec<_> = differing.map(|probe| probe.quirk.name).collect();
    assert_eq!(differing, ["import_is_lazy", "import_needs_descriptor"]);
    assert!(probed.quirks().import_is_lazy);
}

#[test]
fn rocddi_is_identified_by_its_exports() {
    let fake = FakeLibrary::new("rocddi", &["-DROCDDI"]);
    let runtime = fake.load();
    let info = runtime.info();
    assert_eq!(info.implementation, Implementation::Rocddi, "{}", info.implementation);
    assert_eq!((info.extension, info.build.as_str()), ((1, 33), ""));
    let vmm = Vmm::open_with(&runtime, without_probes()).unwrap();
    let mut expected = Quirks::default();
    Quirks::KNOWN.iter().for_each(|quirk| expected.set(quirk, quirk.rocddi));
    assert_eq!(vmm.quirks(), expected);
    assert_ne!(expected, Quirks::of_extension((1, 33)));
    use_memory(&vmm);
    // The next runtime also reports no build, but lacks the function of the loader extension. The library therefore
    // does not identify it as rocddi.
    let incomplete = FakeLibrary::new("no-loader", &["-DEXTENSION=15", "-DBUILD=\"\""]);
    assert!(reasons(&incomplete.load()).contains("no build is reported"));
}

#[test]
fn runtime_in_a_file_of_another_version_is_unknown() {
    let fake = FakeLibrary::new("renamed", &[]);
    let folder = tempfile::tempdir().unwrap();
    for (name, contradicts) in
        [("libhsa-runtime64.so.1.15.0", false), ("libhsa-runtime64.so.1.18.70204", true)]
    {
        let file = folder.path().join(name);
        std::fs::copy(&fake.0, &file).unwrap();
        // Opens the library through a link, as a program that uses the soname does.
        let link = folder.path().join(format!("link-to-{name}"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        // SAFETY: this test compiled the runtime, which implements HSA's functions.
        let runtime = unsafe { Runtime::load_from(&link) }.unwrap();
        if contradicts {
            let expected = format!("build `1.15.0-hostile`, but the file is `{name}`");
            assert_eq!(reasons(&runtime), expected);
        } else {
            assert_eq!(runtime.info().implementation.to_string(), "ROCr 1.15 (ROCm 6.4)");
        }
    }
}

#[test]
fn false_version_makes_a_runtime_unknown() {
    // This library behaves as ROCm 6.4, but reports the extension of ROCm 10.
    let fake = FakeLibrary::new("false-version", &["-DEXTENSION=22"]);
    let runtime = fake.load();
    let text = reasons(&runtime);
    assert!(text.contains("hsa_amd_vmem_export_fabric_handle"), "{text}");
    assert!(text.contains("1.15.0-hostile") && text.contains("extension 1.22"), "{text}");
    let vmm = Vmm::open_with(&runtime, without_probes()).unwrap();
    assert_eq!(vmm.quirks(), quirks_if_unknown());
}

#[test]
fn version_of_unknown_runtime_changes_no_quirks() {
    for build in ["\"\"", "\"a vendor's runtime\""] {
        let fake = FakeLibrary::new("unknown", &[&format!("-DBUILD={build}")]);
        let runtime = fake.load();
        assert!(reasons(&runtime).contains("build"), "{}", reasons(&runtime));
        assert_ne!(quirks_if_unknown(), Quirks::of_extension((1, 7)));
        let vmm = Vmm::open_with(&runtime, without_probes()).unwrap();
        assert_eq!(vmm.quirks(), quirks_if_unknown());
        use_memory(&vmm);
    }
    // `compile_source` links this library with the symbol version of AMD's releases, which alone does not make it a
    // runtime.
    let incomplete = compile_source("symbol-version", "int hsa_init(void) { return 0; }\n");
    // SAFETY: this test compiled the library, which has no constructors, and the load fails before a call.
    let error = unsafe { Runtime::load_from(&incomplete) }.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Load(_)), "{error}");
    std::fs::remove_file(incomplete).unwrap();
}

#[test]
fn runtime_without_virtual_memory_opens() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("half.map");
    // Exports all functions except those of virtual memory.
    std::fs::write(&map, "ROCR_1 { global: hsa_[!a]*; hsa_agent_*; hsa_amd_[!v]*; local: *; };\n")
        .unwrap();
    let option = format!("-Wl,--version-script={}", map.display());
    let fake = FakeLibrary::new("half", &[&option]);
    let runtime = fake.load();
    let reason = runtime.info().virtual_memory_failure.clone().unwrap();
    assert!(reason.contains("does not export hsa_amd_vmem_"), "{reason}");
    assert!(reasons(&runtime).contains("hsa_amd_vmem_address_reserve_align"));
    let error = Vmm::open(&runtime).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::VirtualMemory));
}

#[test]
fn error_for_another_library_names_loaded_runtimes() {
    if process::rerun_in_own_process() {
        return;
    }
    let file = compile_source("no-runtime", "int unrelated(void) { return 42; }\n");
    let fake = FakeLibrary::new("beside-no-runtime", &[]);
    fake.load_without_starting();
    // SAFETY: this test compiled the library, which has no constructors, and the load fails before a call.
    let error = unsafe { Runtime::load_from(&file) }.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("does not export `hsa_"), "{text}");
    // The error names the library that the program could use instead.
    assert!(text.contains(&format!("loaded in this process:\n  {}", fake.0.display())), "{text}");
    std::fs::remove_file(file).unwrap();
}

/// The warnings that the library has logged in this process.
static WARNINGS: Mutex<Vec<log::Fields>> = Mutex::new(Vec::new());

#[test]
fn several_loaded_runtimes_are_reported() {
    if process::rerun_in_own_process() {
        return;
    }
    log::subscribe(
        |metadata| *metadata.level() == tracing::Level::WARN,
        |fields| WARNINGS.lock().unwrap().push(fields),
    );
    let newer = FakeLibrary::new("newer", &["-DEXTENSION=15", "-DBUILD=\"\\\"1.18.0-newer\\\"\""]);
    let older = FakeLibrary::new("older", &["-DBUILD=\"\\\"1.15.0-older\\\"\""]);
    assert_eq!(loaded_libraries(), []);
    older.load_without_starting();
    let started = older.load();
    assert_eq!(WARNINGS.lock().unwrap().len(), 0);
    drop(started);
    let runtime = newer.load();
    assert_eq!(runtime.info().implementation.to_string(), "ROCr 1.18 (ROCm 7)");
    let lines: Vec<_> = loaded_libraries().iter().map(ToString::to_string).collect();
    let expected = [
        format!(
            "{} (build 1.15.0-older, not started or without AMD's extension)",
            older.0.display()
        ),
        format!("{} (build 1.18.0-newer, extension 1.15)", newer.0.display()),
    ];
    assert_eq!(lines, expected);
    let warnings = std::mem::take(&mut *WARNINGS.lock().unwrap());
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let text = format!("{warning:?}");
    assert!(text.contains("several HSA libraries") && text.contains("1.15.0-older"), "{text}");
    // HIP would get the library that was loaded first.
    let default = Runtime::load().unwrap();
    assert_eq!(default.info().origin, Some(Origin::Loaded));
    assert_eq!(default.info().path.as_ref(), Some(&older.0));
}

#[test]
fn probes_that_differ_are_logged_once() {
    if process::rerun_in_own_process() {
        return;
    }
    log::subscribe(
        |metadata| *metadata.level() == tracing::Level::WARN,
        |fields| WARNINGS.lock().unwrap().push(fields),
    );
    // The fake runtime accepts every import. ROCm 6.4 does not.
    let fake = FakeLibrary::new("differs", &[]);
    let runtime = fake.load();
    Vmm::open_with(&runtime, without_probes()).unwrap();
    assert_eq!(WARNINGS.lock().unwrap().len(), 0);
    Vmm::open(&runtime).unwrap();
    Vmm::open(&runtime).unwrap();
    let warnings = std::mem::take(&mut *WARNINGS.lock().unwrap());
    let texts: Vec<_> = warnings.iter().map(|fields| format!("{fields:?}")).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    for (text, quirk) in texts.iter().zip(["import_is_lazy", "import_needs_descriptor"]) {
        for part in
            [quirk, "the probe decides", "(\"expected\", \"false\")", "(\"found\", \"true\")"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn failed_start_lists_all_libraries() {
    if process::rerun_in_own_process() {
        return;
    }
    // The `hsa_init` of this library returns `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
    let failing = FakeLibrary::new("failing", &["-DINIT=0x1008"]);
    let second = FakeLibrary::new("other", &[]);
    let start = || {
        // SAFETY: this test compiled the runtime, which implements HSA's functions.
        unsafe { Runtime::load_from(&failing.0) }.unwrap_err().to_string()
    };
    let text = start();
    assert!(text.contains("hsa_init returned") && !text.contains("HSA libraries"), "{text}");
    second.load_without_starting();
    let text = start();
    assert!(text.contains("the process has loaded 2 HSA libraries"), "{text}");
    assert!(text.contains(second.0.to_str().unwrap()), "{text}");
    // The second library still starts.
    use_memory(&Vmm::open(&second.load()).unwrap());
}

#[test]
fn simulation_is_not_a_loaded_library() {
    if process::rerun_in_own_process() {
        return;
    }
    let _runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
    assert_eq!(loaded_libraries(), []);
}
