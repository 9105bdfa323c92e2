//! Measures the cost of each call at several levels: the runtime's functions, [`hsa_vmm::Vmm`], the
//! owned types, the C interface, and HIP itself.
//!
//! ```text
//!   measure: rounds, the levels in turn           samples → median, p99
//!     │ a round: every operation, a few calls each
//!   ┌─▼────┐ ┌──────┐ ┌───────┐ ┌─────┐ ┌──────┐
//!   │ raw  │ │ vmm  │ │ owned │ │  c  │ │ hip  │  level: the same calls
//!   └──────┘ └──────┘ └───────┘ └─────┘ └──────┘
//! ```
//!
//! `hsa-vmm bench` and `cargo bench` both use this crate.

mod clock;
mod level;
mod opening;
mod operation;
mod run;
mod runtime;
mod samples;

pub use level::Level;
pub use opening::measure_opening;
pub use operation::Operation;
pub use run::{BenchError, Measurement, Options, measure};
pub use runtime::{Backend, BenchRuntime, LibraryFile};
