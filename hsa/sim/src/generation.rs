//! The differences between the releases of AMD's runtime, and between its two implementations.
//!
//! The sources of generation E are the files of rocm-systems#12228: `runtimes/hsa/libhsa/src/memory.rs`, `runtime.rs`
//! and `README.md`, and `runtimes/ddi/rocddi/src/driver/linux_kfd/vmem.rs` of the driver layer.
//!
//! "Seen in" a release means: a test has observed this behaviour in AMD's own runtime.
//!
//! The other modules query [`Behaviour`]. In addition, `abi` and `no_op` compare version numbers, to leave out the
//! functions that a release lacks.

use core::fmt;
use core::ops::RangeInclusive;
use hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_INVALID_ALLOCATION, HSA_STATUS_ERROR_INVALID_ARGUMENT,
    hsa_status_t,
};

/// A ROCm generation: releases of AMD's runtime with one implementation of virtual memory. A to D are releases of ROCr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Generation {
    /// ROCm 6.0 to 7.1: revoking the CPU's access leaves a hole in the reservation.
    A,
    /// ROCm 7.2: no holes, but memory that was mapped counts as used until the addresses are freed, or until other code
    /// replaces the mapping that the runtime has left there.
    B,
    /// ROCm 7.14: resolves imports when access is set, has a descriptor for each handle, and
    /// requires that the owner is granted access last.
    C,
    /// ROCm 10: like C without the defects of C; supports CPU memory.
    D,
    /// AMD's `libhsa` on `rocddi`, a second implementation (rocm-systems#12228): maps from an offset, sets exact
    /// permissions, and waits for changes of page tables.
    E,
}

impl Generation {
    /// All generations, oldest first.
    pub const ALL: [Self; 5] = [Self::A, Self::B, Self::C, Self::D, Self::E];

    /// Returns the minor versions of AMD's extension that releases of this generation report.
    #[must_use]
    pub fn extensions(self) -> RangeInclusive<u32> {
        match self {
            Self::A => 0..=11,
            Self::B => 12..=15,
            Self::C => 16..=20,
            Self::D => 21..=u32::MAX,
            Self::E => 33..=33,
        }
    }

    /// Returns the generation of ROCr whose releases report this minor version. Never E.
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
            Self::E => 33,
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
            Self::E => "e",
        })
    }
}

/// What happens to the access of agents that a call of `set_access` does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnnamedAgents {
    /// Their access is revoked.
    Revoked,
    /// Their access is revoked if the call changes the permission of a named agent.
    RevokedOnChange,
    /// They keep their access.
    Kept,
}

/// The behaviour of one release. A method of type `bool` returns whether its description holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) generation: Generation,
    /// The minor version of AMD's extension. ROCm 6.1.2 has 4, 6.4.3 has 7, and 7.2.4 has 15.
    pub(crate) extension: u32,
    /// Whether the extension version can be queried. ROCm 6.0 has extension 1.4, but no attribute
    /// for it.
    pub(crate) extension_reported: bool,
}

impl Behaviour {
    /// The runtime is AMD's second implementation.
    fn is_rocddi(self) -> bool {
        self.generation == Generation::E
    }

    // --- Reservations ---

    /// A reservation is ordinary memory, readable and writable (before `reserve_align` existed).
    pub(crate) fn reservations_are_memory(self) -> bool {
        self.extension < 6
    }

    /// Returns the smallest rejected size (seen in 6.1.2; in later releases, only the address space limits sizes).
    pub(crate) fn reservation_limit(self) -> usize {
        if self.extension < 6 { 64 << 40 } else { usize::MAX }
    }

    /// `reserve_align` rejects sizes that are not whole pages, an alignment of less than a page (including 0), and
    /// unknown flags (E: memory.rs, `hsa_amd_vmem_address_reserve_align`).
    pub(crate) fn reserve_checks_arguments(self) -> bool {
        self.is_rocddi()
    }

    /// Reservations with the flag NO_REGISTER are ordinary memory. In E, only `pointer_info` reports the flag. The
    /// simulation does not report it.
    pub(crate) fn honours_no_register(self) -> bool {
        self.extension >= 10 && !self.is_rocddi()
    }

    /// With NO_REGISTER, `reserve_align` adds padding for two alignments and trims it to one (seen
    /// in 7.2.4). In the source of 7.0 it adds padding for one alignment and does not trim it.
    pub(crate) fn no_register_trims(self) -> bool {
        self.generation >= Generation::B
    }

    /// `address_free` of a NO_REGISTER range unmaps from the address that the kernel returned, not from the aligned
    /// address. The end of the range leaks.
    pub(crate) fn no_register_free_leaks(self) -> bool {
        self.generation < Generation::D
    }

    // --- Handles ---

    /// All calls on handles take the runtime's lock. In earlier generations, four of these calls do not (`overlap.rs`).
    pub(crate) fn locks_every_call(self) -> bool {
        self.generation >= Generation::D
    }

    /// Handles are addresses in an unmapped aperture. In later generations, they are addresses of heap objects.
    pub(crate) fn handles_are_aperture_addresses(self) -> bool {
        self.generation <= Generation::B
    }

    /// One descriptor is open for every live handle (E: vmem.rs, `KfdVirtualMemory::create`).
    pub(crate) fn descriptor_per_handle(self) -> bool {
        matches!(self.generation, Generation::C | Generation::E)
    }

    /// `create`, `map` and `export` reject unknown flags (E: memory.rs).
    pub(crate) fn rejects_unknown_flags(self) -> bool {
        self.is_rocddi()
    }

    /// `create` rejects pools without video memory before it checks the size.
    pub(crate) fn create_checks_pool_first(self) -> bool {
        self.extension < 6
    }

    /// Without free video memory, `create` ignores the failure of the kernel call, and returns success and handle 0
    /// (seen in 6.1.2). Mapping or exporting that handle fails.
    pub(crate) fn create_succeeds_without_memory(self) -> bool {
        self.extension < 6
    }

    /// `create` supports pools of CPUs (rocm-systems#7892; E: memory.rs, `hsa_amd_vmem_handle_create`).
    pub(crate) fn supports_cpu_memory(self) -> bool {
        self.generation >= Generation::D
    }

    // --- Map and unmap ---

    /// `map` creates the CPU's mapping without access, and `unmap` leaves it in place. The memory counts as used until
    /// the addresses are freed, or the mapping is replaced.
    pub(crate) fn map_creates_cpu_mapping(self) -> bool {
        self.generation == Generation::B
    }

    /// A `map` that fails at an unaligned address leaks its reference to the memory.
    pub(crate) fn failed_map_keeps_memory(self) -> bool {
        self.generation == Generation::B
    }

    /// `map` maps the memory from the argument `offset` on (E: memory.rs, `hsa_amd_vmem_map`). ROCr ignores the
    /// argument.
    pub(crate) fn maps_from_offset(self) -> bool {
        self.is_rocddi()
    }

    /// `map` rejects addresses that are not page-aligned. Generation D accepts them for imported
    /// memory; A, C and E accept them for all memory.
    pub(crate) fn map_checks_alignment(self, imported: bool) -> bool {
        self.generation == Generation::B || (self.generation == Generation::D && !imported)
    }

    /// `map` only records the mapping.
    pub(crate) fn map_only_records(self) -> bool {
        self.generation >= Generation::C
    }

    /// `map` rejects a range that is larger than the memory, also if the memory is imported. In the other releases,
    /// `set_access` rejects the range.
    pub(crate) fn map_checks_size(self) -> bool {
        !self.map_only_records() || self.is_rocddi()
    }

    /// `map` exports the memory internally, and therefore needs a free file descriptor (seen in
    /// 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn map_needs_descriptor(self) -> bool {
        self.generation <= Generation::B
    }

    /// `map` of more than the memory's size returns `INVALID_ARGUMENT` instead of
    /// `OUT_OF_RESOURCES`.
    pub(crate) fn map_too_large_is_invalid_argument(self) -> bool {
        self.extension >= 9
    }

    /// `unmap` accepts a range of several mappings.
    pub(crate) fn unmap_accepts_several_mappings(self) -> bool {
        self.extension >= 9
    }

    // --- Access ---

    /// Revoking the CPU's access unmaps the pages and leaves an address-space hole.
    pub(crate) fn cpu_revocation_leaves_hole(self) -> bool {
        self.generation == Generation::A
    }

    /// If revoking the CPU's access leaves no hole, it leaves the memory mapped without access (seen in 7.2.4). E
    /// restores the reservation instead (`sys::Reservation::view`).
    pub(crate) fn cpu_revocation_keeps_memory(self) -> bool {
        !self.is_rocddi()
    }

    /// GPUs get exactly the permissions that are set (E: vmem.rs, `submit_map`).
    pub(crate) fn permissions_are_exact(self) -> bool {
        self.is_rocddi()
    }

    /// `set_access` and `unmap` first wait until page tables have changed (E: vmem.rs, `wait_map` and `wait_unmap`).
    pub(crate) fn waits_for_page_tables(self) -> bool {
        self.is_rocddi()
    }

    /// `set_access` rejects unknown permissions, and a range that does not consist of whole mappings (E: memory.rs,
    /// `vmem_mapping_bases`).
    pub(crate) fn set_access_checks_range(self) -> bool {
        self.is_rocddi()
    }

    /// Returns the status of `set_access` if memory cannot be mapped at the address or in this size (E: device.rs,
    /// `validate_virtual_mapping`).
    pub(crate) fn not_mappable_status(self) -> hsa_status_t {
        if self.is_rocddi() { HSA_STATUS_ERROR_INVALID_ARGUMENT } else { HSA_STATUS_ERROR }
    }

    /// Granting a GPU access exports the memory internally, and therefore needs a free file
    /// descriptor. In generations C and E, each handle already has a descriptor.
    pub(crate) fn grant_needs_descriptor(self) -> bool {
        !self.descriptor_per_handle()
    }

    /// Granting a GPU access without a free descriptor aborts the process: the runtime asserts that
    /// the export succeeds (seen in 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn grant_without_descriptor_aborts(self) -> bool {
        self.generation <= Generation::B
    }

    /// `set_access` accepts a range of several mappings.
    pub(crate) fn set_access_accepts_several_mappings(self) -> bool {
        self.extension >= 6 || self.extension_reported
    }

    /// `set_access` accepts a range of no bytes (seen in 6.1.2).
    pub(crate) fn set_access_accepts_empty_range(self) -> bool {
        self.extension < 6
    }

    /// Returns what happens to unnamed agents. 6.0 revokes their access; 6.1.2 revokes it if a permission changes
    /// (seen).
    pub(crate) fn unnamed_agents(self) -> UnnamedAgents {
        match self.extension {
            ..6 if !self.extension_reported => UnnamedAgents::Revoked,
            ..=6 => UnnamedAgents::RevokedOnChange,
            _ => UnnamedAgents::Kept,
        }
    }

    /// A CPU can only access the range of the `set_access` call that first granted it access, not
    /// the whole mapping (seen in 6.1.2).
    pub(crate) fn limits_cpu_access_to_first_range(self) -> bool {
        self.extension < 6
    }

    /// The owner must be granted access after its peers: otherwise, it reads unrelated pages in ROCm 7.14
    /// (rocm-systems#9908, openxla/xla#46576). In the simulation, the later call for the peer fails, so that
    /// tests notice the wrong order.
    pub(crate) fn owner_must_be_last(self) -> bool {
        self.generation == Generation::C
    }

    /// `agents_allow_access` accepts virtual memory.
    pub(crate) fn allow_access_supports_vmem(self) -> bool {
        self.extension >= 7 && !self.is_rocddi()
    }

    /// Returns the status of `agents_allow_access` for addresses that it does not accept.
    pub(crate) fn not_allocated_status(self) -> hsa_status_t {
        if self.is_rocddi() { HSA_STATUS_ERROR_INVALID_ALLOCATION } else { HSA_STATUS_ERROR }
    }

    /// `get_access` treats the address after a mapping as part of the mapping.
    pub(crate) fn get_access_includes_end(self) -> bool {
        self.generation < Generation::D
    }

    /// `fill` supports virtual memory. Earlier releases do not: in 6.4.3, `fill` returns `INVALID_ALLOCATION` (seen);
    /// in 6.1.2, it fills with a wrong value or crashes.
    pub(crate) fn fills_virtual_memory(self) -> bool {
        self.extension >= 12
    }

    /// `get_access` returns the access of CPUs.
    pub(crate) fn get_access_supports_cpus(self) -> bool {
        self.generation >= Generation::D
    }

    /// `get_access` fails for an agent whose access was never set.
    pub(crate) fn get_access_rejects_unset_agents(self) -> bool {
        !self.extension_reported
    }

    // --- Sharing ---

    /// An imported descriptor is first used when access is set (rocm-systems#6471; #8304 describes the consequence; E:
    /// vmem.rs, `submit_map`).
    pub(crate) fn imports_lazily(self) -> bool {
        self.generation >= Generation::C
    }

    /// `import` rejects a file of size 0, but no other file (E: util.rs, `dma_buf_file_info`).
    pub(crate) fn import_checks_size(self) -> bool {
        self.is_rocddi()
    }

    /// `import` keeps the caller's descriptor instead of a duplicate. rocm-systems#8440 makes a
    /// duplicate; a comment there shows that ROCm 7.14.0 keeps the caller's descriptor.
    pub(crate) fn import_borrows_descriptor(self) -> bool {
        self.generation == Generation::C
    }

    /// `import` does not check that `hsa_init` was called. Before `hsa_init`, it fails with `INCOMPATIBLE_ARGUMENTS`,
    /// because the runtime has not opened the driver.
    pub(crate) fn import_skips_init_check(self) -> bool {
        self.extension < 12
    }

    /// All exports of a handle return the same descriptor (rocm-systems#10604; a comment in #8440 shows this for ROCm
    /// 7.14.0). From #7786 on, the handle does not keep that descriptor open.
    pub(crate) fn export_repeats_descriptor(self) -> bool {
        self.generation == Generation::C
    }

    /// `export` accepts imported handles. Later generations reject them. In D, the agent of the
    /// handle's region makes the export, and an import has no region (rocm-systems#11606; E:
    /// memory.rs, `hsa_amd_vmem_export_shareable_handle`).
    pub(crate) fn can_export_imports(self) -> bool {
        self.generation < Generation::D
    }

    /// The properties of an import contain no pool (rocm-systems#11606). In earlier generations, they contain the
    /// owner's last pool.
    pub(crate) fn imports_have_no_pool(self) -> bool {
        self.generation >= Generation::C
    }

    // --- Other functions ---

    /// Returns the minor version of HSA. Every release of ROCr reports 1.1 (E: lib.rs, `HSA_RUNTIME_VERSION_MINOR`).
    pub(crate) fn hsa_minor(self) -> u16 {
        if self.is_rocddi() { 21 } else { 1 }
    }

    /// `SVM_SUPPORTED` is true (E: lib.rs, `hsa_system_get_info`). In ROCr it depends on the kernel.
    pub(crate) fn reports_svm(self) -> bool {
        self.is_rocddi()
    }

    /// Agents report the alignment of images' rows, which is 0 (E: lib.rs, `hsa_agent_get_info`).
    pub(crate) fn has_row_pitch_alignment(self) -> bool {
        self.is_rocddi()
    }

    /// The loader's extension 1.0 is supported, by the runtime and by GPUs (E: lib.rs, `extension_mask` and
    /// `supported_extension_minor`). The functions of its table are not simulated.
    pub(crate) fn supports_loader(self) -> bool {
        self.is_rocddi()
    }

    /// The runtime has the functions of virtual memory.
    pub(crate) fn has_vmem(self) -> bool {
        self.extension >= 4
    }

    /// CPUs have a pool of extended scope. In 6.1.2 only GPUs have one (seen).
    pub(crate) fn cpus_have_extended_pool(self) -> bool {
        self.extension >= 6
    }

    /// Agents report the properties of their memory (seen in 6.1.2; not in the headers of 6.0).
    pub(crate) fn has_memory_properties(self) -> bool {
        self.extension >= 5 || self.extension_reported
    }

    /// The runtime reports whether fabric handles are supported.
    pub(crate) fn reports_fabric(self) -> bool {
        self.extension >= 16
    }

    /// Fabric handles work (rocm-systems#6471: they need a driver and hardware with UALink). In E they do not
    /// work (README.md: "Fabric virtual-memory handles are also unavailable").
    pub(crate) fn has_fabric(self) -> bool {
        self.generation == Generation::D
    }

    /// `pointer_info` distinguishes reservations from other addresses.
    pub(crate) fn pointer_info_knows_reservations(self) -> bool {
        self.extension >= 7
    }

    /// A range that starts after a reservation and wraps around passes the check that the reservation contains the
    /// range. 7.2.4 rejects such a range.
    pub(crate) fn ranges_may_wrap(self) -> bool {
        self.generation == Generation::A
    }

    /// `pointer_info` treats the address after a reservation as part of the reservation (seen in 7.2.4).
    pub(crate) fn pointer_info_includes_end(self) -> bool {
        self.generation == Generation::B
    }

    /// `unlock` returns success for memory that is not locked (seen in 6.1.2 and 6.4.3); 7.2.4
    /// asserts that the memory is locked.
    pub(crate) fn unlock_accepts_unlocked_memory(self) -> bool {
        self.generation == Generation::A
    }

    /// Agents report limits of scratch memory (seen in 6.4.3 and 7.2.4, not in 6.1.2).
    pub(crate) fn has_scratch_limits(self) -> bool {
        self.extension >= 7
    }

    /// Agents report clock counters (seen in 7.2.4, not in 6.4.3).
    pub(crate) fn has_clock_counters(self) -> bool {
        self.extension >= 15
    }

    /// Returns the largest grid in each dimension (seen in 6.1.2, 6.4.3 and 7.2.4).
    pub(crate) fn grid_limits(self) -> [u32; 3] {
        if self.is_rocddi() {
            // runtime.rs, `AGENT_INFO_GRID_MAX_DIM`.
            [u32::MAX, 0xffff, 0xffff]
        } else if self.extension >= 15 {
            [i32::MAX as u32, 0xffff, 0xffff]
        } else {
            [u32::MAX; 3]
        }
    }

    /// `pointer_info` of a mapping returns its start, and an address for the CPU only if the CPU has access (E:
    /// memory.rs, `vmem_pointer_description`). ROCr returns the queried address as both addresses.
    pub(crate) fn pointer_info_returns_start(self) -> bool {
        self.is_rocddi()
    }

    /// `pointer_info` distinguishes mappings from reservations.
    pub(crate) fn pointer_info_knows_mappings(self) -> bool {
        self.extension >= 12
    }
}
