//! The differences between the releases of AMD's runtime.
//!
//! All other modules query [`Behaviour`] by name and never compare version numbers.

use core::fmt;
use core::ops::RangeInclusive;

/// A ROCm generation: releases of AMD's runtime with one implementation of virtual memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Generation {
    /// ROCm 6.0 to 7.1: revoking the CPU's access leaves a hole in the reservation.
    A,
    /// ROCm 7.2: no holes, but memory once mapped stays claimed until the addresses are freed.
    B,
    /// ROCm 7.14: imports are resolved when access is set; each handle has a descriptor; the owner
    /// must be granted access last.
    C,
    /// ROCm 10: as C without its defects; supports CPU memory.
    D,
}

impl Generation {
    /// All generations, oldest first.
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    /// Returns the minor versions of AMD's extension that its releases report.
    #[must_use]
    pub fn extensions(self) -> RangeInclusive<u32> {
        match self {
            Self::A => 0..=11,
            Self::B => 12..=15,
            Self::C => 16..=20,
            Self::D => 21..=u32::MAX,
        }
    }

    /// Returns the generation whose releases report this minor version.
    #[must_use]
    pub fn of_extension(minor: u32) -> Self {
        let generation =
            Self::ALL.into_iter().find(|generation| generation.extensions().contains(&minor));
        generation.unwrap_or(Self::D)
    }

    /// Returns the minor version of AMD's extension that this generation usually reports.
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

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
        })
    }
}

/// Which agents lose access by a call of `set_access` that does not name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// All of them.
    Dropped,
    /// All of them, but only when a named agent's permission changes.
    DroppedOnChange,
    /// None.
    Kept,
}

/// The behaviour of one release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) generation: Generation,
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

    /// Sizes from this limit on are rejected (observed in 6.1.2; later only the address space limits
    /// them).
    pub(crate) fn reservation_limit(self) -> usize {
        if self.extension < 6 { 64 << 40 } else { usize::MAX }
    }

    pub(crate) fn honours_no_register(self) -> bool {
        self.extension >= 10
    }

    /// NO_REGISTER reserves padding for two alignments and trims it to one (seen in 7.2.4; 7.0's
    /// source has padding for one and does not trim).
    pub(crate) fn no_register_trims(self) -> bool {
        self.generation >= Generation::B
    }

    /// Freeing a NO_REGISTER range starts at the kernel's address, not at the caller's.
    pub(crate) fn no_register_free_leaks(self) -> bool {
        self.generation < Generation::D
    }

    // --- Handles ---

    /// All calls on handles take the runtime's lock; before, four of them do not.
    pub(crate) fn locks_every_call(self) -> bool {
        self.generation >= Generation::D
    }

    /// Handles are addresses in an unmapped aperture; later they are heap objects.
    pub(crate) fn handles_are_fake_addresses(self) -> bool {
        self.generation <= Generation::B
    }

    /// One descriptor is open for every live handle.
    pub(crate) fn descriptor_per_handle(self) -> bool {
        self.generation == Generation::C
    }

    /// `create` rejects pools other than video memory before it checks the size.
    pub(crate) fn create_looks_at_pool_first(self) -> bool {
        self.extension < 6
    }

    /// Without free video memory, `create` returns success and handle 0 (seen in 6.1.2, although
    /// its kernel call failed). Mapping or exporting it fails.
    pub(crate) fn create_hides_exhaustion(self) -> bool {
        self.extension < 6
    }

    pub(crate) fn memory_of_cpus(self) -> bool {
        self.generation == Generation::D
    }

    // --- Map and unmap ---

    /// `map` creates the CPU's mapping without access. It fails for addresses that are not
    /// page-aligned, and the memory stays claimed until the addresses are freed.
    pub(crate) fn map_prepares_cpu(self) -> bool {
        self.generation == Generation::B
    }

    /// A `map` that fails there leaks its claim of the memory.
    pub(crate) fn failed_map_keeps_memory(self) -> bool {
        self.generation == Generation::B
    }

    /// Generation D checks as B does, but only for memory of this process, and nothing stays
    /// claimed.
    pub(crate) fn map_checks_alignment(self, imported: bool) -> bool {
        self.generation == Generation::B || (self.generation == Generation::D && !imported)
    }

    /// `map` only records the mapping.
    pub(crate) fn map_is_bookkeeping(self) -> bool {
        self.generation >= Generation::C
    }

    /// `map` exports the memory to itself, for which it needs a file descriptor for a moment (seen in
    /// 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn map_needs_descriptor(self) -> bool {
        self.generation <= Generation::B
    }

    pub(crate) fn map_too_large_is_invalid_argument(self) -> bool {
        self.extension >= 9
    }

    pub(crate) fn unmaps_several(self) -> bool {
        self.extension >= 9
    }

    // --- Access ---

    /// Revoking the CPU's access unmaps the pages and leaves an address-space hole.
    pub(crate) fn cpu_revocation_leaves_hole(self) -> bool {
        self.generation == Generation::A
    }

    /// Granting a GPU access exports the memory to itself. From ROCm 7.14 on each handle has a
    /// descriptor already; ROCm 10 closes it again.
    pub(crate) fn grant_needs_descriptor(self) -> bool {
        self.generation != Generation::C
    }

    /// Without a free descriptor the process aborts: the runtime asserts that the export succeeds
    /// (seen in 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn grant_without_descriptor_aborts(self) -> bool {
        self.generation <= Generation::B
    }

    pub(crate) fn sets_access_of_several(self) -> bool {
        self.extension >= 6 || self.extension_reported
    }

    /// 6.1.2 was seen to accept a range of no bytes.
    pub(crate) fn sets_access_of_nothing(self) -> bool {
        self.extension < 6
    }

    /// 6.0 drops them always; 6.1.2 only if a permission changes (seen).
    pub(crate) fn unnamed_agents(self) -> Unnamed {
        match self.extension {
            ..6 if !self.extension_reported => Unnamed::Dropped,
            ..=6 => Unnamed::DroppedOnChange,
            _ => Unnamed::Kept,
        }
    }

    /// A CPU can access only the range of the call that first granted it access, although the whole
    /// mapping is changed (seen in 6.1.2).
    pub(crate) fn cpu_access_ends_as_asked(self) -> bool {
        self.extension < 6
    }

    /// Granting a peer access fails once the owner has access.
    pub(crate) fn owner_must_be_last(self) -> bool {
        self.generation == Generation::C
    }

    pub(crate) fn allow_access_knows_vmem(self) -> bool {
        self.extension >= 7
    }

    /// The address past a mapping counts as part of it.
    pub(crate) fn get_access_includes_end(self) -> bool {
        self.generation < Generation::D
    }

    /// Whether `fill` supports virtual memory. 6.4.3 returns `INVALID_ALLOCATION` (seen); 6.1.2
    /// fills with a wrong value or crashes.
    pub(crate) fn fills_virtual_memory(self) -> bool {
        self.extension >= 12
    }

    pub(crate) fn get_access_knows_cpus(self) -> bool {
        self.generation == Generation::D
    }

    pub(crate) fn get_access_refuses_never_set(self) -> bool {
        !self.extension_reported
    }

    // --- Sharing ---

    /// A descriptor is first used when access is set.
    pub(crate) fn imports_lazily(self) -> bool {
        self.generation >= Generation::C
    }

    /// The runtime uses the caller's descriptor instead of a duplicate.
    pub(crate) fn import_borrows_descriptor(self) -> bool {
        self.generation == Generation::C
    }

    /// Import does not check for `hsa_init`, but fails without a driver.
    pub(crate) fn import_forgets_open_check(self) -> bool {
        self.extension < 12
    }

    /// Every export returns the same descriptor.
    pub(crate) fn export_repeats_descriptor(self) -> bool {
        self.generation == Generation::C
    }

    pub(crate) fn exports_imports(self) -> bool {
        self.generation < Generation::D
    }

    /// An import has no pool, instead of the GPU's last.
    pub(crate) fn imports_have_no_pool(self) -> bool {
        self.generation >= Generation::C
    }

    // --- Other functions ---

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

    /// `pointer_info` distinguishes reservations from other addresses.
    pub(crate) fn pointer_info_knows_reservations(self) -> bool {
        self.extension >= 7
    }

    /// A range that wraps around is found in a reservation that does not contain its start (not in
    /// 7.2.4).
    pub(crate) fn ranges_may_wrap(self) -> bool {
        self.generation == Generation::A
    }

    /// The address past a reservation counts as part of it (seen in 7.2.4).
    pub(crate) fn pointer_info_includes_end(self) -> bool {
        self.generation == Generation::B
    }

    /// `unlock` returns success for memory that is not locked (seen in 6.1.2 and 6.4.3; 7.2.4
    /// asserts that it is locked).
    pub(crate) fn unlocks_anything(self) -> bool {
        self.generation == Generation::A
    }

    /// `pointer_info` distinguishes mappings from reservations.
    pub(crate) fn pointer_info_knows_mappings(self) -> bool {
        self.extension >= 12
    }
}
