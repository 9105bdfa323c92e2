//! `hsa-vmm conform`: runs the conformance cases.

mod arguments;
mod show;
mod worker;

pub use arguments::Conform;

use crate::arguments::Arguments;
use crate::choice::print_info;
use crate::driver_log::DriverLog;
use crate::screen::{Screen, note};
use crate::table::table;
use crate::{Exit, planned_faults, program, progress, provenance};
use anyhow::bail;
use arguments::ReportFormat;
use clap::CommandFactory;
use clap::error::ErrorKind;
use hsa_vmm_conformance::contain::{self, Containment, Event, NotRun};
use hsa_vmm_conformance::{Case, KnownFailures, Options, Report, cases, run as run_cases};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;

pub fn run(args: &Conform) -> anyhow::Result<Exit> {
    if args.worker {
        return worker::run_worker(args);
    }
    if args.peer {
        return worker::run_peer(args);
    }
    if args.list {
        return list(args);
    }
    if !cases().iter().any(|case| is_chosen(args, case)) {
        let filters = args.filter.join("` or `");
        bail!("no case matches `{filters}`; `hsa-vmm conform --list` names them all");
    }
    args.output.check()?;
    let options = options(args)?;
    if let Some(seed) = options.shuffle {
        print_info(&format!("order: --shuffle {seed}"));
    }
    let mut report = run_all(args, &options)?;
    add_provenance(args, &mut report);
    let written = args.output.write(|out| write(out, args, &report));
    for case in report.cases.iter().filter(|case| case.known_passed) {
        note!("{}: {}", case.name, case.detail);
    }
    let summary = &report.summary;
    if summary.known > 0 {
        note!("{} known defects of this runtime", summary.known);
    }
    note!("{summary}");
    if let Some(provenance) = report.provenance() {
        planned_faults::note_missing(&provenance.planned_faults);
    }
    written?;
    Ok(if summary.failed == 0 { Exit::Success } else { Exit::Failure })
}

/// Adds how the report was produced, and removes names from it.
fn add_provenance(args: &Conform, report: &mut Report) {
    let words = ["conform".to_owned()].into_iter().chain(args.common.typed_words());
    let driver = report.runtime.driver;
    let simulation = args.common.runtime.simulation();
    let reproduce = program::reproducing(words);
    if let Some(run) = &mut report.run {
        run.provenance = Some(provenance::gather(driver, simulation.as_deref(), reproduce));
    }
    args.privacy.clean_report(report);
}

fn write(out: &mut Screen<'_>, args: &Conform, report: &Report) -> anyhow::Result<()> {
    if args.format != ReportFormat::Table {
        out.for_programs();
    }
    match args.format {
        ReportFormat::Table => {
            let is_simulation = report.runtime.path.is_none();
            show::report(out, report, &args.common.runtime.bringup(is_simulation))?;
        }
        ReportFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)?;
        }
        ReportFormat::Junit => writeln!(out, "{}", report.junit())?,
        ReportFormat::Html => writeln!(out, "{}", report.html()?)?,
    }
    Ok(())
}

fn options(args: &Conform) -> anyhow::Result<Options> {
    let mut known = KnownFailures::default();
    args.known.iter().for_each(|list| known.extend(list.clone()));
    // The user's known failures take precedence over the built-in ones.
    known.extend(KnownFailures::built_in().clone());
    Ok(Options {
        filters: args.filter.clone(),
        repeat: args.repeat.get(),
        shuffle: args.shuffle.map(|seed| seed.unwrap_or_else(random_seed)),
        fail_fast: args.fail_fast,
        known,
        ..worker::options(&args.common)?
    })
}

/// Returns a seed that is short enough to be typed.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(()) % 1_000_000
}

/// Runs the cases in this process or in a worker.
fn run_all(args: &Conform, options: &Options) -> Result<Report, anyhow::Error> {
    let bar = progress::bar(cases().len() as u64, "cases");
    let mut advance = |progress: hsa_vmm_conformance::Progress<'_>| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    };
    if args.in_process {
        let runtime = args.common.runtime.open()?;
        let report = run_cases(&runtime, options, &mut advance);
        bar.finish_and_clear();
        return Ok(report);
    }
    let log = RefCell::new(DriverLog::from_now());
    let mut command = || {
        let mut command = worker::command(&args.common)?;
        log.borrow().apply(&mut command);
        Ok(command)
    };
    let mut printed = BTreeSet::new();
    let mut logs = || log.borrow_mut().lines();
    let time_limit = args.time_limit;
    let containment = Containment { command: &mut command, time_limit, logs: &mut logs };
    let report: Result<_, NotRun> = contain::run(containment, options, &mut |event| match event {
        Event::Started(note) => bar.suspend(|| print_info(note)),
        Event::Case(progress) => advance(progress),
        Event::Output { reported, text, .. } if !reported || args.common.log.is_some() => {
            bar.suspend(|| print_output(text));
        }
        Event::Output { .. } => {}
        // Print it at once, because the report comes late if many cases hang; but each cause once.
        Event::Lost { case, lost } if printed.insert(lost.to_string()) => {
            bar.suspend(|| print_info(&format!("{case}: {lost}")));
        }
        Event::Lost { .. } => {}
        Event::Hangs { function, limit } => bar.suspend(|| {
            let limit = limit.as_secs_f64();
            let why = "several cases have hung in it; from now on, cases still in it after";
            print_info(&format!("{function}: {why} {limit} s count as hung"));
        }),
    });
    bar.finish_and_clear();
    Ok(report?)
}

/// Prints what the runtime or the library's log has printed.
fn print_output(text: &str) {
    // Ignore errors: standard error is the last resort.
    let _ = write!(Screen::stderr(), "{text}");
}

fn is_chosen(args: &Conform, case: &Case) -> bool {
    args.filter.is_empty() || args.filter.iter().any(|filter| case.matches(filter))
}

fn list(args: &Conform) -> anyhow::Result<Exit> {
    let chosen = || cases().into_iter().filter(|case| is_chosen(args, case));
    args.output.write(|out| match args.format {
        ReportFormat::Table => {
            let mut names = table(&["case", "what", "source"]);
            chosen().for_each(|case| names.add_row([case.name, case.about, case.source]));
            names.unbroken([0]);
            Ok(out.table(&names)?)
        }
        ReportFormat::Json => {
            let named = chosen().map(|case| {
                serde_json::json!({ "name": case.name, "about": case.about, "source": case.source })
            });
            serde_json::to_writer_pretty(&mut *out, &named.collect::<Vec<_>>())?;
            Ok(writeln!(out)?)
        }
        ReportFormat::Junit | ReportFormat::Html => {
            let why = "--list supports the formats table and json only";
            Arguments::command().error(ErrorKind::ArgumentConflict, why).exit()
        }
    })?;
    Ok(Exit::Success)
}
