//! `hsa-vmm fuzz`: random sequences of operations, held against the reference model.

pub mod arguments;
mod crew;
mod finding;
mod progress;

use crate::arguments::Format;
use crate::choice::{Ground, say};
use crate::screen::{Screen, note};
use crate::{Ending, output};
use anyhow::bail;
use arguments::Fuzz;
use crew::{Crew, Ended};
use finding::Finding;
use hsa_vmm_conformance::fuzz::{Drawing, Machine};
use progress::Progress;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::thread::available_parallelism;

/// So many operations come between two looks at everything: each look takes as long as many.
const EVERY: usize = 16;

pub fn run(verb: &Fuzz) -> anyhow::Result<Ending> {
    verb.save.as_deref().map_or(Ok(()), output::check)?;
    let machine = match verb.common.runtime.ground()? {
        Ground::Simulation(simulated) => {
            let machine = simulated.text.clone().map_or(Machine::Any, Machine::Simulated);
            // What is asked for makes sense, or nothing is begun.
            match &machine {
                Machine::Any => say(&format!(
                    "runtime: simulations of every era and many machines{}",
                    simulated.why()
                )),
                _ => drop(simulated.start()?),
            }
            machine
        }
        Ground::Library(_) if verb.faults => bail!(
            "--faults are the simulation's; those of the emulated driver are asked for with \
             `hsa-vmm emulate --fault PLAN -- hsa-vmm fuzz`"
        ),
        Ground::Library(_) => Machine::Loaded,
    };
    if let Machine::Simulated(text) = &machine
        && verb.faults
        && text.contains("faults=")
    {
        bail!("--faults draws the faults; the simulation `{text}` has some of its own");
    }
    let seed = verb.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let longest = verb.operations as usize;
    let (faults, every) = (verb.faults, Some(EVERY));
    let drawing = Drawing { seed, longest, machine, faults, every };
    let threads =
        verb.processes.map_or_else(|| available_parallelism().map_or(1, usize::from), usize::from);
    note!("seed {seed}, {threads} processes, {:?}", verb.time);
    let mut progress = Progress::new(verb.time, verb.sequences);
    let mut crew = Crew::start(verb, &drawing, threads)?;
    let ended = crew.watch(&mut progress)?;
    drop(crew);
    progress.finish();
    let finding = match ended {
        Ended::Well => None,
        Ended::Found(number, found) => {
            note!("sequence {number} has shown something; making it smaller");
            Some(Finding::of(verb, &drawing, threads as u64, number, found)?)
        }
    };
    let mut out = Screen::stdout();
    match verb.format {
        Format::Json => {
            let summary = serde_json::json!({
                "seed": seed,
                "sequences": progress.sequences,
                "operations": progress.operations,
                "refused": progress.refused,
                "seconds": progress.seconds(),
                "finding": finding.as_ref().map(Finding::json),
            });
            serde_json::to_writer_pretty(&mut out, &summary)?;
            writeln!(out)?;
        }
        Format::Table => {
            if let Some(finding) = &finding {
                writeln!(out, "{finding}")?;
            }
            writeln!(out, "seed {seed}: {progress}")?;
        }
    }
    out.flush()?;
    Ok(if finding.is_none() { Ending::Well } else { Ending::Failed })
}
