//! Programs with the sequences of calls of public programs that use HIP's virtual memory and IPC
//! (docs/hip.md), on the simulation and on AMD's runtime.

use crate::program::{Language, Program, well};
use hsa_rocr::{Emulation, Release, test};
use std::process::Command;

const NAMES: [&str; 4] = ["segments", "chunks", "pool", "exchange"];

fn run_all(what: &str, command: impl Fn(&Program) -> Command) {
    for name in NAMES {
        let source = format!("tests/sequences/{name}.cpp");
        let program = Program::compile(&source, Language::Cpp17, &[]);
        let output = command(&program).output().unwrap();
        assert_eq!(well(&output, &format!("{name} on {what}")), "done\n");
    }
}

#[test]
fn sequences_run_on_the_simulation() {
    for gpus in [1, 2] {
        let sim = format!("mi300x,gpus={gpus},era=d");
        run_all(&sim, |program| program.on_simulation(&sim));
    }
}

#[test]
fn sequences_run_on_amds_runtime() {
    let name = "sequences::sequences_run_on_amds_runtime";
    for installation in test::installations(name).unwrap_or_default() {
        let release = installation.release();
        if release == Release::R7_2_4 || release == Release::R6_4_3 {
            run_all(&release.to_string(), |program| {
                program.on_release(installation, &Emulation::gpus(2))
            });
        }
    }
}
