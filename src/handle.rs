//! Names of physical memory that cannot be mistaken for one another.

use core::fmt;

/// Names physical memory that [`create`](crate::Vmm::create) or an import made.
///
/// Stands for `hipMemGenericAllocationHandle_t`. It is never the runtime's own value, which is
/// reused as soon as the memory is gone: 24 bits are a slot, 40 bits a number that is given once
/// in a process, whichever [`Vmm`](crate::Vmm) gives it. A stale, foreign or invented handle is
/// an error wherever it is used, never a crash and never other memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

const SLOT_BITS: u32 = 24;

impl Handle {
    /// The most slots that can be told apart.
    pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
    /// The end of the numbers that a handle can have.
    pub(crate) const NUMBERS: u64 = 1 << (u64::BITS - SLOT_BITS);

    pub(crate) fn pack(number: u64, slot: u32) -> Self {
        Self(number << SLOT_BITS | u64::from(slot))
    }

    /// What no other handle of this process has.
    pub(crate) fn number(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & (Self::SLOTS as u64 - 1)) as usize
    }

    /// The handle as a number, for interfaces that have nothing else (C, traces). Never zero.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The handle of that number. Whether it names anything is found out when it is used.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {} in slot {}", self.number(), self.slot())
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

bitflags::bitflags! {
    /// Kinds of shareable handles (`hipMemAllocationHandleType`, as bits).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HandleTypes: u32 {
        /// A file descriptor (`hipMemHandleTypePosixFileDescriptor`, 1).
        const POSIX_FILE_DESCRIPTOR = 1;
        /// A Windows handle (2); never supported here.
        const WIN32 = 2;
        /// A Windows kernel-mode handle (4); never supported here.
        const WIN32_KMT = 4;
        /// A fabric handle (8), where runtime and hardware have one.
        const FABRIC = 8;
        const _ = !0;
    }
}

/// One kind of shareable handle (`hipMemAllocationHandleType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandleType {
    /// A file descriptor of a dma-buf.
    PosixFileDescriptor,
    /// A Windows handle.
    Win32,
    /// A Windows kernel-mode handle.
    Win32Kmt,
    /// A fabric handle.
    Fabric,
}

impl HandleType {
    /// The type as one bit of a set.
    #[must_use]
    pub fn bit(self) -> HandleTypes {
        match self {
            Self::PosixFileDescriptor => HandleTypes::POSIX_FILE_DESCRIPTOR,
            Self::Win32 => HandleTypes::WIN32,
            Self::Win32Kmt => HandleTypes::WIN32_KMT,
            Self::Fabric => HandleTypes::FABRIC,
        }
    }
}

impl fmt::Display for HandleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PosixFileDescriptor => "a file descriptor",
            Self::Win32 => "a Win32 handle",
            Self::Win32Kmt => "a Win32 KMT handle",
            Self::Fabric => "a fabric handle",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_is_a_number_and_a_slot() {
        let last_slot = Handle::SLOTS as u32 - 1;
        for (number, slot) in [(1, 0), (Handle::NUMBERS - 1, last_slot), (7, 12)] {
            let handle = Handle::pack(number, slot);
            assert_eq!((handle.number(), handle.slot()), (number, slot as usize));
            assert_eq!(Handle::from_bits(handle.to_bits()), handle);
        }
    }

    #[test]
    fn handles_can_be_told_apart_in_print() {
        let handle = Handle::pack(7, 12);
        assert_eq!(format!("{handle:?}"), "handle 7 in slot 12");
        assert_eq!(handle.to_string(), "0x000000000700000c");
    }
}
