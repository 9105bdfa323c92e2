//! Prints the results of `hsa-vmm conform` for people.

use super::background_output::BackgroundOutput;
use crate::driver_log::{DRIVER_PREFIX, KERNEL_PREFIX, driver_line_failed};
use crate::program::with_tool;
use crate::provenance;
use crate::screen::Screen;
use crate::table::{Cell, TextTable, status_cell, table};
use anstyle::{AnsiColor, Style};
use hsa_vmm_conformance::{
    CaseReport, Cause, Ended, Lost, Provenance, Report, Status, Summary, cases,
};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The maximum number of lines of the runtime's output, and of the driver's failures, that are shown for a cause.
const OUTPUT_LINES: usize = 8;
/// The beginning of the detail of a case that was not tried.
const NOT_TRIED: &str = "not tried: ";
/// The maximum number of cases of a cause that are named after the first.
const NAMES: usize = 8;

/// Prints a table of all cases or, with `failures_only`, of the failed cases. Then prints each cause of failures once.
/// Three or more successive cases that were not tried for the same reason share one line. `background` contains what
/// was logged during cases that passed.
pub fn print_report(
    out: &mut Screen<'_>,
    report: &Report,
    background: &BackgroundOutput,
    failures_only: bool,
) -> io::Result<()> {
    if let Some(provenance) = report.provenance() {
        provenance::print_banner(out, &provenance.planned_faults)?;
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
    out.write_table(&results)?;
    print_causes(out, report, background)
}

/// Returns the lines at the end of the table: the known failures that passed, the number of known defects, the reason
/// for an early end, and the counts by status. Does not count cases that were not tried as skipped.
pub fn closing_lines(
    report: &Report,
    hangs: Option<usize>,
    is_interrupted: bool,
    is_resumable: bool,
) -> Vec<String> {
    let resume = if is_resumable { "--resume" } else { "with --output, --resume" };
    let known_passed = report.cases.iter().filter(|case| case.known_passed);
    let mut lines: Vec<_> =
        known_passed.map(|case| format!("{}: {}", case.name, case.detail)).collect();
    let summary = &report.summary;
    if summary.known > 0 {
        let plural = if summary.known == 1 { "" } else { "s" };
        lines.push(format!("{} known defect{plural} of this runtime", summary.known));
    }
    if is_interrupted {
        lines.push(format!("interrupted; {resume} continues the run"));
    } else if let Some(hangs) = hangs {
        lines.push(format!(
            "stopped after {hangs} consecutive cases hung, the remaining cases were not run; {resume} \
             continues after these cases; --filter selects others"
        ));
    }
    let untried = report.cases.iter().filter(|case| is_untried(case)).count();
    let tried = Summary { skipped: summary.skipped.saturating_sub(untried), ..*summary };
    let untried = (untried > 0).then(|| format!(", {untried} not tried"));
    lines.push(format!("{tried}{}", untried.unwrap_or_default()));
    lines
}

/// Prints each cause of failures once, and the command to try next, if that command can find a cause.
pub fn print_causes(
    out: &mut Screen<'_>,
    report: &Report,
    background: &BackgroundOutput,
) -> io::Result<()> {
    for cause in &report.causes() {
        writeln!(out)?;
        show_cause(out, report, background, cause)?;
    }
    if let Some(bringup) = &report.bringup {
        let is_numbered = report.provenance().is_some_and(Provenance::has_numbered_faults);
        let note = match is_numbered {
            true => " (bringup counts the calls for the planned faults again from 1)",
            false => "",
        };
        writeln!(
            out,
            "\nTo find the first HSA call and kernel interface that fail{note}: {bringup}"
        )?;
    }
    Ok(())
}

/// Returns whether a case was not tried, because the run stopped early.
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
        Cell::from(format!("{:.1}", case.duration_us as f64 / 1000.0)).align_right(),
        Cell::from(detail),
    ]);
}

/// Returns the other cases of a cause, each with the name of the first case.
fn others<'a>(cause: &Cause<'a>) -> Vec<(&'a str, &'a str)> {
    let Some((first, others)) = cause.cases.split_first() else { return Vec::new() };
    others.iter().map(|case| (case.name.as_str(), first.name.as_str())).collect()
}

/// Prints a cause: the failure of the first case, then its context, each with a title.
fn show_cause(
    out: &mut Screen<'_>,
    report: &Report,
    background: &BackgroundOutput,
    cause: &Cause<'_>,
) -> io::Result<()> {
    let Some((first, others)) = cause.cases.split_first() else { return Ok(()) };
    let bold_red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let mut detail = first.detail.as_str();
    if others.is_empty() {
        out.write_styled(bold_red, &first.name)?;
    } else {
        out.write_styled(
            bold_red,
            format_args!("{} cases: {}", cause.cases.len(), cause.description),
        )?;
        write!(out, "\n  first: {}", first.name)?;
        // The description is often the detail, or its first line.
        let rest = detail.strip_prefix(cause.description.as_str());
        let rest = rest.and_then(|rest| match rest.strip_prefix(": ") {
            None => Some(rest).filter(|rest| rest.is_empty() || rest.starts_with('\n')),
            after_colon => after_colon,
        });
        detail = rest.unwrap_or(detail);
    }
    match detail.strip_prefix('\n') {
        Some(lines) => writeln!(out, "\n{lines}")?,
        None if detail.is_empty() => writeln!(out)?,
        None => writeln!(out, "\n  {detail}")?,
    }
    if matches!(first.lost, Some(Lost { how: Ended::TimeLimit(_), .. })) {
        writeln!(out, "  if the machine is slow, extend the limit: --time-limit 10min")?;
    }
    print_output(out, first, background)?;
    writeln!(out, "  expected by: {}", first.source)?;
    if !others.is_empty() {
        let names: Vec<_> = others.iter().take(NAMES).map(|case| case.name.as_str()).collect();
        let more = others.len().saturating_sub(NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(out, "  also: {}{more}", names.join(", "))?;
    }
    reproduce(out, report, first)
}

/// Prints the driver's failures and the beginning of the runtime's output during the case that failed. Then prints the
/// short forms of lines that were also logged during cases that passed.
fn print_output(
    out: &mut Screen<'_>,
    case: &CaseReport,
    background: &BackgroundOutput,
) -> io::Result<()> {
    let (lines, short_forms) = background.split(case.output.as_deref().unwrap_or_default());
    let failures: Vec<_> =
        case.failed_requests.iter().map(|line| format!("{DRIVER_PREFIX}{line}")).collect();
    let others = lines.into_iter().filter(|line| driver_line_failed(line).is_none());
    // The worker runs one case at a time. The kernel also logs messages about other processes.
    let (logged, printed): (Vec<_>, Vec<_>) =
        others.map(str::to_owned).partition(|line| line.starts_with(KERNEL_PREFIX));
    let titled = [
        ("requests that failed during the case:", failures),
        ("printed during the case:", printed),
        ("logged by the kernel during the case, perhaps unrelated:", logged),
    ];
    let mut left_out = 0;
    for (title, lines) in titled.iter().filter(|(_, lines)| !lines.is_empty()) {
        writeln!(out, "  {title}")?;
        for line in lines.iter().take(OUTPUT_LINES) {
            writeln!(out, "{}", format!("    | {line}").trim_end())?;
        }
        left_out += lines.len().saturating_sub(OUTPUT_LINES);
    }
    if left_out > 0 {
        writeln!(out, "    | and {left_out} more lines; --format html and json have them")?;
    }
    if !short_forms.is_empty() {
        let short_forms: Vec<_> = short_forms.into_iter().collect();
        writeln!(out, "  logged in cases that pass, too: {}", short_forms.join("; "))?;
    }
    Ok(())
}

/// Returns the command that runs a case in gdb. gdb's command `sharedlibrary` reads the symbols of libraries that the
/// loader of a fetched release has loaded. In the virtual machine, gdb runs in batch mode, because programs there
/// cannot read input.
fn in_gdb(command: &str) -> String {
    let in_process = without_time_limit(command).replacen(" conform", " conform --in-process", 1);
    let gdb = if command.contains(" vm ") {
        "gdb -batch -ex run -ex sharedlibrary -ex bt --args"
    } else if command.contains(" emulate ") {
        "gdb -ex run -ex sharedlibrary -ex bt --args"
    } else {
        "gdb --args"
    };
    with_tool(gdb, &in_process)
}

/// Removes `--time-limit` and its value, because `--in-process` has no time limit.
fn without_time_limit(command: &str) -> String {
    match command.rsplit_once(" --time-limit ") {
        Some((start, rest)) => format!("{start} {}", rest.split_once(' ').map_or("", |it| it.1)),
        None => command.to_owned(),
    }
}

/// Prints the command that repeats a case. Prints nothing for a case about the worker process, because `--filter`
/// cannot select such a case.
fn reproduce(out: &mut Screen<'_>, report: &Report, case: &CaseReport) -> io::Result<()> {
    if !cases().iter().any(|other| other.name == case.name) {
        return Ok(());
    }
    let command = report.reproduce(case);
    writeln!(out, "  reproduce: {command}")?;
    if case.lost.is_some() {
        writeln!(out, "  in gdb: {}", in_gdb(&command))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernel_lines_are_perhaps_unrelated() {
        let mut text = Vec::new();
        let output = "Memory access fault by GPU\nkernel: eth0: link down\n";
        let case = CaseReport {
            output: Some(output.to_owned()),
            ..CaseReport::new("a", "", Status::Fail)
        };
        print_output(&mut Screen::plain(&mut text), &case, &BackgroundOutput::default()).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "  printed during the case:\n    | Memory access fault by GPU\n  \
             logged by the kernel during the case, perhaps unrelated:\n    | kernel: eth0: link down\n"
        );
    }

    #[test]
    fn gdb_runs_where_the_case_runs() {
        for (command, expected) in [
            ("hsa-vmm conform --filter a", "gdb --args hsa-vmm conform --in-process --filter a"),
            (
                "hsa-vmm conform --time-limit 5s --filter a",
                "gdb --args hsa-vmm conform --in-process --filter a",
            ),
            ("A=1 hsa-vmm conform", "gdb --args env A=1 hsa-vmm conform --in-process"),
            (
                "hsa-vmm emulate --gpus 2 -- hsa-vmm conform",
                "hsa-vmm emulate --gpus 2 -- gdb -ex run -ex sharedlibrary -ex bt --args hsa-vmm conform --in-process",
            ),
            (
                "A=1 hsa-vmm vm --gpus 2 -- hsa-vmm conform",
                "A=1 hsa-vmm vm --gpus 2 -- gdb -batch -ex run -ex sharedlibrary -ex bt --args hsa-vmm conform --in-process",
            ),
        ] {
            assert_eq!(in_gdb(command), expected);
        }
    }
}
