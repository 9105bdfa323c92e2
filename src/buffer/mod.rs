//! Buffers that people build on virtual-memory management, ready made.

mod error;

pub use error::BufferError;
