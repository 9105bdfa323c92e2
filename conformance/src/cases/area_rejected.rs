//! Areas: invalid calls.

use super::area::{create_area, flag_combinations, mmap};
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Area, Error};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "area.create.device_out_of_range",
        "AML: aml_area_hip_create, AML_EINVAL",
        "an area of a device that does not exist is rejected",
        rejects_device_out_of_range,
    ),
    Case::new(
        "area.create.not_a_device",
        "AML: aml_area_hip_create, AML_EINVAL",
        "an area of a CPU or of an invented agent is rejected",
        rejects_non_gpu,
    ),
    Case::new(
        "area.create.unknown_flags",
        "decision: unknown flags are rejected",
        "unknown flags are rejected",
        rejects_unknown_flags,
    ),
    Case::new(
        "area.mmap.existing_memory_missing",
        "AML: \"ptr\" must not be NULL, AML_EINVAL",
        "`ALLOC_MAPPED` without `ALLOC_HOST` and `ALLOC_UNIFIED` requires existing memory of the full size; with other flags, existing memory is rejected",
        rejects_missing_memory,
    ),
    Case::new(
        "area.mmap.zero_size",
        "decision: a size of 0 is rejected",
        "a size of 0 is rejected",
        rejects_zero_size,
    ),
    Case::new(
        "area.mmap.too_large",
        "AML: AML_ENOMEM, hipErrorOutOfMemory",
        "more device, host or unified memory than exists is rejected",
        rejects_huge_size,
    ),
    Case::new(
        "area.transfer.beyond",
        "decision: an error, never a fault",
        "bytes past the requested size can be neither read nor written",
        rejects_access_beyond_end,
    ),
];

/// AML's error codes.
const AML_ENOMEM: i32 = 2;
const AML_EINVAL: i32 = 3;

/// Checks that a call failed with the expected HIP error, and records the error.
fn expect_area_error<T>(
    context: &Context,
    expected: HipError,
    result: Result<T, Error>,
) -> TestResult<Error> {
    match result {
        Ok(_) => Err(NotPassed::Failed(format!("succeeded where {expected} was expected"))),
        Err(error) => {
            ensure_eq!(error.hip(context.profile()), expected, "{error}");
            context.record_expected_error(expected);
            Ok(error)
        }
    }
}

fn rejects_device_out_of_range(context: &Context) -> TestResult {
    let devices = context.runtime().gpus().count();
    for number in [devices, devices + 1, usize::MAX] {
        let problem = Some(Problem::OutOfRange(devices));
        let result = Area::new(context.vmm(), number, AreaFlags::DEFAULT);
        let error = expect_area_error(context, HipError::InvalidDevice, result)?;
        ensure_eq!((error.problem(), error.aml()), (problem, AML_EINVAL), "{error}");
        let area = create_area(context, AreaFlags::DEFAULT)?;
        let result = area.mmap(1, MmapOptions::new().with_device(number));
        let error = expect_area_error(context, HipError::InvalidDevice, result)?;
        ensure_eq!(error.problem(), problem, "{error}");
    }
    Ok(())
}

fn rejects_non_gpu(context: &Context) -> TestResult {
    for agent in [context.host(), context.invented_agent()] {
        let result = Area::new(context.vmm(), agent, AreaFlags::DEFAULT);
        let error = expect_area_error(context, HipError::InvalidDevice, result)?;
        ensure_eq!(error.problem(), Some(Problem::NotAGpu), "{error}");
    }
    Ok(())
}

fn rejects_unknown_flags(context: &Context) -> TestResult {
    for bits in [0x10, 0x1f, u32::MAX] {
        let flags = AreaFlags::from_bits_retain(bits);
        let result = Area::new(context.vmm(), context.gpu(), flags);
        let error = expect_area_error(context, HipError::InvalidValue, result)?;
        ensure_eq!(error.problem(), Some(Problem::UndefinedFlags(0xf)), "{error}");
    }
    Ok(())
}

fn rejects_missing_memory(context: &Context) -> TestResult {
    let mut host_memory = [0; 10];
    for flags in flag_combinations() {
        let area = create_area(context, flags)?;
        let (result, argument) = if flags.maps_existing_memory() {
            let without_memory = area.mmap(10, MmapOptions::new());
            let error = expect_area_error(context, HipError::InvalidValue, without_memory)?;
            ensure_eq!(error.problem(), Some(Problem::MissingHostMemory), "{error}");
            (area.mmap(11, MmapOptions::new().with_host_memory(&mut host_memory)), Argument::Size)
        } else {
            (area.mmap(10, MmapOptions::new().with_host_memory(&mut host_memory)), Argument::Host)
        };
        let error = expect_area_error(context, HipError::InvalidValue, result)?;
        ensure_eq!(error.argument(), Some(argument), "{flags}: {error}");
    }
    Ok(())
}

fn rejects_zero_size(context: &Context) -> TestResult {
    let mut host_memory = [0; 10];
    for flags in flag_combinations() {
        let options = match flags.maps_existing_memory() {
            true => MmapOptions::new().with_host_memory(&mut host_memory),
            false => MmapOptions::new(),
        };
        let result = create_area(context, flags)?.mmap(0, options);
        let error = expect_area_error(context, HipError::InvalidValue, result)?;
        ensure_eq!(error.problem(), Some(Problem::Zero), "{error}");
    }
    Ok(())
}

fn rejects_huge_size(context: &Context) -> TestResult {
    let pools = context.runtime().agents().iter().flat_map(|agent| &agent.pools);
    let largest_pool = pools.map(|pool| pool.size).max().unwrap_or(0);
    for flags in [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::UNIFIED] {
        for size in [largest_pool + (1 << 30), usize::MAX] {
            let result = create_area(context, flags)?.mmap(size, MmapOptions::new());
            let error = expect_area_error(context, HipError::OutOfMemory, result)?;
            ensure_eq!(error.aml(), AML_ENOMEM, "{error}");
        }
    }
    Ok(())
}

fn rejects_access_beyond_end(context: &Context) -> TestResult {
    let mut host_memory = [0; 100];
    for flags in flag_combinations() {
        let memory = mmap(&create_area(context, flags)?, 100, &mut host_memory)?;
        let results = [
            memory.read(100, &mut [0]),
            memory.read(96, &mut [0; 5]),
            memory.write(usize::MAX, &[0]),
            memory.fill(0, 0, 104),
            memory.copy(97, &memory, 0, 4),
        ];
        for result in results {
            let error = expect_area_error(context, HipError::InvalidValue, result)?;
            let is_out_of_bounds =
                matches!(error.problem(), Some(Problem::OutOfBounds { end: 100, .. }));
            ensure!(is_out_of_bounds, "{flags}: {error}");
        }
    }
    Ok(())
}
