//! Runs a sequence on a runtime.

use super::{Failure, FailureKind, FailurePoint, Sequence};
use crate::operations::{Comparisons, Difference, DifferentialTest, with_retries};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Runtime, Vmm};
use serde::{Deserialize, Serialize};

/// The numbers of performed and of rejected operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All performed operations.
    pub operations: u64,
    /// The operations that both library and model rejected, or that failed because of a planned fault.
    #[serde(rename = "refused")]
    pub rejected: u64,
}

/// Runs a sequence on a runtime. Before each operation, calls `on_operation` with the index of the operation. Before
/// the final checks, calls `on_operation` with the number of operations in the sequence.
///
/// Runs the sequence again if the process still holds a resource after the run ([`with_retries`]).
///
/// # Errors
/// Returns the failure of the sequence.
pub fn perform(
    runtime: &Runtime,
    sequence: &Sequence,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Counts, Failure> {
    let perform = || perform_once(runtime, sequence, on_operation);
    with_retries(perform, |(_, difference)| difference).map_err(failure_of)
}

/// When a difference occurred, and the difference.
type TimedDifference = (FailurePoint, Difference);

fn perform_once(
    runtime: &Runtime,
    sequence: &Sequence,
    on_operation: &mut dyn FnMut(usize),
) -> Result<Counts, TimedDifference> {
    let mut counts = Counts::default();
    let comparisons = sequence.every.map_or(Comparisons::EachOperation, Comparisons::Every);
    let test = open_test(runtime, sequence, comparisons)?;
    let test = apply_first(test, sequence, sequence.operations.len(), &mut counts, on_operation);
    let test = test.map_err(|(_, difference)| difference)?;
    on_operation(sequence.operations.len());
    test.finish().map_err(|difference| (FailurePoint::End, difference))?;
    Ok(counts)
}

/// The state after the first operations of a sequence. Dropping `vmm` releases all objects.
#[derive(Clone, Debug)]
pub struct PartialRun {
    /// The library with all objects of the sequence.
    pub vmm: Vmm,
    /// The number of operations performed.
    pub operations: usize,
    /// The failure of the last operation, if any.
    pub failure: Option<Failure>,
}

/// Runs the first operations of a sequence.
///
/// # Errors
/// Returns a failure before the first operation.
pub fn run_prefix(
    runtime: &Runtime,
    sequence: &Sequence,
    operations: usize,
) -> Result<PartialRun, Failure> {
    let mut counts = Counts::default();
    let test = open_test(runtime, sequence, Comparisons::EachOperation).map_err(failure_of)?;
    let (test, failure) = match apply_first(test, sequence, operations, &mut counts, &mut |_| ()) {
        Ok(test) => (test, None),
        Err((test, difference)) => (*test, Some(failure_of(difference))),
    };
    let operations = counts.operations as usize + usize::from(failure.is_some());
    Ok(PartialRun { vmm: test.vmm().clone(), operations, failure })
}

/// Opens the test of a sequence, and plans its faults.
fn open_test(
    runtime: &Runtime,
    sequence: &Sequence,
    comparisons: Comparisons,
) -> Result<DifferentialTest, TimedDifference> {
    let at_start = |difference| (FailurePoint::Start, difference);
    let plan = sequence.fault_plan();
    let plan = plan.map_err(|error| at_start(Difference::RuleViolation(error.to_string())))?;
    let options = VmmOptions::new();
    let mut test = DifferentialTest::open_with(runtime, options, comparisons).map_err(at_start)?;
    if let Some(plan) = plan {
        test.plan_faults(plan);
    }
    Ok(test)
}

/// Applies the first `operations` operations of a sequence.
fn apply_first(
    mut test: DifferentialTest,
    sequence: &Sequence,
    operations: usize,
    counts: &mut Counts,
    on_operation: &mut dyn FnMut(usize),
) -> Result<DifferentialTest, (Box<DifferentialTest>, TimedDifference)> {
    for (index, operation) in sequence.operations.iter().take(operations).enumerate() {
        // The documents do not define the results after a quarantine, so the model cannot predict them.
        if test.has_quarantine() {
            break;
        }
        on_operation(index);
        match test.apply(operation) {
            Ok(succeeded) => {
                counts.operations += 1;
                counts.rejected += u64::from(!succeeded);
            }
            Err(difference) => {
                return Err((Box::new(test), (FailurePoint::Operation(index), difference)));
            }
        }
    }
    Ok(test)
}

fn failure_of((point, difference): TimedDifference) -> Failure {
    Failure { kind: FailureKind::Difference, point, description: difference.to_string() }
}
