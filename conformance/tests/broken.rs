//! Checks that at least one case fails if a function of the runtime fails.

use hsa_sim::{Config, FaultPlan};
use hsa_vmm::Runtime;
use hsa_vmm_conformance::{Options, Status, run};

/// `HSA_STATUS_ERROR`. The names of the following constants lack the prefix `HSA_STATUS_ERROR_`.
const ERROR: u32 = 0x1000;
const INVALID_ALLOCATION: u32 = 0x1003;
const OUT_OF_RESOURCES: u32 = 0x1008;

/// Returns the names of the cases that fail on a simulation with these faults.
fn failed_cases(faults: FaultPlan) -> Vec<String> {
    let runtime = Runtime::simulated(Config::mi300x(2).with_faults(faults)).unwrap();
    let options = Options { count_descriptors: false, ..Options::default() };
    let report = run(&runtime, &options, &mut |_| ());
    let failed: Vec<_> = report.cases.iter().filter(|case| case.status == Status::Fail).collect();
    assert_eq!(report.summary.failed, failed.len());
    assert!(failed.iter().all(|case| !case.detail.is_empty()), "{failed:?}");
    failed.into_iter().map(|case| case.name.clone()).collect()
}

#[test]
fn cases_detect_function_that_always_fails() {
    for (function, status, expected) in [
        ("hsa_amd_vmem_address_reserve_align", OUT_OF_RESOURCES, "reserve.address.on_the_granule"),
        ("hsa_amd_vmem_address_free", ERROR, "reserve.free.again_and_again"),
        ("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES, "create.handles.are_distinct"),
        ("hsa_amd_vmem_handle_release", ERROR, "release.handle.goes"),
        ("hsa_amd_vmem_map", ERROR, "map.memory.whole_handle"),
        ("hsa_amd_vmem_unmap", INVALID_ALLOCATION, "unmap.run.one_mapping"),
        ("hsa_amd_vmem_set_access", ERROR, "access.set.is_what_get_answers"),
        ("hsa_amd_vmem_export_shareable_handle", ERROR, "share.export.gives_a_descriptor"),
        ("hsa_amd_vmem_import_shareable_handle", ERROR, "share.import.same_memory"),
        ("hsa_amd_memory_lock", ERROR, "map.memory.whole_handle"),
        ("hsa_amd_memory_async_copy", ERROR, "access.gpu.copies"),
        ("hsa_signal_create", OUT_OF_RESOURCES, "access.gpu.copies"),
    ] {
        let failed = failed_cases(FaultPlan::none().always(function, status));
        assert!(failed.iter().any(|name| name == expected), "{function}: {failed:?}");
    }
}

#[test]
fn cases_detect_single_failure() {
    for (function, status) in [
        ("hsa_amd_vmem_address_reserve_align", OUT_OF_RESOURCES),
        ("hsa_amd_vmem_address_free", ERROR),
        ("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES),
        ("hsa_amd_vmem_handle_release", ERROR),
        ("hsa_amd_vmem_map", ERROR),
        ("hsa_amd_vmem_unmap", INVALID_ALLOCATION),
        ("hsa_amd_vmem_set_access", ERROR),
        ("hsa_amd_vmem_export_shareable_handle", ERROR),
        ("hsa_amd_vmem_import_shareable_handle", ERROR),
        ("hsa_amd_memory_lock", ERROR),
        ("hsa_amd_memory_async_copy", ERROR),
    ] {
        // Let a later call fail. The first calls come from cases that only drop their objects, and dropping reports
        // no error.
        let calls: &[_] = if hsa_rocr::test::is_long() { &[24, 40] } else { &[24] };
        for &call in calls {
            let failed = failed_cases(FaultPlan::none().fail(function, call, status));
            assert!(!failed.is_empty(), "call {call} of {function} was not detected");
            assert!(failed.len() <= 3, "call {call} of {function}: {failed:?}");
        }
    }
}
