//! Descriptions as lists of named values, for tables and comparisons.

use super::{
    AgentDescription, Driver, LibraryDescription, PeerDescription, PoolDescription,
    ProbeDescription, RuntimeDescription,
};
use std::fmt;

/// The name of the property that says whether an agent's permissions are enforced.
pub(crate) const PERMISSIONS: &str = "permissions";

/// A named property of a runtime, an agent, a pool or a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The property's name, such as `dma-buf export`.
    pub name: &'static str,
    /// The value; `None` if unknown.
    pub value: Option<String>,
}

impl Fact {
    pub(crate) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: Some(value.into()) }
    }

    fn optional(name: &'static str, value: Option<String>) -> Self {
        Self { name, value }
    }

    fn flag(name: &'static str, value: Option<bool>) -> Self {
        Self::optional(name, value.map(|flag| yes_or_no(flag).to_owned()))
    }
}

fn yes_or_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

/// Formats a size in bytes as a whole number of the largest possible unit: `2 MiB`, `192 GiB`.
#[must_use]
pub fn format_size(bytes: usize) -> String {
    let mut value = bytes;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value == 0 || !value.is_multiple_of(1024) {
            break;
        }
        value /= 1024;
        unit = larger;
    }
    format!("{value} {unit}")
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amdkfd => "amdkfd",
            Self::Emulated => "emulated (hsa-kfd)",
            Self::Simulated => "none (simulation)",
        })
    }
}

impl fmt::Display for LibraryDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = self.build.as_deref().unwrap_or("unknown");
        write!(f, "{}, build {build}", self.path.display())?;
        match &self.extension {
            Some(extension) => write!(f, ", extension {extension}"),
            None => f.write_str(", not started or without AMD's extension"),
        }
    }
}

impl RuntimeDescription {
    /// Returns the other HSA libraries that the process had loaded.
    #[must_use]
    pub fn other_libraries(&self) -> Vec<&LibraryDescription> {
        let loaded = self.loaded.iter().flatten();
        loaded.filter(|library| Some(&library.path) != self.path.as_ref()).collect()
    }

    /// Returns the runtime's properties. Omits missing functions and quirks, which are separate lists.
    #[must_use]
    pub fn facts(&self) -> Vec<Fact> {
        let virtual_memory =
            self.virtual_memory.map(|is_supported| match &self.without_virtual_memory {
                Some(reason) if !is_supported => format!("no: {reason}"),
                _ => yes_or_no(is_supported).to_owned(),
            });
        // AMD's runtime reports the build in quotation marks.
        let build = self.build.as_deref().map(|build| build.trim_matches('"').to_owned());
        let mut facts = vec![
            Fact::new("library", &self.name),
            Fact::optional("implementation", self.implementation.clone()),
            Fact::new("HSA", &self.version),
            Fact::new("AMD extension", &self.extension),
            Fact::optional("build", build),
            Fact::optional("kernel driver", self.driver.map(|driver| driver.to_string())),
            Fact::optional("kernel options", self.kernel.as_ref().map(ToString::to_string)),
            Fact::optional("virtual memory", virtual_memory),
            Fact::flag("dma-buf export", self.dmabuf),
            Fact::flag("IPC", self.exports("hsa_amd_ipc_memory_create")),
            Fact::flag("shared virtual memory", self.svm),
            Fact::flag("XNACK", self.xnack),
            Fact::flag("fabric handles", self.fabric),
        ];
        let differing = self.differing_probes();
        if !differing.is_empty() {
            facts.push(Fact::new("probes differ", differing.join("; ")));
        }
        let reason = self.barrier_failure.as_ref().filter(|reason| !reason.is_empty());
        facts.extend(reason.map(|reason| Fact::new("page table waits", reason)));
        facts
    }

    /// Returns a text for each quirk that a probe unexpectedly found or did not find.
    #[must_use]
    pub fn differing_probes(&self) -> Vec<String> {
        differing_probes(self.probes.iter().flatten())
    }

    fn exports(&self, function: &str) -> Option<bool> {
        let missing = self.missing_functions.as_ref()?;
        Some(!missing.iter().any(|missing| missing == function))
    }
}

/// Returns a text for each probe whose result differs from the expected result.
pub fn differing_probes<'a>(probes: impl Iterator<Item = &'a ProbeDescription>) -> Vec<String> {
    let differing = probes.filter(|probe| probe.found != probe.expected);
    let text = |probe: &ProbeDescription| {
        let (expected, found) =
            if probe.found { ("not expected", "found") } else { ("expected", "not found") };
        format!("{}: {expected} of this version, {found}", probe.name)
    };
    differing.map(text).collect()
}

/// Returns a label for each agent: its kind and its index among agents of that kind. `GPU 0` is
/// HIP's device 0.
#[must_use]
pub fn labels(agents: &[AgentDescription]) -> Vec<String> {
    let label = |(index, agent): (usize, &AgentDescription)| {
        let number = agents.iter().take(index).filter(|other| other.kind == agent.kind).count();
        match agent.kind.as_str() {
            kind @ ("cpu" | "gpu") => format!("{} {number}", kind.to_uppercase()),
            kind => format!("{kind} {number}"),
        }
    };
    agents.iter().enumerate().map(label).collect()
}

impl AgentDescription {
    /// Returns the agent's properties. Omits the PCI address and the UUID, which distinguish machines,
    /// not runtimes.
    pub(crate) fn facts(&self) -> Vec<Fact> {
        let reason = self.page_table_failure.as_ref().filter(|reason| !reason.is_empty());
        let failure = reason.map(|reason| Fact::new("page table not controlled", reason));
        let facts = vec![
            Fact::new("name", &self.name),
            Fact::new("product", &self.product),
            Fact::optional("instruction set", self.isa.clone()),
            Fact::optional("NUMA node", self.numa_node.map(|node| node.to_string())),
            Fact::new(PERMISSIONS, &self.enforcement),
            Fact::new("chip", format!("{:#x}", self.chip)),
            Fact::new("compute units", self.compute_units.to_string()),
            Fact::new("integrated", yes_or_no(self.integrated)),
            Fact::new("large BAR", yes_or_no(self.large_bar)),
        ];
        facts.into_iter().chain(failure).collect()
    }
}

impl PoolDescription {
    /// Returns a label such as `global coarse`.
    #[must_use]
    pub fn label(&self) -> String {
        [self.segment.as_str()]
            .into_iter()
            .chain(self.flags.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(" ")
    }

    pub(crate) fn facts(&self) -> Vec<Fact> {
        vec![
            Fact::new("size", format_size(self.size)),
            Fact::new("allocatable", yes_or_no(self.allocatable)),
            Fact::new("granule", format_size(self.granule)),
            Fact::new("recommended granule", format_size(self.recommended_granule)),
            Fact::new("largest allocation", format_size(self.largest_allocation)),
        ]
    }
}

impl PeerDescription {
    /// Returns the kinds of the links to the peer: `XGMI`, `PCIe + QPI`, `not reachable`.
    #[must_use]
    pub fn links_text(&self) -> String {
        let hops: Vec<_> = self.links.iter().map(|link| link.kind.as_str()).collect();
        match (self.reachable, hops.is_empty()) {
            (false, _) => "not reachable".to_owned(),
            (true, true) => "(unknown)".to_owned(),
            (true, false) => hops.join(" + "),
        }
    }

    pub(crate) fn facts(&self) -> Vec<Fact> {
        let joined = |value: fn(&super::LinkDescription) -> u32| {
            self.links
                .iter()
                .map(value)
                .map(|value| value.to_string())
                .collect::<Vec<_>>()
                .join(" + ")
        };
        let mut facts = vec![Fact::new("hops", self.links_text())];
        if !self.links.is_empty() {
            facts.push(Fact::new("least MB/s", joined(|link| link.min_bandwidth)));
            facts.push(Fact::new("most MB/s", joined(|link| link.max_bandwidth)));
            facts.push(Fact::new("distance", joined(|link| link.numa_distance)));
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::describe;
    use hsa_vmm::Runtime;
    use hsa_vmm::simulation::Config;

    #[test]
    fn format_size_uses_the_largest_exact_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (2 << 20, "2 MiB"),
            (192 << 30, "192 GiB"),
            ((2 << 20) + 4096, "2052 KiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn unknown_feature_has_no_value() {
        let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
        let mut description = describe(&runtime);
        let fact = |runtime: &RuntimeDescription, name: &str| {
            runtime.facts().into_iter().find(|fact| fact.name == name).unwrap().value
        };
        assert_eq!(fact(&description.runtime, "IPC").as_deref(), Some("yes"));
        assert_eq!(fact(&description.runtime, "XNACK").as_deref(), Some("no"));
        description.runtime.missing_functions = Some(vec!["hsa_amd_ipc_memory_create".to_owned()]);
        assert_eq!(fact(&description.runtime, "IPC").as_deref(), Some("no"));
        description.runtime.missing_functions = None;
        description.runtime.xnack = None;
        assert_eq!(fact(&description.runtime, "IPC"), None);
        assert_eq!(fact(&description.runtime, "XNACK"), None);
        assert_eq!(labels(&description.agents), ["CPU 0", "GPU 0", "GPU 1"]);
    }
}
