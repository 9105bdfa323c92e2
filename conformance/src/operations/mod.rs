//! Sequences of valid and invalid operations, run on the library and on the [model](crate::model).
//!
//! An [`Operation`] selects objects by index: the second mapping, the first live handle, the newest freed
//! reservation. Every operation is therefore defined in every state, and a sequence can still be run after some of its
//! operations were removed. [`Operation::from_bytes`] generates an operation from bytes of a random generator, a
//! fuzzer or a property test. [`DifferentialTest`] performs operations and reports the first difference.

pub(crate) mod choices;
mod differential;
mod display;
mod generate;
mod operation;
mod selectors;

pub use differential::{Comparisons, Difference, DifferentialTest, with_retries};
pub use generate::ObjectCounts;
pub use operation::{Alignment, Descriptor, Extent, Hint, Operation};
pub use selectors::{AgentSelector, Amount, Edge, HandleSelector, Region, Shift, Span, Spot};
