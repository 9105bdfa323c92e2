//! Planned faults: which calls go wrong, and how.
//!
//! One language for the simulation and for the emulated kernel driver. This crate knows its words
//! and counts the calls; what an effect does to a call is written beside the call, behind
//! [`has_fault`], so that a call that nothing is planned for is not touched.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod current;
mod effect;
mod injector;
mod plan;

pub use current::{current_fault, has_fault, with_fault};
pub use effect::{Effect, FaultKind};
pub use injector::{Injection, Injector};
pub use plan::{Calls, Plan, PlanError, Rule, Target};
