//! Calls in forked children of a busy process.

use crate::program::{Language, Program, package, well};
use std::collections::BTreeSet;

/// The number of forks; 400 by default.
fn forks() -> String {
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

/// Returns every function that the headers declare.
fn functions() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for header in ["hsavmm.h", "hip/hip_runtime_api.h"] {
        let text = std::fs::read_to_string(package().join("include").join(header)).unwrap();
        for result in ["hipError_t ", "const char *"] {
            let declared = text.lines().filter_map(|line| line.strip_prefix(result));
            let names = declared.filter_map(|rest| rest.split_once('('));
            all.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    all
}

#[test]
fn every_function_returns_in_a_forked_child() {
    let all = functions();
    assert!(all.len() > 60 && all.contains("hipFree"), "{all:?}");
    let program = Program::compile("tests/c/fork.c", Language::C99, &["-pthread", "-ldl"]);
    let output = program.on_simulation("gpus=2").arg(forks()).args(&all).output().unwrap();
    let succeeded = well(&output, "forked");
    let unexpected: Vec<_> =
        succeeded.lines().filter(|name| !WITHOUT_RUNTIME.contains(name)).collect();
    assert_eq!(unexpected, [""; 0]);
}
