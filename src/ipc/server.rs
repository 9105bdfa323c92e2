//! The client of AMD's IPC server: asks the exporter's runtime for its memory.
//!
//! Where the runtime shares memory by dma-buf, a thread of the exporting process listens on the
//! abstract socket `hsa<process>`, reads the address in decimal, and sends a descriptor. The importing
//! runtime would connect to that name itself, but it does not look who listens there, and any user
//! may. Therefore this library connects, checks who listens, fetches the descriptor by a deadline, and
//! passes it to the runtime through a [relay](super::relay).

use super::error::{IpcError, Operation, Stale};
use crate::native::{NativeIpc, listens_at, peer_has_ended, peer_of, receive, send, wait};
use crate::runtime::Runtime;
use crate::trust::{Trust, UntrustedUser};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long the exporter's server may take altogether. It is a thread that does nothing else.
const PATIENCE: Duration = Duration::from_secs(5);
/// The bytes that the server reads at a time.
const REQUEST: usize = 64;
/// The room for a name in a Unix socket's address, after the byte that makes it abstract. The
/// runtime's name is filled up with zeros to the end.
const NAME: usize = 107;

/// Why the exporter's runtime does not hand the memory out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// It knows of no such memory, or has no descriptor left.
    Unknown,
    /// There is no server: the process has ended, or its runtime's server has.
    NoServer,
    /// Another process listens under the server's name.
    Impostor,
    /// The server belongs to a user who is not trusted.
    UntrustedUser(UntrustedUser),
    /// It does not answer: the process is stopped, or another one keeps its server busy.
    Silent,
    /// The operating system refused.
    System(Errno),
}

impl Denial {
    pub fn into_error(self, operation: Operation, process: i32) -> IpcError {
        let stale = match self {
            Self::Unknown => Stale::Freed,
            Self::NoServer => Stale::NoServer,
            Self::Impostor => Stale::Impostor,
            Self::Silent => Stale::NoAnswer,
            Self::UntrustedUser(stranger) => {
                return IpcError::Stranger { operation, process, stranger };
            }
            Self::System(errno) => return IpcError::system(operation, errno),
        };
        IpcError::Stale { operation, process, stale }
    }
}

impl From<Errno> for Denial {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED | Errno::NOENT => Self::NoServer,
            Errno::CONNRESET | Errno::PIPE => Self::Unknown,
            errno => Self::System(errno),
        }
    }
}

/// Whether a handle is one for which the exporter's server will be asked.
pub(super) fn is_asked_for(native: NativeIpc, process: i32) -> bool {
    // The third word is the server's process; in a handle of the kernel's it is a random number.
    process > 0 && native[2] == process as u32
}

/// Returns whether the runtime shares memory by dma-buf, through a server, and not by the kernel
/// driver alone. ROCm up to 6.2 (extension 1.6) ignores the variable; with its other values, or
/// without it, later releases leave everything to the driver (rocr, flag.h).
pub(super) fn is_in_use(runtime: &Runtime) -> bool {
    runtime.info().extension >= (1, 7)
        && std::env::var_os("HSA_ENABLE_IPC_MODE_LEGACY").is_some_and(|value| value == "0")
}

/// The address of a server of this number, which is a process's or a relay's.
pub(super) fn address(number: u32) -> Result<SocketAddrUnix, Errno> {
    let mut name = [0; NAME];
    // As the runtime prints it.
    let text = format!("hsa{}", number as i32);
    name[..text.len()].copy_from_slice(text.as_bytes());
    SocketAddrUnix::new_abstract_name(&name)
}

/// Whether another process has the name of this process's server. AMD's runtime asserts that none has:
/// it would end the process.
///
/// Any process of the same network namespace can take the name: one of the same number in another PID
/// namespace does so unintentionally. The name is only looked for: binding it would take it from a server
/// that another thread starts just now, and AMD's server ends when a connection says nothing. A process
/// that takes the name between this call and the runtime's `bind` is not seen.
pub(super) fn is_taken(process: u32) -> bool {
    let name = format!("@hsa{}", process as i32);
    // Where it cannot be read, nobody is known of.
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    // Zeros are shown as the first of them is. The kernel shows the line breaks of a name as they are, so
    // that a name can forge a line: none is believed to say that the name is this process's.
    let is_of_that_name = |line: &str| {
        let word = line.split_whitespace().nth(7);
        word.is_some_and(|word| word.trim_end_matches('@') == name)
    };
    sockets.lines().any(is_of_that_name) && !is_own(process)
}

/// Whether this process listens at the address of the server of this number.
fn is_own(process: u32) -> bool {
    let Ok(address) = address(process) else { return false };
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.into_iter().any(|number: RawFd| listens_at(number, &address))
}

/// Has the exporter's runtime hand the memory out, as a dma-buf.
///
/// The server must be `process`, of a trusted user. Its credentials are those it had when it began to
/// listen, and they are only believed of a process that has not ended since.
pub(super) fn fetch(native: NativeIpc, process: i32, trust: Trust) -> Result<OwnedFd, Denial> {
    let pointer = u64::from(native[1]) << 32 | u64::from(native[0]);
    // AMD's server ends when it is asked for the greatest number, and the runtime prints its requests
    // as signed ones. Memory is at neither.
    if i64::try_from(pointer).is_err() {
        return Err(Denial::Unknown);
    }
    let deadline = Instant::now() + PATIENCE;
    let stream = connect_by(deadline, &address(native[2])?)?;
    check(&stream, process, trust)?;
    let mut request = [0; REQUEST];
    let text = pointer.to_string();
    request[..text.len()].copy_from_slice(text.as_bytes());
    send(stream.as_fd(), &request, None)?;
    let descriptor = receive_by(deadline, &stream)?;
    // The server waits for this, with its lock held.
    let _ = send(stream.as_fd(), &request, None);
    Ok(descriptor)
}

fn connect_by(deadline: Instant, address: &SocketAddrUnix) -> Result<OwnedFd, Denial> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&stream, address) {
            Ok(()) => return Ok(stream),
            // The server's queue is full.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::AGAIN | Errno::INTR) => return Err(Denial::Silent),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Checks who listens at the other end.
fn check(stream: &OwnedFd, process: i32, trust: Trust) -> Result<(), Denial> {
    let peer = peer_of(stream)?;
    if peer.process.map(NonZero::get) != Some(process) {
        return Err(Denial::Impostor);
    }
    trust.check(peer.user).map_err(Denial::UntrustedUser)?;
    // A child may still listen for a process that has ended, whose number may be in use again.
    if peer_has_ended(stream)? == Some(true) {
        return Err(Denial::NoServer);
    }
    Ok(())
}

/// Receives a byte and the descriptor that comes with it.
fn receive_by(deadline: Instant, stream: &OwnedFd) -> Result<OwnedFd, Denial> {
    loop {
        if !wait(stream.as_fd(), PollFlags::IN, deadline)? {
            return Err(Denial::Silent);
        }
        let received = match receive(stream.as_fd(), &mut [0]) {
            Ok(received) => received,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(errno.into()),
        };
        return match received.descriptor {
            Some(descriptor) if !received.cut_off => Ok(descriptor),
            // The kernel leaves out what this process's table has no room for.
            None if received.cut_off => Err(Denial::System(Errno::MFILE)),
            _ => Err(Denial::Unknown),
        };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ipc::relay;
    use rustix::net::{Shutdown, accept, shutdown};
    use rustix::process::geteuid;
    use std::io::{Read, Seek, SeekFrom, Write};

    /// Processes are numbered below this.
    const FIRST: u32 = 1 << 22;

    pub fn tempfile() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        std::fs::File::from(rustix::fs::memfd_create("test", flags).unwrap())
    }

    fn own() -> i32 {
        std::process::id() as i32
    }

    fn handle(number: u32) -> NativeIpc {
        [0x2000, 0x7f00, number, 0, 0, 0, 0, 0]
    }

    fn fetch_from(number: u32, process: i32, trust: Trust) -> Result<OwnedFd, Denial> {
        fetch(handle(number), process, trust)
    }

    #[test]
    fn fetch_returns_the_descriptor_of_the_server() {
        let (number, listener) = relay::listen().unwrap();
        let mut file = tempfile();
        file.write_all(b"the memory").unwrap();
        let server = std::thread::spawn(move || relay::serve(&listener, &file, &false.into()));
        let mut file = std::fs::File::from(fetch_from(number, own(), Trust::SameUser).unwrap());
        drop(server.join().unwrap());
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "the memory");
    }

    #[test]
    fn fetch_rejects_another_process_and_another_user() {
        let (number, _listener) = relay::listen().unwrap();
        let denied = |process, trust| fetch_from(number, process, trust).unwrap_err();
        assert_eq!(denied(own() + 1, Trust::Anyone), Denial::Impostor);
        let user = geteuid().as_raw();
        let stranger = UntrustedUser { user: Some(user), trusted: user + 1 };
        assert_eq!(denied(own(), Trust::User(user + 1)), Denial::UntrustedUser(stranger));
    }

    #[test]
    fn is_taken_tells_this_process_from_others() {
        let (number, listener) = relay::listen().unwrap();
        assert!(!is_taken(number), "that is this process itself");
        let name = format!("@hsa{}", number as i32);
        let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        assert!(sockets.contains(&name), "{name} in {sockets}");
        assert!(is_own(number));
        drop(listener);
        assert!(!is_own(number) && !is_taken(number));
        // A descriptor of a socket that does not listen makes the name nobody's server.
        let flags = SocketFlags::CLOEXEC;
        let bound = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&bound, &address(number).unwrap()).unwrap();
        assert!(is_taken(number));
    }

    #[test]
    fn fetch_reports_a_server_that_refuses_or_is_not_there() {
        let (number, listener) = relay::listen().unwrap();
        let server = std::thread::spawn(move || {
            let stream = accept(&listener).unwrap();
            assert!(wait(stream.as_fd(), PollFlags::IN, Instant::now() + PATIENCE).unwrap());
            shutdown(&stream, Shutdown::Both).unwrap();
        });
        let fetched = fetch_from(number, own(), Trust::SameUser);
        assert_eq!(fetched.unwrap_err(), Denial::Unknown);
        server.join().unwrap();
        let fetched = fetch_from(number, own(), Trust::SameUser);
        assert_eq!(fetched.unwrap_err(), Denial::NoServer);
        assert!((number as i32) < 0 || number >= FIRST);
    }

    #[test]
    fn fetch_never_asks_for_what_ends_amds_server() {
        let greatest = [u32::MAX, u32::MAX, FIRST, 0, 0, 0, 0, 0];
        let fetched = fetch(greatest, own(), Trust::SameUser);
        assert_eq!(fetched.unwrap_err(), Denial::Unknown);
    }
}
