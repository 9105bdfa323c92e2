//! Descriptors that go from process to process.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Sends a descriptor through a socket.
pub fn send(socket: &UnixStream, descriptor: &OwnedFd) {
    let mut byte = [1u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; 4];
    // SAFETY: all zeroes are a valid msghdr; what it points at outlives the call, and the control
    // buffer has room for one header and one descriptor, with their alignment.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &message, 0), 1);
    }
}

/// Takes a descriptor from a socket.
pub fn receive(socket: &UnixStream) -> OwnedFd {
    let mut byte = [0u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; 4];
    // SAFETY: as above; the descriptor that arrives is new and nobody else's.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = std::mem::size_of_val(&control);
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC), 1);
        let header = libc::CMSG_FIRSTHDR(&message);
        assert!(!header.is_null(), "a descriptor came along");
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}
