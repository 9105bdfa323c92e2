//! Random sequences of operations: drawn, performed, made small, and kept.
//!
//! A [`Drawing`] says which [`Sequence`] has which number: the same seed gives the same ones, in
//! whatever order and by however many processes they are performed. [`perform`] puts one to a
//! runtime and says what it [`Found`]; [`shrink`] makes small what was found. A sequence is written
//! as a line of JSON, which `hsa-vmm replay` reads beside recorded [traces](crate::trace).

mod drawing;
mod faults;
mod found;
mod machine;
mod perform;
mod sequence;
mod shrink;
mod simpler;

pub use drawing::{Drawing, Machine};
pub use found::{Found, Kind, Moment};
pub use perform::{Beginning, Counts, perform, perform_beginning};
pub use sequence::{Sequence, SequenceError};
pub use shrink::shrink;
