//! Performing a sequence on a runtime.

use super::{Found, Kind, Moment, Sequence};
use crate::operations::{Care, Difference, Trial, tried_again};
use hsa_vmm::{Runtime, Vmm};
use serde::{Deserialize, Serialize};

/// How much was performed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Operations.
    pub operations: u64,
    /// Those of them that library and model refused, or that a planned fault let fail.
    pub refused: u64,
}

/// Performs a sequence on a runtime of its own machine. `on_operation` is told of each operation
/// before it is performed, by its place from 0, and of the end as of one more.
///
/// A sequence that leaves something in the process is performed again ([`tried_again`]).
///
/// # Errors
/// What it has brought to light.
pub fn perform(
    runtime: &Runtime,
    sequence: &Sequence,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Tally, Found> {
    let perform = || perform_once(runtime, sequence, on_operation);
    tried_again(perform, |(_, difference)| difference).map_err(found)
}

/// When something was found, and what.
type Shown = (Moment, Difference);

fn perform_once(
    runtime: &Runtime,
    sequence: &Sequence,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Tally, Shown> {
    let mut tally = Tally::default();
    let care = sequence.every.map_or(Care::EachStep, Care::Every);
    let trial = begin(runtime, sequence, care)?;
    let trial = go_on(trial, sequence, sequence.operations.len(), &mut tally, on_operation);
    let trial = trial.map_err(|(_, shown)| shown)?;
    on_operation(sequence.operations.len());
    trial.finish().map_err(|difference| (Moment::End, difference))?;
    Ok(tally)
}

/// What the beginning of a sequence has left. It goes with the `Vmm`.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// What holds it all.
    pub vmm: Vmm,
    /// How many operations were performed.
    pub operations: usize,
    /// What the last of them has brought to light, if anything.
    pub found: Option<Found>,
}

/// Performs the first operations of a sequence.
///
/// # Errors
/// What was found before the first.
pub fn perform_beginning(
    runtime: &Runtime,
    sequence: &Sequence,
    operations: usize,
) -> Result<Beginning, Found> {
    let mut tally = Tally::default();
    let trial = begin(runtime, sequence, Care::EachStep).map_err(found)?;
    let (trial, found) = match go_on(trial, sequence, operations, &mut tally, &mut |_| ()) {
        Ok(trial) => (trial, None),
        Err((trial, shown)) => (*trial, Some(found(shown))),
    };
    let operations = tally.operations as usize + usize::from(found.is_some());
    Ok(Beginning { vmm: trial.vmm().clone(), operations, found })
}

fn begin(runtime: &Runtime, sequence: &Sequence, care: Care) -> Result<Trial, Shown> {
    let at_start = |difference| (Moment::Start, difference);
    let plan = sequence.fault_plan();
    let plan = plan.map_err(|error| at_start(Difference::Broken(error.to_string())))?;
    let mut trial = Trial::open_with(runtime, care).map_err(at_start)?;
    if let Some(plan) = plan {
        trial.plan_faults(plan);
    }
    Ok(trial)
}

fn go_on(
    mut trial: Trial,
    sequence: &Sequence,
    operations: usize,
    tally: &mut Tally,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Trial, (Box<Trial>, Shown)> {
    for (at, operation) in sequence.operations.iter().take(operations).enumerate() {
        // What is in the quarantine is not what the documents speak of.
        if trial.is_spoilt() {
            break;
        }
        on_operation(at);
        match trial.apply(operation) {
            Ok(done) => {
                tally.operations += 1;
                tally.refused += u64::from(!done);
            }
            Err(difference) => {
                return Err((Box::new(trial), (Moment::Operation(at), difference)));
            }
        }
    }
    Ok(trial)
}

fn found((moment, difference): Shown) -> Found {
    Found { kind: Kind::Difference, moment, words: difference.to_string() }
}
