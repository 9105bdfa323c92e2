//! Features for the continuous integration of kernels: KTAP, KCIDB, shards and expectations.

#[path = "ktap/mod.rs"]
mod ktap;
#[path = "hsa_vmm/mod.rs"]
mod run_command;

use ktap::Test;
use run_command::{json, run, statuses, stderr, stdout};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;

const CONFORM_ON_SIMULATION: [&str; 5] = ["conform", "--runtime", "sim", "--filter", "map.*"];

fn conform(arguments: &[&str]) -> std::process::Output {
    run(&[&CONFORM_ON_SIMULATION, arguments].concat())
}

#[test]
fn ktap_has_the_same_results_as_json() {
    let faults = ["--sim", "faults=hsa_amd_vmem_map#3=ERROR"];
    for (options, status) in
        [(&[][..], 0), (&faults, 1), (&["--shuffle", "7"], 0), (&["--repeat", "2"], 0)]
    {
        let options = [options, &["--filter", "ipc.*"]].concat();
        let output = conform(&[&options[..], &["--format", "ktap"]].concat());
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", stderr(&output));
        let text = stdout(&output);
        let shows_cause = text.contains("#   reproduce: hsa-vmm conform ");
        assert_eq!(shows_cause, status == 1, "{text}");
        let (top, inner) = ktap::parse_subtests(&text);
        let report = json(&conform(&[&options[..], &["--format", "json"]].concat()));
        let cases = report["cases"].as_array().unwrap();
        assert_eq!(inner.len(), cases.len(), "{options:?}");
        for case in cases {
            let Test { ok, directive, .. } = &inner[case["name"].as_str().unwrap()];
            let expected = match case["status"].as_str().unwrap() {
                "pass" => (true, ""),
                "fail" => (false, ""),
                "skip" => (true, "SKIP"),
                "known" => (true, "XFAIL"),
                other => panic!("{other}"),
            };
            assert_eq!((*ok, directive.split(' ').next().unwrap()), expected, "{case}");
        }
        assert_eq!(top.keys().collect::<Vec<_>>(), ["ipc", "map", "process"]);
        assert_eq!(top["map"].ok, status == 0);
        assert!(top["process"].ok);
    }
}

#[test]
fn other_subcommands_write_ktap() {
    let output = run(&["bringup", "--runtime", "sim", "--format", "ktap"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (top, _) = ktap::parse_subtests(&stdout(&output));
    assert!(top.values().all(|test| test.ok) && top.contains_key("mapped"), "{top:?}");

    let faults = ["--sim", "faults=hsa_amd_vmem_map=ERROR"];
    let output = run(&[&["bringup", "--runtime", "sim", "--format", "ktap"], &faults[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    let (top, _) = ktap::parse_subtests(&text);
    let failed: Vec<_> = top.iter().filter(|(_, test)| !test.ok).map(|(name, _)| name).collect();
    assert_eq!(failed, ["mapped"], "{text}");
    assert!(text.contains("# ") && text.contains("hsa_amd_vmem_map("), "{text}");
    let reproduce = "# reproduce: hsa-vmm bringup --runtime sim --sim";
    assert!(text.lines().any(|line| line.trim_start().starts_with(reproduce)), "{text}");
    assert_eq!(top["killed"].directive, "SKIP not tried");

    let time = ["--time", "1s", "--format", "ktap"];
    let output = run(&[&["fuzz", "--runtime", "sim", "--seed", "3"], &time[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (top, _) = ktap::parse_subtests(&stdout(&output));
    assert!(top["fuzz"].ok && top["fuzz"].directive.is_empty(), "{top:?}");

    let output = run(&[&["stress", "--runtime", "sim", "--processes", "1"], &time[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (top, _) = ktap::parse_subtests(&stdout(&output));
    assert!(top.len() > 3 && top["memory"].ok, "{top:?}");
}

#[test]
fn shards_together_contain_all_cases() {
    let all = statuses(&json(&conform(&["--format", "json"])));
    let mut parts = BTreeMap::new();
    for shard in ["1/3", "2/3", "3/3"] {
        let part = statuses(&json(&conform(&["--format", "json", "--shard", shard])));
        assert!(part.len().abs_diff(all.len() / 3) <= 1, "{shard}: {}", part.len());
        parts.extend(part);
    }
    assert_eq!(parts, all);
}

#[test]
fn conform_explains_invalid_ci_options() {
    for (arguments, expected) in [
        (&["--shard", "4/3"][..], "the second of five"),
        (&["--shard", "1000/1000"], "no case"),
        (&["--filter", "no.such.case"], "no case"),
        (&["--resume"], "--output"),
        (&["--format", "kcidb"], "--build-id"),
        (&["--format", "kcidb", "--build-id", "x"], "a colon"),
    ] {
        let output = run(&[&["conform", "--runtime", "sim"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn run_stops_after_too_many_failures() {
    let faults = ["--sim", "faults=hsa_amd_vmem_map=ERROR", "--max-fail", "3"];
    let output = conform(&[&faults[..], &["--failures-only"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains(", 3 failed, "), "{}", stdout(&output));
    let rows = stdout(&output).lines().filter(|line| line.contains(" FAIL ")).count();
    assert_eq!(rows, 3, "{}", stdout(&output));
    assert!(!stdout(&output).contains(" skip "), "{}", stdout(&output));
    // The table shows all remaining cases in one line.
    let output = conform(&faults);
    let table = stdout(&output);
    let untried: Vec<_> = table.lines().filter(|line| line.contains("cases not tried")).collect();
    let [line] = untried[..] else { panic!("{table}") };
    assert!(line.starts_with(" map.") && line.contains(" … map.handle.of_another_vmm "), "{line}");
    let words = " cases not tried: the run stopped after other cases failed";
    assert!(line.ends_with(words), "{line}");
    let count = line.strip_suffix(words).and_then(|line| line.rsplit(' ').next());
    let summary = table.lines().last().unwrap();
    let untried: usize = count.unwrap().parse().unwrap();
    let counts = summary.ends_with(&format!(" skipped, {untried} not tried"));
    assert!(untried > 10 && counts, "{line}\n{summary}");
}

/// The last line of a redirected table is the summary. With a format for programs, `conform` writes the summary to
/// standard error.
#[test]
fn table_ends_with_the_summary() {
    let faults = ["--sim", "faults=hsa_amd_vmem_map#3=ERROR"];
    let ends_with_summary =
        |text: &str| text.lines().last().unwrap_or_default().contains(" passed, 1 failed, ");
    let table = conform(&faults);
    assert!(ends_with_summary(&stdout(&table)), "{}", stdout(&table));
    let note = " that fail (bringup counts the calls for the planned faults again from 1): ";
    assert!(stdout(&table).contains(note), "{}", stdout(&table));
    assert!(!stderr(&table).contains(" passed, "), "{}", stderr(&table));
    assert!(stderr(&table).starts_with("runtime: simulation"), "{}", stderr(&table));
    let json = conform(&[&faults[..], &["--format", "json"]].concat());
    assert!(
        ends_with_summary(&stderr(&json)) && !stdout(&json).contains(" passed, "),
        "{}",
        stderr(&json)
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table");
    let to_file = conform(&[&faults[..], &["-o", file.to_str().unwrap()]].concat());
    let written = fs::read_to_string(&file).unwrap();
    assert!(ends_with_summary(&stderr(&to_file)) && ends_with_summary(&written));
}

#[test]
fn expectations_change_results() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("expect.toml");
    let entry = |case: &str, more: &str| {
        format!("[[expect]]\ncase = \"{case}\"\n{more}reason = \"r\"\nsource = \"s\"\n")
    };
    let text = entry("map.flags.refused", "outcome = \"skip\"\ndriver = \"simulated\"\n")
        + &entry("map.handle.zero", "outcome = \"skip\"\nkernel = \"1.2.3\"\n")
        + &entry("map.memory.shared", "outcome = \"fail\"\n");
    let cases = statuses(&json(&conform(&["--format", "json"])));
    assert_eq!(cases["map.handle.zero"], "pass");
    let name = cases.keys().find(|name| name.starts_with("map.memory.")).unwrap();
    fs::write(&list, text.replace("map.memory.shared", name)).unwrap();
    for option in ["--expect", "--known"] {
        let output = conform(&["--format", "json", option, list.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let statuses = statuses(&json(&output));
        assert_eq!(statuses["map.flags.refused"], "skip");
        assert_eq!(statuses["map.handle.zero"], "pass", "another kernel");
        assert!(
            stderr(&output).contains(&format!("{name}: known, but passed")),
            "{}",
            stderr(&output)
        );
        for (format, line) in [
            ("ktap", "  # known, but passed: r (s)\n  ok"),
            ("junit", "\nknown, but passed: r (s)<"),
        ] {
            let text = stdout(&conform(&["--format", format, option, list.to_str().unwrap()]));
            assert!(text.contains(line), "{text}");
        }
    }
}

#[test]
fn kcidb_names_build_and_results() {
    let faults = ["--sim", "faults=hsa_amd_vmem_map#3=ERROR"];
    let format = ["--format", "kcidb", "--build-id", "us:linux-6.12"];
    let output = conform(&[&faults[..], &format].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document = json(&output);
    assert_eq!(document["version"], json!({ "major": 4, "minor": 0 }));
    let tests = document["tests"].as_array().unwrap();
    assert!(tests.iter().any(|test| test["status"] == "FAIL"));
    for test in tests {
        assert_eq!(test["build_id"], "us:linux-6.12");
        assert_eq!(test["origin"], "us");
        assert!(test["id"].as_str().unwrap().starts_with("us:"), "{test}");
        assert!(test["path"].as_str().unwrap().starts_with("hsa-vmm.conform.map."), "{test}");
        assert!(["PASS", "FAIL", "SKIP"].contains(&test["status"].as_str().unwrap()), "{test}");
        assert_eq!(test["environment"]["misc"]["driver"], "simulated");
    }
}
