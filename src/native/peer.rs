//! Unix sockets that another process holds the other end of.
//!
//! The credentials are read by hand: the kernel reports a process of another PID namespace as 0,
//! which rustix's type cannot hold.

use core::mem::MaybeUninit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, getsockname, recvmsg, sendmsg,
    sockopt::socket_acceptconn,
};
use rustix::process::getpid;
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// Room for this many descriptors in a message. The kernel closes those without room.
const ROOM: usize = 4;

/// The process that connected or listened, or made the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `None` if it has no number in the PID namespace of this process.
    pub process: Option<NonZero<i32>>,
    /// Its effective user then, as this process's user namespace numbers it.
    pub user: u32,
}

/// Asks the kernel who is at the other end (`SO_PEERCRED`).
pub(crate) fn peer_of(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: any bytes are a ucred.
    unsafe { ask(socket.as_fd(), libc::SO_PEERCRED, &mut found) }?;
    Ok(Peer { process: NonZero::new(found.pid), user: found.uid })
}

/// Whether the process at the other end has ended, so that its number may be another process's
/// (`SO_PEERPIDFD`). `None` if the kernel is older than Linux 6.5 and cannot tell.
pub(crate) fn peer_has_ended(socket: impl AsFd) -> Result<Option<bool>, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: any bytes are a number.
    match unsafe { ask(socket.as_fd(), libc::SO_PEERPIDFD, &mut pidfd) } {
        Ok(()) => {}
        Err(Errno::NOPROTOOPT) => return Ok(None),
        // The process has ended, and somebody has waited for it.
        Err(Errno::SRCH | Errno::INVAL | Errno::NODATA) => return Ok(Some(true)),
        Err(errno) => return Err(errno),
    }
    if pidfd < 0 {
        return Ok(Some(true));
    }
    // SAFETY: the kernel has just opened it for this call.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // It is readable from the end of the process on.
    wait(pidfd.as_fd(), PollFlags::IN, Instant::now()).map(Some)
}

/// Whether a descriptor, which other threads may close or reuse, is a socket at which this very process
/// listens: not one that another process listens at, and has sent.
pub(crate) fn listens_at(number: RawFd, address: &SocketAddrUnix) -> bool {
    if number < 0 {
        return false;
    }
    // SAFETY: not -1. It is only asked about, which neither reads from it nor changes it, and the
    // answer for a descriptor that is closed or another's by now is an error or true of that one.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let own = getpid().as_raw_nonzero().get();
    let here = getsockname(socket).and_then(SocketAddrUnix::try_from);
    here.is_ok_and(|here| here.abstract_name() == address.abstract_name())
        && socket_acceptconn(socket) == Ok(true)
        && peer_of(socket).is_ok_and(|it| it.process.map(NonZero::get) == Some(own))
}

/// Reads an option of a socket.
///
/// # Safety
/// Any bytes are a value of the type.
unsafe fn ask<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> Result<(), Errno> {
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open while borrowed; `value` is writable, of `size` bytes, and the
    // caller vouches for what the kernel writes.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut *value).cast(),
            &raw mut size,
        )
    };
    if asked == 0 {
        return Ok(());
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(code.map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Waits until a descriptor is ready; `false` if it is not by the deadline.
pub(crate) fn wait(
    descriptor: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Instant,
) -> Result<bool, Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, events)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Sends bytes, and a descriptor with the first of them. Does not wait, and raises no `SIGPIPE`.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: &[BorrowedFd<'_>] = descriptor.as_slice();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// A part of a message.
#[derive(Debug)]
pub(crate) struct Received {
    /// 0 if the other end is gone.
    pub bytes: usize,
    /// How many descriptors came along. All are closed if there is more than one.
    pub descriptors: usize,
    pub descriptor: Option<OwnedFd>,
    /// Whether there were more, without room in the message or in this process.
    pub cut_off: bool,
}

/// Receives what has arrived, without waiting.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ROOM))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let (mut descriptors, mut descriptor) = (0, None);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            for each in arrived {
                descriptors += 1;
                descriptor = (descriptors == 1).then_some(each);
            }
        }
    }
    let cut_off = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, descriptors, descriptor, cut_off })
}

/// Reads and drops what has arrived. The kernel closes the descriptors with it, and this process
/// never has them.
pub(crate) fn discard(socket: BorrowedFd<'_>) {
    let mut bytes = [0; 4096];
    loop {
        match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
