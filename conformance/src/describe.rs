//! A runtime and its agents, as they are written in reports.

use hsa_vmm::agent::Peer;
use hsa_vmm::{Agent, AgentKind, Pool, Runtime};
use serde::Serialize;
use std::path::PathBuf;

/// A runtime and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// The runtime.
    pub runtime: RuntimeDescription,
    /// Its agents, in its own order.
    pub agents: Vec<AgentDescription>,
}

/// What a runtime says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    pub build: String,
    /// Whether there is virtual-memory management.
    pub virtual_memory: bool,
    /// Why not, if not.
    pub without_virtual_memory: Option<String>,
    /// Whether memory can be exported as dma-bufs.
    pub dmabuf: bool,
    /// Whether shared virtual memory is supported.
    pub svm: bool,
    /// Whether page faults of GPUs are handled.
    pub xnack: bool,
    /// Whether handles can be shared over a fabric.
    pub fabric: bool,
    /// The optional functions that the library does not export.
    pub missing_functions: Vec<&'static str>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentDescription {
    /// The runtime's name for it, as `gfx942`.
    pub name: String,
    /// `cpu`, `gpu` or `other`.
    pub kind: &'static str,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolDescription {
    /// `global`, `group`, …
    pub segment: String,
    /// `coarse`, `fine`, `extended`, `kernarg`.
    pub flags: Vec<&'static str>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerDescription {
    /// The other agent: its place in the list of agents.
    pub agent: usize,
    /// Whether its memory can be reached at all.
    pub reachable: bool,
    /// The links on the way.
    pub links: Vec<LinkDescription>,
}

/// One hop between agents. Bandwidths are in MB/s, 0 where not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// Describes a runtime and its agents.
#[must_use]
pub fn describe(runtime: &Runtime) -> Description {
    let info = runtime.info();
    let dotted = |(major, minor): (u16, u16)| format!("{major}.{minor}");
    let missing = info.optional_functions.iter().filter(|(_, there)| !there);
    let agents = runtime.agents();
    Description {
        runtime: RuntimeDescription {
            name: info.name.clone(),
            path: info.path.clone(),
            version: dotted(info.version),
            extension: dotted(info.extension),
            build: info.build.clone(),
            virtual_memory: info.virtual_memory,
            without_virtual_memory: info.without_virtual_memory.clone(),
            dmabuf: info.dmabuf,
            svm: info.svm,
            xnack: info.xnack,
            fabric: info.fabric,
            missing_functions: missing.map(|(name, _)| *name).collect(),
        },
        agents: agents.iter().map(|agent| describe_agent(agent, agents)).collect(),
    }
}

fn describe_agent(agent: &Agent, agents: &[Agent]) -> AgentDescription {
    AgentDescription {
        name: agent.name().to_owned(),
        kind: match agent.kind() {
            AgentKind::Cpu => "cpu",
            AgentKind::Gpu => "gpu",
            _ => "other",
        },
        isa: agent.isas().first().cloned(),
        numa_node: agent.numa_node(),
        pci: agent.pci().map(|pci| pci.to_string()),
        enforcement: agent.enforcement().to_string(),
        product: agent.product().to_owned(),
        uuid: agent.uuid().to_owned(),
        chip: agent.chip(),
        compute_units: agent.compute_units(),
        integrated: agent.integrated(),
        large_bar: agent.large_bar(),
        pools: agent.pools().iter().map(describe_pool).collect(),
        peers: agent.peers().iter().filter_map(|peer| describe_peer(peer, agents)).collect(),
    }
}

fn describe_pool(pool: &Pool) -> PoolDescription {
    PoolDescription {
        segment: pool.segment().to_string(),
        flags: pool.flags().words().collect(),
        size: pool.size(),
        allocatable: pool.allocatable(),
        granule: pool.granule(),
        recommended_granule: pool.recommended_granule(),
        largest_allocation: pool.largest_allocation(),
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
