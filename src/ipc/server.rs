//! AMD's server: what the exporter's runtime answers to whoever maps its memory.
//!
//! Where the runtime shares memory by dma-buf, the exporting process has a thread that waits at
//! the abstract socket `hsa<process>` for the address in decimal, and sends a descriptor. To an
//! address that it does not know it answers by closing the connection, and then the importing
//! runtime waits for ever; so it does if the exporter is killed meanwhile. Therefore the
//! descriptor is fetched here, by somebody who takes no for an answer, and handed on by a
//! [relay](super::relay).

use crate::native::NativeIpc;
use rustix::fs::{FileType, stat};
use rustix::io::{Errno, write};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, socket_with,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the server is waited for. It is a thread that does nothing else.
const PATIENCE: Duration = Duration::from_secs(5);
/// What the server reads at a time.
pub(super) const REQUEST: usize = 64;
/// The room for a name in a Unix socket's address, after the byte that makes it abstract. The
/// runtime's name is filled up with zeros to the end.
const NAME: usize = 107;

/// Why the exporter's runtime does not hand the memory out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// It knows of no such memory, or has no descriptor left.
    Unknown,
    /// There is no server: the process has ended, or its runtime's server has.
    Nobody,
    /// It does not answer: the process is stopped.
    Silent,
    /// The operating system refused.
    System(Errno),
}

impl From<Errno> for Denial {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED | Errno::NOENT => Self::Nobody,
            Errno::CONNRESET | Errno::PIPE => Self::Unknown,
            Errno::AGAIN | Errno::INTR => Self::Silent,
            errno => Self::System(errno),
        }
    }
}

/// Whether a handle is one for which the exporter's server will be asked.
pub(super) fn is_asked_for(native: NativeIpc, process: i32) -> bool {
    // The third word is the server's process; in a handle of the kernel's it is a random number.
    process > 0 && native[2] == process as u32
}

/// The address of a server: that of a process, or of anything else with a number.
pub(super) fn address(number: u32) -> Result<SocketAddrUnix, Errno> {
    let mut name = [0; NAME];
    // As the runtime prints it.
    let text = format!("hsa{}", number as i32);
    name[..text.len()].copy_from_slice(text.as_bytes());
    SocketAddrUnix::new_abstract_name(&name)
}

/// Whether somebody else waits where this process's server would. AMD's runtime asserts that nobody
/// does: it would end the process.
///
/// A process of the same number in another PID namespace does, if both are in one network namespace.
/// It is only looked: to try the name would take it from a server that another thread starts just now.
pub(super) fn is_taken(process: u32) -> bool {
    let name = format!("@hsa{}", process as i32);
    // Where it cannot be read, nobody is known of.
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let of_that_name = |line: &str| {
        let mut words = line.split_whitespace().skip(6);
        let inode = words.next()?.parse().ok()?;
        // Zeros are shown as the first of them is.
        (words.next()?.trim_end_matches('@') == name).then_some(inode)
    };
    let inodes: Vec<u64> = sockets.lines().filter_map(of_that_name).collect();
    !inodes.is_empty() && !has_socket(&inodes)
}

/// Whether one of these sockets is this process's.
fn has_socket(inodes: &[u64]) -> bool {
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    // What a descriptor is open on is seen through its link.
    descriptors
        .filter_map(|entry| stat(entry.path()).ok())
        .any(|it| FileType::from_raw_mode(it.st_mode).is_socket() && inodes.contains(&it.st_ino))
}

/// Gives reading and writing an end.
pub(super) fn limit(stream: BorrowedFd<'_>, left: Duration) -> Result<(), Errno> {
    let left = left.max(Duration::from_millis(1));
    set_socket_timeout(stream, Timeout::Recv, Some(left))?;
    set_socket_timeout(stream, Timeout::Send, Some(left))
}

/// Has the exporter's runtime hand the memory out, as a dma-buf.
pub(super) fn fetch(native: NativeIpc) -> Result<OwnedFd, Denial> {
    let deadline = Instant::now() + PATIENCE;
    let address = address(native[2])?;
    // Connecting waits for ever where the server's queue is full, unless it must not wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&stream, &address) {
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            connected => break connected?,
        }
    }
    rustix::io::ioctl_fionbio(&stream, false)?;
    let stream_fd = std::os::fd::AsFd::as_fd(&stream);
    limit(stream_fd, deadline.saturating_duration_since(Instant::now()))?;
    let pointer = u64::from(native[1]) << 32 | u64::from(native[0]);
    let mut request = [0; REQUEST];
    let text = pointer.to_string();
    request[..text.len()].copy_from_slice(text.as_bytes());
    write(&stream, &request)?;
    let descriptor = receive(stream_fd)?;
    // The server waits for this, with its lock held.
    let _ = write(&stream, &request);
    Ok(descriptor)
}

/// Receives a byte and the descriptor that comes with it.
fn receive(stream: BorrowedFd<'_>) -> Result<OwnedFd, Denial> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(stream, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(Denial::Unknown);
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    // The kernel leaves out what there is no room for in this process's table.
    descriptor.ok_or(Denial::System(Errno::MFILE))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ipc::relay;
    use std::io::{Read, Seek, SeekFrom, Write};

    /// A server under a number that is no process's, which answers once, to one address.
    fn serve(number: u32, known: u64, text: &str) -> std::thread::JoinHandle<()> {
        let listener = relay::listen(number).unwrap();
        let mut file = tempfile();
        file.write_all(text.as_bytes()).unwrap();
        std::thread::spawn(move || relay::serve(&listener, &file, |request| request == known))
    }

    pub fn tempfile() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        std::fs::File::from(rustix::fs::memfd_create("test", flags).unwrap())
    }

    fn handle(number: u32) -> NativeIpc {
        [0x2000, 0x7f00, number, 0, 0, 0, 0, 0]
    }

    #[test]
    fn the_memory_is_handed_out() {
        // Numbers of processes end at 2^22.
        let number = (1 << 29) + std::process::id();
        let server = serve(number, 0x7f00_0000_2000, "the memory");
        let mut file = std::fs::File::from(fetch(handle(number)).unwrap());
        server.join().unwrap();
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "the memory");
    }

    #[test]
    fn who_waits_at_an_address_is_told_from_oneself() {
        let number = (1 << 27) + std::process::id();
        assert!(!is_taken(number));
        let listener = relay::listen(number).unwrap();
        assert!(!is_taken(number), "that is this process itself");
        let name = format!("@hsa{number}");
        let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        assert!(sockets.contains(&name), "{name} in {sockets}");
        assert!(!has_socket(&[0]), "it is told by its number");
        drop(listener);
        assert!(!is_taken(number));
    }

    #[test]
    fn a_no_is_taken() {
        let number = (1 << 28) + std::process::id();
        assert_eq!(fetch(handle(number)).unwrap_err(), Denial::Nobody);
        let server = serve(number, 0x7f00_0000_3000, "other memory");
        assert_eq!(fetch(handle(number)).unwrap_err(), Denial::Unknown);
        server.join().unwrap();
    }
}
