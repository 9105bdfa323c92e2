//! Builds the shared library with its script, and links a C program to it that includes only AMD's
//! headers.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the directory of AMD's headers, if they exist and declare virtual memory.
fn headers() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&variable("HSA_VMM_AMD_INCLUDE")).collect();
    folders.push(Path::new(&variable("ROCM_PATH")).join("include"));
    folders.extend(["/usr/include", "/opt/rocm/include"].map(PathBuf::from));
    let declares_vmem = |folder: &PathBuf| {
        let text = std::fs::read_to_string(folder.join("hsa/hsa_ext_amd.h"));
        text.is_ok_and(|text| text.contains("hsa_amd_vmem_handle_create"))
    };
    folders.into_iter().find(declares_vmem)
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// Builds the library into a directory.
fn build(folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("shared/build");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    // From a directory outside the workspace, without the variables that cargo set for this test.
    run(Command::new(script)
        .arg(folder)
        .current_dir("/")
        .env("CARGO_TARGET_DIR", target)
        .env("HSA_SIM_PROFILE", "dev"));
}

#[test]
fn c_program_runs_the_whole_cycle() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    build(folder);
    check_exports(folder);

    let Some(headers) = headers() else {
        let required = std::env::var("HSA_VMM_REQUIRE")
            .is_ok_and(|list| list == "1" || list.split_whitespace().any(|word| word == "headers"));
        assert!(!required, "AMD's headers (with virtual memory) are required but missing");
        eprintln!("not tested: AMD's headers are missing (HSA_VMM_AMD_INCLUDE names them)");
        return;
    };
    let program = folder.join("cycle");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cycle.c");
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-D_POSIX_C_SOURCE=200809L", "-o"])
        .arg(&program)
        .arg("-isystem")
        .arg(&headers)
        .arg(source)
        .arg("-L")
        .arg(folder)
        .arg("-lhsa-runtime64")
        .arg(format!("-Wl,-rpath,{}", folder.display())));
    for config in ["", "era=a", "era=b,gpus=2", "era=c", "era=d", "granule=2m"] {
        let output = run(Command::new(&program).env("HSA_SIM", config));
        assert_eq!(output.stdout, b"the cycle is complete\n");
    }
    let run_with =
        |config| Command::new(&program).env("HSA_SIM", config).output().expect("it ran before");
    let failed = run_with("faults=hsa_amd_vmem_map#2=0x1008");
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("hsa_amd_vmem_map(alias"));
    let misspelt = run_with("era=z");
    assert_eq!(misspelt.status.code(), Some(3), "hsa_init fails");
    let text = String::from_utf8_lossy(&misspelt.stderr).into_owned();
    assert!(text.contains("HSA_SIM") && text.contains("a, b, c or d"), "{text}");
    check_references(folder);
}

/// Checks that the library exports exactly the C functions, with version ROCR_1.
fn check_exports(folder: &Path) {
    let library = folder.join("libhsa-runtime64.so.1");
    let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert!(names.contains(&"hsa_init@@ROCR_1"), "{text}");
    let is_unexpected = |name: &&&str| {
        **name != "ROCR_1" && !(name.starts_with("hsa_") && name.ends_with("@@ROCR_1"))
    };
    assert_eq!(names.iter().find(is_unexpected), None, "{text}");
    let all = hsa_sys::Core::SYMBOLS.iter().chain(hsa_sys::Vmem::SYMBOLS);
    for symbol in all {
        let name = format!("{}@@ROCR_1", symbol.name);
        assert!(names.contains(&name.as_str()), "{name} is missing");
    }
    let output = run(Command::new("readelf").arg("-d").arg(&library));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("[libhsa-runtime64.so.1]"), "no SONAME: {text}");
    let link = std::fs::read_link(folder.join("libhsa-runtime64.so")).expect("a link");
    assert_eq!(link, Path::new("libhsa-runtime64.so.1"));
}

/// Checks that the program requires the version, as with AMD's library.
fn check_references(folder: &Path) {
    let output = run(Command::new("nm").arg("-D").arg(folder.join("cycle")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("hsa_init@ROCR_1"), "{text}");
}

#[test]
fn loader_accepts_the_shared_object() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    build(folder.path());
    let path = folder.path().join("libhsa-runtime64.so.1");
    // SAFETY: the library was just built from this project's sources.
    let library = unsafe { hsa_sys::Library::load(&hsa_sys::Search::only(&path)) };
    let library = library.expect("every function exists");
    assert!(library.table().vmem.is_ok());
    // SAFETY: no arguments; the library is never unloaded.
    unsafe {
        assert_eq!((library.table().core.hsa_init)(), hsa_sys::HSA_STATUS_SUCCESS);
        assert_eq!((library.table().core.hsa_shut_down)(), hsa_sys::HSA_STATUS_SUCCESS);
        let second = (library.table().core.hsa_shut_down)();
        assert_eq!(second, hsa_sys::HSA_STATUS_ERROR_NOT_INITIALIZED);
    }
}
