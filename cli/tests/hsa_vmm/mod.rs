//! Runs `hsa-vmm`, and returns its output.

#![allow(dead_code, reason = "each test program uses only some of the items")]

use hsa_rocr::folder;
use std::collections::BTreeMap;
use std::process::{Command, Output};

/// The path of the command.
pub const HSA_VMM: &str = env!("CARGO_BIN_EXE_hsa-vmm");

/// Returns the command, without environment variables that affect its output.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(HSA_VMM);
    for variable in [
        "HSA_VMM_RUNTIME",
        "HSA_SIM",
        "HSA_VMM_PROFILE",
        "HSA_VMM_LOG",
        "HSA_VMM_UNDER",
        "ROCM_PATH",
        "HSA_KFD",
        "HSA_KFD_LOG",
        "HSA_KFD_FAULTS",
        "HSA_KFD_PAGE_TABLES",
    ] {
        command.env_remove(variable);
    }
    // Reports contain placeholders instead of the home folder and the user name. Make the command find neither, because
    // the tests compare complete paths.
    command.env("HOME", "/dev/null/home").env_remove("USER").env_remove("LOGNAME");
    command.env("HSA_VMM_ROCR", folder().unwrap()).env("LC_ALL", "C.UTF-8").args(arguments);
    command
}

/// Runs the command, and waits until it ends.
pub fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Returns the text that a run wrote to standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the text that a run wrote to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Parses the JSON that a run wrote to standard output.
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Returns the statuses of a JSON report, by case.
pub fn statuses(report: &serde_json::Value) -> BTreeMap<String, String> {
    let cases = report["cases"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    cases.map(|case| (text(&case["name"]), text(&case["status"]))).collect()
}
