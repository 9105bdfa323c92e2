//! Planned faults of the simulation and of the emulated driver: `conform` or `fuzz` must find each fault.
//!
//! For each fault, the table (`table.rs`) names the tool, `conform` or `fuzz`. This tool must find the fault within two
//! minutes and print the message in the table. By default, a fixed seed chooses a few faults. `HSA_VMM_PLANTED=all`
//! tests all faults. `HSA_VMM_PLANTED=SEED` tests the faults that another seed chooses. `HSA_VMM_PLANTED=TEXT` tests
//! the faults whose name or plan contains the text. The test prints how long the tool took to find each fault.

mod call_faults;
mod detection;
mod machine;
mod page;
mod reasons;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;
mod table;

use hsa_rocr::test;
use run_command::{HSA_VMM, command};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use table::{FAULTS, Fault, Finder, Target};

/// The time limit for finding a fault.
const LIMIT: Duration = Duration::from_secs(120);
/// The seed if `HSA_VMM_PLANTED` is not set. This seed is fixed, so that every run tests the same faults.
const DEFAULT_SEED: u64 = 1;
/// The number of faults that a seed chooses. With `HSA_VMM_LONG=1`, a seed chooses twice as many faults.
const SAMPLE_SIZE: usize = 2;

struct RunResult {
    status: ExitStatus,
    duration: Duration,
    stdout: String,
    stderr: String,
}

/// Runs `hsa-vmm ARGUMENTS` on a target with a fault plan. Kills the command after the time limit.
fn run(target: Target, plan: &str, arguments: &[&str]) -> Result<RunResult, String> {
    run_within(LIMIT, target, plan, arguments)
}

fn run_within(
    limit: Duration,
    target: Target,
    plan: &str,
    arguments: &[&str],
) -> Result<RunResult, String> {
    let (simulation, machine);
    let words: Vec<&str> = match target {
        Target::Simulation(config) => {
            let faults = if plan.is_empty() { String::new() } else { format!("faults={plan}") };
            simulation = format!("{config},{faults}");
            let options = ["--runtime", "sim", "--gpus", "2", "--sim", &simulation];
            arguments.iter().copied().chain(options).collect()
        }
        Target::Release(release) => {
            let mut words = vec!["emulate", "--rocr", release, "--gpus", "2"];
            if !plan.is_empty() {
                words.extend(["--fault", plan]);
            }
            words.extend(["--", HSA_VMM]);
            words.extend(arguments);
            words
        }
        Target::Machine(release) => {
            machine = machine::vm_options(release, plan, arguments.first().copied().unwrap_or(""));
            let options = machine.iter().map(String::as_str);
            options.chain(["--", HSA_VMM]).chain(arguments.iter().copied()).collect()
        }
    };
    let files = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
    let stdio = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
    let mut command = command(&words);
    command.stdin(Stdio::null()).stdout(stdio(&files[0])).stderr(stdio(&files[1]));
    let began = Instant::now();
    let mut child = command.spawn().expect("the command");
    let status = loop {
        match child.try_wait().expect("a child to wait for") {
            Some(status) => break status,
            None if began.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not end within {limit:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let duration = began.elapsed();
    let [stdout, stderr] = files.map(|mut file| {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("text");
        text
    });
    Ok(RunResult { status, duration, stdout, stderr })
}

fn last_line(output: &str) -> &str {
    output.trim_end().lines().next_back().unwrap_or("no output")
}

/// Checks that a case failed in a report of `conform`, with a detail that contains `words`.
fn check_failed_case(report: &str, case: &str, words: &str) -> Result<(), String> {
    let report: Value = serde_json::from_str(report).map_err(|error| error.to_string())?;
    let failed: Vec<_> = report["cases"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| it["status"] == "fail")
        .map(|it| (it["name"].as_str().unwrap_or(""), it["detail"].as_str().unwrap_or("")))
        .collect();
    match failed.iter().find(|(name, _)| *name == case) {
        Some((_, detail)) if detail.contains(words) => Ok(()),
        Some((_, detail)) => Err(format!("{case} failed, but: {detail}")),
        None => {
            Err(format!("{case} did not fail; these did: {:?}", &failed[..failed.len().min(5)]))
        }
    }
}

/// Checks that a case of `conform` finds the fault. Returns the duration of the run. Runs only this case if `all_cases`
/// is false and the plan contains no call number (`#`).
fn find_by_conform(
    fault: &Fault,
    (case, words): (&str, &str),
    options: &[&str],
    all_cases: bool,
) -> Result<Duration, String> {
    let mut arguments = vec!["conform", "--format", "json"];
    arguments.extend(options);
    // The call numbers of a plan (`#`) count the calls of all cases, so all cases must run.
    if !all_cases && !fault.plan.contains('#') {
        arguments.extend(["--filter", case]);
    }
    let result = run(fault.target, fault.plan, &arguments)?;
    check_failed_case(&result.stdout, case, words)
        .map_err(|reason| format!("{reason}; {}", last_line(&result.stderr)))?;
    match result.status.code() {
        Some(1) => Ok(result.duration),
        _ => Err(format!("ended with {}", result.status)),
    }
}

/// Checks that `fuzz` finds the fault. Returns the duration of the run. `replay` of the saved file must fail with the
/// fault, and pass without the fault.
fn find_by_fuzz(fault: &Fault, words: &str) -> Result<Duration, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("found.jsonl");
    let file = file.to_str().expect("text");
    let fuzz = ["fuzz", "--seed", "1", "--time", "110s", "--processes", "2"];
    let fuzz = [&fuzz[..], &["--time-limit", "3s", "--shrink", "2s", "--save", file]].concat();
    let result = run(fault.target, fault.plan, &fuzz)?;
    let output = format!("{}{}", result.stdout, result.stderr);
    if result.status.code() != Some(1) || !output.contains(words) {
        return Err(format!("fuzz ended with {} and printed:\n{output}", result.status));
    }
    for (plan, status, words) in [(fault.plan, 1, words), ("", 0, "did not fail again")] {
        let replay = run(fault.target, plan, &["replay", file])?;
        let output = format!("{}{}", replay.stdout, replay.stderr);
        if replay.status.code() != Some(status) || !output.contains(words) {
            let ended = replay.status;
            return Err(format!("replay with the plan {plan:?} ended with {ended}:\n{output}"));
        }
    }
    Ok(result.duration)
}

/// Returns how long it took to find a fault. Returns an error if the fault was not found.
fn find(fault: &Fault, all_cases: bool) -> Result<Duration, String> {
    match fault.finder {
        Finder::Conform(case, words) => find_by_conform(fault, (case, words), &[], all_cases),
        // Runs only the named case: of several cases that fail at the same time, any may be reported first.
        Finder::ConformFailFast(case, words) => {
            find_by_conform(fault, (case, words), &["--fail-fast", "--time-limit", "10s"], false)
        }
        Finder::Fuzz(words) => find_by_fuzz(fault, words),
    }
}

/// Returns the chosen faults, and whether to run all cases for each.
fn chosen_faults() -> (Vec<&'static Fault>, bool) {
    let selection = std::env::var("HSA_VMM_PLANTED").unwrap_or_default();
    let seed = match selection.as_str() {
        "all" => return (FAULTS.iter().collect(), true),
        "" => DEFAULT_SEED,
        selection => match selection.parse() {
            Ok(seed) => seed,
            Err(_) => {
                let is_selected =
                    |it: &&Fault| it.name.contains(selection) || it.plan.contains(selection);
                return (FAULTS.iter().filter(is_selected).collect(), true);
            }
        },
    };
    println!("HSA_VMM_PLANTED={seed} repeats this choice");
    let mut random = fastrand::Rng::with_seed(seed);
    let all: Vec<_> = FAULTS.iter().collect();
    let sample_size = if test::is_long() { 2 * SAMPLE_SIZE } else { SAMPLE_SIZE };
    (random.choose_multiple(all, sample_size), false)
}

/// Returns whether the target of a fault is available. If AMD's releases are not fetched, prints a note.
fn can_run(fault: &Fault) -> bool {
    let Target::Release(release) = fault.target else { return true };
    let fetched_releases = test::fetch_releases("planned_faults_are_found").unwrap_or_default();
    fetched_releases.iter().any(|it| it.release().version() == release)
}

#[test]
fn planned_faults_are_found() {
    let (chosen, all_cases) = chosen_faults();
    assert!(!chosen.is_empty(), "no fault matches");
    let mut missed = Vec::new();
    for fault in chosen.into_iter().filter(|it| can_run(it)) {
        let Fault { name, target, plan, finder } = fault;
        let line = match find(fault, all_cases) {
            Ok(duration) => format!("{:>7.2} s", duration.as_secs_f64()),
            Err(reason) => {
                missed.push(format!("{name} ({target:?}, {plan}): {reason}"));
                "MISSED".to_owned()
            }
        };
        println!("{line:>9}  {name}: {target:?} {plan}, {finder:?}");
    }
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}

#[test]
fn nothing_is_found_without_planned_fault() {
    let (mut faults, all) = chosen_faults();
    let mut tested_targets = HashSet::new();
    faults.retain(|it| tested_targets.insert(format!("{:?}", it.target)) && can_run(it));
    faults.truncate(if all { usize::MAX } else { 2 });
    for Fault { target, .. } in faults {
        let conform = run(*target, "", &["conform"]).unwrap();
        assert!(conform.status.success(), "{target:?}: {}{}", conform.stdout, conform.stderr);
        let fuzz = ["fuzz", "--seed", "1", "--sequences", "40", "--processes", "2"];
        let fuzz = run(*target, "", &fuzz).unwrap();
        assert!(fuzz.status.success(), "{target:?}: {}{}", fuzz.stdout, fuzz.stderr);
    }
}

#[test]
fn table_covers_all_effects_and_releases() {
    assert!(FAULTS.len() >= 30);
    let names: HashSet<_> = FAULTS.iter().map(|it| it.name).collect();
    assert_eq!(names.len(), FAULTS.len(), "a name is not unique");
    let effects = [
        "lost", "late:", "half", "shifted", "other", "narrow", "wide", "leak", "hang", "crash",
        "garbled", "double", "=E", "unseen", "stale", "evict",
    ];
    for effect in effects {
        assert!(FAULTS.iter().any(|it| it.plan.contains(effect)), "{effect}");
    }
    for release in ["6.1.2", "6.4.3", "7.2.4"] {
        assert!(FAULTS.iter().any(|it| it.target == Target::Release(release)), "{release}");
    }
}
