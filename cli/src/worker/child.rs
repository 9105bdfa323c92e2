//! A worker as it sees itself.

use super::{Answer, Task};
use crate::Ending;
use crate::arguments::Common;
use crate::choice::Ground;
use anyhow::Context;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::fuzz::{Sequence, perform};
use std::io::{BufRead, Write, stdin, stdout};

/// Does what is asked for on standard input, and says what came of it on standard output.
pub fn serve(common: &Common) -> anyhow::Result<Ending> {
    let ground = common.runtime.ground()?;
    say(&Answer::Ready(ground.to_string()))?;
    for line in stdin().lock().lines() {
        match serde_json::from_str(&line?).context("no task of a worker")? {
            Task::Draw { drawing, first, step, end } => {
                let numbers = (first..end.unwrap_or(u64::MAX)).step_by(step.max(1) as usize);
                let sequences = numbers.map(|number| drawing.sequence(number));
                put(&ground, sequences, false)?;
            }
            Task::Perform(sequences) => {
                put(&ground, sequences.into_iter(), true)?;
            }
        }
        say(&Answer::Idle)?;
    }
    Ok(Ending::Well)
}

/// Performs sequences until one shows something.
fn put(
    ground: &Ground,
    sequences: impl Iterator<Item = Sequence>,
    each_operation: bool,
) -> anyhow::Result<()> {
    for sequence in sequences {
        let runtime = runtime(ground, &sequence)?;
        let mut heard = Ok(());
        let result = perform(&runtime, &sequence, &mut |at| {
            if each_operation && heard.is_ok() {
                heard = say(&Answer::At(at));
            }
        });
        heard?;
        match result {
            Ok(tally) => say(&Answer::Done(tally))?,
            Err(found) => return say(&Answer::Found(found)),
        }
    }
    Ok(())
}

/// The simulation that the sequence names, a fresh one; else what there is.
fn runtime(ground: &Ground, sequence: &Sequence) -> anyhow::Result<Runtime> {
    match (sequence.simulation()?, ground) {
        (Some(simulation), _) => Ok(simulation),
        (None, Ground::Library(runtime)) => Ok(runtime.clone()),
        (None, Ground::Simulation(simulation)) => simulation.start(),
    }
}

fn say(answer: &Answer) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = stdout().lock();
    out.write_all(&line)?;
    Ok(out.flush()?)
}
