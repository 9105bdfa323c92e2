//! The command on AMD's own runtime, unmodified, in three releases, over the emulated driver.

mod hsa_vmm;

use hsa_rocr::{Installation, test};
use hsa_vmm::{HSA_VMM, command, err, json, out, run};
use std::path::Path;
use std::process::Output;

/// Runs `hsa-vmm emulate OPTIONS -- hsa-vmm ARGUMENTS` on a release.
fn emulated(installation: &Installation, options: &[&str], arguments: &[&str]) -> Output {
    let release = installation.release().version();
    let start = ["emulate", "--rocr", release].into_iter().chain(options.iter().copied());
    let all: Vec<_> = start.chain(["--", HSA_VMM]).chain(arguments.iter().copied()).collect();
    run(&all)
}

#[test]
fn conform_passes_on_every_release() {
    let name = "conform_passes_on_every_release";
    for installation in test::selected_installations(name) {
        let release = installation.release();
        for gpus in [2, 8] {
            let options = ["--gpus", &gpus.to_string()];
            let output = emulated(installation, &options, &["conform", "--format", "json"]);
            assert_eq!(output.status.code(), Some(0), "{release}: {}", err(&output));
            let report = json(&output);
            let path = report["runtime"]["path"].as_str().unwrap();
            assert!(Path::new(path).starts_with(installation.root()), "{release}: {path}");
            assert_eq!(report["agents"].as_array().unwrap().len(), gpus + 1, "{release}");
            let names = |status: &str| {
                let cases = report["cases"].as_array().unwrap().iter();
                let matching = cases.filter(|case| case["status"] == status);
                matching.map(|case| case["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            assert!(names("fail").is_empty(), "{release}: {:?}", names("fail"));
            // The cases for runtimes with fewer features are skipped.
            let mut skipped = names("skip");
            skipped.sort();
            let expected = [
                "access.set.agent_out_of_reach",
                "access.set.cpu_without_large_bar",
                "runtime.virtual_memory.refused_if_absent",
            ];
            assert_eq!(skipped, expected, "{release}");
            assert!(names("pass").len() >= 330, "{release}: {}", names("pass").len());
        }
    }
}

#[test]
fn replay_agrees_on_every_release() {
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/data/cuda_h200_traces_seed1.jsonl.gz");
    let name = "replay_agrees_on_every_release";
    let replay = ["replay", file, "--tolerate", "10", "--format", "json"];
    for installation in test::selected_installations(name) {
        let output = emulated(installation, &["--gpus", "2"], &replay);
        assert_eq!(output.status.code(), Some(0), "{}: {output:?}", installation.release());
        let simulated = ["--runtime", "sim", "--gpus", "2"];
        let simulated = run(&[&replay[..], &simulated[..]].concat());
        let (mut on_amd, mut on_simulation) = (json(&output), json(&simulated));
        assert!(on_amd["operations"].as_u64().unwrap() > 100_000, "{on_amd}");
        // Addresses differ.
        on_amd["first"] = on_simulation["first"].take();
        on_simulation["first"] = on_amd["first"].clone();
        assert_eq!(on_amd, on_simulation, "{}", installation.release());
    }
}

#[test]
fn emulate_finds_fetched_rocminfo() {
    let name = "emulate_finds_fetched_rocminfo";
    if test::installations(name).is_none() {
        return;
    }
    for gpus in [2, 8] {
        let number = gpus.to_string();
        // PATH contains no other rocminfo.
        let output = command(&["emulate", "--gpus", &number, "--", "rocminfo"])
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let shown = out(&output);
        assert_eq!(shown.matches("Device Type:             GPU").count(), gpus, "{shown}");
        assert!(err(&output).contains("7.2.4"), "{}", err(&output));
    }
}

#[test]
fn amds_runtime_without_driver_exits_with_3() {
    let name = "amds_runtime_without_driver_exits_with_3";
    if Path::new("/dev/kfd").exists() {
        eprintln!("not tested: this machine has a /dev/kfd");
        return;
    }
    for installation in test::selected_installations(name) {
        let release = installation.release().version();
        for subcommand in [&["info"][..], &["conform"], &["info", "--format", "json"]] {
            let start = ["rocr", "run", "--version", release, "--", HSA_VMM];
            let output = run(&[&start[..], subcommand].concat());
            assert_eq!(output.status.code(), Some(3), "{release}: {output:?}");
            for word in ["hsa_init", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", "/dev/kfd is missing"] {
                assert!(err(&output).contains(word), "{release}: {word}: {}", err(&output));
            }
            assert!(out(&output).is_empty(), "{}", out(&output));
        }
    }
}

#[test]
fn emulate_logs_failing_driver_calls() {
    let name = "emulate_logs_failing_driver_calls";
    for installation in test::selected_installations(name) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let options = ["--fault", "ALLOC_MEMORY_OF_GPU=ENOMEM", "--log", log.to_str().unwrap()];
        let arguments = ["conform", "--filter", "create.*", "--format", "json"];
        let output = emulated(installation, &options, &arguments);
        let release = installation.release();
        assert_eq!(output.status.code().unwrap(), 3, "{release}: {}", err(&output));
        let log = std::fs::read_to_string(log).unwrap();
        let failed =
            log.lines().any(|line| line.contains("ALLOC_MEMORY_OF_GPU") && line.contains("ENOMEM"));
        assert!(failed, "{release}: {log}");
    }
}

#[test]
fn emulate_writes_page_tables() {
    let name = "emulate_writes_page_tables";
    for installation in test::selected_installations(name) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page tables");
        let options = ["--gpus", "2", "--page-tables", file.to_str().unwrap()];
        let output = emulated(installation, &options, &["info"]);
        let release = installation.release();
        assert!(output.status.success(), "{release}: {output:?}");
        let text = std::fs::read_to_string(file).unwrap();
        let heads = text.lines().filter(|line| line.starts_with("gpu ")).count();
        assert_eq!(heads, 2, "{release}: {text}");
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("buffers ") && last.contains("descriptors "), "{release}: {last}");
    }
}

#[test]
fn emulate_keeps_exit_status_of_programs() {
    let output = run(&["emulate", "--", "sh", "-c", "cat /proc/version; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(out(&output), std::fs::read_to_string("/proc/version").unwrap());
    let output = run(&["emulate", "--", "sh", "-c", "kill -TERM $$"]);
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(15), "{output:?}");
    let output = run(&["emulate", "--gpus", "3", "--", "ls", "/dev/dri"]);
    assert_eq!(out(&output).lines().filter(|name| name.starts_with("renderD")).count(), 3);
}

#[test]
fn emulate_names_missing_program() {
    for arguments in [&["emulate", "--", "/nowhere/rocminfo"][..], &["emulate", "--", "no-such"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(err(&output).contains(arguments[2]), "{}", err(&output));
    }
    for arguments in [&["emulate"][..], &["rocr"], &["rocr", "run"], &["emulate", "--gpus", "9"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["rocr", "fetch", "--version", "5.0"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(err(&output).contains("6.4.3"), "{}", err(&output));
}

#[test]
fn missing_release_error_says_what_to_do() {
    let empty = tempfile::tempdir().unwrap();
    for arguments in [
        &["rocr", "run", "--", "true"][..],
        &["rocr", "run", "--version", "6.1.2", "--", "true"],
        &["emulate", "--rocr", "6.4.3", "--", "true"],
    ] {
        let output = command(arguments).env("HSA_VMM_ROCR", empty.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(err(&output).contains("rocr fetch"), "{}", err(&output));
    }
    let output = command(&["rocr", "list"]).env("HSA_VMM_ROCR", empty.path()).output().unwrap();
    assert!(output.status.success() && err(&output).contains("rocr fetch"), "{output:?}");
}

#[test]
fn fetch_without_mirror_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(&["rocr", "fetch"])
        .env("HSA_VMM_ROCR", folder.path())
        .env("HSA_VMM_MIRROR", "file:///nowhere/debian")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(err(&output).contains("cannot fetch AMD's runtime"), "{}", err(&output));
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files, ["lock"]);
}

#[test]
fn conform_passes_on_every_profile_and_release() {
    let name = "conform_passes_on_every_profile_and_release";
    // Cases that need the CPU are skipped in profiles in which the CPU cannot access all memory.
    for (profile, gpu, passed) in
        [("mi210", "gfx90a", 230), ("rdna3", "gfx1100", 220), ("apu", "gfx1103", 220)]
    {
        for installation in test::selected_installations(name) {
            let options = ["--gpus", "2", "--machine", profile];
            let output = emulated(installation, &options, &["conform", "--format", "json"]);
            let release = installation.release();
            assert_eq!(output.status.code(), Some(0), "{profile}, {release}: {}", err(&output));
            let report = json(&output);
            let names: Vec<_> =
                report["agents"].as_array().unwrap().iter().map(|agent| &agent["name"]).collect();
            assert_eq!(names[1..], [gpu, gpu], "{profile}, {release}");
            let summary = &report["summary"];
            assert_eq!(summary["failed"], 0, "{profile}, {release}: {summary}");
            assert!(
                summary["passed"].as_u64().unwrap() >= passed,
                "{profile}, {release}: {summary}"
            );
        }
    }
}
