//! `hsa-vmm replay`: recorded traces, verdict by verdict.

mod again;

use crate::arguments::{Common, Format};
use crate::screen::Screen;
use crate::table::table;
use crate::{Ending, progress};
use anyhow::{Context, bail};
use clap::Args;
use hsa_vmm_conformance::replay::replay;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::io::Write;
use std::path::PathBuf;

/// So many are read at once: a small compressed file may have millions.
const MOST_SEQUENCES: usize = 100_000;

#[derive(Args, Debug)]
pub struct Replay {
    #[command(flatten)]
    pub common: Common,
    /// The traces, or sequences of `fuzz`: one JSON object a line, plain or gzip
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// End well with up to this many divergent operations
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub tolerate: u64,
    /// How to print the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}

pub fn run(verb: &Replay) -> anyhow::Result<Ending> {
    // A file that cannot be read is told before a runtime is started.
    let file = || verb.file.display();
    let recorded = Reader::open(&verb.file).with_context(|| format!("cannot read {}", file()))?;
    let mut recorded = recorded.with_sequences().peekable();
    if let Some(Ok(Recorded::Sequence(_))) = recorded.peek() {
        let sequences = recorded.enumerate().map(|(number, item)| match item? {
            _ if number >= MOST_SEQUENCES => bail!(
                "there are more than {MOST_SEQUENCES} sequences, which are performed in one process; \
                 put them into several files"
            ),
            Recorded::Sequence(sequence) => Ok(sequence),
            Recorded::Trace(_) => bail!("a trace among sequences; each needs a file of its own"),
        });
        let sequences: anyhow::Result<Vec<_>> = sequences.collect();
        return again::run(verb, sequences.with_context(|| format!("in {}", file()))?);
    }
    let mut others = 0;
    let traces = recorded.filter_map(|item| match item {
        Ok(Recorded::Trace(trace)) => Some(Ok(trace)),
        Ok(Recorded::Sequence(_)) => {
            others += 1;
            None
        }
        Err(error) => Some(Err(error)),
    });
    let runtime = verb.common.runtime.open()?;
    let bar = progress::bar(0, "traces");
    let report = replay(&runtime, traces, &mut |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let report = report.with_context(|| format!("in {}", file()))?;
    if others > 0 {
        bail!("in {}: {others} sequences among traces; they need a file of their own", file());
    }
    let mut out = Screen::stdout();
    match verb.format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        Format::Table => {
            let mut counts = table(&["verdicts", "operations"]);
            counts.add_row(vec!["agreed".to_owned(), report.agreed.to_string()]);
            for (rule, count) in &report.excused {
                counts.add_row(vec![format!("excused: {rule}"), count.to_string()]);
            }
            counts.add_row(vec!["divergent".to_owned(), report.divergent.to_string()]);
            counts.add_row(vec!["all".to_owned(), report.operations.to_string()]);
            if report.not_compared > 0 {
                let count = report.not_compared.to_string();
                counts.add_row(vec!["not compared: after a divergence".to_owned(), count]);
            }
            out.table(&counts)?;
            if let Some(first) = &report.first {
                writeln!(out, "\nfirst divergence: {first}")?;
            }
        }
    }
    Ok(if report.divergent <= verb.tolerate { Ending::Well } else { Ending::Failed })
}
