//! Which error of HIP stands for an error of this library: one table for all profiles.
//!
//! The table is the documentation of [`Error::hip`]. Below it, every kind of error finds its row
//! without a catch-all arm, so that a new kind does not compile before it has a row.

use super::{Argument, Busy, Error, ErrorKind, Feature, Operation, Problem};
use crate::hip::{HipError, HipProfile};

macro_rules! table {
    ($($row:ident: $words:literal, $hip6:ident, $hip7:ident;)+) => {
        /// A row of the table: a case that HIP has a code for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        enum Row { $($row),+ }

        impl Row {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$row),+];

            fn hip(self, profile: HipProfile) -> HipError {
                match (self, profile) {
                    $((Self::$row, HipProfile::Hip6) => HipError::$hip6,
                      (Self::$row, HipProfile::Hip7) => HipError::$hip7,)+
                }
            }
        }

        impl Error {
            /// Returns the error that HIP of this profile documents for the same mistake.
            ///
            /// | what went wrong | HIP 6 | HIP 7 |
            /// |---|---|---|
            $(#[doc = concat!(
                "| ", $words, " | `hipError", stringify!($hip6), "` | `hipError",
                stringify!($hip7), "` |",
            )])+
            #[must_use]
            pub fn hip(&self, profile: HipProfile) -> HipError {
                Row::of(self.operation, &self.kind).hip(profile)
            }
        }
    };
}

table! {
    BadReservation: "`address_reserve`: an argument, but not the flags", OutOfMemory, InvalidValue;
    BadAgent: "`create`: the agent is unknown or not a GPU", InvalidValue, InvalidDevice;
    BadDevice: "areas, pool memory, IPC: the agent is unknown or not a GPU", InvalidDevice, InvalidDevice;
    StillMapped: "`address_free`: the reservation has mappings", Unknown, InvalidValue;
    BadArgument: "any other argument; the state of a buffer", InvalidValue, InvalidValue;
    Unsupported: "not supported here", NotSupported, NotSupported;
    NoGpu: "no runtime, or one without a GPU", NoDevice, NoDevice;
    NoMemory: "no memory or no addresses left; a table is full", OutOfMemory, OutOfMemory;
    // HIP answers hipErrorOutOfMemory; this code is more precise.
    OfSystem: "no file descriptor left, a system call failed, a socket is taken", OperatingSystem, OperatingSystem;
    NotMade: "`address_reserve`, `create`: the runtime failed", OutOfMemory, OutOfMemory;
    NotShared: "`set_access`, `get_access`, export, import, `get_mem_handle`, `close_mem_handle`: the runtime failed", InvalidValue, InvalidValue;
    NotOpened: "`open_mem_handle`: the runtime failed, or the memory is not available", InvalidDevicePointer, InvalidDevicePointer;
    OwnMemory: "`open_mem_handle`: the handle is this process's own", InvalidContext, InvalidContext;
    HostBusy: "areas: the memory is in use", HostMemoryAlreadyRegistered, HostMemoryAlreadyRegistered;
    Failed: "the runtime or the other process failed otherwise", Unknown, Unknown;
    Quarantined: "the range is quarantined; pages are lost", Unknown, Unknown;
    NotStarted: "the process is a child of a fork; the runtime did not start", NotInitialized, NotInitialized;
}

impl Row {
    fn of(operation: Operation, kind: &ErrorKind) -> Self {
        match *kind {
            ErrorKind::InvalidArgument { argument, problem, .. } => {
                Self::of_argument(operation, argument, problem)
            }
            ErrorKind::NotSupported(Feature::Gpu) if operation == Operation::Open => Self::NoGpu,
            ErrorKind::NotSupported(_) => Self::Unsupported,
            ErrorKind::OutOfMemory { .. }
            | ErrorKind::LimitReached { .. }
            | ErrorKind::AddressLost { .. } => Self::NoMemory,
            ErrorKind::OutOfDescriptors
            | ErrorKind::System { .. }
            | ErrorKind::HoleNotFilled { .. }
            | ErrorKind::ReservedTwice { .. }
            | ErrorKind::SocketTaken { .. } => Self::OfSystem,
            ErrorKind::Busy(Busy::HostMemoryMapped { .. }) => Self::HostBusy,
            ErrorKind::Busy(Busy::BeingOpened) => match operation {
                Operation::Mmap | Operation::Munmap => Self::HostBusy,
                _ => Self::Failed,
            },
            ErrorKind::Runtime { call, status } => Self::of_failure(operation, call, status),
            ErrorKind::NotShared { .. } => Self::NotShared,
            ErrorKind::Quarantined { .. } | ErrorKind::PagesLost { .. } => Self::Quarantined,
            ErrorKind::PartlyFreed(_) => Self::Failed,
            ErrorKind::Forked | ErrorKind::Start { .. } => Self::NotStarted,
            ErrorKind::Load(_) | ErrorKind::NoCpu | ErrorKind::Simulation(_) => Self::NoGpu,
            ErrorKind::SameProcess => Self::OwnMemory,
            ErrorKind::Unavailable { .. } => Self::NotOpened,
            ErrorKind::Untrusted(_)
            | ErrorKind::TimedOut { .. }
            | ErrorKind::Disconnected { .. }
            | ErrorKind::Malformed(_)
            | ErrorKind::UnexpectedDescriptors(_)
            | ErrorKind::SizeMismatch { .. } => Self::Failed,
            ErrorKind::Paused | ErrorKind::NotPaused => Self::BadArgument,
        }
    }

    fn of_argument(operation: Operation, argument: Argument, problem: Problem) -> Self {
        let no_agent = matches!(
            problem,
            Problem::UnknownAgent
                | Problem::ForeignAgent
                | Problem::NotAGpu
                | Problem::NoSuchDevice { .. }
        );
        match operation {
            Operation::AddressReserve if argument != Argument::Flags => Self::BadReservation,
            Operation::Create if no_agent => Self::BadAgent,
            Operation::AddressFree if matches!(problem, Problem::StillMapped { .. }) => {
                Self::StillMapped
            }
            Operation::Open
            | Operation::AreaCreate
            | Operation::Mmap
            | Operation::Munmap
            | Operation::Allocate
            | Operation::Allow
            | Operation::Free
            | Operation::GetMemHandle
            | Operation::OpenMemHandle
            | Operation::CloseMemHandle
                if no_agent || argument == Argument::Device =>
            {
                Self::BadDevice
            }
            _ => Self::BadArgument,
        }
    }

    fn of_failure(operation: Operation, call: &str, status: crate::native::Status) -> Self {
        use crate::native::Status;
        match operation {
            Operation::Mmap | Operation::Munmap if status == Status::RESOURCE_BUSY => {
                Self::HostBusy
            }
            // HIP has no batches; a batch that maps and grants fails as its steps do.
            _ if call == "hsa_amd_vmem_set_access" && operation == Operation::Map => {
                Self::NotShared
            }
            Operation::AddressReserve | Operation::Create => Self::NotMade,
            Operation::SetAccess
            | Operation::GetAccess
            | Operation::ExportToShareableHandle
            | Operation::ImportFromShareableHandle
            | Operation::GetMemHandle
            | Operation::CloseMemHandle => Self::NotShared,
            Operation::OpenMemHandle => Self::NotOpened,
            Operation::Load | Operation::Start | Operation::Discover => Self::NoGpu,
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Value;
    use std::collections::BTreeMap;

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
            ("BadAgent", ("hipErrorInvalidValue", "hipErrorInvalidDevice")),
            ("BadReservation", ("hipErrorOutOfMemory", "hipErrorInvalidValue")),
            ("StillMapped", ("hipErrorUnknown", "hipErrorInvalidValue")),
        ];
        assert_eq!(codes, expected.map(|(row, codes)| (row.to_owned(), codes)).into());
    }

    /// The codes in HIP 6 and HIP 7 for an invalid argument, as section 3 of the reference says.
    fn documented(operation: Operation, argument: Argument, problem: Problem) -> (i32, i32) {
        use Operation::*;
        let agent = [Problem::UnknownAgent, Problem::ForeignAgent, Problem::NotAGpu];
        match operation {
            AddressReserve if argument != Argument::Flags => (2, 1),
            Create if agent.contains(&problem) => (1, 101),
            AddressFree if problem == (Problem::StillMapped { mappings: 1 }) => (999, 1),
            Open | AreaCreate | Mmap | Munmap | Allocate | Allow | Free | GetMemHandle
            | OpenMemHandle | CloseMemHandle
                if agent.contains(&problem) || argument == Argument::Device =>
            {
                (101, 101)
            }
            _ => (1, 1),
        }
    }

    #[test]
    fn every_invalid_argument_has_its_documented_code() {
        let problems = [
            Problem::Zero,
            Problem::UnknownAgent,
            Problem::ForeignAgent,
            Problem::NotAGpu,
            Problem::StillMapped { mappings: 1 },
            Problem::Released,
        ];
        for &operation in Operation::ALL {
            for &argument in Argument::ALL {
                for problem in problems {
                    let kind = ErrorKind::invalid(argument, Value::None, problem);
                    let error = Error::new(operation, kind);
                    let [hip6, hip7] =
                        [HipProfile::Hip6, HipProfile::Hip7].map(|p| error.hip(p).code());
                    assert_eq!((hip6, hip7), documented(operation, argument, problem), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_failed_call_has_the_code_of_its_operation() {
        let status = crate::native::Status::new(0x1000);
        for &operation in Operation::ALL {
            let kind = ErrorKind::Runtime { call: "call", status };
            let expected = match operation.name() {
                "address_reserve" | "create" => 2,
                "set_access"
                | "get_access"
                | "export_to_shareable_handle"
                | "import_from_shareable_handle"
                | "get_mem_handle"
                | "close_mem_handle" => 1,
                "open_mem_handle" => 17,
                "load" | "start" | "discover" => 100,
                _ => 999,
            };
            let error = Error::new(operation, kind);
            assert_eq!(error.hip(HipProfile::Hip7).code(), expected, "{error}");
        }
    }
}
