//! Performing a sequence on a runtime.

use super::{Found, Kind, Moment, Sequence};
use crate::operations::{Comparisons, Difference, DifferentialTest, with_retries};
use hsa_vmm::{Runtime, Vmm};
use serde::{Deserialize, Serialize};

/// How much was performed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Operations.
    pub operations: u64,
    /// Those of them that library and model refused, or that a planned fault let fail.
    pub refused: u64,
}

/// Performs a sequence on a runtime of its own machine. `on_operation` is told of each operation
/// before it is performed, by its place from 0, and of the end as of one more.
///
/// A sequence that leaves something in the process is performed again ([`with_retries`]).
///
/// # Errors
/// What it has brought to light.
pub fn perform(
    runtime: &Runtime,
    sequence: &Sequence,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Counts, Found> {
    let perform = || perform_once(runtime, sequence, on_operation);
    with_retries(perform, |(_, difference)| difference).map_err(found)
}

/// When something was found, and what.
type Shown = (Moment, Difference);

fn perform_once(
    runtime: &Runtime,
    sequence: &Sequence,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Counts, Shown> {
    let mut counts = Counts::default();
    let comparisons = sequence.every.map_or(Comparisons::EachOperation, Comparisons::Every);
    let test = begin(runtime, sequence, comparisons)?;
    let test = go_on(test, sequence, sequence.operations.len(), &mut counts, on_operation);
    let test = test.map_err(|(_, shown)| shown)?;
    on_operation(sequence.operations.len());
    test.finish().map_err(|difference| (Moment::End, difference))?;
    Ok(counts)
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
    let mut counts = Counts::default();
    let test = begin(runtime, sequence, Comparisons::EachOperation).map_err(found)?;
    let (test, found) = match go_on(test, sequence, operations, &mut counts, &mut |_| ()) {
        Ok(test) => (test, None),
        Err((test, shown)) => (*test, Some(found(shown))),
    };
    let operations = counts.operations as usize + usize::from(found.is_some());
    Ok(Beginning { vmm: test.vmm().clone(), operations, found })
}

fn begin(
    runtime: &Runtime,
    sequence: &Sequence,
    comparisons: Comparisons,
) -> Result<DifferentialTest, Shown> {
    let at_start = |difference| (Moment::Start, difference);
    let plan = sequence.fault_plan();
    let plan = plan.map_err(|error| at_start(Difference::Broken(error.to_string())))?;
    let mut test = DifferentialTest::open_with(runtime, comparisons).map_err(at_start)?;
    if let Some(plan) = plan {
        test.plan_faults(plan);
    }
    Ok(test)
}

fn go_on(
    mut test: DifferentialTest,
    sequence: &Sequence,
    operations: usize,
    counts: &mut Counts,
    on_operation: &mut dyn FnMut(usize),
) -> Result<DifferentialTest, (Box<DifferentialTest>, Shown)> {
    for (at, operation) in sequence.operations.iter().take(operations).enumerate() {
        // What is in the quarantine is not what the documents speak of.
        if test.has_quarantine() {
            break;
        }
        on_operation(at);
        match test.apply(operation) {
            Ok(done) => {
                counts.operations += 1;
                counts.refused += u64::from(!done);
            }
            Err(difference) => {
                return Err((Box::new(test), (Moment::Operation(at), difference)));
            }
        }
    }
    Ok(test)
}

fn found((moment, difference): Shown) -> Found {
    Found { kind: Kind::Difference, moment, words: difference.to_string() }
}
