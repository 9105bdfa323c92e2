//! The worker's side: runs the requested sequences.

use super::{Answer, Task};
use crate::Exit;
use crate::arguments::Common;
use crate::choice::Selected;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::fuzz::{Sequence, perform};
use hsa_vmm_conformance::worker::{Answers, begin};

/// Runs the parent's requests and sends the results.
pub fn serve(common: &Common) -> anyhow::Result<Exit> {
    let (mut requests, answers) = begin()?;
    let selected = common.runtime.select()?;
    answers.send(&Answer::Ready(selected.to_string()))?;
    while let Some(task) = requests.receive()? {
        match task {
            Task::Draw { drawing, first, step, end } => {
                let numbers = (first..end.unwrap_or(u64::MAX)).step_by(step.max(1) as usize);
                let sequences = numbers.map(|number| drawing.sequence(number));
                run(&answers, &selected, sequences, false)?;
            }
            Task::Perform(sequences) => {
                run(&answers, &selected, sequences.into_iter(), true)?;
            }
        }
        answers.send(&Answer::Idle)?;
    }
    Ok(Exit::Success)
}

/// Runs sequences until one fails. With `reports_operations`, sends a message before each operation.
fn run(
    answers: &Answers,
    selected: &Selected,
    sequences: impl Iterator<Item = Sequence>,
    reports_operations: bool,
) -> anyhow::Result<()> {
    for sequence in sequences {
        let runtime = open_runtime(selected, &sequence)?;
        let mut sent = Ok(());
        let result = perform(&runtime, &sequence, &mut |at| {
            if reports_operations && sent.is_ok() {
                sent = answers.send(&Answer::At(at));
            }
        });
        sent?;
        match result {
            Ok(counts) => answers.send(&Answer::Done(counts))?,
            Err(found) => return Ok(answers.send(&Answer::Found(found))?),
        }
    }
    Ok(())
}

/// Opens a new simulation if the sequence names one; otherwise the selected runtime.
fn open_runtime(selected: &Selected, sequence: &Sequence) -> anyhow::Result<Runtime> {
    match (sequence.simulation()?, selected) {
        (Some(simulation), _) => Ok(simulation),
        (None, Selected::Library(runtime)) => Ok(runtime.clone()),
        (None, Selected::Simulation(simulation)) => simulation.start(),
    }
}
