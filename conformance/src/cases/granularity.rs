//! `hipMemGetAllocationGranularity`.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use hsa_vmm::AllocationProperties;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::{Granularity, Location};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "granularity.minimum.is_the_granule",
        "hip-tests: hipMemGetAllocationGranularity_MinGranularity",
        "the minimum granularity is the granule of the pool, and is not 0",
        minimum_is_pool_granule,
    ),
    Case::new(
        "granularity.recommended.is_a_multiple",
        "hip-tests: hipMemGetAllocationGranularity_RecommendedGranularity",
        "the recommended granularity is a multiple of the minimum; in HIP 6 it is the minimum",
        recommended_is_multiple,
    ),
    Case::new(
        "granularity.gpus.all_answer",
        "hip-tests: hipMemGetAllocationGranularity_AllGPUs",
        "every GPU has a granularity",
        every_gpu_has_granularity,
    ),
    Case::new(
        "granularity.minimum.suffices",
        "HIP: hipMemGetAllocationGranularity",
        "memory and addresses of one granule can be allocated and used",
        one_granule_is_usable,
    ),
    Case::new(
        "granularity.agent.invented",
        "hip-tests: hipMemGetAllocationGranularity_NegativeTests",
        "an agent that does not exist returns invalid value",
        rejects_invented_agent,
    ),
    Case::new(
        "granularity.agent.cpu",
        "HIP: hipMemGetAllocationGranularity",
        "memory of a CPU is not supported",
        rejects_cpu,
    ),
    Case::new(
        "granularity.location.unknown",
        "hip-tests: hipMemGetAllocationGranularity_NegativeTests",
        "an unknown location type returns invalid value",
        rejects_unknown_location,
    ),
];

const BOTH_KINDS: [Granularity; 2] = [Granularity::Minimum, Granularity::Recommended];

fn minimum_is_pool_granule(context: &Context) -> TestResult {
    let gpu = context.gpu();
    let properties = AllocationProperties::on(gpu);
    let granule = context.vmm().allocation_granularity(&properties, Granularity::Minimum)?;
    let pool = context.runtime().agent(gpu).and_then(|gpu| gpu.vmem_pool());
    ensure_eq!(Some(granule), pool.map(|pool| pool.granule), "minimum granularity");
    ensure!(granule > 0, "the granularity is 0");
    Ok(())
}

fn recommended_is_multiple(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.gpu());
    let [minimum, recommended] =
        BOTH_KINDS.map(|kind| context.vmm().allocation_granularity(&properties, kind));
    let (minimum, recommended) = (minimum?, recommended?);
    let is_multiple = minimum > 0 && recommended >= minimum && recommended % minimum == 0;
    ensure!(is_multiple, "minimum {minimum:#x}, recommended {recommended:#x}");
    if context.profile() == HipProfile::Hip6 {
        ensure_eq!(recommended, minimum, "recommended granularity in HIP 6");
    }
    Ok(())
}

fn every_gpu_has_granularity(context: &Context) -> TestResult {
    for &gpu in context.gpus() {
        for kind in BOTH_KINDS {
            let properties = AllocationProperties::on(gpu);
            let granule = context.vmm().allocation_granularity(&properties, kind)?;
            ensure!(granule > 0, "{kind:?} granularity of {gpu} is 0");
        }
    }
    Ok(())
}

fn one_granule_is_usable(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x0101_0101)?;
    context.check_contents(at, 1, 0x0101_0101)
}

fn rejects_invented_agent(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.invented_agent());
    for kind in BOTH_KINDS {
        let query = || context.vmm().allocation_granularity(&properties, kind);
        context.expect_invalid_argument(Argument::Location, query)?;
    }
    Ok(())
}

fn rejects_cpu(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.host());
    for kind in BOTH_KINDS {
        let query = || context.vmm().allocation_granularity(&properties, kind);
        context.expect_error(HipError::NotSupported, query)?;
    }
    Ok(())
}

fn rejects_unknown_location(context: &Context) -> TestResult {
    let mut properties = AllocationProperties::on(context.gpu());
    properties.location = Location::Unknown;
    let query = || context.vmm().allocation_granularity(&properties, Granularity::Minimum);
    context.expect_invalid_argument(Argument::Location, query)
}
