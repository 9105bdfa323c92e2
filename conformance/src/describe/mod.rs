//! Describes a runtime and its agents for reports.

mod enforcement;
mod facts;

use crate::Options;
use crate::kernel_configuration::KernelConfiguration;
use hsa_vmm::agent::{AgentKind, Peer};
use hsa_vmm::runtime::{LoadedLibrary, RuntimeInfo, loaded_libraries};
use hsa_vmm::vmm::{Probe, Probing, Quirk, Quirks, VmmOptions};
use hsa_vmm::{Agent, Pool, Runtime, Vmm};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub(crate) use facts::PERMISSIONS;
pub use facts::{Fact, differing_probes, format_size, labels};

/// A runtime and its agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The runtime.
    pub runtime: RuntimeDescription,
    /// The agents, in the runtime's order.
    pub agents: Vec<AgentDescription>,
}

impl Description {
    /// Returns the description for the report of a run that was interrupted before the runtime had started.
    pub(crate) fn not_started() -> Self {
        let unknown = || "unknown".to_owned();
        let runtime = RuntimeDescription {
            name: "runtime not started".to_owned(),
            version: unknown(),
            extension: unknown(),
            ..RuntimeDescription::default()
        };
        Self { runtime, agents: Vec::new() }
    }
}

/// A runtime's properties, and the workarounds of `hsa_vmm` for the runtime.
///
/// A property is `None` if the version of `hsa-vmm` that wrote the report did not record the property.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeDescription {
    /// `simulation`, or the library's file name.
    pub name: String,
    /// The library's path; `None` for the simulation.
    pub path: Option<PathBuf>,
    /// The runtime's implementation, such as `ROCr 1.15 (ROCm 6.4)`.
    #[serde(default)]
    pub implementation: Option<String>,
    /// Why this HSA library was chosen; `None` for the simulation.
    #[serde(default)]
    pub origin: Option<String>,
    /// The HSA libraries that the process had loaded, including that of this runtime.
    #[serde(default)]
    pub loaded: Option<Vec<LibraryDescription>>,
    /// HSA's version, such as `1.1`.
    pub version: String,
    /// The version of AMD's extension, such as `1.15`.
    pub extension: String,
    /// The runtime's build, if it reports one.
    #[serde(default)]
    pub build: Option<String>,
    /// The driver below the runtime.
    #[serde(default)]
    pub driver: Option<Driver>,
    /// The kernel's build options; `None` if the driver is not the kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelConfiguration>,
    /// Whether virtual memory management is supported.
    #[serde(default)]
    pub virtual_memory: Option<bool>,
    /// The reason why virtual memory management is not supported.
    #[serde(default)]
    pub without_virtual_memory: Option<String>,
    /// Whether memory can be exported as dma-bufs.
    #[serde(default)]
    pub dmabuf: Option<bool>,
    /// Whether shared virtual memory is supported.
    #[serde(default)]
    pub svm: Option<bool>,
    /// Whether a GPU can retry an access after a page fault.
    #[serde(default)]
    pub xnack: Option<bool>,
    /// Whether handles can be shared over a fabric.
    #[serde(default)]
    pub fabric: Option<bool>,
    /// The optional functions that the HSA library lacks.
    #[serde(default)]
    pub missing_functions: Option<Vec<String>>,
    /// The quirks of the runtime that are worked around.
    #[serde(default)]
    pub quirks: Option<Vec<QuirkDescription>>,
    /// The quirks that were probed for; `None` if no probe was made.
    #[serde(default)]
    pub probes: Option<Vec<ProbeDescription>>,
    /// Why `/dev/kfd` is not used to wait for changes of page tables, and what is used instead. Empty if `/dev/kfd` is
    /// used, `None` if this was not tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_failure: Option<String>,
}

/// The driver below a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The Linux kernel's driver, amdkfd.
    Amdkfd,
    /// `hsa-kfd`, which emulates amdkfd in user space.
    Emulated,
    /// None: the runtime itself is simulated.
    Simulated,
}

/// An HSA library that the process had loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryDescription {
    /// The library's path.
    pub path: PathBuf,
    /// The build, if known.
    pub build: Option<String>,
    /// The version of AMD's extension, such as `1.15`; `None` if the library was not started.
    pub extension: Option<String>,
}

/// A quirk of the runtime that is worked around.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuirkDescription {
    /// The name, a field of [`Quirks`].
    pub name: String,
    /// A public source.
    pub issue: String,
}

/// A quirk that was probed for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeDescription {
    /// The name, a field of [`Quirks`].
    pub name: String,
    /// Whether the implementation and its version are known to have the quirk.
    pub expected: bool,
    /// Whether the runtime has the quirk.
    pub found: bool,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDescription {
    /// The runtime's name for the agent, such as `gfx942`.
    pub name: String,
    /// `cpu`, `gpu` or `other`.
    pub kind: String,
    /// The best instruction set; `None` for CPUs that report none.
    pub isa: Option<String>,
    /// The NUMA node, if known.
    pub numa_node: Option<u32>,
    /// The PCI address, such as `0000:05:00.0`.
    pub pci: Option<String>,
    /// Whether the agent's permissions are enforced: `enforced`, or `recorded` (`remembered` in JSON). Takes the
    /// library's control of page tables into account if that was tested.
    #[serde(with = "enforcement")]
    pub enforcement: String,
    /// Why the library cannot control the GPU's page table. Empty if the library can, `None` if this was not tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_table_failure: Option<String>,
    /// The marketing name.
    pub product: String,
    /// The unique identifier of the device.
    pub uuid: String,
    /// The PCI device ID.
    pub chip: u32,
    /// The number of compute units.
    pub compute_units: u32,
    /// Whether the agent shares the system's memory.
    pub integrated: bool,
    /// Whether CPUs can access all of the agent's memory.
    pub large_bar: bool,
    /// The agent's memory pools.
    pub pools: Vec<PoolDescription>,
    /// The agent's access to the other agents' memory.
    pub peers: Vec<PeerDescription>,
}

/// A memory pool. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDescription {
    /// `global`, `group`, …
    pub segment: String,
    /// `coarse`, `fine`, `extended`, `kernarg`.
    pub flags: Vec<String>,
    /// The size of the pool.
    pub size: usize,
    /// Whether programs can allocate from the pool.
    pub allocatable: bool,
    /// The allocation granule.
    pub granule: usize,
    /// The granule with the best performance.
    pub recommended_granule: usize,
    /// The largest single allocation.
    pub largest_allocation: usize,
}

/// An agent's access to another agent's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerDescription {
    /// The index of the other agent in the list of agents.
    pub agent: usize,
    /// Whether the agent can access the other agent's memory.
    pub reachable: bool,
    /// The links between the agents.
    pub links: Vec<LinkDescription>,
}

/// One hop between agents. Bandwidths are in MB/s, 0 if unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDescription {
    /// `XGMI`, `PCIe`, …
    pub kind: String,
    /// The minimum bandwidth.
    pub min_bandwidth: u32,
    /// The maximum bandwidth.
    pub max_bandwidth: u32,
    /// The NUMA distance as defined by ACPI.
    pub numa_distance: u32,
}

/// Describes a runtime and its agents, with the known quirks of its version.
#[must_use]
pub fn describe(runtime: &Runtime) -> Description {
    describe_with(runtime, Quirks::of_runtime(runtime.info()))
}

/// Describes a runtime and its agents. Probes for quirks, and tests whether the library can control GPUs' page tables.
/// The probes and the test allocate up to two granules of each GPU's memory.
#[must_use]
pub fn describe_probed(runtime: &Runtime) -> Description {
    let options = VmmOptions::new().with_probing(Probing::Always).with_page_tables(true);
    let Ok(vmm) = Vmm::open_with(runtime, options) else { return describe(runtime) };
    let mut description = describe_with(runtime, vmm.quirks());
    description.runtime.probes = Some(describe_probes(&vmm));
    description.add_page_tables(&vmm);
    description
}

/// Describes a runtime and its agents for a report of cases. If [`Options::page_tables`] is set, opens a `Vmm` to find
/// out which GPUs' page tables the library can control.
pub(crate) fn describe_for(runtime: &Runtime, options: &Options) -> Description {
    let quirks = Quirks::of_runtime(runtime.info()).union(options.quirks);
    let mut description = describe_with(runtime, quirks);
    if options.page_tables
        && let Ok(vmm) = Vmm::open_with(runtime, VmmOptions::new().with_page_tables(true))
    {
        description.add_page_tables(&vmm);
    }
    description
}

impl Description {
    /// Adds whether a `Vmm` enforces each GPU's permissions, and why it cannot control a page table or use the
    /// barrier.
    fn add_page_tables(&mut self, vmm: &Vmm) {
        self.runtime.barrier_failure = Some(vmm.barrier_failure().unwrap_or_default().to_owned());
        let agents = vmm.runtime().agents().iter().zip(&mut self.agents);
        for (agent, described) in agents.filter(|(agent, _)| agent.kind() == AgentKind::Gpu) {
            let failure = vmm.page_table_failure(agent.id());
            described.page_table_failure = Some(failure.unwrap_or_default());
            let enforcement = vmm.enforcement(agent.id());
            described.enforcement = enforcement.unwrap_or(agent.enforcement()).to_string();
        }
    }
}

fn describe_probes(vmm: &Vmm) -> Vec<ProbeDescription> {
    let describe = |probe: &Probe| ProbeDescription {
        name: probe.quirk.name.to_owned(),
        expected: probe.expected,
        found: probe.found,
    };
    vmm.probes().iter().map(describe).collect()
}

/// Returns the results of this process's probes for quirks. If no case has opened a `Vmm`, this call makes the probes.
/// The simulation is not probed by default.
pub(crate) fn probes(runtime: &Runtime) -> Vec<ProbeDescription> {
    Vmm::open(runtime).map(|vmm| describe_probes(&vmm)).unwrap_or_default()
}

impl RuntimeDescription {
    /// Adds the results of probes, if there are any, and corrects the list of quirks.
    pub(crate) fn add_probes(&mut self, probes: Vec<ProbeDescription>) {
        for probe in &probes {
            let quirks = self.quirks.get_or_insert_default();
            quirks.retain(|quirk| quirk.name != probe.name);
            let known = Quirks::KNOWN.iter().find(|quirk| probe.found && quirk.name == probe.name);
            quirks.extend(known.map(QuirkDescription::of));
        }
        // Restore the order of `KNOWN`: a description without probes has the same order.
        if let Some(quirks) = &mut self.quirks {
            quirks.sort_by_key(|quirk| Quirks::KNOWN.iter().position(|it| it.name == quirk.name));
        }
        if !probes.is_empty() {
            self.probes = Some(probes);
        }
    }
}

impl QuirkDescription {
    fn of(quirk: &Quirk) -> Self {
        Self { name: quirk.name.to_owned(), issue: quirk.issue.to_owned() }
    }
}

/// Describes a runtime and its agents, with the given quirks.
pub(crate) fn describe_with(runtime: &Runtime, quirks: Quirks) -> Description {
    let info = runtime.info();
    let driver = driver(info);
    let dotted = |(major, minor): (u16, u16)| format!("{major}.{minor}");
    let missing = info.optional_functions.iter().filter(|(_, is_exported)| !is_exported);
    let quirks = Quirks::KNOWN.iter().filter(|quirk| quirks.has(quirk));
    let agents = runtime.agents();
    Description {
        runtime: RuntimeDescription {
            name: info.name.clone(),
            path: info.path.as_deref().map(utf8_path),
            implementation: Some(info.implementation.to_string()),
            origin: info.origin.map(|origin| origin.to_string()),
            loaded: Some(loaded_libraries().into_iter().map(describe_library).collect()),
            version: dotted(info.version),
            extension: dotted(info.extension),
            build: Some(info.build.clone()).filter(|build| !build.is_empty()),
            driver,
            kernel: (driver == Some(Driver::Amdkfd)).then(KernelConfiguration::read),
            virtual_memory: Some(info.virtual_memory_failure.is_none()),
            without_virtual_memory: info.virtual_memory_failure.clone(),
            dmabuf: Some(info.dmabuf),
            svm: Some(info.svm),
            xnack: Some(info.xnack),
            fabric: Some(info.fabric),
            missing_functions: Some(missing.map(|(name, _)| (*name).to_owned()).collect()),
            probes: None,
            barrier_failure: None,
            quirks: Some(quirks.map(QuirkDescription::of).collect()),
        },
        agents: agents.iter().map(|agent| describe_agent(agent, agents)).collect(),
    }
}

/// Replaces the bytes of a path that are not UTF-8, which JSON cannot contain.
fn utf8_path(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

fn describe_library(library: LoadedLibrary) -> LibraryDescription {
    LibraryDescription {
        path: utf8_path(&library.path),
        build: library.build,
        extension: library.extension.map(|(major, minor)| format!("{major}.{minor}")),
    }
}

/// Returns the driver; `None` if none is found. The emulated driver is a library in this process, which emulates
/// nothing if `HSA_KFD` is `real`. If amdkfd is loaded, the kernel's list of devices contains the device `kfd`.
fn driver(info: &RuntimeInfo) -> Option<Driver> {
    if info.path.is_none() {
        return Some(Driver::Simulated);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_loaded = maps.lines().any(|line| line.ends_with("/libhsa_kfd.so"));
    if is_loaded && std::env::var_os("HSA_KFD").is_none_or(|mode| mode != "real") {
        return Some(Driver::Emulated);
    }
    let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    let is_in_kernel = devices.lines().any(|line| line.split_whitespace().nth(1) == Some("kfd"));
    is_in_kernel.then_some(Driver::Amdkfd)
}

fn describe_agent(agent: &Agent, agents: &[Agent]) -> AgentDescription {
    AgentDescription {
        name: agent.name().to_owned(),
        kind: match agent.kind() {
            AgentKind::Cpu => "cpu",
            AgentKind::Gpu => "gpu",
            _ => "other",
        }
        .to_owned(),
        isa: agent.isas.first().cloned(),
        numa_node: agent.numa_node,
        pci: agent.pci.map(|pci| pci.to_string()),
        enforcement: agent.enforcement().to_string(),
        page_table_failure: None,
        product: agent.product.clone(),
        uuid: agent.uuid.clone(),
        chip: agent.chip,
        compute_units: agent.compute_units,
        integrated: agent.integrated,
        large_bar: agent.large_bar,
        pools: agent.pools.iter().map(describe_pool).collect(),
        peers: agent.peers.iter().filter_map(|peer| describe_peer(peer, agents)).collect(),
    }
}

fn describe_pool(pool: &Pool) -> PoolDescription {
    PoolDescription {
        segment: pool.segment.to_string(),
        flags: pool.flags.names().map(str::to_owned).collect(),
        size: pool.size,
        allocatable: pool.allocatable,
        granule: pool.granule,
        recommended_granule: pool.recommended_granule,
        largest_allocation: pool.largest_allocation,
    }
}

fn describe_peer(peer: &Peer, agents: &[Agent]) -> Option<PeerDescription> {
    Some(PeerDescription {
        agent: agents.iter().position(|agent| agent.id() == peer.agent)?,
        reachable: peer.reachable,
        links: peer
            .links
            .iter()
            .map(|link| LinkDescription {
                kind: link.kind.to_string(),
                min_bandwidth: link.min_bandwidth,
                max_bandwidth: link.max_bandwidth,
                numa_distance: link.numa_distance,
            })
            .collect(),
    })
}
