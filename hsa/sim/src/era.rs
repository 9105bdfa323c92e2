//! What changed between the releases of AMD's runtime, in one place.
//!
//! Everything else asks [`Behaviour`] a question by name and never looks at a number.

use core::fmt;
use core::ops::RangeInclusive;

/// The four implementations of virtual memory that AMD's runtime has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Era {
    /// ROCm 6.0 to 7.1: taking the CPU's access away leaves a hole in the reservation.
    A,
    /// ROCm 7.2: no holes, but memory once mapped stays claimed until the addresses are freed.
    B,
    /// ROCm 7.14: imports are looked at when access is set; a descriptor a handle; the owner must
    /// be granted last.
    C,
    /// ROCm 10: as C with its defects mended; memory of the CPU, too.
    D,
}

impl Era {
    /// All of them, the oldest first.
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    /// The minor numbers of AMD's extension that the releases of this era report.
    #[must_use]
    pub fn extensions(self) -> RangeInclusive<u32> {
        match self {
            Self::A => 0..=11,
            Self::B => 12..=15,
            Self::C => 16..=20,
            Self::D => 21..=u32::MAX,
        }
    }

    /// The era whose releases report this minor number.
    #[must_use]
    pub fn of_extension(minor: u32) -> Self {
        let era = Self::ALL.into_iter().find(|era| era.extensions().contains(&minor));
        era.unwrap_or(Self::D)
    }

    /// The minor number of AMD's extension that this era usually reports.
    #[must_use]
    pub fn extension(self) -> u32 {
        match self {
            Self::A => 7,
            Self::B => 15,
            Self::C => 20,
            Self::D => 22,
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
        })
    }
}

/// Which agents that a call of `set_access` does not name lose their access by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// All of them.
    Dropped,
    /// All of them, but only when a named agent's permission changes.
    DroppedOnChange,
    /// None.
    Kept,
}

/// The differences between releases, as questions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) era: Era,
    pub(crate) extension: u32,
    /// ROCm 6.0 had extension 1.4 but no attribute to ask for it.
    pub(crate) extension_reported: bool,
}

impl Behaviour {
    // --- Reservations ---

    /// Before `reserve_align` a reservation was ordinary memory that could be read and written.
    pub(crate) fn reservations_are_memory(self) -> bool {
        self.extension < 6
    }

    /// Sizes from here on were refused (seen in 6.1.2; later only the address space limits).
    pub(crate) fn reservation_limit(self) -> usize {
        if self.extension < 6 { 64 << 40 } else { usize::MAX }
    }

    pub(crate) fn honours_no_register(self) -> bool {
        self.extension >= 10
    }

    /// Such a range is taken with room for two alignments, and cut to one (seen in 7.2.4; 7.0's
    /// source has room for one and does not cut).
    pub(crate) fn no_register_trims(self) -> bool {
        self.era >= Era::B
    }

    /// Freeing such a range gives back what the kernel answered and not what the caller got.
    pub(crate) fn no_register_free_leaks(self) -> bool {
        self.era < Era::D
    }

    // --- Handles ---

    /// Every call on handles takes the runtime's lock; before, four of them do not.
    pub(crate) fn locks_every_call(self) -> bool {
        self.era >= Era::D
    }

    /// Handles are addresses in an aperture that no pointer reaches; later they are heap objects.
    pub(crate) fn handles_are_fake_addresses(self) -> bool {
        self.era <= Era::B
    }

    /// One descriptor is open for every live handle.
    pub(crate) fn descriptor_per_handle(self) -> bool {
        self.era == Era::C
    }

    /// Any other pool than one of video memory is refused before the size is looked at.
    pub(crate) fn create_looks_at_pool_first(self) -> bool {
        self.extension < 6
    }

    /// Where video memory is used up, `create` answers a handle all the same (seen in 6.1.2, whose
    /// kernel had refused): 0, whose mapping or exporting fails.
    pub(crate) fn create_hides_exhaustion(self) -> bool {
        self.extension < 6
    }

    pub(crate) fn memory_of_cpus(self) -> bool {
        self.era == Era::D
    }

    // --- Map and unmap ---

    /// `map` makes the CPU's mapping, without access: addresses that are no page fail there, and
    /// the memory stays claimed until the addresses are freed.
    pub(crate) fn map_prepares_cpu(self) -> bool {
        self.era == Era::B
    }

    /// A `map` that fails there does not give back what it has made of the memory.
    pub(crate) fn failed_map_keeps_memory(self) -> bool {
        self.era == Era::B
    }

    /// As in era B for memory of this process only, and nothing lingers.
    pub(crate) fn map_checks_alignment(self, imported: bool) -> bool {
        self.era == Era::B || (self.era == Era::D && !imported)
    }

    /// `map` does nothing but write down what is to be.
    pub(crate) fn map_is_bookkeeping(self) -> bool {
        self.era >= Era::C
    }

    /// `map` exports the memory to itself, for which it needs a file descriptor for a moment (seen in
    /// 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn map_needs_descriptor(self) -> bool {
        self.era <= Era::B
    }

    pub(crate) fn map_too_large_is_invalid_argument(self) -> bool {
        self.extension >= 9
    }

    pub(crate) fn unmaps_several(self) -> bool {
        self.extension >= 9
    }

    // --- Access ---

    /// Taking the CPU's access away unmaps the pages and leaves the addresses to anyone.
    pub(crate) fn cpu_revocation_leaves_hole(self) -> bool {
        self.era == Era::A
    }

    /// Granting a GPU access exports the memory to itself. From ROCm 7.14 on each handle has a
    /// descriptor already; ROCm 10 closes it again.
    pub(crate) fn grant_needs_descriptor(self) -> bool {
        self.era != Era::C
    }

    /// Where there is no descriptor for it, the process ends: the runtime asserts that the export
    /// succeeds (seen in 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn grant_without_descriptor_aborts(self) -> bool {
        self.era <= Era::B
    }

    pub(crate) fn sets_access_of_several(self) -> bool {
        self.extension >= 6 || self.extension_reported
    }

    /// 6.1.2 was seen to accept a range of no bytes.
    pub(crate) fn sets_access_of_nothing(self) -> bool {
        self.extension < 6
    }

    /// 6.0 dropped them in any case; 6.1.2 was seen to drop them only with a change.
    pub(crate) fn unnamed_agents(self) -> Unnamed {
        match self.extension {
            ..6 if !self.extension_reported => Unnamed::Dropped,
            ..=6 => Unnamed::DroppedOnChange,
            _ => Unnamed::Kept,
        }
    }

    /// A CPU sees no more of a mapping than the call was about that first gave it access, although
    /// the whole mapping is changed (seen in 6.1.2).
    pub(crate) fn cpu_access_ends_as_asked(self) -> bool {
        self.extension < 6
    }

    /// A peer cannot be granted once the owner has been.
    pub(crate) fn owner_must_be_last(self) -> bool {
        self.era == Era::C
    }

    pub(crate) fn allow_access_knows_vmem(self) -> bool {
        self.extension >= 7
    }

    /// The address one past a mapping answers as the mapping does.
    pub(crate) fn get_access_includes_end(self) -> bool {
        self.era < Era::D
    }

    /// Whether a fill finds the agent of an address of virtual memory. 6.4.3 was seen to answer
    /// `INVALID_ALLOCATION`; 6.1.2 filled with a wrong value or crashed.
    pub(crate) fn fills_virtual_memory(self) -> bool {
        self.extension >= 12
    }

    pub(crate) fn get_access_knows_cpus(self) -> bool {
        self.era == Era::D
    }

    pub(crate) fn get_access_refuses_never_set(self) -> bool {
        !self.extension_reported
    }

    // --- Sharing ---

    /// A descriptor is first looked at when access is set.
    pub(crate) fn imports_lazily(self) -> bool {
        self.era >= Era::C
    }

    /// The runtime works on the caller's own descriptor instead of a copy.
    pub(crate) fn import_borrows_descriptor(self) -> bool {
        self.era == Era::C
    }

    /// Import without `hsa_init` is not refused as such, but finds no driver.
    pub(crate) fn import_forgets_open_check(self) -> bool {
        self.extension < 12
    }

    /// Every export answers the same descriptor.
    pub(crate) fn export_repeats_descriptor(self) -> bool {
        self.era == Era::C
    }

    pub(crate) fn exports_imports(self) -> bool {
        self.era < Era::D
    }

    /// The pool of an import is none at all instead of the GPU's last.
    pub(crate) fn imports_have_no_pool(self) -> bool {
        self.era >= Era::C
    }

    // --- What else is there ---

    pub(crate) fn has_vmem(self) -> bool {
        self.extension >= 4
    }

    /// CPUs have a pool of extended scope (not seen in 6.1.2, where GPUs have theirs).
    pub(crate) fn cpus_have_extended_pool(self) -> bool {
        self.extension >= 6
    }

    pub(crate) fn has_memory_properties(self) -> bool {
        self.extension >= 5
    }

    pub(crate) fn has_fabric(self) -> bool {
        self.extension >= 16
    }

    /// `pointer_info` tells reservations from other addresses.
    pub(crate) fn pointer_info_knows_reservations(self) -> bool {
        self.extension >= 7
    }

    /// A range that wraps around is found in a reservation that its start is not in (not in 7.2.4).
    pub(crate) fn ranges_may_wrap(self) -> bool {
        self.era == Era::A
    }

    /// The address one past a reservation is still taken for it (seen in 7.2.4).
    pub(crate) fn pointer_info_includes_end(self) -> bool {
        self.era == Era::B
    }

    /// `unlock` answers success to memory that is not locked (seen in 6.1.2 and 6.4.3; 7.2.4 takes it
    /// for impossible).
    pub(crate) fn unlocks_anything(self) -> bool {
        self.era == Era::A
    }

    /// `pointer_info` tells mappings from reservations.
    pub(crate) fn pointer_info_knows_mappings(self) -> bool {
        self.extension >= 12
    }
}
