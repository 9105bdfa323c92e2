//! The runtime's description of itself and its agents.

use super::kernel_state::{ALLOCATION_SIZE, expect_addresses_freed, expect_memory_returned};
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::{Context, NotPassed, raw_calls};
use hsa_vmm::ErrorKind;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::error::{Feature, Problem};
use hsa_vmm::hsa_sys::HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED;
use hsa_vmm::{Address, AgentId, AllocationProperties, Error, Runtime, Vmm};
use std::collections::HashSet;

pub(super) const CASES: &[Case] = &[
    Case::of_runtime(
        "runtime.version.reported",
        "HSA: HSA_SYSTEM_INFO_VERSION_MAJOR, HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR",
        "the versions of HSA and of AMD's extension are 1.x",
        reports_versions,
    ),
    Case::of_runtime(
        "runtime.virtual_memory.available",
        "HSA: HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED",
        "runtime and driver support virtual memory management",
        supports_virtual_memory,
    ),
    Case::of_runtime(
        "runtime.virtual_memory.refused_if_absent",
        "HIP: hipDeviceAttributeVirtualMemoryManagementSupported; reference 6.2 #66",
        "without support, opening a Vmm returns not supported",
        open_fails_without_support,
    ),
    Case::of_runtime(
        "runtime.functions.listed",
        "HSA: hsa_ext_amd.h",
        "the library's list of optional functions contains no name twice, and each name begins with `hsa_`",
        lists_functions_once,
    ),
    Case::of_runtime(
        "runtime.agents.have_a_cpu",
        "HSA: hsa_iterate_agents",
        "there is a CPU agent, which is the host",
        runtime_has_cpu_agent,
    ),
    Case::of_runtime(
        "runtime.agents.have_a_gpu",
        "HIP: hipGetDeviceCount",
        "there is a GPU agent with an instruction set",
        runtime_has_gpu_agent,
    ),
    Case::of_runtime(
        "runtime.agents.are_distinct",
        "HSA: hsa_agent_t",
        "the runtime's agents are distinct, and so are the library's identifiers, which survive conversion to numbers",
        agents_are_distinct,
    ),
    Case::of_runtime(
        "runtime.agents.invented_is_none",
        "HSA: HSA_STATUS_ERROR_INVALID_AGENT",
        "an invented identifier, or an identifier of another runtime, is not found",
        invented_agent_is_not_found,
    ),
    Case::of_runtime(
        "runtime.agents.reach_themselves",
        "HIP: hipDeviceCanAccessPeer",
        "every agent can access its own memory, and peers are agents of this runtime",
        agents_access_own_memory,
    ),
    Case::of_runtime(
        "runtime.gpus.on_the_bus",
        "HSA: HSA_AMD_AGENT_INFO_BDFID, HSA_AMD_AGENT_INFO_DOMAIN",
        "no two GPUs have the same PCI address and partition",
        pci_addresses_differ,
    ),
    Case::new(
        "runtime.vmm.independent",
        "HIP: hipMemAddressFree",
        "a Vmm does not have the reservations of another Vmm",
        vmms_are_independent,
    ),
    Case::new(
        "runtime.vmm.gives_back_at_its_end",
        "experience: ROCm 6.4.3 crashed when it was stopped with live mappings; reference 6.2 #64",
        "a dropped Vmm releases its memory and frees its addresses, and another Vmm works",
        dropped_vmm_releases_all,
    ),
    Case::new(
        "runtime.process.stops_after_copies",
        "HSA: hsa_shut_down",
        "in a second process, each GPU copies; then the process stops the runtime and exits",
        stops_after_copies,
    ),
];

fn stops_after_copies(context: &Context) -> TestResult {
    context.start_peer()?.stop()
}

fn reports_versions(runtime: &Runtime) -> TestResult {
    let info = runtime.info();
    ensure_eq!(info.version.0, 1, "major version of HSA");
    ensure_eq!(info.extension.0, 1, "major version of AMD's extension");
    ensure!(!info.name.is_empty(), "the runtime has no name");
    Ok(())
}

fn supports_virtual_memory(runtime: &Runtime) -> TestResult {
    let info = runtime.info();
    let reason = info.virtual_memory_failure.as_deref();
    ensure!(reason.is_none(), "no virtual memory management: {}", reason.unwrap_or_default());
    Ok(())
}

fn open_fails_without_support(runtime: &Runtime) -> TestResult {
    if runtime.info().virtual_memory_failure.is_none() {
        return Err(NotPassed::Skipped(
            "the runtime supports virtual memory management".to_owned(),
        ));
    }
    let opened = Vmm::open(runtime).map_err(Error::into_kind);
    match opened {
        Err(ErrorKind::NotSupported(Feature::VirtualMemory)) => Ok(()),
        other => Err(NotPassed::Failed(format!("opening returned {other:?}"))),
    }
}

fn lists_functions_once(runtime: &Runtime) -> TestResult {
    let functions = &runtime.info().optional_functions;
    let names: HashSet<_> = functions.iter().map(|(name, _)| name).collect();
    ensure_eq!(names.len(), functions.len(), "different names of optional functions");
    for name in names {
        ensure!(name.starts_with("hsa_"), "{name} is not a function of HSA");
    }
    Ok(())
}

fn runtime_has_cpu_agent(runtime: &Runtime) -> TestResult {
    ensure_eq!(runtime.host().kind(), AgentKind::Cpu, "kind of the host");
    ensure!(runtime.agent(runtime.host().id()).is_some(), "the host is not listed");
    Ok(())
}

fn runtime_has_gpu_agent(runtime: &Runtime) -> TestResult {
    let Some(gpu) = runtime.gpus().next() else {
        return Err(NotPassed::Failed("there is no GPU".to_owned()));
    };
    ensure!(!gpu.name().is_empty(), "the GPU has no name");
    ensure!(!gpu.isas.is_empty(), "{} has no instruction set", gpu.name());
    Ok(())
}

fn agents_are_distinct(runtime: &Runtime) -> TestResult {
    let agents = runtime.agents();
    let ids: HashSet<_> = agents.iter().map(|agent| agent.id()).collect();
    ensure_eq!(ids.len(), agents.len(), "different identifiers");
    let handles: HashSet<_> = agents.iter().map(|agent| agent.hsa_agent().handle).collect();
    ensure_eq!(handles.len(), agents.len(), "different handles of agents");
    for id in ids {
        ensure_eq!(AgentId::from_bits(id.to_bits()), id, "identifier as a number and back");
        ensure!(runtime.agent(id).is_some(), "{id} is not found");
    }
    Ok(())
}

fn invented_agent_is_not_found(runtime: &Runtime) -> TestResult {
    let bits = runtime.host().id().to_bits();
    for bits in [bits | 0xffff_ffff, bits ^ 1 << 63, u64::MAX] {
        let id = AgentId::from_bits(bits);
        ensure!(runtime.agent(id).is_none(), "{id:?} names an agent");
    }
    Ok(())
}

fn agents_access_own_memory(runtime: &Runtime) -> TestResult {
    for agent in runtime.agents() {
        ensure!(agent.can_access(agent.id()), "{} cannot access its own memory", agent.name());
        for pool in &agent.pools {
            let access = raw_calls::pool_access(runtime, agent, pool).map_err(NotPassed::Failed)?;
            let is_accessible = access != HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED;
            ensure!(is_accessible, "{} cannot access its own memory", agent.name());
        }
        for peer in &agent.peers {
            let is_agent = runtime.agent(peer.agent).is_some();
            ensure!(is_agent, "{} has a peer that is not an agent: {}", agent.name(), peer.agent);
        }
    }
    Ok(())
}

fn pci_addresses_differ(runtime: &Runtime) -> TestResult {
    let mut addresses = HashSet::new();
    for gpu in runtime.gpus() {
        let Some(address) = gpu.pci else { continue };
        // The partitions of a device have one address. The number of a partition is in the bits 28 to 31.
        let partition = raw_calls::bus_location(runtime, gpu).map_err(NotPassed::Failed)? >> 28;
        let is_new = addresses.insert((address, partition));
        ensure!(is_new, "two GPUs have the PCI address {address} (partition {partition})");
    }
    Ok(())
}

fn vmms_are_independent(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let other = context.open_vmm(context.profile())?;
    let freed = other.address_free(at, 2 * context.granule());
    let problem = freed.err().and_then(|error| error.problem());
    ensure_eq!(problem, Some(Problem::NotAReservation), "freeing the reservation with another Vmm");
    ensure_eq!(other.usage().reservations, 0, "reservations of the other Vmm");
    Ok(())
}

fn dropped_vmm_releases_all(context: &Context) -> TestResult {
    let granule = context.granule();
    for _ in 0..3 {
        drop_vmm_in_use(context, 2 * granule, granule)?;
    }
    context.map_filled(1, 0x1234_5678)?;
    let reserved = granule << 10;
    expect_addresses_freed(reserved, || drop_vmm_in_use(context, reserved, granule))?;
    let size = ALLOCATION_SIZE.next_multiple_of(granule);
    expect_memory_returned(context, context.gpu(), size, || {
        drop_vmm_in_use(context, size, size).map(drop)
    })
}

/// Opens a `Vmm`, reserves addresses, maps `size` bytes of memory at their beginning, and drops the `Vmm`. Returns the
/// address of the reservation.
fn drop_vmm_in_use(context: &Context, reserved: usize, size: usize) -> TestResult<Address> {
    let vmm = context.open_vmm(context.profile())?;
    let at = vmm.address_reserve(reserved, 0, None)?;
    let handle = vmm.create(size, &AllocationProperties::on(context.gpu()))?;
    vmm.map(at, size, 0, handle)?;
    Ok(at)
}
