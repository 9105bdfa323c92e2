//! Putting recorded traces to a runtime, and counting where its verdicts are the same.
//!
//! Every operation that is performed or excused is counted once: as agreed, as excused by one of
//! the declared [rules](Rule), or as divergent. After a divergence the state is no longer the
//! recorded one, so that nothing can be said of the rest of that trace: it is not performed, and
//! counted only in [`ReplayReport::not_compared`].

mod beginning;
mod report;
mod rule;
mod state;

pub use beginning::{Beginning, replay_beginning};
pub use report::{Divergence, ReplayError, ReplayReport};
pub use rule::Rule;

use crate::trace::{Trace, TraceError};
use hsa_vmm::{Agent, Runtime};
use state::{Outcome, State};

/// Puts traces to a runtime, each on a fresh [`Vmm`](hsa_vmm::Vmm). `on_trace` is told after each
/// how many are done.
///
/// # Errors
/// [`ReplayError`] if a trace cannot be read, or cannot be put to this runtime at all.
pub fn replay(
    runtime: &Runtime,
    traces: impl Iterator<Item = Result<Trace, TraceError>>,
    on_trace: &mut dyn FnMut(usize),
) -> Result<ReplayReport, ReplayError> {
    let mut report = ReplayReport::default();
    for (index, trace) in traces.enumerate() {
        let trace = trace?;
        check_fits(runtime, index, &trace)?;
        replay_one(runtime, index, &trace, &mut report)?;
        on_trace(index + 1);
    }
    Ok(report)
}

/// Refuses traces that nothing would be learned from here.
fn check_fits(runtime: &Runtime, trace: usize, recorded: &Trace) -> Result<(), ReplayError> {
    let pools = || runtime.gpus().filter_map(Agent::handle_pool);
    let (needed, present) = (recorded.devices, pools().count());
    if present < needed {
        return Err(ReplayError::TooFewGpus { trace, needed, present });
    }
    let granule = pools().map(|pool| pool.granule).max().unwrap_or_default();
    if granule > recorded.granule {
        return Err(ReplayError::CoarserGranule { trace, recorded: recorded.granule, granule });
    }
    Ok(())
}

fn replay_one(
    runtime: &Runtime,
    index: usize,
    trace: &Trace,
    report: &mut ReplayReport,
) -> Result<(), ReplayError> {
    let mut state = State::open(runtime, trace)?;
    for (at, operation) in trace.ops.iter().enumerate() {
        report.operations += 1;
        match state.perform(operation) {
            Outcome::Agreed => report.agreed += 1,
            Outcome::Excused(rule) => *report.excused.entry(rule).or_default() += 1,
            Outcome::Divergent { got, why } => {
                report.divergent += 1;
                report.not_compared += (trace.ops.len() - at - 1) as u64;
                report.first.get_or_insert_with(|| Divergence {
                    trace: index,
                    seed: trace.seed,
                    index: at,
                    operation: operation.clone(),
                    expected: operation.result.clone(),
                    got,
                    why,
                });
                break;
            }
        }
    }
    Ok(())
}
