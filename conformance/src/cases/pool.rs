//! The memory pools that handles are allocated from.

use crate::case::{Case, TestResult, ensure};
use hsa_vmm::Runtime;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::pool::{PoolFlags, Segment};

pub(super) const CASES: &[Case] = &[
    Case::of_runtime(
        "pool.handles.on_every_gpu",
        "HSA: hsa_amd_vmem_handle_create",
        "every GPU has an allocatable coarse-grained global pool of its own memory",
        every_gpu_has_pool,
    ),
    Case::of_runtime(
        "pool.handles.not_on_cpus",
        "HSA: hsa_amd_vmem_handle_create, which accepts pools of CPUs since ROCm 10",
        "no CPU has a pool for handles that is located on a GPU",
        cpus_have_no_pool,
    ),
    Case::of_runtime(
        "pool.granule.power_of_two",
        "HSA: HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE",
        "the granule of an allocatable pool is a power of two and at least a page",
        granule_is_power_of_two,
    ),
    Case::of_runtime(
        "pool.granule.divides_recommended",
        "HSA: HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE",
        "the recommended granule is a multiple of the granule",
        granule_divides_recommended,
    ),
    Case::of_runtime(
        "pool.size.told",
        "HSA: HSA_AMD_MEMORY_POOL_INFO_SIZE",
        "a pool for handles reports its size and the largest allocation",
        reports_sizes,
    ),
    Case::of_runtime(
        "pool.flags.one_grain",
        "HSA: HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS",
        "a global pool is coarse-grained or fine-grained, not both",
        pool_has_one_coherence,
    ),
];

fn every_gpu_has_pool(runtime: &Runtime) -> TestResult {
    for gpu in runtime.gpus() {
        ensure!(gpu.vmem_pool().is_some(), "{} has no pool for handles", gpu.name());
    }
    Ok(())
}

fn cpus_have_no_pool(runtime: &Runtime) -> TestResult {
    for cpu in runtime.agents().iter().filter(|agent| agent.kind() == AgentKind::Cpu) {
        ensure!(cpu.vmem_pool().is_none(), "{} has a pool for handles", cpu.name());
    }
    Ok(())
}

fn granule_is_power_of_two(runtime: &Runtime) -> TestResult {
    for pool in runtime.agents().iter().flat_map(|agent| &agent.pools) {
        let granule = pool.granule;
        let is_valid = granule.is_power_of_two() && granule >= 4096;
        ensure!(!pool.allocatable || is_valid, "a granule is {granule:#x}");
    }
    Ok(())
}

fn granule_divides_recommended(runtime: &Runtime) -> TestResult {
    for pool in runtime.gpus().filter_map(|gpu| gpu.vmem_pool()) {
        let (granule, recommended) = (pool.granule, pool.recommended_granule);
        let is_valid = recommended >= granule && recommended % granule == 0;
        ensure!(is_valid, "granule {granule:#x}, recommended {recommended:#x}");
    }
    Ok(())
}

fn reports_sizes(runtime: &Runtime) -> TestResult {
    for pool in runtime.gpus().filter_map(|gpu| gpu.vmem_pool()) {
        ensure!(pool.size >= pool.granule, "the pool holds {:#x} bytes", pool.size);
        ensure!(pool.largest_allocation >= pool.granule, "nothing can be allocated");
    }
    Ok(())
}

fn pool_has_one_coherence(runtime: &Runtime) -> TestResult {
    let global = |pool: &&hsa_vmm::Pool| pool.segment == Segment::Global;
    for pool in runtime.agents().iter().flat_map(|agent| &agent.pools).filter(global) {
        let both_flags = PoolFlags::COARSE_GRAINED | PoolFlags::FINE_GRAINED;
        ensure!(!pool.flags.contains(both_flags), "a pool is coarse-grained and fine-grained");
    }
    Ok(())
}
