//! `hsa-vmm diff`: compares two reports.

use crate::arguments::Format;
use crate::file_kind::FileKind;
use crate::output::Output;
use crate::screen::Screen;
use crate::table::{Cell, table};
use crate::{BadUsage, Exit};
use anstyle::Style;
use clap::Args;
use hsa_vmm_conformance::Report;
use hsa_vmm_conformance::diff::{CaseChange, CaseChangeKind, Change, Diff, ReportedResult};
use std::io::Write;
use std::path::{Path, PathBuf};

pub const ABOUT: &str = "\
Examples:
  hsa-vmm conform --format json -o before.json  save today's report
  hsa-vmm diff before.json after.json           compare it with a later one
  hsa-vmm diff --format json A.json B.json |
    jq '.diff.cases[] | select(.kind == \"fails_now\")'

A time that is 3 times as long as the other and 0.1 s longer is reported, but
does not count as a difference.
Exit status: 1 if a case fails in B and not in A (with --exit-code: if anything
differs), 2 if a file cannot be read.";

#[derive(Args, Debug)]
pub struct Arguments {
    /// The first report: JSON of `conform` or `info`
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The second report
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Exit with 1 if anything differs
    #[arg(long)]
    exit_code: bool,
    /// The format of the differences
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: Format,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: &Arguments) -> anyhow::Result<Exit> {
    let read = |file: &PathBuf| {
        Report::read(file).map_err(|cause| match FileKind::of(file) {
            None | Some(FileKind::Report) => BadUsage(crate::error_message(&cause.into())),
            Some(kind) => kind.not_read_by("diff", file),
        })
    };
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let diff = Diff::of(&a, &b);
    let new_failures = diff.new_failures().count();
    args.output.write(|out| match args.format {
        Format::Table => print_table(out, &diff, [(&args.a, &a), (&args.b, &b)]),
        Format::Json => {
            out.keep_utf8();
            let value = serde_json::json!({
                "differs": diff.differs(),
                "worse": new_failures,
                "words": diff.sentences(),
                "times": diff.timings.sentences(),
                "diff": diff,
            });
            serde_json::to_writer_pretty(&mut *out, &value)?;
            Ok(writeln!(out)?)
        }
    })?;
    let failed = new_failures > 0 || (args.exit_code && diff.differs());
    Ok(if failed { Exit::Failure } else { Exit::Success })
}

fn print_table(
    out: &mut Screen<'_>,
    diff: &Diff,
    reports: [(&PathBuf, &Report); 2],
) -> anyhow::Result<()> {
    let bold = Style::new().bold();
    for ((path, report), name) in reports.into_iter().zip(["A", "B"]) {
        out.write_styled(bold, name)?;
        writeln!(out, "  {}", describe(path, report))?;
    }
    writeln!(out)?;
    for sentence in diff.sentences().iter().chain(&diff.timings.sentences()) {
        writeln!(out, "{sentence}")?;
    }
    let rows = difference_rows(diff);
    if !rows.is_empty() {
        let mut differences = table(&["", "A", "B"]);
        rows.into_iter().for_each(|row| differences.add_row(row));
        writeln!(out)?;
        out.write_table(&differences)?;
    }
    if !diff.cases.is_empty() {
        let mut cases = table(&["case", "A", "B", "detail"]);
        for case in &diff.cases {
            cases.add_row([
                Cell::from(&case.name),
                status_of(case.a.as_ref()),
                status_of(case.b.as_ref()),
                Cell::from(detail(case)),
            ]);
        }
        writeln!(out)?;
        out.write_table(&cases)?;
    }
    Ok(())
}

/// Describes a report:
/// `before.json: libhsa-runtime64.so.1.15.0, extension 1.7, kernel driver amdkfd; 9 agents, 281 cases`
fn describe(path: &Path, report: &Report) -> String {
    let runtime = &report.runtime;
    let driver = runtime.driver.map(|driver| format!(", kernel driver {driver}"));
    let (agents, cases) = (report.agents.len(), report.cases.len());
    let plural = |number| if number == 1 { "" } else { "s" };
    format!(
        "{}: {}, extension {}{}; {agents} agent{}, {cases} case{}",
        path.display(),
        runtime.name,
        runtime.extension,
        driver.unwrap_or_default(),
        plural(agents),
        plural(cases),
    )
}

/// Returns a row for each difference, except for differences of cases.
fn difference_rows(diff: &Diff) -> Vec<[String; 3]> {
    let row = |property: String, change: &Change| {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
        [property, value(&change.a), value(&change.b)]
    };
    let runtime_rows = diff.run.iter().chain(&diff.runtime);
    let runtime_rows = runtime_rows.map(|change| row(change.what.clone(), change));
    let agent_rows = diff.agents.iter().map(|agents| {
        row(format!("{}: {}", agents.agents.join(", "), agents.change.what), &agents.change)
    });
    let member = |relation: &str, name: &str, [a, b]: [&str; 2]| {
        [format!("{relation} {name}"), a.to_owned(), b.to_owned()]
    };
    let (only_a, only_b) = (["yes", "no"], ["no", "yes"]);
    let functions = diff.functions.a.iter().map(|name| member("exports", name, only_a));
    let functions =
        functions.chain(diff.functions.b.iter().map(|name| member("exports", name, only_b)));
    let quirks = diff.quirks.a.iter().map(|quirk| member("needs", &quirk.name, only_a));
    let quirks =
        quirks.chain(diff.quirks.b.iter().map(|quirk| member("needs", &quirk.name, only_b)));
    runtime_rows.chain(functions).chain(quirks).chain(agent_rows).collect()
}

/// Returns the detail of the result in B. For cases that pass or are missing in B, returns the detail in A.
fn detail(case: &CaseChange) -> &str {
    let result = match case.kind {
        CaseChangeKind::PassesNow | CaseChangeKind::OnlyA => &case.a,
        _ => &case.b,
    };
    result.as_ref().map(|result| result.detail.as_str()).unwrap_or_default()
}

fn status_of(result: Option<&ReportedResult>) -> Cell {
    result.map_or_else(|| Cell::from("–"), |result| crate::table::status_cell(result.status))
}
