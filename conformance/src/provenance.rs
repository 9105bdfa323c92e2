//! How a result was produced: the command, its environment variables, and the test environment.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How a result was produced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of `hsa-vmm`; empty if it is unknown. The same as [`Run::tool`](crate::Run::tool) in reports of
    /// `conform`.
    #[serde(default)]
    pub tool: String,
    /// The command line, including a preceding `hsa-vmm emulate`, `hsa-vmm vm` or `hsa-vmm rocr run`.
    pub command: String,
    /// The beginning of a command that repeats a part of the run. Options that select the part are
    /// appended. If [numbered faults](Self::has_numbered_faults) are planned, the command that repeats the whole run.
    #[serde(default)]
    pub reproduce: String,
    /// The environment variables that influence the result.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The planned faults. A result with planned faults does not describe the runtime or the driver.
    #[serde(default)]
    pub planned_faults: Vec<PlannedFault>,
    /// The version of the interface of `/dev/kfd`, such as `1.17`; `None` without the device or if unknown.
    #[serde(default)]
    pub kfd_version: Option<String>,
    /// The reason why the version of `/dev/kfd` is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kfd_version_unknown: Option<String>,
    /// The kernel's release; empty if it is unknown.
    #[serde(default)]
    pub kernel: String,
    /// The environment that the runtime ran in; `None` if unknown.
    #[serde(default)]
    pub machine: Option<TestEnvironment>,
    /// Whether `--redact` has removed paths, serial numbers, PCI addresses and output.
    #[serde(default)]
    pub redacted: bool,
}

/// A rule of a fault plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFault {
    /// The component in which the fault is planned.
    pub by: FaultTarget,
    /// The rule, such as `GEM_VA.MAP=lost`.
    pub rule: String,
    /// Whether the fault happened in any call; `None` if unknown.
    #[serde(default)]
    pub happened: Option<bool>,
    /// The number of operations in which a fault of a software GPU happened, or the number of processes in which
    /// another fault happened; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// A component in which faults can be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultTarget {
    /// The emulated kernel driver.
    Driver,
    /// The simulated runtime.
    Runtime,
    /// The software GPUs of the virtual machine.
    Gpu,
}

/// The environment of a runtime: the machine and the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestEnvironment {
    /// A machine and the kernel's own driver.
    Real,
    /// A virtual machine and the kernel's own driver.
    Virtual,
    /// The driver emulated in user space.
    EmulatedDriver,
    /// No driver: the runtime is simulated.
    Simulation,
}

impl fmt::Display for TestEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Real => "real machine, kernel's driver",
            Self::Virtual => "virtual machine, kernel's driver",
            Self::EmulatedDriver => "emulated driver",
            Self::Simulation => "simulation",
        })
    }
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.by {
            FaultTarget::Driver => "emulated driver",
            FaultTarget::Runtime => "simulated runtime",
            FaultTarget::Gpu => "software GPU",
        };
        write!(f, "{} ({target})", self.rule)?;
        match self.happened {
            Some(false) => f.write_str(", which never happened"),
            _ => Ok(()),
        }
    }
}

impl Provenance {
    /// Returns the list of planned faults as text; `None` if no faults are planned.
    #[must_use]
    pub fn planned_faults_text(&self) -> Option<String> {
        let faults: Vec<_> = self.planned_faults.iter().map(PlannedFault::to_string).collect();
        (!faults.is_empty()).then(|| format!("planned faults: {}", faults.join("; ")))
    }

    /// Returns how the result was produced, as names and values: command, version of `hsa-vmm`, machine, kernel,
    /// version of `/dev/kfd`, planned faults and environment variables. Omits unknown values, except for the version of
    /// `/dev/kfd`.
    #[must_use]
    pub fn properties(&self) -> Vec<(&str, String)> {
        let mut properties = vec![("command", self.command.clone())];
        let mut add = |name, value: Option<String>| properties.extend(value.map(|it| (name, it)));
        add("hsa-vmm", Some(self.tool.clone()).filter(|version| !version.is_empty()));
        add("machine", self.machine.map(|machine| machine.to_string()));
        add("kernel", Some(self.kernel.clone()).filter(|kernel| !kernel.is_empty()));
        add("kfd version", self.kfd_version_text());
        for fault in &self.planned_faults {
            add("planned fault", Some(fault.to_string()));
        }
        for (name, value) in &self.environment {
            properties.push((name, value.clone()));
        }
        properties
    }

    /// Returns the version of the interface of `/dev/kfd`, or why the version is unknown. Returns `None` on the
    /// simulation, which has no driver.
    #[must_use]
    pub fn kfd_version_text(&self) -> Option<String> {
        if self.machine == Some(TestEnvironment::Simulation) {
            return None;
        }
        Some(match (&self.kfd_version, &self.kfd_version_unknown) {
            (Some(version), _) => version.clone(),
            (None, Some(reason)) => format!("not known ({reason})"),
            (None, None) => "not known".to_owned(),
        })
    }

    /// Returns whether `hsa-vmm vm` started the run, so that the GPUs are made of software.
    #[must_use]
    pub fn has_software_gpus(&self) -> bool {
        self.command.split(" -- ").any(|part| part.split(' ').nth(1) == Some("vm"))
    }

    /// Returns whether a planned fault has a number, as in `GEM_VA#7=EIO`. The number counts calls of the whole run, so
    /// that a part of the run does not repeat the fault.
    #[must_use]
    pub fn has_numbered_faults(&self) -> bool {
        self.planned_faults.iter().any(|fault| fault.rule.contains('#'))
    }

    /// Returns the planned faults that never happened.
    pub fn missing_faults(&self) -> impl Iterator<Item = &PlannedFault> {
        self.planned_faults.iter().filter(|fault| fault.happened == Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_faults_are_listed_with_their_target() {
        let mut provenance = Provenance::default();
        assert_eq!(provenance.planned_faults_text(), None);
        let fault = |by, rule: &str, happened| {
            let (rule, happened, count) = (rule.into(), Some(happened), None);
            PlannedFault { by, rule, happened, count }
        };
        provenance.planned_faults = vec![
            fault(FaultTarget::Driver, "GEM_VA=EIO", true),
            fault(FaultTarget::Runtime, "hsa_init#9=lost", false),
        ];
        let expected = "planned faults: GEM_VA=EIO (emulated driver); \
                        hsa_init#9=lost (simulated runtime), which never happened";
        assert_eq!(provenance.planned_faults_text().as_deref(), Some(expected));
        assert_eq!(provenance.missing_faults().count(), 1);
    }

    #[test]
    fn runs_in_vm_have_software_gpus() {
        for (command, expected) in [
            ("hsa-vmm vm --gpus 2 -- hsa-vmm conform", true),
            ("hsa-vmm emulate --gpus 2 -- hsa-vmm conform", false),
            ("hsa-vmm conform --filter vm", false),
        ] {
            let provenance = Provenance { command: command.to_owned(), ..Provenance::default() };
            assert_eq!(provenance.has_software_gpus(), expected, "{command}");
        }
    }

    #[test]
    fn unknown_version_is_named_with_the_reason() {
        let mut provenance = Provenance::default();
        assert_eq!(provenance.kfd_version_text().as_deref(), Some("not known"));
        provenance.kfd_version_unknown = Some("permission denied".to_owned());
        let text = provenance.kfd_version_text();
        assert_eq!(text.as_deref(), Some("not known (permission denied)"));
        provenance.kfd_version = Some("1.17".to_owned());
        assert_eq!(provenance.kfd_version_text().as_deref(), Some("1.17"));
        provenance.machine = Some(TestEnvironment::Simulation);
        assert_eq!(provenance.kfd_version_text(), None);
    }
}
