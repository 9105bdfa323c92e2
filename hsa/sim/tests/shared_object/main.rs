//! Builds the shared library with its script. Links C programs, which include only AMD's headers, to the library, and
//! runs the programs. Also runs AMD's own programs on the library.

mod exports;
mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the directories of AMD's headers that declare virtual memory. If there is no such
/// directory, reports that the test is skipped. Fails in this case if `HSA_VMM_REQUIRE` requires
/// headers.
fn headers(test: &str) -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&variable("HSA_VMM_AMD_INCLUDE")).collect();
    folders.push(Path::new(&variable("ROCM_PATH")).join("include"));
    folders.extend(["/usr/include", "/opt/rocm/include"].map(PathBuf::from));
    let declares_vmem = |folder: &PathBuf| {
        let text = std::fs::read_to_string(folder.join("hsa/hsa_ext_amd.h"));
        text.is_ok_and(|text| text.contains("hsa_amd_vmem_handle_create"))
    };
    folders.retain(declares_vmem);
    if folders.is_empty() {
        let required = hsa_rocr::test::is_required("headers");
        assert!(!required, "AMD's headers (with virtual memory) are required but missing");
        hsa_rocr::test::report(&format!(
            "SKIPPED {test}: AMD's headers are missing (HSA_VMM_AMD_INCLUDE names them)"
        ));
    }
    folders
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// Builds the library, once for all tests. Returns its directory.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hsa-sim");
        build(&folder);
        folder
    })
}

/// Compiles a C program of this folder with AMD's headers, and links it to the library.
fn compile(source: &str, headers: &Path, program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shared_object").join(source);
    let library = library();
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-D_POSIX_C_SOURCE=200809L", "-o"])
        .arg(program)
        .arg("-isystem")
        .arg(headers)
        .arg(source)
        .arg("-L")
        .arg(library)
        .arg("-lhsa-runtime64")
        .arg(format!("-Wl,-rpath,{}", library.display())));
}

/// Builds the library into a directory.
fn build(folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("shared/build");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    // The script must also work from a directory outside the workspace.
    run(Command::new(script)
        .arg(folder)
        .current_dir("/")
        .env("CARGO_TARGET_DIR", target)
        .env("HSA_SIM_PROFILE", "dev"));
}

#[test]
fn c_program_runs_the_whole_cycle() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let headers = headers("c_program_runs_the_whole_cycle");
    let Some(headers) = headers.first() else { return };
    let program = folder.path().join("cycle");
    compile("cycle.c", headers, &program);
    for config in ["", "era=a", "era=b,gpus=2", "era=c", "era=d", "granule=2m"] {
        let output = run(Command::new(&program).env("HSA_SIM", config));
        assert_eq!(output.stdout, b"the cycle is complete\n");
    }
    let run_with =
        |config| Command::new(&program).env("HSA_SIM", config).output().expect("the program runs");
    let failed = run_with("faults=hsa_amd_vmem_map#2=0x1008");
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("hsa_amd_vmem_map(alias"));
    let misspelt = run_with("era=z");
    assert_eq!(misspelt.status.code(), Some(3), "hsa_init fails");
    let text = String::from_utf8_lossy(&misspelt.stderr).into_owned();
    assert!(text.contains("HSA_SIM") && text.contains("a, b, c, d or e"), "{text}");
    check_references(folder.path());
}

/// With each version of the headers, compiles and runs a program that calls functions of the shared library that
/// [`hsa_sim::Simulation::table`] lacks.
#[test]
fn c_program_uses_the_interface_of_each_header() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (index, headers) in
        headers("c_program_uses_the_interface_of_each_header").iter().enumerate()
    {
        let program = folder.path().join(format!("interface{index}"));
        compile("interface.c", headers, &program);
        for config in ["", "consumer", "apu"] {
            let output = run(Command::new(&program).env("HSA_SIM", config));
            assert_eq!(output.stdout, b"all calls behaved as expected\n", "{headers:?} {config}");
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(log.contains("hsa_executable_create_alt is not simulated"), "{log}");
        }
    }
}

/// Checks that the program `cycle` requires the symbol version ROCR_1, as it does when it is linked
/// to AMD's library.
fn check_references(folder: &Path) {
    let output = run(Command::new("nm").arg("-D").arg(folder.join("cycle")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("hsa_init@ROCR_1"), "{text}");
}

#[test]
fn loader_accepts_the_shared_object() {
    let path = library().join("libhsa-runtime64.so.1");
    // SAFETY: the library was just built from this project's sources.
    let library = unsafe { hsa_sys::Library::load(&hsa_sys::Search::only(&path)) };
    let library = library.expect("every function exists");
    assert!(library.table().vmem.is_ok());
    // SAFETY: the functions have no arguments, and the library is never unloaded.
    unsafe {
        assert_eq!((library.table().core.hsa_init)(), hsa_sys::HSA_STATUS_SUCCESS);
        assert_eq!((library.table().core.hsa_shut_down)(), hsa_sys::HSA_STATUS_SUCCESS);
        let second = (library.table().core.hsa_shut_down)();
        assert_eq!(second, hsa_sys::HSA_STATUS_ERROR_NOT_INITIALIZED);
    }
}
