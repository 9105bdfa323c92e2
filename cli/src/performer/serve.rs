//! A worker: performs what it is told.

use super::{Answer, Task};
use crate::Ending;
use crate::arguments::Common;
use crate::choice::Ground;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::fuzz::{Sequence, perform};
use hsa_vmm_conformance::worker::{Answers, begin};

/// Does what it is told, and says what came of it.
pub fn serve(common: &Common) -> anyhow::Result<Ending> {
    let (mut orders, answers) = begin()?;
    let ground = common.runtime.ground()?;
    answers.tell(&Answer::Ready(ground.to_string()))?;
    while let Some(task) = orders.hear()? {
        match task {
            Task::Draw { drawing, first, step, end } => {
                let numbers = (first..end.unwrap_or(u64::MAX)).step_by(step.max(1) as usize);
                let sequences = numbers.map(|number| drawing.sequence(number));
                put(&answers, &ground, sequences, false)?;
            }
            Task::Perform(sequences) => {
                put(&answers, &ground, sequences.into_iter(), true)?;
            }
        }
        answers.tell(&Answer::Idle)?;
    }
    Ok(Ending::Well)
}

/// Performs sequences until one shows something.
fn put(
    answers: &Answers,
    ground: &Ground,
    sequences: impl Iterator<Item = Sequence>,
    each_operation: bool,
) -> anyhow::Result<()> {
    for sequence in sequences {
        let runtime = runtime(ground, &sequence)?;
        let mut heard = Ok(());
        let result = perform(&runtime, &sequence, &mut |at| {
            if each_operation && heard.is_ok() {
                heard = answers.tell(&Answer::At(at));
            }
        });
        heard?;
        match result {
            Ok(tally) => answers.tell(&Answer::Done(tally))?,
            Err(found) => return Ok(answers.tell(&Answer::Found(found))?),
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
