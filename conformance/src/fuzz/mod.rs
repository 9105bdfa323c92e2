//! Fuzzing: generates, runs and shrinks random sequences of operations.
//!
//! A [`Generator`] has a seed, and generates one [`Sequence`] for each number. A sequence depends only on the generator
//! and the number. Several processes can therefore generate sequences in any order. [`perform`] runs a sequence on a
//! runtime and returns its [`Failure`]. [`shrink`] shrinks a failing sequence. A sequence is saved as a line of JSON,
//! which `hsa-vmm replay` reads like recorded [traces](crate::trace).

mod failure;
mod faults;
mod generator;
mod machine;
mod perform;
mod sequence;
mod shrink;
mod simpler;

pub use failure::{Failure, FailureKind, FailurePoint};
pub use generator::{Generator, SequenceRuntime};
pub use perform::{Counts, PartialRun, perform, run_prefix};
pub use sequence::{Sequence, SequenceError};
pub use shrink::shrink;
