//! `hsa-vmm conform`: the named cases.

mod arguments;
mod worker;

pub use arguments::Conform;

use crate::arguments::Arguments;
use crate::choice::say;
use crate::screen::{Screen, note};
use crate::table::{Cell, table};
use crate::{Ending, progress};
use anstyle::{AnsiColor, Style};
use anyhow::bail;
use arguments::ReportFormat;
use clap::CommandFactory;
use clap::error::ErrorKind;
use hsa_vmm_conformance::contain::{self, Containment, Event, NotRun};
use hsa_vmm_conformance::{Case, KnownFailures, Options, Report, Status, cases, run as run_cases};
use std::io::Write;

pub fn run(verb: &Conform) -> anyhow::Result<Ending> {
    if verb.worker {
        return worker::work(verb);
    }
    if verb.partner {
        return worker::be_partner(verb);
    }
    if verb.list {
        return list(verb);
    }
    if !cases().iter().any(|case| is_chosen(verb, case)) {
        let filters = verb.filter.join("` or `");
        bail!("no case matches `{filters}`; `hsa-vmm conform --list` names them all");
    }
    verb.output.check()?;
    let options = options(verb)?;
    if let Some(seed) = options.shuffle {
        say(&format!("order: --shuffle {seed}"));
    }
    let report = put(verb, &options)?;
    let written = verb.output.write(|out| write(out, verb.format, &report));
    for case in report.cases.iter().filter(|case| case.known_passed) {
        note!("{}: {}", case.name, case.detail);
    }
    let summary = &report.summary;
    if summary.known > 0 {
        note!("{} known defects of this runtime", summary.known);
    }
    note!("{summary}");
    written?;
    Ok(if summary.failed == 0 { Ending::Well } else { Ending::Failed })
}

fn write(out: &mut Screen<'_>, format: ReportFormat, report: &Report) -> anyhow::Result<()> {
    match format {
        ReportFormat::Table => print(out, report)?,
        ReportFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)?;
        }
        ReportFormat::Junit => writeln!(out, "{}", report.junit())?,
        ReportFormat::Html => writeln!(out, "{}", report.html()?)?,
    }
    Ok(())
}

fn options(verb: &Conform) -> anyhow::Result<Options> {
    let mut known = KnownFailures::default();
    verb.known.iter().for_each(|list| known.extend(list.clone()));
    // What the user says of a case goes before what is known here.
    known.extend(KnownFailures::built_in().clone());
    Ok(Options {
        filters: verb.filter.clone(),
        repeat: verb.repeat.get(),
        shuffle: verb.shuffle.map(|seed| seed.unwrap_or_else(draw)),
        fail_fast: verb.fail_fast,
        known,
        ..worker::options(&verb.common)?
    })
}

/// A seed short enough to be typed again.
fn draw() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(()) % 1_000_000
}

/// Puts the cases to the runtime, here or in another process.
fn put(verb: &Conform, options: &Options) -> Result<Report, anyhow::Error> {
    let bar = progress::bar(cases().len() as u64, "cases");
    let mut advance = |progress: hsa_vmm_conformance::Progress<'_>| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    };
    if verb.in_process {
        let runtime = verb.common.runtime.open()?;
        let report = run_cases(&runtime, options, &mut advance);
        bar.finish_and_clear();
        return Ok(report);
    }
    let mut command = || worker::command(&verb.common);
    let containment = Containment { command: &mut command, time_limit: verb.time_limit };
    let report: Result<_, NotRun> = contain::run(containment, options, &mut |event| match event {
        Event::Started(note) => bar.suspend(|| say(note)),
        Event::Case(progress) => advance(progress),
        // At once: if all of them hang, the end is far.
        Event::Lost { case, lost } => bar.suspend(|| say(&format!("{case}: {lost}"))),
        Event::Hangs { function, limit } => bar.suspend(|| {
            let limit = limit.as_secs_f64();
            let told = "cases have hung in it; whichever is in it after";
            say(&format!("{function}: {told} {limit} s is not waited for any more"));
        }),
    });
    bar.finish_and_clear();
    Ok(report?)
}

fn is_chosen(verb: &Conform, case: &Case) -> bool {
    verb.filter.is_empty() || verb.filter.iter().any(|filter| case.matches(filter))
}

fn list(verb: &Conform) -> anyhow::Result<Ending> {
    let chosen = || cases().into_iter().filter(|case| is_chosen(verb, case));
    verb.output.write(|out| match verb.format {
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
            let told = "--list prints a table, or JSON for programs; the others are for results";
            Arguments::command().error(ErrorKind::ArgumentConflict, told).exit()
        }
    })?;
    Ok(Ending::Well)
}

fn print(out: &mut Screen<'_>, report: &Report) -> anyhow::Result<()> {
    let mut results = table(&["case", "", "ms", "detail"]);
    for case in &report.cases {
        results.add_row([
            Cell::from(&case.name),
            crate::table::status(case.status),
            Cell::from(format!("{:.1}", case.duration_us as f64 / 1000.0)).right(),
            Cell::from(&case.detail),
        ]);
    }
    results.unbroken([0, 1, 2]);
    out.table(&results)?;
    let bold = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    for case in report.cases.iter().filter(|case| case.status == Status::Fail) {
        writeln!(out)?;
        out.styled(bold, &case.name)?;
        writeln!(out, " ({})\n  {}", case.source, case.detail)?;
        if !cases().iter().any(|known| known.name == case.name) {
            continue;
        }
        writeln!(out, "  again: hsa-vmm conform --filter {}", case.name)?;
        if case.lost.is_some() {
            let name = &case.name;
            writeln!(out, "  in gdb: gdb --args hsa-vmm conform --in-process --filter {name}")?;
        }
    }
    Ok(())
}
