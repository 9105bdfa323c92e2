//! Prints the results of `hsa-vmm conform` for people.

use crate::driver_log::driver_line_failed;
use crate::provenance;
use crate::screen::Screen;
use crate::table::{Cell, TextTable, status_cell, table};
use anstyle::{AnsiColor, Style};
use hsa_vmm_conformance::{CaseReport, Cause, Report, Status, cases};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The number of lines of the runtime's output that are shown for a cause, and of the driver's failures.
const OUTPUT_LINES: usize = 8;
/// The beginning of the detail of a case that was not tried.
const NOT_TRIED: &str = "not tried: ";
/// The number of cases of a cause that are named, besides the first.
const NAMES: usize = 8;

/// Prints a table of the cases, or only of those that failed, then each cause of failures once. Successive cases that
/// were not tried for the same reason are one line. `bringup` is the command to try next.
pub fn report(
    out: &mut Screen<'_>,
    report: &Report,
    failures_only: bool,
    bringup: &str,
) -> io::Result<()> {
    if let Some(provenance) = report.provenance() {
        provenance::banner(out, &provenance.planned_faults)?;
    }
    let causes = report.causes();
    let first_of: BTreeMap<&str, &str> = causes.iter().flat_map(others).collect();
    let mut results = table(&["case", "", "ms", "detail"]);
    let is_shown = |case: &&CaseReport| !failures_only || case.status == Status::Fail;
    let shown: Vec<_> = report.cases.iter().filter(is_shown).collect();
    for group in shown.chunk_by(|one, next| is_untried(one) && one.detail == next.detail) {
        if let [first, _, .., last] = group {
            let names = format!("{} … {}", first.name, last.name);
            let detail = format!("{} cases {}", group.len(), first.detail);
            let empty = Cell::from(String::new());
            results.add_row([
                Cell::from(names),
                status_cell(first.status),
                empty,
                Cell::from(detail),
            ]);
            continue;
        }
        for case in group {
            add_case(&mut results, case, &first_of);
        }
    }
    results.no_wrap([0, 1, 2]);
    out.table(&results)?;
    for cause in &causes {
        writeln!(out)?;
        show_cause(out, report, cause)?;
    }
    if report.cases.iter().any(|case| case.status == Status::Fail) {
        writeln!(out, "\nTo find the first HSA call and kernel interface that fail: {bringup}")?;
    }
    Ok(())
}

/// Returns whether a case was not tried because of others.
fn is_untried(case: &CaseReport) -> bool {
    case.status == Status::Skip && case.detail.starts_with(NOT_TRIED)
}

fn add_case(results: &mut TextTable, case: &CaseReport, first_of: &BTreeMap<&str, &str>) {
    let detail = match first_of.get(case.name.as_str()) {
        Some(first) => format!("same cause as {first}"),
        None => case.detail.lines().next().unwrap_or_default().to_owned(),
    };
    results.add_row([
        Cell::from(&case.name),
        status_cell(case.status),
        Cell::from(format!("{:.1}", case.duration_us as f64 / 1000.0)).right(),
        Cell::from(detail),
    ]);
}

/// Returns the other cases of a cause, each with the name of the first case.
fn others<'a>(cause: &Cause<'a>) -> Vec<(&'a str, &'a str)> {
    let Some((first, others)) = cause.cases.split_first() else { return Vec::new() };
    others.iter().map(|case| (case.name.as_str(), first.name.as_str())).collect()
}

fn show_cause(out: &mut Screen<'_>, report: &Report, cause: &Cause<'_>) -> io::Result<()> {
    let Some((first, others)) = cause.cases.split_first() else { return Ok(()) };
    let bold = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    if others.is_empty() {
        out.styled(bold, &first.name)?;
        writeln!(out, " ({})", first.source)?;
    } else {
        out.styled(bold, format_args!("{} cases: {}", cause.cases.len(), cause.description))?;
        writeln!(out, "\n  first: {} ({})", first.name, first.source)?;
    }
    writeln!(out, "  {}", first.detail)?;
    if let Some(output) = &first.output {
        print_output(out, output)?;
    }
    if !others.is_empty() {
        let names: Vec<_> = others.iter().take(NAMES).map(|case| case.name.as_str()).collect();
        let more = others.len().saturating_sub(NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(out, "  also: {}{more}", names.join(", "))?;
    }
    reproduce(out, report, first)
}

/// Prints the beginning of the runtime's output, and the driver's last failures.
fn print_output(out: &mut Screen<'_>, output: &str) -> io::Result<()> {
    let runtime_lines: Vec<_> =
        output.lines().filter(|line| driver_line_failed(line).is_none()).collect();
    let failures = output.lines().filter(|line| driver_line_failed(line) == Some(true));
    let failures: Vec<_> = failures.collect();
    let first_failure = failures.len().saturating_sub(OUTPUT_LINES);
    for line in runtime_lines.iter().take(OUTPUT_LINES).chain(&failures[first_failure..]) {
        writeln!(out, "{}", format!("    | {line}").trim_end())?;
    }
    let left_out = runtime_lines.len().saturating_sub(OUTPUT_LINES) + first_failure;
    match left_out {
        0 => Ok(()),
        _ => writeln!(out, "    | and {left_out} more lines; --format html and json have them"),
    }
}

/// Prints the command that repeats a case. Prints nothing for a case about the worker process, which `--filter`
/// cannot select.
fn reproduce(out: &mut Screen<'_>, report: &Report, case: &CaseReport) -> io::Result<()> {
    if !cases().iter().any(|other| other.name == case.name) {
        return Ok(());
    }
    let command = report.reproduce(case);
    writeln!(out, "  reproduce: {command}")?;
    if case.lost.is_some() {
        let in_process = command.replacen(" conform", " conform --in-process", 1);
        let has_variables = command.split(' ').next().is_some_and(|word| word.contains('='));
        let env = if has_variables { "env " } else { "" };
        writeln!(out, "  in gdb: gdb --args {env}{in_process}")?;
    }
    Ok(())
}
