//! Levels on the simulation, in every era, and calls that answer errors.

use super::{failed, report, says};
use crate::hsa_vmm::{command, err, out, run};

fn simulated(sim: &str, more: &[&str]) -> std::process::Output {
    run(&[&["bringup", "--runtime", "sim", "--sim", sim], more].concat())
}

#[test]
fn every_level_is_reached_in_every_era() {
    for era in ["a", "b", "c", "d"] {
        let output = simulated(&format!("era={era},gpus=3"), &["--format", "json"]);
        let report = report(&output, 0);
        assert_eq!(failed(&report), None, "{era}: {report:#}");
        let skipped =
            report["levels"].as_array().unwrap().iter().filter(|l| l["status"] == "skipped");
        assert_eq!(skipped.count(), 0, "{era}: {report:#}");
        assert_eq!(report["simulation"], true);
    }
}

#[test]
fn what_does_not_apply_is_skipped_and_why_is_said() {
    let output = simulated("consumer", &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    says(&out(&output), &["– CPU access", "no large BAR", "– peer access", "there is one GPU"]);
    let output = simulated("gpus=2,peer-access=off", &[]);
    says(&out(&output), &["no GPU may reach"]);
}

#[test]
fn every_call_that_fails_is_named_at_its_level() {
    let status = "HSA_STATUS_ERROR_OUT_OF_RESOURCES";
    for (call, level) in [
        ("hsa_init", "runtime"),
        ("hsa_iterate_agents", "agents"),
        ("hsa_amd_agent_iterate_memory_pools", "pools"),
        ("hsa_amd_vmem_address_reserve", "reserved"),
        ("hsa_amd_vmem_address_free", "reserved"),
        ("hsa_amd_vmem_handle_create", "handle"),
        ("hsa_amd_vmem_handle_release", "handle"),
        ("hsa_amd_vmem_map", "mapped"),
        ("hsa_amd_vmem_unmap", "mapped"),
        ("hsa_amd_vmem_set_access", "cpu"),
        ("hsa_amd_memory_pool_allocate", "gpu"),
        ("hsa_amd_memory_async_copy", "gpu"),
        ("hsa_amd_vmem_export_shareable_handle", "shared"),
        ("hsa_amd_vmem_import_shareable_handle", "shared"),
    ] {
        let output = simulated(&format!("gpus=2,faults={call}=0x1008"), &["--format", "json"]);
        let report = report(&output, if level == "runtime" { 3 } else { 1 });
        assert_eq!(failed(&report), Some(level), "{call}: {report:#}");
        let failure = &report["failure"];
        assert_eq!(failure["kind"], "status");
        assert_eq!(failure["call"]["name"], call);
        says(failure["call"]["status"].as_str().unwrap(), &[status]);
        assert_eq!(failure["call"]["other_process"], call.contains("import"));
        assert!(!failure["rests_on"].as_array().unwrap().is_empty(), "{call}");
        let last = failure["calls"].as_array().unwrap().last().unwrap();
        says(last.as_str().unwrap(), &[call, "ERROR_OUT_OF_RESOURCES"]);
    }
    // Only the last level maps so often.
    let output = simulated("gpus=2,faults=hsa_amd_vmem_map#100=0x1008", &["--format", "json"]);
    assert_eq!(failed(&report(&output, 1)), Some("load"));
}

#[test]
fn what_is_missing_altogether_is_said() {
    let output = simulated("gpus=0", &["--format", "json"]);
    let found = report(&output, 1);
    assert_eq!(failed(&found), Some("agents"));
    assert_eq!(found["failure"]["what"], "no agent is a GPU");
    let output = simulated("vmem=off", &["--format", "json"]);
    let found = report(&output, 1);
    assert_eq!(failed(&found), Some("pools"));
    says(&found["failure"]["try_next"].to_string(), &["1.15"]);
}

#[test]
fn a_ladder_is_no_wider_than_80_columns_and_has_no_colours_in_a_pipe() {
    let output = simulated("gpus=2,faults=hsa_amd_vmem_map=0x1008", &[]);
    let text = out(&output);
    let ladder: Vec<_> = text.lines().take_while(|line| !line.starts_with("mapped:")).collect();
    assert!(ladder.len() > 12, "{text}");
    for line in ladder {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    says(
        &text,
        &["✗ mapped", "· CPU access", "It rests on", "EXPORT_DMABUF", "Try next", "--program"],
    );
}

#[test]
fn until_and_nonsense() {
    let output = simulated("gpus=2", &["--until", "mapped", "--format", "json"]);
    let levels = report(&output, 0)["levels"].as_array().unwrap().len();
    assert_eq!(levels, 7);
    for arguments in [
        &["bringup", "--until", "moon"][..],
        &["bringup", "--time-limit", "0s"],
        &["bringup", "--time-limit", "soon"],
        &["bringup", "--climb", "moon"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["bringup", "--runtime", "sim", "--sim", "nonsense=1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    says(&err(&output), &["nonsense"]);
    let output = run(&["bringup", "--runtime", "sim", "--log", "/nowhere/log"]);
    assert_eq!(output.status.code(), Some(1));
    says(&err(&output), &["/nowhere/log"]);
    // A level is climbed only for somebody.
    let output = run(&["bringup", "--runtime", "sim", "--climb", "mapped"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    says(&err(&output), &["is gone"]);
}

#[test]
fn the_log_has_every_call_of_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let output = command(&["bringup", "--runtime", "sim", "--until", "gpu", "--log"])
        .arg(&log)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(log).unwrap();
    says(&text, &["== library loads", "== GPU access", "hsa_amd_memory_async_copy(va=0x"]);
}
