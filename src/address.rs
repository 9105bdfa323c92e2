//! The type of addresses.

use core::ffi::c_void;
use derive_more::{Debug, Display};

/// An address in this process. Agents use the same address for the same memory, with one exception:
/// the caller's memory in an area
/// ([`AreaMemory::device_address`](crate::area::AreaMemory::device_address)).
///
/// The address may be invalid: every operation that takes an address checks it.
///
/// ```
/// use hsa_vmm::Address;
///
/// let address = Address::new(0x1000);
/// assert_eq!(address.checked_add(0x20), Some(Address::new(0x1020)));
/// assert_eq!(address.to_string(), "0x1000");
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[debug("{_0:#x}")]
#[display("{_0:#x}")]
pub struct Address(usize);

impl Address {
    /// The null address, at which nothing is ever mapped.
    pub const NULL: Self = Self(0);

    /// Returns the address with this number.
    #[must_use]
    pub const fn new(value: usize) -> Self {
        Self(value)
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Returns the address as a pointer, for kernels and for unsafe code.
    pub const fn as_ptr(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// Adds a number of bytes. Returns `None` if the result is past the end of the address space.
    pub fn checked_add(self, bytes: usize) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl<T: ?Sized> From<*const T> for Address {
    fn from(pointer: *const T) -> Self {
        Self(pointer.cast::<u8>() as usize)
    }
}

impl<T: ?Sized> From<*mut T> for Address {
    fn from(pointer: *mut T) -> Self {
        Self(pointer.cast::<u8>() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_pointers() {
        let mut value = 7_u64;
        let writable: *mut u64 = &mut value;
        let address = Address::from(writable);
        assert_eq!(address, Address::from(writable.cast_const()));
        assert_eq!((address.get(), address.as_ptr()), (writable as usize, writable.cast()));
        assert_eq!(address.to_string(), format!("{writable:p}"));
        assert_eq!(format!("{address:?}"), format!("{writable:p}"));
    }
}
