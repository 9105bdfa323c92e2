//! An operation that consumes a value failed, and gives the value back.

use super::Error;
use core::fmt;

/// A value that could not be unmapped, freed, released or closed, and the error.
///
/// The value is unchanged. The caller can try again; dropping the value tries once more. `?` drops
/// the value and converts to [`Error`].
///
/// ```
/// # use hsa_vmm::error::Rejected;
/// # use hsa_vmm::{Error, PoolMemory};
/// # fn f(memory: PoolMemory) -> Result<(), Error> {
/// memory.free()?;
/// # Ok(()) }
/// # fn g(memory: PoolMemory) -> Option<PoolMemory> {
/// // Or:
/// if let Err(Rejected { value, error }) = memory.free() {
///     eprintln!("{error}; still allocated at {}", value.address());
///     # return Some(value);
/// }
/// # None }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Rejected<T> {
    /// The value.
    pub value: T,
    /// Why the operation failed.
    pub error: Error,
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> core::error::Error for Rejected<T> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}
