//! Runs cases in worker processes. A crash or hang of the runtime fails one case; the run continues.
//!
//! ```text
//!   run                                      serve
//!   ┌─────────────┐        request         ┌────────────────────┐
//!   │plan, results├───────────────────────►│ runtime, one case  │
//!   │ time limit  │◄───────────────────────┤ at a time          │
//!   └─────────────┘│       result        └────────────────────┘
//! ```
//!
//! [`run()`] starts a [worker](crate::worker), which calls [`serve`]. The worker usually runs the same program as the
//! parent. A worker runs many cases. After a crash or hang, the parent starts a new worker.

mod hangs;
mod protocol;
mod run;
mod serve;

pub use run::{Containment, Event, NotRun, run};
pub use serve::{NotOpened, serve};

use crate::{Case, NotPassed};

/// A report contains this case, as failed, if the runtime does not start again after a crash or hang.
pub(crate) const RUNTIME_STARTS: Case = Case::of_runtime(
    "runtime.library.starts",
    "HSA: hsa_init",
    "the runtime starts again in another process after a crash or hang",
    skip_in_process,
);

/// A report contains this case, as failed, if the runtime does not stop.
const RUNTIME_STOPS: Case = Case::of_runtime(
    "runtime.library.stops",
    "HSA: hsa_shut_down",
    "the runtime stops, and its process ends",
    skip_in_process,
);

/// The cases that only a run with workers can report.
pub(crate) const CASES: [&Case; 2] = [&RUNTIME_STARTS, &RUNTIME_STOPS];

/// Skips a case that only a run with workers can report.
fn skip_in_process(_: &hsa_vmm::Runtime) -> crate::TestResult {
    Err(NotPassed::Skipped(
        "needs worker processes, because this check ends the process that runs it".to_owned(),
    ))
}
