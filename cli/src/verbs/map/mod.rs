//! `hsa-vmm map`: the address space that a trace leaves.

use crate::Ending;
use crate::arguments::Common;
use crate::output::Output;
use crate::screen::{Screen, note};
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use hsa_vmm_conformance::fuzz::perform_beginning;
use hsa_vmm_conformance::picture;
use hsa_vmm_conformance::replay::replay_beginning;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::io::Write;
use std::path::PathBuf;

/// A trace in which everything occurs that a picture can show.
const EXAMPLE: &[u8] = include_bytes!("example.jsonl");

pub const EXAMPLES: &str = "\
Examples:
  hsa-vmm map                                  the example, as text
  hsa-vmm map --format svg -o map.svg          as a picture, light and dark
  hsa-vmm map --trace 3 --until 40 FILE        the fourth trace, 40 operations
  hsa-vmm map --format json FILE | jq .memory  for programs

In the text, `r (can write)` and `none (can read and write)` are GPUs: what they
are forbidden is only remembered.
Exit status 1: a verdict was not the recorded one; shown is what there was then.";

/// How an address space is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MapFormat {
    /// Text
    #[default]
    Table,
    /// JSON
    Json,
    /// A picture
    Svg,
}

#[derive(Args, Debug)]
pub struct Map {
    #[command(flatten)]
    pub common: Common,
    /// The traces: one JSON object a line, plain or gzip; without one, an example
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Which trace of the file, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub trace: usize,
    /// Perform only the first operations
    #[arg(long, value_name = "OPERATIONS")]
    pub until: Option<usize>,
    /// How to show it
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: MapFormat,
    #[command(flatten)]
    pub output: Output,
}

pub fn run(verb: &Map) -> anyhow::Result<Ending> {
    // What cannot be read is told before a runtime is started.
    let recorded = recorded(verb)?;
    let all = match &recorded {
        Recorded::Trace(trace) => trace.ops.len(),
        Recorded::Sequence(sequence) => sequence.operations.len(),
    };
    let operations = verb.until.unwrap_or(all);
    if operations > all {
        bail!("there are {all} operations; --until says {operations}");
    }
    let (what, vmm, performed, otherwise) = match recorded {
        Recorded::Trace(trace) => {
            let runtime = verb.common.runtime.open()?;
            let it = replay_beginning(&runtime, verb.trace, &trace, operations)?;
            let otherwise = it
                .divergence
                .map(|divergence| format!("the recorded runtime went on otherwise: {divergence}"));
            (
                format!("trace {} (seed {})", verb.trace, trace.seed),
                it.vmm,
                it.operations,
                otherwise,
            )
        }
        Recorded::Sequence(mut sequence) => {
            verb.common.runtime.choose_for(&mut sequence);
            let runtime = match sequence.simulation()? {
                Some(simulation) => simulation,
                None => verb.common.runtime.open()?,
            };
            let it = perform_beginning(&runtime, &sequence, operations)
                .map_err(|found| anyhow!("{found}"))?;
            let otherwise = it.found.map(|found| format!("it went otherwise: {found}"));
            let what = format!("sequence {} (seed {})", sequence.number, sequence.seed);
            (what, it.vmm, it.operations, otherwise)
        }
    };
    note!("{what}, after {performed} of {all} operations");
    let report = vmm.report();
    verb.output.write(|out| write(out, verb.format, &report))?;
    match otherwise {
        None => Ok(Ending::Well),
        Some(otherwise) => {
            note!("{otherwise}");
            Ok(Ending::Failed)
        }
    }
}

fn recorded(verb: &Map) -> anyhow::Result<Recorded> {
    let (name, lines) = match &verb.file {
        Some(path) => (path.display().to_string(), Reader::open(path)),
        None => ("the example".to_owned(), Reader::new(EXAMPLE)),
    };
    let lines = lines.with_context(|| format!("cannot read {name}"))?;
    match lines.with_sequences().nth(verb.trace) {
        Some(recorded) => recorded.with_context(|| format!("in {name}")),
        None => bail!("{name} has no trace {}; they are counted from 0", verb.trace),
    }
}

fn write(
    out: &mut Screen<'_>,
    format: MapFormat,
    report: &hsa_vmm::report::Report,
) -> anyhow::Result<()> {
    match format {
        MapFormat::Table => write!(out, "{report}")?,
        MapFormat::Svg => write!(out, "{}", picture::draw(report))?,
        MapFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)?;
        }
    }
    Ok(())
}
