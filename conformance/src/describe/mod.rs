//! A runtime and its agents, as they are written in reports.

mod facts;

use hsa_vmm::agent::{AgentKind, Peer};
use hsa_vmm::runtime::RuntimeInfo;
use hsa_vmm::vmm::Quirks;
use hsa_vmm::{Agent, Pool, Runtime};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub use facts::{Fact, labels, size};

/// A runtime and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The runtime.
    pub runtime: RuntimeDescription,
    /// Its agents, in its own order.
    pub agents: Vec<AgentDescription>,
}

/// What a runtime says about itself, and what this library does about it.
///
/// What is `None` was not told by who wrote the report, which is not the same as no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeDescription {
    /// `simulation`, or the library's file name.
    pub name: String,
    /// The library; null for the simulation.
    pub path: Option<PathBuf>,
    /// HSA's version, as `1.1`.
    pub version: String,
    /// The version of AMD's extension, as `1.15`.
    pub extension: String,
    /// The runtime's build, where it tells.
    #[serde(default)]
    pub build: Option<String>,
    /// What is below it.
    #[serde(default)]
    pub driver: Option<Driver>,
    /// Whether there is virtual-memory management.
    #[serde(default)]
    pub virtual_memory: Option<bool>,
    /// Why not, if not.
    #[serde(default)]
    pub without_virtual_memory: Option<String>,
    /// Whether memory can be exported as dma-bufs.
    #[serde(default)]
    pub dmabuf: Option<bool>,
    /// Whether shared virtual memory is supported.
    #[serde(default)]
    pub svm: Option<bool>,
    /// Whether page faults of GPUs are handled.
    #[serde(default)]
    pub xnack: Option<bool>,
    /// Whether handles can be shared over a fabric.
    #[serde(default)]
    pub fabric: Option<bool>,
    /// The optional functions that the library does not export.
    #[serde(default)]
    pub missing_functions: Option<Vec<String>>,
    /// The habits of the runtime that are worked around.
    #[serde(default)]
    pub quirks: Option<Vec<QuirkDescription>>,
}

/// What a runtime runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The kernel's own driver, amdkfd.
    Amdkfd,
    /// `hsa-kfd`, which stands for it in user space.
    Emulated,
    /// None: the runtime itself is simulated.
    Simulated,
}

/// A habit of the runtime that is worked around.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuirkDescription {
    /// Its name, a field of [`Quirks`].
    pub name: String,
    /// Where it is public.
    pub issue: String,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDescription {
    /// The runtime's name for it, as `gfx942`.
    pub name: String,
    /// `cpu`, `gpu` or `other`.
    pub kind: String,
    /// The best instruction set; null for CPUs that tell none.
    pub isa: Option<String>,
    /// The NUMA node, if known.
    pub numa_node: Option<u32>,
    /// The place on the PCI bus, as `0000:05:00.0`.
    pub pci: Option<String>,
    /// `enforced` or `remembered`: whether permissions really keep it away.
    pub enforcement: String,
    /// The marketing name.
    pub product: String,
    /// The device's unique name.
    pub uuid: String,
    /// The PCI device number of the chip.
    pub chip: u32,
    /// Compute units.
    pub compute_units: u32,
    /// Whether it shares the system's memory.
    pub integrated: bool,
    /// Whether CPUs reach all of its memory.
    pub large_bar: bool,
    /// Its memory pools.
    pub pools: Vec<PoolDescription>,
    /// How it reaches the memory of the others.
    pub peers: Vec<PeerDescription>,
}

/// A memory pool. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDescription {
    /// `global`, `group`, …
    pub segment: String,
    /// `coarse`, `fine`, `extended`, `kernarg`.
    pub flags: Vec<String>,
    /// All memory of the pool.
    pub size: usize,
    /// Whether a program may allocate here.
    pub allocatable: bool,
    /// The least unit.
    pub granule: usize,
    /// The unit that gives the best performance.
    pub recommended_granule: usize,
    /// The largest single allocation.
    pub largest_allocation: usize,
}

/// How an agent reaches another's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerDescription {
    /// The other agent: its place in the list of agents.
    pub agent: usize,
    /// Whether its memory can be reached at all.
    pub reachable: bool,
    /// The links on the way.
    pub links: Vec<LinkDescription>,
}

/// One hop between agents. Bandwidths are in MB/s, 0 where not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDescription {
    /// `XGMI`, `PCIe`, …
    pub kind: String,
    /// Least bandwidth.
    pub min_bandwidth: u32,
    /// Greatest bandwidth.
    pub max_bandwidth: u32,
    /// Distance as ACPI counts it.
    pub numa_distance: u32,
}

/// Describes a runtime and its agents, and the quirks known of its version.
#[must_use]
pub fn describe(runtime: &Runtime) -> Description {
    describe_with(runtime, Quirks::of_extension(runtime.info().extension))
}

/// The same with the quirks that are worked around.
pub(crate) fn describe_with(runtime: &Runtime, quirks: Quirks) -> Description {
    let info = runtime.info();
    let dotted = |(major, minor): (u16, u16)| format!("{major}.{minor}");
    let missing = info.optional_functions.iter().filter(|(_, there)| !there);
    let quirks = Quirks::KNOWN.iter().filter(|quirk| quirks.has(quirk));
    let agents = runtime.agents();
    Description {
        runtime: RuntimeDescription {
            name: info.name.clone(),
            path: info.path.clone(),
            version: dotted(info.version),
            extension: dotted(info.extension),
            build: Some(info.build.clone()).filter(|build| !build.is_empty()),
            driver: driver(info),
            virtual_memory: Some(info.without_virtual_memory.is_none()),
            without_virtual_memory: info.without_virtual_memory.clone(),
            dmabuf: Some(info.dmabuf),
            svm: Some(info.svm),
            xnack: Some(info.xnack),
            fabric: Some(info.fabric),
            missing_functions: Some(missing.map(|(name, _)| (*name).to_owned()).collect()),
            quirks: Some(
                quirks
                    .map(|quirk| QuirkDescription {
                        name: quirk.name.to_owned(),
                        issue: quirk.issue.to_owned(),
                    })
                    .collect(),
            ),
        },
        agents: agents.iter().map(|agent| describe_agent(agent, agents)).collect(),
    }
}

/// A report must not pass for one of hardware: the emulated driver is an object in this process, the
/// kernel's own one is in its list. What is neither is not told.
fn driver(info: &RuntimeInfo) -> Option<Driver> {
    if info.path.is_none() {
        return Some(Driver::Simulated);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if maps.lines().any(|line| line.ends_with("/libhsa_kfd.so")) {
        return Some(Driver::Emulated);
    }
    let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    let in_kernel = devices.lines().any(|line| line.split_whitespace().nth(1) == Some("kfd"));
    in_kernel.then_some(Driver::Amdkfd)
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
        flags: pool.flags.words().map(str::to_owned).collect(),
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
