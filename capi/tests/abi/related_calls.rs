//! HIP's calls that programs use together with virtual memory, and how errors are printed and logged.

use crate::program::{Language, Program, expect_success, package};
use hsa_rocr::{Emulation, test};
use std::process::Command;

#[test]
fn related_calls_work_on_every_generation() {
    let program = Program::compile("tests/c/related_calls.c", Language::C99, &["-std=c11"]);
    for generation in ["a", "b", "c", "d", "e"] {
        for gpus in [1, 2] {
            let configuration = format!("era={generation},gpus={gpus}");
            let mut command = program.on_simulation(&configuration);
            let output = command.env("HIP_HIDDEN_FREE_MEM", "64").output().unwrap();
            let printed = expect_success(&output, &configuration);
            assert_eq!(printed, "all checks passed\n");
        }
    }
}

#[test]
fn related_calls_work_on_amds_runtime() {
    let name = "related_calls::related_calls_work_on_amds_runtime";
    let program = Program::compile("tests/c/related_calls.c", Language::C99, &["-std=c11"]);
    for fetched in test::fetch_selected_releases(name) {
        let mut command = program.on_release(fetched, &Emulation::with_gpus(2));
        let release = fetched.release().to_string();
        assert_eq!(expect_success(&command.output().unwrap(), &release), "all checks passed\n");
    }
}

#[test]
fn memory_has_buffer_ids() {
    let program = Program::compile("tests/c/buffer_ids.c", Language::C99, &["-std=c11"]);
    let output = program.on_simulation("gpus=1").output().unwrap();
    assert_eq!(expect_success(&output, "simulation"), "all checks passed\n");
    for fetched in test::fetch_selected_releases("related_calls::memory_has_buffer_ids") {
        let output = program.on_release(fetched, &Emulation::with_gpus(1)).output().unwrap();
        let release = fetched.release().to_string();
        assert_eq!(expect_success(&output, &release), "all checks passed\n");
    }
}

/// Without pointers, `hipMemGetInfo` succeeds even if the runtime does not report the amount of free memory.
#[test]
fn memory_info_without_pointers_succeeds() {
    let program = Program::compile("tests/c/unreported_memory.c", Language::C99, &[]);
    let configuration = "gpus=1,faults=hsa_agent_get_info#5000-=INVALID_ARGUMENT";
    let output = program.on_simulation(configuration).output().unwrap();
    assert_eq!(expect_success(&output, configuration), "all checks passed\n");
}

/// An allocation returns `hipErrorOutOfMemory`, whatever makes it fail.
#[test]
fn failed_allocations_are_out_of_memory() {
    let program = Program::compile("tests/c/failed_allocations.c", Language::C99, &[]);
    for call in [
        "hsa_amd_memory_pool_allocate",
        "hsa_amd_agents_allow_access",
        "hsa_amd_vmem_handle_create",
        "hsa_amd_vmem_address_reserve_align",
    ] {
        let configuration = format!("era=d,gpus=1,faults={call}=ERROR");
        let output = program.on_simulation(&configuration).output().unwrap();
        assert_eq!(expect_success(&output, &configuration), "all checks passed\n");
    }
    let output = program.on_simulation("gpus=1").arg("descriptors").output().unwrap();
    assert_eq!(expect_success(&output, "without descriptors"), "all checks passed\n");
    let program = Program::compile("tests/c/exhausted_memory.c", Language::C99, &[]);
    let output = program.on_simulation("gpus=1").output().unwrap();
    assert_eq!(expect_success(&output, "without memory"), "all checks passed\n");
}

/// In both profiles, the import accepts a descriptor and a pointer to a descriptor, and rejects any other value. An
/// unreadable address does not crash the program.
#[test]
fn import_accepts_descriptor_or_pointer() {
    let program = Program::compile("tests/c/import.c", Language::C99, &[]);
    for profile in ["hip6", "hip7"] {
        let output =
            program.on_simulation("gpus=1").env("HSA_VMM_PROFILE", profile).output().unwrap();
        assert_eq!(expect_success(&output, profile), "all checks passed\n");
    }
}

#[test]
fn profile_selects_results() {
    let program = Program::compile("tests/c/profiles.c", Language::C99, &[]);
    for profile in ["hip6", "hip7"] {
        let output =
            program.on_simulation("gpus=1").env("HSA_VMM_PROFILE", profile).output().unwrap();
        assert_eq!(expect_success(&output, profile), "all checks passed\n");
    }
}

#[test]
fn fabric_handles_are_exported_and_imported() {
    let program = Program::compile("tests/c/fabric.c", Language::C99, &[]);
    for (configuration, has_fabric) in
        [("era=d", "yes"), ("era=b", "no"), ("era=c", "no"), ("era=e", "no")]
    {
        let output = program.on_simulation(configuration).arg(has_fabric).output().unwrap();
        assert_eq!(expect_success(&output, configuration), "all checks passed\n");
    }
}

/// Runs a program that ignores errors, without a runtime. Returns its standard error.
fn run_without_runtime(log: Option<&str>) -> String {
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
    let errors = run_without_runtime(None);
    let count = |text: &str| errors.matches(text).count();
    assert_eq!(count("libhsavmm: no runtime: "), 1, "{errors}");
    assert_eq!(count("no-such-runtime.so"), 2, "the notice, and the program's own line: {errors}");
    for advice in ["HSA_VMM_RUNTIME=sim", "`hsa-vmm rocr fetch`", "`hsa-vmm emulate --rocr 7.2.4 "]
    {
        assert_eq!(count(advice), 1, "{errors}");
    }
    assert!(!run_without_runtime(Some("off")).contains("libhsavmm: no runtime"));
}

/// If the program has named the runtime's file, the advice does not name the variable, which has no effect then.
#[test]
fn missing_file_does_not_advise_the_variable() {
    let program = Program::compile("tests/c/privileged.c", Language::C99, &[]);
    let output = program.on_simulation("gpus=1").arg("/no-such-runtime.so").output().unwrap();
    let printed = expect_success(&output, "a missing file");
    assert_eq!(printed, "privileged 0: hipErrorNoDevice, 0 devices\n");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.matches("so HSA_VMM_RUNTIME has no effect").count(), 2, "{errors}");
    assert!(!errors.contains("name the library in HSA_VMM_RUNTIME"), "{errors}");
    assert!(!errors.contains("HSA_VMM_RUNTIME=sim"), "{errors}");
    assert!(!errors.contains("hsa-vmm emulate"), "{errors}");
}

#[test]
fn error_names_the_invalid_variable() {
    let program = Program::compile("tests/c/devices.c", Language::C99, &[]);
    for (name, value) in
        [("HSA_SIM", "gpus=x"), ("HSA_VMM_PROFILE", "hip9"), ("HSA_VMM_PAGE_TABLES", "yes")]
    {
        let output = program.on_simulation("gpus=1").env(name, value).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.starts_with("libhsavmm: ") && errors.contains(name), "{name}: {errors}");
        assert!(!errors.contains("no runtime"), "{name}: {errors}");
        assert!(!errors.contains("HSA_VMM_RUNTIME"), "{name}: {errors}");
    }
}

#[test]
fn failed_calls_are_logged_as_warnings() {
    let program = Program::compile("tests/c/import.c", Language::C99, &[]);
    let log = |level: &str| {
        let mut command = program.on_simulation("gpus=1");
        let output = command.env("HSA_VMM_LOG", level).output().unwrap();
        expect_success(&output, level);
        String::from_utf8(output.stderr).unwrap()
    };
    let warnings = log("warn");
    let line = "WARN hsavmm: hipMemImportFromShareableHandle: `os_handle`";
    assert!(warnings.contains(line), "{warnings}");
    assert!(!log("error").contains("hipMemImportFromShareableHandle"));
}

#[test]
fn unwritable_log_does_not_end_the_program() {
    let program = Program::compile("tests/c/import.c", Language::C99, &[]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = program.on_simulation("gpus=1");
    let output = command.env("HSA_VMM_LOG", "warn").stderr(full).output().unwrap();
    assert_eq!(expect_success(&output, "/dev/full"), "all checks passed\n");
}
