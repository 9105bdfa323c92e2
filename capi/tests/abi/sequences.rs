//! Programs that make the same sequences of calls as public programs that use HIP's virtual memory and IPC
//! (docs/hip.md). They run on the simulation and on AMD's runtime.

use crate::program::{Language, Program, expect_success};
use hsa_rocr::{Emulation, test};
use std::process::Command;

const NAMES: [&str; 4] = ["segments", "chunks", "pool", "exchange"];

fn run_all(label: &str, command: impl Fn(&Program) -> Command) {
    for name in NAMES {
        // ROCm 6.1 makes reserved addresses writable (docs/defects.md), so the kernel rejects a reservation that is
        // larger than the machine's memory.
        if ["segments", "pool"].contains(&name) && label == "6.1.2" {
            continue;
        }
        let source = format!("tests/sequences/{name}.cpp");
        let program = Program::compile(&source, Language::Cpp17, &[]);
        let output = command(&program).output().unwrap();
        assert_eq!(expect_success(&output, &format!("{name} on {label}")), "done\n");
    }
}

#[test]
fn sequences_run_on_the_simulation() {
    for gpus in [1, 2] {
        let configuration = format!("mi300x,gpus={gpus},era=d");
        run_all(&configuration, |program| program.on_simulation(&configuration));
    }
}

#[test]
fn sequences_run_on_amds_runtime() {
    let name = "sequences::sequences_run_on_amds_runtime";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release().to_string();
        run_all(&release, |program| {
            let mut command = program.on_release(fetched, &Emulation::with_gpus(2));
            // Without this variable, GPUs on PCI Express have no fine-grained memory.
            command.env("HSA_FORCE_FINE_GRAIN_PCIE", "1");
            command
        });
    }
}
