//! `hsa-vmm diff`: compares reports of releases of AMD's runtime, and of generations of the simulation. The tests list
//! every expected difference. Also tests the output files of `conform`.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::{Release, test};
use run_command::{HSA_VMM, json, run, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Two versions, and the sentences that `diff` prints about them.
struct Comparison<T> {
    a: T,
    b: T,
    sentences: &'static [&'static str],
}

/// Comparisons of releases on the same emulated driver.
const RELEASES: [Comparison<Release>; 3] = [
    Comparison {
        a: Release::R6_1_2,
        b: Release::R6_4_3,
        sentences: &[
            "The runtimes differ: library libhsa-runtime64.so.1.15.0 instead of \
             libhsa-runtime64.so.1.13.0; implementation ROCr 1.15 (ROCm 6.4) instead of \
             ROCr 1.13 (ROCm 6.1); AMD extension 1.7 instead of 1.4; build \
             1.15.0-local-build-unknown instead of 1.13.0-local-build-unknown.",
            "B exports hsa_amd_vmem_address_reserve_align, A does not.",
            "2 workarounds are needed only with A: set_access_drops_unnamed_agents (ROCR-Runtime \
             73f6bfa7), set_access_of_several_fails (ROCR-Runtime 8f1b0566).",
            "CPU 0: pool global extended only in B.",
            IPC_PASSES,
            OTHERS_SAME,
        ],
    },
    Comparison {
        a: Release::R6_4_3,
        b: Release::R7_2_4,
        sentences: &[
            "The runtimes differ: library libhsa-runtime64.so.1.18.0 instead of \
             libhsa-runtime64.so.1.15.0; implementation ROCr 1.18 (ROCm 7) instead of \
             ROCr 1.15 (ROCm 6.4); AMD extension 1.15 instead of 1.7; build \
             1.18.0-local-build-unknown instead of 1.15.0-local-build-unknown.",
            DMABUF_V2,
            "2 workarounds are needed only with A: unmap_of_several_fails (ROCR-Runtime#285), \
             cpu_unmap_leaves_hole (ROCR-Runtime: MappedHandleAllowedAgent::RemoveAccess).",
            KEEPS_MEMORY,
            ALL_SAME,
        ],
    },
    Comparison {
        a: Release::R6_1_2,
        b: Release::R7_2_4,
        sentences: &[
            "The runtimes differ: library libhsa-runtime64.so.1.18.0 instead of \
             libhsa-runtime64.so.1.13.0; implementation ROCr 1.18 (ROCm 7) instead of \
             ROCr 1.13 (ROCm 6.1); AMD extension 1.15 instead of 1.4; build \
             1.18.0-local-build-unknown instead of 1.13.0-local-build-unknown.",
            "B exports hsa_amd_portable_export_dmabuf_v2, hsa_amd_vmem_address_reserve_align, A \
             does not.",
            "4 workarounds are needed only with A: set_access_drops_unnamed_agents (ROCR-Runtime \
             73f6bfa7), set_access_of_several_fails (ROCR-Runtime 8f1b0566), \
             unmap_of_several_fails (ROCR-Runtime#285), cpu_unmap_leaves_hole (ROCR-Runtime: MappedHandleAllowedAgent::RemoveAccess).",
            KEEPS_MEMORY,
            "CPU 0: pool global extended only in B.",
            IPC_PASSES,
            OTHERS_SAME,
        ],
    },
];

/// Comparisons of ROCm generations. The letters `a` to `d` represent ROCm 6.4, 7.2, 7.14 and 10.
const GENERATIONS: [Comparison<char>; 4] = [
    Comparison {
        a: 'a',
        b: 'b',
        sentences: &[
            "The runtimes differ: AMD extension 1.15 instead of 1.7.",
            DMABUF_V2,
            "2 workarounds are needed only with A: unmap_of_several_fails (ROCR-Runtime#285), \
             cpu_unmap_leaves_hole (ROCR-Runtime: MappedHandleAllowedAgent::RemoveAccess).",
            KEEPS_MEMORY,
            ALL_SAME,
        ],
    },
    Comparison {
        a: 'b',
        b: 'c',
        sentences: &[
            "The runtimes differ: AMD extension 1.20 instead of 1.15.",
            "B exports hsa_amd_vmem_export_fabric_handle, hsa_amd_vmem_import_fabric_handle, A \
             does not.",
            "2 workarounds are needed only with A: grant_without_descriptor_aborts (ROCR-Runtime: \
             MappedHandleAllowedAgent), ipc_server_outlives_stop (rocm-systems#3256).",
            "4 workarounds are needed only with B: peer_after_owner_fails (rocm-systems#9908, \
             openxla/xla#46576), export_keeps_descriptor (rocm-systems#10604), import_is_lazy \
             (rocm-systems#6471, #11606, #12228), import_needs_descriptor (rocm-systems#8440, #12228).",
            IMPORT_FAILS,
            OTHERS_SAME,
        ],
    },
    Comparison {
        a: 'c',
        b: 'd',
        sentences: &[
            "The runtimes differ: AMD extension 1.22 instead of 1.20; fabric handles yes instead of no.",
            "3 workarounds are needed only with A: peer_after_owner_fails (rocm-systems#9908, \
             openxla/xla#46576), some_calls_take_no_lock (ROCR-Runtime: \
             Runtime::VMemoryExportShareableHandle), export_keeps_descriptor (rocm-systems#10604).",
            ALL_SAME,
        ],
    },
    Comparison {
        a: 'a',
        b: 'd',
        sentences: &[
            "The runtimes differ: AMD extension 1.22 instead of 1.7; fabric handles yes instead of no.",
            "B exports hsa_amd_portable_export_dmabuf_v2, hsa_amd_vmem_export_fabric_handle, \
             hsa_amd_vmem_import_fabric_handle, A does not.",
            "5 workarounds are needed only with A: unmap_of_several_fails (ROCR-Runtime#285), \
             cpu_unmap_leaves_hole (ROCR-Runtime: MappedHandleAllowedAgent::RemoveAccess), grant_without_descriptor_aborts \
             (ROCR-Runtime: MappedHandleAllowedAgent), some_calls_take_no_lock (ROCR-Runtime: \
             Runtime::VMemoryExportShareableHandle), ipc_server_outlives_stop \
             (rocm-systems#3256).",
            "3 workarounds are needed only with B: unmap_keeps_memory (torch_memory_saver#83, #84, vllm#46203), \
             import_is_lazy (rocm-systems#6471, #11606, #12228), import_needs_descriptor \
             (rocm-systems#8440, #12228).",
            IMPORT_FAILS,
            OTHERS_SAME,
        ],
    },
];

// In these sentences, N stands for the number of cases that no other sentence names. The tests require more than 250.
const ALL_SAME: &str = "All N cases have the same result.";
const OTHERS_SAME: &str = "The other N cases have the same result.";
const IPC_PASSES: &str = "2 cases pass in B and not in A: ipc.open.same_memory, ipc.open.twice.";
const DMABUF_V2: &str = "B exports hsa_amd_portable_export_dmabuf_v2, A does not.";
const KEEPS_MEMORY: &str = "1 workaround is needed only with B: unmap_keeps_memory \
    (torch_memory_saver#83, #84, vllm#46203).";
/// The beginning of a sentence. In the output, the result of the case follows.
const IMPORT_FAILS: &str = "1 case fails in B, a known failure: share.import.not_memory (since ROCm \
    7.14, and in rocddi, only set_access checks an imported descriptor (rocm-systems#6471: set_access \
    imports the descriptor; #12228): ";

/// Checks that `diff` printed the expected sentences.
fn assert_sentences(sentences: &Value, expected: &[&str], context: &str) {
    let sentences: Vec<_> =
        sentences.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(sentences.len(), expected.len(), "{context}: {sentences:#?}");
    for (sentence, expected) in sentences.iter().zip(expected) {
        let matches = match expected.split_once(" N ") {
            Some((begin, end)) => sentence
                .strip_prefix(begin)
                .and_then(|rest| rest.strip_suffix(end))
                .is_some_and(|number| number.trim().parse::<usize>().is_ok_and(|it| it > 250)),
            None if *expected == IMPORT_FAILS => sentence.starts_with(expected),
            None => sentence == expected,
        };
        assert!(matches, "{context}: {sentence}\ninstead of {expected}");
    }
}

fn diff(a: &Path, b: &Path) -> Value {
    let output = run(&["diff", a.to_str().unwrap(), b.to_str().unwrap(), "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    json(&output)
}

/// Runs `conform` and writes its report to `file`. Panics if `conform` fails.
fn conform(file: &Path, start: &[&str], options: &[&str]) {
    let subcommand = ["conform", "--format", "json", "-o", file.to_str().unwrap()];
    let output = run(&[start, &subcommand, options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).is_empty(), "{output:?}");
}

/// Runs the cases on a release, and returns the report, without the known failure of ROCm 6.1.2 when it stops. The
/// contents of freed memory decide whether the runtime crashes there.
fn conform_on(release: Release, file: &Path) -> Value {
    let start = ["emulate", "--rocr", release.version(), "--gpus", "2", "--", HSA_VMM];
    conform(file, &start, &[]);
    let mut report: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let cases = report["cases"].as_array_mut().unwrap();
    cases.retain(|case| case["name"] != "runtime.library.stops" || case["status"] != "known");
    fs::write(file, report.to_string()).unwrap();
    report
}

#[test]
fn diff_of_releases_is_complete() {
    let name = "diff_of_releases_is_complete";
    let Some(fetched_releases) = test::fetch_releases(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let report = |release: Release| folder.path().join(format!("{}.json", release.version()));
    let mut available = Vec::new();
    for release in fetched_releases.iter().map(|fetched| fetched.release()) {
        let value = conform_on(release, &report(release));
        assert_eq!(value["runtime"]["driver"], "emulated");
        available.push(release);
    }
    for Comparison { a, b, sentences } in RELEASES {
        if available.contains(&a) && available.contains(&b) {
            let context = format!("{} and {}", a.version(), b.version());
            assert_sentences(&diff(&report(a), &report(b))["words"], sentences, &context);
        }
    }
    if !test::is_long() {
        return;
    }
    // Two runs of the same release do not differ.
    let second = folder.path().join("second.json");
    let release = available[0];
    conform_on(release, &second);
    let differences = diff(&report(release), &second);
    assert_eq!(differences["differs"], false, "{differences}");
}

#[test]
fn diff_of_generations_is_complete() {
    if !test::runs_long_test("diff_of_generations_is_complete") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = |generation: char| folder.path().join(format!("{generation}.json"));
    for generation in ['a', 'b', 'c', 'd'] {
        conform(
            &report(generation),
            &[],
            &["--runtime", "sim", "--sim", &format!("era={generation}")],
        );
    }
    for Comparison { a, b, sentences } in GENERATIONS {
        assert_sentences(
            &diff(&report(a), &report(b))["words"],
            sentences,
            &format!("generations {a} and {b}"),
        );
    }
    let second = folder.path().join("second.json");
    conform(&second, &[], &["--runtime", "sim", "--sim", "era=a"]);
    let differences = diff(&report('a'), &second);
    assert_eq!(differences["differs"], false, "{differences}");
}

/// Writes a report of a correct and a report of a broken runtime. Both reports contain only the cases `share.export`.
fn write_correct_and_broken(folder: &Path) -> [PathBuf; 2] {
    let files = ["correct.json", "broken.json"].map(|name| folder.join(name));
    let faults = "faults=hsa_amd_vmem_export_shareable_handle=0x1000";
    for (file, (config, status)) in files.iter().zip([("era=b", 0), (faults, 1)]) {
        let options = ["--runtime", "sim", "--sim", config, "--filter", "share.export"];
        let subcommand = ["conform", "--format", "json", "--output", file.to_str().unwrap()];
        let code = run(&[&subcommand[..], &options].concat()).status.code();
        assert_eq!(code, Some(status));
    }
    files
}

fn run_diff(a: &Path, b: &Path, options: &[&str]) -> Output {
    run(&[&["diff", a.to_str().unwrap(), b.to_str().unwrap()], options].concat())
}

#[test]
fn diff_exits_with_1_on_new_failures() {
    let folder = tempfile::tempdir().unwrap();
    let [correct, broken] = &write_correct_and_broken(folder.path());
    let code = |a, b, options| run_diff(a, b, options).status.code();
    assert_eq!(code(correct, broken, &[]), Some(1));
    assert_eq!(code(broken, correct, &[]), Some(0), "the case no longer fails");
    assert_eq!(code(broken, broken, &[]), Some(0), "the case failed before");
    assert_eq!(code(broken, correct, &["--exit-code"]), Some(1));
    assert_eq!(code(broken, broken, &["--exit-code"]), Some(0));
    assert_eq!(code(correct, broken, &["--format", "nonsense"]), Some(2));
    assert_eq!(run(&["diff", correct.to_str().unwrap()]).status.code(), Some(2));

    let output = run_diff(correct, broken, &[]);
    let text = stdout(&output);
    assert!(text.starts_with("A  ") && text.contains("correct.json: simulation, extension 1.15"));
    assert!(text.contains("cases fail in B and not in A: share.export."), "{text}");
    assert!(text.contains("FAIL") && text.contains("HSA_STATUS_ERROR (0x1000)"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours in a pipe");
    let value = json(&run_diff(correct, broken, &["--format", "json"]));
    assert!(value["worse"].as_u64().unwrap() > 3 && value["differs"] == true, "{value}");
    let case = &value["diff"]["cases"][0];
    assert_eq!((&case["kind"], &case["a"]["status"]), (&"fails_now".into(), &"pass".into()));
    let help = stdout(&run(&["diff", "--help"]));
    assert!(help.contains("jq '.diff.cases[] | select(.kind == \"fails_now\")'"), "{help}");
}

#[test]
fn diff_accepts_info_and_rejects_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let [info, more] = &["info.json", "more.json"].map(|name| folder.path().join(name));
    for (file, gpus) in [(info, "2"), (more, "3")] {
        let output = run(&["info", "--runtime", "sim", "--gpus", gpus, "--format", "json"]);
        fs::write(file, output.stdout).unwrap();
    }
    let text = stdout(&run_diff(info, more, &[]));
    assert!(text.contains("GPU 2 is only in B."), "{text}");
    assert!(text.contains("Cases are not compared"), "{text}");

    let [correct, _] = &write_correct_and_broken(folder.path());
    let text = stdout(&run_diff(info, correct, &[]));
    assert!(!text.contains("permissions"), "{text}");
    let page = folder.path().join("report.html");
    let subcommand =
        ["conform", "--runtime", "sim", "--filter", "pool.size.told", "--format", "html"];
    assert!(run(&[&subcommand[..], &["-o", page.to_str().unwrap()]].concat()).status.success());
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    let half = folder.path().join("half.json");
    let bytes = fs::read(correct).unwrap();
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    for file in [&page, &half] {
        for (a, b) in [(correct, file), (file, correct)] {
            let output = run_diff(a, b, &[]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            assert!(
                stdout(&output).is_empty() && stderr(&output).contains("is not a report"),
                "{output:?}"
            );
            assert!(stderr(&output).contains(file.to_str().unwrap()), "{output:?}");
        }
    }
    let output = run_diff(correct, Path::new("/nowhere/report.json"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot read /nowhere/report.json"), "{}", stderr(&output));
}

#[test]
fn output_is_written_completely_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let subcommand = ["conform", "--runtime", "sim", "--filter", "pool.size.told"];
    for format in ["table", "json", "junit", "html"] {
        let to_file = ["--format", format, "-o", file.to_str().unwrap()];
        let output = run(&[&subcommand[..], &to_file].concat());
        assert!(output.status.success() && stdout(&output).is_empty(), "{output:?}");
        assert!(
            stderr(&output).ends_with("1 passed, 0 failed, 0 skipped\n"),
            "{}",
            stderr(&output)
        );
        assert!(fs::read_to_string(&file).unwrap().contains("pool.size.told"), "{format}");
    }
    // The output is a full disk, or a path that cannot be created.
    let nowhere = folder.path().join("none/report");
    for (path, message) in [
        (Path::new("/dev/full"), "No space left"),
        (&nowhere, "No such file"),
        (folder.path(), "directory"),
        (Path::new("/proc/report"), "cannot write"),
    ] {
        let output = run(&[&subcommand[..], &["-o", path.to_str().unwrap()]].concat());
        let has_run = path == Path::new("/dev/full");
        assert_eq!(output.status.code(), Some(2), "{path:?}: {output:?}");
        assert!(
            stderr(&output).contains(&format!("cannot write {}", path.display())),
            "{output:?}"
        );
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        // `conform` rejects an unwritable path before it runs the cases. If it cannot write the report after the run,
        // it prints the report.
        assert_eq!(stderr(&output).contains("1 passed"), has_run, "{}", stderr(&output));
        assert_eq!(stdout(&output).contains("pool.size.told"), has_run, "{}", stdout(&output));
    }
    // If the report does not fit (here, `ulimit -f` limits the size of files), the existing file stays unchanged, and
    // only the partial results remain beside it, for `--resume`.
    fs::write(&file, "before").unwrap();
    let limited = format!(
        "ulimit -f 8; trap '' XFSZ; exec {HSA_VMM} conform --runtime sim --filter 'map.*' \
         --format html -o {}",
        file.display()
    );
    let output = Command::new("sh").args(["-c", &limited]).env_remove("HSA_SIM").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    assert!(
        stdout(&output).trim_end().ends_with("</html>"),
        "the whole page: {}",
        stdout(&output).len()
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let files: BTreeSet<_> = files.collect();
    let partial = folder.path().join("report.partial");
    assert_eq!(files, ["report", "report.partial"].map(OsString::from).into());
    fs::remove_file(partial).unwrap();
    // If the path is a symbolic link, `conform` keeps the link, and the link's target keeps its permissions.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link");
    symlink(&file, &link).unwrap();
    assert!(run(&[&subcommand[..], &["-o", link.to_str().unwrap()]].concat()).status.success());
    assert!(link.is_symlink() && fs::read_to_string(&file).unwrap().contains("pool.size.told"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(run(&[&subcommand[..], &["-o", "/dev/null"]].concat()).status.success());
}
