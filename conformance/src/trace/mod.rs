//! Recorded sequences of operations with their results.
//!
//! A file has one JSON object per line, plain or compressed with gzip:
//!
//! ```json
//! {"seed":1,"trace":0,"granule":2097152,"devices":2,"ops":[
//!   {"op":"reserve","r":1,"size":23068672,"result":"SUCCESS"}]}
//! ```
//!
//! `r` and `h` are slots for reservations and handles. A slot is reused after its reservation is
//! freed or its handle released. Offsets and sizes are in bytes. `offset` is relative to the start of the
//! reservation `r`, and `handle_offset` to the start of the memory of `h`.

mod error;
mod operation;
mod reader;
mod writer;

pub use error::TraceError;
pub use operation::{Call, Operation, SUCCESS};
pub use reader::{Reader, Recorded, WithSequences};
pub use writer::Writer;

use serde::{Deserialize, Serialize};

/// A recorded sequence of operations on an initially empty state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The seed of the generator.
    pub seed: u64,
    /// The number of the sequence. Seed and number identify the sequence.
    pub trace: u64,
    /// The granule of the recorded runtime in bytes.
    pub granule: usize,
    /// The number of GPUs of the recorded runtime.
    pub devices: usize,
    /// The operations, in order.
    pub ops: Vec<Operation>,
}
