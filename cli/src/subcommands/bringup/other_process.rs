//! The level "shared": exports memory to a second process as a descriptor. Also starts and runs the additional
//! processes of "pressure" and "killed".

use super::host_buffer::{HostBuffer, with_host};
use super::hsa::{Address, Agent, Difference, Handle, Hsa, wrong_data};
use super::level::Level;
use super::processes;
use super::record::{Argument, Record};
use super::recorder::AlreadyReported;
use super::run_level::{Resources, find_agents, find_resources};
use hsa_vmm_conformance::worker::{End, Output, Received, Requests, Worker};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The first of the numbers that the exporting process writes.
const EXPORTED: u32 = 0x5a4e_d001;
/// The first of the numbers that the importing process writes.
const REPLY: u32 = 0xbac4_0001;
/// The functions that export and import memory.
const EXPORT: &str = "hsa_amd_vmem_export_shareable_handle";
const IMPORT: &str = "hsa_amd_vmem_import_shareable_handle";
/// The option that starts this program as another process of a level.
const OPTION: &str = "--other-process";

/// Exports the memory, and waits until the second process has written a reply into the memory.
pub fn export(
    hsa: &Hsa<'_>,
    resources: &Resources,
    va: &Address,
    memory: &Handle,
    host: &HostBuffer<'_>,
) -> Result<()> {
    let gpu = &resources.gpus[0];
    hsa.grant(va, resources.size, &[gpu])?;
    host.write_and_read(gpu, va, EXPORTED)?;
    let dmabuf = hsa.export(memory)?;
    let mut other = start_process(1)
        .map_err(|error| hsa.recorder.fail(format!("cannot start process 2: {error}")))?;
    let descriptor = dmabuf.as_raw_fd().to_string();
    let arguments = [("socket", "the other process".to_owned()), ("dmabuf", descriptor)];
    let c_statement = "send_descriptor(socket, dmabuf);".to_owned();
    let (_, sent) = hsa.recorder.record("send", &arguments, Some(c_statement), || {
        (send_descriptor(&other, &dmabuf), None, vec![])
    });
    sent.map_err(|error| hsa.recorder.fail(format!("cannot send the descriptor: {error}")))?;
    let c_statement = "wait_for(socket);".to_owned();
    let arguments = [("socket", "the other process".to_owned())];
    let (_, end) = hsa.recorder.record("wait", &arguments, Some(c_statement), || {
        let end = loop {
            match other.receive::<Record>(Duration::MAX) {
                Received::Message(record) => hsa.recorder.send(&record),
                Received::Invalid(_) | Received::Timeout => {}
                Received::Exited(end) => break end,
            }
        };
        (end, None, vec![])
    });
    match end {
        End::Exited(0) => {
            host.read_by(gpu, va, REPLY, &format!("{} of process 2", gpu.c_expression))?;
            hsa.recorder.record_fact("written by this process, read and answered by another");
            Ok(())
        }
        // The other process has recorded the reason.
        End::Exited(code) if code == i32::from(crate::FAILED) => Err(AlreadyReported),
        end => Err(hsa.recorder.fail(format!("process 2: {end}"))),
    }
}

/// Starts another process of this level, with this number.
pub fn start_process(number: u8) -> io::Result<Worker> {
    let mut command = hsa_rocr::restart_command()?;
    command.args(std::env::args_os().skip(1)).args([OPTION, &number.to_string()]);
    Worker::start(command, Output::Inherit)
}

fn send_descriptor(socket: impl AsFd, dmabuf: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [dmabuf.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let received = rustix::net::recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let is_complete = !received.flags.contains(ReturnFlags::CTRUNC);
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
    descriptor
        .filter(|_| is_complete)
        .ok_or_else(|| io::Error::other("the message contains no descriptor"))
}

/// Runs the other process of a level.
pub fn run(hsa: &Hsa<'_>, level: Level, requests: &Requests) -> Result<()> {
    hsa.init()?;
    let (cpu, gpus) = find_agents(hsa)?;
    let resources = find_resources(hsa, level, cpu, gpus)?;
    match level {
        Level::Pressure => processes::fill_memory(hsa, &resources)?,
        Level::Killed => processes::hold_memory(hsa, &resources)?,
        _ => import(hsa, &resources, requests)?,
    }
    hsa.shut_down()
}

/// Receives a descriptor through the request socket, imports and checks its memory, and writes a reply into the
/// memory.
fn import(hsa: &Hsa<'_>, resources: &Resources, requests: &Requests) -> Result<()> {
    let arguments = [("socket", "the other process".to_owned())];
    let c_statement = "dmabuf = receive_descriptor(socket);".to_owned();
    let (_, dmabuf) = hsa.recorder.record("receive", &arguments, Some(c_statement), || {
        let received = receive_descriptor(requests);
        let value = received.as_ref().map_or(String::new(), |fd| fd.as_raw_fd().to_string());
        (received, None, vec![Argument { name: "dmabuf".into(), value }])
    });
    let dmabuf = dmabuf
        .map_err(|error| hsa.recorder.fail(format!("cannot receive the descriptor: {error}")))?;
    let (gpu, size) = (&resources.gpus[0], resources.size);
    let memory = hsa.import(&dmabuf)?;
    let va = hsa.reserve(size, "va")?;
    hsa.map(&va, size, &memory)?;
    hsa.grant(&va, size, &[gpu])?;
    with_host(hsa, resources, |host| {
        host.read_first(gpu, &va, EXPORTED, &exporter(gpu), |difference| {
            Err(attribute_to_export_or_import(hsa, resources, &dmabuf, gpu, &difference)?)
        })?;
        host.write_by(gpu, &va, REPLY)
    })?;
    hsa.unmap(&va, size)?;
    hsa.release(&memory)?;
    hsa.free(&va, size)
}

/// Describes the GPU of the exporting process.
fn exporter(gpu: &Agent) -> String {
    format!("{} of process 1", gpu.c_expression)
}

/// Records whether the export or the import returned the wrong memory. The CPU reads the dma-buf without an import to
/// find out. If the CPU cannot read the dma-buf, attributes the failure to the export, because the import only opens
/// exported memory. The message then names both calls.
fn attribute_to_export_or_import(
    hsa: &Hsa<'_>,
    resources: &Resources,
    dmabuf: &OwnedFd,
    gpu: &Agent,
    difference: &Difference,
) -> Result<AlreadyReported> {
    // If the CPU cannot access the whole memory, a read through a mapping can kill this process.
    let in_dmabuf = match hsa.can_access(&resources.cpu, &resources.pool)? {
        true => hsa.difference_in_dmabuf(dmabuf, resources.size, EXPORTED),
        false => Err(io::Error::other("no large BAR")),
    };
    let (writer, reader) = (exporter(gpu), hsa.describe_copier(gpu));
    let (call, message) = match in_dmabuf {
        Ok(Some(in_dmabuf)) => {
            let what = "the export, not the import, returned other memory: without an import, \
                        the dma-buf contains wrong data";
            (EXPORT, wrong_data(what, writer, "the CPU of process 2 by mmap", &in_dmabuf))
        }
        Ok(None) => {
            let what = "the import, not the export, returned other memory: without an import, \
                        the dma-buf contains the right data, but the imported memory contains wrong data";
            (IMPORT, wrong_data(what, writer, reader, difference))
        }
        Err(error) => {
            let what = format!(
                "the export or {IMPORT} returned other memory (the CPU cannot read the dma-buf to \
                 find out which: {error})"
            );
            (EXPORT, wrong_data(what, writer, reader, difference))
        }
    };
    Ok(hsa.recorder.fail_in(call, message))
}
