//! `hsa-vmm map`: shows the address space at the end of a trace.

use crate::arguments::CommonOptions;
use crate::file_kind::FileKind;
use crate::output::Output;
use crate::screen::{Screen, note};
use crate::{BadUsage, Exit};
use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use hsa_vmm::Runtime;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm_conformance::fuzz::run_prefix;
use hsa_vmm_conformance::picture;
use hsa_vmm_conformance::replay::replay_prefix;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::io::Write;
use std::path::PathBuf;

/// A trace with all elements that a drawing can contain.
const EXAMPLE: &[u8] = include_bytes!("example.jsonl");

pub const EXAMPLES: &str = "\
Examples:
  hsa-vmm map                                  the example, as text
  hsa-vmm map --format svg -o map.svg          as a drawing, light and dark
  hsa-vmm map --trace 3 --until 40 FILE        the fourth trace, 40 operations
  hsa-vmm map --format json FILE | jq .memory  for programs

`r (can write)` means that a GPU was granted read access, and can write
nevertheless, because the runtime does not enforce permissions of GPUs.
Exit status: 1 if a verdict differs from the recorded one, or the sequence
fails; the output shows the state at that operation.";

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MapFormat {
    /// Text
    #[default]
    Table,
    /// JSON
    Json,
    /// An SVG drawing
    Svg,
}

#[derive(Args, Debug)]
pub struct Map {
    #[command(flatten)]
    pub common: CommonOptions,
    /// Traces, or sequences of `fuzz`, one JSON object a line, plain or gzip; without a file, shows an example
    ///
    /// `map` does not read the recordings of `record`. It ignores the planned faults in a sequence's simulation.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The number of the trace or sequence in the file, from 0
    ///
    /// The default is the first trace. In a file of sequences, the default is the last: `fuzz` saves a sequence that
    /// failed after the sequences that ran before it.
    #[arg(long, value_name = "N")]
    pub trace: Option<usize>,
    /// Perform only this number of operations
    #[arg(long, value_name = "OPERATIONS")]
    pub until: Option<usize>,
    /// The format of the output
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: MapFormat,
    #[command(flatten)]
    pub output: Output,
}

pub fn run(args: &Map) -> anyhow::Result<Exit> {
    // Check the files before starting a runtime.
    args.output.check_writable()?;
    let (index, recorded) = read_recorded(args)?;
    let total = match &recorded {
        Recorded::Trace(trace) => trace.ops.len(),
        Recorded::Sequence(sequence) => sequence.operations.len(),
    };
    let operations = args.until.unwrap_or(total);
    if operations > total {
        let message =
            format!("--until {operations} is more than the {total} operations of the trace");
        bail!(BadUsage(message));
    }
    let (name, vmm, performed, failure_note) = match recorded {
        Recorded::Trace(trace) => {
            let runtime = args.common.runtime.open()?;
            let replayed = replay_prefix(&runtime, index, &trace, operations)?;
            let failure_note = replayed.divergence.map(|divergence| {
                format!("the verdict differs from the recorded one: {divergence}")
            });
            (
                format!("trace {index} (seed {})", trace.seed),
                replayed.vmm,
                replayed.operations,
                failure_note,
            )
        }
        Recorded::Sequence(mut sequence) => {
            args.common.runtime.override_machine(&mut sequence);
            let config = sequence.config().map_err(|cause| BadUsage(cause.to_string()))?;
            let runtime = match config {
                Some(config) => start_without_faults(config)?,
                None => args.common.runtime.open()?,
            };
            let performed =
                run_prefix(&runtime, &sequence, operations).map_err(|found| anyhow!("{found}"))?;
            let failure_note =
                performed.failure.map(|failure| format!("the sequence failed: {failure}"));
            let name = format!("sequence {} (seed {})", sequence.number, sequence.seed);
            (name, performed.vmm, performed.operations, failure_note)
        }
    };
    note!("{name}, after {performed} of {total} operations");
    if args.trace.is_none() && index > 0 {
        note!("this is the last of {} sequences; --trace N draws another, from 0", index + 1);
    }
    let report = vmm.report();
    args.output.write(|out| write_report(out, args.format, &report))?;
    match failure_note {
        None => Ok(Exit::Success),
        Some(failure_note) => {
            note!("{failure_note}");
            Ok(Exit::Failure)
        }
    }
}

/// Starts the simulation of a sequence without its planned faults: a planned hang or crash would hang or end this
/// process.
fn start_without_faults(mut config: Config) -> anyhow::Result<Runtime> {
    let faults = std::mem::replace(&mut config.faults, FaultPlan::none());
    if faults != FaultPlan::none() {
        note!(
            "`map` ignores the planned faults of the sequence ({faults}); `hsa-vmm replay` uses them"
        );
    }
    Ok(Runtime::simulated(config)?)
}

/// Reads the chosen trace or sequence. Returns it with its number in the file. By default, chooses the first trace, or
/// the last sequence.
fn read_recorded(args: &Map) -> anyhow::Result<(usize, Recorded)> {
    if let Some(path) = &args.file
        && let Some(kind @ (FileKind::Bringup | FileKind::Recording | FileKind::Report)) =
            FileKind::of(path)
    {
        bail!(kind.not_read_by("map", path));
    }
    let (name, lines) = match &args.file {
        Some(path) => (path.display().to_string(), Reader::open(path)),
        None => ("the example".to_owned(), Reader::new(EXAMPLE)),
    };
    let lines =
        lines.map_err(|cause| BadUsage::with_context(format!("cannot read {name}"), cause))?;
    let mut lines = lines.with_sequences().enumerate();
    let chosen = match lines.nth(args.trace.unwrap_or(0)) {
        Some((0, Ok(first @ Recorded::Sequence(_)))) if args.trace.is_none() => {
            Some(lines.last().unwrap_or((0, Ok(first))))
        }
        chosen => chosen,
    };
    match chosen {
        Some((index, recorded)) => {
            let in_file = |cause| BadUsage::with_context(format!("in {name}"), cause);
            Ok((index, recorded.map_err(in_file)?))
        }
        None => {
            let number = args.trace.unwrap_or(0);
            let message = format!("{name} has no trace {number}; traces are counted from 0");
            bail!(BadUsage(message))
        }
    }
}

fn write_report(
    out: &mut Screen<'_>,
    format: MapFormat,
    report: &hsa_vmm::report::Report,
) -> anyhow::Result<()> {
    match format {
        MapFormat::Table => write!(out, "{report}")?,
        MapFormat::Svg => {
            out.keep_utf8();
            write!(out, "{}", picture::draw(report))?;
        }
        MapFormat::Json => {
            out.keep_utf8();
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)?;
        }
    }
    Ok(())
}
