//! Conformance of an HSA runtime's virtual-memory management, one named idea at a time.
//!
//! [`run`] puts [`cases`] to a [`Runtime`](hsa_vmm::Runtime): each call's documented success and
//! each of its documented errors, with what is in the memory checked by the CPU and by GPUs.
//! [`replay`](replay::replay) puts recorded [traces](trace) of verdicts to it, and a
//! [`Trial`](operations::Trial) drawn [operations], held against a reference [model]. All of it runs
//! on hardware too, with the agents that are there; only a trial looks into the simulation where
//! that is the runtime.
//!
//! ```
//! use hsa_vmm_conformance::{Options, run};
//!
//! let config = hsa_vmm::simulation::Config::mi300x(2);
//! let runtime = hsa_vmm::Runtime::simulated(config)?;
//! let options = Options { filters: vec!["map.offset.*".into()], ..Options::default() };
//! let report = run(&runtime, &options, &mut |progress| eprintln!("{}", progress.case.name));
//! assert_eq!(report.summary.failed, 0);
//! # Ok::<(), hsa_vmm::Error>(())
//! ```
//!
//! The way of a case: [`cases`] names it → [`run`] opens a fresh [`Vmm`](hsa_vmm::Vmm) for it →
//! [`Context`] gives it memory and watches that what is refused changes nothing → what it used
//! is given back, and nothing may be left.

#![forbid(unsafe_code)]

mod attempt;
mod case;
mod cases;
pub mod contain;
mod contents;
mod context;
pub mod describe;
mod descriptors;
pub mod diff;
mod filter;
pub mod fuzz;
mod hip_calls;
mod html;
mod junit;
mod known;
pub mod model;
pub mod operations;
mod page_table;
pub mod peer;
pub mod picture;
mod plan;
mod process_maps;
pub mod replay;
mod report;
mod run;
mod snapshot;
mod tally;
pub mod trace;
pub mod worker;

pub use attempt::{Ended, Lost};
pub use case::{Case, NotPassed, Status, Verdict};
pub use cases::cases;
pub use context::Context;
pub use hsa_vmm::runtime::printable;
pub use known::{BadKnown, Known, KnownFailures};
pub use report::{CaseReport, ReadError, Repetitions, Report, Run, Summary};
pub use run::{Options, Progress, run};
