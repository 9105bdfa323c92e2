//! `hipDeviceProp_t`, in the layout of HIP 6 and 7.

use crate::devices::{device_uuid, memory_size, with_agent};
use crate::pointers::{to_char_array, write_out};
use crate::process::process;
use crate::status::run;
use crate::types::{hipError_t, hipUUID};
use core::ffi::{c_char, c_int, c_uint, c_void};
use hsa_vmm::Agent;
use hsa_vmm::agent::ComputeProperties;

/// The properties that the name of a GPU's architecture (`gfx942`, `gfx1100`) contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Architecture {
    pub major: c_int,
    pub minor: c_int,
    /// The number of threads that execute in lockstep. Zero if the name is unknown.
    pub warp_size: c_int,
}

impl Architecture {
    pub fn of(agent: &Agent) -> Self {
        Self::parse(agent.name())
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
    pitch: usize,
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
    persisting_cache: c_int,
    maxThreadsPerMultiProcessor: c_int,
    priorities_and_caches: [c_int; 3],
    sharedMemPerMultiprocessor: usize,
    registers_per_processor: c_int,
    managedMemory: c_int,
    boards_and_access: [c_int; 10],
    shared_memory_opt_in: usize,
    access_and_blocks: [c_int; 4],
    shared_memory_reserved: usize,
    hostRegisterSupported: c_int,
    sparse: c_int,
    hostRegisterReadOnlySupported: c_int,
    semaphores_pools_and_rdma: [c_int; 6],
    arrays_events_and_clusters: [c_int; 4],
    reserved: [c_int; 63 + 32],
    gcnArchName: [c_char; 256],
    maxSharedMemoryPerMultiProcessor: usize,
    instruction_clock: c_int,
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

/// Converts MHz to kHz, HIP's unit of clocks.
pub fn kilohertz(megahertz: u32) -> c_int {
    c_int::try_from(u64::from(megahertz) * 1000).unwrap_or(c_int::MAX)
}

/// Returns the number of threads that execute in lockstep: the runtime's value, or else the value that
/// the architecture's name implies. Zero if neither is known.
pub fn warp_size(agent: &Agent, compute: &ComputeProperties) -> c_int {
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
    let Architecture { major, minor, .. } = Architecture::of(agent);
    let warp_size = warp_size(agent, compute);
    // SAFETY: all members are integers, arrays of them and pointers, for which 0 is valid.
    let zeros: hipDeviceProp_t = unsafe { core::mem::zeroed() };
    hipDeviceProp_t {
        name: to_char_array(product),
        uuid: device_uuid(agent),
        totalGlobalMem: memory_size(agent),
        sharedMemPerBlock: compute.group_memory,
        warpSize: warp_size,
        maxThreadsPerBlock: number(compute.max_workgroup_size),
        maxThreadsDim: compute.max_workgroup_dimensions.map(c_int::from),
        maxGridSize: GRID,
        clockRate: kilohertz(compute.clock),
        major,
        minor,
        multiProcessorCount: number(agent.compute_units),
        integrated: c_int::from(agent.integrated),
        canMapHostMemory: 1,
        pciBusID: agent.pci.map_or(0, |pci| c_int::from(pci.bus)),
        pciDeviceID: agent.pci.map_or(0, |pci| c_int::from(pci.device)),
        pciDomainID: agent.pci.map_or(0, |pci| number(pci.domain)),
        unifiedAddressing: 1,
        memoryClockRate: kilohertz(compute.memory_clock),
        memoryBusWidth: number(compute.memory_width),
        l2CacheSize: number(compute.cache_sizes[1]),
        maxThreadsPerMultiProcessor: number(compute.max_waves_per_unit).saturating_mul(warp_size),
        sharedMemPerMultiprocessor: compute.group_memory,
        managedMemory: 1,
        hostRegisterSupported: 1,
        gcnArchName: to_char_array(isa.unwrap_or(agent.name())),
        maxSharedMemoryPerMultiProcessor: compute.group_memory,
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

#[cfg(test)]
mod tests {
    use super::Architecture;

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
