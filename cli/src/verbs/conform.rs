//! `hsa-vmm conform`: the named cases.

use super::table;
use crate::arguments::{Conform, ReportFormat};
use crate::{Ending, progress};
use anstyle::{AnsiColor, Style};
use anyhow::bail;
use comfy_table::{Attribute, Cell, Color};
use hsa_vmm_conformance::{CaseReport, Options, Report, Status, cases, run as run_cases};
use std::io::Write;

pub fn run(verb: &Conform) -> anyhow::Result<Ending> {
    if verb.list {
        return list(verb);
    }
    let runtime = verb.common.open()?;
    let mut options = Options::default();
    options.filter.clone_from(&verb.filter);
    options.profile = verb.common.profile;
    let bar = progress::bar(cases().len() as u64, "cases");
    let report = run_cases(&runtime, &options, &mut |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    if report.cases.is_empty() {
        let filter = verb.filter.as_deref().unwrap_or_default();
        bail!("no case matches `{filter}`; `hsa-vmm conform --list` names them all");
    }
    let mut out = anstream::stdout().lock();
    match verb.format {
        ReportFormat::Table => print(&mut out, &report)?,
        ReportFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        ReportFormat::Junit => writeln!(out, "{}", report.junit())?,
    }
    out.flush()?;
    let summary = &report.summary;
    let note = if summary.known == 0 {
        String::new()
    } else {
        format!("{} known defects of this runtime\n", summary.known)
    };
    anstream::eprintln!(
        "{note}{} passed, {} failed, {} skipped",
        summary.passed,
        summary.failed,
        summary.skipped
    );
    Ok(if summary.failed == 0 { Ending::Well } else { Ending::Failed })
}

fn list(verb: &Conform) -> anyhow::Result<Ending> {
    let mut names = table(&["case", "what", "source"]);
    for case in cases() {
        if verb.filter.as_deref().is_none_or(|filter| case.matches(filter)) {
            names.add_row(vec![case.name, case.about, case.source]);
        }
    }
    writeln!(anstream::stdout().lock(), "{names}")?;
    Ok(Ending::Well)
}

fn print(out: &mut impl Write, report: &Report) -> anyhow::Result<()> {
    let mut results = table(&["case", "", "ms", "detail"]);
    for case in &report.cases {
        results.add_row(vec![
            Cell::new(&case.name),
            status(case),
            Cell::new(format!("{:.1}", case.duration_us as f64 / 1000.0))
                .set_alignment(comfy_table::CellAlignment::Right),
            Cell::new(&case.detail),
        ]);
    }
    writeln!(out, "{results}")?;
    let bold = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    for case in report.cases.iter().filter(|case| case.status == Status::Fail) {
        writeln!(out, "\n{bold}{}{bold:#} ({})\n  {}", case.name, case.source, case.detail)?;
        writeln!(out, "  again: hsa-vmm conform --filter {}", case.name)?;
    }
    Ok(())
}

fn status(case: &CaseReport) -> Cell {
    let (word, color) = match case.status {
        Status::Pass => ("pass", Color::Green),
        Status::Fail => ("FAIL", Color::Red),
        Status::Skip => ("skip", Color::Yellow),
        Status::Known => ("known", Color::Yellow),
    };
    let cell = Cell::new(word).fg(color);
    if case.status == Status::Fail { cell.add_attribute(Attribute::Bold) } else { cell }
}
