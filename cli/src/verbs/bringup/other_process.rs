//! The level "shared": memory that goes to another process as a descriptor, and back.

use super::climb::{Ground, Host, find_agents, find_ground, with_host};
use super::hsa::{Address, Handle, Hsa};
use super::level::Level;
use super::record::{Argument, Record};
use super::recorder::Stopped;
use hsa_vmm_conformance::worker::{End, Heard, Orders, Prints, Worker};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

type Result<T> = std::result::Result<T, Stopped>;

const THERE: u32 = 0x5a4e_d001;
const BACK: u32 = 0xbac4_0001;
/// The argument that starts this program as the other process.
const ARGUMENT: &str = "--other-process";

/// Exports the memory, and waits until the other process has answered in it.
pub fn export(
    hsa: &Hsa<'_>,
    ground: &Ground,
    va: &Address,
    memory: &Handle,
    host: &Host<'_>,
) -> Result<()> {
    let gpu = &ground.gpus[0];
    hsa.grant(va, ground.size, &[gpu])?;
    host.write_by(gpu, va, THERE)?;
    let dmabuf = hsa.export(memory)?;
    let mut other =
        start().map_err(|error| hsa.recorder.wrong(format!("no other process: {error}")))?;
    let number = dmabuf.as_raw_fd().to_string();
    let into = [("socket", "the other process".to_owned()), ("dmabuf", number)];
    let c = "send_descriptor(socket, dmabuf);".to_owned();
    let sent =
        hsa.recorder.around("send", &into, Some(c), || (send(&other, &dmabuf), None, vec![]));
    sent.1.map_err(|error| hsa.recorder.wrong(format!("cannot send the descriptor: {error}")))?;
    let c = "wait_for(socket);".to_owned();
    let into = [("socket", "the other process".to_owned())];
    let (_, end) = hsa.recorder.around("wait", &into, Some(c), || {
        let end = loop {
            match other.hear::<Record>(Duration::MAX) {
                // It is told to those who watch this level.
                Heard::Answer(record) => hsa.recorder.tell(&record),
                Heard::Garbage(_) | Heard::Late => {}
                Heard::Ended(end) => break end,
            }
        };
        (end, None, vec![])
    });
    match end {
        End::Exited(0) => {
            host.read_by(gpu, va, BACK)?;
            hsa.recorder.fact("written here, read and answered there");
            Ok(())
        }
        // It has told why.
        End::Exited(code) if code == i32::from(crate::FAILED) => Err(Stopped),
        end => Err(hsa.recorder.wrong(format!("the other process: {end}"))),
    }
}

/// Starts the other process before it has anything to do.
fn start() -> io::Result<Worker> {
    let mut command = hsa_rocr::again()?;
    command.args(std::env::args_os().skip(1)).arg(ARGUMENT);
    Worker::start(command, Prints::Here)
}

fn send(socket: impl AsFd, dmabuf: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let descriptors = [dmabuf.as_fd()];
    with.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let received = rustix::net::recvmsg(socket, &mut bytes, &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let whole = !received.flags.contains(ReturnFlags::CTRUNC);
    let mut descriptors = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
    descriptor.filter(|_| whole).ok_or_else(|| io::Error::other("no descriptor came"))
}

/// The other process: imports what it is sent in place of orders, and answers in it.
pub fn import(hsa: &Hsa<'_>, orders: &Orders) -> Result<()> {
    hsa.init()?;
    let (cpu, gpus) = find_agents(hsa)?;
    let ground = find_ground(hsa, Level::Shared, cpu, gpus)?;
    let into = [("socket", "the other process".to_owned())];
    let c = "dmabuf = receive_descriptor(socket);".to_owned();
    let (_, dmabuf) = hsa.recorder.around("receive", &into, Some(c), || {
        let received = receive(orders);
        let answered = received.as_ref().map_or(String::new(), |fd| fd.as_raw_fd().to_string());
        (received, None, vec![Argument { name: "dmabuf".into(), value: answered }])
    });
    let dmabuf = dmabuf
        .map_err(|error| hsa.recorder.wrong(format!("cannot receive the descriptor: {error}")))?;
    let (gpu, size) = (&ground.gpus[0], ground.size);
    let memory = hsa.import(&dmabuf)?;
    let va = hsa.reserve(size)?;
    hsa.map(&va, size, &memory)?;
    hsa.grant(&va, size, &[gpu])?;
    with_host(hsa, &ground, |host| {
        host.read_by(gpu, &va, THERE)?;
        host.write_by(gpu, &va, BACK)
    })?;
    hsa.unmap(&va, size)?;
    hsa.release(&memory)?;
    hsa.free(&va, size)?;
    hsa.shut_down()
}
