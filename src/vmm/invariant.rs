//! What is found when the library's own books are checked and do not hold.

/// An invariant of the library's own books does not hold ([`Vmm::check`](crate::Vmm::check)).
///
/// It is a defect of this library, whatever the runtime did; please report it with these words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenInvariant(pub(super) String);
