//! The cause and the advice that a report of `bringup` gives for faults of the emulated driver.

use super::on_amd::run_emulated;
use super::{assert_contains, command_with_mount, failed_level, report};
use crate::run_command::{HSA_VMM, command, json, run, stderr, stdout};
use hsa_rocr::test;
use std::process::Output;

/// `bringup` lets the CPU read the exported dma-buf without an import, to find out whether the export or the import is
/// wrong.
#[test]
fn wrong_export_and_wrong_import_are_distinguished() {
    let name = "reports_on_amd::wrong_export_and_wrong_import_are_distinguished";
    let (export, import) =
        ("hsa_amd_vmem_export_shareable_handle", "hsa_amd_vmem_import_shareable_handle");
    for fetched in test::fetch_selected_releases(name) {
        for (fault, call, words) in [
            (
                "EXPORT_DMABUF=other",
                export,
                "the export, not the import, returned other memory: without an import, the dma-buf \
                 contains wrong data (written by gpu[0] of process 1, read by the CPU of process 2 by \
                 mmap): ",
            ),
            (
                "IMPORT_DMABUF=other",
                import,
                "the import, not the export, returned other memory: without an import, the dma-buf \
                 contains the right data, but the imported memory contains wrong data (written by gpu[0] of \
                 process 1, read by gpu[0] (SDMA) of process 2): 1024 of 1024 32-bit words differ, from offset 0x0 to 0xfff; at 0x0: ",
            ),
        ] {
            let arguments = ["--until", "shared", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some("shared"), "{fault}: {report:#}");
            assert_eq!(report["failure"]["call"]["name"], call, "{fault}: {report:#}");
            assert_contains(report["failure"]["what"].as_str().unwrap(), &[words]);
        }
    }
}

/// The report lists the failed requests before the interfaces and the advice. If a driver reports version 0, the first
/// advice says so.
#[test]
fn causes_come_first_in_the_report() {
    let name = "reports_on_amd::causes_come_first_in_the_report";
    for fetched in test::fetch_selected_releases(name) {
        let output = run_emulated(fetched, &["--fault", "GEM_VA=ENOMEM"], &["--until", "gpu"]);
        let text = stdout(&output);
        let failed = "Requests to the emulated driver that failed or have not returned\n  ";
        let (before, after) = text.split_once(failed).unwrap_or_else(|| panic!("{text}"));
        assert!(before.contains("✗ GPU access"), "{text}");
        let first = after.lines().next().unwrap();
        assert_contains(first, &[" GEM_VA handle=", " = ENOMEM "]);
        assert_contains(after, &["Kernel interfaces of this call", "Try next"]);

        for (fault, version) in [
            ("VERSION=lost", "/dev/dri/renderD128 has interface version 0.0.0: "),
            ("GET_VERSION=lost", "/dev/kfd has interface version 0.0: "),
        ] {
            let arguments = ["--until", "runtime", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 3);
            let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
            assert_contains(first, &[version]);
        }

        for (fault, level, suspect) in [
            ("PRIME_FD_TO_HANDLE=lost", "mapped", "drm_prime_fd_to_handle_ioctl first"),
            ("GEM_VA.MAP=lost", "gpu", "suspect the kernel's amdgpu_gem_va_ioctl first"),
        ] {
            let arguments = ["--until", level, "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some(level), "{fault}: {report:#}");
            let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
            assert_contains(first, &[suspect]);
        }

        for (fault, what) in [
            ("AVAILABLE_MEMORY=lost", "no memory is available: 0 bytes are available of a pool of"),
            ("AVAILABLE_MEMORY=double", "more memory is available than exists: "),
        ] {
            let arguments = ["--until", "pools", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some("pools"), "{fault}: {report:#}");
            assert_contains(report["failure"]["what"].as_str().unwrap(), &[what]);
        }
    }
}

#[test]
fn redacted_log_omits_the_runtimes_output() {
    let name = "reports_on_amd::redacted_log_omits_the_runtimes_output";
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let arguments = ["--until", "agents", "--log", log.to_str().unwrap()];
        for (redact, has_output) in [(&[][..], true), (&["--redact"], false)] {
            let output = run_emulated(fetched, &[], &[&arguments, redact].concat());
            assert!(output.status.success(), "{output:?}");
            let text = std::fs::read_to_string(&log).unwrap();
            assert_contains(&text, &["          driver  ", "kfd ACQUIRE_VM "]);
            assert_eq!(text.contains("          runtime "), has_output, "{text}");
        }
    }
}

/// The commands in the advice use the emulated driver. No advice is about the kernel of this computer.
#[test]
fn advice_is_for_the_emulated_driver() {
    let name = "reports_on_amd::advice_is_for_the_emulated_driver";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, until, exit, expected) in [
            ("GEM_VA.MAP=crash", "gpu", 1, " -- gdb -ex run -ex sharedlibrary -ex bt ./repeat"),
            ("OPEN=EIO", "runtime", 3, "emulate --log FILE"),
            ("COPY=garbled", "data", 1, "emulate --page-tables FILE"),
        ] {
            let arguments = ["--until", until, "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), exit);
            let advice = report["failure"]["try_next"].to_string();
            assert_contains(&advice, &[expected]);
            for wrong in ["dmesg", "strace", "/proc/", "/sys/"] {
                assert!(!advice.contains(wrong), "{wrong}: {advice}");
            }
        }
    }
}

/// A crash can depend on the variables of the run.
#[test]
fn backtrace_sets_the_runtimes_variables() {
    let name = "reports_on_amd::backtrace_sets_the_runtimes_variables";
    let Some(fetched) = test::fetch_selected_releases(name).pop() else { return };
    let (release, fault) = (fetched.release(), ["--fault", "CREATE_QUEUE=crash"]);
    let bringup = ["--", HSA_VMM, "bringup", "--until", "gpu", "--format", "json"];
    let words = [&["emulate", "--rocr", release.version()], &fault[..], &bringup].concat();
    let report = report(&command(&words).env("HSA_ENABLE_SDMA", "0").output().unwrap(), 1);
    let advice = report["failure"]["try_next"].to_string();
    assert_contains(&advice, &["and run HSA_ENABLE_SDMA=0 ", " -- gdb "]);
}

/// In the processes of the levels, `/dev/stderr` is another file than in `bringup`.
#[test]
fn log_can_be_a_pipe_or_standard_error() {
    let name = "reports_on_amd::log_can_be_a_pipe_or_standard_error";
    let Some(fetched) = test::fetch_selected_releases(name).pop() else { return };
    let options = ["--log", "/dev/stderr", "--fault", "OPEN=EIO", "--rocr"];
    // The time limit of `bringup` ends levels, but not reads of the log.
    let program = ["--", "timeout", "--kill-after=1", "120", HSA_VMM, "bringup", "--until"];
    let (release, arguments) = (fetched.release(), ["runtime", "--format", "json"]);
    let release = [release.version()];
    let words = [&["emulate"], &options[..], &release, &program, &arguments].concat();
    let requests = |output: &Output| {
        let report = report(output, 3);
        report["failure"]["driver"].to_string()
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = run(&words);
    assert_contains(&requests(&output), &["OPEN"]);
    assert_contains(&stderr(&output), &["no calls of the levels are written to /dev/stderr"]);
    let output = command(&words).stderr(file.reopen().unwrap()).output().unwrap();
    assert_contains(&requests(&output), &["OPEN"]);
    assert_contains(&std::fs::read_to_string(file.path()).unwrap(), &[" OPEN "]);
}

/// The report distinguishes a copy that ends after its signal from a copy that never happens.
#[test]
fn late_and_lost_copies_are_distinguished() {
    let name = "reports_on_amd::late_and_lost_copies_are_distinguished";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, what, advice) in [
            (
                "COPY=late:100ms",
                "'s copies to and from va end only some time after their signal (written by gpu[0] (SDMA), ",
                "the data arrives, but after the signal: suspect the fence",
            ),
            (
                "COPY=lost",
                " copied wrong data from va (written by gpu[0] (SDMA), ",
                "so the engine has not copied",
            ),
        ] {
            let arguments = ["--until", "gpu", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some("gpu"), "{fault}: {report:#}");
            let failure = &report["failure"];
            assert_eq!(failure["call"]["name"], "hsa_amd_memory_async_copy", "{failure:#}");
            assert_contains(failure["what"].as_str().unwrap(), &[what]);
            assert_contains(&failure["try_next"].to_string(), &[advice]);
        }
    }
}

/// The runtime can ignore an error of the driver, or return another error that the level accepts. The report says which
/// of these happened.
#[test]
fn reaction_to_an_accepted_error_is_named() {
    let name = "reports_on_amd::reaction_to_an_accepted_error_is_named";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, level, words) in [
            (
                "AVAILABLE_MEMORY=EIO",
                "pools",
                ["and the runtime returned HSA_STATUS_ERROR", " from hsa_agent_get_info instead; "],
            ),
            (
                "GEM_CLOSE=EIO",
                "mapped",
                ["and the runtime ignored it: ", "returned HSA_STATUS_SUCCESS (0x0); "],
            ),
        ] {
            let arguments = ["--until", level, "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some(level), "{fault}: {report:#}");
            assert_contains(report["failure"]["what"].as_str().unwrap(), &words);
        }
    }
}

/// The first advice names the request that is the cause, even if a later request fails instead, or no request fails.
#[test]
fn request_that_is_the_cause_is_suspected_first() {
    let name = "reports_on_amd::request_that_is_the_cause_is_suspected_first";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, level, words) in [
            (
                "IMPORT_DMABUF=lost",
                "shared",
                "did not set handle: suspect the kernel's kfd_ioctl_import_",
            ),
            (
                "GET_DMABUF_INFO=lost",
                "shared",
                "suspect the kernel's kfd_ioctl_get_dmabuf_info first",
            ),
            (
                "GET_DMABUF_INFO=half",
                "shared",
                "its arguments: kfd_ioctl_get_dmabuf_info, kfd_ioctl_import_dmabuf",
            ),
            (
                "UNMAP_MEMORY_FROM_GPU=lost",
                "gpu",
                "the kernel's kfd_ioctl_unmap_memory_from_gpu first",
            ),
            (
                "CREATE_EVENT=lost",
                "runtime",
                "did not set event_id: suspect the kernel's kfd_ioctl_create_e",
            ),
            ("CREATE_QUEUE=lost", "gpu", "suspect the kernel's kfd_ioctl_create_queue first"),
            ("GEM_MMAP=lost", "cpu", "suspect the kernel's amdgpu_gem_mmap_ioctl first"),
            ("SET_EVENT=lost", "runtime", "suspect the kernel's kfd_ioctl_set_event first"),
            ("WAIT_EVENTS=EIO", "gpu", "find where the kernel's kfd_ioctl_wait_events returns EIO"),
            ("FILL=lost", "blit", "suspect the GPU's engine (the runtime's blit shader)"),
            ("COPY=EIO", "gpu", "reported EIO for a COPY: suspect the GPU's engine first"),
            ("FILL=EIO", "blit", "reported EIO for a FILL: suspect the GPU's engine first"),
            ("FILL=hang", "blit", "suspect the GPU's engine first (the runtime's blit shader)"),
            ("ACQUIRE_VM=lost", "runtime", "suspect kfd_ioctl_acquire_vm first"),
            ("ACQUIRE_VM#2=lost", "runtime", "suspect kfd_ioctl_acquire_vm first"),
            ("OPEN=EIO", "runtime", "find where the kernel's kfd_open returns EIO"),
            ("MMAP=narrow", "cpu", "drm0 MMAP: suspect the kernel's drm_gem_mmap"),
            ("WAIT_EVENTS=lost", "permission", "suspect kfd_ioctl_wait_events first"),
        ] {
            let arguments = ["--until", level, "--time-limit", "5s", "--format", "json"];
            let report = json(&run_emulated(fetched, &["--fault", fault], &arguments));
            let failure = &report["failure"];
            // A fault of events has an effect only if a thread of the runtime sleeps.
            if failure.is_null() && fault.contains("_EVENT") {
                continue;
            }
            let first = failure["try_next"][0].as_str().unwrap_or_default();
            let release = fetched.release();
            assert!(first.contains(words), "{release}, {fault}: {failure:#}");
            let mut used = failure["rests_on"].as_array().unwrap().iter();
            let wait = used.find(|used| used["log"] == "kfd WAIT_EVENTS");
            if fault == "WAIT_EVENTS=EIO"
                && let Some(wait) = wait
            {
                assert_eq!(wait["answer"], "error", "{failure:#}");
            }
        }
    }
}

/// The log of a level contains GPU faults, which no thread of the level logs.
#[test]
fn log_contains_gpu_faults() {
    let name = "reports_on_amd::log_contains_gpu_faults";
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let arguments = ["--until", "gpu", "--log", log.to_str().unwrap()];
        let output = run_emulated(fetched, &["--fault", "GEM_VA.MAP=lost"], &arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = std::fs::read_to_string(log).unwrap();
        let is_fault =
            |line: &&str| line.starts_with("          driver  ") && line.contains(" fault at 0x");
        assert_eq!(text.lines().filter(is_fault).count(), 1, "{text}");
    }
}

/// The advice distinguishes an entry without write permission, and an old entry, from a missing entry. The report
/// contains the runtime's message about a GPU fault.
#[test]
fn fault_of_a_page_table_entry_is_explained() {
    let name = "reports_on_amd::fault_of_a_page_table_entry_is_explained";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, level, advice, message) in [
            (
                "GEM_VA.MAP=narrow",
                "gpu",
                "the entry does not permit writing",
                "Write access to a read-only page",
            ),
            (
                "GEM_VA.MAP=lost",
                "gpu",
                "first suspect that the entry is missing",
                "Page not present or supervisor privilege",
            ),
            (
                "GEM_VA.REPLACE=lost",
                "offset",
                "has written no entry, or one for other memory (its offset), or that the TLB was not flushed",
                "",
            ),
        ] {
            let arguments = ["--until", level, "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            assert_eq!(failed_level(&report), Some(level), "{fault}: {report:#}");
            let failure = &report["failure"];
            assert_contains(&failure["try_next"].to_string(), &[advice]);
            assert_contains(&failure["runtime"].to_string(), &[message]);
        }
    }
}

/// The exit status is 3 if the runtime does not start, and 1 if it does not stop.
#[test]
fn failure_after_the_start_has_exit_status_1() {
    let name = "reports_on_amd::failure_after_the_start_has_exit_status_1";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, status) in [("DESTROY_EVENT=EIO", 1), ("GET_VERSION=EIO", 3)] {
            let arguments = ["--until", "runtime", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), status);
            assert_eq!(failed_level(&report), Some("runtime"), "{fault}: {report:#}");
        }
    }
}

/// The fault has no effect that a level finds without the log.
#[test]
fn incomplete_log_is_no_success() {
    let name = "reports_on_amd::incomplete_log_is_no_success";
    for fetched in test::fetch_selected_releases(name) {
        for format in ["table", "ktap", "json"] {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log");
            let release = fetched.release();
            let start = ["emulate", "--rocr", release.version(), "--log"];
            let options = [log.to_str().unwrap(), "--fault", "GEM_CLOSE=EIO", "--", HSA_VMM];
            let bringup = ["bringup", "--until", "cpu", "--format", format];
            let arguments = [&start[..], &options, &bringup].concat();
            let mount = "mount -t tmpfs -o size=16k tmpfs .";
            let Some(mut command) = command_with_mount(folder.path(), mount, &arguments) else {
                return;
            };
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{format}: {output:?}");
            let incomplete = "the emulated driver's log is incomplete";
            assert_contains(&stderr(&output), &["error", incomplete, "No space left on device"]);
            let result = stdout(&output).replace("\n#  ", "").replace('\n', " ");
            assert_contains(&result, &[incomplete, "No space left on device", "make room on"]);
            if format == "json" {
                assert!(failed_level(&json(&output)).is_some(), "{output:?}");
            }
        }
    }
}
