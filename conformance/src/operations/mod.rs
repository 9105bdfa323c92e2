//! Sequences of operations, right and wrong ones, put to the library and to the
//! [model](crate::model) side by side.
//!
//! An [`Operation`] names what it works on by its place among what there is (the second mapping
//! and the one after it, the first live handle, a reservation that was freed), so that any
//! operation means something in any state, and any part of a sequence is a sequence.
//! [`Operation::drawn_from`] makes one of bytes: those of a random generator, a fuzzer, or a
//! property test. [`DifferentialTest`] performs them, and tells the first difference.

pub(crate) mod choices;
mod differential;
mod draw;
mod names;
mod operation;

pub use differential::{Comparisons, Difference, DifferentialTest, with_retries};
pub use draw::ObjectCounts;
pub use names::{AgentName, Amount, Edge, HandleName, Region, Shift, Span, Spot};
pub use operation::{Alignment, Descriptor, Extent, Hint, Operation};
