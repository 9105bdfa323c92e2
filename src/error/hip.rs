//! HIP's error code for each error of this library.
//!
//! The `match` on the kind has no catch-all arm, so that a new kind does not compile before it has a code.

use super::message::{ALLOCATING, is_reserve};
use super::{Argument, Error, ErrorKind, Feature, Operation, Problem, Status};
use crate::hip::{HipError, HipProfile};

impl Error {
    /// Returns the error that HIP documents for the same failure, in the release that `profile` selects.
    ///
    /// | failure | HIP 6 | HIP 7 |
    /// |---|---|---|
    /// | `address_reserve`: any invalid argument except the flags | `hipErrorOutOfMemory` | `hipErrorInvalidValue` |
    /// | `create`: the agent is unknown, or is neither a CPU nor a GPU | `hipErrorInvalidValue` | `hipErrorInvalidDevice` |
    /// | areas, pool memory, IPC: the agent is unknown or not a GPU | `hipErrorInvalidDevice` | `hipErrorInvalidDevice` |
    /// | `address_free`: the reservation has mappings | `hipErrorUnknown` | `hipErrorInvalidValue` |
    /// | any other invalid argument; a buffer is in the wrong state for the call | `hipErrorInvalidValue` | `hipErrorInvalidValue` |
    /// | `map`: the offset is not 0, and the library does not control the page tables | `hipErrorInvalidValue` | `hipErrorInvalidValue` |
    /// | anything else that is not supported | `hipErrorNotSupported` | `hipErrorNotSupported` |
    /// | no runtime was found; the runtime or the simulation did not start, for any reason; its agents could not be discovered; `Vmm::open`, `Ipc::open`: there is no GPU | `hipErrorNoDevice` | `hipErrorNoDevice` |
    /// | no memory or no addresses left; a table is full | `hipErrorOutOfMemory` | `hipErrorOutOfMemory` |
    /// | `address_reserve`, `create`, `allocate`: the runtime or a system call failed, or no file descriptor is left | `hipErrorOutOfMemory` | `hipErrorOutOfMemory` |
    /// | any other operation: a system call failed, no file descriptor is left, or a socket is taken (HIP documents no error) | `hipErrorOperatingSystem` | `hipErrorOperatingSystem` |
    /// | `set_access`, `get_access`, export, import, `get_mem_handle`, `close_mem_handle`: the runtime failed | `hipErrorInvalidValue` | `hipErrorInvalidValue` |
    /// | `open_mem_handle`: the runtime failed; IPC, transport: the memory of the other process is not available, or `/proc` does not show this process | `hipErrorInvalidDevicePointer` | `hipErrorInvalidDevicePointer` |
    /// | `open_mem_handle`: the handle is this process's own | `hipErrorInvalidContext` | `hipErrorInvalidContext` |
    /// | areas: the memory is in use | `hipErrorHostMemoryAlreadyRegistered` | `hipErrorHostMemoryAlreadyRegistered` |
    /// | `map`, pages, `exchange`, `relocate`, `revoke`, `pause`, `resume`: the runtime failed to set the access | `hipErrorInvalidValue` | `hipErrorInvalidValue` |
    /// | `pause`, `resume`: the runtime failed to reserve or to allocate | `hipErrorOutOfMemory` | `hipErrorOutOfMemory` |
    /// | any other failure of the runtime or of another process | `hipErrorUnknown` | `hipErrorUnknown` |
    /// | the range is quarantined; pages are lost; a signal did not fire | `hipErrorUnknown` | `hipErrorUnknown` |
    /// | the process is a forked child | `hipErrorNotInitialized` | `hipErrorNotInitialized` |
    pub fn hip(&self, profile: HipProfile) -> HipError {
        let operation = self.operation;
        match self.kind {
            ErrorKind::Forked => HipError::NotInitialized,
            // HIP's calls return this error if HIP has found no device, for whatever reason (`HIP_INIT_API` in
            // ROCm/clr).
            _ if opens_runtime(operation) => HipError::NoDevice,
            ErrorKind::Load(_)
            | ErrorKind::Start { .. }
            | ErrorKind::NoCpu
            | ErrorKind::Simulation(_) => HipError::NoDevice,
            ErrorKind::InvalidArgument { argument, problem, .. } => {
                argument_code(profile, operation, argument, problem)
            }
            ErrorKind::NotSupported(Feature::Gpu)
                if matches!(operation, Operation::Open | Operation::OpenIpc) =>
            {
                HipError::NoDevice
            }
            // HIP supports no offset at all.
            ErrorKind::NotSupported(Feature::MapAtOffset(_)) => HipError::InvalidValue,
            ErrorKind::NotSupported(_)
            | ErrorKind::Runtime { status: Status::NOT_SUPPORTED, .. } => HipError::NotSupported,
            ErrorKind::OutOfMemory { .. }
            | ErrorKind::LimitReached { .. }
            | ErrorKind::AddressLost { .. } => HipError::OutOfMemory,
            // HIP returns this error for every failed allocation. Allocators of programs expect it: they free their
            // caches and try again.
            ErrorKind::OutOfDescriptors | ErrorKind::System { .. } if is_allocation(operation) => {
                HipError::OutOfMemory
            }
            ErrorKind::OutOfDescriptors
            | ErrorKind::System { .. }
            | ErrorKind::HoleNotFilled { .. }
            | ErrorKind::ReservedTwice(_)
            | ErrorKind::SocketTaken(_) => HipError::OperatingSystem,
            ErrorKind::HostMemoryMapped(_) => HipError::HostMemoryAlreadyRegistered,
            ErrorKind::BeingOpened if is_area_operation(operation) => {
                HipError::HostMemoryAlreadyRegistered
            }
            ErrorKind::Runtime { call, status } => runtime_code(operation, call, status),
            ErrorKind::NotShared { .. } | ErrorKind::Paused | ErrorKind::NotPaused => {
                HipError::InvalidValue
            }
            ErrorKind::SameProcess => HipError::InvalidContext,
            ErrorKind::Unavailable { .. } => HipError::InvalidDevicePointer,
            ErrorKind::BeingOpened
            | ErrorKind::Quarantined { .. }
            | ErrorKind::PagesLost { .. }
            | ErrorKind::NotSignaled { .. }
            | ErrorKind::PartlyFreed(_)
            | ErrorKind::Untrusted(_)
            | ErrorKind::TimedOut(_)
            | ErrorKind::Disconnected(_)
            | ErrorKind::Malformed(_)
            | ErrorKind::UnexpectedDescriptors(_)
            | ErrorKind::SizeMismatch { .. }
            | ErrorKind::OutsideDmaBuf { .. } => HipError::Unknown,
        }
    }
}

fn opens_runtime(operation: Operation) -> bool {
    matches!(operation, Operation::Load | Operation::Start | Operation::Discover)
}

fn is_allocation(operation: Operation) -> bool {
    matches!(operation, Operation::AddressReserve | Operation::Create | Operation::Allocate)
}

fn is_area_operation(operation: Operation) -> bool {
    matches!(operation, Operation::Mmap | Operation::Munmap)
}

fn argument_code(
    profile: HipProfile,
    operation: Operation,
    argument: Argument,
    problem: Problem,
) -> HipError {
    let is_hip6 = profile == HipProfile::Hip6;
    let agent_is_invalid = matches!(problem, Problem::UnknownAgent | Problem::NotAGpu);
    match operation {
        Operation::AddressReserve if is_hip6 && argument != Argument::Flags => {
            HipError::OutOfMemory
        }
        Operation::Create if agent_is_invalid && !is_hip6 => HipError::InvalidDevice,
        Operation::AddressFree if is_hip6 && matches!(problem, Problem::StillMapped(_)) => {
            HipError::Unknown
        }
        Operation::Open
        | Operation::OpenIpc
        | Operation::AreaCreate
        | Operation::Mmap
        | Operation::Munmap
        | Operation::Allocate
        | Operation::Allow
        | Operation::Free
        | Operation::GetMemHandle
        | Operation::OpenMemHandle
        | Operation::CloseMemHandle
            if agent_is_invalid || argument == Argument::Device =>
        {
            HipError::InvalidDevice
        }
        _ => HipError::InvalidValue,
    }
}

fn runtime_code(operation: Operation, call: &str, status: Status) -> HipError {
    match operation {
        _ if is_area_operation(operation) && status == Status::RESOURCE_BUSY => {
            HipError::HostMemoryAlreadyRegistered
        }
        // HIP has no operations of several steps, such as a batch that maps and grants access. Returns the code of the
        // failed step.
        Operation::Map
        | Operation::UnmapPages
        | Operation::MovePages
        | Operation::SharePages
        | Operation::Exchange
        | Operation::Relocate
        | Operation::Revoke
        | Operation::Pause
        | Operation::Resume
            if call == "hsa_amd_vmem_set_access" =>
        {
            HipError::InvalidValue
        }
        Operation::Pause | Operation::Resume if ALLOCATING.contains(&call) || is_reserve(call) => {
            HipError::OutOfMemory
        }
        _ if is_allocation(operation) => HipError::OutOfMemory,
        Operation::SetAccess
        | Operation::GetAccess
        | Operation::ExportToShareableHandle
        | Operation::ImportFromShareableHandle
        | Operation::ExportAddressRange
        | Operation::GetMemHandle
        | Operation::CloseMemHandle => HipError::InvalidValue,
        Operation::OpenMemHandle => HipError::InvalidDevicePointer,
        _ => HipError::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_arguments_have_documented_codes() {
        use Operation::*;
        let unknown = Problem::UnknownAgent;
        let of_agents = [Open, OpenIpc, AreaCreate, Mmap, Munmap, Allocate, Allow, Free]
            .into_iter()
            .chain([GetMemHandle, OpenMemHandle, CloseMemHandle])
            .map(|operation| (operation, Argument::Agent, unknown, [101, 101]));
        let others = [
            (AddressReserve, Argument::Size, Problem::Zero, [2, 1]),
            (AddressReserve, Argument::Flags, Problem::UndefinedFlags(0), [1, 1]),
            (AddressFree, Argument::Address, Problem::StillMapped(1), [999, 1]),
            (Create, Argument::Location, unknown, [1, 101]),
            (SetAccess, Argument::Agent, unknown, [1, 1]),
            (AreaCreate, Argument::Device, Problem::OutOfRange(1), [101, 101]),
        ];
        for (operation, argument, problem, codes) in of_agents.chain(others) {
            let error = Error::new(operation, ErrorKind::without_value(argument, problem));
            let found =
                [HipProfile::Hip6, HipProfile::Hip7].map(|profile| error.hip(profile).code());
            assert_eq!(found, codes, "{error}");
        }
    }

    #[test]
    fn failed_calls_have_documented_codes() {
        let status = Status(0x1000);
        for &operation in Operation::ALL {
            let kind = ErrorKind::Runtime { call: "call", status };
            let expected = match operation.name() {
                "address_reserve" | "create" | "allocate" => 2,
                "set_access"
                | "get_access"
                | "export_to_shareable_handle"
                | "import_from_shareable_handle"
                | "export_address_range"
                | "get_mem_handle"
                | "close_mem_handle" => 1,
                "open_mem_handle" => 17,
                "load" | "start" | "discover" => 100,
                _ => 999,
            };
            let error = Error::new(operation, kind);
            assert_eq!(error.hip(HipProfile::Hip7).code(), expected, "{error}");
            let expected = if [2, 100].contains(&expected) { expected } else { 304 };
            let system = ErrorKind::System { call: "mmap", errno: crate::error::Errno::NOMEM };
            for kind in [ErrorKind::OutOfDescriptors, system] {
                let error = Error::new(operation, kind);
                assert_eq!(error.hip(HipProfile::Hip7).code(), expected, "{error}");
            }
        }
    }

    #[test]
    fn runtime_that_does_not_start_is_no_device() {
        let simulation = || ErrorKind::Simulation("HSA_SIM is not understood".into());
        let kinds = [simulation(), ErrorKind::NoCpu, ErrorKind::OutOfDescriptors];
        let code = |operation, kind| Error::new(operation, kind).hip(HipProfile::Hip7).code();
        for kind in kinds {
            assert_eq!(code(Operation::Start, kind.clone()), 100, "{kind}");
        }
        assert_eq!(code(Operation::Load, ErrorKind::Forked), 3);
    }

    #[test]
    fn steps_that_failed_have_their_codes() {
        use Operation::*;
        let status = Status(0x1000);
        let code = |operation, call| {
            let error = Error::new(operation, ErrorKind::Runtime { call, status });
            error.hip(HipProfile::Hip7).code()
        };
        let of_pages = [UnmapPages, MovePages, SharePages];
        let others = [Map, Exchange, Relocate, Revoke, Pause, Resume];
        for operation in of_pages.into_iter().chain(others) {
            assert_eq!(code(operation, "hsa_amd_vmem_set_access"), 1, "{operation}");
            assert_eq!(code(operation, "hsa_amd_vmem_unmap"), 999, "{operation}");
        }
        for call in ["hsa_amd_vmem_handle_create", "hsa_amd_vmem_address_reserve"] {
            assert_eq!(code(Resume, call), 2, "{call}");
        }
    }
}
