//! What errors of areas say of themselves, and which of AML's and of HIP's they are.

use super::*;
use crate::memory::{Operation as OnMemory, Problem as OfMemory};
use crate::vmm::{Argument as OfVmm, Feature, Operation as OnVmm, Problem as Wrong};

const SIZE: usize = 4096;
const CALL: &str = "hsa_amd_memory_lock_to_pool";

fn call(status: Status) -> AreaError {
    AreaError::of_call(Operation::Mmap, Failure { call: CALL, status }, SIZE)
}

fn vmm(error: VmmError) -> AreaError {
    AreaError::of_vmm(Operation::Mmap, error, SIZE)
}

fn memory(error: MemoryError) -> AreaError {
    AreaError::of_memory(Operation::Mmap, error, SIZE)
}

/// An error, AML's number for it, and HIP's.
fn table() -> Vec<(AreaError, i32, i32)> {
    let (of_vmm, of_memory, status) = (OnVmm::Map, OnMemory::Allocate, Status::ERROR);
    let agent = AgentId::new(1, 2, crate::agent::AgentKind::Gpu, 0);
    let busy = Status::RESOURCE_BUSY;
    let still_mapped = VmmError::InvalidArgument {
        operation: OnVmm::AddressFree,
        argument: OfVmm::Address,
        problem: Wrong::StillMapped { mappings: 1 },
    };
    let refused = |problem| MemoryError::InvalidArgument { operation: of_memory, problem };
    vec![
        (call(Status::NOT_SUPPORTED), 5, 801),
        (call(Status::OUT_OF_RESOURCES), 2, 2),
        (call(busy), 6, 712),
        (call(status), 1, 999),
        (vmm(VmmError::Forked { operation: of_vmm }), 1, 3),
        (vmm(VmmError::NotSupported { operation: of_vmm, feature: Feature::HostMemory }), 5, 801),
        (vmm(VmmError::OutOfMemory { operation: of_vmm, call: CALL, status, size: SIZE }), 2, 2),
        (vmm(VmmError::Runtime { operation: of_vmm, call: CALL, status: busy }), 6, 712),
        // HIP's releases differ in this one; here are the newest.
        (vmm(still_mapped), 1, 1),
        (vmm(VmmError::OutOfDescriptors { operation: of_vmm }), 1, 304),
        (memory(MemoryError::Forked { operation: of_memory }), 1, 3),
        (memory(MemoryError::NotSupported { operation: of_memory, call: CALL }), 5, 801),
        (
            memory(MemoryError::OutOfMemory {
                operation: of_memory,
                call: CALL,
                status,
                size: SIZE,
            }),
            2,
            2,
        ),
        (memory(MemoryError::BeingOpened { operation: of_memory }), 6, 712),
        (memory(MemoryError::Runtime { operation: of_memory, call: CALL, status: busy }), 6, 712),
        (memory(MemoryError::Runtime { operation: of_memory, call: CALL, status }), 1, 999),
        (memory(refused(OfMemory::NoPool(agent))), 5, 801),
        (memory(refused(OfMemory::UnknownAgent(agent))), 1, 101),
        (AreaError::Failure { operation: Operation::Mmap, cause: Cause::TooLarge }, 1, 999),
    ]
}

#[test]
fn what_is_below_is_told_in_amls_numbers_and_hips() {
    for (error, aml, hip) in table() {
        assert_eq!(error.aml(), aml, "{error}");
        assert_eq!(error.hip(HipProfile::Hip7).code(), hip, "{error}");
        assert_eq!(error.operation(), Operation::Mmap);
        assert!(error.cause().is_some() && error.problem().is_none(), "{error}");
        assert!(error.to_string().starts_with("mmap: "), "{error}");
        // The reason is always there to be read.
        let cause = error.cause().map(|cause| cause.to_string()).unwrap_or_default();
        assert!(error.to_string().ends_with(&cause) && !cause.is_empty(), "{error}");
    }
}

#[test]
fn a_fork_is_a_fork_whatever_is_below() {
    let (of_vmm, of_memory) = (OnVmm::Map, OnMemory::Allocate);
    for error in [
        vmm(VmmError::Forked { operation: of_vmm }),
        memory(MemoryError::Forked { operation: of_memory }),
    ] {
        assert_eq!(error.cause(), Some(Cause::Forked));
    }
}

#[test]
fn virtual_memory_has_the_code_of_the_profile_that_was_asked_for() {
    let error = vmm(VmmError::InvalidArgument {
        operation: OnVmm::AddressFree,
        argument: OfVmm::Address,
        problem: Wrong::StillMapped { mappings: 1 },
    });
    assert_eq!(error.hip(HipProfile::Hip6), HipError::Unknown);
    assert_eq!(error.hip(HipProfile::Hip7), HipError::InvalidValue);
}

#[test]
fn a_wrong_argument_is_named() {
    let problem = Problem::Zero;
    for (operation, argument, words, hip) in [
        (Operation::Create, Argument::Device, "create: device is zero", 101),
        (Operation::Create, Argument::Flags, "create: flags is zero", 1),
        (Operation::Mmap, Argument::Size, "mmap: size is zero", 1),
        (Operation::Munmap, Argument::Host, "munmap: host is zero", 1),
        (Operation::Read, Argument::Offset, "read: offset is zero", 1),
        (Operation::Write, Argument::Size, "write: size is zero", 1),
        (Operation::Fill, Argument::Size, "fill: size is zero", 1),
        (Operation::Copy, Argument::Source, "copy: source is zero", 1),
    ] {
        let error = AreaError::refused(operation, argument, problem);
        assert_eq!(error.to_string(), words);
        assert_eq!((error.aml(), error.hip(HipProfile::Hip7).code()), (3, hip), "{error}");
        assert_eq!(error.operation(), operation, "{error}");
        assert_eq!((error.problem(), error.cause()), (Some(problem), None), "{error}");
    }
}
