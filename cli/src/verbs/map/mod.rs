//! `hsa-vmm map`: the address space that a trace leaves.

use crate::Ending;
use crate::arguments::{Map, MapFormat};
use anyhow::{Context, bail};
use hsa_vmm_conformance::replay::replay_beginning;
use hsa_vmm_conformance::trace::{Reader, Trace};
use std::io::Write;

/// A trace in which everything occurs that a picture can show.
const EXAMPLE: &[u8] = include_bytes!("example.jsonl");

pub fn run(verb: &Map) -> anyhow::Result<Ending> {
    // A trace that cannot be read is told before a runtime is started.
    let trace = trace(verb)?;
    let all = trace.ops.len();
    let operations = verb.until.unwrap_or(all);
    if operations > all {
        bail!("the trace has {all} operations; --until says {operations}");
    }
    let runtime = verb.common.open()?;
    let beginning = replay_beginning(&runtime, verb.trace, &trace, operations)?;
    anstream::eprintln!(
        "trace {} (seed {}), after {} of {all} operations",
        verb.trace,
        trace.seed,
        beginning.operations
    );
    let report = beginning.vmm.report();
    verb.output.write(|out| write(out, verb.format, &report))?;
    match &beginning.divergence {
        None => Ok(Ending::Well),
        Some(divergence) => {
            anstream::eprintln!("the recorded runtime went on otherwise: {divergence}");
            Ok(Ending::Failed)
        }
    }
}

fn trace(verb: &Map) -> anyhow::Result<Trace> {
    let (name, mut traces) = match &verb.file {
        Some(path) => (path.display().to_string(), Reader::open(path)),
        None => ("the example".to_owned(), Reader::new(EXAMPLE)),
    };
    let traces = traces.as_mut().map_err(|error| anyhow::anyhow!("{error}"));
    let traces = traces.with_context(|| format!("cannot read {name}"))?;
    match traces.nth(verb.trace) {
        Some(trace) => trace.with_context(|| format!("in {name}")),
        None => bail!("{name} has no trace {}; they are counted from 0", verb.trace),
    }
}

fn write(out: &mut dyn Write, format: MapFormat, report: &hsa_vmm::Report) -> anyhow::Result<()> {
    match format {
        MapFormat::Table => write!(out, "{report}")?,
        MapFormat::Svg => write!(out, "{}", report.to_svg())?,
        MapFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)?;
        }
    }
    Ok(())
}
