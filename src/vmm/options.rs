//! What a [`Vmm`](crate::Vmm) is opened with.

use super::{QuirkChoice, Quirks};
use crate::hip::HipProfile;

/// What a [`Vmm`](crate::Vmm) is opened with.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VmmOptions {
    /// Whose answers it gives where HIP's releases differ.
    pub profile: HipProfile,
    pub(super) quirks: QuirkChoice,
}

impl VmmOptions {
    /// The newest HIP's answers, and the quirks that are known of the runtime's version.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with this HIP's answers.
    #[must_use]
    pub fn with_profile(self, profile: HipProfile) -> Self {
        Self { profile, ..self }
    }

    /// Works around these quirks, besides those known of the runtime's version: for a vendor's
    /// build that lacks a fix.
    #[must_use]
    pub fn with_quirks(self, quirks: Quirks) -> Self {
        Self { quirks: QuirkChoice::Known(quirks), ..self }
    }

    /// Works around these quirks and no others, whatever is known of the runtime's version: for
    /// tests and benchmarks.
    ///
    /// # Safety
    /// The runtime must not have any quirk that `quirks` leaves out, or the caller must not do what
    /// that quirk makes undefined. [`Quirks::KNOWN`] says of each what goes wrong: without
    /// `export_keeps_descriptor`, for example, dropping an exported descriptor twice closes one that
    /// belongs to somebody else.
    ///
    /// ```compile_fail,E0133
    /// use hsa_vmm::vmm::{Quirks, VmmOptions};
    ///
    /// let options = VmmOptions::new().with_exact_quirks(Quirks::default());
    /// ```
    #[allow(unsafe_code, reason = "a promise of the caller's that the compiler cannot check")]
    #[must_use]
    pub unsafe fn with_exact_quirks(self, quirks: Quirks) -> Self {
        Self { quirks: QuirkChoice::Exact(quirks), ..self }
    }
}
