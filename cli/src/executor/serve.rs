//! Runs, in the worker process, the sequences that the parent requests.

use super::{Message, Task};
use crate::Exit;
use crate::arguments::CommonOptions;
use crate::choice::SelectedRuntime;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::fuzz::{Sequence, perform};
use hsa_vmm_conformance::worker::{Messages, connect_to_parent};

/// Performs the parent's tasks and sends the results.
pub fn serve(common: &CommonOptions) -> anyhow::Result<Exit> {
    let (mut tasks, messages) = connect_to_parent()?;
    let selected = common.runtime.select()?;
    messages.send(&Message::Ready(selected.to_string()))?;
    while let Some(task) = tasks.receive()? {
        match task {
            Task::Generate { generator, first, step, end } => {
                let numbers = (first..end.unwrap_or(u64::MAX)).step_by(step.max(1) as usize);
                let sequences = numbers.map(|number| generator.sequence(number));
                run_sequences(&messages, &selected, sequences, false)?;
            }
            Task::Perform(sequences) => {
                run_sequences(&messages, &selected, sequences.into_iter(), true)?;
            }
        }
        messages.send(&Message::Idle)?;
    }
    Ok(Exit::Success)
}

/// Runs sequences until one fails, and sends each result. With `reports_operations`, also sends a message before each
/// operation.
fn run_sequences(
    messages: &Messages,
    selected: &SelectedRuntime,
    sequences: impl Iterator<Item = Sequence>,
    reports_operations: bool,
) -> anyhow::Result<()> {
    for sequence in sequences {
        let runtime = open_runtime(selected, &sequence)?;
        let mut sent = Ok(());
        let result = perform(&runtime, &sequence, &mut |operation| {
            if reports_operations && sent.is_ok() {
                sent = messages.send(&Message::At(operation));
            }
        });
        sent?;
        match result {
            Ok(counts) => messages.send(&Message::Done(counts))?,
            Err(failure) => return Ok(messages.send(&Message::Failed(failure))?),
        }
    }
    Ok(())
}

/// Opens a new simulation if the sequence names a simulation. Otherwise, opens the selected runtime.
fn open_runtime(selected: &SelectedRuntime, sequence: &Sequence) -> anyhow::Result<Runtime> {
    match (sequence.simulation()?, selected) {
        (Some(simulation), _) => Ok(simulation),
        (None, SelectedRuntime::Library(runtime)) => Ok(runtime.clone()),
        (None, SelectedRuntime::Simulation(simulation)) => simulation.start(),
    }
}
