//! The first suspects of `bringup` for faults that a later call, or an earlier use of the same address, can also
//! explain.

use super::on_amd::run_emulated;
use super::{assert_contains, failed_level};
use crate::run_command::{HSA_VMM, command, json, run, stderr, stdout};
use hsa_rocr::{FetchedRelease, Release, test};
use hsa_vmm_conformance::worker::{self, Received, Worker};
use serde_json::Value;
use std::time::Duration;

/// Returns the failure of a run with a planned fault, and checks the level that failed.
#[track_caller]
fn failure(fetched: &FetchedRelease, fault: &str, level: &str) -> Value {
    let arguments = ["--time-limit", "10s", "--format", "json"];
    let mut report = json(&run_emulated(fetched, &["--fault", fault], &arguments));
    assert_eq!(failed_level(&report), Some(level), "{fault}: {report:#}");
    report["failure"].take()
}

/// The numbers of the faults below are those of this release.
fn fetched_release(name: &str) -> Option<&'static FetchedRelease> {
    let mut releases = test::fetch_releases(name)?.iter();
    releases.find(|fetched| fetched.release() == Release::R7_2_4)
}

/// In the level `unmapped`, an error of the driver explains a failed map better than the unmap before. Only an overlap
/// (EINVAL) means that the address is still mapped.
#[test]
fn driver_error_after_unmap_is_the_suspect() {
    let name = "suspects_on_amd::driver_error_after_unmap_is_the_suspect";
    let Some(fetched) = fetched_release(name) else { return };
    for (fault, call, first) in [
        (
            "EXPORT_DMABUF#5=EMFILE",
            "hsa_amd_vmem_map",
            "the driver returned EMFILE for kfd EXPORT_DMABUF",
        ),
        ("GEM_MMAP#3=EIO", "hsa_amd_vmem_map", "the driver returned EIO for drm0 GEM_MMAP"),
        ("GEM_VA.MAP#3=ENOMEM", "hsa_amd_vmem_set_access", "ENOMEM for drm0 GEM_VA"),
        ("GEM_VA.UNMAP=late:5ms", "hsa_amd_vmem_unmap", "operation UNMAP"),
    ] {
        let failure = failure(fetched, fault, "unmapped");
        assert_eq!(failure["call"]["name"], call, "{fault}: {failure:#}");
        assert_contains(failure["try_next"][0].as_str().unwrap(), &[first]);
        let is_later = call == "hsa_amd_vmem_unmap";
        assert_eq!(failure["failed_requests_are_later"], is_later, "{fault}: {failure:#}");
    }
}

/// The runtime repeats a request after EAGAIN, so this error is not the cause.
#[test]
fn repeated_request_is_no_suspect() {
    let name = "suspects_on_amd::repeated_request_is_no_suspect";
    let Some(fetched) = fetched_release(name) else { return };
    for (fault, level, first) in [
        ("EXPORT_DMABUF#1=EAGAIN,GEM_MMAP#1=EIO", "mapped", "returned EIO for drm0 GEM_MMAP"),
        ("EXPORT_DMABUF#2=EAGAIN,GEM_VA.MAP=lost", "gpu", "amdgpu_gem_va_ioctl first"),
    ] {
        let failure = failure(fetched, fault, level);
        assert_contains(failure["try_next"][0].as_str().unwrap(), &[first]);
        let interfaces = failure["rests_on"].as_array().unwrap().iter();
        let mut exports = interfaces.filter(|it| it["log"] == "kfd EXPORT_DMABUF");
        assert_eq!(exports.next().unwrap()["answer"], "well", "{fault}: {failure:#}");
    }
}

/// If other memory was mapped at an address before, an old entry of this address can be the cause.
#[test]
fn earlier_mapping_of_the_address_is_suspected() {
    let name = "suspects_on_amd::earlier_mapping_of_the_address_is_suspected";
    let Some(fetched) = fetched_release(name) else { return };
    let earlier = "or the earlier operation UNMAP (AMDGPU_VA_OP_UNMAP) at the same address";
    let no_fault = "the TLB was not flushed after the earlier unmap";
    let fault_again = "the unmap of the earlier mapping can also have taken effect late";
    // A level reads again 500 ms after it has read wrong data. On a busy machine, the first read can be late.
    for (fault, level, is_used_again, words) in [
        ("GEM_VA.UNMAP#5-=stale:20ms", "at_once", true, no_fault),
        ("GEM_VA.MAP#3-=late:50ms", "unmapped", true, fault_again),
        ("GEM_VA.MAP=unseen:480ms", "gpu", false, "not the TLB"),
        ("GEM_VA.MAP=lost", "gpu", false, "first suspect that the entry is missing"),
    ] {
        let failure = failure(fetched, fault, level);
        let first = failure["try_next"][0].as_str().unwrap();
        assert_contains(first, &["amdgpu_gem_va_ioctl first", "operation MAP (AMDGPU_VA_OP_MAP)"]);
        assert_eq!(first.contains(earlier), is_used_again, "{fault}: {failure:#}");
        let second = failure["try_next"][1].as_str().unwrap();
        assert_contains(second, &[words]);
        assert_eq!(second.contains("not the TLB"), words == "not the TLB", "{second}");
    }
}

/// A GPU fault of another GPU is no effect of the move of the memory.
#[test]
fn missing_entry_of_a_peer_is_suspected() {
    let name = "suspects_on_amd::missing_entry_of_a_peer_is_suspected";
    let Some(fetched) = fetched_release(name) else { return };
    // No earlier level makes nine of these requests.
    let release = fetched.release();
    let start = ["emulate", "--gpus", "8", "--rocr", release.version()];
    let rest = ["--fault", "GEM_VA.MAP#9=lost", "--", HSA_VMM, "bringup", "--format", "json"];
    let report = json(&run(&[&start[..], &rest].concat()));
    assert_eq!(failed_level(&report), Some("peer"), "{report:#}");
    let first = report["failure"]["try_next"][0].as_str().unwrap();
    assert_contains(first, &["amdgpu_gem_va_ioctl first", "operation MAP"]);
}

/// If the first copy through a mapping reads other contents, and the second copy is right, the mapping is the suspect.
#[test]
fn late_mapping_is_no_wrong_copy() {
    let name = "suspects_on_amd::late_mapping_is_no_wrong_copy";
    let Some(fetched) = fetched_release(name) else { return };
    for (fault, level) in
        [("GEM_VA.MAP#2=unseen:480ms", "unmapped"), ("GEM_VA.MAP#9=unseen:480ms", "load")]
    {
        let failure = failure(fetched, fault, level);
        assert_eq!(failure["call"]["name"], "hsa_amd_vmem_set_access", "{fault}: {failure:#}");
        let first = failure["try_next"][0].as_str().unwrap();
        assert_contains(first, &["amdgpu_gem_va_ioctl first", "operation MAP"]);
        // The level `unmapped` has not unmapped the address yet.
        let second = failure["try_next"][1].as_str().unwrap();
        assert!(level != "unmapped" || second.contains("not the TLB"), "{second}");
    }
}

/// If memory without a mapping is lost, too, the release is the suspect, not the unmap.
#[test]
fn lost_release_after_a_mapping_is_suspected() {
    let name = "suspects_on_amd::lost_release_after_a_mapping_is_suspected";
    let Some(fetched) = fetched_release(name) else { return };
    for (fault, call, function) in [
        (
            "FREE_MEMORY_OF_GPU#4-=lost",
            "hsa_amd_vmem_handle_release",
            "kfd_ioctl_free_memory_of_gpu",
        ),
        ("GEM_CLOSE=leak", "hsa_amd_vmem_unmap", "drm_gem_close_ioctl"),
    ] {
        let failure = failure(fetched, fault, "counted");
        assert_contains(failure["what"].as_str().unwrap(), &["mapped, unmapped and released"]);
        assert_eq!(failure["call"]["name"], call, "{fault}: {failure:#}");
        assert_contains(failure["try_next"][0].as_str().unwrap(), &[function, " first"]);
    }
}

/// The level repeats its calls, because another process can allocate memory meanwhile. A loss of the size that the level
/// has freed is no such allocation.
#[test]
fn memory_that_is_lost_once_is_missing() {
    let name = "suspects_on_amd::memory_that_is_lost_once_is_missing";
    let Some(fetched) = fetched_release(name) else { return };
    let once = "the last repetition of the same calls lost nothing; the cause is this call";
    let (release, free) = ("hsa_amd_vmem_handle_release", "kfd_ioctl_free_memory_of_gpu");
    for (fault, call, words, functions) in [
        ("FREE_MEMORY_OF_GPU#3=lost", release, once, &[free][..]),
        ("FREE_MEMORY_OF_GPU#5=leak", "hsa_amd_memory_pool_free", once, &[free]),
        (
            "GEM_CLOSE#1=leak",
            "hsa_amd_vmem_unmap",
            "the cause is this call or hsa_amd_vmem_handle_release unless another process",
            &["drm_gem_close_ioctl first", free],
        ),
        (
            "AVAILABLE_MEMORY#4-=half",
            "hsa_agent_get_info",
            "took 134217728 bytes",
            &["kfd_ioctl_get_available_memory"],
        ),
        (
            "AVAILABLE_MEMORY#4=double",
            "hsa_agent_get_info",
            "more memory is available than exists",
            &["kfd_ioctl_get_available_memory"],
        ),
    ] {
        let failure = failure(fetched, fault, "counted");
        assert_eq!(failure["call"]["name"], call, "{fault}: {failure:#}");
        assert_contains(failure["what"].as_str().unwrap(), &[words]);
        assert_contains(failure["try_next"][0].as_str().unwrap(), functions);
    }
}

#[test]
fn descriptor_that_is_lost_once_is_missing() {
    let name = "suspects_on_amd::descriptor_that_is_lost_once_is_missing";
    let Some(fetched) = fetched_release(name) else { return };
    let failure = failure(fetched, "EXPORT_DMABUF#9=leak", "descriptors");
    assert_eq!(failure["call"]["name"], "hsa_amd_vmem_export_shareable_handle", "{failure:#}");
    assert_contains(failure["what"].as_str().unwrap(), &["left 1 descriptor open"]);
}

/// Other processes, or first calls, can be the reason for what a level does not count as a failure.
#[test]
fn accepted_losses_are_reported() {
    let name = "suspects_on_amd::accepted_losses_are_reported";
    let Some(fetched) = fetched_release(name) else { return };
    let lost = "34359738368 bytes were lost before the last repetition of the calls, none in it";
    let left_open = "left open: 1 by the first round with hsa_amd_vmem_map; none by 4 more";
    for (fault, level, detail) in [
        ("AVAILABLE_MEMORY#3=lost", "counted", "an earlier try seemed to take 68719476736 bytes"),
        ("AVAILABLE_MEMORY#8-=half", "counted", lost),
        ("EXPORT_DMABUF#1=leak", "descriptors", left_open),
    ] {
        let arguments = ["--until", level, "--format", "json"];
        let report = json(&run_emulated(fetched, &["--fault", fault], &arguments));
        let last = report["levels"].as_array().unwrap().iter().rfind(|it| it["level"] == level);
        assert_eq!(last.unwrap()["status"], "reached", "{fault}: {report:#}");
        assert_contains(&last.unwrap().to_string(), &[detail]);
    }
}

/// Without a large BAR, the CPU cannot find out whether the export or the import returned other memory.
#[test]
fn import_is_suspected_without_large_bar() {
    let name = "suspects_on_amd::import_is_suspected_without_large_bar";
    let Some(fetched) = fetched_release(name) else { return };
    let arguments = ["--machine", "rdna3", "--fault", "IMPORT_DMABUF=other"];
    let report = json(&run_emulated(fetched, &arguments, &["--format", "json"]));
    assert_eq!(failed_level(&report), Some("shared"), "{report:#}");
    let first = report["failure"]["try_next"][0].as_str().unwrap();
    let import = "or kfd_ioctl_import_dmabuf, kfd_ioctl_get_dmabuf_info during \
                  hsa_amd_vmem_import_shareable_handle";
    assert_contains(first, &["kfd_ioctl_export_dmabuf first", import]);
}

/// The data does not show whether the first copy to new memory was lost, or the mapping was late.
#[test]
fn lost_first_copy_is_suspected() {
    let name = "suspects_on_amd::lost_first_copy_is_suspected";
    let Some(fetched) = fetched_release(name) else { return };
    for fault in ["COPY#1=lost", "COPY#1=late:400ms"] {
        let failure = failure(fetched, fault, "gpu");
        let what = failure["what"].as_str().unwrap();
        assert_contains(what, &["or the first copy to va was lost or late"]);
        let second = failure["try_next"][1].as_str().unwrap();
        assert_contains(second, &["was lost or late instead, suspect the GPU's engine"]);
    }
}

/// Before the level `offset` replaces page-table entries, libdrm imports the memory.
#[test]
fn failed_import_by_libdrm_is_named() {
    let name = "suspects_on_amd::failed_import_by_libdrm_is_named";
    let Some(fetched) = fetched_release(name) else { return };
    for (fault, call) in [
        ("PRIME_FD_TO_HANDLE#3=EIO", "amdgpu_bo_import"),
        ("GEM_VA.REPLACE=EIO", "amdgpu_bo_va_op_raw"),
        // The first REPLACE has replaced half of the memory, the second would replace all of it.
        ("GEM_VA.REPLACE#1=lost,GEM_VA.REPLACE#2=EIO", "amdgpu_bo_va_op_raw"),
    ] {
        let failure = failure(fetched, fault, "offset");
        if fault.contains("#2") {
            let offset = &failure["call"]["arguments"][2];
            assert_eq!((&offset["name"], &offset["value"]), (&"offset".into(), &"0".into()));
        }
        assert_eq!(failure["call"]["name"], call, "{fault}: {failure:#}");
        let what = failure["what"].as_str().unwrap();
        assert_contains(what, &[&format!("{call} failed: Input/output error")]);
        let all = failure["try_next"].to_string();
        assert!(!all.contains("TLB"), "{all}");
    }
}

/// The level `offset` replaces entries twice. A second copy, half a second later, shows whether an entry was late. If
/// the CPU cannot access the memory, no earlier level finds that the operation MAP refers to other pages.
#[test]
fn wrong_entry_is_no_late_entry() {
    let name = "suspects_on_amd::wrong_entry_is_no_late_entry";
    let Some(fetched) = fetched_release(name) else { return };
    let (replace, late, wrong) =
        ("amdgpu_bo_va_op_raw", "has read the right data", "REPLACE has written no entry");
    let second_late = "gpu[0] reads the second half only some time after the entries were replaced";
    let restored_late = "gpu[0] reads the restored first half only some time after the entries";
    let (grant, other_pages) = ("hsa_amd_vmem_set_access", "refer to different pages");
    for (machine, fault, call, what, operation, advice) in [
        ("", "GEM_VA.REPLACE=lost", replace, "does not read the second half", "REPLACE", wrong),
        ("", "GEM_VA.REPLACE=late:300ms", replace, second_late, "REPLACE", late),
        ("", "GEM_VA.REPLACE#2=lost", replace, "the restored first half", "REPLACE", wrong),
        ("", "GEM_VA.REPLACE#2=late:300ms", replace, restored_late, "REPLACE", late),
        ("rdna3", "GEM_VA.MAP=shifted", grant, other_pages, "MAP", "REPLACE has an effect"),
    ] {
        let mut options = vec!["--fault", fault];
        options.extend(["--machine", machine].iter().filter(|_| !machine.is_empty()));
        let run = || json(&run_emulated(fetched, &options, &["--format", "json"]));
        let has_failed_so = |report: &Value| {
            report["failure"]["what"].as_str().is_some_and(|found| found.contains(what))
        };
        // On a busy machine, a late entry can take effect before the first copy or after the second.
        let tries = if fault.contains("late") { 3 } else { 1 };
        let report = (1..tries).map(|_| run()).find(has_failed_so).unwrap_or_else(run);
        assert_eq!(failed_level(&report), Some("offset"), "{fault}: {report:#}");
        let failure = &report["failure"];
        assert_eq!(failure["call"]["name"], call, "{fault}: {failure:#}");
        assert_contains(failure["what"].as_str().unwrap(), &[what]);
        let operation = format!("with the operation {operation} (");
        let first = failure["try_next"][0].as_str().unwrap();
        assert_contains(first, &["amdgpu_gem_va_ioctl first", &operation]);
        assert_contains(failure["try_next"][1].as_str().unwrap(), &[advice]);
        assert!(!failure["try_next"].to_string().contains("two possible causes"), "{failure:#}");
    }
}

/// If CPU and GPU see different memory, the mapping of either can be wrong.
#[test]
fn both_mappings_are_suspected_equally() {
    let name = "suspects_on_amd::both_mappings_are_suspected_equally";
    let Some(fetched) = fetched_release(name) else { return };
    for fault in ["GEM_VA.MAP=shifted", "MMAP#9=lost"] {
        let failure = failure(fetched, fault, "data");
        let first = failure["try_next"][0].as_str().unwrap();
        let words =
            ["amdgpu_gem_va_ioctl (the GPU's mapping", "drm_gem_mmap, ttm_bo_mmap_obj (the"];
        assert_contains(first, &words);
    }
}

/// Starts a level alone, with a planned fault that earlier levels would detect. Calls `until` with each record until
/// `until` returns a result.
#[track_caller]
fn run_level<T>(
    fetched: &FetchedRelease,
    fault: &str,
    level: &str,
    machine: &str,
    until: impl Fn(&Value) -> Option<T>,
) -> T {
    let release = fetched.release();
    let start = ["emulate", "--rocr", release.version(), "--fault", fault];
    let level = ["--", HSA_VMM, "bringup", "--time-limit", "60s", "--run-level", level];
    let mut command = command(&[&start[..], &level].concat());
    command.env("HSA_KFD", machine);
    let mut worker = Worker::start(command, worker::Output::Capture).unwrap();
    loop {
        match worker.receive::<Value>(Duration::from_secs(20)) {
            Received::Message(record) => {
                if let Some(result) = until(&record) {
                    return result;
                }
            }
            other => panic!("{other:?}: {}", worker.captured_output()),
        }
    }
}

/// If a forbidden copy neither writes nor faults, the copy is the suspect, not the page-table entry.
#[test]
fn lost_forbidden_copy_is_no_wrong_permission() {
    let name = "suspects_on_amd::lost_forbidden_copy_is_no_wrong_permission";
    let Some(fetched) = fetched_release(name) else { return };
    let attributed = run_level(fetched, "COPY#3=lost", "permission", "", |record| {
        record["attributed"].as_object().cloned()
    });
    assert_eq!(attributed["call"], "hsa_amd_memory_async_copy", "{attributed:#?}");
    assert_eq!(attributed["what"], "the copy neither wrote nor faulted");
}

/// Copies that fail only from this level on are no wrong page-table entries.
#[test]
fn half_copies_are_no_wrong_entry() {
    let name = "suspects_on_amd::half_copies_are_no_wrong_entry";
    let Some(fetched) = fetched_release(name) else { return };
    let attributed = run_level(fetched, "COPY#3-=half", "offset", "", |record| {
        record["attributed"].as_object().cloned()
    });
    assert_eq!(attributed["call"], "hsa_amd_memory_async_copy", "{attributed:#?}");
    let what = attributed["what"].as_str().unwrap();
    assert_contains(what, &["gpu[0] copied wrong data from va", "had not written this word"]);
}

/// The copy has half of the level's time.
#[test]
fn slow_forbidden_copy_faults() {
    let name = "suspects_on_amd::slow_forbidden_copy_faults";
    let Some(fetched) = fetched_release(name) else { return };
    let end = run_level(fetched, "COPY#3=11s", "permission", "", |record| {
        let is_end = record == "reached" || !record["wrong"].is_null();
        is_end.then(|| record.clone())
    });
    assert_eq!(end, "reached");
}

/// Level `data`: copy 1 writes, copies 2 to 5 read a quarter each. If one copy is wrong, later copies are right.
#[test]
fn single_wrong_copy_is_named() {
    let name = "suspects_on_amd::single_wrong_copy_is_named";
    let Some(fetched) = fetched_release(name) else { return };
    for (fault, copy, what) in [
        ("COPY#3=garbled", 2, "from va; a second copy is right"),
        ("COPY#4=lost", 3, "from va; a second copy is right"),
        ("COPY#7=garbled", 6, "a second copy is right"),
    ] {
        let failure = failure(fetched, fault, "data");
        assert_contains(failure["what"].as_str().unwrap(), &[what]);
        let calls = failure["calls"].as_array().unwrap().iter();
        let is_copy = |call: &&str| call.starts_with("hsa_amd_memory_async_copy(");
        let copies = calls.map(|call| call.as_str().unwrap()).filter(is_copy);
        let wrong_copy = copies.clone().nth(copy).unwrap();
        for argument in failure["call"]["arguments"].as_array().unwrap() {
            let value = argument["value"].as_str().unwrap();
            assert_contains(wrong_copy, &[value]);
        }
    }
}

/// Earlier levels have copied rightly, and each later copy is wrong. The found numbers are those of the destination, or
/// differ in one bit, so neither another handle nor the fill is the cause.
#[test]
fn repeated_wrong_copies_are_suspected() {
    let name = "suspects_on_amd::repeated_wrong_copies_are_suspected";
    let Some(fetched) = fetched_release(name) else { return };
    let (garbled, untouched) = ("suspect the GPU's engine", "suspect the GPU's engine first");
    for (fault, level, advice) in [
        ("COPY#17-=garbled", "reused", garbled),
        ("COPY#18-=half", "reused", untouched),
        ("COPY#6-=garbled", "data", garbled),
        ("COPY#11-12=half", "blit", untouched),
        ("COPY#11-=garbled", "blit", garbled),
    ] {
        let failure = failure(fetched, fault, level);
        assert_eq!(failure["call"]["name"], "hsa_amd_memory_async_copy", "{fault}: {failure:#}");
        let what = failure["what"].as_str().unwrap();
        assert_contains(what, &["gpu[0] copied wrong data from"]);
        let is_untouched = what.contains("the copy had not written this word");
        assert_eq!(is_untouched, advice == untouched, "{fault}: {what}");
        assert_contains(failure["try_next"][0].as_str().unwrap(), &[advice]);
    }
}

#[test]
fn hidden_gpus_are_suspected() {
    let name = "suspects_on_amd::hidden_gpus_are_suspected";
    if fetched_release(name).is_none() {
        return;
    }
    let bringup = ["bringup", "--until", "agents", "--format", "json"];
    let start = ["emulate", "--rocr", "7.2.4", "--", HSA_VMM];
    for (visible, quoted) in [("", "''"), ("7", "7")] {
        let mut command = command(&[&start[..], &bringup].concat());
        let report = json(&command.env("ROCR_VISIBLE_DEVICES", visible).output().unwrap());
        assert_eq!(failed_level(&report), Some("agents"), "{report:#}");
        let variable = format!("ROCR_VISIBLE_DEVICES={quoted} ");
        let first = report["failure"]["try_next"][0].as_str().unwrap();
        assert!(first.starts_with(&variable), "{first}");
        // An empty value differs from an unset variable.
        let provenance = &report["provenance"];
        assert!(provenance["reproduce"].as_str().unwrap().starts_with(&variable), "{provenance}");
        assert_eq!(provenance["environment"]["ROCR_VISIBLE_DEVICES"], visible, "{provenance}");
    }
}

/// The mapping of the level `gpu` has one page, which `shifted` does not move.
#[test]
fn shifted_page_is_not_reported_twice() {
    let name = "suspects_on_amd::shifted_page_is_not_reported_twice";
    let Some(fetched) = fetched_release(name) else { return };
    let fault = ["--fault", "GEM_VA.MAP=shifted"];
    let output = run_emulated(fetched, &fault, &["--until", "gpu"]);
    let line = "planned fault GEM_VA.MAP=shifted never happened";
    assert!(stdout(&output).contains(line), "{output:?}");
    assert!(!stderr(&output).contains(line), "{output:?}");
}
