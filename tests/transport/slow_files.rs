//! Channels to a process that sends files whose closing takes long.

use super::*;
use rustix::net::sockopt::set_socket_linger;
use std::net::{TcpListener, TcpStream};

/// Returns a socket whose last `close` blocks for a minute, because the peer reads none of the sent data.
fn lingering_socket(peers: &mut Vec<TcpStream>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peers.push(listener.accept().unwrap().0);
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 4096]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
    socket
}

#[test]
fn closing_received_sockets_does_not_block() {
    let machine = Machine::new(Config::mi300x(1));
    let message = example_description().encode().unwrap();
    let one_byte = &message[..1];
    // A socket instead of memory, bytes that are not a message, and more descriptors than allowed.
    for (bytes, count) in [(&message[..], 1), (&[b'x'; 64][..], 1), (one_byte, 6)] {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let mut peers = Vec::new();
        let sockets: Vec<_> = (0..count).map(|_| lingering_socket(&mut peers)).collect();
        let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        send_raw(&sender, bytes, &descriptors);
        drop(sockets);
        let begun = Instant::now();
        let channel = Channel::over(receiver).with_timeout(Duration::from_secs(2));
        assert!(channel.receive(&machine.vmm).is_err());
        assert!(begun.elapsed() < Duration::from_secs(10), "{count}: {:?}", begun.elapsed());
    }
}

/// After a rejected message, the channel does not receive the other messages. Their descriptors would fill this
/// process's table of descriptors, and the kernel would then close the last socket in the receiving call.
#[test]
fn messages_after_a_rejected_one_are_ignored() {
    if process::rerun_in_own_process() {
        return;
    }
    let (sender, receiver) = UnixStream::pair().unwrap();
    let mut peers = Vec::new();
    let socket = lingering_socket(&mut peers);
    let null = std::fs::File::open("/dev/null").unwrap();
    for count in [2, 200] {
        send_raw(&sender, b"x", &vec![null.as_fd(); count]);
    }
    send_raw(&sender, b"x", &[socket.as_fd()]);
    drop(socket);
    let channel = Channel::over(receiver);
    let begun = Instant::now();
    let result = process::with_free_descriptors(100, || channel.receive_descriptor());
    assert_eq!(error_kind(result), ErrorKind::UnexpectedDescriptors(2));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// A peer that sends one slow file after the other occupies one thread.
#[test]
fn channel_closes_after_a_slow_descriptor() {
    let (sender, receiver) = UnixStream::pair().unwrap();
    let mut peers = Vec::new();
    let socket = lingering_socket(&mut peers);
    // A whole message that is not a description.
    send_raw(&sender, &[b'x'; 64], &[socket.as_fd()]);
    send_raw(&sender, &example_description().encode().unwrap(), &[peers[0].as_fd()]);
    drop(socket);
    let channel = Channel::over(receiver);
    let kind = error_kind(channel.receive_descriptor());
    assert!(matches!(kind, ErrorKind::Malformed(_)), "{kind}");
    assert_eq!(error_kind(channel.receive_descriptor()), ErrorKind::Disconnected(0));
}

/// The channel rejects the peer before it receives the message. The socket then closes the descriptors in its queue.
#[test]
fn dropping_a_channel_does_not_block() {
    let (sender, receiver) = UnixStream::pair().unwrap();
    let mut peers = Vec::new();
    let socket = lingering_socket(&mut peers);
    send_raw(&sender, &example_description().encode().unwrap(), &[socket.as_fd()]);
    drop(socket);
    let begun = Instant::now();
    let channel = Channel::over(receiver).with_trust(Trust::User(NOBODY_UID));
    let error = channel.receive_descriptor().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Untrusted(_)), "{error}");
    drop(channel);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
