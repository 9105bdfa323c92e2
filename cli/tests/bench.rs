//! `hsa-vmm bench`: the output, and invalid arguments.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hsa-vmm"));
    for variable in ["HSA_VMM_RUNTIME", "HSA_SIM", "HSA_VMM_LOG"] {
        command.env_remove(variable);
    }
    command.arg("bench").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn bench_measures_every_operation_at_every_level() {
    for runtime in ["nothing", "sim"] {
        let arguments = ["--runtime", runtime, "--gpus", "2", "--live", "1,300", "--samples", "3"];
        let output = bench(&[&arguments[..], &["--format", "json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["runtime"]["name"], "simulation");
        let (opened, results): (Vec<_>, Vec<_>) =
            report["results"].as_array().unwrap().iter().partition(|it| it["operation"] == "open");
        let levels: Vec<_> = opened.iter().map(|it| it["level"].as_str().unwrap()).collect();
        assert_eq!(levels, ["raw", "vmm", "c"], "level `owned` opens the runtime as `vmm` does");
        assert!(opened.iter().all(|it| it["live_mappings"] == 0 && it["gpus"] == 2));
        assert_eq!(results.len(), 13 * 4 * 2, "operations, levels, numbers of mappings");
        for result in &results {
            let (median, p99) = (result["median_ns"].as_f64(), result["p99_ns"].as_f64());
            assert!(median.unwrap() >= 0.0 && p99 >= median, "{result}");
            let [low, high] = ["median_low_ns", "median_high_ns"].map(|it| result[it].as_f64());
            assert!(low <= median && median <= high && low.is_some(), "{result}");
            assert_eq!(result["gpus"], 2);
            let live = result["live_mappings"].as_u64().unwrap();
            assert!(live == 1 || live == 300, "{result}");
            assert_eq!(result["over_raw_ns"].is_null(), result["level"] == "raw", "{result}");
        }
        let median = |operation, level| {
            let matches = |it: &&&serde_json::Value| {
                it["operation"] == operation && it["level"] == level && it["live_mappings"] == 1
            };
            results.iter().find(matches).and_then(|it| it["median_ns"].as_f64()).unwrap()
        };
        // A cycle contains the other calls, so it takes longer than each single call.
        assert!(median("cycle", "vmm") > median("get_access", "vmm"), "{runtime}");
    }
}

#[test]
fn bench_prints_table_and_chart() {
    let options = ["--runtime", "nothing", "--samples", "2", "--operation", "map,get_access"];
    let table = bench(&[&options[..], &["--level", "raw,vmm"]].concat());
    let table = text(&table.stdout);
    assert!(table.contains("get_access") && table.contains(" ns") && !table.contains("owned"));
    assert!(!table.contains('\u{1b}'), "no colours in a pipe");
    assert!(table.lines().next().unwrap().contains('±'), "{table}");
    assert_eq!(table.lines().count(), 1 + 2 * 2, "{table}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cost.svg");
    let chart_options = ["--live", "1,10", "--format", "svg", "-o", file.to_str().unwrap()];
    let output = bench(&[&options[..], &chart_options].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    let chart = std::fs::read_to_string(file).unwrap();
    assert!(chart.starts_with("<svg") && chart.trim_end().ends_with("</svg>"));
    for part in ["<svg role=\"img\" ", "<title>", "@media (prefers-color-scheme:dark)"] {
        assert!(chart.contains(part), "{part}: {chart}");
    }
    // Each text is one line: the labels of the axes and the names in the legend.
    let texts: Vec<_> =
        chart.split("</text>").filter_map(|it| it.rsplit('>').next()).map(str::trim).collect();
    for text in ["get_access", "map", "nanoseconds", "live mappings", "10", "100"] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
    assert!(texts.contains(&"time that Vmm adds to the raw call, by number of live mappings"));
    let without_raw = bench(&[&options[..], &["--level", "vmm", "--format", "svg"]].concat());
    assert!(text(&without_raw.stdout).contains("<title>time of a call of Vmm, by number"));
    // The axis of costs begins at 10 ns, so that only the axis of live mappings has the label `1`.
    assert_eq!(
        texts.iter().filter(|text| **text == "1").count(),
        1,
        "only the axis of live mappings begins at 1: {texts:?}"
    );
}

/// `Vmm::open` calls `hsa_init` and other functions, so it takes longer than `hsa_init`.
#[test]
fn bench_measures_opening_separately() {
    for runtime in ["nothing", "sim"] {
        let options = ["--runtime", runtime, "--operation", "open", "--samples", "20"];
        let output = bench(&[&options[..], &["--level", "vmm,raw", "--format", "json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let [raw, vmm] = report["results"].as_array().unwrap().as_slice() else {
            panic!("{report}")
        };
        assert_eq!((&raw["level"], &vmm["level"]), (&"raw".into(), &"vmm".into()));
        assert_eq!(raw["samples"], 20);
        assert!(vmm["over_raw_ns"].as_f64().unwrap() > 0.0, "{report}");
    }
}

/// The order in which `--level` names the levels does not matter.
#[test]
fn bench_compares_with_raw_calls_in_any_order() {
    for level in [&["--level", "vmm", "--level", "raw"][..], &["--level", "raw,vmm,raw"]] {
        let options = ["--runtime", "nothing", "--operation", "map", "--samples", "20"];
        let output = bench(&[&options[..], level, &["--format", "json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let [raw, vmm] = report["results"].as_array().unwrap().as_slice() else {
            panic!("{report}")
        };
        assert_eq!((&raw["level"], &vmm["level"]), (&"raw".into(), &"vmm".into()));
        assert!(vmm["over_raw_ns"].is_number(), "{report}");
    }
}

/// With the second list of operations, `bench` measures `open` first, and then opens the runtime again. Therefore,
/// `bench` must disable the workarounds again.
#[test]
fn bench_disables_workarounds() {
    for operations in ["set_access", "open,set_access"] {
        let measure = |more: &[&str]| {
            let arguments = ["--runtime", "nothing", "--operation", operations, "--samples", "3"];
            let output = bench(&[&arguments[..], &["--format", "json"], more].concat());
            assert!(output.status.success(), "{}", text(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let results = report["results"].as_array().unwrap().iter();
            let measures_c = results.filter(|it| it["level"] == "c").count() > 0;
            (report["works_around"].as_array().unwrap().len(), measures_c)
        };
        let (workarounds, measures_c) = measure(&[]);
        assert!(workarounds > 3, "{operations}: ROCm 6.4 needs workarounds");
        assert!(measures_c, "{operations}");
        // The C interface is not measured, because it always uses workarounds.
        assert_eq!(measure(&["--no-workarounds"]), (0, false), "{operations}");
        let one = measure(&["--no-workarounds=grant_without_descriptor_aborts"]);
        assert_eq!(one, (workarounds - 1, false), "{operations}");
    }
}

#[test]
fn bench_rejects_invalid_arguments() {
    for (arguments, status, words) in [
        (&["--runtime", "/nowhere/at/all"][..], 3, "/nowhere/at/all"),
        (&["--live", "0"], 2, "--live"),
        (&["--operation", "dance"], 2, "get_access"),
        (&["--no-workarounds=none"], 2, "unmap_keeps_memory"),
        (&["--runtime", "sim", "--hip", "/nowhere"], 2, "emulate"),
        (&["--runtime", "sim", "--no-workarounds"], 2, "--runtime nothing"),
        (&["--runtime", "nothing", "--no-workarounds", "--level", "c"], 2, "level c"),
        (&["--runtime", "nothing", "--sim", "gpus=4"], 2, "--sim"),
        (&["--runtime", "nothing", "--hip", "/nowhere"], 2, "--hip"),
        (&["--format", "svg", "--operation", "create,cycle"], 2, "only these operations: reserve,"),
        (&["--format", "svg", "--level", "raw"], 2, "only level vmm"),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}
