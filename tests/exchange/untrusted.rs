//! A process of another user, and one in a PID namespace of its own.

use super::{Open, View, receive_word, send_word};
use crate::process::namespaces::{NOBODY_UID, become_user, new_pid_namespace, own_proc};
use crate::process::{Child, End, in_child};
use hsa_vmm::Error;
use hsa_vmm::error::{ErrorKind, Unavailable};
use hsa_vmm::transport::{Channel, Offer, Ticket, Trust, UntrustedUser};
use rustix::process::geteuid;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Memory of another user's process is rejected until that user is trusted; then both processes can use
/// it. Needs [`Need::OtherUser`](crate::process::namespaces::Need).
pub fn share_with_another_user(open: Open<'_>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    for each in [folder.path(), &path] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(each, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let own = geteuid().as_raw();
    let sender = Child::start(|| {
        let library = open();
        become_user(NOBODY_UID);
        let mine = View::make(&library, 0);
        mine.write(0, "theirs");
        // The kernel records the user who connects: the other end is not of this user either.
        let strict = Channel::over(UnixStream::connect(&path).unwrap());
        assert_untrusted(strict.send(&library.vmm, &mine.memory, "strict"), own, NOBODY_UID);
        let channel = with_trust(connect(&path), Trust::User(own));
        mine.send(&library, &channel, "memory");
        receive_word(&channel, "written");
        mine.holds(4096, "yours");
        let offer = Offer::of(&mine.memory).unwrap();
        send_word(&channel, &offer.ticket().to_string());
        receive_word(&channel, "fetched");
        0
    });
    let receiver = Child::start(|| {
        let library = open();
        drop(listener.accept().unwrap());
        let (socket, _) = listener.accept().unwrap();
        let strict = Channel::over(socket.try_clone().unwrap());
        assert_untrusted(strict.receive(&library.vmm), NOBODY_UID, own);
        // The message was not read.
        let channel = with_trust(socket, Trust::User(NOBODY_UID));
        let theirs = View::receive(&library, &channel, "memory");
        theirs.holds(0, "theirs");
        theirs.write(4096, "yours");
        send_word(&channel, "written");
        let ticket = channel.receive_descriptor().unwrap().1.name;
        let ticket: Ticket = ticket.parse().unwrap();
        assert_untrusted(ticket.fetch(&library.vmm, Trust::SameUser), NOBODY_UID, own);
        let fetched = ticket.fetch(&library.vmm, Trust::User(NOBODY_UID)).unwrap();
        View::of(&library, fetched).holds(0, "theirs");
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
fn assert_untrusted<T>(answer: Result<T, Error>, user: u32, trusted: u32) {
    let Err(error) = answer else { panic!("another user was trusted") };
    let (ErrorKind::Untrusted(found)
    | ErrorKind::Unavailable { reason: Unavailable::Untrusted(found), .. }) = *error.kind()
    else {
        panic!("{error}")
    };
    assert_eq!(found, UntrustedUser { user: Some(user), trusted }, "{error}");
}

/// The error of a ticket in another PID namespace than that of process 1.
#[track_caller]
fn assert_elsewhere<T>(answer: Result<T, Error>) {
    let Err(error) = answer else { panic!("the number means another process") };
    let kind = ErrorKind::Unavailable { process: 1, reason: Unavailable::OtherNamespace };
    assert_eq!(*error.kind(), kind);
}

/// A channel needs no process number. A ticket does: it is valid within the namespace; outside, its number
/// names another process, which is an error. Needs
/// [`Need::PidNamespace`](crate::process::namespaces::Need).
pub fn share_with_another_namespace(open: Open<'_>) {
    let (here, there) = Channel::pair().unwrap();
    let inside = Child::start(|| {
        new_pid_namespace();
        let first = Child::start(|| {
            assert_eq!(std::process::id(), 1, "the first in its namespace");
            let library = open();
            let mine = View::make(&library, 0);
            mine.write(0, "inside");
            // The other end has no number here: the kernel reports 0.
            mine.send(&library, &there, "memory");
            receive_word(&there, "written");
            mine.holds(4096, "outside");
            // `/proc` still shows the outer namespace, where process 1 is another.
            assert_elsewhere(Offer::of(&mine.memory));
            own_proc();
            let offer = Offer::of(&mine.memory).unwrap();
            let ticket = offer.ticket();
            let second = in_child(|| drop(ticket.fetch_descriptor(Trust::SameUser).unwrap()));
            assert_eq!(second, End::Success, "within the namespace");
            send_word(&there, &ticket.to_string());
            receive_word(&there, "refused");
            0
        });
        i32::from(first.wait() != End::Success)
    });
    let outside = Child::start(|| {
        let library = open();
        let theirs = View::receive(&library, &here, "memory");
        theirs.holds(0, "inside");
        theirs.write(4096, "outside");
        send_word(&here, "written");
        let ticket: Ticket = here.receive_descriptor().unwrap().1.name.parse().unwrap();
        assert_eq!(ticket.process, 1);
        assert_elsewhere(ticket.fetch(&library.vmm, Trust::Anyone));
        send_word(&here, "refused");
        0
    });
    drop((here, there));
    assert_eq!([inside.wait(), outside.wait()], [End::Success; 2]);
}
