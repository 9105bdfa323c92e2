//! Planned faults: which calls fail or misbehave, and how.
//!
//! The simulation and the emulated kernel driver share this language. This crate parses plans and
//! counts calls. The effects are implemented beside each call and test [`has_fault`], so that calls
//! without faults take no other path.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod current;
mod effect;
mod injector;
mod plan;

pub use current::{current_fault, has_fault, with_fault};
pub use effect::{Effect, FaultKind};
pub use injector::{Injection, Injector};
/// The environment variable that names an existing file, to which each process appends a line when a rule
/// has an effect for the first time ([`Injector::noting`]): `driver 2`, `runtime 1`. A tester uses it to
/// name planned faults that never happened.
pub const RECORD: &str = "HSA_FAULTS_RECORD";

pub use plan::{Calls, Plan, PlanError, Rule, Target};
