//! Defects of releases that are known and have a public source.

use crate::filter::matches;
use hsa_vmm::runtime::RuntimeInfo;

/// A case that is known to fail on some releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The runtimes' names: a part of them, or a pattern with `*`.
    pub runtime: &'static str,
    /// The first version of AMD's extension that has the defect.
    pub first: (u16, u16),
    /// The last.
    pub last: (u16, u16),
    /// The case.
    pub case: &'static str,
    /// What the runtime does instead.
    pub reason: &'static str,
    /// Where that is written.
    pub source: &'static str,
}

/// All that are known.
pub const KNOWN: &[Known] = &[Known {
    runtime: "*",
    first: (1, 16),
    last: (1, u16::MAX),
    case: "share.import.not_memory",
    reason: "since ROCm 7.14 an imported descriptor is only looked at by set_access",
    source: "ROCR-Runtime: VMemoryHandleImport keeps the descriptor for later",
}];

/// What is known of a case on this runtime.
pub(crate) fn known<'a>(
    table: &'a [Known],
    runtime: &RuntimeInfo,
    case: &str,
) -> Option<&'a Known> {
    table.iter().find(|entry| {
        entry.case == case
            && matches(entry.runtime, &runtime.name)
            && (entry.first..=entry.last).contains(&runtime.extension)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hsa_vmm::Runtime;
    use hsa_vmm::simulation::Config;

    #[test]
    fn known_is_told_by_runtime_version_and_case() {
        let entry = Known {
            runtime: "simul",
            first: (1, 7),
            last: (1, 15),
            case: "map.a.b",
            reason: "",
            source: "",
        };
        let is_known = |entry: Known, minor, case| {
            let config = Config::mi300x(1).with_extension(minor);
            let runtime = Runtime::simulated(config).unwrap();
            known(&[entry], runtime.info(), case).is_some()
        };
        assert!(is_known(entry, 7, "map.a.b") && is_known(entry, 15, "map.a.b"));
        assert!(!is_known(entry, 16, "map.a.b") && !is_known(entry, 6, "map.a.b"));
        assert!(!is_known(entry, 7, "map.a.c"));
        assert!(!is_known(Known { runtime: "libhsa*", ..entry }, 7, "map.a.b"));
    }

    #[test]
    fn what_is_known_is_a_case() {
        for entry in KNOWN {
            assert!(crate::cases().iter().any(|case| case.name == entry.case), "{}", entry.case);
            assert!(entry.first <= entry.last && !entry.reason.is_empty());
        }
    }
}
