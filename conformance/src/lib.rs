//! Conformance tests of an HSA runtime's virtual memory management.
//!
//! * [`run`] runs [`cases`] on a [`Runtime`](hsa_vmm::Runtime): valid and
//!   invalid calls, with their documented results. CPU and GPUs check the contents of memory.
//! * [`replay`](replay::replay) replays recorded [traces](trace) and compares the results.
//! * [`DifferentialTest`](operations::DifferentialTest) runs random [operations] and compares the library
//!   with a reference [model].
//!
//! Cases, replay and random operations also run on hardware, with the agents of the machine.
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
//! For each case, [`run`] opens a new [`Vmm`](hsa_vmm::Vmm). [`Context`] provides memory and checks that a
//! rejected call changes nothing. After each case, [`run`] releases the case's resources and checks that no
//! resource remains.

// Modules that call the runtime directly allow unsafe code.
#![deny(unsafe_code)]

mod case;
mod cases;
mod causes;
pub mod contain;
mod contents;
mod context;
pub mod describe;
mod descriptors;
pub mod diff;
mod expectation;
mod filter;
pub mod fuzz;
mod hexdump;
mod hip_calls;
pub mod hsa_trace;
mod html;
mod junit;
mod kcidb;
mod kernel_configuration;
mod known;
mod ktap;
mod late_fill;
mod memory_placement;
pub mod model;
mod not_started;
pub mod operations;
mod page_table;
pub mod peer;
pub mod picture;
mod plan;
mod process_maps;
mod provenance;
mod raw_calls;
pub mod replay;
mod report;
mod results;
// `retiring` calls the runtime's functions for signals, because the library does not create signals.
#[allow(unsafe_code)]
mod retiring;
mod run;
mod run_case;
mod snapshot;
pub mod trace;
pub mod worker;

pub use case::{Case, NotPassed, Status, TestResult};
pub use cases::cases;
pub use causes::Cause;
pub use context::Context;
pub use expectation::ExpectedOutcome;
pub use hsa_vmm::runtime::printable;
pub use kernel_configuration::{KernelConfiguration, KernelOption};
pub use known::{ExpectationFileError, ExpectationListError, KnownFailure, KnownFailures};
pub use ktap::{Ktap, KtapTest};
pub use not_started::NotStarted;
pub use plan::{Shard, ShardError};
pub use provenance::{FaultTarget, PlannedFault, Provenance, TestEnvironment};
pub use report::{CaseReport, ReadError, Repetitions, Report, Run, Summary};
pub use run::{Options, Progress, run};
pub use run_case::{Ended, Lost};
