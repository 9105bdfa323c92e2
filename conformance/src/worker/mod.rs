//! A process that works for this one, because what it does may crash or hang.
//!
//! ```text
//!   this process                               the worker
//!   ┌─────────────┐  orders, a line each   ┌────────────────┐
//!   │ Worker      ├───────────────────────►│ Orders         │
//!   │             │◄───────────────────────┤ Answers        │
//!   └──────┬──────┘  answers, a line each  └───────┬────────┘
//!          └── LastCall: a page that survives ◄────┘
//! ```
//!
//! [`Worker::start`] starts a program of the caller's choice, usually itself, which calls
//! [`begin`]. Orders and answers are JSON, a value a line; what values is the caller's and the
//! program's affair. They go through a socket that the worker has as its standard input, so that
//! nothing that a runtime prints gets among them.
//!
//! A worker dies with the thread that started it. It is of a process group of its own, so that what
//! it has started goes with it. How it ended is known by name ([`End`]), and what it did last, if it
//! noted that ([`LastCall`]).

mod end;
mod last_call;
mod master;
mod process;

pub use end::End;
pub(crate) use end::name as signal_name;
pub use last_call::LastCall;
pub use master::{Answers, NotAWorker, Orders, begin};
pub use process::{Heard, Prints, Worker, listen};

/// In a worker: the process that started it, and the number of the page there.
const WORKS_FOR: &str = "HSA_VMM_WORKS_FOR";
