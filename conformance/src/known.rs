//! Known failures of cases. An entry applies to certain runtimes, versions, drivers, kernels or agents, and has a
//! reason and a public source.

use crate::describe::{Description, Driver};
use crate::expectation::{Expectation, ExpectedOutcome};
use crate::filter::matches;
use hsa_vmm::vmm::Quirks;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A known failure of a case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailure {
    /// The case's full name.
    pub case: String,
    /// A part of the runtime's name or implementation, or a pattern with `*` for the complete name or
    /// implementation. `None` for any runtime.
    #[serde(default)]
    pub runtime: Option<String>,
    /// The first version of AMD's extension with the defect, such as `1.16`. `None` for no lower
    /// limit.
    #[serde(default, deserialize_with = "deserialize_version")]
    pub first: Option<(u16, u16)>,
    /// The last version with the defect. `None` for no upper limit.
    #[serde(default, deserialize_with = "deserialize_version")]
    pub last: Option<(u16, u16)>,
    /// A quirk that the runtime has ([`hsa_vmm::vmm::Quirks`]), regardless of the version that the runtime reports.
    /// `None` for any quirks.
    #[serde(default)]
    pub quirk: Option<String>,
    /// A part of the name, product or instruction set of one of the agents, or a pattern with `*`.
    /// `None` for any agents.
    #[serde(default)]
    pub agent: Option<String>,
    /// The driver below the runtime: `amdkfd`, `emulated` or `simulated`. `None` for any driver.
    #[serde(default)]
    pub driver: Option<Driver>,
    /// A part of the kernel's release, as `uname -r` prints it, or a pattern with `*`. `None` for any
    /// kernel.
    #[serde(default)]
    pub kernel: Option<String>,
    /// The expected outcome.
    #[serde(default)]
    pub outcome: ExpectedOutcome,
    /// What the runtime or driver does instead of the expected behaviour.
    pub reason: String,
    /// The public source, such as the URL of an issue, a document, or the number of a ticket.
    pub source: String,
}

/// Parses a version such as `1.16`.
fn parse_version(text: &str) -> Option<(u16, u16)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn deserialize_version<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<(u16, u16)>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let expected = "a version of AMD's extension such as \"1.16\", as shown by `hsa-vmm info`";
    let invalid = || serde::de::Error::invalid_value(serde::de::Unexpected::Str(&text), &expected);
    parse_version(&text).map(Some).ok_or_else(invalid)
}

impl KnownFailure {
    fn applies_to(&self, runtime: &Description) -> bool {
        let selects = |pattern: &Option<String>, names: &[&str]| {
            let is_match = |pattern: &String| names.iter().any(|name| matches(pattern, name));
            pattern.as_ref().is_none_or(is_match)
        };
        let version = parse_version(&runtime.runtime.extension).unwrap_or_default();
        let agents = runtime.agents.iter().flat_map(|agent| {
            [agent.name.as_str(), agent.product.as_str(), agent.isa.as_deref().unwrap_or_default()]
        });
        let has_quirk = |name: &String| {
            runtime.runtime.quirks.iter().flatten().any(|quirk| quirk.name == *name)
        };
        let implementation = runtime.runtime.implementation.as_deref().unwrap_or_default();
        selects(&self.runtime, &[&runtime.runtime.name, implementation])
            && self.first.is_none_or(|first| first <= version)
            && self.last.is_none_or(|last| version <= last)
            && self.quirk.as_ref().is_none_or(has_quirk)
            && selects(&self.agent, &agents.collect::<Vec<_>>())
            && self.driver.is_none_or(|driver| runtime.runtime.driver == Some(driver))
            && selects(&self.kernel, &[&kernel_release()])
    }
}

/// Returns the release of the running kernel; empty if it is unknown.
pub(crate) fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// A list of known failures, read from TOML. An entry begins with `[[known]]` or `[[expect]]`, which mean the same.
///
/// ```
/// # let text = r#"
/// [[expect]]
/// case = "access.gpus.peer_before_the_owner"
/// runtime = "libhsa*"     # the name in the output of `hsa-vmm info --format json`; default: all
/// first = "1.16"          # versions of AMD's extension, both ends included; default: all
/// last = "1.20"
/// quirk = "import_is_lazy" # a quirk in the output of `hsa-vmm info`; default: any
/// agent = "gfx90a"        # one of the agents has this name, product or ISA; default: any
/// driver = "amdkfd"       # or "emulated", "simulated"; default: any
/// kernel = "6.12.*"       # as `uname -r` prints it; default: any
/// outcome = "fail"        # or "flake(3)": tried up to three times; "skip": not tried; default: fail
/// reason = "the peer is never mapped"
/// source = "ticket 4711"
/// # "#;
/// # let known: hsa_vmm_conformance::KnownFailures = text.parse().unwrap();
/// # assert_eq!(known.entries().len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailures {
    #[serde(default, alias = "expect")]
    known: Vec<KnownFailure>,
}

/// The error of a list of known failures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpectationFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file is not a list of known failures.
    #[error("{}: {error}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The error and its position.
        error: ExpectationListError,
    },
}

/// The error in the text of a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpectationListError {
    /// Not TOML, or unknown keys or invalid values.
    #[error("{}", shortened(&.0.to_string()))]
    Toml(#[from] toml::de::Error),
    /// The case does not exist.
    #[error("`{}` is not a case; `hsa-vmm conform --list` shows all cases", shortened(.0))]
    Case(String),
    /// The quirk does not exist.
    #[error("`{0}` is not a quirk; docs/defects.md lists all quirks")]
    Quirk(String),
    /// The reason or the source is empty.
    #[error("`{0}` needs a reason and a source that are not empty")]
    MissingReason(String),
    /// The first version is later than the last.
    #[error("`{0}`: the first version is after the last")]
    Versions(String),
}

/// Shortens each line of an error message. The message quotes a file, and a line of the file can have any length.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 200;
    let short = |line: &str| match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    };
    text.trim_end().lines().map(short).collect::<Vec<_>>().join("\n")
}

impl std::str::FromStr for KnownFailures {
    type Err = ExpectationListError;

    fn from_str(text: &str) -> Result<Self, ExpectationListError> {
        let list: Self = toml::from_str(text)?;
        let exists = |name: &str| {
            let mut cases = crate::cases().into_iter().chain(crate::contain::CASES);
            cases.any(|case| case.name == name)
        };
        for entry in &list.known {
            let name = || entry.case.clone();
            if !exists(&entry.case) {
                return Err(ExpectationListError::Case(name()));
            }
            let is_quirk = |name: &&String| Quirks::KNOWN.iter().any(|quirk| quirk.name == **name);
            if let Some(unknown) = entry.quirk.as_ref().filter(|name| !is_quirk(name)) {
                return Err(ExpectationListError::Quirk(unknown.clone()));
            }
            if entry.reason.trim().is_empty() || entry.source.trim().is_empty() {
                return Err(ExpectationListError::MissingReason(name()));
            }
            if entry.first.zip(entry.last).is_some_and(|(first, last)| last < first) {
                return Err(ExpectationListError::Versions(name()));
            }
        }
        Ok(list)
    }
}

impl KnownFailures {
    /// Returns the built-in list: known failures of public releases.
    #[must_use]
    pub fn built_in() -> &'static Self {
        static BUILT_IN: LazyLock<KnownFailures> = LazyLock::new(|| {
            // A test checks that the list can be parsed.
            include_str!("../data/known.toml").parse().unwrap_or_default()
        });
        &BUILT_IN
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ExpectationFileError`], which names the file, the error and its position.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ExpectationFileError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ExpectationFileError::File { path: path.into(), error })?;
        text.parse().map_err(|error| ExpectationFileError::Content { path: path.into(), error })
    }

    /// Adds the entries of another list. If entries of both lists apply to a case on a runtime, the entry of this list
    /// is used.
    pub fn extend(&mut self, other: Self) {
        self.known.extend(other.known);
    }

    /// Returns all entries.
    #[must_use]
    pub fn entries(&self) -> &[KnownFailure] {
        &self.known
    }

    /// Returns the expected outcome of a case on a runtime.
    pub(crate) fn expectation(&self, runtime: &Description, case: &str) -> Expectation<'_> {
        let mut entries = self.known.iter();
        Expectation(entries.find(|entry| entry.case == case && entry.applies_to(runtime)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::describe;
    use hsa_vmm::Runtime;
    use hsa_vmm::simulation::Config;

    fn known(lines: &str) -> Result<KnownFailures, ExpectationListError> {
        let head = "[[known]]\ncase = \"map.flags.refused\"\n";
        format!("{head}reason = \"a\"\nsource = \"b\"\n{lines}").parse()
    }

    #[test]
    fn known_failure_matches_case_runtime_version_agent() {
        let has_entry = |minor, case: &str, lines: &str| {
            let config = Config::mi300x(1).with_extension(minor);
            let runtime = describe(&Runtime::simulated(config).unwrap());
            known(lines).unwrap().expectation(&runtime, case).0.is_some()
        };
        let is_known = |lines: &str| has_entry(15, "map.flags.refused", lines);
        assert!(is_known("") && !has_entry(15, "map.handle.zero", ""));
        let range = "first = \"1.7\"\nlast = \"1.15\"";
        for (minor, expected) in [(6, false), (7, true), (15, true), (16, false)] {
            assert_eq!(has_entry(minor, "map.flags.refused", range), expected, "1.{minor}");
        }
        for (minor, expected) in [(15, false), (16, true), (22, true)] {
            let found = has_entry(minor, "map.flags.refused", "quirk = \"import_is_lazy\"");
            assert_eq!(found, expected, "1.{minor}");
        }
        assert!(is_known("runtime = \"simul\"") && !is_known("runtime = \"libhsa*\""));
        for agent in ["gfx942", "*-gfx94?", "MI300X", "amdgcn-*gfx942*"] {
            let expected = !agent.contains('?');
            assert_eq!(is_known(&format!("agent = \"{agent}\"")), expected, "{agent}");
        }
        assert!(!is_known("agent = \"gfx90a\""));
        assert!(is_known("driver = \"simulated\"") && !is_known("driver = \"amdkfd\""));
        let kernel = kernel_release();
        assert!(is_known(&format!("kernel = \"{kernel}\"")) && !is_known("kernel = \"1.2.3\""));
    }

    #[test]
    fn errors_in_a_list_are_reported() {
        for (lines, expected) in [
            ("nonsense = 1", "nonsense"),
            ("first = \"2\"", "version of AMD's extension"),
            ("first = 1.7", "expected a string"),
            ("quirk = \"nonsense\"", "`nonsense` is not a quirk"),
            ("first = \"1.8\"\nlast = \"1.7\"", "after the last"),
            (
                "[[known]]\ncase = \"map.a.b\"\nreason = \"a\"\nsource = \"b\"",
                "`map.a.b` is not a case",
            ),
            ("[[known]]\ncase = \"map.handle.zero\"\nreason = \" \"\nsource = \"b\"", "not empty"),
            ("[[known]]\ncase = \"map.handle.zero\"\nreason = \"a\"", "missing field `source`"),
            ("[[unknown]]", "unknown field `unknown`"),
            ("outcome = \"flake\"", "none of `fail`, `skip` and `flake(3)`"),
            ("outcome = \"flake(0)\"", "none of `fail`, `skip` and `flake(3)`"),
            ("driver = \"amdgpu\"", "unknown variant `amdgpu`"),
        ] {
            let error = known(lines).unwrap_err().to_string();
            assert!(error.contains(expected), "{lines}: {error}");
        }
        let error = KnownFailures::read("/nowhere/known.toml").unwrap_err().to_string();
        assert!(error.contains("/nowhere/known.toml"), "{error}");
    }

    #[test]
    fn built_in_list_is_valid() {
        let list: KnownFailures = include_str!("../data/known.toml").parse().unwrap();
        assert!(!list.entries().is_empty());
        assert_eq!(&list, KnownFailures::built_in());
    }
}
