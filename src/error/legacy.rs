//! Conversions from the errors that are being replaced by [`Error`]; deleted with the last of them.

use super::{Argument, Error, ErrorKind, Feature, Operation, Problem, Value};
use crate::memory::MemoryError;
use crate::vmm::{self as old, Quarantined, VmmError};
use std::sync::Arc;

impl From<VmmError> for Error {
    fn from(error: VmmError) -> Self {
        let name = error.operation().to_string();
        let kind = match error {
            VmmError::InvalidArgument { argument, problem, .. } => {
                let argument = format!("{argument:?}");
                let argument = argument_of(&argument);
                let (problem, value) = problem_of(problem);
                ErrorKind::InvalidArgument { argument, value, problem }
            }
            VmmError::NotSupported { feature, .. } => ErrorKind::NotSupported(match feature {
                old::Feature::VirtualMemory | old::Feature::SparseArrays => Feature::VirtualMemory,
                old::Feature::HandleType => Feature::HandleType,
                old::Feature::HostMemory => Feature::HostMemory,
                old::Feature::CpuAccess => Feature::CpuAccess,
                old::Feature::ManyAgents => Feature::ManyAgents,
                old::Feature::Function => Feature::Function("the function"),
            }),
            VmmError::OutOfMemory { call, status, size, .. } => {
                ErrorKind::OutOfMemory { call, status, size }
            }
            VmmError::OutOfDescriptors { .. } => ErrorKind::OutOfDescriptors,
            VmmError::Runtime { call, status, .. } => ErrorKind::Runtime { call, status },
            VmmError::System { call, errno, .. } => ErrorKind::System { call, errno },
            VmmError::Quarantined { address, now, .. } => ErrorKind::Quarantined {
                range: Arc::new(Quarantined {
                    address,
                    size: 0,
                    operation: operation_of(&name),
                    reason: String::new(),
                }),
                now,
            },
            VmmError::Forked { .. } => ErrorKind::Forked,
        };
        Self::new(operation_of(&name), kind)
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        use crate::memory::Problem as Old;
        let name = error.operation().to_string();
        let kind = match error {
            MemoryError::InvalidArgument { problem, .. } => match problem {
                Old::Zero => ErrorKind::invalid(Argument::Size, 0, Problem::Zero),
                Old::Beyond { offset, size, whole } => {
                    let problem = Problem::OutOfBounds { size, end: whole };
                    ErrorKind::invalid(Argument::Offset, offset, problem)
                }
                Old::NotWords => {
                    ErrorKind::invalid_list(Argument::Offset, Problem::NotMultipleOfFour)
                }
                Old::UnknownAgent(agent) => {
                    ErrorKind::invalid(Argument::Agent, agent, Problem::UnknownAgent)
                }
                Old::NoPool(agent) => ErrorKind::invalid(Argument::Agent, agent, Problem::NoPool),
                Old::Unreachable { agent, owner } => {
                    ErrorKind::invalid(Argument::Agent, agent, Problem::Unreachable { owner })
                }
                Old::NotAllowed(agent) => {
                    ErrorKind::invalid_list(Argument::Source, Problem::NotAllowed(agent))
                }
                Old::ForeignMemory => {
                    ErrorKind::invalid_list(Argument::Source, Problem::ForeignMemory)
                }
            },
            MemoryError::NotSupported { call, .. } => {
                ErrorKind::NotSupported(Feature::Function(call))
            }
            MemoryError::OutOfMemory { call, status, size, .. } => {
                ErrorKind::OutOfMemory { call, status, size }
            }
            MemoryError::BeingOpened { .. } => ErrorKind::Busy(super::Busy::BeingOpened),
            MemoryError::Runtime { call, status, .. } => ErrorKind::Runtime { call, status },
            MemoryError::Forked { .. } => ErrorKind::Forked,
        };
        Self::new(operation_of(&name), kind)
    }
}

pub(crate) fn operation_of(name: &str) -> Operation {
    let all = [
        Operation::Open,
        Operation::AddressReserve,
        Operation::AddressFree,
        Operation::Create,
        Operation::Release,
        Operation::Map,
        Operation::Unmap,
        Operation::SetAccess,
        Operation::GetAccess,
        Operation::Revoke,
        Operation::AllocationGranularity,
        Operation::AllocationProperties,
        Operation::ExportToShareableHandle,
        Operation::ImportFromShareableHandle,
        Operation::RetainAllocationHandle,
        Operation::Name,
        Operation::Exchange,
        Operation::Relocate,
        Operation::Read,
        Operation::Write,
        Operation::Copy,
        Operation::CopyToHost,
        Operation::CopyFromHost,
        Operation::Fill,
        Operation::Allocate,
        Operation::Allow,
        Operation::Free,
    ];
    all.into_iter().find(|operation| operation.name() == name).unwrap_or(Operation::Map)
}

fn argument_of(name: &str) -> Argument {
    let all = [
        Argument::Address,
        Argument::Size,
        Argument::Alignment,
        Argument::Hint,
        Argument::Flags,
        Argument::Offset,
        Argument::Handle,
        Argument::HandleType,
        Argument::Agent,
        Argument::Access,
        Argument::Descriptors,
        Argument::Descriptor,
        Argument::Location,
        Argument::Source,
        Argument::Destination,
        Argument::List,
    ];
    all.into_iter().find(|it| format!("{it:?}") == name).unwrap_or(Argument::Address)
}

fn problem_of(problem: old::Problem) -> (Problem, Value) {
    use old::Problem as Old;
    let plain = |problem| (problem, Value::None);
    match problem {
        Old::Null => plain(Problem::Null),
        Old::Zero => plain(Problem::Zero),
        Old::Overflow => plain(Problem::Overflow),
        Old::BeyondEnd { offset, size, end } => {
            (Problem::OutOfBounds { size, end }, Value::from(offset))
        }
        Old::NoFlags(flags) => (Problem::UndefinedFlags { defined: 0 }, Value::Bytes(flags)),
        Old::NotAligned { value, granule } => (Problem::NotAligned { granule }, Value::from(value)),
        Old::NotPowerOfTwo(value) => (Problem::NotPowerOfTwo, Value::from(value)),
        Old::NotReserved => plain(Problem::NotReserved),
        Old::NotAReservation => plain(Problem::NotAReservation),
        Old::WrongSize { expected } => plain(Problem::WrongSize { expected }),
        Old::StillMapped { mappings } => plain(Problem::StillMapped { mappings }),
        Old::InUse => plain(Problem::InUse),
        Old::AlreadyMapped { at } => plain(Problem::AlreadyMapped { at }),
        Old::NotMapped { at } => plain(Problem::NotMapped { at }),
        Old::CutsMapping { at } => plain(Problem::SplitsMapping { at }),
        Old::NotZero(value) => (Problem::MustBeZero, Value::from(value)),
        Old::BeyondHandle { handle } => plain(Problem::ExceedsHandle { handle }),
        Old::NoHandle => plain(Problem::NullHandle),
        Old::Released => plain(Problem::Released),
        Old::ForeignHandle => plain(Problem::ForeignHandle),
        Old::UnknownHandle => plain(Problem::UnknownHandle),
        Old::ForeignAgent => plain(Problem::ForeignAgent),
        Old::UnknownAgent => plain(Problem::UnknownAgent),
        Old::NoLocation => plain(Problem::MissingLocation),
        Old::NotAGpu => plain(Problem::NotAGpu),
        Old::Unreachable { agent, owner } => (Problem::Unreachable { owner }, Value::Agent(agent)),
        Old::UnknownAccess(access) => (Problem::UnknownAccess, Value::Number(access.into())),
        Old::NotRequested(kind) => plain(Problem::NotRequested(kind)),
        Old::NotGranted { at, agent, verb } => {
            let access = if verb == "read" { old::Access::Read } else { old::Access::ReadWrite };
            plain(Problem::NotGranted { at, agent, access })
        }
        Old::NotImportable => plain(Problem::NotImportable),
        Old::AddressTaken => plain(Problem::AddressTaken),
        Old::NotWords => plain(Problem::NotMultipleOfFour),
        Old::Overlapping => plain(Problem::Overlapping),
        Old::CutDifferently => plain(Problem::DifferentLayout),
    }
}
