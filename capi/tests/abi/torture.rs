//! A C program that makes random valid and invalid calls neither crashes nor leaks.
//!
//! To run it longer: `HSA_VMM_TORTURE=600 cargo test -p hsa-vmm-capi --test abi torture`.

use crate::program::{Language, Program, well};
use hsa_rocr::{Emulation, Release, test};
use std::process::Command;

fn survives(mut command: Command, seed: &str, what: &str) {
    let seconds = std::env::var("HSA_VMM_TORTURE").unwrap_or_else(|_| "2".into());
    let said = well(&command.args([seed, &seconds]).output().unwrap(), what);
    // "ok: seed 1, 14288 calls, 9834 refused"
    let words: Vec<&str> = said.split([' ', ',', '\n']).collect();
    let number = |word: &str| {
        let place = words.iter().position(|other| *other == word).expect(&said);
        words[place - 1].parse::<u32>().expect(&said)
    };
    let (calls, refused) = (number("calls"), number("refused"));
    // Both kinds of calls were made often.
    assert!(calls >= 2000 && refused > calls / 10 && refused < calls / 10 * 9, "{what}: {said}");
}

#[test]
fn random_calls_on_the_simulation() {
    let program = Program::compile("tests/c/torture.c", Language::C99, &[]);
    survives(program.on_simulation("era=b,gpus=2"), "1", "simulation");
}

#[test]
fn random_calls_on_amds_runtime() {
    let name = "torture::random_calls_on_amds_runtime";
    let program = Program::compile("tests/c/torture.c", Language::C99, &[]);
    let releases = test::installations(name).unwrap_or_default().iter();
    for installation in releases.filter(|one| one.release() == Release::R6_4_3) {
        survives(program.on_release(installation, &Emulation::gpus(2)), "2", "6.4.3");
    }
}
