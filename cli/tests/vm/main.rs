//! `hsa-vmm` on AMD's own kernel driver, in a virtual machine with software GPUs.
//!
//! The tests that start a virtual machine run if `HSA_VMM_LONG=1` or `HSA_VMM_VM_TESTS` is set, QEMU is installed, and
//! `hsa-vmm vm fetch` has fetched a kernel. Otherwise, each of these tests prints that it is skipped. If
//! `HSA_VMM_REQUIRE` contains `vm`, these tests run, and fail if QEMU or the kernel is missing; without
//! `HSA_VMM_LONG=1`, the slowest tests and parts are skipped. By default, the conformance tests use one release and two
//! GPUs. With `HSA_VMM_VM_TESTS=all`, they also use the other releases and other numbers of GPUs, and further tests run.

mod conformance;
mod detection;
mod fetch;
mod hostile;
mod programs;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;
mod suites;
mod tree;

use hsa_rocr::{FetchedRelease, Release, test};
use run_command::{HSA_VMM, command};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The release that the tests use by default.
const RELEASE: Release = Release::R6_4_3;

/// A lock that each test holds while its virtual machine runs. At most two virtual machines run at once: each keeps
/// one processor of the host busy most of the time.
struct MachineLock {
    fetched_releases: &'static [FetchedRelease],
    _guard: MutexGuard<'static, ()>,
}

/// Takes a free lock. If no lock is free, waits for the first lock. If virtual machines are not available, reports the
/// reason and returns `None`.
fn lock_machine(name: &str) -> Option<MachineLock> {
    static LOCKS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
    let is_selected = test::is_long() || test::is_required("vm") || selection().is_some();
    if !is_selected {
        test::report(&format!("SKIPPED {name}: takes minutes; HSA_VMM_LONG=1 runs it"));
        return None;
    }
    let fetched_releases = test::fetch_releases(name)?;
    let folder = hsa_vm::folder(&hsa_rocr::folder().unwrap()).unwrap();
    let qemu = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    let problem = match (qemu, hsa_vm::Kernel::open(&folder, None)) {
        (Err(error), _) => format!("qemu-system-x86_64: {error}"),
        (Ok(_), Err(error)) => error.to_string(),
        (Ok(_), Ok(_)) => {
            let free = LOCKS.iter().find_map(|lock| match lock.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            });
            let guard =
                free.unwrap_or_else(|| LOCKS[0].lock().unwrap_or_else(PoisonError::into_inner));
            return Some(MachineLock { fetched_releases, _guard: guard });
        }
    };
    assert!(!test::is_required("vm"), "HSA_VMM_REQUIRE contains `vm`: {problem}");
    test::report(&format!("SKIPPED {name}: {problem}"));
    None
}

/// Returns whether `HSA_VMM_LONG` or `HSA_VMM_VM_TESTS` is set. If not, reports the slow test, or part of a test, as
/// skipped.
fn runs_slow_parts(name: &str) -> bool {
    let runs_slow = test::is_long() || selection().is_some();
    if !runs_slow {
        test::report(&format!("SKIPPED {name}: takes minutes; HSA_VMM_LONG=1 runs it"));
    }
    runs_slow
}

/// Returns the value of `HSA_VMM_VM_TESTS`, which selects tests.
fn selection() -> Option<String> {
    std::env::var("HSA_VMM_VM_TESTS").ok()
}

/// Returns whether `HSA_VMM_VM_TESTS` is `all`. If not, reports the variants as skipped.
fn runs_all_variants(name: &str) -> bool {
    let runs_all = selection().is_some_and(|value| value == "all");
    if !runs_all {
        test::report(&format!("SKIPPED {name}: takes long; HSA_VMM_VM_TESTS=all runs it"));
    }
    runs_all
}

/// Runs `hsa-vmm vm OPTIONS -- PROGRAM`.
fn run_in_machine(options: &[&str], program: &[&str]) -> Output {
    let words: Vec<_> =
        ["vm"].iter().chain(options).chain(&["--"]).chain(program).copied().collect();
    command(&words).env("HOME", std::env::temp_dir()).output().unwrap()
}

fn conform(release: Release, options: &[&str], arguments: &[&str]) -> Output {
    let start = ["--rocr", release.version()];
    let options: Vec<_> = start.iter().chain(options).copied().collect();
    let program: Vec<_> = [HSA_VMM, "conform"].iter().chain(arguments).copied().collect();
    run_in_machine(&options, &program)
}
