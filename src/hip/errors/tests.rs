//! The table, walked: every error there can be, in every profile.

use super::*;
use crate::Errno;
use crate::agent::AgentId;
use crate::native::Status;
use crate::vmm::{Address, Feature, HandleType};
use std::collections::{BTreeMap, HashSet};

/// Every value of an enumeration. A variant that is not listed does not compile.
macro_rules! every {
    ($kind:ident: $($variant:ident $(= $sample:expr)?,)+) => {{
        let _complete = |value: &$kind| match value { $($kind::$variant { .. } => (),)+ };
        vec![$(every!(@ $kind $variant $(= $sample)?)),+]
    }};
    (@ $kind:ident $variant:ident) => { $kind::$variant };
    (@ $kind:ident $variant:ident = $sample:expr) => { $sample };
}

fn operations() -> Vec<Operation> {
    every![Operation:
        Open, AddressReserve, AddressFree, Create, Release, Map, Unmap, SetAccess, GetAccess,
        Revoke, AllocationGranularity, AllocationProperties, ExportToShareableHandle,
        ImportFromShareableHandle, RetainAllocationHandle, MapArrayAsync, Read, Write, Copy,
        CopyToHost, CopyFromHost, Fill, Name, Exchange, Relocate,
    ]
}

fn arguments() -> Vec<Argument> {
    every![Argument:
        Address, Size, Alignment, Hint, Flags, Offset, Handle, HandleType, Agent, Access,
        Descriptors, Descriptor, Location, Source, Destination, List,
    ]
}

fn problems() -> Vec<Problem> {
    let at = Address::new(4096);
    let agent = AgentId::new(1, 1, crate::agent::AgentKind::Gpu, 0);
    every![Problem:
        Null, Zero, Overflow,
        BeyondEnd = Problem::BeyondEnd { offset: 1, size: 2, end: 2 },
        NoFlags = Problem::NoFlags(1),
        NotAligned = Problem::NotAligned { value: 1, granule: 2 },
        NotPowerOfTwo = Problem::NotPowerOfTwo(3),
        NotReserved, NotAReservation,
        WrongSize = Problem::WrongSize { expected: 1 },
        StillMapped = Problem::StillMapped { mappings: 1 },
        InUse,
        AlreadyMapped = Problem::AlreadyMapped { at },
        NotMapped = Problem::NotMapped { at },
        CutsMapping = Problem::CutsMapping { at },
        NotZero = Problem::NotZero(1),
        BeyondHandle = Problem::BeyondHandle { handle: 1 },
        NoHandle, Released, ForeignHandle, UnknownHandle, ForeignAgent, UnknownAgent, NoLocation,
        NotAGpu,
        Unreachable = Problem::Unreachable { agent, owner: agent },
        UnknownAccess = Problem::UnknownAccess(2),
        NotRequested = Problem::NotRequested(HandleType::Fabric),
        NotGranted = Problem::NotGranted { at, agent, verb: "read" },
        NotImportable, AddressTaken, NotWords, Overlapping,
        CutDifferently,
    ]
}

fn features() -> Vec<Feature> {
    every![Feature:
        VirtualMemory, SparseArrays, HandleType, HostMemory, CpuAccess, ManyAgents, Function,
    ]
}

/// Every error of an operation.
fn errors(operation: Operation) -> Vec<VmmError> {
    let (call, status, address) = ("call", Status::new(0x1000), Address::new(4096));
    let mut errors = every![VmmError:
        InvalidArgument = VmmError::InvalidArgument {
            operation, argument: Argument::Size, problem: Problem::Zero,
        },
        NotSupported = VmmError::NotSupported { operation, feature: Feature::Function },
        OutOfMemory = VmmError::OutOfMemory { operation, call, status, size: 1 },
        OutOfDescriptors = VmmError::OutOfDescriptors { operation },
        Runtime = VmmError::Runtime { operation, call, status },
        System = VmmError::System { operation, call, errno: Errno::of(rustix::io::Errno::NOMEM) },
        Quarantined = VmmError::Quarantined { operation, address, now: true },
        Forked = VmmError::Forked { operation },
    ];
    errors.extend(features().into_iter().map(|f| VmmError::NotSupported { operation, feature: f }));
    for argument in arguments() {
        let of = |problem| VmmError::InvalidArgument { operation, argument, problem };
        errors.extend(problems().into_iter().map(of));
    }
    errors
}

const ALWAYS: (i32, i32) = (1, 1);

/// HIP's numbers for an error in HIP 6 and in HIP 7, as section 3 of the reference says.
fn documented(error: &VmmError) -> (i32, i32) {
    use Operation::{AddressFree, AddressReserve, Create};
    let of_agents = [Problem::UnknownAgent, Problem::ForeignAgent, Problem::NotAGpu];
    match *error {
        VmmError::InvalidArgument { operation: AddressReserve, argument, .. } => {
            if argument == Argument::Flags { ALWAYS } else { (2, 1) }
        }
        VmmError::InvalidArgument { operation: Create, problem, .. }
            if of_agents.contains(&problem) =>
        {
            (1, 101)
        }
        VmmError::InvalidArgument {
            operation: AddressFree,
            problem: Problem::StillMapped { .. },
            ..
        } => (999, 1),
        VmmError::InvalidArgument { .. } => ALWAYS,
        VmmError::NotSupported { .. } => (801, 801),
        VmmError::OutOfMemory { .. } => (2, 2),
        VmmError::OutOfDescriptors { .. } | VmmError::System { .. } => (304, 304),
        VmmError::Runtime { operation, .. } => match operation.to_string().as_str() {
            "address_reserve" | "create" => (2, 2),
            "set_access" | "get_access" => ALWAYS,
            "export_to_shareable_handle" | "import_from_shareable_handle" => ALWAYS,
            _ => (999, 999),
        },
        VmmError::Quarantined { .. } => (999, 999),
        VmmError::Forked { .. } => (3, 3),
    }
}

#[test]
fn every_error_has_the_code_that_hip_documents() {
    let mut walked = 0;
    let mut rows = HashSet::new();
    for operation in operations() {
        for error in errors(operation) {
            let [hip6, hip7] = [HipProfile::Hip6, HipProfile::Hip7].map(|p| error.hip(p).code());
            assert_eq!((hip6, hip7), documented(&error), "{error:?}");
            rows.insert(Row::of(&error));
            walked += 2;
        }
    }
    // Two profiles, 25 operations; 8 kinds of errors, 7 features, 16 arguments with 34 problems.
    assert_eq!(walked, 2 * 25 * (8 + 7 + 16 * 34));
    assert_eq!(rows.len(), Row::ALL.len(), "rows that no error finds");
}

/// Where the profiles differ, they do as HIP's releases do, and nowhere else.
#[test]
fn profiles_differ_in_three_rows() {
    let mut codes = BTreeMap::new();
    for &row in Row::ALL {
        let [hip6, hip7] = [HipProfile::Hip6, HipProfile::Hip7].map(|p| row.hip(p));
        if hip6 != hip7 {
            codes.insert(format!("{row:?}"), (hip6.name(), hip7.name()));
        }
    }
    let expected = [
        ("BadDevice", ("hipErrorInvalidValue", "hipErrorInvalidDevice")),
        ("BadReservation", ("hipErrorOutOfMemory", "hipErrorInvalidValue")),
        ("StillMapped", ("hipErrorUnknown", "hipErrorInvalidValue")),
    ];
    assert_eq!(codes, expected.map(|(row, codes)| (row.to_owned(), codes)).into());
}
