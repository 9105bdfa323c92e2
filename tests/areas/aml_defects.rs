//! Defects in the HIP code of AML, Argonne's memory library, that areas do not have (AML's file `src/area/hip.c`).

use crate::fixture::Fixture;
use crate::{AML_BUSY, AML_FAILURE, AML_INVALID_VALUE, AML_NOT_SUPPORTED, AML_OUT_OF_MEMORY};
use hsa_vmm::area::{AreaFlags, Device, MmapOptions};
use hsa_vmm::error::{Argument, Operation, Problem, Rejected};
use hsa_vmm::hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_NOT_SUPPORTED, HSA_STATUS_ERROR_OUT_OF_RESOURCES,
    HSA_STATUS_ERROR_RESOURCE_BUSY,
};
use hsa_vmm::simulation::{Config, FaultPlan};

/// In AML, because of `opts->device > 0`, an area of another device cannot use device 0.
#[test]
fn device_0_can_be_chosen_for_one_mmap() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    let gpus: Vec<_> = fixture.runtime.gpus().map(|gpu| gpu.id()).collect();
    for area_device in [0usize, 1] {
        let area = fixture.area(area_device, AreaFlags::DEFAULT).unwrap();
        assert_eq!(area.device(), Device::from(area_device));
        for number in [0usize, 1] {
            let memory = area.mmap(1, MmapOptions::new().with_device(number)).unwrap();
            assert_eq!(memory.device(), gpus[number], "{area}");
            let memory = area.mmap(1, MmapOptions::new().with_device(gpus[number])).unwrap();
            assert_eq!(memory.owner(), gpus[number], "{area}");
        }
        let memory = area.mmap(1, MmapOptions::new().with_device(Device::Current)).unwrap();
        assert_eq!(memory.device(), gpus[0], "{area}");
    }
}

/// In AML, because of `default: return AML_SUCCESS`, an unknown error counts as success.
#[test]
fn no_failure_status_is_success() {
    let fixture = Fixture::simulated(Config::mi300x(1));
    let simulation = fixture.simulation.as_ref().unwrap();
    let area = fixture.area(0, AreaFlags::HOST).unwrap();
    // All statuses that HSA and AMD define, and some undefined statuses.
    for status in (0x1000..0x1040).chain([2, 40, 44, 46, 47, 0xdead, u32::MAX]) {
        let plan = FaultPlan::none().always("hsa_amd_memory_pool_allocate", status);
        simulation.set_faults(plan);
        let error = area.mmap(100, MmapOptions::new()).map(drop).unwrap_err();
        simulation.set_faults(FaultPlan::none());
        // An error of category "not supported" names the function, but not the status.
        let reported = format!("{status:#x}");
        let reported = if error.aml() == AML_NOT_SUPPORTED {
            "hsa_amd_memory_pool_allocate"
        } else {
            &reported
        };
        assert!(error.to_string().contains(reported), "{error}");
    }
    fixture.assert_idle();
}

/// In AML, `aml_errno = -error` makes a positive code negative, but `munmap` returns a positive code. In areas, all
/// codes are positive, and every category of error has its own code.
///
/// In AML, `return hip_to_aml_alloc_error(error)` translates a code a second time. In areas, each error keeps its
/// cause.
#[test]
fn aml_numbers_are_positive() {
    let fixture = Fixture::simulated(Config::mi300x(1));
    let simulation = fixture.simulation.as_ref().unwrap();
    let area = fixture.area(0, AreaFlags::HOST).unwrap();
    let fail = |function: &str, status| {
        simulation.set_faults(FaultPlan::none().always(function, status));
    };
    for (status, code) in [
        (HSA_STATUS_ERROR, AML_FAILURE),
        (HSA_STATUS_ERROR_OUT_OF_RESOURCES, AML_OUT_OF_MEMORY),
        (HSA_STATUS_ERROR_NOT_SUPPORTED, AML_NOT_SUPPORTED),
        (HSA_STATUS_ERROR_RESOURCE_BUSY, AML_BUSY),
    ] {
        fail("hsa_amd_memory_pool_allocate", status);
        let mmap_error = area.mmap(1, MmapOptions::new()).unwrap_err();
        simulation.set_faults(FaultPlan::none());
        assert_eq!(
            (mmap_error.aml(), mmap_error.operation()),
            (code, Operation::Mmap),
            "{mmap_error}"
        );
        let memory = area.mmap(1, MmapOptions::new()).unwrap();
        fail("hsa_amd_memory_pool_free", status);
        let Rejected { value: memory, error: munmap_error } = memory.munmap().unwrap_err();
        simulation.set_faults(FaultPlan::none());
        assert_eq!(
            (munmap_error.aml(), munmap_error.operation()),
            (code, Operation::Munmap),
            "{munmap_error}"
        );
        for (error, call) in [
            (mmap_error, "hsa_amd_memory_pool_allocate"),
            (munmap_error, "hsa_amd_memory_pool_free"),
        ] {
            assert!(error.to_string().contains(call), "{error}");
        }
        memory.munmap().unwrap();
    }
    assert_eq!(area.mmap(0, MmapOptions::new()).unwrap_err().aml(), AML_INVALID_VALUE);
    fixture.assert_idle();
}

/// In AML, a failure leaves another device current. Areas do not change the device.
#[test]
fn failure_keeps_the_device() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    let simulation = fixture.simulation.as_ref().unwrap();
    let area = fixture.area(Device::Current, AreaFlags::DEFAULT).unwrap();
    let before = area.mmap(1, MmapOptions::new()).unwrap().device();
    simulation.set_faults(
        FaultPlan::none().always("hsa_amd_vmem_handle_create", HSA_STATUS_ERROR_OUT_OF_RESOURCES),
    );
    let error = area.mmap(1, MmapOptions::new().with_device(1)).unwrap_err();
    simulation.set_faults(FaultPlan::none());
    assert_eq!(error.aml(), AML_OUT_OF_MEMORY, "{error}");
    assert_eq!(area.mmap(1, MmapOptions::new()).unwrap().device(), before);
}

/// In AML, `flags[d->flags & 3]` is past the end of the table for `HOST | UNIFIED`.
#[test]
fn every_combination_is_displayed() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    for bits in 0..16 {
        let flags = AreaFlags::from_bits_retain(bits);
        let area = fixture.area(1, flags).unwrap();
        let text = area.to_string();
        assert!(text.starts_with("area for GPU 1: "), "{text}");
        assert!(text.contains(&flags.to_string()) && text.ends_with(" memory"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// AML's `munmap` takes a size and ignores it. An area's memory stores its size: bytes past the end are not
/// accessible, although the granule is larger.
#[test]
fn memory_is_bounded_by_the_requested_size() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    for flags in [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::UNIFIED] {
        let area = fixture.area(0, flags).unwrap();
        let memory = area.mmap(100, MmapOptions::new()).unwrap();
        assert_eq!((memory.size(), memory.allocated_size()), (100, 4096), "{flags}");
        let results = [
            memory.read(96, &mut [0; 5]),
            memory.write(100, &[0]),
            memory.write(usize::MAX, &[0]),
            memory.fill(0, 0, 104),
            memory.fill(4, 0, usize::MAX - 3),
        ];
        for result in results {
            let error = result.unwrap_err();
            let problem = error.problem();
            assert!(matches!(problem, Some(Problem::OutOfBounds { end: 100, .. })), "{error}");
        }
        memory.read(100, &mut []).unwrap();
        memory.munmap().unwrap();
    }
    fixture.assert_idle();
}

/// AML documents that `aml_area_hip_create` rejects a device number out of range.
#[test]
fn device_out_of_range_is_invalid() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    let problem = Problem::OutOfRange(2);
    for number in [2, 3, usize::MAX] {
        let error = fixture.area(number, AreaFlags::DEFAULT).unwrap_err();
        assert_eq!(error.operation(), Operation::AreaCreate, "{error}");
        assert_eq!(error.argument().zip(error.problem()), Some((Argument::Device, problem)));
        assert_eq!(error.aml(), AML_INVALID_VALUE);
        let area = fixture.area(Device::Current, AreaFlags::DEFAULT).unwrap();
        let error = area.mmap(1, MmapOptions::new().with_device(number)).unwrap_err();
        assert_eq!(error.operation(), Operation::Mmap, "{error}");
        assert_eq!(error.argument().zip(error.problem()), Some((Argument::Device, problem)));
    }
}
