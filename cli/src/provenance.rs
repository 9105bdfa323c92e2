//! Describes how a report was produced, and removes private data from the report.

use crate::planned_faults::{self, is_driver_emulated};
use crate::program;
use crate::redaction::{
    KNOWN_FOLDERS, REDACTED, with_home_in_quotes, without_folders, without_known_folders,
    without_last_output, without_names_of_this_user, without_pci_addresses, without_serial_numbers,
};
use crate::screen::Screen;
use crate::subcommands::kfd_version;
use anstyle::{AnsiColor, Style};
use clap::Args;
use hsa_vmm_conformance::describe::Driver;
use hsa_vmm_conformance::{PlannedFault, Provenance, Report, TestEnvironment};
use serde::Serialize;
use serde_json::Value;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The environment variables that select the runtime and its driver or change their behaviour, in addition to
/// [`program::set_runtime_variables`].
const SELECTING_VARIABLES: &[&str] = &[
    "HSA_KFD",
    "HSA_KFD_FAULTS",
    "HSA_SIM",
    "HSA_VMM_KFD",
    "HSA_VMM_PROFILE",
    "HSA_VMM_RUNTIME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
];

/// The other environment variables that a report contains.
const OTHER_VARIABLES: &[&str] = &["HSA_VMM_LOG", "LC_ALL", "LC_CTYPE", "LANG"];

/// The option `--redact`.
#[derive(Args, Clone, Debug, Default)]
pub struct Privacy {
    /// Remove folders, serial numbers, PCI addresses and captured output from the report
    ///
    /// Without this option, reports of `conform`, KTAP and the JSON of `bringup` replace only the names of the user and
    /// of the home folder. The JSON of `fuzz` and `stress` replaces these names only in the description of the run, and
    /// the table of `bringup` only in the path of the runtime. Other results keep these names, so that commands can be
    /// copied and files can be opened.
    #[arg(long, help_heading = "Output")]
    redact: bool,
}

/// Describes this run. `simulation` is the configuration of the simulation. `reproduce` is the beginning of a command
/// that repeats a part of the run.
pub fn describe_run(
    driver: Option<Driver>,
    simulation: Option<&str>,
    reproduce: String,
) -> Provenance {
    let machine = driver
        .map(test_environment)
        .or(is_driver_emulated().then_some(TestEnvironment::EmulatedDriver));
    let other_variables = OTHER_VARIABLES.iter().filter_map(variable);
    let kfd_version = (machine != Some(TestEnvironment::Simulation)).then(kfd_version);
    let (kfd_version, kfd_version_unknown) = match kfd_version {
        Some(Err(reason)) => (None, Some(reason)),
        version => (version.and_then(Result::ok), None),
    };
    Provenance {
        tool: env!("CARGO_PKG_VERSION").to_owned(),
        command: program::command_line(),
        reproduce,
        environment: runtime_variables()
            .chain(other_variables)
            .filter(|(name, value)| !program::is_set_by_vm(name, value))
            .collect(),
        planned_faults: planned_faults::planned(simulation),
        kfd_version,
        kfd_version_unknown,
        kernel: kernel(),
        machine,
        redacted: false,
    }
}

/// Returns the environment variables that select the runtime and its driver or change their behaviour, with their
/// values.
pub fn runtime_variables() -> impl Iterator<Item = (String, String)> {
    program::set_runtime_variables().chain(SELECTING_VARIABLES.iter().filter_map(variable))
}

/// Returns the variable with the options of the `emulate`, `vm` or `rocr run` that started this program.
pub fn outer_command() -> Option<(String, String)> {
    variable(&program::OUTER_COMMAND)
}

/// Returns the release of the running kernel.
pub fn kernel() -> String {
    read_trimmed("/proc/sys/kernel/osrelease")
}

/// Returns an environment variable that is set and not empty.
fn variable(name: &&str) -> Option<(String, String)> {
    let value = env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then(|| ((*name).to_owned(), value))
}

/// Reduces two paths to file names: this program's path, and the path of the emulated driver that `emulate` has
/// preloaded. These paths are useful only on the computer of the run. The path of the runtime and paths that the user
/// typed stay complete.
pub fn shorten_paths(provenance: &mut Provenance) {
    for line in [&mut provenance.command, &mut provenance.reproduce] {
        *line = program::without_program_folder(line);
    }
    if env::var_os(program::OUTER_COMMAND).is_some()
        && let Some(libraries) = provenance.environment.get_mut("LD_PRELOAD")
    {
        *libraries = with_short_driver(libraries);
    }
}

/// Removes the folder of the emulated driver from a list of libraries.
fn with_short_driver(libraries: &str) -> String {
    let is_separator = |letter: char| letter == ':' || letter == ' ';
    let library = |part: &str| match part.rsplit_once('/') {
        Some((_, name)) if name.trim_end_matches(is_separator) == "libhsa_kfd.so" => {
            name.to_owned()
        }
        _ => part.to_owned(),
    };
    libraries.split_inclusive(is_separator).map(library).collect()
}

/// Returns the first lines of a KTAP document, which describe the runtime, and how the document is produced.
pub fn ktap_notes(runtime: &str, mut provenance: Provenance, privacy: &Privacy) -> Vec<String> {
    shorten_paths(&mut provenance);
    privacy.clean_provenance(&mut provenance);
    // Whether a planned fault happens is not known yet.
    provenance.planned_faults.iter_mut().for_each(|fault| fault.happened = None);
    let properties = provenance.properties().into_iter();
    let properties = properties.map(|(name, value)| format!("{name}: {value}"));
    [privacy.clean_text(runtime)].into_iter().chain(properties).collect()
}

/// A report for programs, and how it was produced.
#[derive(Serialize)]
struct WithProvenance<'a, T> {
    #[serde(flatten)]
    report: &'a T,
    provenance: &'a Provenance,
}

/// Writes a report as JSON, with its provenance.
pub fn write_json(
    out: &mut Screen<'_>,
    report: &impl Serialize,
    mut provenance: Provenance,
    privacy: &Privacy,
) -> anyhow::Result<()> {
    shorten_paths(&mut provenance);
    privacy.clean_provenance(&mut provenance);
    out.keep_utf8();
    let text = serde_json::to_string_pretty(&WithProvenance { report, provenance: &provenance })?;
    // Without --redact, paths stay complete, so that programs can open the files that the report names.
    let text = if privacy.redact { privacy.clean_text(&text) } else { text };
    Ok(writeln!(out, "{text}")?)
}

/// Prints the planned faults in red, with a warning.
pub fn print_banner(out: &mut Screen<'_>, faults: &[PlannedFault]) -> io::Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let rules: Vec<_> = faults.iter().map(PlannedFault::to_string).collect();
    let style = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    out.write_styled(style, format_args!("PLANNED FAULTS: {}", rules.join("; ")))?;
    writeln!(out, "\nThis is not a test of the runtime or the driver.\n")
}

/// Returns the driver that the runtime of the worker processes uses.
pub fn driver(is_simulation: bool) -> Driver {
    match is_simulation {
        true => Driver::Simulated,
        false if is_driver_emulated() => Driver::Emulated,
        false => Driver::Amdkfd,
    }
}

/// Returns the trimmed text of a file, or an empty string if the file cannot be read.
fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn test_environment(driver: Driver) -> TestEnvironment {
    match driver {
        Driver::Simulated => TestEnvironment::Simulation,
        Driver::Emulated => TestEnvironment::EmulatedDriver,
        Driver::Amdkfd if is_virtual() => TestEnvironment::Virtual,
        Driver::Amdkfd => TestEnvironment::Real,
    }
}

/// Returns whether this kernel runs in a virtual machine.
fn is_virtual() -> bool {
    let cpuinfo = read_trimmed("/proc/cpuinfo");
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
        || Path::new("/sys/hypervisor/type").exists()
        || ["QEMU", "Xen", "VMware", "Amazon EC2"]
            .contains(&&*read_trimmed("/sys/class/dmi/id/sys_vendor"))
}

/// Returns the version of the interface of `/dev/kfd`, or the reason why the version is not known. Planned faults do
/// not apply to the query.
fn kfd_version() -> Result<String, String> {
    let text = kfd_version::query(&[], false)?;
    let last = text.trim_end().lines().next_back().unwrap_or("the query printed nothing");
    let is_number = |part: &str| part.parse::<u32>().is_ok();
    match last.split_once('.') {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(last.to_owned()),
        _ => Err(last.strip_prefix("error: ").unwrap_or(last).to_owned()),
    }
}

impl Privacy {
    /// Replaces the names of user and home folder in a report of cases. With `--redact`, also removes folders,
    /// serial numbers, PCI addresses and output.
    pub fn clean_report(&self, report: &mut Report) -> serde_json::Result<()> {
        if let Some(provenance) = report.run.as_mut().and_then(|run| run.provenance.as_mut()) {
            provenance.redacted = self.redact;
        }
        if self.redact {
            for case in &mut report.cases {
                case.output = None;
                case.detail = self.clean_detail(&case.detail);
            }
            for agent in &mut report.agents {
                agent.uuid = REDACTED.to_owned();
                agent.pci = agent.pci.take().map(|_| REDACTED.to_owned());
            }
        }
        // Any text of the report can contain a path, so all texts are cleaned.
        let mut value = serde_json::to_value(&*report)?;
        self.clean_value(&mut value);
        *report = serde_json::from_value(value)?;
        Ok(())
    }

    /// Cleans all texts of a value, except drawings. Drawings contain no paths, but `</text>` looks like a path.
    pub fn clean_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.clean_text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.clean_value(value)),
            Value::Object(members) => {
                let members = members.iter_mut().filter(|(name, _)| *name != "address_space");
                members.for_each(|(_, value)| self.clean_value(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// With `--redact`, removes what a second process printed last from the detail of a case.
    pub fn clean_detail(&self, detail: &str) -> String {
        if self.redact { without_last_output(detail) } else { detail.to_owned() }
    }

    /// Returns whether `--redact` was given.
    pub fn is_redacting(&self) -> bool {
        self.redact
    }

    /// With `--redact`, removes captured lines. The replacement shows that there were lines.
    pub fn clean_lines(&self, lines: &mut Vec<String>) {
        if self.redact && !lines.is_empty() {
            *lines = vec![REDACTED.to_owned()];
        }
    }

    /// Replaces the names of user and home folder in a description of a run. With `--redact`, also removes folders,
    /// serial numbers and PCI addresses.
    pub fn clean_provenance(&self, provenance: &mut Provenance) {
        provenance.redacted = self.redact;
        let faults = provenance.planned_faults.iter_mut().map(|PlannedFault { rule, .. }| rule);
        let texts = [&mut provenance.command, &mut provenance.reproduce];
        let values = provenance.environment.values_mut().chain(&mut provenance.kfd_version_unknown);
        let texts = texts.into_iter().chain(values).chain(faults);
        texts.for_each(|text| *text = self.clean_text(text));
    }

    /// Replaces the home folder by `~` and the user's name in paths by `USER`. With `--redact`, also removes serial
    /// numbers, PCI addresses, and the folders of paths outside of `/dev`, `/proc` and `/sys`.
    pub fn clean_text(&self, text: &str) -> String {
        let without_known = |text: &str| {
            let home = env::var("HOME").ok();
            without_known_folders(&with_home_in_quotes(text, home.as_deref()), &KNOWN_FOLDERS)
        };
        let text = if self.redact { &without_known(text) } else { text };
        let shortened = without_names_of_this_user(text);
        match self.redact {
            true => without_serial_numbers(&without_pci_addresses(&without_folders(&shortened))),
            false => shortened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_emulated_driver_loses_its_folder() {
        let libraries = "/a/libx.so:/b/c/libhsa_kfd.so:/d/liby.so";
        assert_eq!(with_short_driver(libraries), "/a/libx.so:libhsa_kfd.so:/d/liby.so");
        assert_eq!(with_short_driver("/b/libhsa_kfd.so"), "libhsa_kfd.so");
    }

    #[test]
    fn redact_removes_serial_numbers() {
        let runtime = hsa_vmm::Runtime::simulated(hsa_vmm::simulation::Config::default()).unwrap();
        let options = hsa_vmm_conformance::Options {
            filters: vec!["map.handle.zero".to_owned()],
            ..hsa_vmm_conformance::Options::default()
        };
        let mut report = hsa_vmm_conformance::run(&runtime, &options, &mut |_| ());
        let uuid = report.agents[0].uuid.clone();
        Privacy::default().clean_report(&mut report).unwrap();
        assert_eq!(report.agents[0].uuid, uuid);
        Privacy { redact: true }.clean_report(&mut report).unwrap();
        assert!(report.agents.iter().all(|agent| agent.uuid == REDACTED), "{:?}", report.agents);
    }
}
