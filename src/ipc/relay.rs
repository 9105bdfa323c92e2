//! A server for this process's own runtime, for as long as it maps one piece of memory.
//!
//! It stands at a name that no process has, answers once, to this very process and to nobody else,
//! and with a descriptor that is already there: nothing that another process does can make the
//! runtime wait.

use super::server::{REQUEST, address, limit};
use crate::native::{NativeIpc, peer_of};
use rustix::io::{Errno, read};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, accept_with, bind, listen as start_listening, sendmsg, shutdown, socket_with,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long the runtime may take between two steps.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `attach` with a handle for which the runtime is given the descriptor.
pub(super) fn hand_over<T>(
    native: NativeIpc,
    descriptor: &OwnedFd,
    attach: impl FnOnce(NativeIpc) -> T,
) -> Result<T, Errno> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (number, listener) = loop {
        // Above the numbers of processes, which end at 2^22.
        let turn = NEXT.fetch_add(1, Ordering::Relaxed) % 128;
        let number = 1 << 30 | turn << 22 | std::process::id();
        match listen(number) {
            Ok(listener) => break (number, listener),
            // Another runtime of this process is at it.
            Err(Errno::ADDRINUSE) => std::thread::sleep(Duration::from_millis(1)),
            Err(errno) => return Err(errno),
        }
    };
    let pointer = u64::from(native[1]) << 32 | u64::from(native[0]);
    let mut ours = native;
    ours[2] = number;
    std::thread::scope(|scope| {
        let server = std::thread::Builder::new()
            .name("hsa-vmm ipc".to_owned())
            .spawn_scoped(scope, || serve(&listener, descriptor, |asked| asked == pointer));
        let server = server.map_err(|_| Errno::AGAIN)?;
        let attached = attach(ours);
        // If the runtime has never come, it is not waited for.
        let _ = shutdown(&listener, Shutdown::Both);
        let _ = server.join();
        Ok(attached)
    })
}

pub(super) fn listen(number: u32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&listener, &address(number)?)?;
    start_listening(&listener, 1)?;
    Ok(listener)
}

/// Answers this process once, with the descriptor if it asks for what is known.
pub(super) fn serve(listener: &OwnedFd, descriptor: impl AsFd, is_known: impl Fn(u64) -> bool) {
    while let Ok(stream) = accept_with(listener, SocketFlags::CLOEXEC) {
        let asking = peer_of(&stream).map(|peer| peer.process.map(NonZero::get));
        if asking != Ok(Some(std::process::id() as i32)) {
            tracing::warn!(?asking, "another process asked for memory that is not for it");
            continue;
        }
        if let Err(errno) = answer(&stream, &descriptor, &is_known) {
            tracing::warn!(%errno, "the runtime was not given the memory");
        }
        return;
    }
}

fn answer(
    stream: &OwnedFd,
    descriptor: impl AsFd,
    is_known: impl Fn(u64) -> bool,
) -> Result<(), Errno> {
    limit(stream.as_fd(), PATIENCE)?;
    let mut request = [0; REQUEST];
    let length = read(stream, &mut request)?;
    let text = request[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    if !number.is_some_and(is_known) {
        return Ok(());
    }
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(stream, &[IoSlice::new(b"y")], &mut control, SendFlags::NOSIGNAL)?;
    // The runtime writes once more when it has mapped the memory.
    read(stream, &mut request).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::server::{Denial, fetch, tests::tempfile};
    use rustix::fs::fstat;
    use std::time::Instant;

    const NATIVE: NativeIpc = [0x2000, 0x7f00, 77, 0, 3, 0, 5, 6];

    #[test]
    fn the_runtime_is_given_the_descriptor_and_all_else_as_it_was() {
        let memory = OwnedFd::from(tempfile());
        let identity = |file: &OwnedFd| fstat(file).map(|status| (status.st_dev, status.st_ino));
        let given = hand_over(NATIVE, &memory, |native| {
            assert_eq!((native[0], native[1], &native[3..]), (0x2000, 0x7f00, &NATIVE[3..]));
            assert!(native[2] > 1 << 22, "{} may be a process", native[2]);
            fetch(native).unwrap()
        });
        assert_eq!(identity(&given.unwrap()), identity(&memory));
    }

    #[test]
    fn a_runtime_that_does_not_come_is_not_waited_for() {
        let memory = OwnedFd::from(tempfile());
        let begun = Instant::now();
        assert_eq!(hand_over(NATIVE, &memory, |_| 7), Ok(7));
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn nothing_else_is_handed_out() {
        let memory = OwnedFd::from(tempfile());
        let answer = hand_over(NATIVE, &memory, |mut native| {
            native[0] += 1;
            fetch(native).unwrap_err()
        });
        assert_eq!(answer, Ok(Denial::Unknown));
    }
}
