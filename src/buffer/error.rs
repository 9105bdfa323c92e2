//! Why an operation on a buffer was refused.

use crate::hip::{HipError, HipProfile};
use crate::vmm::{Address, VmmError};

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
    #[error("{size:#x} bytes at offset {offset:#x} reach beyond the buffer's {end:#x} bytes")]
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

    /// It is paused: nothing is behind its addresses.
    #[error("the buffer is paused; resume it first")]
    Paused,

    /// It is not paused.
    #[error("the buffer is not paused")]
    NotPaused,

    /// The addresses of a paused buffer had to be freed to give its memory back, and somebody else
    /// has taken them.
    #[error(
        "the {size:#x} bytes of addresses at {address} are not to be had any more ({cause}); \
         resume later, or anywhere"
    )]
    AddressLost {
        /// Where the buffer was.
        address: Address,
        /// How many bytes of addresses it had.
        size: usize,
        /// Why they could not be reserved once more.
        cause: VmmError,
    },

    /// A page that the buffer does not have.
    #[error("page: there is no page {page}, for there are {pages}, counted from 0")]
    NoSuchPage {
        /// The first page that there is not.
        page: usize,
        /// How many there are.
        pages: usize,
    },

    /// A page that is in use already.
    #[error("page: {page} is mapped already")]
    PageMapped {
        /// The first such page.
        page: usize,
    },

    /// A page that is not in use.
    #[error("page: {page} is not mapped")]
    PageNotMapped {
        /// The first such page.
        page: usize,
    },

    /// Pages that are not used any more: the runtime failed half-way, and then failed to take back
    /// what it had done.
    #[error("pages: {count} from {first} on are lost: {cause}")]
    PagesLost {
        /// The first of them.
        first: usize,
        /// How many follow each other.
        count: usize,
        /// What went wrong first.
        cause: VmmError,
    },

    /// A page that got lost earlier ([`BufferError::PagesLost`]).
    #[error("page: {page} was lost when the runtime failed; use others")]
    PageLost {
        /// The first such page.
        page: usize,
    },

    /// Pages were to be moved or exchanged between buffers of other pages or other memory.
    #[error("buffer: its pages are not of the same size and kind of memory as the other buffer's")]
    OtherPages,
}

impl BufferError {
    /// The error that HIP of this profile has for it. HIP has no such buffers; where the
    /// virtual-memory management refused, it is [`VmmError::hip`].
    #[must_use]
    pub fn hip(&self, profile: HipProfile) -> HipError {
        match self {
            Self::Vmm(error) => error.hip(profile),
            Self::AddressLost { .. } => HipError::OutOfMemory,
            Self::PagesLost { .. } => HipError::Unknown,
            Self::BeyondMaximum { .. }
            | Self::BeyondEnd { .. }
            | Self::NoRing { .. }
            | Self::Paused
            | Self::NotPaused
            | Self::NoSuchPage { .. }
            | Self::PageMapped { .. }
            | Self::PageNotMapped { .. }
            | Self::PageLost { .. }
            | Self::OtherPages => HipError::InvalidValue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmm::{Argument, Operation, Problem};

    #[test]
    fn every_error_is_one_of_hips() {
        let cause = VmmError::InvalidArgument {
            operation: Operation::AddressFree,
            argument: Argument::Address,
            problem: Problem::StillMapped { mappings: 1 },
        };
        let address = Address::new(4096);
        for (error, hip6, hip7) in [
            (BufferError::from(cause), 999, 1),
            (BufferError::AddressLost { address, size: 1, cause }, 2, 2),
            (BufferError::PagesLost { first: 1, count: 1, cause }, 999, 999),
            (BufferError::BeyondMaximum { wanted: 2, maximum: 1 }, 1, 1),
            (BufferError::Paused, 1, 1),
        ] {
            let codes = [HipProfile::Hip6, HipProfile::Hip7].map(|it| error.hip(it).code());
            assert_eq!(codes, [hip6, hip7], "{error}");
        }
    }
}
