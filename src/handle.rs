//! Handles of physical memory, and the types of shareable handles.

use derive_more::{Debug, Display};

/// Identifies physical memory. [`create`](crate::Vmm::create) and imports return handles.
///
/// Corresponds to `hipMemGenericAllocationHandle_t`. Within a process, no two handles ever have the same number. In
/// contrast, AMD's runtime reuses its own handles as soon as the memory is freed. Every function rejects a handle that
/// was released or that belongs to another [`Vmm`](crate::Vmm): such a handle never identifies other memory. A number
/// that no call returned is very unlikely to be a valid handle.
///
/// ```
/// use hsa_vmm::Handle;
///
/// let handle = Handle::from_bits(42);
/// assert_eq!(handle.to_bits(), 42);
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[debug("handle {:#018x}", self.to_bits())]
#[display("{:#018x}", self.to_bits())]
pub struct Handle(
    /// The number, unique in the process; 0 for the null handle.
    pub(crate) u64,
);

/// A handle's bits are its number times this factor, modulo 2⁶⁴. The factor is odd, so different numbers have
/// different bits. A handle with one changed bit, or a small number that a C program passes by mistake, is very
/// unlikely to be a live handle.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// The inverse of [`MULTIPLIER`].
const INVERSE: u64 = 0xf1de_83e1_9937_733d;
const _: () = assert!(MULTIPLIER.wrapping_mul(INVERSE) == 1);

impl Handle {
    /// Returns the handle's bits, for C and for traces. Only the null handle has the bits 0.
    pub const fn to_bits(self) -> u64 {
        self.0.wrapping_mul(MULTIPLIER)
    }

    /// Returns the handle with these bits. Functions that take a handle check whether it exists.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits.wrapping_mul(INVERSE))
    }
}

bitflags::bitflags! {
    /// A set of types of shareable handles (`hipMemAllocationHandleType`).
    ///
    /// ```
    /// use hsa_vmm::HandleType;
    ///
    /// let types = HandleType::POSIX_FILE_DESCRIPTOR | HandleType::FABRIC;
    /// assert!(types.contains(HandleType::FABRIC));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HandleType: u32 {
        /// A file descriptor of a dma-buf (`hipMemHandleTypePosixFileDescriptor`, 1).
        const POSIX_FILE_DESCRIPTOR = 1;
        /// A Windows handle (2); not supported by this library.
        const WIN32 = 2;
        /// A Windows kernel-mode handle (4); not supported by this library.
        const WIN32_KMT = 4;
        /// A [fabric handle](crate::vmm::FabricHandle) (8). Only some runtimes, drivers and GPUs support fabric
        /// handles.
        const FABRIC = 8;
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_round_trip_through_bits() {
        for number in [1, 2, 1 << 40, u64::MAX] {
            let handle = Handle(number);
            assert_eq!(Handle::from_bits(handle.to_bits()), handle);
            assert_ne!(handle.to_bits(), 0);
        }
        assert_eq!(Handle::from_bits(0).0, 0);
    }

    #[test]
    fn flipped_bits_yield_large_numbers() {
        for number in 1..1000 {
            let bits = Handle(number).to_bits();
            let changed = (0..64).map(|bit| Handle::from_bits(bits ^ 1 << bit).0);
            assert!(changed.into_iter().all(|number| number > 1 << 32));
        }
    }
}
