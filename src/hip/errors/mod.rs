//! Which error of HIP says what went wrong: one table for all profiles.
//!
//! The table is at the top, and is the documentation of [`VmmError::hip`] as it stands. Below it,
//! every error finds its row; there is no arm for "all others", so that a new variant does not
//! compile before somebody has said which row is its.

use super::{HipError, HipProfile};
use crate::vmm::{Argument, Operation, Problem, VmmError};

macro_rules! table {
    ($($row:ident: $words:literal, $hip6:ident, $hip7:ident;)+) => {
        /// A row of the table: what went wrong, as far as HIP tells it apart.
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

        impl VmmError {
            /// The error that HIP of this profile documents for the same mistake.
            ///
            /// | what went wrong | HIP 6 | HIP 7 |
            /// |---|---|---|
            $(#[doc = concat!(
                "| ", $words, " | `hipError", stringify!($hip6), "` | `hipError",
                stringify!($hip7), "` |",
            )])+
            #[must_use]
            pub fn hip(&self, profile: HipProfile) -> HipError {
                Row::of(self).hip(profile)
            }
        }
    };
}

table! {
    BadReservation: "`address_reserve`: an argument, but not the flags", OutOfMemory, InvalidValue;
    BadDevice: "`create`: the agent is none, or no GPU", InvalidValue, InvalidDevice;
    StillMapped: "`address_free`: something is still mapped", Unknown, InvalidValue;
    BadArgument: "any other argument", InvalidValue, InvalidValue;
    Unsupported: "not supported here", NotSupported, NotSupported;
    NoMemory: "no memory or no addresses left", OutOfMemory, OutOfMemory;
    // HIP says that memory is out; it has a code that tells the truth.
    OfSystem: "no descriptor left, or a system call failed", OperatingSystem, OperatingSystem;
    NotMade: "`address_reserve`, `create`: the runtime failed", OutOfMemory, OutOfMemory;
    NotShared: "`set_access`, `get_access`, export, import: the runtime failed", InvalidValue, InvalidValue;
    Failed: "the runtime failed otherwise", Unknown, Unknown;
    InQuarantine: "the range is in quarantine", Unknown, Unknown;
    AfterFork: "the process was forked", NotInitialized, NotInitialized;
}

impl Row {
    fn of(error: &VmmError) -> Self {
        match *error {
            VmmError::InvalidArgument { operation, argument, problem } => {
                Self::of_argument(operation, argument, problem)
            }
            VmmError::NotSupported { .. } => Self::Unsupported,
            VmmError::OutOfMemory { .. } => Self::NoMemory,
            VmmError::OutOfDescriptors { .. } | VmmError::System { .. } => Self::OfSystem,
            VmmError::Runtime { operation, .. } => Self::of_failure(operation),
            VmmError::Quarantined { .. } => Self::InQuarantine,
            VmmError::Forked { .. } => Self::AfterFork,
        }
    }

    fn of_argument(operation: Operation, argument: Argument, problem: Problem) -> Self {
        match problem {
            Problem::UnknownAgent | Problem::ForeignAgent | Problem::NotAGpu
                if operation == Operation::Create =>
            {
                Self::BadDevice
            }
            Problem::StillMapped { .. } if operation == Operation::AddressFree => Self::StillMapped,
            Problem::Null
            | Problem::Zero
            | Problem::Overflow
            | Problem::BeyondEnd { .. }
            | Problem::NoFlags(_)
            | Problem::NotAligned { .. }
            | Problem::NotPowerOfTwo(_)
            | Problem::NotReserved
            | Problem::NotAReservation
            | Problem::WrongSize { .. }
            | Problem::StillMapped { .. }
            | Problem::InUse
            | Problem::AlreadyMapped { .. }
            | Problem::NotMapped { .. }
            | Problem::CutsMapping { .. }
            | Problem::NotZero(_)
            | Problem::BeyondHandle { .. }
            | Problem::NoHandle
            | Problem::Released
            | Problem::ForeignHandle
            | Problem::UnknownHandle
            | Problem::ForeignAgent
            | Problem::UnknownAgent
            | Problem::NoLocation
            | Problem::NotAGpu
            | Problem::Unreachable { .. }
            | Problem::UnknownAccess(_)
            | Problem::NotRequested(_)
            | Problem::NotGranted { .. }
            | Problem::NotImportable
            | Problem::AddressTaken
            | Problem::NotWords
            | Problem::Overlapping
            | Problem::CutDifferently => {
                if operation == Operation::AddressReserve && argument != Argument::Flags {
                    Self::BadReservation
                } else {
                    Self::BadArgument
                }
            }
        }
    }

    fn of_failure(operation: Operation) -> Self {
        match operation {
            Operation::AddressReserve | Operation::Create => Self::NotMade,
            Operation::SetAccess
            | Operation::GetAccess
            | Operation::ExportToShareableHandle
            | Operation::ImportFromShareableHandle => Self::NotShared,
            Operation::Open
            | Operation::Name
            | Operation::AddressFree
            | Operation::Release
            | Operation::Map
            | Operation::Unmap
            | Operation::Revoke
            | Operation::AllocationGranularity
            | Operation::AllocationProperties
            | Operation::RetainAllocationHandle
            | Operation::MapArrayAsync
            | Operation::Read
            | Operation::Write
            | Operation::Copy
            | Operation::CopyToHost
            | Operation::CopyFromHost
            | Operation::Fill
            | Operation::Exchange
            | Operation::Relocate => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests;
