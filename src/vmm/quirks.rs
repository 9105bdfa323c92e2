//! What releases of AMD's runtime do differently from what they document.
//!
//! The table at the top says of each quirk what goes wrong and what is done about it, where that
//! is public, and which versions of AMD's extension have it. Callers can switch more of them on
//! ([`VmmOptions::with_quirks`](crate::vmm::VmmOptions::with_quirks)), for a vendor's build that
//! lacks a fix. Switching a needed one off is unsafe.

use core::ops::RangeInclusive;

/// A defect or deviation of the runtime that this library works around: a row of [`Quirks::KNOWN`].
///
/// ```
/// use hsa_vmm::vmm::Quirks;
/// for quirk in Quirks::KNOWN {
///     println!("{}: {}", quirk.name, quirk.what);
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quirk {
    /// The field of [`Quirks`].
    pub name: &'static str,
    /// What goes wrong, and what is done about it.
    pub what: &'static str,
    /// Where it is public: an issue, a pull request, or the change that ended it.
    pub issue: &'static str,
    /// The minor versions of AMD's extension 1 that have it.
    pub extensions: RangeInclusive<u16>,
    field: fn(&mut Quirks) -> &mut bool,
}

/// Versions to come.
const NEWEST: u16 = u16::MAX;

macro_rules! quirks {
    ($($(#[doc = $text:literal])+ $name:ident, $issue:literal, $extensions:expr;)+) => {
        /// The runtime's quirks that this library works around. All `false`: a runtime as
        /// documented.
        ///
        /// One that is switched on where it is not needed costs time and changes no answer; but
        /// `cpu_unmap_leaves_hole` then takes the runtime's own place holder for a foreign
        /// mapping and puts the range into quarantine, where the runtime gave the CPU its access.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Quirks {
            $($(#[doc = $text])+ #[doc = ""] #[doc = $issue] pub $name: bool,)+
        }

        impl Quirks {
            /// Every quirk, with its source and the versions that have it.
            pub const KNOWN: &[Quirk] = &[$(Quirk {
                name: stringify!($name),
                what: concat!($($text),+).trim_ascii(),
                issue: $issue,
                extensions: $extensions,
                field: |quirks| &mut quirks.$name,
            }),+];
        }
    };
}

quirks! {
    /// `set_access` takes access from agents that it does not name: the whole set is sent.
    set_access_drops_unnamed_agents, "ROCR-Runtime 73f6bfa7", 0..=6;

    /// `set_access` of several mappings is refused (ROCm 6.0), or ends the process if a CPU is among
    /// the agents (until 6.3): it is called mapping by mapping.
    set_access_of_several_fails, "ROCR-Runtime 8f1b0566", 0..=6;

    /// `unmap` of several mappings is refused (until ROCm 6.4): it is called mapping by mapping.
    unmap_of_several_fails, "ROCR-Runtime#285", 0..=8;

    /// Taking the CPU's access away leaves an address-space hole in the reservation, where a
    /// foreign mapping can be created (`RemoveAccess` is `munmap`): the hole is filled at once.
    cpu_unmap_leaves_hole, "ROCR-Runtime: MappedHandleAllowedAgent::RemoveAccess", 0..=11;

    /// After `unmap` the old memory stays mapped at the addresses, without access, and is freed
    /// only with them (since ROCm 7.2): something else is mapped over it.
    unmap_keeps_memory, "torch_memory_saver#84", 12..=NEWEST;

    /// Memory that was mapped once stays in use, unmapped and released, until the reservation that
    /// it was mapped in is freed (ROCm 7.2): [`PausableBuffer`](crate::buffer::PausableBuffer) frees
    /// its reservation and takes the same addresses anew, and
    /// [`PagedBuffer`](crate::buffer::PagedBuffer) keeps pages for their next use.
    memory_returns_with_addresses, "vllm#46203, torch_memory_saver#83", 12..=15;

    /// Granting a GPU access with no free file descriptor aborts the process (an assertion about the
    /// export, seen in ROCm 6.1, 6.4 and 7.2): a free descriptor is checked for first.
    grant_without_descriptor_aborts, "ROCR-Runtime: MappedHandleAllowedAgent", 0..=15;

    /// A peer that is granted access after the memory's owner corrupts the mapping or is refused
    /// (ROCm 7.14): the memory is mapped again with the owner last.
    peer_after_owner_fails, "rocm-systems#9908, openxla/xla#46576", 16..=20;

    /// Export, import and properties take no lock in the runtime and race with every other call on
    /// handles (before ROCm 10): each is the only such call in its library while it runs, whichever
    /// `Vmm` or `Runtime` of this process makes it.
    some_calls_take_no_lock, "ROCR-Runtime: Runtime::VMemoryExportShareableHandle", 0..=20;

    /// An exported descriptor goes on belonging to the runtime, and a second export returns the
    /// same one (ROCm 7.14; fixed by #7786): a copy is handed out.
    export_keeps_descriptor, "rocm-systems#10604", 16..=20;

    /// An import is not looked at before access is granted (since ROCm 7.14): a descriptor that is
    /// no memory is refused only then, and the owner is not known.
    import_is_lazy, "rocm-systems#6471, #11606", 16..=NEWEST;

    /// Imported memory needs the descriptor as long as it lives: ROCm 7.14 uses it later under the
    /// number that it had, and from 10.0 on the runtime exports no import. Our copy stays open, and
    /// is what is exported and shown to the CPU.
    import_needs_descriptor, "rocm-systems#8440", 16..=NEWEST;

    /// The thread that hands exported memory to other processes is told to end when the runtime
    /// stops, and not waited for: it frees what was freed already (until ROCm 7.2, where memory is
    /// shared by dma-buf). A runtime that has exported so stays started until the process ends.
    /// Switched on by [`Ipc::with_quirks`](crate::Ipc::with_quirks), as no `Vmm` takes part.
    ipc_server_outlives_stop, "rocm-systems#3256", 0..=15;
}

impl Quirks {
    /// The quirks of a runtime by the version of AMD's extension it reports.
    pub fn of_extension((major, minor): (u16, u16)) -> Self {
        let minor = match major {
            0 => 0,
            1 => minor,
            _ => NEWEST,
        };
        let mut quirks = Self::default();
        for quirk in Self::KNOWN {
            quirks.switch(quirk, quirk.extensions.contains(&minor));
        }
        quirks
    }

    /// Returns the quirks of both.
    pub fn union(mut self, other: Self) -> Self {
        for quirk in Self::KNOWN.iter().filter(|quirk| other.has(quirk)) {
            self.switch(quirk, true);
        }
        self
    }

    /// Whether a quirk is worked around.
    pub fn has(mut self, quirk: &Quirk) -> bool {
        *(quirk.field)(&mut self)
    }

    /// Works around a quirk, or does not.
    pub fn switch(&mut self, quirk: &Quirk, on: bool) {
        *(quirk.field)(self) = on;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_has_the_quirks_of_both() {
        let one = Quirks { import_is_lazy: true, ..Quirks::default() };
        let other = Quirks { unmap_keeps_memory: true, ..Quirks::default() };
        let both = Quirks { import_is_lazy: true, unmap_keeps_memory: true, ..Quirks::default() };
        assert_eq!(one.union(other), both);
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
            memory_returns_with_addresses: true,
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
        // Before version 1 everything is as old as can be.
        assert_eq!(Quirks::of_extension((0, 21)), Quirks::of_extension((1, 0)));
        assert_ne!(Quirks::of_extension((0, 21)), rocm_10);
    }

    #[test]
    fn quirks_are_switched_one_by_one() {
        for quirk in Quirks::KNOWN {
            let mut quirks = Quirks::default();
            assert!(!quirks.has(quirk), "{}", quirk.name);
            quirks.switch(quirk, true);
            assert!(quirks.has(quirk), "{}", quirk.name);
            let on = Quirks::KNOWN.iter().filter(|other| quirks.has(other));
            assert_eq!(on.map(|other| other.name).collect::<Vec<_>>(), [quirk.name]);
            assert!(!quirk.issue.is_empty() && !quirk.extensions.is_empty(), "{}", quirk.name);
            quirks.switch(quirk, false);
            assert_eq!(quirks, Quirks::default());
        }
    }
}
