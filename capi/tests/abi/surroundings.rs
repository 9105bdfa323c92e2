//! HIP's calls around virtual memory; what a program sees of errors.

use crate::program::{Language, Program, package, well};
use hsa_rocr::{Emulation, test};
use std::process::Command;

#[test]
fn surroundings_work_on_every_generation() {
    let program = Program::compile("tests/c/surroundings.c", Language::C99, &["-std=c11"]);
    for generation in ["a", "b", "c", "d"] {
        for gpus in [1, 2] {
            let sim = format!("era={generation},gpus={gpus}");
            let said = well(&program.on_simulation(&sim).output().unwrap(), &sim);
            assert_eq!(said, "all checks passed\n");
        }
    }
}

#[test]
fn surroundings_work_on_amds_runtime() {
    let name = "surroundings::surroundings_work_on_amds_runtime";
    let program = Program::compile("tests/c/surroundings.c", Language::C99, &["-std=c11"]);
    for installation in test::installations(name).unwrap_or_default() {
        let mut command = program.on_release(installation, &Emulation::gpus(2));
        let release = installation.release().to_string();
        assert_eq!(well(&command.output().unwrap(), &release), "all checks passed\n");
    }
}

/// A descriptor as a number and a pointer to one are accepted in both profiles, and anything else is an
/// error: a pointer is read only if it is mapped.
#[test]
fn import_takes_both_kinds_of_descriptors() {
    let program = Program::compile("tests/c/import.c", Language::C99, &[]);
    for profile in ["hip6", "hip7"] {
        let output =
            program.on_simulation("gpus=1").env("HSA_VMM_PROFILE", profile).output().unwrap();
        assert_eq!(well(&output, profile), "all checks passed\n");
    }
}

/// Runs a program that ignores errors, where no runtime is.
fn without_runtime(log: Option<&str>) -> String {
    let program = Program::compile("tests/c/devices.c", Language::C99, &[]);
    let mut command = Command::new(program.file());
    command.env("HSA_VMM_RUNTIME", package().join("no-such-runtime.so"));
    match log {
        Some(level) => command.env("HSA_VMM_LOG", level),
        None => command.env_remove("HSA_VMM_LOG"),
    };
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

#[test]
fn missing_runtime_is_printed_once() {
    let said = without_runtime(None);
    let count = |text: &str| said.matches(text).count();
    assert_eq!(count("libhsavmm: no runtime: "), 1, "{said}");
    assert_eq!(count("no-such-runtime.so"), 2, "the notice, and the program's own line: {said}");
    assert_eq!(count("HSA_VMM_RUNTIME=sim"), 1, "{said}");
    assert!(!without_runtime(Some("off")).contains("libhsavmm: no runtime"));
}

#[test]
fn failed_calls_are_logged_as_warnings() {
    let program = Program::compile("tests/c/import.c", Language::C99, &[]);
    let said = |level: &str| {
        let mut command = program.on_simulation("gpus=1");
        let output = command.env("HSA_VMM_LOG", level).output().unwrap();
        well(&output, level);
        String::from_utf8(output.stderr).unwrap()
    };
    let warned = said("warn");
    let line = "WARN hsavmm: hipMemImportFromShareableHandle: `os_handle`";
    assert!(warned.contains(line), "{warned}");
    assert!(!said("error").contains("hipMemImportFromShareableHandle"));
}
