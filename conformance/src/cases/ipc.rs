//! IPC handles of pool memory, as far as one process can test them. `ipc_two` has the cases for two
//! processes; more are in the library's tests (`tests/ipc`).

use crate::case::{Case, Verdict, ensure, ensure_eq};
use crate::context::offset;
use crate::{Context, NotPassed};
use hsa_vmm::error::Problem;
use hsa_vmm::hip::HipError;
use hsa_vmm::ipc::IpcHandle;
use hsa_vmm::{Address, Error, ErrorKind, Ipc, PoolMemory};
use std::fmt;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "ipc.get.layout",
        "HIP: hipIpcMemHandle_t; reference 4.1",
        "a handle has HIP's 64 bytes: size at 32, offset at 40, the process at 48",
        layout,
    ),
    Case::new(
        "ipc.get.interior",
        "reference 6.2 #71",
        "an address inside an allocation gives a handle with its offset and the full size",
        interior,
    ),
    Case::new(
        "ipc.get.separate_allocations",
        "hip-tests: hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations",
        "two allocations have different handles",
        separate,
    ),
    Case::new(
        "ipc.get.reused_memory",
        "hip-tests: hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory",
        "memory allocated at the address of freed exported memory has another handle",
        reused,
    ),
    Case::new(
        "ipc.get.freed_memory",
        "hip-tests: hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory",
        "freed memory has no handle",
        freed,
    ),
    Case::new(
        "ipc.get.out_of_bounds",
        "hip-tests: hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer",
        "the address after an allocation has no handle",
        out_of_bounds,
    ),
    Case::new(
        "ipc.get.null",
        "hip-tests: hipIpcMemAccess_ParameterValidation",
        "the null address has no handle",
        null,
    ),
    Case::new(
        "ipc.get.virtual_memory",
        "reference 6.2 #68",
        "reserved and mapped addresses are refused, and the error names them as such",
        virtual_memory,
    ),
    Case::new(
        "ipc.get.host_memory",
        "HIP: hipIpcGetMemHandle takes device memory",
        "host memory is refused, and the error names it as such",
        host_memory,
    ),
    Case::new(
        "ipc.get.not_the_runtimes",
        "HIP: hipIpcGetMemHandle",
        "an address of the program's other memory is refused",
        not_the_runtimes,
    ),
    Case::new(
        "ipc.open.same_process",
        "reference 6.2 #69; hip-tests: hipIpcOpenMemHandle_Negative_Open_In_Creating_Process",
        "a handle of this process is refused with hipErrorInvalidContext",
        same_process,
    ),
    Case::new(
        "ipc.open.flags",
        "hip-tests: hipIpcMemAccess_ParameterValidation",
        "other flags than hipIpcMemLazyEnablePeerAccess are refused",
        flags,
    ),
    Case::new(
        "ipc.open.blank",
        "hip-tests: hipIpcMemAccess_ParameterValidation",
        "a handle of all zeros is refused",
        blank,
    ),
    Case::new(
        "ipc.open.offset_beyond",
        "reference 4.1: psize and poffset",
        "a handle with an offset outside its memory is refused",
        offset_beyond,
    ),
    Case::new(
        "ipc.open.no_process",
        "HIP: hipIpcOpenMemHandle, hipErrorInvalidDevicePointer; AMD's runtime waits",
        "a handle of a process that does not exist is refused with hipErrorInvalidDevicePointer",
        no_process,
    ),
    Case::new(
        "ipc.close.own_memory",
        "hip-tests: hipIpcCloseMemHandle_Negative_Close_In_Originating_Process",
        "this process's own memory cannot be closed, and stays usable",
        close_own,
    ),
    Case::new(
        "ipc.close.not_opened",
        "HIP: hipIpcCloseMemHandle",
        "memory that was not opened cannot be closed, nor can the null address",
        close_not_opened,
    ),
];

/// A size that no runtime rounds.
const SIZE: usize = 2 << 20;

pub(super) fn ipc(context: &Context) -> Verdict<Ipc> {
    Ok(Ipc::on(context.runtime(), context.gpu())?)
}

fn memory(context: &Context) -> Verdict<PoolMemory> {
    Ok(PoolMemory::allocate(context.runtime(), context.gpu(), SIZE)?)
}

/// Returns a handle. Skips the case if runtime and driver cannot share memory.
fn get(ipc: &Ipc, address: Address) -> Verdict<IpcHandle> {
    match ipc.get_mem_handle(address) {
        Err(error)
            if matches!(error.kind(), ErrorKind::NotShared { .. } | ErrorKind::NotSupported(_)) =>
        {
            Err(NotPassed::Skipped(error.to_string()))
        }
        handle => Ok(handle?),
    }
}

/// Checks that a call fails with this HIP error.
pub(super) fn refuses<T: fmt::Debug>(
    context: &Context,
    expected: HipError,
    answer: Result<T, Error>,
) -> Verdict<Error> {
    match answer {
        Ok(value) => Err(NotPassed::Failed(format!("returned {value:?} instead of {expected}"))),
        Err(error) => {
            ensure_eq!(error.hip(context.profile()), expected, "{error}");
            context.note_refusal(expected);
            Ok(error)
        }
    }
}

fn refuses_because<T: fmt::Debug>(
    context: &Context,
    problem: Problem,
    answer: Result<T, Error>,
) -> Verdict {
    let error = refuses(context, HipError::InvalidValue, answer)?;
    ensure_eq!(error.problem(), Some(problem), "{error}");
    Ok(())
}

fn layout(context: &Context) -> Verdict {
    let memory = memory(context)?;
    let bytes = get(&ipc(context)?, memory.address())?.to_bytes();
    ensure_eq!(bytes[32..40], (SIZE as u64).to_le_bytes(), "the size");
    ensure_eq!(bytes[40..48], [0; 8], "the offset");
    ensure_eq!(bytes[48..52], std::process::id().to_le_bytes(), "the process");
    ensure!(bytes[..32] != [0; 32], "the runtime's own handle is empty");
    Ok(())
}

fn interior(context: &Context) -> Verdict {
    let (memory, ipc) = (memory(context)?, ipc(context)?);
    let handle = get(&ipc, offset(memory.address(), 0x1_2345))?;
    ensure_eq!(handle.offset, 0x1_2345, "the offset");
    ensure_eq!(handle.allocation_size, SIZE as u64, "the size");
    let base = get(&ipc, memory.address())?;
    ensure_eq!(handle.to_bytes()[..32], base.to_bytes()[..32], "the runtime's handle");
    Ok(())
}

fn separate(context: &Context) -> Verdict {
    let (ipc, one, other) = (ipc(context)?, memory(context)?, memory(context)?);
    ensure!(get(&ipc, one.address())? != get(&ipc, other.address())?, "one handle for both");
    Ok(())
}

fn reused(context: &Context) -> Verdict {
    let ipc = ipc(context)?;
    let first = memory(context)?;
    let (address, old) = (first.address(), get(&ipc, first.address())?);
    drop(first);
    let mut others = Vec::new();
    for _ in 0..16 {
        let next = memory(context)?;
        ensure!(get(&ipc, next.address())? != old, "a new allocation has an old handle");
        if next.address() == address {
            break;
        }
        others.push(next);
    }
    Ok(())
}

fn freed(context: &Context) -> Verdict {
    let memory = memory(context)?;
    let address = memory.address();
    memory.free()?;
    refuses(context, HipError::InvalidValue, ipc(context)?.get_mem_handle(address))?;
    Ok(())
}

fn out_of_bounds(context: &Context) -> Verdict {
    let memory = memory(context)?;
    let after = offset(memory.address(), SIZE);
    refuses(context, HipError::InvalidValue, ipc(context)?.get_mem_handle(after))?;
    Ok(())
}

fn null(context: &Context) -> Verdict {
    refuses_because(context, Problem::Null, ipc(context)?.get_mem_handle(Address::NULL))
}

fn virtual_memory(context: &Context) -> Verdict {
    let ipc = ipc(context)?;
    let reserved = context.reserve(1)?;
    refuses_because(context, Problem::VirtualMemory, ipc.get_mem_handle(reserved))?;
    let (mapped, _) = context.mapped(2, 1)?;
    for address in [mapped, offset(mapped, 64)] {
        refuses_because(context, Problem::VirtualMemory, ipc.get_mem_handle(address))?;
    }
    context.holds(mapped, 2, 1)
}

fn host_memory(context: &Context) -> Verdict {
    let memory = PoolMemory::allocate(context.runtime(), context.host(), SIZE)?;
    let answer = ipc(context)?.get_mem_handle(memory.address());
    refuses_because(context, Problem::HostMemory, answer)
}

fn not_the_runtimes(context: &Context) -> Verdict {
    let own = [0u8; 64];
    let answer = ipc(context)?.get_mem_handle(Address::from(own.as_ptr()));
    refuses(context, HipError::InvalidValue, answer)?;
    Ok(())
}

fn same_process(context: &Context) -> Verdict {
    let (memory, ipc) = (memory(context)?, ipc(context)?);
    let handle = get(&ipc, memory.address())?;
    refuses(context, HipError::InvalidContext, ipc.open_mem_handle(&handle, 0))?;
    Ok(())
}

/// Returns a handle of this process's memory with changed bytes.
fn changed(ipc: &Ipc, memory: &PoolMemory, change: impl Fn(&mut [u8; 64])) -> Verdict<IpcHandle> {
    let mut bytes = get(ipc, memory.address())?.to_bytes();
    change(&mut bytes);
    Ok(IpcHandle::from_bytes(&bytes))
}

fn flags(context: &Context) -> Verdict {
    let (memory, ipc) = (memory(context)?, ipc(context)?);
    let handle = get(&ipc, memory.address())?;
    for flags in [2, 123, u32::MAX] {
        let answer = ipc.open_mem_handle(&handle, flags);
        refuses_because(context, Problem::UndefinedFlags(1), answer)?;
    }
    Ok(())
}

fn blank(context: &Context) -> Verdict {
    let handle = IpcHandle::from_bytes(&[0; IpcHandle::SIZE]);
    refuses_because(context, Problem::Empty, ipc(context)?.open_mem_handle(&handle, 0))
}

fn offset_beyond(context: &Context) -> Verdict {
    let (memory, ipc) = (memory(context)?, ipc(context)?);
    for beyond in [SIZE as u64, u64::MAX] {
        let handle = changed(&ipc, &memory, |bytes| {
            bytes[40..48].copy_from_slice(&beyond.to_le_bytes());
        })?;
        let problem = Problem::OutOfBounds { size: 1, end: SIZE };
        refuses_because(context, problem, ipc.open_mem_handle(&handle, 0))?;
    }
    Ok(())
}

fn no_process(context: &Context) -> Verdict {
    let (memory, ipc) = (memory(context)?, ipc(context)?);
    // Process identifiers are below 2^22.
    for process in [i32::MAX, 1 << 23, -1] {
        for foreign in [false, true] {
            let handle = changed(&ipc, &memory, |bytes| {
                bytes[48..52].copy_from_slice(&process.to_le_bytes());
                if foreign {
                    bytes[52..].fill(0);
                }
            })?;
            let answer = ipc.open_mem_handle(&handle, 0);
            refuses(context, HipError::InvalidDevicePointer, answer)?;
        }
    }
    Ok(())
}

fn close_own(context: &Context) -> Verdict {
    let (memory, ipc) = (memory(context)?, ipc(context)?);
    get(&ipc, memory.address())?;
    memory.write(0, b"still here")?;
    let answer = ipc.close_mem_handle(memory.address());
    refuses_because(context, Problem::OwnMemory, answer)?;
    let mut text = [0; 10];
    memory.read(0, &mut text)?;
    ensure_eq!(&text, b"still here", "after the attempt");
    Ok(())
}

fn close_not_opened(context: &Context) -> Verdict {
    let ipc = ipc(context)?;
    refuses_because(context, Problem::Null, ipc.close_mem_handle(Address::NULL))?;
    let reserved = context.reserve(1)?;
    refuses_because(context, Problem::NotOpened, ipc.close_mem_handle(reserved))
}
