//! Other projects' programs for HIP, in the folder that `HSA_VMM_PROGRAMS` names (docs/hip.md).
//!
//! Each subfolder is a program: its files `*.cpp` are compiled unchanged against the headers. The last line of its
//! output must be `done`, on the simulation and on ROCm 7.2.4, with one GPU and with two. The test downloads nothing.

use crate::program::Program;
use hsa_rocr::{Emulation, Release, test};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Returns the programs' folders, sorted by name. If `HSA_VMM_PROGRAMS` is not set, reports that the test `name` is
/// skipped, and returns no folder.
#[track_caller]
fn folders(name: &str) -> Vec<PathBuf> {
    let Some(root) = std::env::var_os("HSA_VMM_PROGRAMS") else {
        test::report(&format!(
            "SKIPPED {name}: HSA_VMM_PROGRAMS does not name a folder with programs"
        ));
        return Vec::new();
    };
    let root = PathBuf::from(root);
    assert!(root.is_absolute(), "HSA_VMM_PROGRAMS is {root:?}; it must be an absolute path");
    let entries = std::fs::read_dir(&root).unwrap_or_else(|error| panic!("{root:?}: {error}"));
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    assert!(!folders.is_empty(), "{root:?} has no program");
    folders
}

#[track_caller]
fn expect_done(mut command: Command, label: &str) {
    let (status, output) = test::run_with_timeout(&mut command, TIME_LIMIT);
    let outcome = status.map_or("did not end".to_owned(), |status| status.to_string());
    assert!(status.is_some_and(|status| status.success()), "{label} ({outcome}):\n{output}");
    assert_eq!(output.lines().last(), Some("done"), "{label}:\n{output}");
}

#[test]
fn programs_of_other_projects_run() {
    let name = "programs::programs_of_other_projects_run";
    let folders = folders(name);
    if folders.is_empty() {
        return;
    }
    let fetched_releases = test::fetch_releases(name).unwrap_or_default();
    let newest = fetched_releases.iter().find(|found| found.release() == Release::R7_2_4);
    for folder in &folders {
        let program = Program::compile_folder(folder);
        let program_name = folder.file_name().unwrap().display();
        for gpus in [1, 2] {
            let configuration = format!("mi300x,gpus={gpus},era=d");
            expect_done(
                program.on_simulation(&configuration),
                &format!("{program_name} on {configuration}"),
            );
            if let Some(fetched) = newest {
                let mut command = program.on_release(fetched, &Emulation::with_gpus(gpus));
                // Without this variable, GPUs on PCI Express have only coarse-grained memory.
                command.env("HSA_FORCE_FINE_GRAIN_PCIE", "1");
                expect_done(command, &format!("{program_name} on 7.2.4 with {gpus} GPUs"));
            }
        }
        test::report(&format!("{name}: {program_name} ran"));
    }
}
