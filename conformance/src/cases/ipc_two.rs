//! IPC handles of pool memory between two processes: a second process exports, this process opens.

use super::ipc::{expect_ipc_error, expect_problem, open_ipc};
use crate::Context;
use crate::case::{Case, TestResult, ensure_bytes, ensure_eq};
use crate::peer::Peer;
use hsa_vmm::error::Problem;
use hsa_vmm::hip::HipError;
use hsa_vmm::ipc::{IpcHandle, OpenedMemory};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "ipc.open.same_memory",
        "HIP: hipIpcOpenMemHandle; hip-tests: hipIpcMemAccess_Semaphores",
        "each process reads what the other writes",
        processes_share_memory,
    ),
    Case::new(
        "ipc.open.twice",
        "reference 6.2 #72; hip-tests: hipIpcCloseMemHandle_Positive_Reference_Counting",
        "memory that is opened twice has one address, and stays until it is closed twice",
        counts_opens,
    ),
    Case::new(
        "ipc.open.freed_memory",
        "reference 6.2 #70; HIP: hipIpcOpenMemHandle",
        "a handle of freed memory is rejected",
        rejects_freed_memory,
    ),
    Case::new(
        "ipc.open.dead_process",
        "HIP: hipIpcOpenMemHandle, hipErrorInvalidDevicePointer; AMD's runtime waits",
        "a handle of a process that was killed is rejected",
        rejects_dead_process,
    ),
];

/// A size for which AMD's runtime does not keep freed memory for reuse.
const SIZE: usize = 64 << 20;
const EXPORTER_TEXT: &str = "written by the exporter";
const IMPORTER_TEXT: &str = "written by the importer";

/// Makes the second process export memory. Skips the case if the first GPU has too little available memory.
fn export(context: &Context, peer: &mut Peer) -> TestResult<IpcHandle> {
    let handle = peer.export(SIZE, EXPORTER_TEXT);
    handle.map_err(|failure| context.skip_if_too_small(context.gpu(), SIZE, failure))
}

fn processes_share_memory(context: &Context) -> TestResult {
    let mut peer = context.start_peer()?;
    let handle = export(context, &mut peer)?;
    let opened = OpenedMemory::open(&open_ipc(context)?, &handle)?;
    let mut text = vec![0; EXPORTER_TEXT.len()];
    opened.read(0, &mut text)?;
    ensure_bytes!(text, EXPORTER_TEXT.as_bytes(), "the exporter's text");
    opened.write(0, IMPORTER_TEXT.as_bytes())?;
    ensure_bytes!(peer.read(IMPORTER_TEXT.len())?, IMPORTER_TEXT.as_bytes(), "the importer's text");
    Ok(())
}

fn counts_opens(context: &Context) -> TestResult {
    let mut peer = context.start_peer()?;
    let handle = export(context, &mut peer)?;
    let ipc = open_ipc(context)?;
    let (first, second) = (ipc.open_mem_handle(&handle, 0)?, ipc.open_mem_handle(&handle, 0)?);
    ensure_eq!(second, first, "the address of the second opening");
    ipc.close_mem_handle(first)?;
    // The second opening keeps the memory mapped.
    let opened = OpenedMemory::open(&ipc, &handle)?;
    ensure_eq!(opened.address(), first, "the address after closing once");
    let mut text = vec![0; EXPORTER_TEXT.len()];
    opened.read(0, &mut text)?;
    ensure_bytes!(text, EXPORTER_TEXT.as_bytes(), "the contents after closing once");
    drop(opened);
    ipc.close_mem_handle(first)?;
    expect_problem(context, Problem::NotOpened, ipc.close_mem_handle(first))
}

fn rejects_freed_memory(context: &Context) -> TestResult {
    let mut peer = context.start_peer()?;
    let handle = export(context, &mut peer)?;
    peer.free()?;
    let result = open_ipc(context)?.open_mem_handle(&handle, 0);
    expect_ipc_error(context, HipError::InvalidDevicePointer, result).map(drop)
}

fn rejects_dead_process(context: &Context) -> TestResult {
    let mut peer = context.start_peer()?;
    let handle = export(context, &mut peer)?;
    peer.kill();
    let result = open_ipc(context)?.open_mem_handle(&handle, 0);
    expect_ipc_error(context, HipError::InvalidDevicePointer, result).map(drop)
}
