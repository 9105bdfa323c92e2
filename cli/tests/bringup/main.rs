//! `hsa-vmm bringup`: the reached levels, and the reports of failures.

mod on_amd;
mod on_broken;
mod on_hanging;
mod on_simulation;
mod reports_on_amd;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;
mod suspects_on_amd;

use run_command::{json, stderr};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// The names of all levels, as in the JSON report.
const LEVELS: [&str; 24] = [
    "library",
    "runtime",
    "agents",
    "pools",
    "reserved",
    "handle",
    "mapped",
    "cpu",
    "gpu",
    "data",
    "sdma",
    "blit",
    "offset",
    "permission",
    "unmapped",
    "at_once",
    "reused",
    "counted",
    "descriptors",
    "peer",
    "shared",
    "load",
    "pressure",
    "killed",
];

/// Returns the level that failed, if any. Checks that all earlier levels were reached or skipped, and that no later
/// level was tried.
#[track_caller]
fn failed_level(report: &Value) -> Option<&str> {
    let levels = report["levels"].as_array().unwrap();
    let names: Vec<_> = levels.iter().map(|level| level["level"].as_str().unwrap()).collect();
    assert_eq!(names, LEVELS[..names.len()]);
    let status = |index: usize| levels[index]["status"].as_str().unwrap();
    let failed = (0..levels.len()).find(|index| status(*index) == "failed");
    for index in 0..levels.len() {
        let expected: &[&str] = match failed {
            Some(failed) if index == failed => &["failed"],
            Some(failed) if index > failed => &["not_tried"],
            _ => &["reached", "skipped"],
        };
        assert!(expected.contains(&status(index)), "{report:#}");
    }
    assert_eq!(failed.is_some(), report["failure"].is_object(), "{report:#}");
    failed.map(|index| names[index])
}

/// Returns the report of a run, after checking its exit status.
#[track_caller]
fn report(output: &Output, status: i32) -> Value {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert!(!stderr(output).contains("panicked"), "{}", stderr(output));
    json(output)
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// Returns the command in a mount namespace in which the shell script `mount` was run in `folder`. Returns `None` if
/// this process may not mount.
fn command_with_mount(folder: &Path, mount: &str, arguments: &[&str]) -> Option<Command> {
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).current_dir(folder);
        command
    };
    if !in_namespace(mount).output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: `unshare -rm` and `{mount}` fail");
        return None;
    }
    let program = run_command::command(arguments);
    let mut outer = in_namespace(&format!("{mount} && exec \"$0\" \"$@\""));
    outer.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    Some(outer)
}
