//! Compares the headers' types and values with AMD's own headers, if available.

use crate::program::{Language, Program, expect_success, package};
use hsa_rocr::test;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs that print sizes, offsets and values of types that the headers share with AMD's.
pub const SOURCES: [&str; 2] = ["tests/c/layout.c", "tests/c/layout_devices.c"];

#[test]
fn layout_is_equal_in_c_and_cplusplus() {
    for source in SOURCES {
        let [c, cplusplus] = Language::ALL.map(|language| layout_of(source, language));
        assert!(c.lines().count() > 100, "{c}");
        assert_eq!(c, cplusplus);
    }
}

/// Compiles and runs a program of [`SOURCES`]. Returns its output.
pub fn layout_of(source: &str, language: Language) -> String {
    let program = Program::compile(source, language, &[]);
    expect_success(&Command::new(program.file()).output().unwrap(), "print")
}

/// Returns the folders of AMD's headers that `HSA_VMM_HIP_INCLUDE` names.
fn amd_folders() -> Vec<PathBuf> {
    let folders = std::env::var_os("HSA_VMM_HIP_INCLUDE").unwrap_or_default();
    let has_header = |folder: &PathBuf| folder.join("hip/hip_runtime_api.h").exists();
    std::env::split_paths(&folders).filter(has_header).collect()
}

/// Compiles and runs a program with AMD's header. Returns its output.
fn amd_layout_of(folder: &Path, source: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("print");
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-D__HIP_PLATFORM_AMD__", "-DAMDS_OWN", "-w", "-I"])
        .arg(folder)
        .arg(package().join(source))
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    expect_success(&Command::new(&file).output().unwrap(), "print with AMD's header")
}

#[test]
fn headers_agree_with_amds_headers() {
    let folders = amd_folders();
    if folders.is_empty() {
        let reason = "HSA_VMM_HIP_INCLUDE names no folder of AMD's headers";
        assert!(!test::is_required("hip-headers"), "HSA_VMM_REQUIRE requires them: {reason}");
        test::report(&format!("SKIPPED layout::headers_agree_with_amds_headers: {reason}"));
        return;
    }
    for source in SOURCES {
        let ours = layout_of(source, Language::C99);
        for folder in &folders {
            // An older release has fewer names.
            let theirs = amd_layout_of(folder, source);
            assert!(theirs.lines().count() > 100, "{}: {theirs}", folder.display());
            for line in theirs.lines() {
                assert!(ours.lines().any(|other| other == line), "{}: {line}", folder.display());
            }
        }
    }
}
