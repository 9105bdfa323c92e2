//! Options of [`Vmm::open_with`](crate::Vmm::open_with).

use super::Quirks;
use crate::hip::HipProfile;

/// Options that a [`Vmm`](crate::Vmm) is opened with.
///
/// ```
/// use hsa_vmm::hip::HipProfile;
/// use hsa_vmm::vmm::VmmOptions;
/// use hsa_vmm::{Runtime, Vmm};
///
/// # fn main() -> Result<(), hsa_vmm::Error> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open_with(&runtime, VmmOptions::new().with_profile(HipProfile::Hip6))?;
/// assert_eq!(vmm.profile(), HipProfile::Hip6);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VmmOptions {
    /// The release of HIP whose behaviour the `Vmm` has, if releases differ.
    pub profile: HipProfile,
    /// Quirks to work around besides those of the runtime's version.
    pub(super) more_quirks: Quirks,
    /// The exact quirks to work around. Only an unsafe function sets this.
    pub(super) exact_quirks: Option<Quirks>,
}

impl VmmOptions {
    /// Returns the defaults: the newest profile, and the known quirks of the runtime's version.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the profile.
    #[must_use]
    pub fn with_profile(self, profile: HipProfile) -> Self {
        Self { profile, ..self }
    }

    /// Works around these quirks besides the known quirks of the runtime's version: for a vendor's build that
    /// lacks a fix.
    #[must_use]
    pub fn with_quirks(self, quirks: Quirks) -> Self {
        Self { more_quirks: quirks, exact_quirks: None, ..self }
    }

    /// Works around exactly these quirks, independently of the runtime's version: for tests and
    /// benchmarks.
    ///
    /// # Safety
    /// The runtime must not have any quirk that `quirks` omits, or the caller must not make calls that the
    /// quirk makes undefined. [`Quirks::KNOWN`] describes the defect of each: without
    /// `export_keeps_descriptor`, for example, dropping two exported descriptors closes one that
    /// belongs to other code.
    ///
    /// ```compile_fail,E0133
    /// use hsa_vmm::vmm::{Quirks, VmmOptions};
    ///
    /// let options = VmmOptions::new().with_exact_quirks(Quirks::default());
    /// ```
    #[allow(unsafe_code, reason = "a promise of the caller's that the compiler cannot check")]
    #[must_use]
    pub unsafe fn with_exact_quirks(self, quirks: Quirks) -> Self {
        Self { exact_quirks: Some(quirks), ..self }
    }
}
