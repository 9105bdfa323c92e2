//! Sends descriptors between processes.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The size of a control message with one descriptor.
const CONTROL_SIZE: usize = rustix::cmsg_space!(ScmRights(1));

pub fn send(socket: &UnixStream, descriptor: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); CONTROL_SIZE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(1));
}

pub fn receive(socket: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); CONTROL_SIZE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let bytes = &mut [IoSliceMut::new(&mut byte)];
    let received = recvmsg(socket, bytes, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert_eq!(received.bytes, 1);
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.expect("the message has a descriptor")
}
