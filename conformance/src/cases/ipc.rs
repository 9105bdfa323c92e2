//! IPC handles of pool memory: the cases that one process can test. `ipc_two` has the cases for two
//! processes, and the library's tests (`tests/ipc`) have more cases.

use crate::case::{Case, TestResult, ensure, ensure_bytes, ensure_eq};
use crate::context::offset_by;
use crate::{Context, NotPassed};
use hsa_vmm::error::Problem;
use hsa_vmm::hip::HipError;
use hsa_vmm::ipc::IpcHandle;
use hsa_vmm::{Address, Error, ErrorKind, Ipc, PoolMemory};
use std::fmt;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "ipc.get.layout",
        "HIP: hipIpcMemHandle_t; documentation: IpcHandle",
        "a handle has HIP's layout: 64 bytes, with the size at byte 32, the offset at byte 40, the process at byte 48 and the GPU at byte 52",
        handle_has_hip_layout,
    ),
    Case::new(
        "ipc.get.interior",
        "reference 6.2 #71",
        "the handle of an address inside an allocation has the address's offset and the full size of the allocation",
        interior_address_has_offset,
    ),
    Case::new(
        "ipc.get.separate_allocations",
        "hip-tests: hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations",
        "two allocations have different handles",
        allocations_have_own_handles,
    ),
    Case::new(
        "ipc.get.reused_memory",
        "hip-tests: hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory",
        "if exported memory is freed, new memory at the same address has another handle",
        reused_address_has_new_handle,
    ),
    Case::new(
        "ipc.get.freed_memory",
        "hip-tests: hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory",
        "freed memory has no handle",
        rejects_freed_memory,
    ),
    Case::new(
        "ipc.get.out_of_bounds",
        "hip-tests: hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer",
        "the address after an allocation has no handle",
        rejects_end_of_allocation,
    ),
    Case::new(
        "ipc.get.null",
        "hip-tests: hipIpcMemAccess_ParameterValidation",
        "the null address has no handle",
        rejects_null,
    ),
    Case::new(
        "ipc.get.virtual_memory",
        "reference 6.2 #68",
        "reserved and mapped addresses are rejected, and the error reports virtual memory",
        rejects_virtual_memory,
    ),
    Case::new(
        "ipc.get.host_memory",
        "HIP: hipIpcGetMemHandle takes device memory",
        "host memory is rejected, and the error reports host memory",
        rejects_host_memory,
    ),
    Case::new(
        "ipc.get.not_the_runtimes",
        "HIP: hipIpcGetMemHandle",
        "an address of memory that the runtime has not allocated is rejected",
        rejects_other_memory,
    ),
    Case::new(
        "ipc.open.same_process",
        "reference 6.2 #69; hip-tests: hipIpcOpenMemHandle_Negative_Open_In_Creating_Process",
        "a handle of this process is rejected with hipErrorInvalidContext",
        rejects_own_process,
    ),
    Case::new(
        "ipc.open.flags",
        "hip-tests: hipIpcMemAccess_ParameterValidation",
        "flags other than hipIpcMemLazyEnablePeerAccess are rejected",
        rejects_flags,
    ),
    Case::new(
        "ipc.open.blank",
        "hip-tests: hipIpcMemAccess_ParameterValidation",
        "a handle of all zeros is rejected",
        rejects_zeros,
    ),
    Case::new(
        "ipc.open.offset_beyond",
        "documentation: IpcHandle, psize and poffset",
        "a handle with an offset outside its memory is rejected",
        rejects_offset_beyond_end,
    ),
    Case::new(
        "ipc.open.no_process",
        "HIP: hipIpcOpenMemHandle, hipErrorInvalidDevicePointer; AMD's runtime waits",
        "a handle of a process that does not exist is rejected with hipErrorInvalidDevicePointer",
        rejects_missing_process,
    ),
    Case::new(
        "ipc.close.own_memory",
        "hip-tests: hipIpcCloseMemHandle_Negative_Close_In_Originating_Process",
        "this process's own memory cannot be closed, and stays usable",
        rejects_closing_own_memory,
    ),
    Case::new(
        "ipc.close.not_opened",
        "HIP: hipIpcCloseMemHandle",
        "neither memory that was not opened nor the null address can be closed",
        rejects_closing_unopened_memory,
    ),
];

/// A size that no runtime rounds.
const SIZE: usize = 2 << 20;

pub(super) fn open_ipc(context: &Context) -> TestResult<Ipc> {
    Ok(Ipc::on(context.runtime(), context.gpu())?)
}

fn allocate(context: &Context) -> TestResult<PoolMemory> {
    Ok(PoolMemory::allocate(context.runtime(), context.gpu(), SIZE)?)
}

/// Returns an IPC handle. Skips the case if runtime and driver cannot share memory.
fn get_handle(ipc: &Ipc, address: Address) -> TestResult<IpcHandle> {
    match ipc.get_mem_handle(address) {
        Err(error)
            if matches!(error.kind(), ErrorKind::NotShared { .. } | ErrorKind::NotSupported(_)) =>
        {
            Err(NotPassed::Skipped(error.to_string()))
        }
        handle => Ok(handle?),
    }
}

/// Checks that a call failed with the expected HIP error, and records the error.
pub(super) fn expect_ipc_error<T: fmt::Debug>(
    context: &Context,
    expected: HipError,
    result: Result<T, Error>,
) -> TestResult<Error> {
    match result {
        Ok(value) => Err(NotPassed::Failed(format!("returned {value:?} instead of {expected}"))),
        Err(error) => {
            ensure_eq!(error.hip(context.profile()), expected, "{error}");
            context.record_expected_error(expected);
            Ok(error)
        }
    }
}

/// Checks that a call failed with `hipErrorInvalidValue`, and that the error reports `problem`.
pub(super) fn expect_problem<T: fmt::Debug>(
    context: &Context,
    problem: Problem,
    result: Result<T, Error>,
) -> TestResult {
    let error = expect_ipc_error(context, HipError::InvalidValue, result)?;
    ensure_eq!(error.problem(), Some(problem), "{error}");
    Ok(())
}

fn handle_has_hip_layout(context: &Context) -> TestResult {
    let memory = allocate(context)?;
    let bytes = get_handle(&open_ipc(context)?, memory.address())?.to_bytes();
    ensure_bytes!(bytes[32..40], (SIZE as u64).to_le_bytes(), "the size");
    ensure_bytes!(bytes[40..48], [0; 8], "the offset");
    ensure_bytes!(bytes[48..52], std::process::id().to_le_bytes(), "the process");
    ensure_bytes!(bytes[52..56], [0; 4], "the number of the GPU");
    Ok(())
}

fn interior_address_has_offset(context: &Context) -> TestResult {
    let (memory, ipc) = (allocate(context)?, open_ipc(context)?);
    let handle = get_handle(&ipc, offset_by(memory.address(), 0x1_2345))?;
    ensure_eq!(handle.offset, 0x1_2345, "the offset");
    ensure_eq!(handle.allocation_size, SIZE as u64, "the size");
    let base = get_handle(&ipc, memory.address())?;
    ensure_bytes!(handle.to_bytes()[..32], base.to_bytes()[..32], "the runtime's handle");
    Ok(())
}

fn allocations_have_own_handles(context: &Context) -> TestResult {
    let (ipc, first, second) = (open_ipc(context)?, allocate(context)?, allocate(context)?);
    // The bytes after the first 32 are not the runtime's.
    let runtime_bytes = |memory: &PoolMemory| {
        get_handle(&ipc, memory.address()).map(|handle| handle.to_bytes()[..32].to_vec())
    };
    ensure!(runtime_bytes(&first)? != runtime_bytes(&second)?, "one handle for both");
    Ok(())
}

fn reused_address_has_new_handle(context: &Context) -> TestResult {
    let ipc = open_ipc(context)?;
    let first = allocate(context)?;
    let (address, old) = (first.address(), get_handle(&ipc, first.address())?);
    drop(first);
    // Keep allocations at other addresses, so that the next allocation gets another address.
    let mut others = Vec::new();
    for _ in 0..16 {
        let next = allocate(context)?;
        ensure!(get_handle(&ipc, next.address())? != old, "a new allocation has an old handle");
        if next.address() == address {
            break;
        }
        others.push(next);
    }
    Ok(())
}

fn rejects_freed_memory(context: &Context) -> TestResult {
    let memory = allocate(context)?;
    let address = memory.address();
    memory.free()?;
    expect_ipc_error(context, HipError::InvalidValue, open_ipc(context)?.get_mem_handle(address))?;
    Ok(())
}

fn rejects_end_of_allocation(context: &Context) -> TestResult {
    let memory = allocate(context)?;
    let end = offset_by(memory.address(), SIZE);
    expect_ipc_error(context, HipError::InvalidValue, open_ipc(context)?.get_mem_handle(end))?;
    Ok(())
}

fn rejects_null(context: &Context) -> TestResult {
    expect_problem(context, Problem::Null, open_ipc(context)?.get_mem_handle(Address::NULL))
}

fn rejects_virtual_memory(context: &Context) -> TestResult {
    let ipc = open_ipc(context)?;
    let reserved = context.reserve(1)?;
    expect_problem(context, Problem::VirtualMemory, ipc.get_mem_handle(reserved))?;
    let (mapped, _) = context.map_filled(2, 1)?;
    for address in [mapped, offset_by(mapped, 64)] {
        expect_problem(context, Problem::VirtualMemory, ipc.get_mem_handle(address))?;
    }
    context.check_contents(mapped, 2, 1)
}

fn rejects_host_memory(context: &Context) -> TestResult {
    let memory = PoolMemory::allocate(context.runtime(), context.host(), SIZE)?;
    let result = open_ipc(context)?.get_mem_handle(memory.address());
    expect_problem(context, Problem::HostMemory, result)
}

fn rejects_other_memory(context: &Context) -> TestResult {
    let local = [0u8; 64];
    let result = open_ipc(context)?.get_mem_handle(Address::from(local.as_ptr()));
    expect_ipc_error(context, HipError::InvalidValue, result)?;
    Ok(())
}

fn rejects_own_process(context: &Context) -> TestResult {
    let (memory, ipc) = (allocate(context)?, open_ipc(context)?);
    let handle = get_handle(&ipc, memory.address())?;
    expect_ipc_error(context, HipError::InvalidContext, ipc.open_mem_handle(&handle, 0))?;
    Ok(())
}

/// Returns an IPC handle of `memory`, with changed bytes.
fn changed_handle(
    ipc: &Ipc,
    memory: &PoolMemory,
    change: impl Fn(&mut [u8; 64]),
) -> TestResult<IpcHandle> {
    let mut bytes = get_handle(ipc, memory.address())?.to_bytes();
    change(&mut bytes);
    Ok(IpcHandle::from_bytes(&bytes))
}

fn rejects_flags(context: &Context) -> TestResult {
    let (memory, ipc) = (allocate(context)?, open_ipc(context)?);
    let handle = get_handle(&ipc, memory.address())?;
    for flags in [2, 123, u32::MAX] {
        let result = ipc.open_mem_handle(&handle, flags);
        expect_problem(context, Problem::UndefinedFlags(1), result)?;
    }
    Ok(())
}

fn rejects_zeros(context: &Context) -> TestResult {
    let handle = IpcHandle::from_bytes(&[0; IpcHandle::SIZE]);
    expect_problem(context, Problem::Empty, open_ipc(context)?.open_mem_handle(&handle, 0))
}

fn rejects_offset_beyond_end(context: &Context) -> TestResult {
    let (memory, ipc) = (allocate(context)?, open_ipc(context)?);
    for invalid_offset in [SIZE as u64, u64::MAX] {
        let handle = changed_handle(&ipc, &memory, |bytes| {
            bytes[40..48].copy_from_slice(&invalid_offset.to_le_bytes());
        })?;
        let problem = Problem::OutOfBounds { size: 1, end: SIZE };
        expect_problem(context, problem, ipc.open_mem_handle(&handle, 0))?;
    }
    Ok(())
}

fn rejects_missing_process(context: &Context) -> TestResult {
    let (memory, ipc) = (allocate(context)?, open_ipc(context)?);
    // Process identifiers are below 2^22.
    for process in [i32::MAX, 1 << 23, -1] {
        // The bytes from 56 on identify an export of this library. HIP does not write them.
        for clears_rest in [false, true] {
            let handle = changed_handle(&ipc, &memory, |bytes| {
                bytes[48..52].copy_from_slice(&process.to_le_bytes());
                if clears_rest {
                    bytes[56..].fill(0);
                }
            })?;
            let result = ipc.open_mem_handle(&handle, 0);
            expect_ipc_error(context, HipError::InvalidDevicePointer, result)?;
        }
    }
    Ok(())
}

fn rejects_closing_own_memory(context: &Context) -> TestResult {
    let (memory, ipc) = (allocate(context)?, open_ipc(context)?);
    get_handle(&ipc, memory.address())?;
    memory.write(0, b"still here")?;
    let result = ipc.close_mem_handle(memory.address());
    expect_problem(context, Problem::OwnMemory, result)?;
    let mut text = [0; 10];
    memory.read(0, &mut text)?;
    ensure_eq!(&text, b"still here", "the contents after the failed close");
    Ok(())
}

fn rejects_closing_unopened_memory(context: &Context) -> TestResult {
    let ipc = open_ipc(context)?;
    expect_problem(context, Problem::Null, ipc.close_mem_handle(Address::NULL))?;
    let reserved = context.reserve(1)?;
    expect_problem(context, Problem::NotOpened, ipc.close_mem_handle(reserved))
}
