//! C programs that make random valid and invalid calls neither crash, leak, nor change memory that they must not change.
//!
//! To run them longer: `HSA_VMM_TORTURE=600 cargo test -p hsa-vmm-capi --test abi random_calls`.

use crate::program::{Language, Program, expect_success};
use hsa_rocr::{Emulation, Release, test};
use std::process::Command;

fn run_random_calls(mut command: Command, seed: &str, runtime: &str) {
    let seconds = std::env::var("HSA_VMM_TORTURE").unwrap_or_else(|_| "2".into());
    let printed = expect_success(&command.args([seed, &seconds]).output().unwrap(), runtime);
    // For example: "ok: seed 1, 14288 calls, 9834 rejected".
    let words: Vec<&str> = printed.split([' ', ',', '\n']).collect();
    let number = |word: &str| {
        let index = words.iter().position(|other| *other == word).expect(&printed);
        words[index - 1].parse::<u32>().expect(&printed)
    };
    let (calls, rejected) = (number("calls"), number("rejected"));
    // The library must reject between a tenth and nine tenths of the calls, so that valid and invalid calls are
    // frequent.
    assert!(
        calls >= 2000 && rejected > calls / 10 && rejected < calls / 10 * 9,
        "{runtime}: {printed}"
    );
}

fn run_on_simulation(source: &str) {
    let program = Program::compile(source, Language::C99, &[]);
    run_random_calls(program.on_simulation("era=b,gpus=2"), "1", "simulation");
}

fn run_on_amds_runtime(name: &str, source: &str) {
    let program = Program::compile(source, Language::C99, &[]);
    let releases = test::fetch_releases(name).unwrap_or_default().iter();
    for fetched in releases.filter(|found| found.release() == Release::R6_4_3) {
        run_random_calls(program.on_release(fetched, &Emulation::with_gpus(2)), "2", "6.4.3");
    }
}

#[test]
fn random_calls_never_crash_or_leak() {
    run_on_simulation("tests/c/random_calls.c");
}

#[test]
fn random_calls_never_crash_or_leak_on_amds_runtime() {
    let name = "random_calls::random_calls_never_crash_or_leak_on_amds_runtime";
    run_on_amds_runtime(name, "tests/c/random_calls.c");
}

#[test]
fn random_copies_change_the_right_bytes() {
    run_on_simulation("tests/c/random_copies.c");
}

#[test]
fn random_copies_change_the_right_bytes_on_amds_runtime() {
    let name = "random_calls::random_copies_change_the_right_bytes_on_amds_runtime";
    run_on_amds_runtime(name, "tests/c/random_copies.c");
}
