//! `hsa-vmm replay`: replays recorded traces and compares the verdicts. Also repeats recorded calls and sequences.

mod calls;
mod sequences;

use crate::arguments::{CommonOptions, Format};
use crate::output::{self, Output};
use crate::table::table;
use crate::{BadUsage, Exit, progress};
use anyhow::bail;
use clap::Args;
use hsa_vmm_conformance::hsa_trace;
use hsa_vmm_conformance::replay::replay;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::io::Write;
use std::path::PathBuf;

/// The maximum number of sequences in a file. A small compressed file can contain millions.
const MAX_SEQUENCES: usize = 100_000;

pub const EXAMPLES: &str = "\
Examples:
  hsa-vmm replay traces.jsonl.gz
  hsa-vmm replay --runtime sim --gpus 2 hsa-calls.jsonl
  hsa-vmm emulate --gpus 2 --rocr 7.2 -- hsa-vmm replay hsa-calls.jsonl
  hsa-vmm replay hsa-calls.jsonl --program again.c";

#[derive(Args, Debug)]
pub struct Replay {
    #[command(flatten)]
    pub common: CommonOptions,
    /// Traces, sequences of `fuzz`, or a recording of `record`: one JSON object a line, plain or gzip
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Exit with 0 if at most this number of operations diverge (traces and recordings)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub tolerate: u64,
    /// Write the calls of a recording of `record` as a C program that needs no headers of ROCm
    #[arg(long, value_name = "FILE.c", conflicts_with_all = ["tolerate", "format", "output"])]
    pub program: Option<PathBuf>,
    /// The format of the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    #[command(flatten)]
    pub output: Output,
}

pub fn run(args: &Replay) -> anyhow::Result<Exit> {
    // Check the files before starting a runtime.
    args.output.check_writable()?;
    args.program.as_deref().map_or(Ok(()), output::check_writable)?;
    let file = || args.file.display();
    // A pipe can be read only once, but the first line decides how the file is read.
    if output::is_special(&args.file) {
        let message = format!("{} is a pipe or a device; `replay` reads only files", file());
        return Err(BadUsage(message).into());
    }
    if hsa_trace::Recording::is_recording(&args.file) {
        return calls::run(args);
    }
    if args.program.is_some() {
        let message = "--program needs a recording of `hsa-vmm record`".to_owned();
        return Err(BadUsage(message).into());
    }
    let recorded =
        Reader::open(&args.file).map_err(|cause| BadUsage::cannot_read(&args.file, cause))?;
    let mut recorded = recorded.with_sequences().peekable();
    if recorded.peek().is_none() {
        bail!(BadUsage(format!("{} is empty: it contains no trace and no sequence", file())));
    }
    if let Some(Ok(Recorded::Sequence(_))) = recorded.peek() {
        let sequences = recorded.enumerate().map(|(number, item)| match item? {
            _ if number >= MAX_SEQUENCES => bail!(
                "there are more than {MAX_SEQUENCES} sequences, the maximum for one process; split the \
                 file"
            ),
            Recorded::Sequence(sequence) => Ok(sequence),
            Recorded::Trace(_) => bail!("the file contains sequences and a trace; split the file"),
        });
        let sequences: anyhow::Result<Vec<_>> = sequences.collect();
        let sequences =
            sequences.map_err(|cause| BadUsage::with_context(format!("in {}", file()), cause))?;
        if args.tolerate > 0 {
            bail!(BadUsage(
                "--tolerate is for traces and recordings, not for sequences".to_owned()
            ));
        }
        return sequences::run(args, sequences);
    }
    let mut sequence_count = 0;
    let traces = recorded.filter_map(|item| match item {
        Ok(Recorded::Trace(trace)) => Some(Ok(trace)),
        Ok(Recorded::Sequence(_)) => {
            sequence_count += 1;
            None
        }
        Err(error) => Some(Err(error)),
    });
    let runtime = args.common.runtime.open()?;
    let bar = progress::bar(0, "traces");
    let report = replay(&runtime, traces, &mut |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let report = report.map_err(|cause| BadUsage::with_context(format!("in {}", file()), cause))?;
    if sequence_count > 0 {
        bail!(BadUsage(format!(
            "in {}: the file contains traces and {sequence_count} sequences; split the file",
            file()
        )));
    }
    args.output.write(|out| match args.format {
        Format::Json => {
            out.keep_utf8();
            serde_json::to_writer_pretty(&mut *out, &report)?;
            Ok(writeln!(out)?)
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
            out.write_table(&counts)?;
            if let Some(first) = &report.first {
                writeln!(out, "\nfirst divergence: {first}")?;
            }
            Ok(())
        }
    })?;
    Ok(if report.divergent <= args.tolerate { Exit::Success } else { Exit::Failure })
}
