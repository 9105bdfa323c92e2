//! `hsa-vmm stress` passes on correct runtimes, and finds deliberate leaks.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::{FetchedRelease, test};
use run_command::{HSA_VMM, command, json, run, stderr, stdout};
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn run_simulated(arguments: &[&str]) -> Output {
    run(&[&["stress", "--runtime", "sim", "--format", "json"], arguments].concat())
}

fn run_emulated(fetched: &FetchedRelease, options: &[&str], arguments: &[&str]) -> Output {
    let release = fetched.release();
    let release = release.version();
    let start = ["emulate", "--gpus", "2", "--rocr", release];
    let subcommand = ["--", HSA_VMM, "stress", "--format", "json"];
    run(&[&start, options, &subcommand, arguments].concat())
}

/// Checks the exit status of a run. Returns the run's report.
#[track_caller]
fn report(output: &Output, status: i32) -> Value {
    assert_eq!(output.status.code(), Some(status), "{} {}", stdout(output), stderr(output));
    assert!(!stderr(output).contains("panicked"), "{}", stderr(output));
    json(output)
}

/// Returns the reported leaks of all scenarios.
fn leaks(report: &Value) -> Vec<String> {
    let scenarios = report["scenes"].as_array().unwrap().iter();
    let leaks = scenarios.flat_map(|scenario| scenario["leaks"].as_array().unwrap());
    leaks.map(|leak| leak["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn simulation_passes_every_scenario() {
    let output = run_simulated(&["--time", "3s", "--seed", "7"]);
    assert!(stderr(&output).contains("seed: 7"), "{}", stderr(&output));
    let report = report(&output, 0);
    let scenarios = report["scenes"].as_array().unwrap();
    let names: Vec<_> =
        scenarios.iter().map(|scenario| scenario["scene"].as_str().unwrap()).collect();
    assert_eq!(names, ["mixed", "vram", "descriptors", "mappings"]);
    for scenario in scenarios {
        assert!(scenario["operations"].as_u64().unwrap() > 100, "{scenario:#}");
        assert!(scenario["skipped"].is_null(), "{scenario:#}");
    }
    let percent = |scenario: usize| scenarios[scenario]["fullest"].as_f64().unwrap();
    assert!(percent(1) > 95.0 && percent(2) > 85.0, "{report:#}");
    // The scenarios `vram` and `descriptors` reach a limit. There, calls fail with expected errors.
    for scenario in [1, 2] {
        assert!(!scenarios[scenario]["expected"].as_object().unwrap().is_empty(), "{report:#}");
    }
}

#[test]
fn configurations_pass_scenario_mixed() {
    for sim in
        ["era=a", "era=b", "era=c", "era=d", "era=e", "consumer", "apu", "dmabuf-cpu-mapping=off"]
    {
        let output = run_simulated(&["--sim", sim, "--time", "200ms", "--scene", "mixed"]);
        report(&output, 0);
    }
    let output = run_simulated(&["--sim", "consumer", "--time", "300ms", "--scene", "mappings"]);
    let report = report(&output, 0);
    let skipped = report["scenes"][0]["skipped"].as_str().unwrap();
    assert!(skipped.contains("large BAR"), "{skipped}");
}

#[test]
fn deliberate_leaks_are_found() {
    let assert_leak_is_found = |leak, counter: &str| {
        let arguments = ["--time", "500ms", "--scene", "mixed", "--processes", "1", "--leak", leak];
        let report = report(&run_simulated(&arguments), 1);
        assert!(leaks(&report).iter().any(|what| what == counter), "{leak}: {report:#}");
    };
    let leak_kinds = [
        ("vmm", "mappings (simulation)"),
        ("mapping", "mappings (library)"),
        ("descriptor", "descriptors (/proc/self/fd)"),
        ("addresses", "reservations (library)"),
    ];
    // The runs are parallel, because `stress` mostly waits for the leak to disappear.
    std::thread::scope(|scope| {
        for (leak, counter) in leak_kinds {
            scope.spawn(move || assert_leak_is_found(leak, counter));
        }
    });
    if !test::runs_long_test("deliberate_leaks_are_found: the table") {
        return;
    }
    // The table contains the leak, too.
    let output = run(&[
        "stress",
        "--runtime",
        "sim",
        "--time",
        "500ms",
        "--scene",
        "mixed",
        "--leak",
        "descriptor",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("mixed: leaked: descriptors (/proc/self/fd): "), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn resource_kept_once_is_not_a_leak() {
    let arguments = ["--time", "500ms", "--scene", "mixed", "--leak", "opened-once"];
    let report = report(&run_simulated(&arguments), 0);
    assert!(leaks(&report).is_empty(), "{report:#}");
}

#[test]
fn unexpected_error_fails() {
    let faults = "faults=hsa_amd_vmem_map#50=0x1000";
    let report =
        report(&run_simulated(&["--sim", faults, "--time", "500ms", "--scene", "mixed"]), 1);
    let unexpected = report["scenes"][0]["unexpected"].to_string();
    assert!(unexpected.contains("hsa_amd_vmem_map"), "{unexpected}");
    assert!(leaks(&report).is_empty(), "{report:#}");
}

#[test]
fn stress_finds_leak_of_driver_under_amds_runtime() {
    let name = "stress_finds_leak_of_driver_under_amds_runtime";
    if !test::runs_long_test(name) {
        return;
    }
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let correct = report(&run_emulated(fetched, &[], &["--time", "2s"]), 0);
        assert!(leaks(&correct).is_empty(), "{release}: {correct:#}");
        // The driver does not free memory, and only the driver's own count shows this leak. The fault does not apply to
        // the first calls, so that the runtime starts. The fault applies early enough for a run on a busy computer.
        let arguments = ["--time", "2s", "--scene", "mixed", "--processes", "1", "--threads", "2"];
        let options = ["--fault", "GEM_CLOSE#100-100000=EBUSY"];
        let leaking = report(&run_emulated(fetched, &options, &arguments), 1);
        let is_reported = leaks(&leaking).into_iter().any(|what| what.contains("(driver, vram_"));
        assert!(is_reported, "{release}: {leaking:#}");
    }
}

#[test]
fn crashed_process_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libbroken.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bringup/c/broken.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-DBROKEN=abort()", source, "-o"]).arg(&library);
    assert!(compiler.status().expect("a C compiler").success());
    let runtime = library.to_str().unwrap();
    let output = run(&["stress", "--runtime", runtime, "--time", "1s", "--format", "json"]);
    let report = report(&output, 1);
    let unexpected = report["scenes"][0]["unexpected"].to_string();
    assert!(unexpected.contains("process 1: SIGABRT"), "{unexpected}");
    assert!(unexpected.contains("message of the runtime"), "{unexpected}");
}

#[test]
fn missing_runtime_exits_with_3_and_bad_usage_with_2() {
    let output = run(&["stress", "--runtime", "/nowhere/libhsa.so", "--time", "1s"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("/nowhere/libhsa.so"), "{}", stderr(&output));
    for arguments in [["--time", "0s"], ["--time", "soon"], ["--scene", "moon"], ["--threads", "0"]]
    {
        assert_eq!(
            run(&[&["stress"], &arguments[..]].concat()).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

/// Starts a run of an hour. Returns the process and the IDs of its worker processes.
fn start_long_run(arguments: &[&str]) -> (Child, Vec<u32>) {
    let mut command = command(&["stress", "--runtime", "sim", "--time", "1h", "--format", "json"]);
    command.args(["--scene", "mixed", "--processes", "2", "--threads", "3"]).args(arguments);
    let parent = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut children = Vec::new();
    wait_until("both workers run", || {
        children = children_of(parent.id());
        // The names of the workers' threads show that the warm-up is over.
        children.len() == 2 && children.iter().all(|child| has_thread(*child, "mixed"))
    });
    (parent, children)
}

/// Returns the state of a process, and the ID of its parent.
fn process_state(process: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn has_thread(process: u32, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.flatten().any(|comm| comm.trim_end() == name)
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number| process_state(*number).is_some_and(|(_, its_parent)| its_parent == parent))
        .collect()
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process has ended. A zombie process (state Z) has ended.
fn is_dead(process: u32) -> bool {
    process_state(process).is_none_or(|(state, _)| state == 'Z')
}

#[test]
fn interrupt_does_not_report_kept_resource() {
    let (parent, _) = start_long_run(&["--leak", "opened-once"]);
    std::thread::sleep(Duration::from_millis(500));
    let kill = Command::new("kill").args(["-INT", &parent.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let report = report(&parent.wait_with_output().unwrap(), 0);
    assert!(leaks(&report).is_empty(), "{report:#}");
}

#[test]
fn interrupt_prints_report() {
    let (parent, children) = start_long_run(&[]);
    std::thread::sleep(Duration::from_millis(500));
    let kill = Command::new("kill").args(["-INT", &parent.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = parent.wait_with_output().unwrap();
    let report = report(&output, 0);
    assert_eq!(report["interrupted"], true);
    assert!(report["scenes"][0]["operations"].as_u64().unwrap() > 0, "{report:#}");
    assert!(leaks(&report).is_empty(), "{report:#}");
    assert!(children.into_iter().all(is_dead));
}

#[test]
fn killing_stress_kills_its_workers() {
    let (mut parent, children) = start_long_run(&[]);
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the workers have exited", || children.iter().all(|child| is_dead(*child)));
}
