//! Runs of the command that are killed or interrupted, and runs that `--resume` continues.

#[path = "ktap/mod.rs"]
mod ktap;
#[path = "hsa_vmm/mod.rs"]
mod run_command;

use run_command::{command, json, run, statuses, stderr, stdout};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const CONFORM_ON_SIMULATION: [&str; 5] = ["conform", "--runtime", "sim", "--filter", "map.*"];

fn conform(arguments: &[&str]) -> std::process::Output {
    run(&[&CONFORM_ON_SIMULATION, arguments].concat())
}

fn line_count(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn killed_run_resumes_to_the_same_results() {
    let folder = tempfile::tempdir().unwrap();
    let complete = json(&conform(&["--format", "json"]));
    for format in ["json", "ktap"] {
        let file = folder.path().join(format);
        let partial = folder.path().join(format!("{format}.partial"));
        let path = file.to_str().unwrap();
        let options = ["--format", format, "--output", path];
        let mut killed = 0;
        // Kill the run three times, each time after more lines of partial results.
        for kill_after in [3, 20, 41] {
            let resume: &[&str] = if killed == 0 { &[] } else { &["--resume"] };
            let mut command = command(&[&CONFORM_ON_SIMULATION, &options[..], resume].concat());
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            let began = Instant::now();
            while line_count(&partial) < kill_after && child.try_wait().unwrap().is_none() {
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            killed += usize::from(!child.wait().unwrap().success());
        }
        assert!(killed > 1, "{format}: the run was too fast");
        assert!(line_count(&partial) > 3);
        let mismatched = command(&["conform", "--runtime", "sim", "--filter", "ipc.*", "--resume"])
            .args(options)
            .output()
            .unwrap();
        assert_eq!(mismatched.status.code(), Some(2), "{}", stderr(&mismatched));
        assert!(stderr(&mismatched).contains("results of other cases"), "{}", stderr(&mismatched));

        let output = conform(&[&options[..], &["--resume"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stderr(&output).contains("cases have a result"), "{}", stderr(&output));
        assert!(!partial.exists());
        let text = fs::read_to_string(&file).unwrap();
        match format {
            "json" => {
                let report: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(report["summary"], complete["summary"]);
                assert_eq!(statuses(&report), statuses(&complete));
            }
            _ => assert_eq!(ktap::parse_subtests(&text).1.len(), statuses(&complete).len()),
        }
    }
}

#[test]
fn case_that_ends_the_run_twice_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    let selected = json(&run(&["conform", "--list", "--format", "json", "--filter", "map.*"]));
    let names: Vec<_> = selected.as_array().unwrap().iter().map(|case| &case["name"]).collect();
    let mut partial = json!({ "selected": names }).to_string();
    for _ in 0..2 {
        partial += &format!("\n{}", json!({ "begin": names[1] }));
    }
    // An incomplete line, as after a power failure.
    partial += "\n{\"beg";
    fs::write(folder.path().join("out.json.partial"), partial).unwrap();
    let output = conform(&["--resume", "--format", "json", "--output", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(report["summary"]["failed"], 1);
    assert_eq!(report["cases"][1]["detail"], "the run ended 2 times while this case ran");
}

#[test]
fn resume_replaces_an_empty_file_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    let options = ["--resume", "--filter", "map.handle.zero", "-o", file.to_str().unwrap()];
    for (text, status) in [("", 0), ("other\n", 2)] {
        fs::write(folder.path().join("out.partial"), text).unwrap();
        let output = conform(&options);
        assert_eq!(output.status.code(), Some(status), "{text:?}: {}", stderr(&output));
    }
}

#[test]
fn run_resumes_twice_after_an_incomplete_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    let partial = folder.path().join("out.json.partial");
    let selected = json(&run(&["conform", "--list", "--format", "json", "--filter", "map.*"]));
    let names: Vec<_> = selected.as_array().unwrap().iter().map(|case| &case["name"]).collect();
    // As after a power failure: the last line is incomplete, and not UTF-8.
    let start = json!({ "selected": names }).to_string() + "\n";
    fs::write(&partial, [start.as_bytes(), b"{\"begin\": \"\xff\0"].concat()).unwrap();
    let options = ["--resume", "--format", "json", "--output", file.to_str().unwrap()];
    let mut child = command(&[&CONFORM_ON_SIMULATION, &options[..]].concat())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while line_count(&partial) < 9 && child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "the run was too fast");
    let output = conform(&options);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let note = stderr(&output);
    let finished =
        note.lines().find_map(|line| line.split_once(" cases have a result")?.0.split_once(" of "));
    assert!(finished.is_some_and(|(finished, _)| finished != "0"), "{note}");
}

#[test]
fn resume_rejects_other_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    let options = ["--format", "json", "--output", file.to_str().unwrap()];
    let mut child = command(&[&CONFORM_ON_SIMULATION, &options[..]].concat())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = folder.path().join("out.json.partial");
    while line_count(&partial) < 5 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let arguments = [&CONFORM_ON_SIMULATION, &options[..], &["--resume"]].concat();
    for (option, variable, value, this) in [
        (&["--gpus", "3"][..], "HSA_KFD", "", "`--gpus` `3`"),
        (&[], "HSA_KFD", "gpus=1", "`HSA_KFD=gpus=1`"),
        (&[], "HSA_VMM_UNDER", "vm --stub f", "`HSA_VMM_UNDER=vm --stub f`"),
    ] {
        let mut resumed = command(&[&arguments[..], option].concat());
        let output = resumed.env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let expected = format!("with other settings: only this run has {this};");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
    // Settings that differ only on another machine: the kernel, and the runtime's facts.
    let text = fs::read_to_string(&partial).unwrap();
    for (this, that) in
        [("\"kernel ", "\"kernel 1."), ("\"build ", "\"build 7."), ("\"agents ", "\"agents gfx1, ")]
    {
        assert!(text.contains(this), "{text}");
        fs::write(&partial, text.replace(this, that)).unwrap();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let expected = format!("other settings: only that run had `{}", that.trim_matches('"'));
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
        assert!(!file.exists() && partial.exists(), "{that}");
    }
    fs::write(&partial, text).unwrap();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn interrupted_hang_ends_early_and_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    let case = ["--gpus", "2", "--filter", "pool.memory.copied_between_gpus"];
    let fault = ["--sim", "faults=hsa_amd_memory_async_copy=hang", "--time-limit", "10min"];
    let output = ["--format", "json", "--resume", "--output", file.to_str().unwrap()];
    let arguments = [&["conform", "--runtime", "sim"], &case[..], &fault, &output].concat();
    for times in 1..=3 {
        let mut child = command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
        let partial = folder.path().join("out.json.partial");
        // The file has a line for the selection, the settings, the runtime, each start of the case, and each earlier
        // interruption.
        while line_count(&partial) < 2 * times + 2 {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::sleep(Duration::from_millis(5));
        }
        let signalled = Instant::now();
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let note = "copied_between_gpus: interrupted, in hsa_amd_memory_async_copy";
        assert!(stderr(&output).contains(note), "{}", stderr(&output));
        assert!(signalled.elapsed() < Duration::from_secs(60));
        let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(report["cases"][0]["status"], "skip", "{report:#}");
    }
}

/// Runs the command, and sends it SIGINT as soon as its standard output or its standard error contains `text`.
fn interrupt_at(arguments: &[&str], text: &str) -> std::process::Output {
    signal_at(arguments, text, &[Signal::INT])
}

/// Runs the command, and sends it signals, 3 ms apart, as soon as its standard output or its standard error contains
/// `text`.
fn signal_at(arguments: &[&str], text: &str, signals: &[Signal]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    let file = |name| fs::File::create(path(name)).unwrap();
    let mut command = command(arguments);
    command.current_dir(folder.path()).stdout(file("out")).stderr(file("err"));
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while !["out", "err"].iter().any(|it| fs::read_to_string(path(it)).unwrap().contains(text)) {
        assert_eq!(child.try_wait().unwrap(), None, "{arguments:?}");
        assert!(began.elapsed() < Duration::from_secs(120), "{arguments:?}: no `{text}`");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_child(&child);
    for signal in signals {
        rustix::process::kill_process(pid, *signal).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    let signalled = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if signalled.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{arguments:?}: does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let [stdout, stderr] = ["out", "err"].map(|name| fs::read(path(name)).unwrap());
    std::process::Output { status, stdout, stderr }
}

#[test]
fn interrupted_conform_prints_its_summary() {
    let faults = "--sim=faults=hsa_amd_vmem_map#1=ERROR";
    let repeat = ["--repeat", "1000", "--filter", "map.handle.*", "--filter", "map.flags.*"];
    // `conform` prints the line `runtime: …` when the first worker has started.
    let arguments = [&["conform", "--runtime", "sim", faults], &repeat[..]].concat();
    let output = interrupt_at(&arguments, "runtime: ");
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(table.contains("\ninterrupted; ") && table.contains(" passed, "), "{table}");
}

#[test]
fn every_format_reports_an_interruption() {
    let hang = ["--sim", "faults=hsa_amd_vmem_map=hang", "--time-limit", "1h"];
    let cases = ["--filter", "create.*", "--filter", "map.*", "--build-id", "a:b"];
    for (format, expected) in [
        ("table", "\ninterrupted; "),
        ("json", "\"interrupted\": true"),
        ("junit", "<error message=\"the run was interrupted: "),
        ("ktap", "\n# the run was interrupted: "),
        ("kcidb", "\"detail\": \"the run was interrupted: "),
        ("html", "<strong>Incomplete.</strong> the run was interrupted: "),
    ] {
        let arguments = ["conform", "--runtime", "sim", "--format", format];
        let output = interrupt_at(&[&arguments[..], &hang, &cases].concat(), "runtime: ");
        assert_eq!(output.status.code(), Some(1), "{format}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains(expected), "{format}: {text}");
        if format == "ktap" {
            assert!(!ktap::parse_subtests(&text).0["process"].ok, "{text}");
        }
    }
}

/// Returns whether a process has a child process.
fn has_child(pid: Pid) -> bool {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    !children.unwrap().is_empty()
}

#[test]
fn every_format_reports_an_interrupted_start() {
    let hang = ["--sim", "faults=hsa_init=hang", "--time-limit", "1h"];
    let cases = ["--filter", "map.size.*", "--build-id", "a:b"];
    let mut children = ["table", "json", "junit", "ktap", "kcidb", "html"].map(|format| {
        let arguments = ["conform", "--runtime", "sim", "--format", format];
        let mut command = command(&[&arguments[..], &hang, &cases].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        (format, command.spawn().unwrap())
    });
    let started = Instant::now();
    for (format, child) in &mut children {
        // The command handles signals before it starts the worker.
        while !has_child(Pid::from_child(child)) {
            assert_eq!(child.try_wait().unwrap(), None, "{format}");
            assert!(started.elapsed() < Duration::from_secs(120), "{format}");
            std::thread::sleep(Duration::from_millis(5));
        }
        rustix::process::kill_process(Pid::from_child(child), Signal::INT).unwrap();
    }
    let signalled = Instant::now();
    for (format, child) in children {
        let output = child.wait_with_output().unwrap();
        assert!(signalled.elapsed() < Duration::from_secs(60), "{format}");
        let (text, note) = (stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(1), "{format}: {note}");
        assert!(note.contains("runtime.library.starts: interrupted"), "{format}: {note}");
        let is_reported = match format {
            "table" => text.contains("\ninterrupted; "),
            "json" => json(&output)["run"]["interrupted"] == true,
            "ktap" => !ktap::parse_subtests(&text).0["process"].ok,
            _ => text.contains("the run was interrupted: 0 of "),
        };
        assert!(is_reported, "{format}: {text}");
        let skipped = text.matches("not tried: the run was interrupted").count();
        assert!(skipped > 0, "{format}: {text}");
    }
}

/// GNU `timeout` signals its child, and then the child's process group. Both signals arrive during one slow case.
#[test]
fn repeated_signal_does_not_end_the_output() {
    let arguments = ["conform", "--runtime", "sim", "--format", "ktap", "--filter", "map.*"];
    let arguments = [&arguments[..], &["--sim", "faults=hsa_amd_vmem_map=200ms"]].concat();
    let output = signal_at(&arguments, "runtime: ", &[Signal::TERM, Signal::TERM]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("\n# the run was interrupted: "), "{text}");
}

#[test]
fn interrupted_fuzz_prints_its_result() {
    let fuzz = ["fuzz", "--runtime", "sim", "--seed", "3", "--processes", "1", "--time", "1h"];
    let output = interrupt_at(&[&fuzz[..], &["--format", "json"]].concat(), "seed 3");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!((&report["interrupted"], &report["finding"]), (&json!(true), &Value::Null));

    // `fuzz` writes the start of the KTAP document before the first sequence runs.
    let output = interrupt_at(&[&fuzz[..], &["--format", "ktap"]].concat(), "1..1\n# seed 3");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(ktap::parse_subtests(&stdout(&output)).0["fuzz"].ok);
    assert!(stdout(&output).contains("\n# interrupted\n"), "{}", stdout(&output));

    // Interrupt the command while it shrinks a sequence: each attempt hangs for two seconds.
    let hang = ["--sim", "faults=hsa_amd_vmem_map#3-=hang", "--time-limit", "2s", "--shrink", "1h"];
    let arguments = [&fuzz[..], &hang, &["--format", "json"]].concat();
    let output = interrupt_at(&arguments, "shrinking it");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["finding"]["kind"], "hang", "{report:#}");
    assert_eq!(report["interrupted"], true, "{report:#}");
}

#[test]
fn interrupted_bringup_prints_levels() {
    let faults = ["--sim", "faults=hsa_amd_vmem_map=hang", "--time-limit", "1h"];
    let bringup = [&["bringup", "--runtime", "sim"], &faults[..]].concat();
    let count = |text: &str, word: &str| text.lines().filter(|line| line.contains(word)).count();
    // `bringup` prints the row of a level when the level ends.
    let output = interrupt_at(&bringup, "one page reserved");
    let (table, notes) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains("interrupted after "), "{notes}");
    let reached = count(&table, "✓");
    assert!(reached > 3 && notes.contains(&format!("after {reached} of")), "{table}{notes}");
    assert!(count(&table, "interrupted") > 3, "{table}");

    let output = interrupt_at(&[&bringup[..], &["--format", "ktap"]].concat(), " reserved");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let (top, _) = ktap::parse_subtests(&stdout(&output));
    assert!(top["reserved"].directive.is_empty(), "{top:?}");
    // The interrupted level fails, so that a program that ignores skipped results does not count the run as passed.
    let failed: Vec<_> = top.iter().filter(|(_, test)| !test.ok).map(|(name, _)| name).collect();
    assert!(failed == ["mapped"] || failed == ["handle"], "{top:?}");
    assert_eq!(top["killed"].directive, "SKIP interrupted", "{top:?}");
}
