//! Recorded sequences of operations, each with the verdict it got.
//!
//! A file holds one JSON object a line, plain or compressed with gzip:
//!
//! ```json
//! {"seed":1,"trace":0,"granule":2097152,"devices":2,"ops":[
//!   {"op":"reserve","r":1,"size":23068672,"result":"SUCCESS"}]}
//! ```
//!
//! `r` and `h` are slots for reservations and handles: a slot is named again once what it held
//! is freed or released. Offsets and sizes are in bytes, from the start of the reservation `r`.

mod error;
mod operation;
mod reader;
mod writer;

pub use error::TraceError;
pub use operation::{Call, Operation, SUCCESS};
pub use reader::{Reader, Recorded, WithSequences};
pub use writer::Writer;

use serde::{Deserialize, Serialize};

/// One recorded sequence, which begins with nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// What the generator of the sequence was started with.
    pub seed: u64,
    /// Which of its sequences it is.
    pub trace: u64,
    /// The granule of the recorded runtime in bytes.
    pub granule: usize,
    /// How many GPUs it had.
    pub devices: usize,
    /// What was called, in order.
    pub ops: Vec<Operation>,
}
