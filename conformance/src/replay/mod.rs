//! Replays recorded traces on a runtime and compares the results of the calls.
//!
//! Each operation counts as agreed, as excused by a declared [rule](Rule), or as divergent. After a divergence, the
//! state differs from the recorded state. The following operations of the trace are therefore not performed, and count
//! only in [`ReplayReport::not_compared`].

mod prefix;
mod report;
mod rule;
mod state;

pub use prefix::{PartialReplay, replay_prefix};
pub use report::{Divergence, ReplayError, ReplayReport};
pub use rule::Rule;

use crate::trace::{Trace, TraceError};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Agent, Runtime};
use state::{ReplayOutcome, State};

/// Replays traces, each on a new [`Vmm`](hsa_vmm::Vmm). Calls `on_trace` after each trace with the number
/// of replayed traces.
///
/// # Errors
/// [`ReplayError`] if a trace cannot be read or does not fit this runtime.
pub fn replay(
    runtime: &Runtime,
    traces: impl Iterator<Item = Result<Trace, TraceError>>,
    on_trace: &mut dyn FnMut(usize),
) -> Result<ReplayReport, ReplayError> {
    replay_with(runtime, VmmOptions::new(), traces, on_trace)
}

/// Replays traces as [`replay`] does, with options of the [`Vmm`](hsa_vmm::Vmm).
///
/// # Errors
/// The same errors as [`replay`] returns.
pub fn replay_with(
    runtime: &Runtime,
    options: VmmOptions,
    traces: impl Iterator<Item = Result<Trace, TraceError>>,
    on_trace: &mut dyn FnMut(usize),
) -> Result<ReplayReport, ReplayError> {
    let mut report = ReplayReport::default();
    for (index, trace) in traces.enumerate() {
        let trace = trace?;
        check_fits(runtime, index, &trace)?;
        replay_trace(runtime, options, index, &trace, &mut report)?;
        on_trace(index + 1);
    }
    Ok(report)
}

/// Rejects a trace that needs more GPUs than this runtime has, or was recorded with a smaller granule.
fn check_fits(runtime: &Runtime, index: usize, trace: &Trace) -> Result<(), ReplayError> {
    let pools = || runtime.gpus().filter_map(Agent::vmem_pool);
    let (needed, present) = (trace.devices, pools().count());
    if present < needed {
        return Err(ReplayError::TooFewGpus { trace: index, needed, present });
    }
    let granule = pools().map(|pool| pool.granule).max().unwrap_or_default();
    if granule > trace.granule {
        return Err(ReplayError::CoarserGranule { trace: index, recorded: trace.granule, granule });
    }
    Ok(())
}

fn replay_trace(
    runtime: &Runtime,
    options: VmmOptions,
    index: usize,
    trace: &Trace,
    report: &mut ReplayReport,
) -> Result<(), ReplayError> {
    let mut state = State::open(runtime, options, trace)?;
    for (position, operation) in trace.ops.iter().enumerate() {
        report.operations += 1;
        match state.perform(operation) {
            ReplayOutcome::Agreed => report.agreed += 1,
            ReplayOutcome::Excused(rule) => *report.excused.entry(rule).or_default() += 1,
            ReplayOutcome::Divergent { got, why } => {
                report.divergent += 1;
                report.not_compared += (trace.ops.len() - position - 1) as u64;
                report.first.get_or_insert_with(|| Divergence {
                    trace: index,
                    seed: trace.seed,
                    index: position,
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
