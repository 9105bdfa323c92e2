//! `hsa-vmm fuzz` finds failures of a broken runtime, shrinks and saves the failing sequence, and prints a command that
//! repeats the failure. On a correct runtime, `fuzz` finds nothing.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::test;
use run_command::{HSA_VMM, command, json, run, stderr, stdout};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Output;

/// Runs fuzz in a folder and returns its JSON report.
fn fuzz(folder: &Path, arguments: &[&str]) -> (Value, Output) {
    let words = [&["fuzz", "--format", "json"], arguments].concat();
    let output = command(&words).current_dir(folder).output().unwrap();
    (json(&output), output)
}

/// Runs fuzz on a release of AMD's runtime and the emulated driver. `fault` may be empty.
fn fuzz_on(release: &str, fault: &str, folder: &Path, arguments: &[&str]) -> (Value, Output) {
    let mut words = vec!["emulate", "--gpus", "2", "--rocr", release];
    if !fault.is_empty() {
        words.extend(["--fault", fault]);
    }
    words.extend(["--", HSA_VMM, "fuzz", "--format", "json"]);
    words.extend(arguments);
    let output = command(&words).current_dir(folder).output().unwrap();
    // Print the seed: cargo shows this output if the test fails.
    println!("{release}: {}", stderr(&output));
    (json(&output), output)
}

/// Runs the command that `fuzz` printed, in the same folder, in a shell.
fn run_printed_command(folder: &Path, finding: &Value) -> Output {
    let line = finding["command"].as_str().unwrap();
    let mut shell = std::process::Command::new("sh");
    for (name, _) in std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HSA_") && name != "HSA_VMM_ROCR")
    {
        shell.env_remove(name);
    }
    shell.env("HSA_VMM_ROCR", hsa_rocr::folder().unwrap());
    shell.args(["-c", line]).current_dir(folder).output().unwrap()
}

/// Checks that `fuzz` finds a fault, shrinks and saves the failing sequence, and prints a command that repeats the
/// failure. Checks that the saved sequence passes without the fault.
fn assert_found(faults: &str, kind: &str, message: &str, max_operations: usize) {
    let folder = tempfile::tempdir().unwrap();
    let simulation = format!("gpus=2,era=c,faults={faults}");
    // With one process, the first finding does not depend on the load of this computer.
    let options = ["--processes", "1", "--seed", "7", "--time", "60s", "--time-limit", "5s"];
    let (report, output) = fuzz(folder.path(), &[&["--sim", &simulation], &options[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{faults}: {output:?}");
    let finding = &report["finding"];
    assert_eq!(finding["kind"], kind, "{finding}");
    assert!(finding["words"].as_str().unwrap().contains(message), "{finding}");
    assert_eq!(finding["reproduced"], true, "{finding}");
    // The simulation is deterministic, so the first attempt repeats the failure.
    assert_eq!(
        (finding["seen"].as_u64(), finding["tries"].as_u64()),
        (Some(1), Some(1)),
        "{finding}"
    );
    let sequences = finding["sequences"].as_array().unwrap();
    let operations = sequences[0]["operations"].as_array().unwrap();
    assert!(sequences.len() == 1 && operations.len() <= max_operations, "{faults}: {finding:#}");
    let repeated = run_printed_command(folder.path(), finding);
    assert_eq!(repeated.status.code(), Some(1), "{faults}: {}", stderr(&repeated));
    assert!(stdout(&repeated).contains(message), "{faults}: {repeated:?}");
    // Without the fault, the sequence does not fail.
    let file = folder.path().join(finding["file"].as_str().unwrap());
    let file = file.to_str().unwrap();
    let correct = run(&["replay", "--runtime", "sim", "--gpus", "2", file]);
    assert_eq!(correct.status.code(), Some(0), "{faults}: {}", stdout(&correct));
    assert!(
        stdout(&correct).contains("did not fail again; the recorded failure was: "),
        "{}",
        stdout(&correct)
    );
}

/// Returns the time for which `fuzz` searches.
fn duration() -> &'static str {
    if test::is_long() { "4s" } else { "2s" }
}

#[test]
fn fuzz_finds_nothing_on_the_simulation() {
    let folder = tempfile::tempdir().unwrap();
    let (report, output) =
        fuzz(folder.path(), &["--runtime", "sim", "--processes", "2", "--time", duration()]);
    // Print the seed: cargo shows this output if the test fails.
    println!("{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!(report["finding"], Value::Null);
    assert!(report["sequences"].as_u64().unwrap() >= 20, "{report}");
    assert!(stderr(&output).contains(&format!("seed {}", report["seed"])), "{}", stderr(&output));
}

#[test]
fn fuzz_with_faults_finds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--runtime", "sim", "--processes", "2", "--faults", "--time", duration()];
    let (report, output) = fuzz(folder.path(), &arguments);
    println!("{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert!(report["sequences"].as_u64().unwrap() >= 20, "{report}");
}

#[test]
fn fuzz_finds_nothing_on_amds_releases() {
    let name = "fuzz_finds_nothing_on_amds_releases";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let release = release.version();
        let folder = tempfile::tempdir().unwrap();
        let options = ["--processes", "2", "--time", "3s"];
        let (report, output) = fuzz_on(release, "", folder.path(), &options);
        assert_eq!(output.status.code(), Some(0), "{release}: {report:#}");
        assert!(report["sequences"].as_u64().unwrap() >= 5, "{release}: {report}");
        assert!(stderr(&output).contains("libhsa-runtime64"), "{release}: {}", stderr(&output));
    }
}

#[test]
fn fuzz_finds_failing_call() {
    assert_found("hsa_amd_vmem_unmap#2=ERROR", "difference", "HSA_STATUS_ERROR", 6);
}

#[test]
fn fuzz_finds_failing_allocation() {
    assert_found("hsa_amd_vmem_handle_create#3-=OUT_OF_RESOURCES", "difference", "create", 2);
}

#[test]
fn hang_at_the_start_names_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let hang = "gpus=1,vram=1g,faults=hsa_amd_vmem_address_reserve_align=hang";
    let options = ["--processes", "1", "--seed", "7", "--time-limit", "1s", "--shrink", "1s"];
    let (report, output) = fuzz(folder.path(), &[&["--sim", hang], &options[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "at the start: it did not end within 1s, in hsa_amd_vmem_address_reserve_align";
    assert_eq!(report["finding"]["words"], expected, "{report:#}");
    // No operation is needed.
    assert_eq!(report["finding"]["sequences"][0]["operations"].as_array().map(Vec::len), Some(0));
}

#[test]
fn hang_at_the_end_of_the_time_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let hang = "gpus=1,vram=1g,faults=hsa_amd_vmem_map#5=hang";
    let options = ["--processes", "1", "--seed", "7", "--time", "1s", "--time-limit", "2s"];
    let options = [&options[..], &["--shrink", "0s"]].concat();
    let (report, output) = fuzz(folder.path(), &[&["--sim", hang], &options[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(report["finding"]["kind"], "hang", "{report:#}");
}

#[test]
fn fuzz_passes_without_peer_access_or_large_bar() {
    let folder = tempfile::tempdir().unwrap();
    for machine in ["gpus=2,peer-access=off", "gpus=2,large-bar=off"] {
        let options = ["--processes", "1", "--seed", "1", "--sequences", "20"];
        let (report, output) = fuzz(folder.path(), &[&["--sim", machine], &options[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{machine}: {report:#}");
    }
}

#[test]
fn contents_are_compared_without_large_bar() {
    let folder = tempfile::tempdir().unwrap();
    let garbled = "gpus=2,large-bar=off,faults=hsa_amd_memory_async_copy=garbled";
    let options = ["--processes", "1", "--seed", "1", "--sequences", "200", "--shrink", "0s"];
    let (report, output) = fuzz(folder.path(), &[&["--sim", garbled], &options[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["finding"]["kind"], "difference", "{report:#}");
}

#[test]
fn runtime_that_hangs_at_its_start_is_reported() {
    let name = "runtime_that_hangs_at_its_start_is_reported";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let version = release.version();
        for (plan, expected) in [
            ("ACQUIRE_VM=hang", "it hung: did not end within 2 s, in hsa_init"),
            (
                "ACQUIRE_VM=crash",
                "it crashed: SIGABRT (aborted: a failed assertion, or a GPU fault), in hsa_init",
            ),
        ] {
            let emulate = ["emulate", "--rocr", version, "--fault", plan, "--"];
            let output = run(&[&emulate[..], &[HSA_VMM, "fuzz", "--time-limit", "2s"]].concat());
            assert_eq!(output.status.code(), Some(3), "{version}: {output:?}");
            let text = stderr(&output);
            assert!(text.contains(&format!("while the runtime started, {expected}")), "{text}");
        }
    }
}

#[test]
fn fuzz_finds_and_repeats_driver_fault() {
    let name = "fuzz_finds_and_repeats_driver_fault";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let release = release.version();
        let folder = tempfile::tempdir().unwrap();
        let options = ["--processes", "1", "--seed", "7", "--shrink", "3s"];
        let fault = "GEM_VA#30-1000000=ENOMEM";
        let (report, output) = fuzz_on(release, fault, folder.path(), &options);
        assert_eq!(output.status.code(), Some(1), "{release}: {output:?}");
        let finding = &report["finding"];
        assert_eq!(finding["reproduced"], true, "{release}: {finding:#}");
        let repeated = run_printed_command(folder.path(), finding);
        assert_eq!(repeated.status.code(), Some(1), "{release}: {repeated:?}");
        assert!(stderr(&repeated).contains("libhsa-runtime64"), "{release}: {repeated:?}");
        // Without the fault, `replay` runs the sequence in 16 processes, because addresses differ between processes.
        let file = folder.path().join(finding["file"].as_str().unwrap());
        let emulated = ["emulate", "--gpus", "2", "--rocr", release, "--", HSA_VMM];
        let replay = ["replay", "--format", "json", file.to_str().unwrap()];
        let correct = run(&[&emulated[..], &replay].concat());
        assert_eq!(correct.status.code(), Some(0), "{release}: {correct:?}");
        assert_eq!(json(&correct)["tries"], 16, "{release}: {correct:?}");
    }
}

#[test]
fn fuzz_finds_repeated_leak_of_driver() {
    let name = "fuzz_finds_repeated_leak_of_driver";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let release = release.version();
        for (fault, before, after) in [
            ("EXPORT_DMABUF=leak", "", " descriptors"),
            ("GEM_CLOSE=leak", "memory of GPUs [", "]"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let options = ["--processes", "1", "--time", "60s", "--shrink", "500ms"];
            let (report, output) = fuzz_on(release, fault, folder.path(), &options);
            assert_eq!(output.status.code(), Some(1), "{release}, {fault}: {report:#}");
            let finding = &report["finding"];
            assert_eq!(finding["reproduced"], true, "{release}, {fault}: {finding:#}");
            let words = finding["words"].as_str().unwrap();
            let (_, values) = words.split_once("resources of the process: expected ").expect(words);
            let (expected, found) = values.split_once(", found ").expect(words);
            let amount = |text: &str| {
                let (_, text) = text.split_once(before)?;
                text.split_once(after).map(|(amount, _)| amount.to_owned())
            };
            let (expected, found) = (amount(expected), amount(found));
            assert!(expected.is_some() && found.is_some(), "{release}, {fault}: {words}");
            assert_ne!(expected, found, "{release}, {fault}: {words}");
        }
    }
}

#[test]
fn fuzz_tolerates_resource_kept_once() {
    let name = "fuzz_tolerates_resource_kept_once";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let release = release.version();
        let folder = tempfile::tempdir().unwrap();
        let options = ["--processes", "1", "--seed", "7", "--sequences", "30"];
        // The thirty sequences make more than 25 exports.
        let fault = "EXPORT_DMABUF#25=leak";
        let (report, output) = fuzz_on(release, fault, folder.path(), &options);
        assert_eq!(output.status.code(), Some(0), "{release}: {report:#}");
    }
}

#[test]
fn fuzz_finds_single_leak_of_simulation() {
    assert_found("hsa_amd_vmem_handle_release#3=leak", "difference", "video memory", 4);
    assert_found("hsa_amd_vmem_address_free#3=leak", "difference", "still reserved", 4);
    assert_found("hsa_amd_vmem_export_shareable_handle#5=leak", "difference", "", 12);
}

#[test]
fn seed_is_independent_of_number_of_processes() {
    let folder = tempfile::tempdir().unwrap();
    let operations = ["1", "3"].map(|processes| {
        let options = ["--runtime", "sim", "--seed", "3", "--sequences", "60", "--format", "json"];
        let words = [&["fuzz", "--processes", processes], &options[..]].concat();
        let output = command(&words).current_dir(folder.path()).output().unwrap();
        let report = json(&output);
        assert_eq!(report["sequences"], 60, "{report}");
        // Compare only this number: the number of rejected operations depends on addresses, which vary.
        report["operations"].clone()
    });
    assert_eq!(operations[0], operations[1]);
}

#[test]
fn fuzz_rejects_invalid_arguments() {
    let faults_twice = ["fuzz", "--sim", "faults=hsa_amd_vmem_map#5=ERROR", "--faults"];
    for (arguments, status, message) in [
        (&["fuzz", "--time", "soon"][..], 2, "soon"),
        (&["fuzz", "--processes", "0"], 2, "--processes"),
        (&["fuzz", "--sequences", "0"], 2, "--sequences"),
        (&["fuzz", "--runtime", "/nowhere/libhsa-runtime64.so.1"], 3, "/nowhere"),
        (&faults_twice, 2, "has faults, too"),
        (&["fuzz", "--save", "/tmp/x", "-o", "/tmp/x"], 2, "write to the same file"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
}

#[test]
fn fuzz_prints_sequence_that_cannot_be_saved() {
    let faults = "gpus=1,faults=hsa_amd_vmem_handle_create#1-=OUT_OF_RESOURCES";
    let prints_sequence = |file: &str| {
        let output = run(&["fuzz", "--sim", faults, "--save", file, "--processes", "1"]);
        let status = if file.starts_with("/dev") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(stderr(&output).contains(file), "{}", stderr(&output));
        for wrong in ["saved as", "reproduce:"] {
            assert!(!stdout(&output).contains(wrong), "{}", stdout(&output));
        }
        stdout(&output).contains("\"operations\"")
    };
    assert!(prints_sequence("/dev/full"), "a full disk");
    assert!(!prints_sequence("/nowhere/found.jsonl"), "the path is checked before running");
    let words = ["fuzz", "--sim", faults, "--save", "/dev/full", "--processes", "1"];
    let output = run(&[&words[..], &["--format", "ktap"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stdout(&output).contains("\nnot ok 1 fuzz"), "{}", stdout(&output));
    let output = run(&[&words[..], &["--format", "json"]].concat());
    assert!(json(&output)["finding"]["file"].is_null(), "{output:?}");
}

#[test]
fn fuzz_saves_to_a_path_that_is_not_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let faults = "gpus=1,faults=hsa_amd_vmem_handle_create#1-=OUT_OF_RESOURCES";
    let words = ["fuzz", "--runtime", "sim", "--sim", faults, "--processes", "1"];
    let mut command = command(&[&words[..], &["--format", "json", "--save"]].concat());
    let name = OsStr::from_bytes(b"f\xff.jsonl");
    let output = command.arg(name).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let finding = &json(&output)["finding"];
    assert_eq!(finding["file"], "f\u{fffd}.jsonl");
    // A runtime in HSA_VMM_RUNTIME does not replace the machine of the sequence.
    let command = finding["command"].as_str().unwrap();
    assert!(command.contains("replay --runtime sim"), "{command}");
    assert!(folder.path().join(name).exists());
}

#[test]
fn map_until_shows_state_within_sequence() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../conformance/tests/regressions/fuzz/descriptor_kept_by_the_runtime.jsonl"
    );
    let output = run(&["map", "--runtime", "sim", "--until", "3", file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        stderr(&output).contains("sequence 8517 (seed 1), after 3 of 5"),
        "{}",
        stderr(&output)
    );
    assert!(stdout(&output).contains("2 mappings of 8 KiB"), "{}", stdout(&output));
}

#[test]
fn replay_rejects_traces_mixed_with_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let trace = r#"{"seed":7,"trace":0,"granule":2097152,"devices":1,"ops":[]}"#;
    let sequence = r#"{"seed":7,"number":0,"machine":"gpus=1","operations":[]}"#;
    for (name, lines) in [("one", [trace, sequence]), ("other", [sequence, trace])] {
        let path = folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        let output = run(&["replay", "--runtime", "sim", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        assert!(stderr(&output).contains("split the file"), "{}", stderr(&output));
    }
    // `replay` rejects a sequence with an invalid machine.
    let path = folder.path().join("machine");
    std::fs::write(&path, r#"{"seed":7,"number":0,"machine":"gpus=none","operations":[]}"#)
        .unwrap();
    let output = run(&["replay", "--runtime", "sim", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("gpus=none"), "{output:?}");
    // `--tolerate` would have no effect.
    std::fs::write(&path, sequence).unwrap();
    let output = run(&["replay", "--runtime", "sim", "--tolerate", "1", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--tolerate"), "{output:?}");
}

#[test]
fn fuzz_does_not_overwrite_files() {
    let folder = tempfile::tempdir().unwrap();
    let faults = "gpus=1,faults=hsa_amd_vmem_handle_create#1-=OUT_OF_RESOURCES";
    let options = ["--sim", faults, "--processes", "1", "--seed", "7", "--shrink", "100ms"];
    let (first, _) = fuzz(folder.path(), &options);
    let name = first["finding"]["file"].as_str().unwrap();
    assert!(name.starts_with("fuzz-7-") && folder.path().join(name).exists(), "{name}");
    // The name is predictable, so another user could create a link with this name.
    let target = folder.path().join("target");
    std::fs::write(&target, "of the user").unwrap();
    std::fs::remove_file(folder.path().join(name)).unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join(name)).unwrap();
    let (second, output) = fuzz(folder.path(), &options);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "of the user");
    let new_name = second["finding"]["file"].as_str().unwrap();
    assert_ne!(new_name, name);
    let saved = std::fs::read_to_string(folder.path().join(new_name)).unwrap();
    assert!(saved.contains("\"operations\""), "{saved}");
    // fuzz does not create the target of a dangling link, and keeps existing files.
    std::fs::remove_file(&target).unwrap();
    fuzz(folder.path(), &options);
    assert!(!target.exists());
    assert_eq!(std::fs::read_to_string(folder.path().join(new_name)).unwrap(), saved);
}
