//! The planned faults of the emulated driver, the simulation and the virtual machine's GPUs, and whether they have
//! happened.
//!
//! Worker processes record in a shared file (`HSA_FAULTS_RECORD`, see `hsa-faults`) which planned faults have happened.

use crate::screen::note;
use hsa_vmm::simulation::Config;
use hsa_vmm_conformance::{FaultTarget, PlannedFault};
use rustix::fs::{MemfdFlags, memfd_create};
use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::OnceLock;

/// The environment variable with the path of the shared file. Equal to `hsa_faults::RECORD`.
const RECORD_VARIABLE: &str = "HSA_FAULTS_RECORD";
/// The environment variable with the fault plan of the emulated driver.
pub const DRIVER_PLAN: &str = "HSA_KFD_FAULTS";
/// The file with the fault plan of the virtual machine's GPUs. Each line contains a rule, and the number of times that
/// the rule was applied.
const GPU_PLAN: &str = "/sys/kernel/debug/hsa_vmm/faults";
/// The maximum number of bytes that are read from the shared file, which has a line for each rule and process.
const MAX_RECORD_SIZE: usize = 1 << 20;

/// The file in which this process's workers record their planned faults. `None` if the file cannot be created.
static RECORD_FILE: OnceLock<Option<File>> = OnceLock::new();

/// Returns whether the emulated driver is preloaded. Returns `false` with `HSA_KFD=real`: the preloaded object then
/// emulates nothing, and only logs the calls to the kernel's driver.
pub fn is_driver_emulated() -> bool {
    let is_driver = |object: std::path::PathBuf| object.ends_with("libhsa_kfd.so");
    let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    env::split_paths(&preloaded).any(is_driver)
        && env::var_os("HSA_KFD").is_none_or(|mode| mode != "real")
}

/// Makes a worker process record which planned faults have happened.
pub fn enable_recording(command: &mut Command) {
    let file = RECORD_FILE
        .get_or_init(|| Some(memfd_create("planned faults", MemfdFlags::CLOEXEC).ok()?.into()));
    if let Some(file) = file {
        command
            .env(RECORD_VARIABLE, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    }
}

/// Returns the planned faults, and whether each has happened in this process's workers. `simulation` is the
/// configuration of the simulation.
pub fn planned(simulation: Option<&str>) -> Vec<PlannedFault> {
    let driver = env::var(DRIVER_PLAN).ok().filter(|_| is_driver_emulated());
    let runtime = simulation.and_then(|text| text.parse::<Config>().ok());
    let runtime = runtime.map(|config| config.faults.to_string());
    let plans =
        [(FaultTarget::Driver, "driver", driver), (FaultTarget::Runtime, "runtime", runtime)];
    let record = RECORD_FILE.get().and_then(Option::as_ref).and_then(read_record);
    let mut faults = gpu_faults(&std::fs::read_to_string(GPU_PLAN).unwrap_or_default());
    for (target, label, plan) in plans {
        let plan = plan.unwrap_or_default();
        // `hsa_faults::Plan::parse` numbers the rules in the same way.
        let rules = plan.split([',', ';']).map(str::trim).filter(|rule| !rule.is_empty());
        for (rule, number) in rules.zip(1..) {
            let line = format!("{label} {number}");
            let count = |lines: &String| lines.lines().filter(|other| *other == line).count();
            let count = record.as_ref().map(|lines| count(lines) as u64);
            let (rule, happened) = (rule.to_owned(), count.map(|count| count > 0));
            faults.push(PlannedFault { by: target, rule, happened, count });
        }
    }
    faults
}

/// Parses the plan of the virtual machine's GPUs.
fn gpu_faults(plan: &str) -> Vec<PlannedFault> {
    let fault = |line: &str| {
        let (rule, applied) = line.rsplit_once(' ')?;
        let (happened, count) = (Some(applied != "0"), applied.parse().ok());
        Some(PlannedFault { by: FaultTarget::Gpu, rule: rule.to_owned(), happened, count })
    };
    plan.lines().filter_map(fault).collect()
}

/// Reads the shared file. Returns `None` if the file cannot be read.
fn read_record(file: &File) -> Option<String> {
    let length = usize::try_from(file.metadata().ok()?.len()).ok()?.min(MAX_RECORD_SIZE);
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).ok()?;
    String::from_utf8(bytes).ok()
}

/// Returns a line for each planned fault that never happened.
pub fn describe_not_happened(faults: &[PlannedFault]) -> impl Iterator<Item = String> {
    let missing = faults.iter().filter(|fault| fault.happened == Some(false));
    missing.map(|PlannedFault { by, rule, .. }| {
        let counts = match by {
            FaultTarget::Driver if rule.contains('#') => "; each process counts its own calls",
            FaultTarget::Runtime if rule.contains('#') => {
                "; each simulation counts its own calls, and `fuzz` starts a simulation for each sequence"
            }
            _ => "",
        };
        format!(
            "planned fault {rule} never happened: no such call was made, or the fault changes nothing in it{counts}"
        )
    })
}

/// Prints a note to standard error for each planned fault that never happened.
pub fn note_not_happened(faults: &[PlannedFault]) {
    describe_not_happened(faults).for_each(|line| note!("{line}"));
}

/// Returns a line for each planned fault that happened in a run without failures: what happened, and why no failure can
/// be right. `part` is `case` or `level`. If a case failed as expected, the failure can be the effect of a fault.
pub fn describe_undetected(
    faults: &[PlannedFault],
    part: &'static str,
    has_expected_failure: bool,
) -> impl Iterator<Item = String> {
    let except = if has_expected_failure { ", apart from expected failures," } else { "" };
    let happened = faults.iter().filter(|fault| fault.happened == Some(true));
    happened.map(move |PlannedFault { by, rule, count, .. }| {
        let count = count.unwrap_or(1);
        let place = match (by, count) {
            (FaultTarget::Gpu, 1) => "once".to_owned(),
            (FaultTarget::Gpu, _) => format!("{count} times"),
            (_, 1) => "in 1 process".to_owned(),
            _ => format!("in {count} processes"),
        };
        let effect = rule.split_once('=').map_or("", |(_, effect)| effect);
        let only = describe_numbers(*by, rule);
        let page = describe_page(*by, &env::var("HSA_KFD").unwrap_or_default());
        match effect.strip_prefix("late:") {
            _ if effect.starts_with(|letter: char| letter.is_ascii_digit())
                && !effect.starts_with("0x") =>
            {
                format!("planned delay {rule} happened {place}; a delay is no fault, so no {part} reports it")
            }
            Some(_) => format!(
                "planned fault {rule} happened {place}, and no {part} of this run{except} detected it. \
                 {only}A late effect is a fault only if the call promises its end. {page}"
            ),
            None => format!(
                "planned fault {rule} happened {place}, and no {part} of this run{except} detected it. {only}{page}"
            ),
        }
    })
}

/// Says what `docs/detection.md` lists, and for which release and machine. `settings` is the value of `HSA_KFD`.
fn describe_page(by: FaultTarget, settings: &str) -> String {
    let is_other_machine = settings.contains("profile=") && !settings.contains("profile=mi300x");
    let about = match by {
        FaultTarget::Driver if is_other_machine => {
            " (with AMD's 7.2.4 on two emulated MI300X; this machine is another)"
        }
        FaultTarget::Driver => " (with AMD's 7.2.4 on two emulated MI300X)",
        FaultTarget::Runtime => "",
        FaultTarget::Gpu => " (with AMD's 6.4.3)",
    };
    format!(
        "For each fault of every call, docs/detection.md says what detects it, or why nothing does{about}"
    )
}

/// Says which calls a rule with `#` affects. Returns an empty string for rules without `#`.
fn describe_numbers(by: FaultTarget, rule: &str) -> String {
    let name = rule.split_once('=').map_or(rule, |(name, _)| name);
    let Some((_, numbers)) = name.split_once('#') else { return String::new() };
    let (one, several, counter) = match by {
        FaultTarget::Driver => ("call", "calls", "each process"),
        FaultTarget::Runtime => ("call", "calls", "each simulation"),
        FaultTarget::Gpu => ("operation", "operations", "all processes together"),
    };
    let affected = match numbers.split_once('-') {
        None => format!("only {one} {numbers}"),
        Some((first, "")) => format!("only {one} {first} and later {several}"),
        Some((first, last)) => format!("only {several} {first} to {last}"),
    };
    format!("It affects {affected} of {counter}. ")
}

#[cfg(test)]
mod tests {
    use super::{describe_not_happened, describe_page, describe_undetected, gpu_faults};
    use hsa_vmm_conformance::{FaultTarget, PlannedFault};

    #[test]
    fn missing_fault_says_what_counts_calls() {
        for (by, expected) in [
            (FaultTarget::Driver, "each process counts its own calls"),
            (FaultTarget::Runtime, "`fuzz` starts a simulation for each sequence"),
            (FaultTarget::Gpu, "the fault changes nothing in it"),
        ] {
            let fault = PlannedFault {
                by,
                rule: "CALL#9=lost".to_owned(),
                happened: Some(false),
                count: Some(0),
            };
            let line = describe_not_happened(&[fault]).next().unwrap();
            assert!(line.ends_with(expected), "{line}");
        }
    }

    #[test]
    fn undetected_fault_says_how_often_it_happened() {
        let fault = |by, rule: &str, count| PlannedFault {
            by,
            rule: rule.to_owned(),
            happened: Some(count > 0),
            count: Some(count),
        };
        let faults = [
            fault(FaultTarget::Driver, "DESTROY_EVENT=lost", 3),
            fault(FaultTarget::Gpu, "INTERRUPT=late:5ms", 7),
            fault(FaultTarget::Runtime, "hsa_init=5ms", 1),
            fault(FaultTarget::Driver, "GEM_VA#99=EIO", 0),
            fault(FaultTarget::Driver, "GEM_VA#3=lost", 2),
            fault(FaultTarget::Driver, "COPY#3-5=late:5ms", 2),
            fault(FaultTarget::Runtime, "hsa_init#3-=lost", 2),
            fault(FaultTarget::Gpu, "COPY#3=half", 1),
        ];
        let lines: Vec<_> = describe_undetected(&faults, "case", false).collect();
        assert_eq!(lines.len(), 7, "{lines:?}");
        for (line, expected) in lines.iter().zip([
            "DESTROY_EVENT=lost happened in 3 processes, and no case of this run detected it. For each \
             fault of every call, docs/detection.md says what detects it, or why nothing does (with AMD's 7.2.4",
            "INTERRUPT=late:5ms happened 7 times, and no case of this run detected it. A late effect",
            "planned delay hsa_init=5ms happened in 1 process; a delay is no fault",
            "detected it. It affects only call 3 of each process. For each fault of every call, docs",
            "It affects only calls 3 to 5 of each process. A late",
            "It affects only call 3 and later calls of each simulation. For",
            "It affects only operation 3 of all processes together. For",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn page_about_another_machine_is_named_as_such() {
        for (settings, expected) in
            [("gpus=2,profile=rdna3", true), ("profile=mi300x", false), ("", false)]
        {
            let page = describe_page(FaultTarget::Driver, settings);
            assert_eq!(page.ends_with("; this machine is another)"), expected, "{page}");
        }
    }

    #[test]
    fn gpu_plan_lists_rules_and_whether_they_happened() {
        let faults = gpu_faults("COPY=garbled 7\nTLB_FLUSH#2-=late:5000us 0\n");
        let faults: Vec<_> = faults.iter().map(|it| (it.rule.as_str(), it.happened)).collect();
        assert_eq!(
            faults,
            [("COPY=garbled", Some(true)), ("TLB_FLUSH#2-=late:5000us", Some(false))]
        );
    }
}
