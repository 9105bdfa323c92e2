//! Options of [`Vmm::open_with`](crate::Vmm::open_with).

use super::{Probing, Quirks};
use crate::hip::HipProfile;

/// Options for opening a [`Vmm`](crate::Vmm).
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
    /// Whether [`with_page_tables`](Self::with_page_tables) is set.
    page_tables: bool,
    /// Whether GPUs are prevented from executing code in memory that they can read and write.
    pub(super) no_execute: bool,
    /// Whether operations wait until their changes of page tables have taken effect.
    pub(super) barrier: bool,
    /// Quirks to work around in addition to the quirks of the runtime's version.
    pub(super) more_quirks: Quirks,
    /// On which runtimes opening a `Vmm` probes for quirks.
    pub(super) probing: Probing,
    /// The exact quirks to work around. Only [`with_exact_quirks`](Self::with_exact_quirks), which is unsafe, sets
    /// them.
    pub(super) exact_quirks: Option<Quirks>,
}

impl VmmOptions {
    pub(super) fn changes_page_tables(&self) -> bool {
        self.page_tables || self.no_execute
    }

    /// Returns the defaults: the newest profile, the quirks that probes of the runtime find, and the known quirks of
    /// its version that no probe reveals.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the profile.
    #[must_use]
    pub fn with_profile(self, profile: HipProfile) -> Self {
        Self { profile, ..self }
    }

    /// Enforces the access of GPUs in their page tables, and waits at the end of each operation until changes
    /// have taken effect. Off by default.
    ///
    /// AMD's runtime maps memory for a GPU readable, writable and executable, whatever was requested, and
    /// its calls return before the GPU uses the new entries. With this option, the library changes the
    /// entries through the runtime's own copy of libdrm, and waits through `/dev/kfd`. Opening the `Vmm`
    /// tests each GPU; [`Vmm::enforcement`](crate::Vmm::enforcement) returns the result, and the log
    /// contains the reason if a GPU's page table cannot be changed.
    ///
    /// No GPU may use a mapping while the access to the mapping changes: the kernel removes the old entries before it
    /// writes the new ones. During a call that grants a GPU less than full access for the first time, the GPU has full
    /// access.
    #[must_use]
    pub fn with_page_tables(self, enabled: bool) -> Self {
        Self { page_tables: enabled, ..self }
    }

    /// Prevents GPUs from executing code in memory that they can read and write. Off by default; includes
    /// [`with_page_tables`](Self::with_page_tables).
    ///
    /// AMD's runtime also grants execute access with [`ReadWrite`](crate::Access::ReadWrite). With this option, the
    /// library replaces the entries of such mappings, too, which costs one driver call for each GPU and mapping.
    /// A GPU whose page table is not controlled can still execute code everywhere.
    #[must_use]
    pub fn with_no_execute(self, enabled: bool) -> Self {
        Self { no_execute: enabled, ..self }
    }

    /// Waits at the end of each operation until the operation's changes of GPUs' page tables have taken effect. Off by
    /// default; [`with_page_tables`](Self::with_page_tables) includes it.
    ///
    /// Depending on the GPU, the kernel writes the entries after its call has returned, or does not flush the GPU's
    /// TLB. Without waiting, a GPU's access to a mapping can fault if it follows immediately after the grant. A GPU
    /// whose access was revoked, or whose memory was unmapped, can still use the memory for a while. An operation that
    /// changes no GPU's entries does not wait. Each wait makes one call on `/dev/kfd`. If `/dev/kfd` cannot be used,
    /// each wait calls `hsa_amd_memory_lock` and `hsa_amd_memory_unlock` on one page instead.
    #[must_use]
    pub fn with_barrier(self, enabled: bool) -> Self {
        Self { barrier: enabled, ..self }
    }

    /// Works around these quirks in addition to the known quirks of the runtime's version. Use this for a vendor's
    /// build that lacks a fix.
    #[must_use]
    pub fn with_quirks(self, quirks: Quirks) -> Self {
        Self { more_quirks: quirks, exact_quirks: None, ..self }
    }

    /// Sets whether opening a `Vmm` probes the runtime for quirks. Without probes, the quirks follow from the
    /// implementation and its version. By default, every runtime except the simulation is probed. Probes are harmless,
    /// and run once for each [`Runtime`](crate::Runtime); if one of their calls fails, they run again at the next
    /// opening. Together they make up to 20 runtime calls, copy nothing, and use one granule of a GPU's memory.
    /// [`Vmm::probes`](crate::Vmm::probes) returns the results; the log contains the results that contradict the
    /// version. If the version is known to have `cpu_unmap_leaves_hole`, the probe cannot exclude this quirk.
    ///
    /// The version of an [unknown](crate::runtime::Implementation::Unknown) runtime is not used. On such a runtime, a
    /// quirk stays enabled until a probe shows that the runtime does not have it. `peer_after_owner_fails` is an
    /// exception: a probe can find it, but not exclude it, so on an unknown runtime it is enabled only if a probe has
    /// found it. A probe shows nothing if probing is off, if one of its calls fails, or if the machine lacks what it
    /// needs, such as a second GPU. An unneeded workaround can leak descriptors or quarantine addresses ([`Quirks`]
    /// lists these workarounds).
    #[must_use]
    pub fn with_probing(self, probing: Probing) -> Self {
        Self { probing, ..self }
    }

    /// Works around exactly these quirks, whatever the runtime's version is, and without probes. Use this for tests and
    /// benchmarks.
    ///
    /// # Safety
    /// For each quirk that `quirks` omits, the runtime must not have the quirk, or the caller must not make calls that
    /// the quirk makes undefined. [`Quirks::KNOWN`] describes each quirk. If the runtime has `export_keeps_descriptor`,
    /// for example, and `quirks` omits it, dropping two exported descriptors closes a descriptor of other code.
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
