//! Sequences of operations, right and wrong ones, put to the library and to the
//! [model](crate::model) side by side.
//!
//! An [`Operation`] names what it works on by its place among what there is (the second mapping
//! and the one after it, the first live handle, a reservation that was freed), so that any
//! operation means something in any state, and any part of a sequence is a sequence.
//! [`Operation::drawn_from`] makes one of bytes: those of a random generator, a fuzzer, or a
//! property test. [`Trial`] performs them, and tells the first difference.

pub(crate) mod choices;
mod draw;
mod names;
mod operation;
mod trial;

pub use draw::Stock;
pub use names::{Amount, Edge, Name, Place, Shift, Span, Spot, Who};
pub use operation::{Alignment, Descriptor, Extent, Hint, Operation};
pub use trial::{Care, Difference, Trial, tried_again};
