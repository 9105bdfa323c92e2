//! Channels and tickets transport memory between processes, also if the processes have different users or namespaces.

use super::*;

#[test]
fn untrusted_users_are_rejected() {
    if process::rerun_in_own_process() {
        return;
    }
    let own_user = rustix::process::getuid().as_raw();
    let (sender, receiver) = UnixStream::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    Channel::over(sender).send_descriptor(&null, &example_description()).unwrap();
    let untrusting =
        Channel::over(receiver.try_clone().unwrap()).with_trust(Trust::User(own_user + 1));
    let user = UntrustedUser { user: Some(own_user), trusted: own_user + 1 };
    assert_eq!(error_kind(untrusting.receive_descriptor()), ErrorKind::Untrusted(user));
    assert_eq!(
        error_kind(untrusting.send_descriptor(&null, &example_description())),
        ErrorKind::Untrusted(user)
    );
    // The rejected channel has not read the message.
    let trusting = Channel::over(receiver).with_trust(Trust::Anyone);
    assert_eq!(trusting.receive_descriptor().unwrap().1, example_description());
    let offer = Offer::of_descriptor(null.into()).unwrap();
    let result = offer.ticket().fetch_descriptor(Trust::User(own_user + 1));
    let reason = UnavailableReason::Untrusted(user);
    let process = std::process::id() as i32;
    assert_eq!(error_kind(result), ErrorKind::Unavailable { process, reason });
}

#[test]
fn fetch_rejects_processes_of_mixed_users() {
    if !has_privilege(Need::OtherUser, "fetch_rejects_processes_of_mixed_users")
        || process::rerun_in_own_process()
    {
        return;
    }
    let own_user = rustix::process::geteuid().as_raw();
    let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
    let child = Child::start(|| {
        let null = File::open("/dev/null").unwrap();
        let offer = Offer::of_descriptor(null.into()).unwrap();
        set_real_user(NOBODY_UID);
        // SAFETY: the call accesses no memory; it makes this child end with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        child_socket.write_all(offer.ticket().to_string().as_bytes()).unwrap();
        child_socket.read_exact(&mut [0]).unwrap();
        0
    });
    let mut text = [0; 256];
    let size = parent_socket.read(&mut text).unwrap();
    let ticket: Ticket = std::str::from_utf8(&text[..size]).unwrap().parse().unwrap();
    let fetch = |trust| ticket.fetch_descriptor(trust).map(drop);
    for (trust, user, trusted) in
        [(Trust::SameUser, NOBODY_UID, own_user), (Trust::User(NOBODY_UID), own_user, NOBODY_UID)]
    {
        let reason = UnavailableReason::Untrusted(UntrustedUser { user: Some(user), trusted });
        let process = ticket.process as i32;
        assert_eq!(error_kind(fetch(trust)), ErrorKind::Unavailable { process, reason });
    }
    fetch(Trust::Anyone).unwrap();
    parent_socket.write_all(&[1]).unwrap();
    assert_eq!(child.wait(), End::Success);
}

fn open_with_two_gpus() -> Library {
    let runtime = hsa_vmm::Runtime::simulated(Config::mi300x(2)).unwrap();
    Library::open(runtime, Default::default())
}

#[test]
fn child_and_grandchild_share_memory() {
    if process::rerun_in_own_process() {
        return;
    }
    for killed in [Role::Parent, Role::Child, Role::Grandchild] {
        exchange::share_with_descendants(&open_with_two_gpus, killed);
    }
}

#[test]
fn another_user_is_rejected_until_trusted() {
    if process::rerun_in_own_process() {
        return;
    }
    if has_privilege(Need::OtherUser, "another_user_is_rejected_until_trusted") {
        exchange::share_with_another_user(&open_with_two_gpus);
    }
}

#[test]
fn channels_cross_pid_namespaces() {
    if process::rerun_in_own_process() {
        return;
    }
    if has_privilege(Need::PidNamespace, "channels_cross_pid_namespaces") {
        exchange::share_with_another_namespace(&open_with_two_gpus);
    }
}

/// A new user namespace maps no users: inside, every user has the ID of `nobody`.
#[test]
fn unmapped_users_are_untrusted() {
    if process::rerun_in_own_process() {
        return;
    }
    if !has_privilege(Need::UserNamespace, "unmapped_users_are_untrusted") {
        return;
    }
    let own_user = rustix::process::geteuid().as_raw();
    let (parent_socket, child_socket) = UnixStream::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    let end = process::in_child(|| {
        new_user_namespace();
        let nobody = rustix::process::geteuid().as_raw();
        assert_eq!(nobody, NOBODY_UID);
        let untrusting = Channel::over(child_socket.try_clone().unwrap());
        let user = UntrustedUser { user: None, trusted: nobody };
        assert_eq!(
            error_kind(untrusting.send_descriptor(&null, &example_description())),
            ErrorKind::Untrusted(user)
        );
        let trusting = Channel::over(child_socket).with_trust(Trust::Anyone);
        trusting.send_descriptor(&null, &example_description()).unwrap();
    });
    assert_eq!(end, End::Success);
    // Outside the namespace, the sender is still a process of this user.
    let channel = Channel::over(parent_socket).with_trust(Trust::User(own_user));
    assert_eq!(channel.receive_descriptor().unwrap().1, example_description());
}

#[test]
fn ticket_is_valid_while_the_offer_lives() {
    if process::rerun_in_own_process() {
        return;
    }
    let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
    let child = Child::start(|| {
        let machine = Machine::new(Config::mi300x(2));
        let memory = new_memory(&machine);
        let mapping = map_view(&machine, &memory);
        mapping.write(0, b"here").unwrap();
        let offer = Offer::of(&memory).unwrap();
        writeln!(child_socket, "{}", offer.ticket()).unwrap();
        child_socket.read_exact(&mut [0]).unwrap();
        assert_eq!(&first_bytes(&mapping), b"back");
        drop(offer);
        child_socket.write_all(b"!").unwrap();
        child_socket.read_exact(&mut [0]).unwrap();
        0
    });
    let mut ticket = String::new();
    let mut byte = [0];
    while parent_socket.read_exact(&mut byte).is_ok() && byte != *b"\n" {
        ticket.push(byte[0].into());
    }
    let ticket: Ticket = ticket.parse().unwrap();
    let machine = Machine::new(Config::mi300x(2));
    let before = process::descriptors();
    let fetched = ticket.fetch(&machine.vmm, Trust::SameUser).unwrap();
    let mapping = map_view(&machine, &fetched);
    assert_eq!(&first_bytes(&mapping), b"here");
    mapping.write(0, b"back").unwrap();
    parent_socket.write_all(b"!").unwrap();
    parent_socket.read_exact(&mut byte).unwrap();
    let process = ticket.process as i32;
    let withdrawn = ErrorKind::Unavailable { process, reason: UnavailableReason::Withdrawn };
    assert_eq!(error_kind(ticket.fetch(&machine.vmm, Trust::SameUser)), withdrawn);
    parent_socket.write_all(b"!").unwrap();
    assert_eq!(child.wait(), End::Success);
    let ended = ErrorKind::Unavailable { process, reason: UnavailableReason::NoProcess };
    assert_eq!(error_kind(ticket.fetch(&machine.vmm, Trust::SameUser)), ended);
    // The memory outlives the process that has created it.
    assert_eq!(&first_bytes(&mapping), b"back");
    drop((mapping, fetched));
    assert_eq!(process::descriptors(), before);
    machine.assert_empty();
}

#[test]
fn killed_sender_leaks_nothing() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let before = process::descriptors();
    // The complete message has 65 bytes.
    for bytes in [0, 1, 40, 64, 65] {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let child = Child::start(|| {
            let memory = new_memory(&Machine::new(Config::mi300x(1)));
            let message = example_description().encode().unwrap();
            if bytes > 0 {
                send_raw(&sender, &message[..bytes], &[memory.export().unwrap().as_fd()]);
            }
            // SAFETY: the call accesses no memory; it kills this child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            0
        });
        drop(sender);
        let received = Channel::over(receiver).receive(&machine.vmm);
        if bytes == 65 {
            assert_eq!(received.unwrap().0.size(), SIZE);
        } else {
            assert_eq!(error_kind(received), ErrorKind::Disconnected(bytes));
        }
        assert_eq!(child.wait(), End::Signal(libc::SIGKILL));
        assert_eq!(process::descriptors(), before);
    }
    machine.assert_empty();
}

#[test]
fn forked_child_leaves_the_message_to_its_parent() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let (sender, receiver) = Channel::pair().unwrap();
    let memory = new_memory(&machine);
    sender.send(&memory, "x").unwrap();
    let end = process::in_child(|| {
        assert_eq!(error_kind(receiver.receive(&machine.vmm)), ErrorKind::Forked);
    });
    assert_eq!(end, End::Success);
    assert_eq!(receiver.receive(&machine.vmm).unwrap().1.name, "x");
}

/// A process that has closed its standard input may use descriptor 0.
#[test]
fn ticket_for_descriptor_zero_is_valid() {
    if process::rerun_in_own_process() {
        return;
    }
    let end = process::in_child(|| {
        // SAFETY: descriptor 0 is open, and nothing else in this child uses it.
        drop(unsafe { OwnedFd::from_raw_fd(0) });
        let null = File::open("/dev/null").unwrap();
        assert_eq!(null.as_raw_fd(), 0);
        let offer = Offer::of_descriptor(null.into()).unwrap();
        offer.ticket().fetch_descriptor(Trust::SameUser).unwrap();
    });
    assert_eq!(end, End::Success);
}
