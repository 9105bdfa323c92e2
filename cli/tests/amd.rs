//! Tests the command on three releases of AMD's own, unmodified runtime, with the emulated driver.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use flate2::read::MultiGzDecoder;
use hsa_rocr::{Emulation, FetchedRelease, Release, test};
use run_command::{HSA_VMM, command, json, run, stderr, stdout};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output};

/// Returns the command `hsa-vmm emulate OPTIONS -- hsa-vmm ARGUMENTS` on a release.
fn emulated(fetched: &FetchedRelease, options: &[&str], arguments: &[&str]) -> Command {
    let release = fetched.release();
    let start = ["emulate", "--rocr", release.version()].into_iter().chain(options.iter().copied());
    let words: Vec<_> = start.chain(["--", HSA_VMM]).chain(arguments.iter().copied()).collect();
    command(&words)
}

/// Runs `hsa-vmm emulate OPTIONS -- hsa-vmm ARGUMENTS` on a release.
fn run_emulated(fetched: &FetchedRelease, options: &[&str], arguments: &[&str]) -> Output {
    emulated(fetched, options, arguments).output().expect("the command starts")
}

#[test]
fn conform_passes_on_every_release() {
    let name = "conform_passes_on_every_release";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        for gpus in [2, 8].into_iter().take(test::count_to_run(2)) {
            let options = ["--gpus", &gpus.to_string()];
            let output = run_emulated(fetched, &options, &["conform", "--format", "json"]);
            assert_eq!(output.status.code(), Some(0), "{release}: {}", stderr(&output));
            let report = json(&output);
            let path = report["runtime"]["path"].as_str().unwrap();
            assert!(Path::new(path).starts_with(fetched.root()), "{release}: {path}");
            assert_eq!(report["agents"].as_array().unwrap().len(), gpus + 1, "{release}");
            let names = |status: &str| {
                let cases = report["cases"].as_array().unwrap().iter();
                let matching = cases.filter(|case| case["status"] == status);
                matching.map(|case| case["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            assert!(names("fail").is_empty(), "{release}: {:?}", names("fail"));
            // The skipped cases are for runtimes with fewer features, need control of page tables, or need a driver
            // that reports where memory is.
            let mut skipped = names("skip");
            skipped.sort();
            let expected = [
                "access.enforced.after_free",
                "access.enforced.after_revoke",
                "access.enforced.after_unmap",
                "access.enforced.every_offset",
                "access.enforced.importer_by_dma",
                "access.enforced.importer_by_kernels",
                "access.enforced.owner_by_dma",
                "access.enforced.owner_by_kernels",
                "access.enforced.peer_by_dma",
                "access.enforced.peer_by_kernels",
                "access.enforced.under_load",
                "access.gpus.memory_stays_in_vram",
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
fn probes_are_reported_after_a_crash_at_stop() {
    for fetched in test::fetch_selected_releases("probes_are_reported_after_a_crash_at_stop") {
        let options = ["--fault", "DESTROY_QUEUE=crash"];
        let conform = ["conform", "--filter", "map.memory.whole_handle", "--format", "json"];
        let report = json(&run_emulated(fetched, &options, &conform));
        let mut cases = report["cases"].as_array().unwrap().iter();
        assert!(cases.any(|case| case["name"] == "runtime.library.stops"), "{report}");
        assert!(report["runtime"]["probes"].is_array(), "{report}");
    }
}

#[test]
fn conform_passes_with_controlled_page_tables() {
    let name = "conform_passes_with_controlled_page_tables";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let conform = ["conform", "--page-tables", "--format", "json"];
        let mut report = Value::Null;
        // In the first mode, the driver writes page-table entries and flushes the TLB at once. In the second mode, the
        // driver flushes the TLB only when the library waits. In the third mode, the driver also writes entries only
        // when the library waits.
        for mode in ["", "tlb=on,split_bug=on", "pte_delay=600s,tlb=on,split_bug=on"] {
            let context = format!("{release} {mode:?}");
            let mut command = emulated(fetched, &["--gpus", "2"], &conform);
            let output = command.env("HSA_KFD", mode).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{context}: {}", stderr(&output));
            report = json(&output);
            let passed = report["summary"]["passed"].as_u64().unwrap();
            assert!(passed >= 330, "{context}: {passed}");
            let cases = report["cases"].as_array().unwrap().iter();
            let enforced = cases.filter(|case| {
                case["name"].as_str().unwrap().starts_with("access.enforced.")
                    && case["status"] == "pass"
            });
            assert_eq!(enforced.count(), 11, "{context}");
            for agent in report["agents"].as_array().unwrap() {
                assert_eq!(agent["enforcement"], "enforced", "{context}: {agent}");
            }
            assert_eq!(report["runtime"]["barrier_failure"], "", "{context}");
        }
        let reproduce = report["run"]["provenance"]["reproduce"].as_str().unwrap();
        assert!(reproduce.ends_with("conform --page-tables"), "{reproduce}");
        let info = stdout(&run_emulated(fetched, &["--gpus", "2"], &["info"]));
        assert!(info.contains("page tables           can be controlled"), "{info}");
    }
}

#[test]
fn replay_matches_simulation_on_every_release() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/data");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traces.jsonl");
    let all_traces = File::open(data.join("cuda_h200_traces_seed1.jsonl.gz")).unwrap();
    let traces = BufReader::new(MultiGzDecoder::new(all_traces)).lines();
    let traces: Vec<_> = traces.take(test::count_to_run(1500)).map(Result::unwrap).collect();
    std::fs::write(&file, traces.join("\n")).unwrap();
    let name = "replay_matches_simulation_on_every_release";
    let replay = ["replay", file.to_str().unwrap(), "--tolerate", "10", "--format", "json"];
    for fetched in test::fetch_selected_releases(name) {
        let output = run_emulated(fetched, &["--gpus", "2"], &replay);
        assert_eq!(output.status.code(), Some(0), "{}: {output:?}", fetched.release());
        let simulated = ["--runtime", "sim", "--gpus", "2"];
        let simulated = run(&[&replay[..], &simulated[..]].concat());
        let (mut on_amd, mut on_simulation) = (json(&output), json(&simulated));
        assert!(on_amd["operations"].as_u64().unwrap() > 10_000, "{on_amd}");
        // The first divergence contains addresses, which differ.
        on_amd["first"] = on_simulation["first"].take();
        on_simulation["first"] = on_amd["first"].clone();
        assert_eq!(on_amd, on_simulation, "{}", fetched.release());
    }
}

#[test]
fn emulate_finds_fetched_rocminfo() {
    let name = "emulate_finds_fetched_rocminfo";
    if test::fetch_releases(name).is_none() {
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
        let text = stdout(&output);
        assert_eq!(text.matches("Device Type:             GPU").count(), gpus, "{text}");
        assert!(stderr(&output).contains("7.2.4"), "{}", stderr(&output));
    }
}

#[test]
fn amds_runtime_without_driver_exits_with_3() {
    let name = "amds_runtime_without_driver_exits_with_3";
    if Path::new("/dev/kfd").exists() {
        eprintln!("not tested: this machine has a /dev/kfd");
        return;
    }
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        for subcommand in [&["info"][..], &["conform"], &["info", "--format", "json"]] {
            let start = ["rocr", "run", "--rocr", release.version(), "--", HSA_VMM];
            let output = run(&[&start[..], subcommand].concat());
            assert_eq!(output.status.code(), Some(3), "{release}: {output:?}");
            for word in ["hsa_init", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", "/dev/kfd is missing"] {
                assert!(stderr(&output).contains(word), "{release}: {word}: {}", stderr(&output));
            }
            assert!(stdout(&output).is_empty(), "{}", stdout(&output));
        }
    }
}

#[test]
fn emulate_logs_failing_driver_calls() {
    let name = "emulate_logs_failing_driver_calls";
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let options = ["--fault", "ALLOC_MEMORY_OF_GPU=ENOMEM", "--log", log.to_str().unwrap()];
        let arguments = ["conform", "--filter", "create.*", "--format", "json"];
        let output = run_emulated(fetched, &options, &arguments);
        let release = fetched.release();
        assert_eq!(output.status.code().unwrap(), 3, "{release}: {}", stderr(&output));
        let log = std::fs::read_to_string(log).unwrap();
        let failed =
            log.lines().any(|line| line.contains("ALLOC_MEMORY_OF_GPU") && line.contains("ENOMEM"));
        assert!(failed, "{release}: {log}");
    }
}

/// `conform` prints the failure first. Titles precede the context of the failure, and the source of the case. The report
/// contains the driver's requests also if the user chose a file for the driver's log.
#[test]
fn context_of_a_failed_case_has_a_title() {
    for fetched in test::fetch_selected_releases("context_of_a_failed_case_has_a_title") {
        let case = "map.memory.whole_handle";
        let arguments = ["conform", "--failures-only", "--filter", case];
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let options = ["--fault", "GEM_VA.MAP=ENOMEM", "--log", log.to_str().unwrap()];
        for options in [&options[..2], &options] {
            let output = run_emulated(fetched, options, &arguments);
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            let text = stdout(&output);
            let (_, text) =
                text.split_once(&format!("\n{case}\n  ")).unwrap_or_else(|| panic!("{text}"));
            let mut rest = text;
            for part in [
                "should have succeeded: cannot set access",
                "\n  requests that failed during the case:\n    | driver: ",
                " GEM_VA ",
                " = ENOMEM ",
                "\n  expected by: ",
                "\n  reproduce: ",
                "bringup",
            ] {
                let position = rest
                    .find(part)
                    .unwrap_or_else(|| panic!("{part:?} is not in its place: {text}"));
                rest = &rest[position + part.len()..];
            }
        }
        assert!(std::fs::read_to_string(log).unwrap().contains("GEM_VA"));
    }
}

#[test]
fn provoked_gpu_faults_are_no_failed_requests() {
    let name = "provoked_gpu_faults_are_no_failed_requests";
    let Some(releases) = test::fetch_releases(name) else { return };
    let options = ["--gpus", "2", "--fault", "GEM_VA.REPLACE#3=lost"];
    let case = ["conform", "--page-tables", "--filter", "access.enforced.peer_by_dma"];
    let conform = [&case[..], &["--format", "json"]].concat();
    for fetched in releases {
        let report = json(&run_emulated(fetched, &options, &conform));
        let case = &report["cases"][0];
        let detail = case["detail"].as_str().unwrap();
        assert!(detail.contains("reads with access \"none\": no fault: "), "{case}");
        assert!(case["output"].as_str().unwrap().contains(" fault at "), "{case}");
        assert_eq!(case["failed_requests"], serde_json::Value::Null, "{case}");
    }
}

#[test]
fn emulate_writes_page_tables() {
    let name = "emulate_writes_page_tables";
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page tables");
        let options = ["--gpus", "2", "--page-tables", file.to_str().unwrap()];
        let output = run_emulated(fetched, &options, &["info"]);
        let release = fetched.release();
        assert!(output.status.success(), "{release}: {output:?}");
        let text = std::fs::read_to_string(file).unwrap();
        let headings = text.lines().filter(|line| line.starts_with("gpu ")).count();
        assert_eq!(headings, 2, "{release}: {text}");
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("buffers ") && last.contains("descriptors "), "{release}: {last}");
    }
}

#[test]
fn emulate_keeps_exit_status_of_programs() {
    let output = run(&["emulate", "--", "sh", "-c", "cat /proc/version; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(stdout(&output), std::fs::read_to_string("/proc/version").unwrap());
    let output = run(&["emulate", "--", "sh", "-c", "kill -TERM $$"]);
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(15), "{output:?}");
    let output = run(&["emulate", "--gpus", "3", "--", "ls", "/dev/dri"]);
    assert_eq!(stdout(&output).lines().filter(|name| name.starts_with("renderD")).count(), 3);
}

/// Full optimisation can break the inline assembly of the driver. The other tests use a driver that is hardly
/// optimised.
#[test]
fn optimised_driver_runs_programs() {
    let name = "optimised_driver_runs_programs";
    if !test::runs_long_test(name) {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("optimised");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "--package", "hsa-kfd", "--target-dir"]);
    let status = build.arg(&folder).status().expect("cargo starts");
    assert!(status.success(), "hsa-kfd was not built");
    for fetched in test::fetch_selected_releases(name) {
        let mut info = emulated(fetched, &["--gpus", "2"], &["info", "--format", "json"]);
        let output = info.env("HSA_VMM_KFD", folder.join("release/libhsa_kfd.so")).output();
        let output = output.expect("the command starts");
        assert_eq!(output.status.code(), Some(0), "{}: {}", fetched.release(), stderr(&output));
    }
}

#[test]
fn emulate_names_missing_program() {
    for arguments in [&["emulate", "--", "/nowhere/rocminfo"][..], &["emulate", "--", "no-such"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(stderr(&output).contains(arguments[2]), "{}", stderr(&output));
    }
    for arguments in [&["emulate"][..], &["rocr"], &["rocr", "run"], &["emulate", "--gpus", "9"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["rocr", "fetch", "5.0"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("6.4.3"), "{}", stderr(&output));
}

#[test]
fn missing_release_error_suggests_fetch() {
    let empty = tempfile::tempdir().unwrap();
    for (arguments, status) in [
        (&["rocr", "run", "--", "true"][..], 3),
        (&["rocr", "run", "--rocr", "6.1", "--", "true"], 3),
        (&["emulate", "--rocr", "6.4.3", "--", "true"], 125),
    ] {
        let output = command(arguments).env("HSA_VMM_ROCR", empty.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(stderr(&output).contains("rocr fetch"), "{}", stderr(&output));
    }
    let output = command(&["rocr", "list"]).env("HSA_VMM_ROCR", empty.path()).output().unwrap();
    assert!(output.status.success() && stderr(&output).contains("rocr fetch"), "{output:?}");
}

#[test]
fn fetch_without_mirror_leaves_only_a_lock_file() {
    // Nothing listens at port 1.
    for (mirror, messages) in [
        ("file:///nowhere/debian", &["cannot fetch AMD's runtime"][..]),
        (
            "http://127.0.0.1:1",
            &["cannot fetch AMD's runtime", "Could not connect", "HSA_VMM_MIRROR"],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(&["rocr", "fetch", "7.2.4"]);
        command.env("HSA_VMM_ROCR", folder.path()).env("HSA_VMM_MIRROR", mirror);
        let output = command.env("no_proxy", "127.0.0.1").output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        for message in messages {
            assert!(stderr(&output).contains(message), "{message}: {}", stderr(&output));
        }
        let files: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files, ["lock"]);
    }
}

#[test]
fn conform_passes_on_every_machine_and_release() {
    let name = "conform_passes_on_every_machine_and_release";
    if !test::runs_long_test(name) {
        return;
    }
    // On a machine whose CPU cannot access all GPU memory, cases with CPU accesses are skipped.
    for (machine, gpu, passed) in
        [("mi210", "gfx90a", 230), ("rdna3", "gfx1100", 220), ("apu", "gfx1103", 220)]
    {
        for fetched in test::fetch_selected_releases(name) {
            let options = ["--gpus", "2", "--machine", machine];
            let output = run_emulated(fetched, &options, &["conform", "--format", "json"]);
            let release = fetched.release();
            assert_eq!(output.status.code(), Some(0), "{machine}, {release}: {}", stderr(&output));
            let report = json(&output);
            let names: Vec<_> =
                report["agents"].as_array().unwrap().iter().map(|agent| &agent["name"]).collect();
            assert_eq!(names[1..], [gpu, gpu], "{machine}, {release}");
            let summary = &report["summary"];
            assert_eq!(summary["failed"], 0, "{machine}, {release}: {summary}");
            assert!(
                summary["passed"].as_u64().unwrap() >= passed,
                "{machine}, {release}: {summary}"
            );
        }
    }
}

#[test]
fn info_names_two_runtimes() {
    let Some(all) = test::fetch_releases("info_names_two_runtimes") else { return };
    let release = |release| all.iter().find(|it| it.release() == release).unwrap();
    let (older, newer) = (release(Release::R6_4_3), release(Release::R7_2_4));
    // The dynamic linker loads the older release, as in a program that uses HIP.
    let info = |arguments: &[&str], runtime: Option<&FetchedRelease>| {
        let mut command = newer.command(HSA_VMM);
        Emulation::with_gpus(1).apply(&mut command).unwrap();
        let is_preload = |(name, _): &(&std::ffi::OsStr, _)| *name == "LD_PRELOAD";
        let mut preload = command.get_envs().find(is_preload).unwrap().1.unwrap().to_owned();
        preload.push(":");
        preload.push(older.runtime());
        command.env("LD_PRELOAD", preload).env_remove("HSA_VMM_RUNTIME");
        if let Some(runtime) = runtime {
            command.env("HSA_VMM_RUNTIME", runtime.runtime());
        }
        let output = command.arg("info").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let file = |fetched: &FetchedRelease| fetched.runtime().canonicalize().unwrap();
    let text = |fetched: &FetchedRelease| file(fetched).display().to_string();
    let output = info(&[], None);
    assert!(stdout(&output).contains("chosen because        the process had loaded it already"));
    assert!(
        stdout(&output).contains("implementation        ROCr 1.15 (ROCm 6.4)"),
        "{}",
        stdout(&output)
    );
    assert!(!stdout(&output).contains("also loaded") && !stderr(&output).contains("warning"));

    let output = info(&[], Some(newer));
    let expected = format!(
        "also loaded           {}, build 1.15.0-local-build-unknown, not started or without AMD's extension",
        text(older)
    );
    for line in [
        &format!("runtime               {}", text(newer)),
        "chosen because        --runtime or HSA_VMM_RUNTIME names it",
        "implementation        ROCr 1.18 (ROCm 7)",
        &expected,
    ] {
        assert!(stdout(&output).lines().any(|it| it == line), "{line}:\n{}", stdout(&output));
    }
    assert!(stderr(&output).contains("has loaded 2 HSA libraries"), "{}", stderr(&output));
    let report = json(&info(&["--format", "json"], Some(newer)));
    let loaded = report["runtime"]["loaded"].as_array().unwrap();
    let paths: Vec<_> = loaded.iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [text(older), text(newer)]);
    assert_eq!(loaded[1]["extension"], "1.15");
    let probes = report["runtime"]["probes"].as_array().unwrap();
    assert!(!probes.is_empty() && probes.iter().all(|it| it["expected"] == it["found"]));
}
