//! Planned faults: which calls fail or misbehave, and how.
//!
//! The code of each call tests with [`has_fault`] whether an effect is active.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod current;
mod effect;
mod injector;
mod plan;

pub use current::{current_fault, has_fault, with_fault};
pub use effect::{Effect, FaultKind, parse_time};
pub use injector::{Injection, Injector};
/// The environment variable that names an existing file. Each process appends a line to the file, such as
/// `driver 2` or `runtime 1`, when a rule first has an effect ([`Injector::with_reporter`]). `hsa-vmm` reads the
/// file to list planned faults that never happened.
pub const RECORD: &str = "HSA_FAULTS_RECORD";

pub use plan::{CallNumbers, Plan, PlanError, Rule, Target};
