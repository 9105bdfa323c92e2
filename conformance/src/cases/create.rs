//! `hipMemCreate`.

use super::kernel_state::expect_memory_counted;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::hip_calls::HipCalls as _;
use crate::{Context, NotPassed};
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::{AllocationKind, Location};
use hsa_vmm::{AgentId, AllocationProperties, ErrorKind, HandleType};
use std::collections::HashSet;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "create.size.multiples_of_the_granule",
        "hip-tests: hipMemCreate_BasicAllocateDeAlloc_MultGranularity",
        "memory of 1 to 16 granules is created and released",
        creates_multiples_of_granule,
    ),
    Case::new(
        "create.handles.are_distinct",
        "HIP: hipMemCreate",
        "live handles are distinct and not 0",
        handles_are_distinct,
    ),
    Case::new(
        "create.handles.more_than_descriptors",
        "reference 6.2 #62: ROCr 7.14 keeps a descriptor for each handle",
        "1100 handles can be live at once, or the error names the lack of descriptors",
        creates_many_handles,
    ),
    Case::new(
        "create.memory.is_its_own",
        "invariant 15 (src/vmm/ledger/check.rs)",
        "writes to the memory of one handle do not change the memory of another handle",
        handles_have_separate_memory,
    ),
    Case::new(
        "create.gpus.all",
        "HIP: hipMemCreate",
        "memory can be created on every GPU, and decreases the available memory of this GPU",
        every_gpu_creates_memory,
    ),
    Case::new(
        "create.size.zero",
        "hip-tests: hipMemCreate_Negative",
        "a size of 0 is rejected",
        |c| rejects_size(c, 0),
    ),
    Case::new(
        "create.size.off_the_granule",
        "hip-tests: hipMemCreate_Negative; reference 6.2 #12",
        "a size that is not a multiple of the granule is rejected",
        |c| rejects_size(c, c.granule() + c.granule() / 2),
    ),
    Case::new(
        "create.size.too_large",
        "recorded: cuda_h200_edges create_too_big; reference 6.2 #17",
        "more memory than the GPU has returns out of memory",
        rejects_huge_size,
    ),
    Case::new(
        "create.flags.refused",
        "recorded: cuda_h200_edges create_flags_nonzero",
        "flags are rejected",
        rejects_flags,
    ),
    Case::new(
        "create.agent.invented",
        "recorded: cuda_h200_edges create_bad_device; reference 6.2 #13",
        "an agent that does not exist returns invalid value in HIP 6, invalid device in HIP 7",
        rejects_invented_agent,
    ),
    Case::new(
        "create.agent.of_another_runtime",
        "recorded: cuda_h200_edges create_negative_device; reference 6.2 #13",
        "an agent of another runtime returns invalid value in HIP 6, invalid device in HIP 7",
        rejects_foreign_agent,
    ),
    Case::new(
        "create.agent.cpu",
        "HIP: hipMemCreate; experience with ROCm 6.4.3; reference 6.2 #16",
        "memory of a CPU is not supported",
        rejects_cpu,
    ),
    Case::new(
        "create.location.unknown",
        "recorded: cuda_h200_edges create_location_type_invalid",
        "an unknown location type returns invalid value",
        rejects_unknown_location,
    ),
    Case::new(
        "create.handle_type.windows",
        "HIP: hipMemCreate; reference 6.2 #14",
        "memory with a shareable handle for Windows is not supported",
        |c| rejects_handle_type(c, HandleType::WIN32 | HandleType::WIN32_KMT),
    ),
    Case::new(
        "create.handle_type.unknown",
        "HIP: hipMemCreate",
        "memory with an unknown shareable handle type is not supported",
        |c| rejects_handle_type(c, HandleType::from_bits_retain(1 << 20)),
    ),
    Case::new(
        "create.handle_type.descriptor",
        "HIP: hipMemCreate",
        "memory that can be exported as a file descriptor is created",
        |c| c.create_shareable(1).map(|_| ()),
    ),
    Case::new(
        "create.kind.uncached",
        "HIP: hipMemAllocationTypeUncached",
        "uncached memory is created if the version of AMD's extension (not of the library file) is 1.18 or newer, and is not supported by older versions",
        creates_uncached_memory,
    ),
];

fn creates_multiples_of_granule(context: &Context) -> TestResult {
    for granules in 1..=16 {
        let handle = context.create(granules)?;
        let size = context.vmm().allocation_size(handle)?;
        ensure_eq!(size, granules * context.granule(), "size");
        context.vmm().release(handle)?;
        ensure_eq!(context.vmm().usage().handles, 0, "handles after the release");
    }
    Ok(())
}

fn handles_are_distinct(context: &Context) -> TestResult {
    let mut returned = HashSet::from([0]);
    for _ in 0..16 {
        let handle = context.create(1)?;
        ensure!(returned.insert(handle.to_bits()), "{handle} was returned twice");
    }
    Ok(())
}

/// A number of handles above 1024, the usual limit of open descriptors.
const HANDLES: usize = 1100;

fn creates_many_handles(context: &Context) -> TestResult {
    if !context.counts_descriptors() {
        let reason = "other threads of this process may need descriptors at the same time";
        return Err(NotPassed::Skipped(reason.to_owned()));
    }
    let pool = context.runtime().agent(context.gpu()).and_then(|gpu| gpu.vmem_pool());
    if pool.is_none_or(|pool| pool.size / 2 < HANDLES * context.granule()) {
        return Err(NotPassed::Skipped(format!(
            "the GPU has too little memory for {HANDLES} granules"
        )));
    }
    let properties = AllocationProperties::on(context.gpu());
    for count in 0..HANDLES {
        match context.vmm().create(context.granule(), &properties) {
            Ok(handle) => drop(context.release_at_end(handle)),
            Err(error) => {
                let is_expected = *error.kind() == ErrorKind::OutOfDescriptors;
                ensure!(is_expected, "with {count} handles: {error}");
                ensure_eq!(context.vmm().usage().handles, count, "handles");
                return Ok(());
            }
        }
    }
    Ok(())
}

fn handles_have_separate_memory(context: &Context) -> TestResult {
    let (first, _) = context.map_filled(2, 0x1111_1111)?;
    let (second, _) = context.map_filled(2, 0x2222_2222)?;
    context.check_contents(first, 2, 0x1111_1111)?;
    context.check_contents(second, 2, 0x2222_2222)
}

fn every_gpu_creates_memory(context: &Context) -> TestResult {
    for &gpu in context.gpus() {
        let handle = context.create_on(gpu, 1)?;
        let properties = context.vmm().allocation_properties(handle)?;
        ensure_eq!(properties.location, Location::Agent(gpu), "location");
    }
    context.gpus().iter().try_for_each(|&gpu| expect_memory_counted(context, gpu))
}

fn rejects_size(context: &Context, size: usize) -> TestResult {
    let properties = AllocationProperties::on(context.gpu());
    context.expect_invalid_argument(Argument::Size, || context.vmm().create(size, &properties))
}

fn rejects_huge_size(context: &Context) -> TestResult {
    let pool = context.runtime().agent(context.gpu()).and_then(|gpu| gpu.vmem_pool());
    let size = pool.map_or(1 << 50, |pool| pool.size);
    let too_large = (2 * size).next_multiple_of(context.granule());
    let properties = AllocationProperties::on(context.gpu());
    let create = || context.vmm().create(too_large, &properties);
    context.expect_error(HipError::OutOfMemory, create).map(|_| ())
}

fn rejects_flags(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.gpu());
    for flags in [1, 1 << 63] {
        let create = || context.vmm().create_with_flags(context.granule(), &properties, flags);
        context.expect_invalid_argument(Argument::Flags, create)?;
    }
    Ok(())
}

fn rejects_agent(context: &Context, agent: AgentId) -> TestResult {
    let expected = match context.profile() {
        HipProfile::Hip6 => HipError::InvalidValue,
        _ => HipError::InvalidDevice,
    };
    let properties = AllocationProperties::on(agent);
    let create = || context.vmm().create(context.granule(), &properties);
    let error = context.expect_error(expected, create)?;
    ensure_eq!(error.argument(), Some(Argument::Location), "{error}");
    Ok(())
}

fn rejects_invented_agent(context: &Context) -> TestResult {
    rejects_agent(context, context.invented_agent())
}

fn rejects_foreign_agent(context: &Context) -> TestResult {
    // The upper 32 bits of an identifier are the runtime's number.
    rejects_agent(context, AgentId::from_bits(context.gpu().to_bits() ^ 1 << 63))
}

fn rejects_cpu(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.host());
    let create = || context.vmm().create(context.granule(), &properties);
    context.expect_error(HipError::NotSupported, create).map(|_| ())
}

fn rejects_unknown_location(context: &Context) -> TestResult {
    let mut properties = AllocationProperties::on(context.gpu());
    properties.location = Location::Unknown;
    let create = || context.vmm().create(context.granule(), &properties);
    context.expect_invalid_argument(Argument::Location, create)
}

fn rejects_handle_type(context: &Context, types: HandleType) -> TestResult {
    let mut properties = AllocationProperties::on(context.gpu());
    properties.handle_types = types;
    let create = || context.vmm().create(context.granule(), &properties);
    context.expect_error(HipError::NotSupported, create)?;
    properties.handle_types |= HandleType::POSIX_FILE_DESCRIPTOR;
    let create = || context.vmm().create(context.granule(), &properties);
    context.expect_error(HipError::NotSupported, create).map(|_| ())
}

fn creates_uncached_memory(context: &Context) -> TestResult {
    let mut properties = AllocationProperties::on(context.gpu());
    properties.kind = AllocationKind::Uncached;
    let create = || context.vmm().create(context.granule(), &properties);
    if context.runtime().info().extension < (1, 18) {
        return context.expect_error(HipError::NotSupported, create).map(|_| ());
    }
    let handle = context.release_at_end(create()?);
    ensure_eq!(context.vmm().allocation_properties(handle)?.kind, properties.kind, "kind");
    Ok(())
}
