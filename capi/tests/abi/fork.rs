//! Calls in forked children of a busy process.

use crate::headers::functions;
use crate::program::{Language, Program, expect_success};
use std::process::Stdio;

/// Returns the number of forks as text. The default is 400.
fn fork_count() -> String {
    std::env::var("HSA_VMM_FORKS").unwrap_or_else(|_| "400".to_owned())
}

/// Functions that need no runtime.
const WITHOUT_RUNTIME: [&str; 6] = [
    "hipDriverGetVersion",
    "hipGetLastError",
    "hipPeekAtLastError",
    "hipRuntimeGetVersion",
    "hipDrvGetErrorName",
    "hipDrvGetErrorString",
];

/// While threads configure, open and close the runtime, and afterwards.
#[test]
fn calls_return_in_children_of_a_closed_runtime() {
    let program = Program::compile("tests/c/fork_closed.c", Language::C99, &["-pthread"]);
    let output = program.on_simulation("gpus=1").arg(fork_count()).output().unwrap();
    assert_eq!(expect_success(&output, "simulation"), "all checks passed\n");
}

#[test]
fn every_function_returns_in_a_forked_child() {
    let all = functions();
    assert!(all.len() > 60 && all.contains("hipFree"), "{all:?}");
    let program = Program::compile("tests/c/fork.c", Language::C99, &["-pthread", "-ldl"]);
    for log in ["off", "warn"] {
        let mut command = program.on_simulation("gpus=2");
        command.arg(fork_count()).args(&all).env("HSA_VMM_LOG", log).stderr(Stdio::null());
        let succeeded = expect_success(&command.output().unwrap(), log);
        let unexpected: Vec<_> =
            succeeded.lines().filter(|name| !WITHOUT_RUNTIME.contains(name)).collect();
        assert_eq!(unexpected, [""; 0], "HSA_VMM_LOG={log}");
    }
}
