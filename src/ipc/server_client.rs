//! The client of AMD's IPC server, and the relay that passes fetched memory to this process's runtime.
//!
//! If the runtime shares memory by dma-buf, a thread of the exporting process is the server. The server listens on the
//! abstract socket `hsa<process>`, reads an address in decimal, and sends a descriptor. Any process can listen on that
//! socket, and the importing runtime would connect without checking which process listens.
//!
//! Therefore this library connects instead of the runtime, checks the credentials, and fetches the descriptor with a
//! deadline. It passes the descriptor to the runtime through a relay: a server in this process that exists for one
//! call. The relay has a random name that belongs to no process, and serves only this process. The relay already has
//! the descriptor, so no other process can make the runtime wait.

use super::{PAUSE, random, retry, system, unavailable};
use crate::error::{ErrorKind, UnavailableReason};
use crate::native::{
    ForeignSocket, NativeIpc, check_room_for_thread, close_foreign, close_on_exec, listens_at,
    peer_has_ended, peer_of, receive, send, wait,
};
use crate::trust::Trust;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, shutdown, socket_with,
};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time limit to fetch a descriptor from the exporter's server. The server is a thread with no other task, so it
/// normally answers immediately.
const TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_SIZE: usize = 64;
/// The size of an abstract name in a Unix socket's address, without the leading zero byte. The runtime pads its names
/// with zeros to this size.
const NAME_SIZE: usize = 107;
/// The limit of process numbers on Linux (`PID_MAX_LIMIT`): all process numbers are lower. The runtime prints numbers
/// from 2^31 on as negative numbers, which no process has either.
const PROCESS_NUMBER_LIMIT: u32 = 1 << 22;
/// The number of names that a relay tries. Even if a user had bound a million of the 2^32 names, only one attempt in
/// 4,000 would fail.
const ATTEMPTS: usize = 64;
/// The number of connections that can wait until the relay accepts them. Any user can connect.
const BACKLOG: i32 = 128;
/// The number of rejected connections that the relay closes together, because closing can take a second.
const REJECTED: usize = 32;

/// Returns whether the exporter's server sends the memory of a handle.
pub(super) fn is_served_by(native: NativeIpc, process: i32) -> bool {
    // The third word of the runtime's handle is the process number of the server. In a handle that the kernel driver
    // made, it is a random number.
    process > 0 && native[2] == process as u32
}

/// Returns the socket address of a server. `number` is the number of a process, or the random number of a relay.
fn address(number: u32) -> Result<SocketAddrUnix, ErrorKind> {
    let mut name = [0; NAME_SIZE];
    // The runtime prints the number as a signed number.
    let text = format!("hsa{}", number as i32);
    name[..text.len()].copy_from_slice(text.as_bytes());
    SocketAddrUnix::new_abstract_name(&name).map_err(system("bind"))
}

/// Returns whether the name of this process's server belongs to a socket other than this process's listening server. If
/// so, starting the server would end this process: AMD's runtime fails with an assertion.
///
/// Any process of the same network namespace can bind the name. A process with the same number in another PID namespace
/// binds the name unintentionally. This function only looks up the name. It does not bind the name, because this could
/// collide with a server that another thread starts. It does not connect either, because a connection without a request
/// ends AMD's server. The function does not detect a process that binds the name between this call and the runtime's
/// `bind`.
pub(super) fn is_socket_taken(process: u32) -> bool {
    // This process's server can start or end between `is_bound` and `is_own`, so this function repeats the check.
    (0..3).all(|_| is_bound(process) && !is_own(process))
}

/// Returns whether any process has a socket with the name of the server with this number.
fn is_bound(process: u32) -> bool {
    let name = format!("@hsa{}", process as i32);
    // If the list cannot be read, returns false. Any process can bind a name that is not UTF-8.
    let sockets = std::fs::read("/proc/self/net/unix").unwrap_or_default();
    let sockets = String::from_utf8_lossy(&sockets);
    // The kernel prints zeros as `@`. The kernel does not escape line breaks in a name, so another socket's name can
    // imitate a line of this list. A match is therefore not proof; `is_own` checks whether the socket belongs to this
    // process.
    let has_name = |line: &str| {
        let path = line.split_whitespace().nth(7);
        path.is_some_and(|path| path.trim_end_matches('@') == name)
    };
    sockets.lines().any(has_name)
}

/// Returns whether this process listens at the address of the server with this number.
fn is_own(process: u32) -> bool {
    listening_sockets(process).next().is_some()
}

/// Returns the sockets of this process that listen at the address of the server with this number.
fn listening_sockets(process: u32) -> impl Iterator<Item = RawFd> {
    let address = address(process).ok();
    let descriptors = std::fs::read_dir("/proc/self/fd").inspect_err(|error| {
        crate::log::event!(WARN, %error, "programs that this process starts inherit its server for IPC");
    });
    let descriptors = descriptors.into_iter().flatten().flatten();
    let numbers = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(move |number| address.as_ref().is_some_and(|it| listens_at(*number, it)))
}

/// Marks the server's socket as close-on-exec, which AMD's runtime does not do. A program that inherits the socket,
/// possibly of another user, could answer importers in place of this process. A program that another thread starts
/// before this call still inherits the socket.
pub(super) fn close_server_on_exec(process: u32) {
    listening_sockets(process).for_each(close_on_exec);
}

/// Fetches the memory of a handle from the exporter's server, as a dma-buf.
///
/// The server must run in `process`, and the user of that process must be trusted. The kernel reports the credentials
/// that the process had when it began to listen. This function accepts the credentials only if the process has not
/// ended since. Linux before 6.5 cannot tell this.
pub(super) fn fetch(native: NativeIpc, process: i32, trust: Trust) -> Result<OwnedFd, ErrorKind> {
    let pointer = u64::from(native[1]) << 32 | u64::from(native[0]);
    // AMD's server ends when it receives the number 2^64 - 1, which the runtime prints as -1. The runtime prints all
    // addresses from 2^63 on as negative numbers. No memory has an address from 2^63 on, so this function rejects all
    // of them.
    if i64::try_from(pointer).is_err() {
        return Err(unavailable(process, UnavailableReason::Freed));
    }
    let failed = |call| move |errno| of_server(process, call, errno);
    let deadline = Instant::now() + TIMEOUT;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let stream = ForeignSocket::new(stream.map_err(system("socket"))?);
    let address = address(native[2])?;
    // The queue of connections to the server can be full.
    let should_retry =
        |errno| matches!(errno, Errno::AGAIN | Errno::INTR) && Instant::now() < deadline;
    retry(should_retry, || connect(&stream, &address)).map_err(failed("connect"))?;
    let peer = peer_of(&stream).map_err(failed("getsockopt"))?;
    if peer.process.map(NonZero::get) != Some(process) {
        return Err(unavailable(process, UnavailableReason::Impostor));
    }
    let trusted = trust.check(peer.user);
    trusted.map_err(|user| unavailable(process, UnavailableReason::Untrusted(user)))?;
    // After a process has ended, its child can still have the listening socket, and another process can have the same
    // process number.
    if peer_has_ended(&stream).map_err(failed("getsockopt"))? == Some(true) {
        return Err(unavailable(process, UnavailableReason::NoServer));
    }
    let mut request = [0; REQUEST_SIZE];
    let text = pointer.to_string();
    request[..text.len()].copy_from_slice(text.as_bytes());
    send(stream.as_fd(), &request, None).map_err(failed("sendmsg"))?;
    let descriptor = receive_by(deadline, process, &stream)?;
    // The server waits for this acknowledgement with its lock held.
    let _ = send(stream.as_fd(), &request, None);
    Ok(descriptor)
}

/// Returns the error for a failed call on the connection to a process's server.
fn of_server(process: i32, call: &'static str, errno: Errno) -> ErrorKind {
    match errno {
        Errno::CONNREFUSED | Errno::NOENT => unavailable(process, UnavailableReason::NoServer),
        Errno::CONNRESET | Errno::PIPE => unavailable(process, UnavailableReason::Freed),
        Errno::AGAIN | Errno::INTR => unavailable(process, UnavailableReason::NoAnswer),
        errno => ErrorKind::of_system(call, errno),
    }
}

/// Receives a byte, and the descriptor that is sent with the byte.
fn receive_by(deadline: Instant, process: i32, stream: &impl AsFd) -> Result<OwnedFd, ErrorKind> {
    loop {
        if !wait(stream.as_fd(), PollFlags::IN, deadline).map_err(system("poll"))? {
            return Err(unavailable(process, UnavailableReason::NoAnswer));
        }
        let received = match receive(stream.as_fd(), &mut [0]) {
            Ok(received) => received,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(of_server(process, "recvmsg", errno)),
        };
        return match <[OwnedFd; 1]>::try_from(received.descriptors) {
            Ok([descriptor]) if !received.truncated => Ok(descriptor),
            // The kernel drops received descriptors if this process has too many open files.
            Err(none) if received.truncated && none.is_empty() => Err(ErrorKind::OutOfDescriptors),
            unexpected => {
                close_foreign(unexpected.map_or_else(|several| several, Vec::from));
                Err(unavailable(process, UnavailableReason::Freed))
            }
        };
    }
}

/// Calls `attach` with a handle that names a relay, which sends the descriptor when the runtime connects.
pub(super) fn with_relay<T>(
    native: NativeIpc,
    descriptor: &OwnedFd,
    attach: impl FnOnce(NativeIpc) -> T,
) -> Result<T, ErrorKind> {
    let (number, listener) = listen_for_relay()?;
    let mut relayed = native;
    relayed[2] = number;
    let done = AtomicBool::new(false);
    let (attached, connections) = std::thread::scope(|scope| {
        let thread = check_room_for_thread().and_then(|()| {
            let builder = std::thread::Builder::new().name("hsa-vmm ipc".to_owned());
            builder.spawn_scoped(scope, || relay(&listener, descriptor, &done))
        });
        let thread = thread.map_err(|error| ErrorKind::of_io("pthread_create", &error))?;
        let attached = attach(relayed);
        done.store(true, Ordering::Relaxed);
        let _ = shutdown(&listener, Shutdown::Both);
        // Waits for the relay's thread. The runtime does not use its connection any more.
        Ok::<_, ErrorKind>((attached, thread.join().unwrap_or_default()))
    })?;
    close_foreign(connections);
    Ok(attached)
}

/// Listens under a random name that no process has. Returns the number in the name, and the listening socket.
fn listen_for_relay() -> Result<(u32, ForeignSocket), ErrorKind> {
    for _ in 0..ATTEMPTS {
        let number = random().map_err(system("getrandom"))? as u32;
        if number < PROCESS_NUMBER_LIMIT {
            continue;
        }
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listener = listener.map_err(system("socket"))?;
        match bind(&listener, &address(number)?) {
            Ok(()) => {
                listen(&listener, BACKLOG).map_err(system("listen"))?;
                return Ok((number, ForeignSocket::new(listener)));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(ErrorKind::of_system("bind", errno)),
        }
    }
    Err(ErrorKind::of_system("bind", Errno::ADDRINUSE))
}

/// Sends the descriptor to the first connection of this process. Also returns when the listener is shut down after `done`
/// was set, or if the listener fails.
///
/// Returns this connection, and connections of other processes that were rejected. The caller keeps the connection open
/// until the runtime has finished. If the connection were closed earlier, AMD's runtime would read from it forever, or
/// `SIGPIPE` would end the process when the runtime writes to it. The caller closes all with [`close_foreign`].
fn relay(listener: &impl AsFd, descriptor: impl AsFd, done: &AtomicBool) -> Vec<OwnedFd> {
    let (mut connections, mut has_warned) = (Vec::new(), false);
    while !done.load(Ordering::Relaxed) {
        let stream = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(stream) => stream,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(_) => break,
        };
        let peer = peer_of(&stream).map(|peer| peer.process.map(NonZero::get));
        if peer == Ok(Some(std::process::id() as i32)) {
            reply(&stream, &descriptor, done);
            connections.push(stream);
            break;
        }
        if connections.len() == REJECTED {
            close_foreign(core::mem::take(&mut connections));
        }
        connections.push(stream);
        if !has_warned {
            crate::log::event!(WARN, ?peer, "another process connected to this process's relay");
            has_warned = true;
        }
    }
    connections
}

/// Sends the descriptor without reading the runtime's request, because only one reply is possible.
fn reply(stream: &OwnedFd, descriptor: impl AsFd, done: &AtomicBool) {
    // `TOOMANYREFS`: the number of descriptors that this user has sent, and that are not received yet, exceeds the
    // limit of open files of one process.
    let is_temporary = |errno| {
        let errors = [Errno::INTR, Errno::TOOMANYREFS, Errno::AGAIN, Errno::NOBUFS, Errno::NOMEM];
        errors.contains(&errno)
    };
    // `done` is set when the runtime gives up, after ten seconds.
    let should_retry = |errno| is_temporary(errno) && !done.load(Ordering::Relaxed);
    let sent = retry(should_retry, || send(stream.as_fd(), b"y", Some(descriptor.as_fd())));
    if let Err(errno) = sent {
        crate::log::event!(WARN, %errno, "the relay did not send the memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::UntrustedUser;
    use rustix::fs::fstat;
    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, accept, sendmsg};
    use rustix::process::geteuid;
    use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};

    fn tempfile() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        std::fs::File::from(rustix::fs::memfd_create("test", flags).unwrap())
    }

    fn this_process() -> i32 {
        std::process::id() as i32
    }

    fn reason(fetched: Result<OwnedFd, ErrorKind>) -> UnavailableReason {
        match fetched.unwrap_err() {
            ErrorKind::Unavailable { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    fn handle(number: u32) -> NativeIpc {
        [0x2000, 0x7f00, number, 0, 0, 0, 0, 0]
    }

    fn fetch_from(number: u32, process: i32, trust: Trust) -> Result<OwnedFd, ErrorKind> {
        fetch(handle(number), process, trust)
    }

    #[test]
    fn fetch_returns_the_descriptor_of_the_server() {
        let (number, listener) = listen_for_relay().unwrap();
        let mut file = tempfile();
        file.write_all(b"the memory").unwrap();
        let server = std::thread::spawn(move || relay(&listener, &file, &false.into()));
        let mut file =
            std::fs::File::from(fetch_from(number, this_process(), Trust::SameUser).unwrap());
        drop(server.join().unwrap());
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "the memory");
    }

    #[test]
    fn fetch_rejects_another_process_and_another_user() {
        let (number, _listener) = listen_for_relay().unwrap();
        let denied = |process, trust| reason(fetch_from(number, process, trust));
        assert_eq!(denied(this_process() + 1, Trust::Anyone), UnavailableReason::Impostor);
        let user = geteuid().as_raw();
        let untrusted = UntrustedUser { user: Some(user), trusted: user + 1 };
        assert_eq!(
            denied(this_process(), Trust::User(user + 1)),
            UnavailableReason::Untrusted(untrusted)
        );
    }

    #[test]
    fn socket_of_this_process_is_not_taken() {
        let (number, listener) = listen_for_relay().unwrap();
        assert!(!is_socket_taken(number), "the socket is this process's own");
        assert!(is_bound(number) && is_own(number));
        drop(listener);
        assert!(!is_own(number) && !is_socket_taken(number));
        // A socket of this process that does not listen does not count as its server.
        let (bound, other) = (new_socket(), new_socket());
        bind(&bound, &address(number).unwrap()).unwrap();
        let other_name = SocketAddrUnix::new_abstract_name(b"hsa-vmm \xff").unwrap();
        bind(&other, &other_name).unwrap();
        assert!(is_socket_taken(number));
    }

    #[test]
    fn fetch_reports_why_nothing_was_served() {
        let (number, listener) = listen_for_relay().unwrap();
        let server = std::thread::spawn(move || {
            let stream = accept(&listener).unwrap();
            assert!(wait(stream.as_fd(), PollFlags::IN, Instant::now() + TIMEOUT).unwrap());
            shutdown(&stream, Shutdown::Both).unwrap();
        });
        let fetched = fetch_from(number, this_process(), Trust::SameUser);
        assert_eq!(reason(fetched), UnavailableReason::Freed);
        server.join().unwrap();
        let fetched = fetch_from(number, this_process(), Trust::SameUser);
        assert_eq!(reason(fetched), UnavailableReason::NoServer);
        assert!(number >= PROCESS_NUMBER_LIMIT, "{number} may be a process");
    }

    /// Sends two sockets whose last `close` blocks for a minute, because the peer reads none of the sent data.
    fn send_lingering_sockets(stream: &OwnedFd) -> TcpListener {
        let peers = TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = [(); 2].map(|()| {
            let mut socket = TcpStream::connect(peers.local_addr().unwrap()).unwrap();
            socket.set_nonblocking(true).unwrap();
            while socket.write(&[0; 4096]).is_ok() {}
            socket.set_nonblocking(false).unwrap();
            set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
            socket
        });
        let descriptors = sockets.each_ref().map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let bytes = [IoSlice::new(&[0])];
        assert_eq!(sendmsg(stream, &bytes, &mut control, SendFlags::empty()), Ok(1));
        // The descriptors in the message are now the only ones.
        peers
    }

    #[test]
    fn closing_unexpected_descriptors_does_not_block() {
        let (number, listener) = listen_for_relay().unwrap();
        let server = std::thread::spawn(move || {
            let stream = accept(&listener).unwrap();
            (send_lingering_sockets(&stream), stream)
        });
        let stream = connect_to(number);
        let kept_open = server.join().unwrap();
        let begun = Instant::now();
        let received = receive_by(begun + TIMEOUT, this_process(), &stream);
        assert_eq!(reason(received), UnavailableReason::Freed);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        drop(kept_open);
    }

    fn new_socket() -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn connect_to(number: u32) -> OwnedFd {
        let stream = new_socket();
        connect(&stream, &address(number).unwrap()).unwrap();
        stream
    }

    #[test]
    fn fetch_rejects_addresses_that_end_amds_server() {
        let greatest_address = [u32::MAX, u32::MAX, PROCESS_NUMBER_LIMIT, 0, 0, 0, 0, 0];
        let fetched = fetch(greatest_address, this_process(), Trust::SameUser);
        assert_eq!(reason(fetched), UnavailableReason::Freed);
    }

    const NATIVE: NativeIpc = [0x2000, 0x7f00, 77, 0, 3, 0, 5, 6];

    #[test]
    fn relay_passes_the_descriptor_and_the_rest_unchanged() {
        let memory = OwnedFd::from(tempfile());
        let identity = |file: &OwnedFd| fstat(file).map(|status| (status.st_dev, status.st_ino));
        let fetched = with_relay(NATIVE, &memory, |native| {
            assert_eq!((native[0], native[1], &native[3..]), (0x2000, 0x7f00, &NATIVE[3..]));
            assert!(native[2] >= PROCESS_NUMBER_LIMIT, "{} may be a process", native[2]);
            fetch(native, std::process::id() as i32, Trust::SameUser).unwrap()
        });
        assert_eq!(identity(&fetched.unwrap()), identity(&memory));
    }

    #[test]
    fn pending_connections_do_not_block_the_relay() {
        let memory = OwnedFd::from(tempfile());
        let begun = Instant::now();
        let kept_open = with_relay(NATIVE, &memory, |native| {
            // The relay accepts only the first connection of this process.
            let connections = [(); 2].map(|()| connect_to(native[2]));
            (send_lingering_sockets(&connections[1]), connections)
        });
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        drop(kept_open);
    }

    #[test]
    fn relay_ends_when_the_runtime_does_not_connect() {
        let memory = OwnedFd::from(tempfile());
        let start = Instant::now();
        assert_eq!(with_relay(NATIVE, &memory, |_| 7), Ok(7));
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn relay_names_are_not_consecutive() {
        let names: Vec<u32> = (0..8).map(|_| listen_for_relay().unwrap().0).collect();
        let is_distant = |pair: &[u32]| pair[0].abs_diff(pair[1]) > 1 << 10;
        assert!(names.windows(2).any(is_distant), "{names:x?}");
    }
}
