//! Calls that never return, and devices whose opening ends the process, on AMD's runtime with the emulated driver.

use super::on_amd::run_emulated;
use super::{assert_contains, failed_level, report};
use crate::run_command::{HSA_VMM, run, stderr};
use hsa_rocr::{Release, test};

#[test]
fn hanging_driver_call_is_reported() {
    let name = "on_hanging::hanging_driver_call_is_reported";
    for fetched in test::fetch_selected_releases(name) {
        let options = ["--fault", "PRIME_FD_TO_HANDLE=60s"];
        let output = run_emulated(fetched, &options, &["--time-limit", "4s", "--format", "json"]);
        let report = report(&output, 1);
        assert_eq!(failed_level(&report), Some("mapped"), "{report:#}");
        let failure = &report["failure"];
        assert_eq!(failure["kind"], "hang");
        assert_contains(failure["what"].as_str().unwrap(), &["hangs in hsa_amd_vmem_map"]);
        // The report contains only what the runtime logged during the call.
        assert_contains(&failure["runtime"].to_string(), &["hsaKmtExportDMABufHandle"]);
        assert!(!failure["runtime"].to_string().contains("acquiring VM"), "{failure:#}");
        let result_of = |log: &str| {
            let all = failure["rests_on"].as_array().unwrap().iter();
            all.filter(|used| used["log"] == log).map(|used| used["answer"].clone()).next()
        };
        let first = failure["try_next"][0].as_str().unwrap();
        let request =
            ["the driver has not returned from drm0 PRIME_FD_TO_HANDLE", "kernel's drm_prime"];
        assert_contains(first, &request);
        assert_eq!(result_of("kfd EXPORT_DMABUF").unwrap(), "well");
        assert_eq!(result_of("drm PRIME_FD_TO_HANDLE").unwrap(), "error");
        assert_contains(&failure["failed_requests"].to_string(), &[" = ? (delayed by 60s)"]);
    }
}

/// The emulated driver logs a call that does not return. `bringup` and `conform` name the call, even if the call hangs
/// while the runtime starts.
#[test]
fn call_that_does_not_return_is_named() {
    let name = "on_hanging::call_that_does_not_return_is_named";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, exit, call) in [
            ("ACQUIRE_VM=hang", 3, "kfd ACQUIRE_VM"),
            ("PRIME_FD_TO_HANDLE=crash", 1, "PRIME_FD_TO_HANDLE"),
        ] {
            let arguments = ["--time-limit", "4s", "--format", "json"];
            let output = run_emulated(fetched, &["--fault", fault], &arguments);
            let report = report(&output, exit);
            let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
            assert_contains(first, &["the driver has not returned from", call]);
        }
        let release = fetched.release();
        let start = ["emulate", "--rocr", release.version()];
        let conform =
            ["--fault", "GET_VERSION=hang", "--", HSA_VMM, "conform", "--time-limit", "4s"];
        let output = run(&[&start[..], &conform].concat());
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert_contains(
            &stderr(&output),
            &["driver: ", "kfd GET_VERSION ", " = ? (has not returned)"],
        );
        let last = stderr(&output).trim_end().lines().next_back().unwrap().to_owned();
        assert!(
            last.starts_with("To find the HSA call and kernel interface that fail: "),
            "{last}"
        );
        assert!(
            last.contains("--fault 'GET_VERSION=hang'") && last.ends_with("hsa-vmm bringup"),
            "{last}"
        );
    }
}

/// A thread of the runtime repeats a request after EAGAIN, and `hsa_shut_down` waits for this thread. On a busy machine,
/// the runtime of a level can stop before the thread has made its first request. A later level then hangs.
#[test]
fn request_repeated_without_end_is_suspected() {
    let name = "on_hanging::request_repeated_without_end_is_suspected";
    for fetched in test::fetch_selected_releases(name) {
        for error in ["EAGAIN", "EINTR"] {
            let arguments = ["--until", "gpu", "--time-limit", "3s", "--format", "json"];
            let fault = format!("WAIT_EVENTS={error}");
            let report = report(&run_emulated(fetched, &["--fault", &fault], &arguments), 1);
            let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
            let words = [&format!("returned {error} for kfd WAIT_EVENTS"), "kfd_ioctl_wait_events"];
            assert_contains(first, &words.map(|words| words as &str));
        }
    }
}

/// The copy engine runs in another thread than the call that waits for the copy. The level looks at the destination
/// while it waits.
#[test]
fn engine_that_does_not_finish_is_named() {
    let name = "on_hanging::engine_that_does_not_finish_is_named";
    for fetched in test::fetch_selected_releases(name) {
        let arguments = ["--until", "gpu", "--time-limit", "4s", "--format", "json"];
        let output = run_emulated(fetched, &["--fault", "COPY=hang"], &arguments);
        let report = report(&output, 1);
        assert_eq!(report["failure"]["kind"], "hang", "{report:#}");
        let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
        assert_contains(first, &["the engine has not copied: suspect the engine first"]);
        let what = report["failure"]["what"].as_str().unwrap_or_default();
        assert_contains(
            what,
            &["hangs in hsa_signal_wait_scacquire", ": the data has not arrived"],
        );
        // The list of calls, and the C program, do not contain the calls of the look.
        let calls = report["failure"]["calls"].to_string();
        assert_eq!(calls.matches("hsa_amd_vmem_set_access").count(), 1, "{calls}");
    }
}

#[test]
fn slow_request_is_suspected_like_a_hang() {
    let name = "on_hanging::slow_request_is_suspected_like_a_hang";
    for fetched in test::fetch_selected_releases(name) {
        for (fault, expected) in [
            ("CREATE_QUEUE=60s", "the driver has not returned from kfd CREATE_QUEUE"),
            ("FILL=60s", "the GPU has not finished a FILL: suspect the GPU's engine first"),
        ] {
            let arguments = ["--time-limit", "4s", "--format", "json"];
            let report = report(&run_emulated(fetched, &["--fault", fault], &arguments), 1);
            let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
            assert_contains(first, &[expected]);
        }
    }
}

/// A level that still makes calls at the time limit is slow: its last copy has not hung.
#[test]
fn slow_engine_is_no_stuck_copy() {
    let name = "on_hanging::slow_engine_is_no_stuck_copy";
    for fetched in test::fetch_selected_releases(name) {
        let arguments = ["--until", "data", "--time-limit", "5s", "--format", "json"];
        let output = run_emulated(fetched, &["--fault", "COPY=600ms"], &arguments);
        let report = report(&output, 1);
        let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
        assert_contains(first, &["this level may be slow instead of hanging"]);
        let all = report["failure"].to_string();
        assert!(!all.contains("the data has not arrived") && !all.contains("doorbell and the"));
    }
}

/// In 7.2.4, a lost mapping of the doorbell keeps the engine from beginning the copy.
#[test]
fn doorbell_of_an_idle_engine_is_suspected() {
    let name = "on_hanging::doorbell_of_an_idle_engine_is_suspected";
    let fetched_releases = test::fetch_releases(name).unwrap_or_default().iter();
    for fetched in fetched_releases.filter(|fetched| fetched.release() == Release::R7_2_4) {
        let arguments = ["--until", "gpu", "--time-limit", "4s", "--format", "json"];
        let output = run_emulated(fetched, &["--fault", "MMAP=lost"], &arguments);
        let report = report(&output, 1);
        let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
        assert_contains(first, &["suspect the doorbell and the queue first (kfd_mmap"]);
    }
}

#[test]
fn suspect_that_the_log_names_comes_first() {
    let name = "on_hanging::suspect_that_the_log_names_comes_first";
    for fetched in test::fetch_selected_releases(name) {
        let arguments = ["--until", "runtime", "--format", "json", "--redact"];
        let output = run_emulated(fetched, &["--fault", "INFO=lost"], &arguments);
        let report = report(&output, 3);
        let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
        // `--redact` omits the lines of logs.
        let word = "the log names its request (`AMDGPU_INFO_ACCEL_WORKING`)";
        assert_contains(first, &["suspect amdgpu_info_ioctl first", word]);
    }
}

/// If the driver crashes while `bringup` opens a device, `bringup` continues. It reports which facts about the device
/// are unknown.
#[test]
fn devices_are_opened_in_another_process() {
    let name = "on_hanging::devices_are_opened_in_another_process";
    for fetched in test::fetch_selected_releases(name) {
        let arguments = ["--until", "runtime", "--format", "json"];
        let output = run_emulated(fetched, &["--fault", "OPEN=crash"], &arguments);
        let report = report(&output, 3);
        assert_eq!(failed_level(&report), Some("runtime"), "{report:#}");
        let machine = report["failure"]["machine"].as_array().unwrap();
        let what = |known: bool| {
            let checks = machine.iter().filter(|check| check["known"] == known);
            checks.map(|check| check["what"].as_str().unwrap()).collect::<Vec<_>>().join("\n")
        };
        assert_contains(&what(true), &["/dev/kfd cannot be opened: the query crashes"]);
        let unknown = "the interface version of /dev/kfd is not known (the query crashes";
        assert_contains(&what(false), &[unknown, "/dev/dri/renderD128"]);
        assert!(machine.iter().all(|check| check["known"] == true || check["well"] == false));
        let first = report["failure"]["try_next"][0].as_str().unwrap_or_default();
        assert_contains(first, &["the driver has not returned from kfd OPEN", "kfd_open"]);
        let all = report["failure"]["try_next"].to_string();
        assert!(!all.contains("returned ?"), "{all}");
    }
}

#[test]
fn hang_in_second_process_is_reported() {
    let name = "on_hanging::hang_in_second_process_is_reported";
    for fetched in test::fetch_selected_releases(name) {
        let options = ["--fault", "IMPORT_DMABUF=60s"];
        let output = run_emulated(fetched, &options, &["--time-limit", "8s", "--format", "json"]);
        let report = report(&output, 1);
        assert_eq!(failed_level(&report), Some("shared"), "{report:#}");
        let call = &report["failure"]["call"];
        assert_eq!(call["name"], "hsa_amd_vmem_import_shareable_handle");
        assert_eq!((&call["other_process"], &call["returned"]), (&true.into(), &false.into()));
        assert_contains(&report["failure"]["also_in"].to_string(), &["wait(socket"]);
        let first = report["failure"]["try_next"][0].as_str().unwrap();
        assert_contains(first, &["the driver has not returned from kfd IMPORT_DMABUF"]);
    }
}
