//! A set-user-id program in C ignores the environment variables by which its caller selects a runtime.

use crate::program::{Language, Program, expect_success, library_folder};
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

const UNPRIVILEGED: u32 = 65534;

/// Prints that the test is skipped. The test harness captures the output of `eprintln!`.
fn report_skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED privileged_program_ignores_variables: {reason}");
}

#[test]
fn privileged_program_ignores_variables() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        report_skipped("only root can create a set-user-id program of root");
        return;
    }
    let compiled = Program::compile("tests/c/privileged.c", Language::C99, &[]);
    // Other users must be able to run the program.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("program");
    fs::copy(compiled.file(), &program).unwrap();
    let run = |user: u32, argument: Option<&str>| {
        let mut command = Command::new(&program);
        command.args(argument).env("HSA_VMM_RUNTIME", "sim").env("HSA_SIM", "gpus=3");
        // For a privileged program, the dynamic linker ignores this variable and uses the path in the program's file
        // (DT_RPATH).
        command.env("LD_LIBRARY_PATH", library_folder());
        let output = command.uid(user).gid(user).output().unwrap();
        let text = expect_success(&output, "the program");
        (text, String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(0, None).0, "privileged 0: hipSuccess, 3 devices\n");
    assert_eq!(run(0, Some("sim")).0, "privileged 0: hipSuccess, 3 devices\n");
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let (text, messages) = run(UNPRIVILEGED, None);
    if !text.starts_with("privileged 1: ") {
        report_skipped(&format!("no privileges for set-user-id programs (nosuid): {text}"));
        return;
    }
    assert_eq!(text, "privileged 1: hipErrorNoDevice, 0 devices\n");
    // The library prints the message once. The program prints it again, as the result of `hsavmm_last_message`.
    assert_eq!(
        messages.matches("so it ignores HSA_VMM_RUNTIME and ROCM_PATH").count(),
        2,
        "{messages}"
    );
    assert_eq!(messages.matches("C: hsavmm_use_runtime").count(), 2, "{messages}");
    assert!(messages.contains("last message: hipGetDeviceCount: "), "{messages}");
    assert!(!messages.contains("HSA_VMM_RUNTIME=sim"), "useless advice: {messages}");
    // The program can select the simulation itself. The library still ignores the caller's HSA_SIM.
    assert_eq!(run(UNPRIVILEGED, Some("sim")).0, "privileged 1: hipSuccess, 2 devices\n");
}
