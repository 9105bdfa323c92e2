//! IPC handles of pool memory between two processes: the peer exports, this process opens.

use super::ipc::{ipc, refuses};
use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_bytes, ensure_eq};
use hsa_vmm::hip::HipError;
use hsa_vmm::ipc::OpenedMemory;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "ipc.open.same_memory",
        "HIP: hipIpcOpenMemHandle; hip-tests: hipIpcMemAccess_Semaphores",
        "each process reads what the other writes",
        same_memory,
    ),
    Case::new(
        "ipc.open.twice",
        "reference 6.2 #72; hip-tests: hipIpcCloseMemHandle_Positive_Reference_Counting",
        "memory that is opened twice has one address, and stays until it is closed twice",
        twice,
    ),
    Case::new(
        "ipc.open.freed_memory",
        "reference 6.2 #70; HIP: hipIpcOpenMemHandle",
        "a handle of freed memory is refused without waiting",
        freed_memory,
    ),
    Case::new(
        "ipc.open.dead_process",
        "HIP: hipIpcOpenMemHandle, hipErrorInvalidDevicePointer; AMD's runtime waits",
        "a handle of a process that was killed is refused",
        dead_process,
    ),
];

/// A size for which AMD's runtime does not keep freed memory for reuse.
const SIZE: usize = 64 << 20;
const HELLO: &str = "written by the exporter";
const ANSWER: &str = "written by the importer";

fn same_memory(context: &Context) -> Verdict {
    let mut peer = context.peer()?;
    let handle = peer.export(SIZE, HELLO)?;
    let opened = OpenedMemory::open(&ipc(context)?, &handle)?;
    let mut text = vec![0; HELLO.len()];
    opened.read(0, &mut text)?;
    ensure_bytes!(text, HELLO.as_bytes(), "the exporter's text");
    opened.write(0, ANSWER.as_bytes())?;
    ensure_bytes!(peer.read(ANSWER.len())?, ANSWER.as_bytes(), "the importer's text");
    Ok(())
}

fn twice(context: &Context) -> Verdict {
    let mut peer = context.peer()?;
    let handle = peer.export(SIZE, HELLO)?;
    let ipc = ipc(context)?;
    let (first, again) = (ipc.open_mem_handle(&handle, 0)?, ipc.open_mem_handle(&handle, 0)?);
    ensure_eq!(again, first, "the address of the second");
    ipc.close_mem_handle(first)?;
    // Opening it now shares the second opening's mapping.
    let opened = OpenedMemory::open(&ipc, &handle)?;
    ensure_eq!(opened.address(), first, "the address after closing once");
    let mut text = vec![0; HELLO.len()];
    opened.read(0, &mut text)?;
    ensure_bytes!(text, HELLO.as_bytes(), "closed once");
    drop(opened);
    ipc.close_mem_handle(first)?;
    ensure!(ipc.close_mem_handle(first).is_err(), "closed more often than it was opened");
    Ok(())
}

fn freed_memory(context: &Context) -> Verdict {
    let mut peer = context.peer()?;
    let handle = peer.export(SIZE, HELLO)?;
    peer.free()?;
    let answer = ipc(context)?.open_mem_handle(&handle, 0);
    refuses(context, HipError::InvalidDevicePointer, answer).map(drop)
}

fn dead_process(context: &Context) -> Verdict {
    let mut peer = context.peer()?;
    let handle = peer.export(SIZE, HELLO)?;
    peer.kill();
    let answer = ipc(context)?.open_mem_handle(&handle, 0);
    refuses(context, HipError::InvalidDevicePointer, answer).map(drop)
}
