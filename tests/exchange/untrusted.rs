//! Processes share memory with a process of another user, and with a process in another PID namespace.

use super::{MappedMemory, OpenLibrary, expect_word, send_word};
use crate::process::namespaces::{NOBODY_UID, become_user, mount_own_proc, new_pid_namespace};
use crate::process::{Child, End, in_child};
use hsa_vmm::Error;
use hsa_vmm::error::{ErrorKind, UnavailableReason};
use hsa_vmm::transport::{Channel, Offer, Ticket, Trust, UntrustedUser};
use rustix::process::geteuid;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// A channel rejects memory from another user's process until the caller trusts that user. Then both processes can use
/// the memory. Needs [`Need::OtherUser`](crate::process::namespaces::Need).
pub fn share_with_another_user(open: OpenLibrary<'_>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    for entry in [folder.path(), &path] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(entry, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let own_user = geteuid().as_raw();
    let sender = Child::start(|| {
        let library = open();
        become_user(NOBODY_UID);
        let mapped = MappedMemory::create(&library, 0);
        mapped.write(0, "theirs");
        // By default, this process also rejects the other end of the channel, which belongs to another user.
        let strict = Channel::over(UnixStream::connect(&path).unwrap());
        assert_untrusted(strict.send(&mapped.memory, "strict"), own_user, NOBODY_UID);
        let channel = with_trust(connect(&path), Trust::User(own_user));
        mapped.send(&channel, "memory");
        expect_word(&channel, "written");
        mapped.assert_text(4096, "yours");
        let offer = Offer::of(&mapped.memory).unwrap();
        send_word(&channel, &offer.ticket().to_string());
        expect_word(&channel, "fetched");
        0
    });
    let receiver = Child::start(|| {
        let library = open();
        // The first connection is the `strict` channel of the sender.
        drop(listener.accept().unwrap());
        let (socket, _) = listener.accept().unwrap();
        let strict = Channel::over(socket.try_clone().unwrap());
        assert_untrusted(strict.receive(&library.vmm), NOBODY_UID, own_user);
        // `strict` has rejected the sender without reading the message, so this channel can receive the message.
        let channel = with_trust(socket, Trust::User(NOBODY_UID));
        let mapped = MappedMemory::receive(&library, &channel, "memory");
        mapped.assert_text(0, "theirs");
        mapped.write(4096, "yours");
        send_word(&channel, "written");
        let ticket = channel.receive_descriptor().unwrap().1.name;
        let ticket: Ticket = ticket.parse().unwrap();
        assert_untrusted(ticket.fetch(&library.vmm, Trust::SameUser), NOBODY_UID, own_user);
        let fetched = ticket.fetch(&library.vmm, Trust::User(NOBODY_UID)).unwrap();
        MappedMemory::of(&library, fetched).assert_text(0, "theirs");
        send_word(&channel, "fetched");
        0
    });
    assert_eq!([sender.wait(), receiver.wait()], [End::Success; 2]);
}

fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).unwrap()
}

fn with_trust(socket: UnixStream, trust: Trust) -> Channel {
    Channel::over(socket).with_trust(trust)
}

#[track_caller]
fn assert_untrusted<T>(result: Result<T, Error>, user: u32, trusted: u32) {
    let Err(error) = result else { panic!("another user was trusted") };
    let (ErrorKind::Untrusted(found)
    | ErrorKind::Unavailable { reason: UnavailableReason::Untrusted(found), .. }) = *error.kind()
    else {
        panic!("{error}")
    };
    assert_eq!(found, UntrustedUser { user: Some(user), trusted }, "{error}");
}

/// Fails unless the error says that process 1 is in another PID namespace.
#[track_caller]
fn assert_other_namespace<T>(result: Result<T, Error>) {
    let Err(error) = result else { panic!("a ticket of another namespace was accepted") };
    let kind = ErrorKind::Unavailable { process: 1, reason: UnavailableReason::OtherNamespace };
    assert_eq!(*error.kind(), kind);
}

/// A channel connects processes of different PID namespaces, because a channel needs no process ID. A ticket contains a
/// process ID. In another namespace, this ID belongs to another process, so the library rejects the ticket. Needs
/// [`Need::PidNamespace`](crate::process::namespaces::Need).
pub fn share_with_another_namespace(open: OpenLibrary<'_>) {
    let (outside_channel, inside_channel) = Channel::pair().unwrap();
    let inside = Child::start(|| {
        new_pid_namespace();
        let first = Child::start(|| {
            assert_eq!(std::process::id(), 1, "the first in its namespace");
            let library = open();
            let mapped = MappedMemory::create(&library, 0);
            mapped.write(0, "inside");
            // The process at the other end has no ID in this namespace: the kernel reports 0.
            mapped.send(&inside_channel, "memory");
            expect_word(&inside_channel, "written");
            mapped.assert_text(4096, "outside");
            // `/proc` still shows the outer namespace, where process 1 is a different process.
            assert_other_namespace(Offer::of(&mapped.memory));
            mount_own_proc();
            let offer = Offer::of(&mapped.memory).unwrap();
            let ticket = offer.ticket();
            let second = in_child(|| drop(ticket.fetch_descriptor(Trust::SameUser).unwrap()));
            assert_eq!(second, End::Success, "a ticket is valid within the namespace");
            send_word(&inside_channel, &ticket.to_string());
            expect_word(&inside_channel, "rejected");
            0
        });
        i32::from(first.wait() != End::Success)
    });
    let outside = Child::start(|| {
        let library = open();
        let mapped = MappedMemory::receive(&library, &outside_channel, "memory");
        mapped.assert_text(0, "inside");
        mapped.write(4096, "outside");
        send_word(&outside_channel, "written");
        let ticket: Ticket = outside_channel.receive_descriptor().unwrap().1.name.parse().unwrap();
        assert_eq!(ticket.process, 1);
        assert_other_namespace(ticket.fetch(&library.vmm, Trust::Anyone));
        send_word(&outside_channel, "rejected");
        0
    });
    drop((outside_channel, inside_channel));
    assert_eq!([inside.wait(), outside.wait()], [End::Success; 2]);
}
