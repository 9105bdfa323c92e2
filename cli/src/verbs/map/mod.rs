//! `hsa-vmm map`: the address space that a trace leaves.

use crate::Ending;
use crate::arguments::{Map, MapFormat};
use anyhow::{Context, anyhow, bail};
use hsa_vmm_conformance::fuzz::perform_beginning;
use hsa_vmm_conformance::replay::replay_beginning;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::io::Write;

/// A trace in which everything occurs that a picture can show.
const EXAMPLE: &[u8] = include_bytes!("example.jsonl");

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
    anstream::eprintln!("{what}, after {performed} of {all} operations");
    let report = vmm.report();
    verb.output.write(|out| write(out, verb.format, &report))?;
    match otherwise {
        None => Ok(Ending::Well),
        Some(otherwise) => {
            anstream::eprintln!("{otherwise}");
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
