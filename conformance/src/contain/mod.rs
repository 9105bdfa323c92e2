//! Cases in a process of their own, so that one that crashes or hangs the runtime is a case that
//! failed, and the rest goes on.
//!
//! ```text
//!   run                                      serve
//!   ┌─────────────┐  orders, a line each  ┌────────────────────┐
//!   │ plan, tally ├──────────────────────►│ runtime, a case at │
//!   │ time limit  │◄──────────────────────┤ a time             │
//!   └──────┬──────┘   what came of it     └─────────┬──────────┘
//!          └── LastCall: a page that survives ◄─────┘
//! ```
//!
//! [`run()`] starts a program of the caller's choice, usually itself, which calls [`serve`]. The
//! worker runs many cases; one that crashed or hung is replaced. It is of a process group of its
//! own, so that what it has started goes with it, and dies with whoever started it.
//!
//! Lines go through a socket that the worker has as its standard input, so that nothing that a
//! runtime prints gets among them; what it prints goes to standard error.

mod crew;
mod last_call;
mod protocol;
mod run;
mod worker;

pub use last_call::LastCall;
pub use run::{Containment, Event, NotRun, run};
pub use worker::{NotAWorker, NotOpened, serve};

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
