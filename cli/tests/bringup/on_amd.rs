//! The levels of `bringup` on releases of AMD's runtime. The emulated driver works, or has planned faults. Some tests
//! have no driver at all.

use super::{LEVELS, assert_contains, failed_level, report};
use crate::run_command::{HSA_VMM, command, json, run, stderr, stdout};
use hsa_rocr::{FetchedRelease, Release, test};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

pub fn run_emulated(fetched: &FetchedRelease, options: &[&str], arguments: &[&str]) -> Output {
    let release = fetched.release();
    let release = release.version();
    let start = ["emulate", "--gpus", "2", "--rocr", release];
    let subcommand = ["--", HSA_VMM, "bringup"];
    run(&[&start, options, &subcommand, arguments].concat())
}

#[test]
fn amds_runtime_reaches_every_level() {
    let name = "on_amd::amds_runtime_reaches_every_level";
    for fetched in test::fetch_selected_releases(name) {
        // The level `killed` counts memory of another process, so it needs one emulated machine for all processes.
        // Here, each process has its own machine, and the level is skipped.
        for (profile, skipped) in [("mi300x", &["killed"][..]), ("apu", &["peer", "killed"])] {
            let output = run_emulated(fetched, &["--machine", profile], &["--format", "json"]);
            let report = report(&output, 0);
            let release = fetched.release();
            assert_eq!(failed_level(&report), None, "{release}: {report:#}");
            let path = report["runtime"].as_str().unwrap();
            // The release's folder may be a symbolic link.
            let root = std::fs::canonicalize(fetched.root()).unwrap();
            assert!(Path::new(path).starts_with(root), "{release}: {path}");
            for level in report["levels"].as_array().unwrap() {
                let is_skipped =
                    level["level"].as_str().is_some_and(|level| skipped.contains(&level));
                let expected = if is_skipped { "skipped" } else { "reached" };
                assert_eq!(level["status"], expected, "{release}, {profile}: {level:#}");
                let unlisted = level["asked_besides"].as_array().unwrap();
                assert!(
                    unlisted.is_empty(),
                    "{release}: the level requests {unlisted:?}, which its table of calls omits"
                );
            }
            let probes = report["probes"].as_array().unwrap();
            let agree = probes.iter().all(|it| it["expected"] == it["found"]);
            assert!(!probes.is_empty() && agree, "{release}, {profile}: {probes:#?}");
        }
    }
}

/// Some levels replace page-table entries. These levels pass whether new entries take effect at once or later.
/// The levels fail if the driver does not write the new entries, or writes entries that allow too much access.
#[test]
fn replaced_entries_are_checked_in_every_mode() {
    let name = "on_amd::replaced_entries_are_checked_in_every_mode";
    let until = ["--until", "permission", "--format", "json"];
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        for mode in ["", "tlb=on,split_bug=on", "pte_delay=600s,tlb=on,split_bug=on"] {
            let start = ["emulate", "--gpus", "2", "--rocr", release.version(), "--", HSA_VMM];
            let mut command = command(&[&start[..], &["bringup"], &until].concat());
            let report = report(&command.env("HSA_KFD", mode).output().unwrap(), 0);
            let levels = report["levels"].as_array().unwrap().iter();
            let reached = levels.filter(|level| level["status"] == "reached").count();
            // The level `permission` is the fourteenth.
            assert_eq!(reached, 14, "{release} {mode:?}: {report:#}");
        }
        // With the fault `wide`, every entry allows writes.
        let faults = [("GEM_VA.REPLACE=lost", "offset"), ("GEM_VA=wide", "permission")];
        for (fault, expected) in faults {
            let report = report(&run_emulated(fetched, &["--fault", fault], &until), 1);
            assert_eq!(failed_level(&report), Some(expected), "{release}, {fault}: {report:#}");
            assert_eq!(report["failure"]["call"]["name"], "amdgpu_bo_va_op_raw", "{report:#}");
        }
    }
}

/// Counts the driver calls in a log that `bringup --log` wrote: for each level, the number of calls by name.
fn driver_calls_by_level(log: &str) -> Vec<BTreeMap<String, usize>> {
    let mut levels: Vec<BTreeMap<String, usize>> = Vec::new();
    for line in log.lines() {
        if line.starts_with("== ") {
            levels.push(BTreeMap::new());
        } else if let Some((_, line)) = line.split_once("  driver  ") {
            let call = line.split(' ').nth(3).unwrap().to_owned();
            *levels.last_mut().unwrap().entry(call).or_default() += 1;
        }
    }
    levels
}

#[test]
fn driver_fault_fails_its_level() {
    let name = "on_amd::driver_fault_fails_its_level";
    // The level, the driver call and error to inject, and the runtime call that then fails.
    let plans = [
        ("runtime", "GET_VERSION", "EPERM", "hsa_init"),
        ("handle", "ALLOC_MEMORY_OF_GPU", "ENOMEM", "hsa_amd_vmem_handle_create"),
        ("mapped", "EXPORT_DMABUF", "EMFILE", "hsa_amd_vmem_map"),
        ("cpu", "MMAP", "ENOMEM", "hsa_amd_vmem_set_access"),
        ("gpu", "GEM_VA", "EINVAL", "hsa_amd_vmem_set_access"),
        ("at_once", "PRIME_FD_TO_HANDLE", "EIO", "hsa_amd_vmem_"),
        ("shared", "IMPORT_DMABUF", "EINVAL", "hsa_amd_vmem_import_shareable_handle"),
        ("load", "PRIME_FD_TO_HANDLE", "ENOSPC", "hsa_amd_vmem_"),
    ];
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let output = run_emulated(fetched, &[], &["--log", log.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let levels = driver_calls_by_level(&std::fs::read_to_string(log).unwrap());
        let release = fetched.release();
        for (mut level, request, error, mut call) in plans {
            // In ROCm 6.1.2, a reservation also calls `ALLOC_MEMORY_OF_GPU`.
            if release == Release::R6_1_2 && level == "handle" {
                (level, call) = ("reserved", "hsa_amd_vmem_address_reserve");
            }
            // Each level runs in a new process, in which the fault plan counts from 1. No earlier level makes more than
            // `before` of these driver calls. Therefore, a fault after `before` calls fails no earlier level.
            let level_index = LEVELS.iter().position(|name| *name == level).unwrap();
            let count = |level: &BTreeMap<_, _>| level.get(request).copied().unwrap_or(0);
            let before = levels[..level_index].iter().map(count).max().unwrap_or(0);
            assert!(count(&levels[level_index]) > before, "{release}, {level}: {levels:?}");
            // A fault plan also counts the calls of the runtime's own threads. The log does not contain these calls.
            // Therefore, the test tries several numbers.
            let report = (before + 1..before + 6).find_map(|number| {
                // Make later calls fail, too: the runtime may release its caches and try again.
                let plan = format!("{request}#{number}-100000={error}");
                let output = run_emulated(fetched, &["--fault", &plan], &["--format", "json"]);
                let report = json(&output);
                match failed_level(&report) {
                    Some(failed) if failed == level => {
                        let status = if level == "runtime" { 3 } else { 1 };
                        assert_eq!(output.status.code(), Some(status), "{release}, {plan}");
                        Some(report)
                    }
                    _ => None,
                }
            });
            let plan = format!("{request}={error} at {level}");
            let report =
                report.unwrap_or_else(|| panic!("{release}: {plan} failed no call of the level"));
            let failure = &report["failure"];
            let failed_call = failure["call"]["name"].as_str().unwrap();
            assert!(failed_call.starts_with(call), "{release}, {plan}: {failed_call}");
            let line = format!("{request} ");
            let driver = failure["driver"].as_array().unwrap().iter();
            let mut driver = driver.map(|line| line.as_str().unwrap());
            let shown =
                driver.any(|shown| shown.contains(&line) && shown.contains(&format!("= {error}")));
            assert!(shown, "{release}, {plan}: {failure:#}");
            let rests_on = failure["rests_on"].as_array().unwrap().iter();
            let failed: Vec<_> = rests_on.filter(|used| used["answer"] == "error").collect();
            assert_eq!(failed.len(), 1, "{release}, {plan}: {failure:#}");
            assert_contains(failed[0]["log"].as_str().unwrap(), &[request]);
            assert_contains(&failure["try_next"].to_string(), &[error, request]);
        }
    }
}

#[test]
fn misbehaving_driver_call_fails_its_level() {
    let name = "on_amd::misbehaving_driver_call_fails_its_level";
    // The fault, the level that detects it, the reported call, the reported kernel function, and part of the message.
    let plans = [
        (
            "COPY=garbled",
            "data",
            "hsa_amd_memory_async_copy",
            "",
            "copied wrong data to va (written by gpu[0] (SDMA), read by the CPU): 1 of 4096 32-bit \
             words differs, from offset 0x0 to 0x3",
        ),
        ("COPY=half", "gpu", "hsa_amd_memory_async_copy", "", "copied wrong data from va"),
        (
            "FILL=garbled",
            "blit",
            "hsa_amd_memory_fill",
            "",
            "memory was not filled (written by gpu[0] (blit shader), read by gpu[0] (blit shader)): 1 of",
        ),
        ("GEM_VA.MAP=lost", "gpu", "hsa_amd_vmem_set_access", "amdgpu_gem_va_ioctl", "faulted"),
        ("GEM_VA.MAP=half", "data", "hsa_amd_vmem_set_access", "amdgpu_gem_va_ioctl", "faulted"),
        (
            "GEM_VA.MAP=shifted",
            "data",
            "hsa_amd_vmem_set_access",
            "amdgpu_gem_va_ioctl",
            "different memory at one address",
        ),
        ("GEM_VA.UNMAP=lost", "unmapped", "hsa_amd_vmem_unmap", "amdgpu_gem_va_ioctl", "again"),
        (
            "GEM_VA.UNMAP=stale:50ms",
            "unmapped",
            "hsa_amd_vmem_unmap",
            "amdgpu_gem_va_ioctl",
            "still",
        ),
        (
            "PRIME_FD_TO_HANDLE=evict",
            "peer",
            "hsa_amd_vmem_set_access",
            "drm_prime_fd_to_handle_ioctl",
            "no longer accesses its memory",
        ),
        ("GEM_VA.UNMAP=late:5ms", "unmapped", "hsa_amd_vmem_unmap", "amdgpu_gem_va_ioctl", "again"),
        (
            "FREE_MEMORY_OF_GPU=leak",
            "counted",
            "hsa_amd_vmem_handle_release",
            "kfd_ioctl_free_memory_of_gpu",
            "bytes are missing",
        ),
        ("GEM_CLOSE=leak", "counted", "hsa_amd_vmem_unmap", "drm_gem_close_ioctl", "are missing"),
        (
            "AVAILABLE_MEMORY=half",
            "counted",
            "hsa_agent_get_info",
            "kfd_ioctl_get_available_memory",
            "of the available memory",
        ),
        (
            "AVAILABLE_MEMORY#2-=EIO",
            "counted",
            "hsa_agent_get_info",
            "kfd_ioctl_get_available_memory",
            "hsa_agent_get_info returned HSA_STATUS_ERROR_INVALID_ARGUMENT",
        ),
        (
            "EXPORT_DMABUF=leak",
            "descriptors",
            "hsa_amd_vmem_map",
            "kfd_ioctl_export_dmabuf",
            "open",
        ),
        (
            "EXPORT_DMABUF=other",
            "shared",
            "hsa_amd_vmem_export_shareable_handle",
            "kfd_ioctl_export_dmabuf",
            "the export, not the import, returned other memory",
        ),
    ];
    let fetched_releases: Vec<_> = test::fetch_releases(name).into_iter().flatten().collect();
    let is_long = test::is_long();
    for (index, fetched) in fetched_releases.iter().enumerate() {
        let release = fetched.release();
        for (number, (plan, level, call, function, words)) in plans.into_iter().enumerate() {
            // With `HSA_VMM_PLANTED=all`, run each plan on every release. Otherwise, run each plan on one release, and
            // leave out every second plan if `HSA_VMM_LONG` is not set.
            let runs_all =
                std::env::var("HSA_VMM_PLANTED").is_ok_and(|selection| selection == "all");
            let is_selected =
                number % fetched_releases.len() == index && (is_long || number % 2 == 0);
            if !runs_all && !is_selected {
                continue;
            }
            let output = run_emulated(fetched, &["--fault", plan], &["--format", "json"]);
            let report = report(&output, 1);
            assert_eq!(failed_level(&report), Some(level), "{release}, {plan}: {report:#}");
            let failure = &report["failure"];
            assert_eq!(failure["call"]["name"], call, "{release}, {plan}: {failure:#}");
            assert_contains(failure["what"].as_str().unwrap(), &[words]);
            assert_contains(&failure["rests_on"].to_string(), &[function]);
            if failure["kind"] == "wrong" && !function.is_empty() {
                let first = failure["try_next"][0].as_str().unwrap_or_default();
                assert_contains(first, &["suspect", function]);
            }
        }
    }
}

#[test]
fn memory_of_killed_process_is_counted_on_one_machine() {
    let name = "on_amd::memory_of_killed_process_is_counted_on_one_machine";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let release = release.version();
        let machine = format!("machine=killed{}", std::process::id());
        let arguments =
            ["emulate", "--rocr", release, "--", HSA_VMM, "bringup", "--format", "json"];
        let output = command(&arguments).env("HSA_KFD", machine).output().unwrap();
        let report = report(&output, 0);
        let level = report["levels"].as_array().unwrap().last().unwrap().clone();
        assert_eq!((&level["level"], &level["status"]), (&"killed".into(), &"reached".into()));
    }
}

/// The list of calls ends with the step that shows the failure, after the call that is the cause.
#[test]
fn calls_include_the_step_that_shows_the_failure() {
    let name = "on_amd::calls_include_the_step_that_shows_the_failure";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, level, call, last) in [
            // The GPU faults while the runtime starts the copy, or later. Therefore, the last call can be any HSA call.
            ("GEM_VA.MAP=lost", "gpu", "hsa_amd_vmem_set_access(", "hsa_"),
            ("COPY=garbled", "data", "hsa_amd_memory_async_copy(va=", "compare("),
            ("GEM_VA.UNMAP=lost", "unmapped", "hsa_amd_vmem_unmap(", "hsa_amd_vmem_set_access("),
            (
                "AVAILABLE_MEMORY=half",
                "counted",
                "hsa_agent_get_info(",
                "hsa_amd_vmem_handle_release(",
            ),
            (
                "EXPORT_DMABUF=other",
                "shared",
                "hsa_amd_vmem_export_shareable_handle(",
                "other process: mmap(",
            ),
        ] {
            let arguments = ["--until", level, "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some(level), "{fault}: {report:#}");
            let failure = &report["failure"];
            let calls: Vec<_> = failure["calls"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap())
                .collect();
            let end = calls.last().unwrap();
            assert!(end.starts_with(last), "{fault}: {calls:#?}");
            let has_cause = calls[..calls.len() - 1].iter().any(|line| line.starts_with(call));
            assert!(has_cause, "{fault}: {calls:#?}");
            if fault == "COPY=garbled" {
                // The cause is the copy that writes the memory, not the copy that reads it.
                assert_eq!(failure["call"]["arguments"][0]["name"], "va", "{failure:#}");
            }
            if fault == "GEM_VA.UNMAP=lost" {
                let what = failure["what"].as_str().unwrap();
                assert_contains(
                    what,
                    &["again", "hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"],
                );
                assert_eq!(failure["failed_requests_are_later"], true, "{failure:#}");
                assert_contains(&failure["failed_requests"].to_string(), &["operation=MAP"]);
                let first = failure["try_next"][0].as_str().unwrap();
                let words =
                    ["amdgpu_gem_va_ioctl first", "DRM_IOCTL_AMDGPU_GEM_VA", "operation UNMAP"];
                assert_contains(first, &words);
                // The GPU has not accessed the memory, because the grant failed.
                assert!(!failure["try_next"].to_string().contains("old page-table entry"));
                assert!(!failure["runtime"].to_string().contains("hsaKmtAllocMemoryAlign"));
            }
        }
    }
}

#[test]
fn missing_driver_is_reported_with_advice() {
    let name = "on_amd::missing_driver_is_reported_with_advice";
    if Path::new("/dev/kfd").exists() {
        return;
    }
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let release = release.version();
        let output = run(&["rocr", "run", "--rocr", release, "--", HSA_VMM, "bringup"]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert_contains(
            &stdout(&output),
            &[
                "✗ runtime starts",
                "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
                "kfd_open",
                "✗ /dev/kfd is missing",
                "--device /dev/kfd",
                "strace",
            ],
        );
    }
}

/// One copy or fill is wrong. In the levels `data`, `blit` and `reused`, a second copy shows which.
#[test]
fn single_wrong_copy_is_the_suspect() {
    let (copy, fill) = ("hsa_amd_memory_async_copy", "hsa_amd_memory_fill");
    let name = "on_amd::single_wrong_copy_is_the_suspect";
    let right = "a second copy is right";
    let fetched_releases = test::fetch_releases(name).unwrap_or_default().iter();
    for fetched in fetched_releases.filter(|fetched| fetched.release() == Release::R7_2_4) {
        for (plan, level, call, what) in [
            ("COPY#1=half", "gpu", copy, right),
            ("COPY#6=garbled", "data", copy, right),
            ("COPY#9=garbled", "data", copy, right),
            ("COPY#6=half", "data", copy, right),
            ("COPY#6=lost", "data", copy, right),
            ("COPY#9=late:100ms", "data", copy, "end only some time after their signal"),
            ("COPY#10=garbled", "blit", copy, right),
            ("COPY#10=half", "blit", copy, right),
            ("COPY#10=lost", "blit", copy, right),
            ("COPY#13=late:100ms", "blit", copy, "end only some time after their signal"),
            ("COPY#17=lost", "reused", copy, right),
            ("COPY#23=half", "reused", copy, right),
            ("COPY#24=late:100ms", "reused", copy, "end only some time after their signal"),
            ("FILL#1=garbled", "blit", fill, "memory was not filled"),
            ("FILL#1=lost", "blit", fill, "memory was not filled"),
            ("FILL#1=late:100ms", "blit", fill, "memory was filled only some time after"),
        ] {
            let arguments = ["--until", "reused", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", plan], &arguments), 1);
            assert_eq!(failed_level(&report), Some(level), "{plan}: {report:#}");
            let failure = &report["failure"];
            assert_eq!(failure["call"]["name"], call, "{plan}: {report:#}");
            assert_contains(failure["what"].as_str().unwrap(), &[what]);
            let first = failure["try_next"][0].as_str().unwrap();
            assert_contains(first, &[if call == copy { "fence" } else { "fill" }]);
            assert!(call == copy || !first.contains("source"), "{plan}: {first}");
        }
    }
}

#[test]
fn c_program_repeats_the_failure() {
    let name = "on_amd::c_program_repeats_the_failure";
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("repeat.c"), folder.path().join("repeat"));
        for (plan, words) in [
            ("EXPORT_DMABUF#1=EMFILE", &["hsa_amd_vmem_map(va, size, 0, memory, 0)"][..]),
            ("GEM_VA#1=EINVAL", &["hsa_amd_vmem_set_access", "gpu[0]"]),
            ("IMPORT_DMABUF=EINVAL", &["hsa_amd_vmem_import_shareable_handle(dmabuf"]),
            ("GEM_VA#9-100000=EINVAL", &["hsa_amd_vmem_"]),
            // All calls succeed. Only the comparison of data shows the failure.
            ("COPY=garbled", &["at offset 0: expected 0xda7a0001, found 0xda7a0000"]),
        ] {
            let arguments = ["--program", source.to_str().unwrap()];
            let output = run_emulated(fetched, &["--fault", plan], &arguments);
            assert_eq!(output.status.code(), Some(1), "{plan}: {}", stdout(&output));
            compile(fetched, &source, &program);
            let release = fetched.release();
            let release = release.version();
            let start = ["emulate", "--gpus", "2", "--rocr", release];
            let program = program.to_str().unwrap();
            let with_fault = run(&[&start[..], &["--fault", plan, "--", program]].concat());
            assert_contains(&stderr(&with_fault), words);
            let has_status = plan != "COPY=garbled";
            assert!(!has_status || stderr(&with_fault).contains("returned 0x"), "{with_fault:?}");
            // Without the fault, the program succeeds.
            let without_fault = run(&[&start[..], &["--", program]].concat());
            assert!(without_fault.status.success(), "{release}, {plan}: {without_fault:?}");
            assert_contains(&stdout(&without_fault), &["all calls succeeded"]);
        }
    }
}

/// The program does not compare numbers of bytes and descriptors. It prints them.
#[test]
fn c_program_prints_numbers() {
    let name = "on_amd::c_program_prints_numbers";
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("repeat.c"), folder.path().join("repeat"));
        for (plan, words) in [
            ("AVAILABLE_MEMORY=lost", "0 bytes are available\n"),
            ("EXPORT_DMABUF=leak", " descriptors are open\n"),
        ] {
            let arguments = ["--program", source.to_str().unwrap()];
            run_emulated(fetched, &["--fault", plan], &arguments);
            compile(fetched, &source, &program);
            let release = fetched.release();
            let start = ["emulate", "--gpus", "2", "--rocr", release.version(), "--fault", plan];
            let output = run(&[&start[..], &["--", program.to_str().unwrap()]].concat());
            assert_contains(&stdout(&output), &[words, "compare the printed numbers"]);
        }
    }
}

fn compile(fetched: &FetchedRelease, source: &Path, program: &Path) {
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(program)
        .arg(source)
        .arg(fetched.runtime())
        .args(["-Wl,--allow-shlib-undefined", "-lpthread"])
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
