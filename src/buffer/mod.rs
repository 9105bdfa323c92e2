//! Buffers that people build on virtual-memory management, ready made.
//!
//! * [`GrowableBuffer`]: grows and shrinks in place; [`GrowableVec`] is the same with a type.
//! * [`RingBuffer`]: the same memory several times in a row, so that nothing has a seam.
//!
//! Device memory is never a slice: agents and other processes may change it at any time. What is
//! read and written here is copied, and a wrong offset is an error and never a fault.

mod addresses;
mod error;
mod grants;
mod growable;
mod ring;
mod steps;
mod stock;
mod typed;

pub use error::BufferError;
pub use growable::{GrowableBuffer, GrowableOptions};
pub use ring::{RingBuffer, RingOptions};
pub use typed::GrowableVec;
