//! `conform` and `info` on AMD's kernel driver.

use crate::run_command::{HSA_VMM, json, stderr, stdout};
use crate::{RELEASE, conform, lock_machine, run_in_machine, runs_all_variants, runs_slow_parts};
use hsa_rocr::{FetchedRelease, Release, test};
use std::collections::BTreeSet;

/// The cases that are skipped on every release. These cases are for runtimes with fewer features, or need control of
/// page tables. `access.gpus.memory_stays_in_vram` needs a kernel with options that Debian's kernel does not have.
const SKIPPED: [&str; 15] = [
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

/// The cases that need two GPUs.
const TWO_GPU_CASES: [&str; 22] = [
    "access.every_pair.in_one_range",
    "access.every_pair.not_granted",
    "access.every_pair.read_only",
    "access.every_pair.reads",
    "access.every_pair.taken_back",
    "access.every_pair.writes",
    "access.gpus.both_see_the_same",
    "access.gpus.over_memory_of_several",
    "access.gpus.peer_after_the_owner",
    "access.gpus.peer_before_the_owner",
    "area.mmap.another_device",
    "area.mmap.global_memory",
    "buffer.growable.seen_by_all_gpus",
    "buffer.paged.seen_by_all_gpus",
    "buffer.pausable.access_comes_back",
    "hip.use.chunks_granted_to_their_own_gpu",
    "hip.use.copy_between_gpus",
    "map.gpus.all_in_one_reservation",
    "map.gpus.each_uses_memory_of_one",
    "pool.memory.copied_between_gpus",
    "share.import.peer",
    "share.import.peer_after_the_owner",
];

/// The cases that need IPC handles. ROCm 6.1 supports IPC handles only with AMD's own package of the kernel driver.
const IPC_CASES: [&str; 13] = [
    "ipc.close.own_memory",
    "ipc.get.interior",
    "ipc.get.layout",
    "ipc.get.reused_memory",
    "ipc.get.separate_allocations",
    "ipc.open.dead_process",
    "ipc.open.flags",
    "ipc.open.freed_memory",
    "ipc.open.no_process",
    "ipc.open.offset_beyond",
    "ipc.open.same_memory",
    "ipc.open.same_process",
    "ipc.open.twice",
];

#[test]
fn conform_passes_on_amds_kernel_driver() {
    let name = "conform_passes_on_amds_kernel_driver";
    let Some(lock) = lock_machine(name) else { return };
    let runs_all = runs_all_variants(&format!("{name}, other releases and numbers of GPUs"));
    // The time limit is long, because QEMU emulates slowly on a busy computer.
    let arguments = ["--format", "json", "--time-limit", "5min"];
    let releases = lock.fetched_releases.iter().map(FetchedRelease::release);
    for release in releases.filter(|release| runs_all || *release == RELEASE) {
        for gpus in if runs_all { &[1, 2, 4][..] } else { &[2] } {
            let output = conform(release, &["--gpus", &gpus.to_string()], &arguments);
            let context = format!("{release}, {gpus} GPUs: {}", stderr(&output));
            assert_eq!(output.status.code(), Some(0), "{context}");
            let report = json(&output);
            assert_eq!(report["agents"].as_array().unwrap().len(), gpus + 1, "{context}");
            let cases = report["cases"].as_array().unwrap();
            let names = |status: &str| -> Vec<_> {
                let matching = cases.iter().filter(|case| case["status"] == status);
                matching.map(|case| case["name"].as_str().unwrap().to_owned()).collect()
            };
            let mut expected = SKIPPED.to_vec();
            if *gpus == 1 {
                expected.extend(TWO_GPU_CASES);
            }
            if release == Release::R6_1_2 {
                expected.extend(IPC_CASES);
            }
            expected.sort_unstable();
            let mut skipped = names("skip");
            skipped.sort();
            assert_eq!(skipped, expected, "{context}");
            let passed = names("pass").len();
            assert!(passed >= 300, "{context}");
            let skipped = skipped.len();
            test::report(&format!("{release}, {gpus} GPUs: {passed} passed, {skipped} skipped"));
            let placement =
                cases.iter().find(|it| it["name"] == "access.gpus.memory_stays_in_vram");
            let detail = placement.unwrap()["detail"].as_str().unwrap();
            assert!(*gpus == 1 || detail.contains("needs CONFIG_DMABUF_MOVE_NOTIFY"), "{detail}");
        }
    }
}

/// Also, the default time limits are longer in the virtual machine.
#[test]
fn info_warns_of_missing_kernel_options() {
    let name = "info_warns_of_missing_kernel_options";
    let Some(_lock) = lock_machine(name) else { return };
    let script = format!("{HSA_VMM} info && {HSA_VMM} conform --help && {HSA_VMM} bringup --help");
    let output = run_in_machine(&["--rocr", RELEASE.version()], &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Debian's kernel has none of the options.
    let options = "DMABUF_MOVE_NOTIFY=n PCI_P2PDMA=n HSA_AMD_P2P=n (/boot/config-6.12.";
    assert!(stdout(&output).contains(options), "{}", stdout(&output));
    assert!(stderr(&output).contains("without CONFIG_DMABUF_MOVE_NOTIFY"), "{}", stderr(&output));
    for default in ["[default: 2min]", "[default: 80s]"] {
        assert!(stdout(&output).contains(default), "{}", stdout(&output));
    }
}

/// The options of the virtual machine for each way to write page tables. By default, the CPU writes page tables. In the
/// second mode, the SDMA engine writes page tables, 50 milliseconds late.
const MODES: [&[&str]; 2] =
    [&[], &["--parameter", "amdgpu.vm_update_mode=0", "--parameter", "hsa_vmm.pte_delay=50"]];

#[test]
fn access_is_enforced_and_calls_are_logged() {
    let name = "access_is_enforced_and_calls_are_logged";
    let Some(lock) = lock_machine(name) else { return };
    let runs_all = runs_all_variants(&format!("{name}, other releases and page tables by SDMA"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, tables) = (file("log"), file("tables"));
    let files = ["--log", &log, "--page-tables", &tables];
    let runs_slow = runs_slow_parts(&format!("{name}, 8 of 11 cases"));
    let (filter, case_count) =
        if runs_slow { ("access.enforced.*", 11) } else { ("access.enforced.*_by_dma", 3) };
    let arguments = ["--page-tables", "--filter", filter, "--format", "json"];
    let arguments = [&arguments[..], &["--time-limit", "5min"]].concat();
    let releases = lock.fetched_releases.iter().map(FetchedRelease::release);
    for release in releases.filter(|release| runs_all || *release == RELEASE) {
        for mode in if runs_all { &MODES[..] } else { &MODES[..1] } {
            let output = conform(release, &[mode, &files[..]].concat(), &arguments);
            let context = format!("{release} {mode:?}: {}{}", stdout(&output), stderr(&output));
            assert_eq!(output.status.code(), Some(0), "{context}");
            let report = json(&output);
            assert_eq!(report["summary"]["passed"], case_count, "{context}");
            assert_eq!(report["runtime"]["driver"], "amdkfd", "{context}");
            assert_eq!(report["run"]["provenance"]["machine"], "virtual", "{context}");
            let log = std::fs::read_to_string(&log).unwrap();
            let line = log
                .lines()
                .find(|line| line.contains("drm0 GEM_VA") && line.contains("operation=REPLACE"));
            let line = line.expect("a changed entry");
            assert!(line.contains(" -> ") && line.ends_with(" us)"), "{line}");
            let tables = std::fs::read_to_string(&tables).unwrap();
            let has_gpu = tables.starts_with("process ") && tables.contains("\ngpu 1 id ");
            assert!(has_gpu, "{context}: {tables}");
            test::report(&format!("{release} {mode:?}: access is enforced, {case_count} passed"));
        }
    }
}

/// Runs some cases in virtual machines with unusual settings.
#[test]
fn conform_passes_with_other_settings() {
    let name = "conform_passes_with_other_settings";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_all_variants(name) {
        return;
    }
    let no_large_bar = "access.set.cpu_without_large_bar";
    let settings: [(&[&str], usize, &str, &str); 4] = [
        (&["--parameter", "hsa_vmm.visible=256"], 2, no_large_bar, no_large_bar),
        (&["--gpus", "8", "--vram", "256M"], 8, "access.gpus.*", "access.gpus.both_see_the_same"),
        (&["--parameter", "hsa_vmm.xgmi=0"], 2, "access.set.*", "access.set.agent_out_of_reach"),
        (
            &["--parameter", "amdgpu.sched_policy=2"],
            2,
            "access.gpus.*",
            "access.gpus.both_see_the_same",
        ),
    ];
    for (options, gpus, filter, case) in settings {
        let arguments = ["--filter", filter, "--format", "json", "--time-limit", "5min"];
        let output = conform(RELEASE, options, &arguments);
        let context = format!("{options:?}: {}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{context}");
        let report = json(&output);
        assert_eq!(report["agents"].as_array().unwrap().len(), gpus + 1, "{context}");
        let cases = report["cases"].as_array().unwrap();
        let case = cases.iter().find(|it| it["name"] == case).expect("the case is selected");
        assert_eq!(case["status"], "pass", "{context}");
    }
}

#[test]
fn skipped_cases_are_documented() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/backends.md");
    let page = std::fs::read_to_string(file).unwrap();
    let section = page.split("\n### Conformance cases\n").nth(1).expect("a section");
    let section = section.split("\n### ").next().unwrap();
    let names = section.split('`').skip(1).step_by(2).filter(|name| !name.contains('-'));
    let documented: BTreeSet<&str> = names.collect();
    let skipped: BTreeSet<&str> =
        [&SKIPPED[..], &TWO_GPU_CASES, &IPC_CASES].concat().into_iter().collect();
    assert_eq!(documented, skipped);
}
