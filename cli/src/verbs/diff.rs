//! `hsa-vmm diff`: two reports held against each other.

use crate::Ending;
use crate::arguments::Format;
use crate::output::Output;
use crate::screen::Screen;
use crate::table::{Cell, table};
use anstyle::Style;
use clap::Args;
use hsa_vmm_conformance::Report;
use hsa_vmm_conformance::diff::{CaseChange, CaseKind, Change, Diff, Outcome};
use std::io::Write;
use std::path::{Path, PathBuf};

pub const ABOUT: &str = "\
Examples:
  hsa-vmm conform --format json -o before.json  what today's runtime answers
  hsa-vmm diff before.json after.json           what has become of it
  hsa-vmm diff --format json A.json B.json |
    jq '.cases[] | select(.kind == \"fails_now\")'

What differs in time is told where it is 3 times as long and 0.1 s longer, and
is no difference.
Exit status: 1 if a case fails in B that does not fail in A (with --exit-code:
if anything differs), or if a file cannot be read.";

#[derive(Args, Debug)]
pub struct Arguments {
    /// The report to compare with: JSON of `conform` or of `info`
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The report that is compared with it
    #[arg(value_name = "B")]
    b: PathBuf,
    /// End with 1 if anything differs at all
    #[arg(long)]
    exit_code: bool,
    /// How to print what differs
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: Format,
    #[command(flatten)]
    output: Output,
}

pub fn run(verb: &Arguments) -> anyhow::Result<Ending> {
    let (a, b) = (Report::read(&verb.a)?, Report::read(&verb.b)?);
    let diff = Diff::of(&a, &b);
    let worse = diff.worse().count();
    verb.output.write(|out| match verb.format {
        Format::Table => print(out, &diff, [(&verb.a, &a), (&verb.b, &b)]),
        Format::Json => {
            let value = serde_json::json!({
                "differs": diff.differs(),
                "worse": worse,
                "words": diff.words(),
                "times": diff.timings.words(),
                "diff": diff,
            });
            serde_json::to_writer_pretty(&mut *out, &value)?;
            Ok(writeln!(out)?)
        }
    })?;
    let failed = worse > 0 || (verb.exit_code && diff.differs());
    Ok(if failed { Ending::Failed } else { Ending::Well })
}

fn print(out: &mut Screen<'_>, diff: &Diff, sides: [(&PathBuf, &Report); 2]) -> anyhow::Result<()> {
    let bold = Style::new().bold();
    for ((path, report), name) in sides.into_iter().zip(["A", "B"]) {
        out.styled(bold, name)?;
        writeln!(out, "  {}", head(path, report))?;
    }
    writeln!(out)?;
    for sentence in diff.words().iter().chain(&diff.timings.words()) {
        writeln!(out, "{sentence}")?;
    }
    let rows = rows(diff);
    if !rows.is_empty() {
        let mut differs = table(&["", "A", "B"]);
        rows.into_iter().for_each(|row| differs.add_row(row));
        writeln!(out)?;
        out.table(&differs)?;
    }
    if !diff.cases.is_empty() {
        let mut cases = table(&["case", "A", "B", "detail"]);
        for case in &diff.cases {
            cases.add_row([
                Cell::from(&case.name),
                status(case.a.as_ref()),
                status(case.b.as_ref()),
                Cell::from(detail(case)),
            ]);
        }
        writeln!(out)?;
        out.table(&cases)?;
    }
    Ok(())
}

/// `before.json: libhsa-runtime64.so.1.15.0, extension 1.7, kernel driver amdkfd; 9 agents, 281 cases`
fn head(path: &Path, report: &Report) -> String {
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

/// What differs besides the cases, a line each.
fn rows(diff: &Diff) -> Vec<[String; 3]> {
    let row = |what: String, change: &Change| {
        let told = |side: &Option<String>| side.clone().unwrap_or_else(|| "–".to_owned());
        [what, told(&change.a), told(&change.b)]
    };
    let of_runtime = diff.run.iter().chain(&diff.runtime);
    let of_runtime = of_runtime.map(|change| row(change.what.clone(), change));
    let of_agents = diff
        .agents
        .iter()
        .map(|it| row(format!("{}: {}", it.agents.join(", "), it.change.what), &it.change));
    let member = |what: &str, name: &str, [a, b]: [&str; 2]| {
        [format!("{what} {name}"), a.to_owned(), b.to_owned()]
    };
    let (yes, no) = (["yes", "no"], ["no", "yes"]);
    let functions = diff.functions.a.iter().map(|name| member("exports", name, yes));
    let functions = functions.chain(diff.functions.b.iter().map(|it| member("exports", it, no)));
    let quirks = diff.quirks.a.iter().map(|it| member("needs", &it.name, yes));
    let quirks = quirks.chain(diff.quirks.b.iter().map(|it| member("needs", &it.name, no)));
    of_runtime.chain(functions).chain(quirks).chain(of_agents).collect()
}

/// What A said, where B says nothing more.
fn detail(case: &CaseChange) -> &str {
    let side = match case.kind {
        CaseKind::PassesNow | CaseKind::OnlyA => &case.a,
        _ => &case.b,
    };
    side.as_ref().map(|outcome| outcome.detail.as_str()).unwrap_or_default()
}

fn status(outcome: Option<&Outcome>) -> Cell {
    outcome.map_or_else(|| Cell::from("–"), |outcome| crate::table::status(outcome.status))
}
