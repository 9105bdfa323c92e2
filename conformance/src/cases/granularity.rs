//! `hipMemGetAllocationGranularity`.

use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_eq};
use hsa_vmm::AllocationProperties;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::{Granularity, Location};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "granularity.minimum.is_the_granule",
        "hip-tests: hipMemGetAllocationGranularity_MinGranularity",
        "the minimum is the granule of the pool, and is not 0",
        minimum,
    ),
    Case::new(
        "granularity.recommended.is_a_multiple",
        "hip-tests: hipMemGetAllocationGranularity_RecommendedGranularity",
        "the recommended granularity is a multiple of the minimum; in HIP 6 it is the minimum",
        recommended,
    ),
    Case::new(
        "granularity.gpus.all_answer",
        "hip-tests: hipMemGetAllocationGranularity_AllGPUs",
        "every GPU has a granularity",
        all_gpus,
    ),
    Case::new(
        "granularity.minimum.suffices",
        "HIP: hipMemGetAllocationGranularity",
        "memory and addresses of one granule can be allocated and used",
        suffices,
    ),
    Case::new(
        "granularity.agent.invented",
        "hip-tests: hipMemGetAllocationGranularity_NegativeTests",
        "an agent that does not exist returns invalid value",
        invented,
    ),
    Case::new(
        "granularity.agent.cpu",
        "HIP: hipMemGetAllocationGranularity",
        "memory of a CPU is not supported",
        cpu,
    ),
    Case::new(
        "granularity.location.unknown",
        "hip-tests: hipMemGetAllocationGranularity_NegativeTests",
        "an unknown location type returns invalid value",
        nowhere,
    ),
];

const BOTH: [Granularity; 2] = [Granularity::Minimum, Granularity::Recommended];

fn minimum(context: &Context) -> Verdict {
    let gpu = context.gpu();
    let properties = AllocationProperties::on(gpu);
    let granule = context.vmm().allocation_granularity(&properties, Granularity::Minimum)?;
    let pool = context.runtime().agent(gpu).and_then(|gpu| gpu.vmem_pool());
    ensure_eq!(Some(granule), pool.map(|pool| pool.granule), "minimum granularity");
    ensure!(granule > 0, "the granularity is 0");
    Ok(())
}

fn recommended(context: &Context) -> Verdict {
    let properties = AllocationProperties::on(context.gpu());
    let [minimum, recommended] =
        BOTH.map(|which| context.vmm().allocation_granularity(&properties, which));
    let (minimum, recommended) = (minimum?, recommended?);
    let multiple = minimum > 0 && recommended >= minimum && recommended % minimum == 0;
    ensure!(multiple, "minimum {minimum:#x}, recommended {recommended:#x}");
    if context.profile() == HipProfile::Hip6 {
        ensure_eq!(recommended, minimum, "recommended granularity in HIP 6");
    }
    Ok(())
}

fn all_gpus(context: &Context) -> Verdict {
    for &gpu in context.gpus() {
        for which in BOTH {
            let properties = AllocationProperties::on(gpu);
            let granule = context.vmm().allocation_granularity(&properties, which)?;
            ensure!(granule > 0, "{which:?} granularity of {gpu} is 0");
        }
    }
    Ok(())
}

fn suffices(context: &Context) -> Verdict {
    let (at, _) = context.mapped(1, 0x0101_0101)?;
    context.holds(at, 1, 0x0101_0101)
}

fn invented(context: &Context) -> Verdict {
    let properties = AllocationProperties::on(context.invented_agent());
    for which in BOTH {
        let ask = || context.vmm().allocation_granularity(&properties, which);
        context.refuses_argument(Argument::Location, ask)?;
    }
    Ok(())
}

fn cpu(context: &Context) -> Verdict {
    let properties = AllocationProperties::on(context.host());
    for which in BOTH {
        let ask = || context.vmm().allocation_granularity(&properties, which);
        context.refuses(HipError::NotSupported, ask)?;
    }
    Ok(())
}

fn nowhere(context: &Context) -> Verdict {
    let mut properties = AllocationProperties::on(context.gpu());
    properties.location = Location::Unknown;
    let ask = || context.vmm().allocation_granularity(&properties, Granularity::Minimum);
    context.refuses_argument(Argument::Location, ask)
}
