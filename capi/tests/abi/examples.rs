//! The examples print the expected output on the simulation and on AMD's runtime.

use crate::program::{Language, Program, expect_success};
use hsa_rocr::{Emulation, test};

/// Returns each program, and a part of each line that the program prints.
fn examples() -> [(Program, &'static [&'static str]); 3] {
    let cycle: &[&str] = &[
        ", 2 GPUs",
        "granule: ",
        "read at the third: \"written at the first\"",
        "rejected: hipMemUnmap: ",
    ];
    let growing: &[&str] = &["contents kept"; 4];
    [
        (Program::compile("examples/cycle.c", Language::C99, &[]), cycle),
        (Program::compile("examples/cycle.c", Language::Cpp17, &[]), cycle),
        (Program::compile("examples/growing.cpp", Language::Cpp17, &[]), growing),
    ]
}

#[track_caller]
fn expect_lines(output: &str, parts: &[&str]) {
    assert_eq!(output.lines().count(), parts.len(), "{output}");
    for (line, part) in output.lines().zip(parts) {
        assert!(line.contains(part), "{part:?} in {line:?}");
    }
}

#[test]
fn examples_run_on_the_simulation() {
    for (program, parts) in examples() {
        for generation in ["a", "b", "c", "d"] {
            let output =
                program.on_simulation(&format!("mi300x,gpus=2,era={generation}")).output().unwrap();
            expect_lines(&expect_success(&output, generation), parts);
        }
    }
}

#[test]
fn examples_run_on_amds_runtime() {
    let Some(fetched_releases) = test::fetch_releases("examples::examples_run_on_amds_runtime")
    else {
        return;
    };
    for (program, parts) in examples() {
        for fetched in fetched_releases {
            let mut command = program.on_release(fetched, &Emulation::with_gpus(2));
            let release = fetched.release().to_string();
            expect_lines(&expect_success(&command.output().unwrap(), &release), parts);
        }
    }
}
