//! A value that was not to be given up, and stays its owner's.

use crate::buffer::BufferError;
use crate::ipc::IpcError;
use crate::vmm::VmmError;
use core::error::Error;
use core::fmt;

/// What could not be unmapped, freed, released or moved, and why. The value is as it was, and may be
/// tried again; dropping it tries once more.
///
/// Who does not want it back uses `?`: it is an [`Error`] of its own, and becomes the error that it
/// carries.
///
/// ```
/// # use hsa_vmm::*;
/// # fn f(mapping: Mapping) -> Result<(), VmmError> {
/// mapping.unmap()?;
/// # Ok(()) }
/// # fn g(mapping: Mapping) -> Option<Mapping> {
/// // Or:
/// if let Err(Kept { value, error }) = mapping.unmap() {
///     eprintln!("{error}; still mapped at {}", value.address());
///     # return Some(value);
/// }
/// # None }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<T, E> {
    /// What is still there.
    pub value: T,
    /// Why.
    pub error: E,
}

impl<T, E> Kept<T, E> {
    pub(crate) fn new(value: T, error: E) -> Self {
        Self { value, error }
    }
}

impl<T, E: fmt::Display> fmt::Display for Kept<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug, E: Error> Error for Kept<T, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

macro_rules! becomes {
    ($($error:ty),+) => {$(
        impl<T> From<Kept<T, Self>> for $error {
            fn from(kept: Kept<T, Self>) -> Self {
                kept.error
            }
        }
    )+};
}

becomes!(IpcError, VmmError);

impl<T> From<Kept<T, VmmError>> for BufferError {
    fn from(kept: Kept<T, VmmError>) -> Self {
        kept.error.into()
    }
}
