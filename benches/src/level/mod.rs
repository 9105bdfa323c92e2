//! The levels: interfaces that offer the same calls.

pub(crate) mod hip;
mod layout;
pub(crate) mod owned;
pub(crate) mod raw;
pub(crate) mod vmm;

pub(crate) use layout::Layout;

use core::fmt;
use serde::Serialize;
use std::error::Error;

/// An interface through which the calls are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The runtime's own functions.
    Raw,
    /// [`hsa_vmm::Vmm`].
    Vmm,
    /// The owned values [`hsa_vmm::Reservation`], [`hsa_vmm::Allocation`], [`hsa_vmm::Mapping`].
    Owned,
    /// This library's C interface.
    C,
    /// HIP itself.
    Hip,
}

impl Level {
    /// Returns the name in results, such as `raw`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Vmm => "vmm",
            Self::Owned => "owned",
            Self::C => "c",
            Self::Hip => "hip",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

pub(crate) fn call_error(call: &str, status: impl fmt::Display) -> Box<dyn Error> {
    format!("{call} returned {status}").into()
}

/// The calls of a level. `index` selects one of the reservations, allocations or handles of a round; `at` is an
/// address.
pub(crate) trait Caller {
    fn reserve(&mut self, index: usize) -> Outcome;
    fn create(&mut self, index: usize) -> Outcome;
    fn map(&mut self, index: usize, at: usize) -> Outcome;
    fn set_access(&mut self, index: usize, at: usize) -> Outcome;
    fn get_access(&mut self, at: usize) -> Outcome;
    fn retain(&mut self, index: usize, at: usize) -> Outcome;
    fn properties(&mut self, index: usize) -> Outcome;
    fn export(&mut self, index: usize) -> Outcome;
    fn import(&mut self, index: usize) -> Outcome;
    fn unmap(&mut self, index: usize, at: usize) -> Outcome;
    fn release(&mut self, index: usize) -> Outcome;
    fn free(&mut self, index: usize) -> Outcome;
    /// Performs a complete cycle with new objects.
    fn cycle(&mut self) -> Outcome;
    /// Drops the references of `retain`, the exported descriptors and the imported handles.
    fn release_extras(&mut self) -> Outcome;
}
