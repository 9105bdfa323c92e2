//! Builds each package, installs it into a clean tree, and uses it there. Builds the packaged crates in an empty
//! folder.
//!
//! The tests in clean trees take minutes. They run if `HSA_VMM_LONG=1` is set, the user is root, and `debootstrap` is
//! installed. Otherwise, they print `SKIPPED`. `debootstrap` creates each minimal Debian system in `target/packages`
//! only once.

mod crates;
mod manifests;
mod system;
mod tree;
mod without_system;

use hsa_rocr::test;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// The command, as cargo built it for this test.
const HSA_VMM: &str = env!("CARGO_BIN_EXE_hsa-vmm");

/// The cargo profile of these tests' builds. With this profile, cargo compiles dependencies in the same way inside and
/// outside of this workspace, so it compiles each dependency only once.
const PROFILE: &str = "packages";

/// Returns the folder of the workspace.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Calls `act` with the folder in which these tests build. Only one thread at a time calls `act`, because one build can
/// replace the programs of another build. The tests do not build in cargo's own target folder, because that folder
/// contains programs that cargo built for other tests, with other features and flags.
fn with_build_folder<T>(act: impl FnOnce(&Path) -> T) -> T {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    act(&root().join("target/packages/build"))
}

/// Runs a command, which must succeed. Returns its output, with standard error last.
#[track_caller]
fn run_ok(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Output { status, stdout, stderr } = &output;
    let output = text(stdout) + &text(stderr);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    output
}

/// Asserts that the summary of a conformance report says that cases passed and none failed.
#[track_caller]
fn assert_conforms(output: &str) {
    let summary = output.lines().find(|line| line.contains(" passed, 0 failed"));
    assert!(summary.is_some_and(|summary| !summary.starts_with("0 passed")), "{output}");
}

/// Reports that a test is skipped. Panics if `HSA_VMM_REQUIRE` contains `missing`.
#[track_caller]
fn skip(name: &str, missing: &str, reason: &str) {
    assert!(!test::is_required(missing), "HSA_VMM_REQUIRE requires {missing}: {reason}");
    test::report(&format!("SKIPPED packages::{name}: {reason}"));
}

/// Returns whether a test in a clean tree must be skipped, because `HSA_VMM_LONG` is not set, the user is not root, or
/// a tool is missing. Reports the reason.
#[track_caller]
fn report_if_skipped(name: &str, tools: &[&str]) -> bool {
    if !test::runs_long_test(&format!("packages::{name}")) {
        return true;
    }
    let is_installed = |tool: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool).exists())
    };
    if !rustix::process::geteuid().is_root() {
        skip(name, "debootstrap", "only root can change the root folder");
        return true;
    }
    let mut tools = ["debootstrap", "unshare"].into_iter().chain(tools.iter().copied());
    let missing = tools.find(|tool| !is_installed(tool));
    if let Some(tool) = missing {
        let word = if tool == "rustup" { "musl" } else { tool };
        skip(name, word, &format!("{tool} is not installed"));
    }
    missing.is_some()
}

/// Returns a folder with copies of the command and the libraries that cargo built for this test.
fn collect_objects() -> tempfile::TempDir {
    let built = Path::new(HSA_VMM).parent().unwrap();
    // Create the folder below cargo's folder, so that the command finds the fetched releases.
    let folder = tempfile::tempdir_in(built).unwrap();
    for name in ["hsa-vmm", "libhsa_kfd.so", "libhsa_record.so", "libhsavmm.a"] {
        // Cargo leaves the libraries of dependencies in `deps`.
        let candidates = [built.join("deps").join(name), built.join(name)];
        let source = candidates.iter().find(|file| file.exists());
        let source = source.unwrap_or_else(|| panic!("{name} is not in {built:?}"));
        fs::copy(source, folder.path().join(name)).unwrap();
    }
    folder
}

/// Returns the only file in a folder.
#[track_caller]
fn only_file(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.next().unwrap_or_else(|| panic!("{folder:?} is empty"));
    assert_eq!(files.next(), None, "{folder:?} has more than one file");
    file
}
