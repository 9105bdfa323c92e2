//! What releases of AMD's runtime do differently from what they document.
//!
//! Each quirk is named after what goes wrong, with the public source of it, and can be switched
//! by hand ([`Vmm::open_with`](crate::Vmm::open_with)): a new release may fix it, a vendor's
//! build may not.

/// The runtime's habits that this library works around. All `false`: a runtime as documented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quirks {
    /// `set_access` takes access from agents that it does not name. Before extension 1.7 (fixed
    /// by ROCR-Runtime 73f6bfa7): the whole set is sent.
    pub set_access_drops_unnamed_agents: bool,
    /// Taking the CPU's access away leaves a hole in the reservation that a stranger's mapping
    /// can take (`RemoveAccess` is `munmap`). Before extension 1.12: the hole is filled at once.
    pub cpu_unmap_leaves_hole: bool,
    /// After `unmap` the old memory stays behind the addresses, without access, and is given back
    /// only with them (since extension 1.12, ROCm 7.2; torch_memory_saver#84): it is covered.
    pub unmap_keeps_memory: bool,
    /// To let a GPU in when no descriptor is left ends the process (an assertion about the export
    /// in `MappedHandleAllowedAgent`, seen in ROCm 6.1, 6.4 and 7.2): it is looked first.
    pub grant_without_descriptor_aborts: bool,
    /// A peer that is granted access after the memory's owner corrupts the mapping or is refused
    /// (ROCm 7.14; rocm-systems#9908, openxla/xla#46576): the mapping is made anew with the owner
    /// last.
    pub peer_after_owner_fails: bool,
    /// Export, import and properties take no lock in the runtime and race with create, release and
    /// map (before ROCm 10, extension 1.21): they take turns.
    pub some_calls_take_no_lock: bool,
    /// An exported descriptor goes on belonging to the runtime, and a second export returns the
    /// same one (ROCm 7.14, rocm-systems#10604; fixed by #7786): a copy is handed out.
    pub export_keeps_descriptor: bool,
    /// An import is not looked at before access is granted (since ROCm 7.14): a descriptor that is
    /// no memory is refused only then, and the owner is not known.
    pub import_is_lazy: bool,
    /// Imported memory needs the descriptor as long as it lives: ROCm 7.14 uses it later under the
    /// number that it had (rocm-systems#8440), and from 10.0 on the runtime exports no import.
    /// Our copy stays open, and is what is exported and shown to the CPU.
    pub import_needs_descriptor: bool,
}

impl Quirks {
    /// The quirks of a runtime by the version of AMD's extension it reports.
    #[must_use]
    pub fn of_extension((major, minor): (u16, u16)) -> Self {
        let below = |limit| major < 1 || major == 1 && minor < limit;
        // 7.14 reports 1.16 to 1.20; 10.0, which repaired its sharing, 1.21.
        let rework = !below(16) && below(21);
        Self {
            set_access_drops_unnamed_agents: below(7),
            cpu_unmap_leaves_hole: below(12),
            unmap_keeps_memory: !below(12),
            grant_without_descriptor_aborts: below(16),
            peer_after_owner_fails: rework,
            some_calls_take_no_lock: below(21),
            export_keeps_descriptor: rework,
            import_is_lazy: !below(16),
            import_needs_descriptor: !below(16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
