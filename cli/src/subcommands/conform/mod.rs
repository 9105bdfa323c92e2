//! `hsa-vmm conform`: runs the conformance cases.

mod arguments;
mod background_output;
mod failed_requests;
mod ktap;
mod not_started;
mod partial;
mod show;
mod worker;

pub use arguments::Conform;

use crate::arguments::typed_time_limit;
use crate::choice::note_dimmed;
use crate::driver_log::{DriverLog, driver_failures, redacted_failures};
use crate::interrupt::Interrupt;
use crate::planned_faults::describe_undetected;
use crate::provenance::Privacy;
use crate::screen::{Screen, note};
use crate::table::table;
use crate::{BadUsage, Exit, planned_faults, program, progress, provenance};
use anyhow::{Context, bail};
use arguments::ReportFormat;
use background_output::BackgroundOutput;
use failed_requests::add_failed_requests;
use hsa_vmm_conformance::contain::{self, Containment, Event, NotRun};
use hsa_vmm_conformance::describe::{Description, Driver};
use hsa_vmm_conformance::{
    CaseReport, KnownFailures, Options, Report, Status, cases, run as run_cases,
};
use ktap::KtapStream;
use not_started::write_not_started;
use partial::PartialFile;
use show::{closing_lines, print_report};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn run(args: &Conform) -> anyhow::Result<Exit> {
    if args.worker {
        return worker::run_worker(args);
    }
    if args.peer {
        return worker::run_peer(args);
    }
    if args.list {
        return list_cases(args);
    }
    args.output.check_writable()?;
    let mut options = options(args)?;
    let selected = options.selected_cases();
    if selected.is_empty() {
        let problem = match args.shard {
            Some(shard) => format!("no case is in part {shard} of the selected cases"),
            None => format!("no case matches `{}`", args.filter.join("` or `")),
        };
        bail!(BadUsage(format!("{problem}; `hsa-vmm conform --list` lists all cases")));
    }
    if let Some(seed) = options.shuffle {
        note_dimmed(&format!("order: --shuffle {seed}"));
    }
    let mut writer = ResultWriter { privacy: args.privacy.clone(), ..ResultWriter::default() };
    if let Some((partial, finished)) =
        PartialFile::open(&args.output, args.resume, &selected, partial::settings(args))?
    {
        if args.resume {
            note_dimmed(&format!("{} of {} cases have a result", finished.len(), selected.len()));
        }
        options.finished = finished;
        writer.partial = Some(partial);
    }
    let selected_count = selected.len();
    let stream = || {
        KtapStream::begin(args.output.private_stream(&args.privacy)?, selected)
            .context("cannot write the results")
    };
    writer.stream = (args.format == ReportFormat::Ktap).then(stream).transpose()?;
    // With --in-process, a signal ends the process at once: the cases cannot be interrupted.
    let interrupt = if args.in_process { Interrupt::default() } else { Interrupt::new()? };
    let fault_plan = std::env::var(planned_faults::DRIVER_PLAN).unwrap_or_default();
    let mut background = BackgroundOutput::new(&fault_plan);
    let result = run_all(args, &options, &mut writer, &mut background, interrupt.flag());
    if let Some(error) = writer.rejection {
        if let Some(stream) = writer.stream {
            stream.reject(&crate::error_message(&error)).context("cannot write the results")?;
        }
        return Err(error);
    }
    let mut report = match result {
        Ok(report) => report,
        Err(NoReport { error, failed_requests }) => {
            if !writer.is_described {
                writer.describe(args, "runtime: not loaded", None);
            }
            let written =
                write_not_started(args, writer.stream, &error, failed_requests, selected_count);
            if let Err(error) = written {
                note!("error: {}", crate::error_message(&error));
            }
            return Err(error);
        }
    };
    background.remove_frequent_in_failures(&report);
    let interruption = report.interruption();
    if interruption.is_some() {
        writer.interrupt();
        if !writer.is_described {
            writer.describe(args, "runtime: not started", None);
        }
    }
    let is_complete = interruption.is_none() && writer.hangs.is_none();
    let bringup = args.common.runtime.bringup_command(report.runtime.path.is_none());
    add_failed_requests(&mut report, &background, bringup, args.privacy.is_redacting());
    add_provenance(args, &mut report)?;
    let is_resumable = args.output.has_path();
    let closing = closing_lines(&report, writer.hangs, interruption.is_some(), is_resumable);
    // Only the table ends with these lines, because the other formats are for programs.
    let is_table = args.format == ReportFormat::Table;
    let written = match writer.stream {
        Some(stream) => stream.end(&report, &background).context("cannot write the results"),
        None => args.output.write(|out| {
            if is_table && args.privacy.is_redacting() {
                // The table suggests a command with the path of the runtime.
                out.clean_with(&args.privacy);
            }
            write_report(out, args, &report, &background)?;
            let mut lines = closing.iter().filter(|_| is_table);
            Ok(lines.try_for_each(|line| writeln!(out, "{line}"))?)
        }),
    };
    let written = match (writer.error, written) {
        (Some(first), Err(error)) if first.to_string() != error.to_string() => {
            note!("error: {}", crate::error_message(&error));
            Err(first)
        }
        (Some(first), _) => Err(first),
        (None, written) => written,
    };
    // All results were written, so the partial results are not needed.
    if let Some(partial) = writer.partial.filter(|_| is_complete && written.is_ok()) {
        partial.remove();
    }
    if !is_table || args.output.has_path() || written.is_err() {
        closing.iter().for_each(|line| note!("{line}"));
    }
    if let Some(provenance) = report.provenance() {
        let faults = &provenance.planned_faults;
        planned_faults::note_not_happened(faults);
        if report.summary.failed == 0 && is_complete {
            let has_expected_failure = report.summary.known > 0;
            describe_undetected(faults, "case", has_expected_failure)
                .for_each(|line| note!("{line}"));
        }
    }
    written?;
    Ok(if report.summary.failed == 0 && is_complete { Exit::Success } else { Exit::Failure })
}

/// The error of a run without a report: the runtime did not start.
struct NoReport {
    error: anyhow::Error,
    /// The requests to the emulated driver that failed during the start.
    failed_requests: Vec<String>,
}

impl<E: Into<anyhow::Error>> From<E> for NoReport {
    fn from(error: E) -> Self {
        Self { error: error.into(), failed_requests: Vec::new() }
    }
}

/// Writes results while the cases run.
#[derive(Default)]
struct ResultWriter {
    privacy: Privacy,
    partial: Option<PartialFile>,
    stream: Option<KtapStream>,
    /// Whether KTAP output has the description of the run.
    is_described: bool,
    /// The number of consecutive hung cases, if these stopped the run.
    hangs: Option<usize>,
    /// Why the results of the interrupted run cannot be continued on this runtime.
    rejection: Option<anyhow::Error>,
    /// The first error of writing.
    error: Option<anyhow::Error>,
}

impl ResultWriter {
    /// Records that a case is about to run.
    fn begin(&mut self, case: &str) {
        let written = self.partial.as_mut().map_or(Ok(()), |partial| partial.begin(case));
        self.error = self.error.take().or(written.err());
    }

    /// Records that the user has ended the run.
    fn interrupt(&mut self) {
        let written = self.partial.as_mut().map_or(Ok(()), PartialFile::interrupt);
        self.error = self.error.take().or(written.err());
    }

    /// Records which runtime has started. Returns false if the interrupted run had another.
    fn start(&mut self, runtime: &Description) -> bool {
        let recorded = self.partial.as_ref().map(|partial| partial.start(runtime));
        match recorded {
            Some(Err(error)) if error.is::<BadUsage>() => self.rejection = Some(error),
            Some(Err(error)) => self.error = self.error.take().or(Some(error)),
            None | Some(Ok(())) => {}
        }
        self.rejection.is_none()
    }

    /// Writes a description of the run to KTAP output. `runtime` describes the runtime.
    fn describe(&mut self, args: &Conform, runtime: &str, driver: Option<Driver>) {
        let Some(stream) = &mut self.stream else { return };
        self.is_described = true;
        let config = args.common.runtime.config_text();
        let provenance = provenance::describe_run(driver, config.as_deref(), String::new());
        let notes = provenance::ktap_notes(runtime, provenance, &args.privacy);
        let written = stream.write_notes(&notes).context("cannot write the results");
        self.error = self.error.take().or(written.err());
    }

    /// Writes a result to KTAP output, but not to the partial file. The partial file already contains the results of
    /// the interrupted run that this run continues.
    fn add_to_stream(&mut self, case: &CaseReport) {
        let streamed = self.stream.as_mut().map_or(Ok(()), |stream| {
            let detail = self.privacy.clean_detail(&case.detail);
            stream.add(&CaseReport { detail, ..case.clone() })
        });
        self.error = self.error.take().or(streamed.context("cannot write the results").err());
    }

    /// Writes a result to the partial file and to KTAP output.
    fn add(&mut self, case: &CaseReport) {
        let written = self.partial.as_mut().map_or(Ok(()), |partial| partial.end(case));
        self.error = self.error.take().or(written.err());
        self.add_to_stream(case);
    }
}

/// Adds a description of the run to the report, and removes private data from the report.
fn add_provenance(args: &Conform, report: &mut Report) -> anyhow::Result<()> {
    let time_limit = typed_time_limit(args.time_limit, arguments::default_time_limit());
    let arguments = ["conform".to_owned()].into_iter().chain(args.arguments_to_repeat());
    let arguments = arguments.chain(time_limit);
    let driver = report.runtime.driver;
    let config = args.common.runtime.config_text();
    if let Some(run) = &mut report.run {
        let mut provenance = provenance::describe_run(driver, config.as_deref(), String::new());
        let is_numbered = provenance.has_numbered_faults();
        let selection = if is_numbered { args.selection(run.seed) } else { Vec::new() };
        provenance.reproduce = program::reproduce_command(arguments.chain(selection));
        // Users copy commands from a table, so the paths stay complete.
        if args.format != ReportFormat::Table {
            provenance::shorten_paths(&mut provenance);
            report.bringup =
                report.bringup.take().map(|line| program::without_program_folder(&line));
        }
        run.provenance = Some(provenance);
    }
    Ok(args.privacy.clean_report(report)?)
}

fn write_report(
    out: &mut Screen<'_>,
    args: &Conform,
    report: &Report,
    background: &BackgroundOutput,
) -> anyhow::Result<()> {
    if args.format != ReportFormat::Table {
        out.keep_utf8();
    }
    match args.format {
        ReportFormat::Table => print_report(out, report, background, args.failures_only)?,
        ReportFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)?;
        }
        ReportFormat::Junit => writeln!(out, "{}", report.junit())?,
        ReportFormat::Html => writeln!(out, "{}", report.html()?)?,
        ReportFormat::Kcidb => {
            let build = args.build_id.as_deref().unwrap_or_default();
            serde_json::to_writer_pretty(&mut *out, &report.kcidb(build))?;
            writeln!(out)?;
        }
        // KTAP results were written while the cases ran.
        ReportFormat::Ktap => {}
    }
    Ok(())
}

fn options(args: &Conform) -> anyhow::Result<Options> {
    let mut known = KnownFailures::default();
    args.expect.iter().for_each(|list| known.extend(list.clone()));
    // The user's known failures take precedence over the built-in list.
    known.extend(KnownFailures::built_in().clone());
    Ok(Options {
        filters: args.filter.clone(),
        repeat: args.repeat.get(),
        shuffle: args.shuffle.map(|seed| seed.unwrap_or_else(random_seed)),
        max_failures: if args.fail_fast { Some(NonZeroUsize::MIN) } else { args.max_fail },
        shard: args.shard,
        known,
        ..worker::options(args)?
    })
}

/// Returns a seed that is short enough to be typed.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(()) % 1_000_000
}

/// Runs the cases in this process or in a worker. Adds to `background` what was logged during cases that passed.
fn run_all(
    args: &Conform,
    options: &Options,
    writer: &mut ResultWriter,
    background: &mut BackgroundOutput,
    interrupted: &AtomicBool,
) -> Result<Report, NoReport> {
    let bar = progress::bar(cases().len() as u64, "cases");
    // With --repeat, a result is not final, because the case runs again.
    let is_final = options.repeat == 1;
    let advance = |progress: hsa_vmm_conformance::Progress<'_>, writer: &mut ResultWriter| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        if is_final {
            writer.add(progress.case);
        }
    };
    if args.in_process {
        let (runtime, note) = args.common.runtime.open_with_description()?;
        note_dimmed(&note);
        let is_simulation = runtime.info().path.is_none();
        writer.describe(args, &note, Some(provenance::driver(is_simulation)));
        let report = run_cases(&runtime, options, &mut |progress| advance(progress, writer));
        bar.finish_and_clear();
        return Ok(report);
    }
    let add_finished = |writer: &mut ResultWriter| {
        options.finished.iter().for_each(|case| writer.add_to_stream(case))
    };
    let log = RefCell::new(DriverLog::open());
    let mut command = || {
        let mut command = worker::command(args)?;
        log.borrow().apply(&mut command);
        Ok(command)
    };
    let mut printed = BTreeSet::new();
    let mut output_of_case = String::new();
    let last_lines = RefCell::new(Vec::new());
    let mut logs = || {
        let lines = log.borrow_mut().new_lines();
        last_lines.replace(lines.clone());
        lines
    };
    let time_limit = args.time_limit;
    let containment =
        Containment { command: &mut command, time_limit, logs: &mut logs, stop: interrupted };
    let report: Result<_, NotRun> = contain::run(containment, options, &mut |event| {
        match event {
        Event::Started { note, description } => {
            bar.suspend(|| note_dimmed(note));
            if writer.start(description) {
                writer.describe(args, note, description.runtime.driver);
                add_finished(writer);
            } else {
                interrupted.store(true, Ordering::Relaxed);
            }
        }
        Event::Begin { case } if is_final => writer.begin(case),
        Event::Begin { .. } => {}
        Event::Case(progress) => {
            if progress.case.status == Status::Pass {
                let logged = last_lines.borrow();
                background.add(logged.iter().map(String::as_str).chain(output_of_case.lines()));
            }
            output_of_case.clear();
            advance(progress, writer);
        }
        Event::Output { reported, text, case } if !reported || args.common.log_level.is_some() => {
            output_of_case.push_str(case.map_or("", |_| text));
            if !args.privacy.is_redacting() {
                bar.suspend(|| print_output(text));
            }
        }
        Event::Output { .. } => {}
        // Print each cause at its first case: if many cases hang, the report is written much later.
        Event::Lost { case, lost } if printed.insert(lost.to_string()) => {
            bar.suspend(|| note_dimmed(&format!("{case}: {lost}")));
        }
        Event::Lost { .. } => {}
        Event::Interrupted { case, last_call } => bar.suspend(|| {
            let place = last_call.map(|call| format!(", {call}")).unwrap_or_default();
            note_dimmed(&format!("{case}: interrupted{place}"));
        }),
        Event::StoppedByHangs { cases } => writer.hangs = Some(cases),
        Event::Hangs { function, limit } => bar.suspend(|| {
            let limit = limit.as_secs_f64();
            note_dimmed(&format!(
                "several cases have hung in {function}: the time limit for cases in this call is now {limit} s"
            ));
        }),
    }
    });
    bar.finish_and_clear();
    report.map_err(|error| {
        // The driver's errors explain best why the runtime did not start.
        let lines = log.borrow_mut().new_lines();
        let lines = lines.iter().map(String::as_str);
        let failed_requests = match args.privacy.is_redacting() {
            true => redacted_failures(lines),
            false => driver_failures(lines),
        };
        add_finished(writer);
        failed_requests.iter().for_each(|line| note_dimmed(line));
        NoReport { error: error.into(), failed_requests }
    })
}

/// Prints output of the runtime or of the library's log.
fn print_output(text: &str) {
    // Ignore errors: standard error is the last resort.
    let _ = write!(Screen::stderr(), "{text}");
}

fn list_cases(args: &Conform) -> anyhow::Result<Exit> {
    let options = options(args)?;
    let selected = || options.selected_cases().into_iter();
    args.output.write(|out| match args.format {
        ReportFormat::Table => {
            let mut listing = table(&["case", "what", "source"]);
            selected().for_each(|case| listing.add_row([case.name, case.about, case.source]));
            listing.no_wrap([0]);
            Ok(out.write_table(&listing)?)
        }
        ReportFormat::Json => {
            let named = selected().map(|case| {
                serde_json::json!({ "name": case.name, "about": case.about, "source": case.source })
            });
            serde_json::to_writer_pretty(&mut *out, &named.collect::<Vec<_>>())?;
            Ok(writeln!(out)?)
        }
        ReportFormat::Junit | ReportFormat::Html | ReportFormat::Ktap | ReportFormat::Kcidb => {
            bail!(BadUsage("--list supports the formats table and json only".to_owned()))
        }
    })?;
    Ok(Exit::Success)
}
