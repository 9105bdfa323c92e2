//! What each call costs: raw through the table of functions, through [`hsa_vmm::Vmm`], through the
//! owned types, through the C ABI, and through HIP itself, side by side.
//!
//! ```text
//!   run: rounds, the levels taking turns          samples → median, p99
//!     │ a round: every operation, a few calls each
//!   ┌─▼────┐ ┌──────┐ ┌───────┐ ┌─────┐ ┌──────┐
//!   │ raw  │ │ vmm  │ │ owned │ │  c  │ │ hip  │  level: the same calls, each in its own way
//!   └──────┘ └──────┘ └───────┘ └─────┘ └──────┘
//! ```
//!
//! The command's `hsa-vmm bench` and `cargo bench` both run what is here.

mod clock;
mod level;
mod opening;
mod operation;
mod run;
mod runtime;
mod samples;

pub use level::Level;
pub use opening::opening;
pub use operation::Operation;
pub use run::{BenchError, Options, Result, run};
pub use runtime::{Backend, BenchRuntime, LibraryFile};
