//! Deviations of AMD's runtimes from their documentation.
//!
//! The table below lists each quirk with the defect and its workaround, a public source, and the affected
//! implementations and versions. Opening a `Vmm` [probes](crate::vmm::Probing) for the quirks that a harmless call
//! reveals, and these results override the version, except that a probe cannot exclude `cpu_unmap_leaves_hole` if the
//! version has it. On an [unknown](Implementation::Unknown) runtime, three kinds of
//! quirks are enabled: the quirks that probes find, the quirks that a probe could exclude but has not, and quirks that
//! can crash the process and whose workaround is harmless. Callers can enable more quirks
//! ([`VmmOptions::with_quirks`](crate::vmm::VmmOptions::with_quirks)), for a vendor's build that lacks a fix. Disabling
//! the workaround of a quirk that the runtime has is unsafe.

use crate::runtime::{Implementation, RuntimeInfo};
use core::ops::RangeInclusive;

/// A defect or deviation of the runtime that this library works around: a row of [`Quirks::KNOWN`].
///
/// ```
/// use hsa_vmm::vmm::Quirks;
/// for quirk in Quirks::KNOWN {
///     println!("{}: {}", quirk.name, quirk.description);
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quirk {
    /// The field of [`Quirks`].
    pub name: &'static str,
    /// The defect and its workaround.
    pub description: &'static str,
    /// A public source: an issue, a pull request, or the commit that fixed the defect.
    pub issue: &'static str,
    /// The releases of ROCr that have the quirk, by the minor version of AMD's extension 1.
    pub rocr: RangeInclusive<u16>,
    /// Whether AMD's `libhsa` on `rocddi` has the quirk (extension 1.33).
    pub rocddi: bool,
    /// Whether the quirk is also enabled on a runtime of unknown implementation. This is set only if the defect can
    /// crash the process and the workaround does not harm a correct runtime.
    pub if_unknown: bool,
    /// Whether opening a `Vmm` can probe for the quirk
    /// ([`VmmOptions::with_probing`](crate::vmm::VmmOptions::with_probing)).
    pub probed: bool,
    field: fn(&mut Quirks) -> &mut bool,
}

/// All later versions.
const NEWEST: u16 = u16::MAX;

impl Quirk {
    /// Describes a quirk of these releases of ROCr, and of no other runtime.
    const fn of_rocr(
        (name, description, issue): (&'static str, &'static str, &'static str),
        rocr: RangeInclusive<u16>,
        field: fn(&mut Quirks) -> &mut bool,
    ) -> Self {
        let (rocddi, if_unknown, probed) = (false, false, false);
        Self { name, description, issue, rocr, rocddi, if_unknown, probed, field }
    }
}

// Each row: the description, the name, the source, the releases of ROCr, and the flags of `Quirk` that are set.
macro_rules! quirks {
    ($($(#[doc = $text:literal])+ $name:ident, $issue:literal, $rocr:expr $(, $flag:ident)*;)+) => {
        /// The runtime's quirks that this library works around. All are `false` for a runtime
        /// that behaves as documented.
        ///
        /// Most unneeded workarounds only cost time. The exceptions:
        ///
        /// * `cpu_unmap_leaves_hole`: if the runtime granted the CPU access, the workaround mistakes
        ///   the runtime's own mapping for a foreign one and quarantines the range.
        /// * `export_keeps_descriptor`: each export, and each mapping for the CPU, leaks a descriptor, which
        ///   keeps the memory alive.
        /// * `import_is_lazy`: the owner of imported memory is reported as unknown, unless the runtime
        ///   reports the memory's pool.
        /// * `import_needs_descriptor`: each import keeps a descriptor open.
        /// * `grant_without_descriptor_aborts`: without a free descriptor, a GPU's first access cannot be granted, even
        ///   if the runtime needs no descriptor.
        /// * `peer_after_owner_fails`: a grant to another GPU unmaps the memory for a moment, and agents that
        ///   use it fault.
        /// * `ipc_server_outlives_stop`: a runtime that has exported memory stays started.
        ///
        /// ```
        /// fn can_unmap_adjacent_at_once(vmm: &hsa_vmm::Vmm) -> bool {
        ///     !vmm.quirks().unmap_of_several_fails
        /// }
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Quirks {
            $($(#[doc = $text])+ #[doc = ""] #[doc = $issue] pub $name: bool,)+
        }

        impl Quirks {
            /// Every quirk, with its source and the versions that have it.
            pub const KNOWN: &[Quirk] = &[$(Quirk {
                $($flag: true,)*
                ..Quirk::of_rocr(
                    (stringify!($name), concat!($($text),+).trim_ascii(), $issue),
                    $rocr,
                    |quirks| &mut quirks.$name,
                )
            }),+];
        }
    };
}

quirks! {
    /// `set_access` revokes the access of agents that it does not list. Workaround: the library lists all agents.
    set_access_drops_unnamed_agents, "ROCR-Runtime 73f6bfa7", 0..=6, probed;

    /// `set_access` to several mappings fails (ROCm 6.0), or aborts the process if the list contains a CPU (until 6.3).
    /// Workaround: the library calls `set_access` once for each mapping.
    set_access_of_several_fails, "ROCR-Runtime 8f1b0566", 0..=6, if_unknown;

    /// `unmap` of several mappings fails (until ROCm 6.4). Workaround: the library calls `unmap` once for each mapping.
    unmap_of_several_fails, "ROCR-Runtime#285", 0..=8, probed;

    /// Revoking the CPU's access leaves an address-space hole in the reservation, where a foreign mapping can be
    /// created (`RemoveAccess` calls `munmap`). Workaround: the library fills the hole at once.
    cpu_unmap_leaves_hole, "ROCR-Runtime: MappedHandleAllowedAgent::RemoveAccess", 0..=11, probed;

    /// After `unmap` the old memory stays mapped at the addresses, without access, and is freed only when the addresses
    /// are freed (since ROCm 7.2). Workaround: the library places another mapping over the old memory.
    unmap_keeps_memory, "torch_memory_saver#83, #84, vllm#46203", 12..=NEWEST, probed;

    /// Granting a GPU access with no free file descriptor aborts the process (an assertion about the export, seen in
    /// ROCm 6.1, 6.4 and 7.2). Workaround: the library checks for a free descriptor first.
    grant_without_descriptor_aborts, "ROCR-Runtime: MappedHandleAllowedAgent", 0..=15, if_unknown;

    /// A grant to a peer fails or corrupts the mapping if the memory's owner already has access (ROCm 7.14).
    /// Workaround: the library unmaps the memory, maps it again, and grants the owner access last. An agent that uses
    /// the memory meanwhile faults. Other mappings of the same memory are not mapped again, and the owner may read wrong
    /// pages there. The probe can find a failed grant, but not a corrupted mapping.
    peer_after_owner_fails, "rocm-systems#9908, openxla/xla#46576", 16..=20, probed;

    /// Export, import and properties take no lock in the runtime, and race with every other call on handles (before
    /// ROCm 10). Workaround: hsa-vmm has one lock for each loaded runtime, which each of these calls holds exclusively.
    /// All `Vmm`s and `Runtime`s of this process share this lock.
    some_calls_take_no_lock, "ROCR-Runtime: Runtime::VMemoryExportShareableHandle", 0..=20, if_unknown;

    /// The runtime keeps an exported descriptor, and a second export returns the same descriptor (ROCm 7.14; fixed by
    /// #7786). Workaround: the library returns a duplicate.
    export_keeps_descriptor, "rocm-systems#10604", 16..=20, probed;

    /// The runtime checks an import only when access is granted (since ROCm 7.14, and in rocddi), and accepts any
    /// descriptor until then. Workaround: unless the runtime reports the memory's pool, the library reports the owner
    /// of imported memory as unknown.
    import_is_lazy, "rocm-systems#6471, #11606, #12228", 16..=NEWEST, rocddi, probed;

    /// Imported memory needs its descriptor: ROCm 7.14 uses the descriptor's number again after the import; ROCm since
    /// 10.0 and rocddi cannot export imported memory. Workaround: the library keeps a duplicate of the descriptor, and
    /// uses it for exports and for mappings for the CPU.
    import_needs_descriptor, "rocm-systems#8440, #12228", 16..=NEWEST, rocddi, probed;

    /// When the runtime stops, it does not wait for the thread that sends exported memory to other processes. This
    /// thread then frees memory twice (until ROCm 7.2, with sharing by dma-buf). Workaround: a runtime that has
    /// exported memory this way stays started until the process ends. To select this workaround, use
    /// [`Ipc::with_quirks`](crate::Ipc::with_quirks), because no `Vmm` is involved.
    ipc_server_outlives_stop, "rocm-systems#3256", 0..=15, if_unknown;
}

impl Quirks {
    /// Returns the known quirks of a runtime, by its [implementation](RuntimeInfo::implementation) and version.
    pub fn of_runtime(info: &RuntimeInfo) -> Self {
        match info.implementation {
            Implementation::Simulation if info.build.ends_with("(libhsa on rocddi)") => {
                Self::all_where(|quirk| quirk.rocddi)
            }
            // A simulation that does not simulate rocddi behaves as the release of ROCr whose version it reports.
            Implementation::Rocr { .. } | Implementation::Simulation => {
                Self::of_extension(info.extension)
            }
            Implementation::Rocddi => Self::all_where(|quirk| quirk.rocddi),
            Implementation::Unknown { .. } => Self::all_where(|quirk| quirk.if_unknown),
        }
    }

    /// Returns the quirks of a release of ROCr, by the version of AMD's extension that it reports.
    pub fn of_extension((major, minor): (u16, u16)) -> Self {
        let minor = match major {
            0 => 0,
            1 => minor,
            _ => NEWEST,
        };
        Self::all_where(|quirk| quirk.rocr.contains(&minor))
    }

    /// Returns the quirks that are in either of the two sets.
    pub fn union(self, other: Self) -> Self {
        Self::all_where(|quirk| self.has(quirk) || other.has(quirk))
    }

    /// Returns the quirks for which `enabled` returns `true`.
    pub(super) fn all_where(enabled: impl Fn(&Quirk) -> bool) -> Self {
        let mut quirks = Self::default();
        Self::KNOWN.iter().for_each(|quirk| quirks.set(quirk, enabled(quirk)));
        quirks
    }

    /// Returns whether a quirk is in this set.
    pub fn has(mut self, quirk: &Quirk) -> bool {
        *(quirk.field)(&mut self)
    }

    /// Adds a quirk to this set, or removes it.
    pub fn set(&mut self, quirk: &Quirk, enabled: bool) {
        *(quirk.field)(self) = enabled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_has_the_quirks_of_both() {
        let first = Quirks { import_is_lazy: true, ..Quirks::default() };
        let second = Quirks { unmap_keeps_memory: true, ..Quirks::default() };
        let both = Quirks { import_is_lazy: true, unmap_keeps_memory: true, ..Quirks::default() };
        assert_eq!(first.union(second), both);
        assert_eq!(both.union(Quirks::default()), both);
    }

    #[test]
    fn quirks_follow_the_extension() {
        let rocm_6_1 = Quirks::of_extension((1, 4));
        assert!(rocm_6_1.set_access_drops_unnamed_agents && rocm_6_1.cpu_unmap_leaves_hole);
        let rocm_6_4 = Quirks::of_extension((1, 7));
        assert!(!rocm_6_4.set_access_drops_unnamed_agents && rocm_6_4.cpu_unmap_leaves_hole);
        let rocm_7_2 = Quirks::of_extension((1, 15));
        let expected = Quirks {
            unmap_keeps_memory: true,
            grant_without_descriptor_aborts: true,
            some_calls_take_no_lock: true,
            ipc_server_outlives_stop: true,
            ..Quirks::default()
        };
        assert_eq!(rocm_7_2, expected);
        let rocm_7_14 = Quirks::of_extension((1, 20));
        assert!(rocm_7_14.export_keeps_descriptor && rocm_7_14.import_needs_descriptor);
        assert!(rocm_7_14.peer_after_owner_fails);
        let rocm_10 = Quirks {
            unmap_keeps_memory: true,
            import_is_lazy: true,
            import_needs_descriptor: true,
            ..Quirks::default()
        };
        assert_eq!(Quirks::of_extension((1, 21)), rocm_10);
        assert_eq!(Quirks::of_extension((2, 0)), rocm_10);
        // A version before 1 has the quirks of the oldest version.
        assert_eq!(Quirks::of_extension((0, 21)), Quirks::of_extension((1, 0)));
        assert_ne!(Quirks::of_extension((0, 21)), rocm_10);
    }

    #[test]
    fn quirks_belong_to_an_implementation() {
        let names = |enabled: fn(&Quirk) -> bool| {
            let quirks = Quirks::KNOWN.iter().filter(|quirk| enabled(quirk));
            quirks.map(|quirk| quirk.name).collect::<Vec<_>>()
        };
        assert_eq!(names(|quirk| quirk.rocddi), ["import_is_lazy", "import_needs_descriptor"]);
        assert!(Quirks::KNOWN.iter().all(|quirk| !(quirk.probed && quirk.if_unknown)));
        assert_eq!(
            names(|quirk| quirk.if_unknown),
            [
                "set_access_of_several_fails",
                "grant_without_descriptor_aborts",
                "some_calls_take_no_lock",
                "ipc_server_outlives_stop"
            ]
        );
    }

    #[test]
    fn quirks_are_switched_one_by_one() {
        for quirk in Quirks::KNOWN {
            let mut quirks = Quirks::default();
            assert!(!quirks.has(quirk), "{}", quirk.name);
            quirks.set(quirk, true);
            assert!(quirks.has(quirk), "{}", quirk.name);
            let enabled = Quirks::KNOWN.iter().filter(|other| quirks.has(other));
            assert_eq!(enabled.map(|other| other.name).collect::<Vec<_>>(), [quirk.name]);
            assert!(!quirk.issue.is_empty() && !quirk.rocr.is_empty(), "{}", quirk.name);
            quirks.set(quirk, false);
            assert_eq!(quirks, Quirks::default());
        }
    }
}
