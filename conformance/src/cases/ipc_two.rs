//! Pool memory by IPC between two processes: the peer exports, this one opens.

use super::ipc::{ipc, refuses};
use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_bytes, ensure_eq};
use hsa_vmm::hip::HipError;
use hsa_vmm::ipc::OpenedMemory;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "ipc.open.same_memory",
        "HIP: hipIpcOpenMemHandle; hip-tests: hipIpcMemAccess_Semaphores",
        "what one process writes the other reads, both ways",
        same_memory,
    ),
    Case::new(
        "ipc.open.twice",
        "reference 6.2 #72; hip-tests: hipIpcCloseMemHandle_Positive_Reference_Counting",
        "opened twice it is at one address, and stays until it is closed twice",
        twice,
    ),
    Case::new(
        "ipc.open.freed_memory",
        "reference 6.2 #70; HIP: hipIpcOpenMemHandle",
        "a handle of memory that was freed is refused, and nobody waits",
        freed_memory,
    ),
    Case::new(
        "ipc.open.dead_process",
        "HIP: hipIpcOpenMemHandle, hipErrorInvalidDevicePointer; AMD's runtime waits",
        "a handle of a process that was killed is refused",
        dead_process,
    ),
];

/// More than AMD's runtime keeps for later when it is freed.
const SIZE: usize = 64 << 20;
const HELLO: &str = "written by the exporter";
const ANSWER: &str = "written by the importer";

fn same_memory(context: &Context) -> Verdict {
    let mut peer = context.peer()?;
    let handle = peer.export(SIZE, HELLO)?;
    let opened = OpenedMemory::open(&ipc(context)?, &handle)?;
    let mut text = vec![0; HELLO.len()];
    opened.read(0, &mut text)?;
    ensure_bytes!(text, HELLO.as_bytes(), "what the exporter has written");
    opened.write(0, ANSWER.as_bytes())?;
    ensure_bytes!(peer.read(ANSWER.len())?, ANSWER.as_bytes(), "what the importer has written");
    Ok(())
}

fn twice(context: &Context) -> Verdict {
    let mut peer = context.peer()?;
    let handle = peer.export(SIZE, HELLO)?;
    let ipc = ipc(context)?;
    let (first, again) = (ipc.open_mem_handle(&handle, 0)?, ipc.open_mem_handle(&handle, 0)?);
    ensure_eq!(again, first, "the address of the second");
    ipc.close_mem_handle(first)?;
    // Who opens it now shares what the second has opened.
    let opened = OpenedMemory::open(&ipc, &handle)?;
    ensure_eq!(opened.address(), first, "the address, closed once");
    let mut text = vec![0; HELLO.len()];
    opened.read(0, &mut text)?;
    ensure_bytes!(text, HELLO.as_bytes(), "closed once");
    drop(opened);
    ipc.close_mem_handle(first)?;
    ensure!(ipc.close_mem_handle(first).is_err(), "closed a time more than it was opened");
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
