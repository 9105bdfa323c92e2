//! Why an operation on a buffer was refused.

use crate::vmm::VmmError;

/// An operation on a buffer failed; the buffer is as it was.
///
/// Where the runtime fails half-way and then fails to take back what it did, the documentation of
/// the operation says what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The virtual-memory management below refused or failed.
    #[error(transparent)]
    Vmm(#[from] VmmError),

    /// More bytes than addresses are reserved for.
    #[error(
        "size: {wanted:#x} bytes are more than the {maximum:#x} that addresses are reserved for; \
         reserve more at first, or extend the buffer"
    )]
    BeyondMaximum {
        /// How many bytes the buffer would have had.
        wanted: usize,
        /// How many it may have.
        maximum: usize,
    },

    /// Bytes that the buffer does not have.
    #[error("offset: {size:#x} bytes at {offset:#x} reach beyond the buffer's {end:#x}")]
    BeyondEnd {
        /// Where they would begin, in bytes from the buffer's start.
        offset: usize,
        /// How many they are.
        size: usize,
        /// How many the buffer has.
        end: usize,
    },

    /// A ring that does not follow itself.
    #[error("times: a ring is mapped twice in a row or more often, not {times} times")]
    NoRing {
        /// How many times it would have been mapped.
        times: usize,
    },
}
