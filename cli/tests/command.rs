//! The output and the exit status of `hsa-vmm`.

mod hostile_runtime;
#[path = "hsa_vmm/mod.rs"]
mod run_command;

use run_command::{command, json, run, stderr, stdout};
use std::path::{Path, PathBuf};

const TRACE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/tests/regressions/generation_a.jsonl");

#[test]
fn info_shows_runtime_agents_and_pools() {
    let output = run(&["info", "--runtime", "sim", "--gpus", "3"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stderr(&output).starts_with("runtime: simulation"), "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(text.matches("MI300X").count(), 3, "{text}");
    for word in
        ["192 GiB", "coarse", "2 MiB", "4 KiB", "enforced with page tables", "enforced", "XGMI"]
    {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours in a pipe");
}

/// Older scripts use `--limit` of `bringup` and `--patience` of `fuzz`.
#[test]
fn earlier_spellings_of_options_are_accepted() {
    let bringup = run(&["bringup", "--runtime", "sim", "--until", "load", "--limit", "5s"]);
    assert_eq!(bringup.status.code(), Some(0), "{bringup:?}");
    let fuzz = run(&["fuzz", "--runtime", "sim", "--sequences", "2", "--patience", "5s"]);
    assert_eq!(fuzz.status.code(), Some(0), "{fuzz:?}");
}

#[test]
fn table_lines_have_no_trailing_spaces() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["1", "2"].map(|gpus| {
        let file = folder.path().join(gpus).to_str().unwrap().to_owned();
        let arguments = ["conform", "--runtime", "sim", "--gpus", gpus, "--filter", "access.gpus"];
        run(&[&arguments[..], &["--format", "json", "--output", &file]].concat());
        file
    });
    let nowhere = "/nonexistent/libhsa-runtime64.so.1";
    for arguments in [
        &["info", "--runtime", "sim"][..],
        &["conform", "--runtime", "sim", "--filter", "runtime."],
        &["conform", "--list"],
        &["diff", &first, &second],
        &["bringup", "--runtime", "sim"],
        &["bringup", "--runtime", nowhere],
        &["stress", "--runtime", "sim", "--time", "100ms"],
        &["bench", "--runtime", "nothing", "--operation", "map"],
        &["replay", "--runtime", "sim", TRACE],
        &["map", "--runtime", "sim", TRACE],
        &["rocr", "list"],
    ] {
        let output = run(arguments);
        for line in stdout(&output).lines().chain(stderr(&output).lines()) {
            assert_eq!(line.trim_end(), line, "{arguments:?}");
        }
    }
    let text = stdout(&run(&["bringup", "--runtime", nowhere]));
    let line = text.lines().find(|line| line.contains("library loads")).unwrap();
    assert!(
        line.contains("could be loaded  "),
        "the cell must end after 'could be loaded': the tried files are listed below the table: {line}"
    );
}

#[test]
fn info_shows_probes_that_differ() {
    let folder = tempfile::tempdir().unwrap();
    let library = hostile_runtime::build(folder.path());
    let arguments = ["info", "--runtime", library.to_str().unwrap()];
    let output = run(&arguments);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    let line = "probes differ         import_is_lazy: not expected of this version, found; \
                import_needs_descriptor: not expected of this version, found";
    assert!(text.lines().any(|it| it == line), "{text}");
    let report = json(&run(&[&arguments[..], &["--format", "json"]].concat()));
    let probes = report["runtime"]["probes"].as_array().unwrap().iter();
    let differing = probes.filter(|probe| probe["expected"] != probe["found"]);
    assert_eq!(differing.count(), 2, "{report:#}");
}

#[test]
fn info_writes_json() {
    let value = json(&run(&["info", "--runtime", "sim", "--gpus", "2", "--format", "json"]));
    assert_eq!(value["runtime"]["name"], "simulation");
    let agents = value["agents"].as_array().unwrap();
    let gpus: Vec<_> = agents
        .iter()
        .filter(|agent| agent["kind"].as_str().unwrap().eq_ignore_ascii_case("gpu"))
        .collect();
    assert_eq!(gpus.len(), 2);
    let pool = &gpus[0]["pools"][0];
    assert_eq!(pool["size"], 192u64 << 30);
    assert_eq!(pool["granule"], 4096);
    assert_eq!(pool["recommended_granule"], 2 << 20);
}

#[test]
fn conform_passes_on_the_simulation() {
    let output = run(&["conform", "--runtime", "sim"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(&output));
    let last = text.lines().last().unwrap();
    let counts: Vec<usize> = last
        .split(", ")
        .zip([" passed", " failed", " skipped"])
        .map(|(part, word)| part.strip_suffix(word).unwrap().parse().unwrap())
        .collect();
    assert!(counts[0] >= 60, "{last}");
    assert_eq!(counts[1], 0, "{last}");
}

#[test]
fn conform_names_failed_cases() {
    let faults = "faults=hsa_amd_vmem_set_access=0x1000";
    let output = run(&["conform", "--runtime", "sim", "--sim", faults, "--format", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let value = json(&output);
    assert!(value["summary"]["failed"].as_u64().unwrap() > 0);
    let failed = |case: &&serde_json::Value| case["status"] == "fail";
    let cases = value["cases"].as_array().unwrap();
    let failed: Vec<_> = cases.iter().filter(failed).collect();
    assert!(failed.iter().any(|case| case["name"].as_str().unwrap().starts_with("access.")));
    assert!(failed.iter().all(|case| !case["detail"].as_str().unwrap().is_empty()));
}

#[test]
fn conform_writes_junit() {
    let output = run(&["conform", "--runtime", "sim", "--filter", "reserve.", "--format", "junit"]);
    let text = stdout(&output);
    assert!(text.starts_with("<?xml"), "{text}");
    assert!(text.contains("<testcase"), "{text}");
}

#[test]
fn conform_lists_cases_without_a_runtime() {
    let output = command(&["conform", "--list"])
        .env("HSA_VMM_RUNTIME", "/nowhere/libhsa-runtime64.so.1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).lines().count() > 60);
}

#[test]
fn conform_rejects_filter_without_matches() {
    let output = run(&["conform", "--runtime", "sim", "--filter", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--list"), "{}", stderr(&output));
}

/// Writes a trace of three operations. The last operation has the result `last_result`.
fn write_trace(folder: &Path, last_result: &str) -> PathBuf {
    let path = folder.join("trace.jsonl");
    let line = format!(
        r#"{{"seed":1,"trace":0,"granule":2097152,"devices":1,"ops":[{},{},{}]}}"#,
        r#"{"op":"reserve","r":0,"size":4194304,"result":"SUCCESS"}"#,
        r#"{"op":"create","h":0,"size":2097152,"device":0,"result":"SUCCESS"}"#,
        format_args!(
            r#"{{"op":"map","r":0,"offset":0,"size":2097152,"h":0,"handle_offset":0,"result":"{last_result}"}}"#
        ),
    );
    std::fs::write(&path, line + "\n").unwrap();
    path
}

#[test]
fn replay_finds_divergent_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_trace(folder.path(), "SUCCESS");
    let file = path.to_str().unwrap();
    let output = run(&["replay", "--runtime", "sim", "--format", "json", file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let value = json(&output);
    assert_eq!((&value["operations"], &value["divergent"]), (&3.into(), &0.into()));
    assert!(value["first"].is_null());

    write_trace(folder.path(), "INVALID_VALUE");
    let output = run(&["replay", "--runtime", "sim", "--format", "json", file]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let value = json(&output);
    assert_eq!(value["divergent"], 1);
    assert!(!value["first"].is_null());
    let output = run(&["replay", "--runtime", "sim", "--tolerate", "1", file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn replay_names_missing_file_and_invalid_line() {
    let output = run(&["replay", "--runtime", "sim", "/nowhere/trace.jsonl"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nowhere/trace.jsonl"), "{}", stderr(&output));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("garbage.jsonl");
    std::fs::write(&path, "{}\nnonsense\n").unwrap();
    let output = run(&["replay", "--runtime", "sim", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("line 1"), "{}", stderr(&output));
}

#[test]
fn invalid_usage_exits_with_2() {
    for arguments in [&["nonsense"][..], &[], &["info", "--gpus", "9"], &["info", "--format", "x"]]
    {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["info", "--runtime", "sim", "--sim", "nonsense=1"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("nonsense"), "{}", stderr(&output));
}

#[test]
fn low_descriptor_limit_is_rejected() {
    let run_limited = |limit: u32, arguments: &[&str]| {
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script, "sh", run_command::HSA_VMM]).args(arguments);
        shell.env_remove("HSA_SIM").env_remove("HSA_VMM_RUNTIME").output().unwrap()
    };
    let conform = ["conform", "--runtime", "sim", "--gpus", "8"];
    for arguments in [&conform[..], &["bringup", "--runtime", "sim"]] {
        let output = run_limited(32, arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let expected = "the limit of open file descriptors is 32";
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        let output = run_limited(256, arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert!(run_limited(32, &["info", "--runtime", "sim"]).status.success());
}

#[test]
fn missing_runtime_exits_with_3() {
    for subcommand in [&["info"][..], &["conform"]] {
        let mut arguments = subcommand.to_vec();
        arguments.extend(["--runtime", "/nowhere/libhsa-runtime64.so.1"]);
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains("/nowhere/libhsa-runtime64.so.1"), "{}", stderr(&output));
        assert!(stderr(&output).contains("HSA_VMM_RUNTIME"), "{}", stderr(&output));
    }
}

#[test]
fn failed_start_of_the_simulation_is_explained() {
    if Path::new("/dev/kfd").exists() {
        return; // Without --runtime, the command would use AMD's runtime.
    }
    let output = run(&["conform", "--sim", "faults=hsa_init=ERROR", "--filter", "map.size"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.ends_with("bringup --runtime sim --sim 'faults=hsa_init=ERROR'\n"), "{text}");
    assert!(
        text.contains("this is a simulation") && !text.contains("/dev/kfd is missing"),
        "{text}"
    );
}

#[test]
fn variables_set_options() {
    let output = command(&["info", "--format", "json"])
        .env("HSA_VMM_RUNTIME", "sim")
        .env("HSA_SIM", "gpus=5,era=a")
        .output()
        .unwrap();
    let value = json(&output);
    assert_eq!(value["agents"].as_array().unwrap().len(), 6);
    assert_eq!(value["runtime"]["extension"], "1.7");
}

#[test]
fn closed_pipe_keeps_the_exit_status() {
    let conform = ["conform", "--runtime", "sim", "--filter", "map.handle.*", "--format"];
    let bringup = ["bringup", "--runtime", "sim", "--until", "mapped", "--format"];
    let mut runs = vec![(vec!["conform", "--list"], 0), (vec!["info", "--runtime", "sim"], 0)];
    for format in ["table", "ktap", "json"] {
        for (subcommand, faults, status) in [
            (conform, "faults=hsa_amd_vmem_handle_create=ERROR", 1),
            (bringup, "faults=hsa_amd_vmem_map=ERROR", 1),
            (bringup, "faults=hsa_init=ERROR", 3),
            (bringup, "gpus=1", 0),
        ] {
            runs.push(([&subcommand[..], &[format, "--sim", faults]].concat(), status));
        }
    }
    for (arguments, status) in runs {
        let mut child = command(&arguments)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(status), "{arguments:?}");
    }
}
