//! Worker processes: they run code that may crash or hang.
//!
//! ```text
//!   this process                             the worker
//!   ┌─────────────┐    requests (JSON)     ┌────────────────┐
//!   │ Worker      ├───────────────────────►│ Requests       │
//!   │             │◄───────────────────────┤ Messages       │
//!   └──────┬──────┘    messages (JSON)     └───────┬────────┘
//!          └── LastCall: a shared page ◄───────────┘
//! ```
//!
//! [`Worker::start`] starts a program, usually the caller's own executable. The program must call
//! [`connect_to_parent`]. Requests and messages are JSON values of any types, one per line. A socket, which is the
//! worker's standard input, carries requests and messages. A runtime's output therefore does not mix with messages.
//!
//! The kernel kills a worker when the thread that started the worker exits. A worker has its own process group.
//! [`Worker`] kills this process group, with the processes that the worker has started. A process that has left the
//! group is not killed. [`End`] describes how a worker ended. [`LastCall`] holds the worker's last native call.

mod end;
mod last_call;
mod parent;
mod process;

pub use end::End;
pub(crate) use end::signal_name;
pub use last_call::LastCall;
pub use parent::{Messages, NotAWorker, Requests, connect_to_parent};
pub use process::{Output, Received, Worker, wait_for_any};

/// The environment variable that the parent sets. The variable's value is the parent's process ID, a colon, and the
/// number of the parent's descriptor of the [`LastCall`] page.
const WORKS_FOR: &str = "HSA_VMM_WORKS_FOR";
