//! Values of attributes, as the bytes that the caller's variable receives.

use crate::status::{HsaResult, non_null};
use core::ffi::c_void;

/// The value of an attribute, in the type that HSA documents for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value(Vec<u8>);

impl Value {
    /// Returns a text in an array of `room` bytes, padded with zeros. A longer text is cut off.
    pub(crate) fn text(room: usize, text: &str) -> Self {
        let mut bytes = vec![0; room];
        let length = text.len().min(room.saturating_sub(1));
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self(bytes)
    }

    pub(crate) fn zeros(length: usize) -> Self {
        Self(vec![0; length])
    }

    /// Writes the value to the caller's variable.
    ///
    /// # Safety
    /// `variable` must be null or have room for the attribute's type.
    pub(crate) unsafe fn write(&self, variable: *mut c_void) -> HsaResult {
        let variable = non_null(variable)?.cast::<u8>();
        // SAFETY: not null, and the caller has room for the value.
        unsafe { variable.as_ptr().copy_from_nonoverlapping(self.0.as_ptr(), self.0.len()) };
        Ok(())
    }
}

macro_rules! from_numbers {
    ($($number:ty)*) => { $(
        impl From<$number> for Value {
            fn from(number: $number) -> Self {
                Self(number.to_ne_bytes().to_vec())
            }
        }

        impl<const LENGTH: usize> From<[$number; LENGTH]> for Value {
            fn from(numbers: [$number; LENGTH]) -> Self {
                Self(numbers.iter().flat_map(|number| number.to_ne_bytes()).collect())
            }
        }
    )* };
}
from_numbers! { u8 u16 u32 u64 usize }

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self(vec![u8::from(flag)])
    }
}

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn text_is_cut_off_and_terminated() {
        assert_eq!(Value::text(4, "gfx942").0, b"gfx\0");
        assert_eq!(Value::text(8, "gfx").0, b"gfx\0\0\0\0\0");
    }

    #[test]
    fn null_variable_is_rejected() {
        // SAFETY: null is permitted.
        let written = unsafe { Value::from(1u32).write(core::ptr::null_mut()) };
        assert_eq!(written, Err(hsa_sys::HSA_STATUS_ERROR_INVALID_ARGUMENT));
    }
}
