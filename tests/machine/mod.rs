//! The library on the simulation of any release of AMD's runtime, or on another runtime.

#![allow(dead_code, reason = "each test binary uses a different part")]

pub mod drops;
mod library;

pub use library::Library;

use hsa_vmm::simulation::{Config, Cpu, FaultPlan, Generation, Simulation};
use hsa_vmm::vmm::{Quirks, VmmOptions};
use hsa_vmm::{Access, AccessDescriptor, Address, AgentId, Runtime};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// A simulated machine: a simulation of AMD's runtime and its GPUs, and the library on this runtime.
pub struct Machine {
    pub simulation: Arc<Simulation>,
    pub library: Library,
}

impl Deref for Machine {
    type Target = Library;

    fn deref(&self) -> &Library {
        &self.library
    }
}

impl Machine {
    #[track_caller]
    pub fn new(config: Config) -> Self {
        Self::with_options(config, VmmOptions::default())
    }

    #[track_caller]
    pub fn with_options(config: Config, options: VmmOptions) -> Self {
        let simulation = Arc::new(Simulation::start(config).expect("the configuration is valid"));
        let runtime = Runtime::simulated_by(simulation.clone()).expect("the simulation starts");
        Self { simulation, library: Library::open(runtime, options) }
    }

    /// Fails unless the library has freed everything in its ledger and in the runtime.
    #[track_caller]
    pub fn assert_empty(&self) {
        self.assert_everything_freed();
        assert_idle(&self.simulation);
    }

    /// Counts the calls of the runtime that `function` makes. Returns the name of each called function, without
    /// `hsa_amd_vmem_`, and the number of calls.
    pub fn calls(&self, function: impl FnOnce()) -> Vec<(&'static str, u64)> {
        let before = self.simulation.all_calls();
        function();
        let after = self.simulation.all_calls().into_iter().zip(before);
        let counts = after.map(|((name, after), (_, before))| (name, after - before));
        let short = |name: &'static str| name.trim_start_matches("hsa_amd_vmem_");
        counts.filter(|&(_, count)| count > 0).map(|(name, count)| (short(name), count)).collect()
    }

    /// Returns the used bytes of a GPU's memory.
    pub fn used_by(&self, gpu: usize) -> usize {
        self.simulation.usage().vram_used[gpu] as usize
    }

    /// Drops the library. Fails if the runtime still has resources, or was not shut down.
    #[track_caller]
    pub fn close(self) {
        let simulation = self.simulation.clone();
        drop(self);
        assert_idle(&simulation);
        assert_eq!(simulation.calls("hsa_init"), simulation.calls("hsa_shut_down"));
    }
}

/// Fails if the simulated runtime still has resources.
#[track_caller]
pub fn assert_idle(simulation: &Simulation) {
    let usage = simulation.usage();
    let is_idle = usage.reservations == 0
        && usage.handles == 0
        && usage.mappings == 0
        && usage.allocations == 0
        && usage.vram_used.iter().all(|&used| used == 0)
        && usage.descriptors == 0;
    assert!(is_idle, "the runtime still holds {usage:?}");
}

pub fn access(agent: AgentId, access: Access) -> AccessDescriptor {
    AccessDescriptor { agent, access }
}

/// Returns the address that is `bytes` bytes higher.
pub fn at(address: Address, bytes: usize) -> Address {
    address.checked_add(bytes).expect("inside the address space")
}

/// Returns the configurations of all releases that the simulation distinguishes, with their names.
pub fn releases() -> Vec<(&'static str, Config)> {
    let config_of =
        |generation, minor| Config::mi300x(2).with_generation(generation).with_extension(minor);
    let mut rocm_6_0 = config_of(Generation::A, 4);
    rocm_6_0.extension_reported = false;
    vec![
        ("6.0", rocm_6_0),
        ("6.1", config_of(Generation::A, 4)),
        ("6.2", config_of(Generation::A, 6)),
        ("6.4", config_of(Generation::A, 7)),
        ("7.0", config_of(Generation::A, 9)),
        ("7.1", config_of(Generation::A, 11)),
        ("7.2 early", config_of(Generation::B, 12)),
        ("7.2", config_of(Generation::B, 15)),
        ("7.14 early", config_of(Generation::C, 16)),
        ("7.14", config_of(Generation::C, 20)),
        ("10.0", config_of(Generation::D, 21)),
        ("10.1", config_of(Generation::D, 22)),
        ("after 10.1", config_of(Generation::D, 25)),
        ("rocddi", config_of(Generation::E, 33)),
    ]
}

/// Returns one configuration for each ROCm generation, with the generation's name.
pub fn generations() -> Vec<(&'static str, Config)> {
    let config_of = |generation| Config::mi300x(2).with_generation(generation);
    vec![
        ("generation A", config_of(Generation::A)),
        ("generation B", config_of(Generation::B)),
        ("generation C", config_of(Generation::C)),
        ("generation D", config_of(Generation::D)),
        ("generation E", config_of(Generation::E)),
    ]
}

/// Returns the quirks of the runtime that a configuration simulates.
pub fn quirks_of(config: &Config) -> Quirks {
    if config.generation != Generation::E {
        return Quirks::of_extension((1, config.extension_minor as u16));
    }
    let mut quirks = Quirks::default();
    Quirks::KNOWN.iter().for_each(|quirk| quirks.set(quirk, quirk.rocddi));
    quirks
}

/// Adds a second CPU, in another NUMA node.
pub fn with_two_cpus(mut config: Config) -> Config {
    let second: Cpu = config.cpus[0].clone();
    config.cpus.push(second);
    config
}

/// Makes the runtime export dma-bufs that cannot be mapped for writing. The library must then ask the runtime to map
/// memory for the CPU.
pub fn without_cpu_mapping(mut config: Config) -> Config {
    config.dmabuf_cpu_mapping = false;
    config
}

/// Adds faults to a plan: the calls of `function` with the numbers in `calls` return `status`.
pub fn fail_calls(
    plan: FaultPlan,
    function: &str,
    calls: core::ops::Range<u64>,
    status: u32,
) -> FaultPlan {
    calls.fold(plan, |plan, call| plan.fail(function, call, status))
}

/// Creates a file that is not memory of a GPU. The file cannot shrink, because the library rejects files that can.
pub fn file_without_memory(size: usize) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("no memory", flags).expect("a memory file");
    ftruncate(&file, size as u64).expect("memory for the file");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("the file can be sealed");
    file
}
