//! The table of 72 edge cases that the sources of conformance cases cite as `reference 6.2`; see docs/conformance.md.

use hsa_vmm::hip::{HipError, HipProfile};

#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub number: u32,
    /// The edge case, in the words of the reference (docs/conformance.md).
    pub title: &'static str,
    pub coverage: Coverage,
}

/// How a row is covered.
#[derive(Clone, Copy, Debug)]
pub enum Coverage {
    /// By conformance cases: the expected result, and the names of the cases, separated by spaces.
    Cases(Expected, &'static str),
    /// By a test, because a case cannot cover the row.
    Test { reason: &'static str, file: &'static str, name: &'static str },
}

/// The expected result of the call.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    Works,
    Rejected {
        hip6: HipError,
        hip7: HipError,
    },
    /// Opening the `Vmm` fails. The case itself checks the error.
    AtOpening,
}

impl Expected {
    /// Returns the expected HIP error, if any.
    pub fn error(self, profile: HipProfile) -> Option<HipError> {
        match self {
            Self::Works | Self::AtOpening => None,
            Self::Rejected { hip6, .. } if profile == HipProfile::Hip6 => Some(hip6),
            Self::Rejected { hip7, .. } => Some(hip7),
        }
    }
}

impl Row {
    /// Returns the names of the cases that cover the row.
    pub fn cases(&self) -> impl Iterator<Item = &'static str> {
        let names = if let Coverage::Cases(_, names) = self.coverage { names } else { "" };
        names.split_whitespace()
    }
}

use Expected::{AtOpening as AT_OPENING, Works as WORKS};

const fn rejected(hip6: HipError, hip7: HipError) -> Expected {
    Expected::Rejected { hip6, hip7 }
}

const INVALID: Expected = rejected(HipError::InvalidValue, HipError::InvalidValue);
const BAD_RESERVATION: Expected = rejected(HipError::OutOfMemory, HipError::InvalidValue);
const STILL_MAPPED: Expected = rejected(HipError::Unknown, HipError::InvalidValue);
const BAD_DEVICE: Expected = rejected(HipError::InvalidValue, HipError::InvalidDevice);
const UNSUPPORTED: Expected = rejected(HipError::NotSupported, HipError::NotSupported);
const SAME_PROCESS: Expected = rejected(HipError::InvalidContext, HipError::InvalidContext);
const FREED: Expected = rejected(HipError::InvalidDevicePointer, HipError::InvalidDevicePointer);
const OUT_OF_MEMORY: Expected = rejected(HipError::OutOfMemory, HipError::OutOfMemory);

const fn cases(number: u32, title: &'static str, expected: Expected, names: &'static str) -> Row {
    Row { number, title, coverage: Coverage::Cases(expected, names) }
}

const fn test(
    number: u32,
    title: &'static str,
    reason: &'static str,
    file: &'static str,
    name: &'static str,
) -> Row {
    Row { number, title, coverage: Coverage::Test { reason, file, name } }
}

pub const ROWS: &[Row] = &[
    cases(1, "reserve size 0", BAD_RESERVATION, "reserve.size.zero"),
    cases(
        2,
        "reserve size not page multiple",
        BAD_RESERVATION,
        "reserve.size.off_the_granule reserve.size.one_byte",
    ),
    cases(3, "reserve alignment not pow2", BAD_RESERVATION, "reserve.alignment.not_power_of_two"),
    cases(4, "reserve alignment pow2 < page", WORKS, "reserve.alignment.below_the_granule"),
    cases(5, "reserve hint already taken", WORKS, "reserve.hint.taken"),
    cases(
        6,
        "reserve hint free but not aligned to `alignment`",
        WORKS,
        "reserve.hint.off_the_alignment",
    ),
    cases(7, "reserve flags≠0", INVALID, "reserve.flags.refused"),
    cases(
        8,
        "free interior / unknown ptr",
        INVALID,
        "reserve.free.inside reserve.free.never_reserved",
    ),
    cases(9, "free wrong size", INVALID, "reserve.free.size_smaller reserve.free.size_larger"),
    cases(
        10,
        "free while mapped",
        STILL_MAPPED,
        "reserve.free.while_mapped hip.codes.address_free hip.profile.free_while_mapped",
    ),
    cases(11, "double free of reservation", INVALID, "reserve.free.twice"),
    cases(12, "create size not granularity multiple", INVALID, "create.size.off_the_granule"),
    cases(
        13,
        "create bad device id",
        BAD_DEVICE,
        "create.agent.invented create.agent.of_another_runtime hip.profile.bad_device",
    ),
    cases(14, "create requestedHandleType Win32", UNSUPPORTED, "create.handle_type.windows"),
    test(
        15,
        "create Managed/Invalid type",
        "AllocationKind lacks these values; only C can pass them",
        "capi/tests/hip_tests/hipMemCreate.c",
        "hipMemCreate_Negative",
    ),
    cases(16, "create location Host", UNSUPPORTED, "create.agent.cpu"),
    cases(17, "create size > VRAM", OUT_OF_MEMORY, "create.size.too_large"),
    cases(18, "map offset≠0", INVALID, "map.offset.one_granule"),
    cases(19, "map size < handle", WORKS, "map.memory.part_of_a_handle"),
    cases(20, "map size > handle", INVALID, "map.size.beyond_the_handle"),
    cases(
        21,
        "map outside / straddling reservation",
        INVALID,
        "map.range.beyond_the_reservation map.address.not_reserved",
    ),
    cases(22, "map across two adjacent reservations", INVALID, "map.range.across_reservations"),
    cases(
        23,
        "map over existing mapping",
        INVALID,
        "map.range.same_as_a_mapping map.range.over_the_start_of_a_mapping map.range.over_the_end_of_a_mapping map.range.around_a_mapping",
    ),
    cases(24, "map unaligned va inside reservation", INVALID, "map.address.off_the_granule"),
    cases(
        25,
        "same handle at two VAs",
        WORKS,
        "map.handle.at_two_places buffer.ring.no_seam buffer.ring.gpus_see_no_seam",
    ),
    cases(
        26,
        "map a released handle (still mapped elsewhere)",
        INVALID,
        "map.handle.released_while_mapped",
    ),
    cases(27, "map a released unmapped handle", INVALID, "map.handle.released"),
    cases(28, "release while mapped", WORKS, "release.mapped.memory_stays"),
    cases(29, "release twice", INVALID, "release.handle.twice release.handle.stale_after_reuse"),
    cases(30, "unmap part of a mapping", INVALID, "unmap.size.first_half unmap.size.second_half"),
    cases(31, "unmap several whole contiguous mappings", WORKS, "unmap.run.several_mappings"),
    cases(32, "unmap range with a gap", INVALID, "unmap.range.over_a_hole"),
    cases(33, "unmap(base+4K, size) interior start", INVALID, "unmap.range.start_inside"),
    cases(34, "unmap without revoking access", WORKS, "unmap.access.goes"),
    cases(35, "unmap twice", INVALID, "unmap.address.twice"),
    cases(36, "set_access on reserved, unmapped", INVALID, "access.set.unmapped"),
    cases(
        37,
        "set_access outside reservation",
        INVALID,
        "access.set.not_reserved access.set.size_beyond_the_reservation",
    ),
    cases(38, "set_access size shorter than mapping", INVALID, "access.set.size_shorter"),
    cases(39, "set_access interior start", INVALID, "access.set.start_inside"),
    cases(
        40,
        "set_access over mappings of different handles/devices",
        WORKS,
        "access.gpus.over_memory_of_several",
    ),
    cases(41, "set_access desc[1] invalid device", INVALID, "access.set.good_then_bad"),
    cases(42, "set_access None", WORKS, "access.cpu.none access.revoke.gpu access.set.none"),
    cases(
        43,
        "set_access Read then GPU write",
        WORKS,
        "access.gpu.read_only access.every_pair.read_only",
    ),
    test(
        44,
        "set_access flags=2 (WO)",
        "Access lacks this value; only C can pass it",
        "capi/tests/hip_tests/hipMemSetGetAccess.c",
        "hipMemSetAccess_negative",
    ),
    cases(45, "set_access peer without link / not P2P", INVALID, "access.set.agent_out_of_reach"),
    cases(46, "set_access count 0", INVALID, "access.set.list_empty"),
    cases(
        47,
        "agents A then B granted in two calls",
        WORKS,
        "access.set.others_keep_theirs access.gpus.peer_after_the_owner",
    ),
    cases(
        48,
        "grant non-owner first, owner later (generation C)",
        WORKS,
        "access.gpus.peer_after_the_owner access.gpus.peer_before_the_owner share.import.peer_after_the_owner",
    ),
    cases(49, "get_access never set", WORKS, "access.get.never_set map.memory.no_access_at_first"),
    cases(50, "get_access at mapping end", INVALID, "access.get.end"),
    cases(51, "get_access CPU agent / Host location", WORKS, "access.get.of_a_cpu"),
    cases(52, "retain interior address", WORKS, "retain.interior.same_handle"),
    cases(53, "retain then release", WORKS, "retain.references.counted"),
    cases(54, "export with requestedHandleType None", INVALID, "share.export.not_requested"),
    cases(55, "export twice", WORKS, "share.export.twice"),
    cases(56, "export of imported handle", WORKS, "share.export.of_an_import"),
    cases(
        57,
        "import bad / non-dmabuf fd",
        INVALID,
        "share.import.not_memory share.import.not_memory_never_granted share.import.no_file",
    ),
    cases(58, "import same fd twice", WORKS, "share.import.twice"),
    cases(59, "close fd right after import", WORKS, "share.import.descriptor_closed_at_once"),
    cases(60, "import own export in same process", WORKS, "share.import.same_memory"),
    cases(61, "properties of an import", WORKS, "properties.imported.told share.import.filled"),
    cases(
        62,
        "1100 live handles, RLIMIT_NOFILE 1024",
        WORKS,
        "share.export.no_descriptor_left create.handles.more_than_descriptors",
    ),
    cases(
        63,
        "CPU revoke then unrelated mmap (generation A)",
        WORKS,
        "unmap.addresses.stay_reserved access.cpu.comes_and_goes",
    ),
    cases(64, "hsa_shut_down with live mappings", WORKS, "runtime.vmm.gives_back_at_its_end"),
    test(
        65,
        "fork with live VMM",
        "a case cannot fork its own process",
        "tests/fork.rs",
        "forked_child_gets_errors",
    ),
    cases(
        66,
        "VMM unsupported kernel/libdrm",
        AT_OPENING,
        "runtime.virtual_memory.refused_if_absent",
    ),
    cases(67, "mapArrayAsync valid list", UNSUPPORTED, "hip.map_array.not_supported"),
    cases(68, "IPC get handle on VMM pointer", INVALID, "ipc.get.virtual_memory"),
    cases(69, "IPC open in same process", SAME_PROCESS, "ipc.open.same_process"),
    cases(70, "IPC open of handle whose memory was freed", FREED, "ipc.open.freed_memory"),
    cases(71, "IPC interior pointer", WORKS, "ipc.get.interior"),
    cases(72, "IPC open twice", WORKS, "ipc.open.twice"),
];
