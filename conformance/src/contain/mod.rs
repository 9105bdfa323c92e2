//! Cases in a process of their own, so that one that crashes or hangs the runtime is a case that
//! failed, and the rest goes on.
//!
//! ```text
//!   run                                      serve
//!   ┌─────────────┐        requests          ┌────────────────────┐
//!   │ plan, tally ├───────────────────────►│ runtime, a case at │
//!   │ time limit  │◄───────────────────────┤ a time             │
//!   └─────────────┘    what came of it     └────────────────────┘
//! ```
//!
//! [`run()`] starts a [worker](crate::worker), usually the same program, which calls [`serve`]. It
//! runs many cases; one that crashed or hung is replaced.

mod hangs;
mod protocol;
mod run;
mod serve;

pub use run::{Containment, Event, NotRun, run};
pub use serve::{NotOpened, serve};

use crate::{Case, NotPassed};

/// Whether a runtime starts once more after a case was lost. A case of its own only if it does not.
const STARTS: Case = Case::of_runtime(
    "runtime.library.starts",
    "HSA: hsa_init",
    "the runtime starts again in another process after one was lost",
    in_process,
);

/// Whether a runtime stops. A case of its own only if it does not.
const STOPS: Case = Case::of_runtime(
    "runtime.library.stops",
    "HSA: hsa_shut_down",
    "the runtime stops, and its process ends",
    in_process,
);

/// What is told of the worker if it went wrong.
pub(crate) const CASES: [&Case; 2] = [&STARTS, &STOPS];

fn in_process(_: &hsa_vmm::Runtime) -> crate::Verdict {
    Err(NotPassed::Skipped("this process would have to end".to_owned()))
}
