//! `hsa-vmm bringup`: runs levels from "library loads" to "process killed" and reports the first that fails.
//!
//! ```text
//!   bringup ── a level ──► supervise ─── a worker ───► run_level ── hsa ──► the runtime
//!                            │  records, before and after each call
//!                            ▼
//!                failure: the call, interface, logs, machine ──► show, JSON, reproduce
//! ```

mod accounting;
mod advice;
mod arguments;
mod data;
mod engine;
mod environment;
mod failure;
mod gpu_fault;
mod host_buffer;
mod hsa;
mod interface;
mod kernel_trace;
mod level;
mod level_log;
mod machine;
mod other_process;
mod page_table;
mod parameters;
mod probes;
mod processes;
mod record;
mod recorder;
mod reproduce;
mod requests;
mod reuse;
mod run_level;
mod show;
mod supervisor;
mod suspicion;

pub use arguments::{ABOUT, Bringup};
pub use interface::{is_called, is_request_of_a_level};
pub use requests::{call_and_error, count_failures, has_ended, returned_error};

use crate::arguments::{RunFormat, typed_time_limit};
use crate::driver_log::{note_unused_log, regular_log};
use crate::interrupt::Interrupt;
use crate::kernel_log::KernelLog;
use crate::planned_faults::{describe_not_happened, describe_undetected};
use crate::screen::{Screen, note};
use crate::{BadUsage, Exit, output, planned_faults, program, provenance};
use advice::Setup;
use failure::Failure;
use hsa_vmm_conformance::describe::{ProbeDescription, differing_probes};
use hsa_vmm_conformance::worker::connect_to_parent;
use hsa_vmm_conformance::{Ktap, KtapTest, PlannedFault, Status};
use level::Level;
use level_log::{begin_log, open_log, write_log};
use recorder::Recorder;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use supervisor::{LevelRun, Outcome, supervise};

pub fn run(args: &Bringup) -> anyhow::Result<Exit> {
    if let Some(level) = args.run_level {
        return run_in_worker(args, level);
    }
    // Check the arguments before running anything.
    args.simulation_config()?;
    let files = [("--log", args.log.as_deref()), ("--program", args.program.as_deref())];
    files.iter().filter_map(|(_, path)| *path).try_for_each(output::check_writable)?;
    args.output.check_writable()?;
    let driver_log = regular_log().filter(|_| planned_faults::is_driver_emulated());
    let other_files = [("--output", args.output.path()), ("emulate --log", driver_log.as_deref())];
    output::check_different(&[files, other_files].concat())?;
    let mut log = args.log.as_deref().map(open_log).transpose()?;
    let mut kernel = KernelLog::open_at_end();
    let interrupt = Interrupt::new()?;
    note_unused_log();
    // The table is written level by level. Without --redact, only the path of the runtime is cleaned, because readers
    // copy the commands of the table.
    let open_table = || match args.privacy.is_redacting() {
        true => args.output.private_stream(&args.privacy),
        false => args.output.stream(),
    };
    let mut table = (args.format == RunFormat::Table).then(open_table).transpose()?;
    let levels = || Level::ALL.into_iter().filter(|level| *level <= args.until);
    let begin_ktap = || {
        Ok::<_, anyhow::Error>(Ktap::begin(
            args.output.private_stream(&args.privacy)?,
            levels().count(),
        )?)
    };
    let mut ktap = (args.format == RunFormat::Ktap).then(begin_ktap).transpose()?;
    let mut runs: Vec<LevelRun> = Vec::new();
    let mut log_written = Ok(());
    let log_name = || {
        let path = args.log.iter().map(|path| format!(" {}", path.display())).collect::<String>();
        format!("the log (--log){path}")
    };
    let mut driver_errors = BTreeSet::new();
    for level in levels() {
        let Some(run) = supervise(args, level, &interrupt, &mut kernel)? else { break };
        if let Some(log) = &mut log {
            // Keep an earlier log until there is a result.
            let begun = if runs.is_empty() { begin_log(log) } else { Ok(()) };
            let written = begun
                .and_then(|()| write_log(log, &run, &args.privacy))
                .map_err(|cause| output::record_failure(log_name(), &cause));
            // Report the results even if the log cannot be written.
            log_written = log_written.and(written);
        }
        if let Some(out) = &mut table {
            if runs.is_empty() {
                let planned = planned_faults::planned(args.runtime.config_text().as_deref());
                provenance::print_banner(out, &without_effects(planned))?;
                print_runtime(out, args, &run)?;
            }
            show::print_level(out, &run)?;
            out.flush()?;
        }
        note_driver_errors(&run, &mut driver_errors);
        let failed = matches!(run.outcome, Outcome::Failed(_));
        if let Some(ktap) = ktap.as_mut().filter(|_| runs.is_empty()) {
            write_notes(ktap, args, &run)?;
        }
        if let Some(ktap) = ktap.as_mut().filter(|_| !failed) {
            let (status, detail) = match &run.outcome {
                Outcome::Skipped(why) => (Status::Skip, why.as_str()),
                Outcome::Reached | Outcome::Failed(_) => (Status::Pass, ""),
            };
            ktap.write_result(&KtapTest { name: &level.name(), status, detail })?;
        }
        runs.push(run);
        if failed {
            break;
        }
    }
    let failed_run = runs.last().filter(|run| matches!(run.outcome, Outcome::Failed(_)));
    let is_complete = failed_run.is_some() || runs.len() == levels().count();
    let reason_not_run = if is_complete { "not tried" } else { "interrupted" };
    let config = args.runtime.config_text();
    let faults = planned_faults::planned(config.as_deref());
    let command = |run: &LevelRun| {
        format!("{} --until {}", args.runtime.bringup_command(false), run.level.name())
    };
    let time_limit = typed_time_limit(args.time_limit, arguments::default_time_limit());
    let time_limit: String = time_limit.iter().map(|word| format!(" {word}")).collect();
    let mut failure = failed_run.and_then(|run| {
        let (command, config) = (&command(run), config.as_deref());
        let earlier = runs.iter().filter(|other| other.level != run.level).map(|it| it.took).sum();
        let program = args.program.as_deref().filter(|path| !output::is_lost(path));
        Failure::of(run, Setup { command, earlier, config, planned_faults: &faults, program })
    });
    failure.iter_mut().for_each(|failure| failure.remove_logs(&args.privacy));
    // Do not probe with planned faults, because the faults could take effect in the calls of the probes.
    let is_probed =
        failed_run.is_none() && is_complete && args.until == Level::Killed && faults.is_empty();
    let probes = if is_probed { probes::probe(args) } else { None };
    let program_written = match (failed_run, &args.program) {
        (Some(run), Some(path)) if run.is_repeatable_in_c() => {
            let text = reproduce::program_source(run, path, args.privacy.is_redacting());
            output::save(path, text.as_bytes())
        }
        (Some(run), Some(_)) if run.level.is_repeatable_in_c() => {
            note!("--program: no file is written, because no library was loaded");
            Ok(())
        }
        (Some(run), Some(_)) => {
            note!(
                "--program: no file is written, because one C program cannot repeat the level `{}`, in which several \
                 processes use the memory; repeat the level with the command of the report",
                run.level.name()
            );
            Ok(())
        }
        _ => Ok(()),
    };
    let is_passed = failed_run.is_none() && is_complete;
    let undetected: Vec<_> =
        describe_undetected(&faults, "level", false).filter(|_| is_passed).collect();
    let about_faults = || describe_not_happened(&faults).chain(undetected.iter().cloned());
    if let Some(out) = &mut table {
        show::print_not_tried(out, levels().skip(runs.len()), reason_not_run)?;
        for (number, line) in about_faults().enumerate() {
            writeln!(out, "{}{line}", if number == 0 { "\n" } else { "" })?;
        }
        for differing in differing_probes(probes.iter().flatten()) {
            writeln!(out, "\nprobe differs: {differing}")?;
        }
        if let (Some(run), Some(failure)) = (failed_run, &failure) {
            show::print_failure(out, run.level, failure)?;
            writeln!(out, "\nreproduce: {}{time_limit}", command(run))?;
            match &args.program {
                _ if !run.is_repeatable_in_c() || program_written.is_err() => {}
                // A note has said that the file is lost.
                Some(path) if output::is_lost(path) => {}
                Some(path) => {
                    writeln!(out, "\nC program that repeats the calls: {}", path.display())?
                }
                None => {
                    writeln!(out, "\n--program FILE writes a C program that repeats the calls.")?
                }
            }
        }
    } else if let Some(ktap) = &mut ktap {
        let text = |run| -> std::io::Result<String> {
            let text = failure_text(run, failure.as_ref())?;
            let command = program::without_program_folder(&command(run));
            Ok(format!("{text}\n\nreproduce: {command}{time_limit}"))
        };
        let text = failed_run.map(text).transpose()?;
        // Report the interrupted level as failed. If it were skipped, the document would contain no failure.
        let interrupted = (!is_complete).then_some("interrupted before the end of this level");
        let failed_level = text.as_deref().or(interrupted).map(|text| (Status::Fail, text));
        let remaining =
            failed_level.into_iter().chain(std::iter::repeat((Status::Skip, reason_not_run)));
        let passed = runs.len() - text.iter().len();
        for (level, (status, detail)) in levels().skip(passed).zip(remaining) {
            ktap.write_result(&KtapTest { name: &level.name(), status, detail })?;
        }
        about_faults().try_for_each(|line| ktap.write_note(&line))?;
    } else {
        let simulation = runs.iter().find_map(|run| run.runtime.as_ref()).map(Option::is_none);
        let driver = simulation.map(provenance::driver);
        let provenance = provenance::describe_run(
            driver,
            config.as_deref(),
            args.runtime.bringup_command(false) + &time_limit,
        );
        let mut report = report(&runs, failure.as_ref(), args.until, probes);
        report.interrupted = !is_complete;
        let mut report = serde_json::to_value(report)?;
        args.privacy.clean_value(&mut report);
        args.output.write(|out| provenance::write_json(out, &report, provenance, &args.privacy))?;
    }
    if let Some(out) = &mut table {
        out.flush()?;
    }
    if !is_complete {
        note!("interrupted after {} of {} levels", runs.len(), levels().count());
    }
    // The table contains these lines. Like `conform`, print them again only if the table is in a file.
    if table.is_none() || args.output.has_path() {
        about_faults().for_each(|line| note!("{line}"));
    }
    if let (Err(_), Err(error)) = (&program_written, &log_written) {
        note!("error: {error}");
    }
    program_written?;
    log_written?;
    if let Some(reason) = failed_run.and_then(LevelRun::incomplete_log) {
        return Err(BadUsage(reason.to_owned()).into());
    }
    Ok(match failed_run {
        None if is_complete => Exit::Success,
        Some(run) if run.level <= Level::Runtime && !run.has_started() => Exit::NoRuntime,
        None | Some(_) => Exit::Failure,
    })
}

/// Writes a description of the runtime and of the run.
fn write_notes(ktap: &mut Ktap<Screen<'_>>, args: &Bringup, run: &LevelRun) -> std::io::Result<()> {
    let runtime = match &run.runtime {
        Some(Some(path)) => path,
        Some(None) => "simulation",
        None => "not loaded",
    };
    let driver = run.runtime.as_ref().map(|path| provenance::driver(path.is_none()));
    let config = args.runtime.config_text();
    let provenance = provenance::describe_run(driver, config.as_deref(), String::new());
    let notes = provenance::ktap_notes(&format!("runtime: {runtime}"), provenance, &args.privacy);
    notes.iter().try_for_each(|line| ktap.write_note(line))
}

/// Returns the text with which the table describes the failure.
fn failure_text(run: &LevelRun, failure: Option<&Failure>) -> std::io::Result<String> {
    let mut text = Vec::new();
    if let Some(failure) = failure {
        show::print_failure(&mut Screen::plain(&mut text), run.level, failure)?;
    }
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Marks as unknown whether the faults happen, because most levels have not run yet.
fn without_effects(mut faults: Vec<PlannedFault>) -> Vec<PlannedFault> {
    faults.iter_mut().for_each(|fault| fault.happened = None);
    faults
}

/// Runs a level in this process: in the level's first process, which `bringup` has started, or in another process of
/// the level, which the first process has started.
fn run_in_worker(args: &Bringup, level: Level) -> anyhow::Result<Exit> {
    let (requests, messages) = connect_to_parent()?;
    let recorder = Recorder::new(messages, args.other_process.unwrap_or(0));
    if args.other_process.is_some() {
        return run_level::run_in_other_process(args, level, &recorder, &requests);
    }
    run_level::run_level(args, level, &recorder)?;
    Ok(Exit::Success)
}

/// Prints the errors that the emulated driver has printed in the level's processes, such as a log that cannot be
/// written. Prints each error once.
fn note_driver_errors(run: &LevelRun, printed: &mut BTreeSet<String>) {
    let errors = run.output.lines().filter(|line| line.starts_with("hsa-kfd: cannot "));
    for error in errors {
        if printed.insert(error.to_owned()) {
            note!("{error}");
        }
    }
}

fn print_runtime(out: &mut Screen<'_>, args: &Bringup, run: &LevelRun) -> std::io::Result<()> {
    match &run.runtime {
        Some(Some(path)) => writeln!(out, "runtime: {}\n", args.privacy.clean_text(path)),
        Some(None) => writeln!(out, "runtime: simulation\n"),
        None => Ok(()),
    }
}

#[derive(Serialize)]
struct Report<'a> {
    /// The library's file. `null` if there is no library or the runtime is the simulation.
    runtime: Option<&'a str>,
    simulation: bool,
    /// Whether SIGINT or SIGTERM ended the run early.
    interrupted: bool,
    levels: Vec<LevelReport<'a>>,
    failure: Option<&'a Failure>,
    /// The quirks that the library looked for after the last level. `null` if the library did not look for quirks.
    probes: Option<Vec<ProbeDescription>>,
}

#[derive(Serialize)]
struct LevelReport<'a> {
    level: Level,
    /// `reached`, `skipped`, `failed` or `not_tried`.
    status: &'a str,
    detail: String,
    calls: usize,
    duration_us: u64,
    /// Requests to the emulated driver that the table of interfaces does not list for the call that made them.
    #[serde(rename = "asked_besides")]
    unlisted_requests: Vec<String>,
}

fn report<'a>(
    runs: &'a [LevelRun],
    failure: Option<&'a Failure>,
    until: Level,
    probes: Option<Vec<ProbeDescription>>,
) -> Report<'a> {
    let runtime = runs.iter().find_map(|run| run.runtime.as_ref());
    let mut levels: Vec<_> = runs.iter().map(LevelReport::of).collect();
    let not_tried = Level::ALL.into_iter().filter(|level| *level <= until).skip(levels.len());
    levels.extend(not_tried.map(|level| LevelReport {
        level,
        status: "not_tried",
        detail: String::new(),
        calls: 0,
        duration_us: 0,
        unlisted_requests: Vec::new(),
    }));
    Report {
        runtime: runtime.and_then(|path| path.as_deref()),
        simulation: runtime == Some(&None),
        interrupted: false,
        levels,
        failure,
        probes,
    }
}

impl LevelReport<'_> {
    fn of(run: &LevelRun) -> Self {
        let (status, detail) = match &run.outcome {
            Outcome::Reached => ("reached", run.facts.last().cloned().unwrap_or_default()),
            Outcome::Skipped(why) => ("skipped", why.clone()),
            Outcome::Failed(cause) => ("failed", run.describe(cause)),
        };
        Self {
            level: run.level,
            status,
            detail,
            calls: run.calls.len(),
            duration_us: u64::try_from(run.took.as_micros()).unwrap_or(u64::MAX),
            unlisted_requests: unlisted_requests(run),
        }
    }
}

/// Returns the requests to the emulated driver that the table of interfaces does not list.
fn unlisted_requests(run: &LevelRun) -> Vec<String> {
    let mut unlisted = BTreeSet::new();
    for call in &run.calls {
        let table = interface::used_by(&call.begin.call);
        for line in run.driver_during(call) {
            let Some(request) = interface::request(line) else { continue };
            if !table.iter().any(|interface| interface.logged == request) {
                unlisted.insert(format!("{}: {request}", call.begin.call));
            }
        }
    }
    unlisted.into_iter().collect()
}
