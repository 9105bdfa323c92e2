//! A trace as far as one likes, and what it leaves.

use super::state::{Outcome, State};
use super::{Divergence, ReplayError, check_fits};
use crate::trace::Trace;
use hsa_vmm::{Runtime, Vmm};

/// What the beginning of a trace has left. It goes with the `Vmm`.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// What holds it all: reservations and memory are named after their slots (`r1`, `h2`).
    pub vmm: Vmm,
    /// How many operations were performed.
    pub operations: usize,
    /// The last of them, if its verdict was not the recorded one: nothing was performed after it.
    pub divergence: Option<Divergence>,
}

/// Puts the first operations of a trace to a runtime. `index` is the trace's place in its file, for
/// errors.
///
/// # Errors
/// [`ReplayError`] if the trace cannot be put to this runtime.
pub fn replay_beginning(
    runtime: &Runtime,
    index: usize,
    trace: &Trace,
    operations: usize,
) -> Result<Beginning, ReplayError> {
    check_fits(runtime, index, trace)?;
    let mut state = State::open(runtime, trace)?;
    let mut performed = 0;
    let mut divergence = None;
    for operation in trace.ops.iter().take(operations) {
        performed += 1;
        if let Outcome::Divergent { got, why } = state.perform(operation) {
            let (seed, operation, at) = (trace.seed, operation.clone(), performed - 1);
            let expected = operation.result.clone();
            let trace = index;
            divergence = Some(Divergence { trace, seed, index: at, operation, expected, got, why });
            break;
        }
        state.name(&operation.call)?;
    }
    Ok(Beginning { vmm: state.vmm().clone(), operations: performed, divergence })
}
