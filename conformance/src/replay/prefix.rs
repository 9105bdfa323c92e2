//! Replays a prefix of a trace.

use super::state::{ReplayOutcome, State};
use super::{Divergence, ReplayError, check_fits};
use crate::trace::Trace;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Runtime, Vmm};

/// The state after the first operations of a trace. Dropping `vmm` releases all objects.
#[derive(Clone, Debug)]
pub struct PartialReplay {
    /// The library with all objects of the trace, which are named after their slots (`r1`, `h2`).
    pub vmm: Vmm,
    /// The number of operations performed.
    pub operations: usize,
    /// The divergence of the last performed operation, if any. A divergence ends the replay.
    pub divergence: Option<Divergence>,
}

/// Replays the first operations of a trace. `index` is the trace's index in its file, for error messages.
///
/// # Errors
/// [`ReplayError`] if the trace does not fit this runtime.
pub fn replay_prefix(
    runtime: &Runtime,
    index: usize,
    trace: &Trace,
    operations: usize,
) -> Result<PartialReplay, ReplayError> {
    check_fits(runtime, index, trace)?;
    let mut state = State::open(runtime, VmmOptions::new(), trace)?;
    let mut performed = 0;
    let mut divergence = None;
    for operation in trace.ops.iter().take(operations) {
        performed += 1;
        if let ReplayOutcome::Divergent { got, why } = state.perform(operation) {
            let (seed, operation, at) = (trace.seed, operation.clone(), performed - 1);
            let expected = operation.result.clone();
            let trace = index;
            divergence = Some(Divergence { trace, seed, index: at, operation, expected, got, why });
            break;
        }
        state.name_object(&operation.call)?;
    }
    Ok(PartialReplay { vmm: state.vmm().clone(), operations: performed, divergence })
}
