//! Planned faults: which calls go wrong, and how.
//!
//! One language for the simulation and for the emulated kernel driver. This crate knows its words
//! and counts the calls; what an effect does to a call is written beside the call, behind
//! [`suffers`], so that a call that nothing is planned for is not touched.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod course;
mod effect;
mod plan;
mod suffering;

pub use course::{Course, Met};
pub use effect::{Effect, Wrong};
pub use plan::{Calls, Ground, Plan, PlanError, Rule};
pub use suffering::{during, now, suffers};
