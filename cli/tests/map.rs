//! `hsa-vmm map`: the address space at the end of a trace.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::test;
use run_command::{HSA_VMM, json, run, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;

const TRACES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/data/cuda_h200_traces_seed1.jsonl.gz");

/// Removes addresses, handles and agents, which differ between runtimes.
fn without_addresses(mut report: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(strip),
            Value::Object(all) => {
                all.retain(|key, _| key != "address" && key != "handle" && key != "agents");
                all.remove("memory").into_iter().for_each(|mut memory| {
                    // In a mapping, `memory` is a handle. Elsewhere, `memory` is a list, which stays.
                    strip(&mut memory);
                    if memory.is_array() {
                        all.insert("memory".to_owned(), memory);
                    }
                });
                all.values_mut().for_each(strip);
            }
            _ => {}
        }
    }
    strip(&mut report);
    // The order of addresses depends on the runtime.
    let reservations = report["reservations"].as_array_mut().unwrap();
    reservations.sort_by_key(|it| it["name"].as_str().unwrap().to_owned());
    report
}

#[test]
fn map_shows_example_as_text() {
    let output = run(&["map", "--runtime", "sim"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).ends_with("trace 0 (seed 0), after 49 of 49 operations\n"),
        "{output:?}"
    );
    let text = stdout(&output);
    for words in [
        "4 reservations of 16.1 GiB; 11 mappings of 52 MiB",
        "\"r2\"  14 MiB mapped, 50 MiB free in 3 gaps, the largest 44 MiB (12 % fragmented)",
        "GPU 0  \"h1\": GPU 0 rw, GPU 1 none (can read and write)",
        "GPU 1 in 2 mappings  \"h4\": GPU 1 rw",
        "\"h5\"  memory that is not mapped",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours in a pipe");
}

#[test]
fn map_shows_state_after_until() {
    let mappings = |operations: &str| {
        let output = run(&["map", "--runtime", "sim", "--until", operations, "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = json(&output);
        let reservations = report["reservations"].as_array().unwrap().iter();
        reservations.map(|it| it["mappings"].as_array().unwrap().len()).collect::<Vec<_>>()
    };
    assert_eq!(mappings("0"), [0; 0]);
    assert_eq!(mappings("1"), [0]);
    assert_eq!(mappings("3"), [1]);
    let too_many = run(&["map", "--runtime", "sim", "--until", "50"]);
    assert_eq!(too_many.status.code(), Some(2));
    assert!(stderr(&too_many).contains("49 operations"), "{}", stderr(&too_many));
}

#[test]
fn map_json_names_access() {
    let report = json(&run(&["map", "--runtime", "sim", "--format", "json"]));
    let list = |value: &Value| value.as_array().unwrap().clone();
    let reservations = list(&report["reservations"]);
    let mappings = reservations.iter().flat_map(|it| list(&it["mappings"]));
    let access = mappings.flat_map(|it| list(&it["access"]));
    let values: BTreeSet<String> =
        access.map(|it| it["access"].as_str().unwrap().to_owned()).collect();
    assert_eq!(values, ["none", "read_write"].map(str::to_owned).into());
    assert!(reservations[0]["address"].as_str().unwrap().starts_with("0x"));
}

#[test]
fn map_writes_svg_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map.svg");
    let name = path.to_str().unwrap();
    let output = run(&["map", "--runtime", "sim", "--format", "svg", "-o", name]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    for words in ["r1", "h4 · 2 × 4 MiB", "not mapped"] {
        assert!(svg.contains(words), "{words} is not in\n{svg}");
    }
    let nowhere = run(&["map", "--runtime", "sim", "-o", "/nowhere/map.svg"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(stderr(&nowhere).contains("/nowhere/map.svg"), "{}", stderr(&nowhere));
}

#[test]
fn map_shows_recorded_trace() {
    let arguments = ["map", "--runtime", "sim", TRACES, "--trace", "3", "--until", "60"];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).ends_with("trace 3 (seed 1), after 60 of 80 operations\n"),
        "{output:?}"
    );
    assert!(stdout(&output).contains("\"r1\"  6 MiB mapped, 12 MiB free"), "{}", stdout(&output));
    let none = run(&["map", "--runtime", "sim", TRACES, "--trace", "1500"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("has no trace 1500"), "{}", stderr(&none));
}

#[test]
fn map_rejects_recording_of_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.jsonl");
    let header = r#"{"format":"hsa-vmm-hsa-trace","version":1,"pid":7,"agents":[]}"#;
    std::fs::write(&path, format!("{header}\n")).unwrap();
    let output = run(&["map", "--runtime", "sim", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = "is a recording of `hsa-vmm record`, which `map` does not read";
    assert!(stderr(&output).contains(text), "{output:?}");
}

#[test]
fn map_ignores_planned_faults_of_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sequence.jsonl");
    let reserve = r#"{"operation":"reserve","size":{"granules":3},"alignment":"none","hint":"none","flags":0}"#;
    for fault in ["hsa_amd_vmem_address_reserve_align=hang", "hsa_amd_vmem_address_reserve=crash"] {
        let head = format!(r#"{{"seed":7,"number":0,"machine":"gpus=1,faults={fault}""#);
        std::fs::write(&path, format!("{head},\"operations\":[{reserve}]}}\n")).unwrap();
        // `timeout` ends a command that hangs.
        let output = std::process::Command::new("timeout")
            .args(["60", HSA_VMM, "map", path.to_str().unwrap()])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let note = format!("`map` ignores the planned faults of the sequence ({fault})");
        assert!(stderr(&output).contains(&note), "{output:?}");
        assert!(stdout(&output).contains("12 KiB  reservation without mappings"), "{output:?}");
    }
}

#[test]
fn map_shows_last_sequence_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sequences.jsonl");
    let line = |number: u32| {
        format!(r#"{{"seed":7,"number":{number},"machine":"gpus=1","operations":[]}}"#) + "\n"
    };
    std::fs::write(&path, line(4) + &line(6)).unwrap();
    let path = path.to_str().unwrap();
    for (choice, expected, has_hint) in
        [(&[][..], "sequence 6 (seed 7)", true), (&["--trace", "0"], "sequence 4 (seed 7)", false)]
    {
        let output = run(&[&["map", path][..], choice].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(stderr(&output).contains(expected), "{output:?}");
        let hint = "this is the last of 2 sequences; --trace N draws another, from 0";
        assert_eq!(stderr(&output).contains(hint), has_hint, "{output:?}");
    }
}

#[test]
fn map_stops_at_divergent_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.jsonl");
    let reserve = |r: u32, result: &str| {
        format!(r#"{{"op":"reserve","r":{r},"size":2097152,"result":"{result}"}}"#)
    };
    let operations = [reserve(1, "SUCCESS"), reserve(2, "OUT_OF_MEMORY"), reserve(3, "SUCCESS")];
    let head = r#"{"seed":7,"trace":0,"granule":2097152,"devices":1,"ops":"#;
    std::fs::write(&path, format!("{head}[{}]}}\n", operations.join(","))).unwrap();
    let output = run(&["map", "--runtime", "sim", path.to_str().unwrap(), "--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("after 2 of 3 operations"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("recorded OUT_OF_MEMORY, here SUCCESS"),
        "{}",
        stderr(&output)
    );
    // The output shows the state after the second operation, whose result differs.
    assert_eq!(json(&output)["reservations"].as_array().unwrap().len(), 2);
}

#[test]
fn map_reports_missing_file_and_missing_gpu() {
    let missing = run(&["map", "--runtime", "sim", "/nowhere/trace.jsonl"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("/nowhere/trace.jsonl"), "{}", stderr(&missing));
    let one_gpu = run(&["map", "--runtime", "sim", "--gpus", "1"]);
    assert_eq!(one_gpu.status.code(), Some(1));
    assert!(stderr(&one_gpu).contains("2 GPUs"), "{}", stderr(&one_gpu));
}

#[test]
fn map_tolerates_closed_output() {
    let arguments = ["map", "--runtime", "sim", "--format", "json"];
    let mut child = run_command::command(&arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn map_shows_same_state_on_amds_runtime() {
    let expected = run(&["map", "--runtime", "sim", "--gpus", "2", "--format", "json"]);
    let expected = without_addresses(json(&expected));
    for fetched in test::fetch_selected_releases("map_shows_same_state_on_amds_runtime") {
        let release = fetched.release();
        let release = release.version();
        let start = ["emulate", "--gpus", "2", "--rocr", release, "--", HSA_VMM];
        let output = run(&[&start[..], &["map", "--format", "json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{release}: {}", stderr(&output));
        assert!(!stderr(&output).contains("simulation"), "{release}: {}", stderr(&output));
        assert_eq!(without_addresses(json(&output)), expected, "{release}");
    }
}
