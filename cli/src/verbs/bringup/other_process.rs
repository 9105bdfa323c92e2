//! The level "shared": memory that goes to another process as a descriptor, and back.

use super::climb::{Ground, Host, find_agents, find_ground, read_by, with_host, write_by};
use super::hsa::{Address, Handle, Hsa};
use super::level::Level;
use super::record::Argument;
use super::recorder::Stopped;
use crate::contained;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

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
    host: &Host,
) -> Result<()> {
    let gpu = &ground.gpus[0];
    hsa.grant(va, ground.size, &[gpu])?;
    write_by(hsa, gpu, va, ground.size, host, THERE)?;
    let dmabuf = hsa.export(memory)?;
    let (mut other, socket) =
        start(hsa).map_err(|error| hsa.recorder.wrong(format!("no other process: {error}")))?;
    let number = dmabuf.as_raw_fd().to_string();
    let into = [("socket", "the other process".to_owned()), ("dmabuf", number)];
    let c = "send_descriptor(socket, dmabuf);".to_owned();
    let sent =
        hsa.recorder.around("send", &into, Some(c), || (send(&socket, &dmabuf), None, vec![]));
    sent.1.map_err(|error| hsa.recorder.wrong(format!("cannot send the descriptor: {error}")))?;
    // It closes its end when it ends, in whatever way.
    let c = "wait_for(socket);".to_owned();
    let into = [("socket", "the other process".to_owned())];
    let ended = hsa.recorder.around("wait", &into, Some(c), || {
        let mut nothing = Vec::new();
        let _ = (&socket).read_to_end(&mut nothing);
        (other.wait(), None, vec![])
    });
    match ended.1 {
        Ok(status) if status.success() => {
            read_by(hsa, gpu, va, ground.size, host, BACK)?;
            hsa.recorder.fact("written here, read and answered there");
            Ok(())
        }
        // It has told why.
        Ok(status) if status.code() == Some(i32::from(crate::FAILED)) => Err(Stopped),
        Ok(status) => Err(hsa.recorder.wrong(format!("the other process: {status}"))),
        Err(error) => Err(hsa.recorder.wrong(format!("the other process is lost: {error}"))),
    }
}

/// Starts the other process before it has anything to do.
fn start(hsa: &Hsa<'_>) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let arguments: Vec<_> = std::env::args_os().skip(1).chain([ARGUMENT.into()]).collect();
    let mut command: Command = contained::again(arguments)?;
    command.stdin(OwnedFd::from(theirs)).stdout(hsa.recorder.pipe()?);
    Ok((command.spawn()?, ours))
}

fn send(socket: &UnixStream, dmabuf: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let descriptors = [dmabuf.as_fd()];
    with.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive() -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let socket = io::stdin();
    let received = rustix::net::recvmsg(&socket, &mut bytes, &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let whole = !received.flags.contains(ReturnFlags::CTRUNC);
    let mut descriptors = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
    descriptor.filter(|_| whole).ok_or_else(|| io::Error::other("no descriptor came"))
}

/// The other process: imports what it is sent on its standard input, and answers in it.
pub fn import(hsa: &Hsa<'_>) -> Result<()> {
    hsa.init()?;
    let (cpu, gpus) = find_agents(hsa)?;
    let ground = find_ground(hsa, Level::Shared, cpu, gpus)?;
    let into = [("socket", "the other process".to_owned())];
    let c = "dmabuf = receive_descriptor(socket);".to_owned();
    let (_, dmabuf) = hsa.recorder.around("receive", &into, Some(c), || {
        let received = receive();
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
        read_by(hsa, gpu, &va, size, host, THERE)?;
        write_by(hsa, gpu, &va, size, host, BACK)
    })?;
    hsa.unmap(&va, size)?;
    hsa.release(&memory)?;
    hsa.free(&va, size)?;
    hsa.shut_down()
}
