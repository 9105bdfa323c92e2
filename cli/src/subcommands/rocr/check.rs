//! `hsa-vmm rocr check`: compares a release with the newest other downloaded release, on the emulated driver.

use super::parse_release;
use crate::progress::Steps;
use crate::redaction::without_names_of_this_user;
use crate::screen::Screen;
use crate::{BadUsage, Exit};
use anyhow::{Context, anyhow};
use clap::Args;
use hsa_rocr::{Emulation, FetchedRelease, Release, folder};
use hsa_vmm::vmm::Quirks;
use hsa_vmm_conformance::{Report, Status};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

pub const ABOUT: &str = "\
Example:
  hsa-vmm rocr fetch 7.14.0 --from /opt/rocm    store a release that you have
  hsa-vmm rocr check 7.14.0 -o check            test the release

docs/faq.md says how to send the results.
Exit status: 0 nothing failed, 1 a case failed only with this release or a level
of bringup failed, 2 invalid usage, 3 the release is missing, or one of the two
does not start.";

#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub struct RocrCheck {
    /// The release, as `rocr list` shows it
    #[arg(value_name = "VERSION", value_parser = parse_release)]
    pub release: Release,
    /// Write all results to this folder
    #[arg(short, long, value_name = "FOLDER", help_heading = "Output")]
    pub output: PathBuf,
    /// The number of emulated GPUs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: u8,
    /// Run only the conformance cases whose names match, such as `map.*`; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub filter: Vec<String>,
}

pub fn run(args: &RocrCheck) -> anyhow::Result<Exit> {
    let folder = folder()?;
    let checked = FetchedRelease::open(&folder, args.release)?;
    let is_base =
        |it: &FetchedRelease| it.release().is_packaged() && it.release() != checked.release();
    let Some(base) = FetchedRelease::all(&folder).into_iter().rfind(is_base) else {
        let message =
            "no other release was downloaded for the comparison; run `hsa-vmm rocr fetch 7.2.4`";
        return Err(BadUsage(message.to_owned()).into());
    };
    let cannot_write = || format!("cannot write to the folder {}", args.output.display());
    fs::create_dir_all(&args.output).with_context(cannot_write)?;
    let steps = Steps::new();
    let program = std::env::current_exe().context("cannot find this program")?;
    let emulated = |fetched: &FetchedRelease| -> anyhow::Result<Command> {
        let mut command = Command::new(&program);
        let emulation = Emulation::with_gpus(args.gpus).with_runtime_release(fetched);
        emulation.apply(&mut command)?;
        command.env("HSA_VMM_RUNTIME", fetched.runtime());
        let (gpus, release) = (args.gpus.to_string(), fetched.release().to_string());
        let outer = ["emulate", "--gpus", &gpus, "--rocr", &release].map(str::to_owned);
        crate::program::set_outer_command(&mut command, &outer);
        Ok(command)
    };
    // Runs a command, and writes its output to files.
    let run_to_files = |command: &mut Command, arguments: &[&str], out: &str, log: &str| {
        let file = |name: &str| File::create(args.output.join(name)).with_context(cannot_write);
        steps.begin(&format!("{} > {out}", arguments.join(" ")));
        let status = command.args(arguments).stdout(file(out)?).stderr(file(log)?).status();
        // The files are sent to other people.
        for name in [out, log] {
            let path = args.output.join(name);
            let text = fs::read(&path).with_context(cannot_write)?;
            let text = without_names_of_this_user(&String::from_utf8_lossy(&text));
            fs::write(&path, text).with_context(cannot_write)?;
        }
        status.context("cannot start this program again")
    };
    let filters: Vec<_> = args.filter.iter().flat_map(|it| ["--filter", it]).collect();
    let conform_arguments = [&["conform", "--format", "json"][..], &filters].concat();
    let mut reports = Vec::new();
    for fetched in [&base, &checked] {
        let name = format!("conform-{}", fetched.release());
        let (json, log) = (format!("{name}.json"), format!("{name}.txt"));
        let status = run_to_files(&mut emulated(fetched)?, &conform_arguments, &json, &log)?;
        let failure = || fs::read_to_string(args.output.join(&log)).unwrap_or_default();
        match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(crate::NO_RUNTIME) => {
                drop(steps);
                let release = fetched.release();
                print(&format!("AMD's runtime {release} does not start:\n{}", failure()))?;
                return Ok(Exit::NoRuntime);
            }
            Some(0 | crate::FAILED) => {}
            code => {
                let message = format!("`conform` has failed ({status}):\n{}", failure().trim_end());
                let is_usage = code == Some(crate::BAD_USAGE);
                return Err(if is_usage { BadUsage(message).into() } else { anyhow!(message) });
            }
        }
        reports.push((fetched.release(), json.clone(), Report::read(args.output.join(json))?));
    }
    let [before, after] = &reports[..] else { unreachable!("two releases") };
    run_to_files(&mut emulated(&checked)?, &["info", "--format", "json"], "info.json", "info.txt")?;
    let bringup =
        run_to_files(&mut emulated(&checked)?, &["bringup"], "bringup.txt", "bringup-log.txt")?;
    let mut diff = Command::new(&program);
    diff.current_dir(&args.output);
    let difference =
        run_to_files(&mut diff, &["diff", &before.1, &after.1], "diff.txt", "diff-log.txt")?;
    drop(steps);
    let text = summary(args, [(before.0, &before.2), (after.0, &after.2)], bringup);
    fs::write(args.output.join("summary.txt"), without_names_of_this_user(&text))
        .with_context(cannot_write)?;
    print(&text)?;
    let failed = !difference.success() || !bringup.success();
    Ok(if failed { Exit::Failure } else { Exit::Success })
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = Screen::stdout();
    write!(out, "{text}").and_then(|()| out.flush()).context("cannot write the summary")
}

/// Returns a text that describes the runtime, the results, and the quirks that were found or are expected.
fn summary(args: &RocrCheck, reports: [(Release, &Report); 2], bringup: ExitStatus) -> String {
    let [(base, before), (release, after)] = reports;
    let runtime = &after.runtime;
    let unknown = "unknown".to_owned();
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<22}{value}");
    };
    line(
        "release",
        &format!("{release}, compared with {base}; emulated driver, {} GPUs", args.gpus),
    );
    line("implementation", runtime.implementation.as_ref().unwrap_or(&unknown));
    line("build", runtime.build.as_ref().unwrap_or(&unknown));
    line("extension", &runtime.extension);
    line("conform", &after.summary.to_string());
    line(&format!("conform, {base}"), &before.summary.to_string());
    let failed = after.cases.iter().filter(|case| case.status == Status::Fail);
    failed.for_each(|case| line("failed", &format!("{}: {}", case.name, case.detail)));
    let levels = "every level was reached or does not apply";
    line("bringup", if bringup.success() { levels } else { "a level failed" });
    for probe in runtime.probes.iter().flatten().filter(|probe| probe.expected != probe.found) {
        let found = if probe.found { "found" } else { "not found" };
        line("differs from version", &format!("{}: {found} by a probe", probe.name));
    }
    for quirk in runtime.quirks.iter().flatten() {
        let known = Quirks::KNOWN.iter().find(|known| known.name == quirk.name);
        let is_probed = runtime.probes.iter().flatten().any(|probe| probe.name == quirk.name);
        let source = if is_probed { "found by a probe" } else { "expected" };
        let issue = known.map_or(quirk.issue.as_str(), |known| known.issue);
        line("quirk", &format!("{} ({source}; {issue})", quirk.name));
    }
    line("files", &args.output.display().to_string());
    text
}
