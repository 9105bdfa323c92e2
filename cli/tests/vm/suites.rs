//! Other tests of this project, in the virtual machine: the test programs run on AMD's kernel driver instead of the
//! emulated driver.

use crate::run_command::{stderr, stdout};
use crate::{RELEASE, lock_machine, run_in_machine, runs_all_variants};
use hsa_rocr::{FetchedRelease, test};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The tests of the test program `amd` that plan faults of the emulated driver. These tests are skipped, because
/// programs in the virtual machine do not use the emulated driver.
const DRIVER_FAULT_TESTS: [&str; 7] = [
    "permissions::missing_control_is_reported",
    "permissions::failed_first_grant_leaves_no_access",
    "permissions::full_access_is_limited_to_first_grants",
    "permissions::failed_changes_are_rolled_back",
    "permissions::calls_take_effect_without_a_driver_page",
    "offsets::failed_grants_are_rolled_back",
    "host_memory::failed_driver_calls_leave_nothing_behind",
];

/// The parameters with which the SDMA engine writes page tables, after a delay. By default, the CPU writes page tables.
const BY_SDMA: [&str; 4] =
    ["--parameter", "amdgpu.vm_update_mode=0", "--parameter", "hsa_vmm.pte_delay=50"];

/// The number of sequences of the simulation's differential test, by default and in the long test.
const SEQUENCES: [usize; 2] = [50, 5000];

/// Builds the test program `name` of the package in `folder`, and returns its path. Uses the features of the whole
/// workspace, so that an earlier `cargo test --workspace` has already built the program.
fn build(folder: &str, name: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["test", "--no-run", "--locked", "--workspace", "--test", name];
    let output = Command::new(cargo).args(arguments).arg("--message-format=json").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let manifest = root.join(folder).join("Cargo.toml");
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let program = messages.filter_map(|message| {
        let message = message.ok()?;
        // Several packages can have a test of this name.
        let is_test = message["target"]["name"] == name
            && message["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest);
        is_test.then(|| message["executable"].as_str().map(str::to_owned)).flatten()
    });
    program.last().expect("a test program")
}

/// Runs tests of a test program in the virtual machine. Panics if a test fails. Returns the number of passed tests.
/// The program runs its long tests only if `environment` sets `HSA_VMM_LONG`.
fn run_tests(options: &[&str], environment: &[&str], program: &str, arguments: &[&str]) -> usize {
    let own = ["env", "-u", "HSA_VMM_LONG", "HSA_VMM_TEST_DRIVER=own"];
    let environment = [&own[..], environment].concat();
    let program = [&environment[..], &[program, "--test-threads=1"], arguments].concat();
    let options = [&["--time-limit", "3h"][..], options].concat();
    let output = run_in_machine(&options, &program);
    let text = format!("{options:?}: {}{}", stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}");
    let result = text.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed = result.and_then(|result| result.split(' ').next()?.parse().ok());
    let passed = passed.unwrap_or_else(|| panic!("no result: {text}"));
    assert!(passed > 0, "{text}");
    passed
}

#[test]
fn tests_of_permissions_pass() {
    run_library_tests("tests_of_permissions_pass", &["permissions::", "offsets::"]);
}

#[test]
fn tests_of_memory_and_page_tables_pass() {
    let tests = ["ranges::", "host_memory::", "page_table::"];
    run_library_tests("tests_of_memory_and_page_tables_pass", &tests);
}

/// Runs tests of the test program `amd` on one release, while the CPU writes page tables. With `HSA_VMM_VM_TESTS=all`,
/// runs the tests on all releases, first while the CPU and then while the SDMA engine writes page tables.
fn run_library_tests(name: &str, tests: &[&str]) {
    let Some(_lock) = lock_machine(name) else { return };
    let runs_all = runs_all_variants(&format!("{name}, other releases and page tables by SDMA"));
    let program = build("", "amd");
    let skipped = DRIVER_FAULT_TESTS.map(|test| ["--skip", test]).concat();
    let arguments = [tests, &skipped].concat();
    let environment: &[&str] = if runs_all { &["HSA_VMM_LONG=1"] } else { &[] };
    run_tests(&[], environment, &program, &arguments);
    if runs_all {
        run_tests(&BY_SDMA, environment, &program, &arguments);
    }
}

/// With the barrier, each call takes effect before it returns. Without the barrier, the same check fails, whether the
/// CPU or the SDMA engine writes page tables.
#[test]
fn barrier_is_needed_in_each_mode() {
    let name = "barrier_is_needed_in_each_mode";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_all_variants(name) {
        return;
    }
    let program = build("", "amd");
    let tests = [
        "permissions::calls_take_effect_without_control",
        "permissions::calls_take_effect_late_without_barrier",
        "--exact",
    ];
    for mode in [&[][..], &BY_SDMA] {
        assert_eq!(run_tests(mode, &["HSA_VMM_LONG=1"], &program, &tests), 2);
    }
}

/// Runs more than 2,000 random operations on each release, first while the CPU writes page tables, and then while the
/// SDMA engine writes page tables.
#[test]
fn library_matches_model() {
    let name = "library_matches_model";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_all_variants(name) {
        return;
    }
    let program = build("conformance", "state_machine_on_amd");
    let environment = ["HSA_VMM_LONG=1", "PROPTEST_CASES=50"];
    for (mode, options) in [("cpu", &[][..]), ("sdma", &BY_SDMA)] {
        let test = format!("library_matches_model_with_page_tables_in_{mode}_mode");
        assert_eq!(run_tests(options, &environment, &program, &[&test, "--exact"]), 1);
    }
}

/// Runs rocrtst, AMD's own test program: the two tests of virtual memory that run no GPU kernel.
#[test]
fn rocrtst_passes() {
    let name = "rocrtst_passes";
    let Some(_lock) = lock_machine(name) else { return };
    // Fetch before the run, because the virtual machine has no network.
    if let Err(error) = hsa_rocr::fetch_rocrtst(&hsa_rocr::folder().unwrap(), &mut |_| ()) {
        assert!(!test::is_required("rocr"), "HSA_VMM_REQUIRE requires rocrtst: {error}");
        test::report(&format!("SKIPPED {name}: {error}"));
        return;
    }
    let program = build("hsa/sim", "shared_object");
    let arguments = ["programs::rocrtst_passes_on_machine_driver", "--exact", "--ignored"];
    assert_eq!(run_tests(&[], &[], &program, &arguments), 1);
}

/// Runs the simulation's differential test on AMD's kernel driver. Outside the virtual machine, the same test runs on
/// the emulated driver. The TLB is off, because nothing flushes it after an unmap (docs/defects.md, "AMD's kernel
/// driver"). With a TLB, the sequences would read unmapped memory.
#[test]
fn simulation_agrees_with_kernel_driver() {
    let name = "simulation_agrees_with_kernel_driver";
    let Some(lock) = lock_machine(name) else { return };
    let runs_all = runs_all_variants(&format!("{name}, 5,000 sequences on each release"));
    let program = build("hsa/sim", "differential");
    let sequences = format!("HSA_SIM_SEQUENCES={}", SEQUENCES[usize::from(runs_all)]);
    let releases = lock.fetched_releases.iter().map(FetchedRelease::release);
    for release in releases.filter(|release| runs_all || *release == RELEASE) {
        let test = format!("agrees_with_{}", release.version().replace('.', "_"));
        let options = ["--parameter", "hsa_vmm.tlb=0"];
        let environment = ["HSA_VMM_LONG=1", &sequences];
        assert_eq!(run_tests(&options, &environment, &program, &[&test, "--exact"]), 1);
    }
}
