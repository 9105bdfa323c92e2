//! `hipDeviceProp_t`, in the layout of HIP 6 and 7, and the attributes of devices.

use crate::devices::{device_uuid, memory_size, with_agent};
use crate::pointers::{not_null, to_char_array, write_out};
use crate::process::{Process, process};
use crate::status::{Failure, run};
use crate::types::{attribute, hipError_t, hipUUID};
use core::ffi::{c_char, c_int, c_uint, c_void};
use hsa_vmm::Agent;
use hsa_vmm::agent::ComputeProperties;
use hsa_vmm::pool::PoolFlags;

/// The properties that the name of a GPU's architecture (`gfx942`, `gfx1100`) contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Architecture {
    major: c_int,
    minor: c_int,
    /// The number of threads that execute in lockstep. Zero if the name is unknown.
    warp_size: c_int,
}

impl Architecture {
    fn of(agent: &Agent) -> Self {
        Self::parse(agent.name())
    }

    /// Returns the number of compute units in a multiprocessor. From gfx10 on, HIP's multiprocessors are work-group
    /// processors, which have two compute units (`GPU_ENABLE_WGP_MODE` in ROCm/clr).
    fn units_per_multiprocessor(self) -> u32 {
        if self.major >= 10 { 2 } else { 1 }
    }

    /// Parses a name. Its last two digits are the minor number and the stepping (hexadecimal). The digits before these
    /// two are the major number.
    fn parse(name: &str) -> Self {
        let parsed = || {
            let digits = name.strip_prefix("gfx")?;
            let (major, rest) = digits.split_at_checked(digits.len().checked_sub(2)?)?;
            let major = major.parse().ok()?;
            let minor = c_int::try_from(rest.chars().next()?.to_digit(16)?).ok()?;
            Some(Self { major, minor, warp_size: if major < 10 { 64 } else { 32 } })
        };
        parsed().unwrap_or_default()
    }
}

/// HIP's properties of a device. Members that this library sets have HIP's names. The other members are 0. An array can
/// stand for several of HIP's members.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct hipDeviceProp_t {
    name: [c_char; 256],
    uuid: hipUUID,
    luid: [c_char; 8],
    luid_node_mask: c_uint,
    totalGlobalMem: usize,
    sharedMemPerBlock: usize,
    registers: c_int,
    warpSize: c_int,
    memPitch: usize,
    maxThreadsPerBlock: c_int,
    maxThreadsDim: [c_int; 3],
    maxGridSize: [c_int; 3],
    clockRate: c_int,
    constant_memory: usize,
    major: c_int,
    minor: c_int,
    texture_alignment: [usize; 2],
    overlap: c_int,
    multiProcessorCount: c_int,
    timeout: c_int,
    integrated: c_int,
    canMapHostMemory: c_int,
    compute_mode: c_int,
    textures: [c_int; 26],
    surfaces: [c_int; 14],
    surface_alignment: usize,
    concurrent_kernels_and_ecc: [c_int; 2],
    pciBusID: c_int,
    pciDeviceID: c_int,
    pciDomainID: c_int,
    tcc_and_engines: [c_int; 2],
    unifiedAddressing: c_int,
    memoryClockRate: c_int,
    memoryBusWidth: c_int,
    l2CacheSize: c_int,
    persistingL2CacheMaxSize: c_int,
    maxThreadsPerMultiProcessor: c_int,
    streamPrioritiesSupported: c_int,
    globalL1CacheSupported: c_int,
    localL1CacheSupported: c_int,
    sharedMemPerMultiprocessor: usize,
    registers_per_processor: c_int,
    managedMemory: c_int,
    boards_and_access: [c_int; 10],
    sharedMemPerBlockOptin: usize,
    host_page_tables_and_host_access: [c_int; 2],
    maxBlocksPerMultiProcessor: c_int,
    access_policy: c_int,
    shared_memory_reserved: usize,
    hostRegisterSupported: c_int,
    sparse: c_int,
    hostRegisterReadOnlySupported: c_int,
    semaphores_pools_and_rdma: [c_int; 6],
    arrays_events_and_clusters: [c_int; 4],
    reserved: [c_int; 63 + 32],
    gcnArchName: [c_char; 256],
    maxSharedMemoryPerMultiProcessor: usize,
    clockInstructionRate: c_int,
    arch: c_uint,
    flush_registers: [*mut c_void; 2],
    cooperative: [c_int; 4],
    isLargeBar: c_int,
    asicRevision: c_int,
}

// tests/abi/layout.rs compares the header's layout with HIP's own.
const _: () = {
    assert!(size_of::<hipDeviceProp_t>() == 1472);
    assert!(core::mem::offset_of!(hipDeviceProp_t, surface_alignment) == 568);
    assert!(core::mem::offset_of!(hipDeviceProp_t, hostRegisterSupported) == 728);
    assert!(core::mem::offset_of!(hipDeviceProp_t, gcnArchName) == 1160);
    assert!(core::mem::offset_of!(hipDeviceProp_t, isLargeBar) == 1464);
};

/// The limits of a grid in blocks, which HIP defines for all GPUs.
const GRID: [c_int; 3] = [c_int::MAX, 1 << 16, 1 << 16];

/// The frequency in kHz that HIP defines for the clock instructions of all GPUs (`timeStampFrequency_` in ROCm/clr).
const INSTRUCTION_CLOCK: c_int = 1_000_000;

/// Converts MHz to kHz, HIP's unit of clocks.
fn kilohertz(megahertz: u32) -> c_int {
    c_int::try_from(u64::from(megahertz) * 1000).unwrap_or(c_int::MAX)
}

/// Returns the size of HIP's largest allocation: the whole memory, or three quarters of up to 512 MiB. This library
/// allocates the whole memory in either case.
const fn largest_allocation(memory_size: usize) -> usize {
    if memory_size <= 512 << 20 { memory_size / 4 * 3 } else { memory_size }
}

/// Returns the number of threads that execute in lockstep: the runtime's value, or else the value that
/// the architecture's name implies. Zero if neither is known.
fn warp_size(agent: &Agent, compute: &ComputeProperties) -> c_int {
    match c_int::try_from(compute.wavefront_size) {
        Ok(size) if size > 0 => size,
        _ => Architecture::of(agent).warp_size,
    }
}

fn properties(agent: &Agent, compute: &ComputeProperties) -> hipDeviceProp_t {
    let number = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    let product = if agent.product.is_empty() { agent.name() } else { &agent.product };
    // The instruction set with its features, as HIP names it: `gfx942:sramecc+:xnack-`.
    let isa = agent.isas.first().and_then(|isa| isa.rsplit_once("--")).map(|(_, name)| name);
    let architecture = Architecture::of(agent);
    let Architecture { major, minor, .. } = architecture;
    let units = architecture.units_per_multiprocessor();
    let max_waves = number(compute.max_waves_per_unit.saturating_mul(units));
    let warp_size = warp_size(agent, compute);
    let l2_cache_size = number(compute.cache_sizes[1]);
    // SAFETY: all members are integers, arrays of them and pointers, for which 0 is valid.
    let zeros: hipDeviceProp_t = unsafe { core::mem::zeroed() };
    hipDeviceProp_t {
        name: to_char_array(product),
        uuid: device_uuid(agent),
        totalGlobalMem: memory_size(agent),
        sharedMemPerBlock: compute.group_memory,
        warpSize: warp_size,
        memPitch: largest_allocation(memory_size(agent)).min(c_int::MAX as usize),
        maxThreadsPerBlock: number(compute.max_workgroup_size),
        maxThreadsDim: compute.max_workgroup_dimensions.map(c_int::from),
        maxGridSize: GRID,
        clockRate: kilohertz(compute.clock),
        major,
        minor,
        multiProcessorCount: number(agent.compute_units / units),
        integrated: c_int::from(agent.integrated),
        canMapHostMemory: 1,
        pciBusID: agent.pci.map_or(0, |pci| c_int::from(pci.bus)),
        pciDeviceID: agent.pci.map_or(0, |pci| c_int::from(pci.device)),
        pciDomainID: agent.pci.map_or(0, |pci| number(pci.domain)),
        // Host and devices share one address space. HIP's attribute is always 1, and its member only with HMM.
        unifiedAddressing: 1,
        memoryClockRate: kilohertz(compute.memory_clock),
        memoryBusWidth: number(compute.memory_width),
        l2CacheSize: l2_cache_size,
        persistingL2CacheMaxSize: l2_cache_size,
        maxThreadsPerMultiProcessor: max_waves.saturating_mul(warp_size),
        streamPrioritiesSupported: 1,
        globalL1CacheSupported: 1,
        localL1CacheSupported: 1,
        sharedMemPerMultiprocessor: compute.group_memory,
        managedMemory: 1,
        sharedMemPerBlockOptin: compute.group_memory,
        maxBlocksPerMultiProcessor: max_waves,
        hostRegisterSupported: 1,
        gcnArchName: to_char_array(isa.unwrap_or(agent.name())),
        maxSharedMemoryPerMultiProcessor: compute.group_memory,
        clockInstructionRate: INSTRUCTION_CLOCK,
        isLargeBar: c_int::from(agent.large_bar),
        asicRevision: number(compute.revision),
        ..zeros
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevicePropertiesR0600(prop: *mut c_void, device: c_int) -> hipError_t {
    run("hipGetDeviceProperties", || {
        let process = process()?;
        process.devices.require()?;
        with_agent(device, |agent| {
            let compute = process.runtime.compute_properties(agent.id()).unwrap_or_default();
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_out("prop", prop.cast(), properties(agent, &compute)) }
        })
    })
}

/// Returns the value of an attribute.
fn attribute_value(process: &Process, agent: &Agent, requested: c_int) -> Result<c_int, Failure> {
    let compute = process.runtime.compute_properties(agent.id()).unwrap_or_default();
    let prop = properties(agent, &compute);
    let number = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    let size = |size: usize| c_int::try_from(size).unwrap_or(c_int::MAX);
    Ok(match requested {
        attribute::CAN_MAP_HOST_MEMORY => prop.canMapHostMemory,
        attribute::MANAGED_MEMORY => prop.managedMemory,
        attribute::HOST_REGISTER_SUPPORTED => prop.hostRegisterSupported,
        attribute::UNIFIED_ADDRESSING => prop.unifiedAddressing,
        // Not supported by this library, which runs no kernels, and copies synchronously. HIP returns 1 for
        // `CONCURRENT_KERNELS` and `DEVICE_OVERLAP`, and 8 for `ASYNC_ENGINE_COUNT`. In HIP, `CONCURRENT_MANAGED_ACCESS`
        // depends on HMM, which the library does not use.
        attribute::CONCURRENT_KERNELS
        | attribute::ASYNC_ENGINE_COUNT
        | attribute::DEVICE_OVERLAP
        | attribute::CAN_USE_STREAM_WAIT_VALUE
        | attribute::CONCURRENT_MANAGED_ACCESS
        | attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
        | attribute::PAGEABLE_MEMORY_ACCESS
        | attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
        | attribute::IMAGE_SUPPORT
        | attribute::MEMORY_POOLS_SUPPORTED
        | attribute::COOPERATIVE_LAUNCH
        | attribute::COOPERATIVE_MULTI_DEVICE_LAUNCH
        | attribute::COOPERATIVE_MULTI_DEVICE_UNMATCHED_FUNC
        | attribute::COOPERATIVE_MULTI_DEVICE_UNMATCHED_GRID_DIM
        | attribute::COOPERATIVE_MULTI_DEVICE_UNMATCHED_BLOCK_DIM
        | attribute::COOPERATIVE_MULTI_DEVICE_UNMATCHED_SHARED_MEM
        // hipHostGetDevicePointer() returns the device's address, which can differ from the host's.
        | attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | attribute::MEMORY_POOL_SUPPORTED_HANDLE_TYPES => 0,
        // As in HIP, always 0.
        attribute::COMPUTE_MODE
        | attribute::KERNEL_EXEC_TIMEOUT
        | attribute::ECC_ENABLED
        | attribute::COMPUTE_PREEMPTION_SUPPORTED
        | attribute::ACCESS_POLICY_MAX_WINDOW_SIZE
        | attribute::RESERVED_SHARED_MEM_PER_BLOCK
        | attribute::IS_MULTI_GPU_BOARD
        | attribute::LUID_DEVICE_NODE_MASK => 0,
        attribute::COMPUTE_CAPABILITY_MAJOR => prop.major,
        attribute::COMPUTE_CAPABILITY_MINOR => prop.minor,
        attribute::WARP_SIZE => prop.warpSize,
        attribute::CLOCK_RATE => prop.clockRate,
        attribute::MEMORY_BUS_WIDTH => prop.memoryBusWidth,
        attribute::MEMORY_CLOCK_RATE => prop.memoryClockRate,
        attribute::HDP_MEM_FLUSH_CNTL | attribute::HDP_REG_FLUSH_CNTL => {
            return Err(Failure::not_supported("an HDP flush register"));
        }
        attribute::INTEGRATED => prop.integrated,
        attribute::MULTIPROCESSOR_COUNT | attribute::PHYSICAL_MULTI_PROCESSOR_COUNT => {
            prop.multiProcessorCount
        }
        attribute::PCI_BUS_ID => prop.pciBusID,
        attribute::PCI_DEVICE_ID => prop.pciDeviceID,
        attribute::PCI_DOMAIN_ID => prop.pciDomainID,
        attribute::TOTAL_GLOBAL_MEM => size(prop.totalGlobalMem),
        attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => {
            c_int::from(process.has_vmm() && agent.vmem_pool().is_some())
        }
        attribute::DMA_BUF_SUPPORTED => c_int::from(process.runtime.info().dmabuf),
        attribute::HANDLE_TYPE_FABRIC_SUPPORTED => {
            c_int::from(process.has_vmm() && process.runtime.info().fabric)
        }
        attribute::HOST_NUMA_ID => agent.numa_node.map_or(-1, number),
        attribute::IS_LARGE_BAR => prop.isLargeBar,
        attribute::FINE_GRAIN_SUPPORT => {
            let mut pools = agent.pools.iter();
            c_int::from(pools.any(|pool| pool.flags.contains(PoolFlags::FINE_GRAINED)))
        }
        attribute::PCI_CHIP_ID => number(agent.chip),
        attribute::GLOBAL_L1_CACHE_SUPPORTED => prop.globalL1CacheSupported,
        attribute::LOCAL_L1_CACHE_SUPPORTED => prop.localL1CacheSupported,
        attribute::L2_CACHE_SIZE => prop.l2CacheSize,
        attribute::PERSISTING_L2_CACHE_MAX_SIZE => prop.persistingL2CacheMaxSize,
        attribute::MAX_BLOCKS_PER_MULTI_PROCESSOR => prop.maxBlocksPerMultiProcessor,
        attribute::MAX_BLOCK_DIM_X => prop.maxThreadsDim[0],
        attribute::MAX_BLOCK_DIM_Y => prop.maxThreadsDim[1],
        attribute::MAX_BLOCK_DIM_Z => prop.maxThreadsDim[2],
        attribute::MAX_GRID_DIM_X => prop.maxGridSize[0],
        attribute::MAX_GRID_DIM_Y => prop.maxGridSize[1],
        attribute::MAX_GRID_DIM_Z => prop.maxGridSize[2],
        attribute::MAX_THREADS_PER_BLOCK => prop.maxThreadsPerBlock,
        attribute::MAX_THREADS_PER_MULTI_PROCESSOR => prop.maxThreadsPerMultiProcessor,
        attribute::MAX_PITCH => size(prop.memPitch),
        attribute::MAX_SHARED_MEMORY_PER_BLOCK => size(prop.sharedMemPerBlock),
        attribute::SHARED_MEM_PER_BLOCK_OPTIN => size(prop.sharedMemPerBlockOptin),
        attribute::SHARED_MEM_PER_MULTIPROCESSOR => size(prop.sharedMemPerMultiprocessor),
        attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => {
            size(prop.maxSharedMemoryPerMultiProcessor)
        }
        attribute::STREAM_PRIORITIES_SUPPORTED => prop.streamPrioritiesSupported,
        attribute::ASIC_REVISION => prop.asicRevision,
        other => {
            let problem = format!("({other}) is not supported");
            return Err(Failure::invalid_argument("attribute", problem));
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetAttribute(
    value: *mut c_int,
    requested: c_int,
    device: c_int,
) -> hipError_t {
    run("hipDeviceGetAttribute", || {
        let process = process()?;
        process.devices.require()?;
        // As in HIP, checked before the device.
        not_null("value", value)?;
        with_agent(device, |agent| {
            let found = attribute_value(&process, agent, requested)?;
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_out("value", value, found) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Architecture, largest_allocation};

    /// The values are those of HIP 7.2.4, over the emulated driver.
    #[test]
    fn largest_allocation_is_that_of_hip() {
        const MIB: usize = 1 << 20;
        for (memory, expected) in [(128, 96), (512, 384), (513, 513), (1024, 1024)] {
            assert_eq!(largest_allocation(memory * MIB), expected * MIB);
        }
    }

    /// HIP's multiprocessors are work-group processors of two compute units from gfx10 on.
    #[cfg(feature = "simulation")]
    #[test]
    fn multiprocessors_are_those_of_hip() {
        use hsa_vmm::simulation::Config;
        for (config, expected) in [("consumer", (30, 2048, 64)), ("mi300x", (304, 2048, 32))] {
            let runtime = hsa_vmm::Runtime::simulated(config.parse::<Config>().unwrap()).unwrap();
            let agent = runtime.gpus().next().unwrap();
            let compute = runtime.compute_properties(agent.id()).unwrap();
            let prop = super::properties(agent, &compute);
            let found = (
                prop.multiProcessorCount,
                prop.maxThreadsPerMultiProcessor,
                prop.maxBlocksPerMultiProcessor,
            );
            assert_eq!(found, expected, "{config}");
        }
    }

    #[test]
    fn parse_reads_architecture_names() {
        let expected = [
            ("gfx942", (9, 4, 64)),
            ("gfx90a", (9, 0, 64)),
            ("gfx1100", (11, 0, 32)),
            ("gfx1036", (10, 3, 32)),
            ("gfx", (0, 0, 0)),
            ("something", (0, 0, 0)),
        ];
        for (name, numbers) in expected {
            let Architecture { major, minor, warp_size } = Architecture::parse(name);
            assert_eq!((major, minor, warp_size), numbers, "{name}");
        }
    }
}
