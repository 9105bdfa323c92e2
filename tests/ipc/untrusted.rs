//! Exporters of another user, and in another PID namespace.

use super::*;
use crate::fixture::on_all_fixtures;
use crate::forge::{Entry, RUNTIME, sealed};
use crate::process::namespaces::{NOBODY_UID, Need, may};

/// The first process of a PID namespace, with `/proc` of its own.
fn first_of_a_namespace(setup: &Setup, parent: &mut Peer) -> Peer {
    parent.ok("namespace");
    let mut first = setup.child_of(parent);
    first.ok("proc");
    first
}

#[track_caller]
fn assert_elsewhere(answer: &Result<usize, Refused>) {
    assert_refused(answer, INVALID_DEVICE_POINTER);
    let text = &answer.as_ref().unwrap_err().text;
    assert!(text.contains("another PID namespace"), "{text}");
}

on_all_fixtures! {
    another_user_is_rejected_until_trusted(fixture) needs OtherUser {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        exporter.ok(&format!("user {NOBODY_UID}"));
        let address = exporter.allocate(SIZE);
        exporter.write(address, "theirs");
        let handle = exporter.get(address);
        let hip_handle = to_hip_handle(&handle);
        for handle in [handle, hip_handle] {
            let refused = importer.try_open(&handle);
            assert_refused(&refused, INVALID_DEVICE_POINTER);
            let text = refused.unwrap_err().text;
            assert!(text.contains("of user 65534; only user 0 is trusted"), "{text}");
        }
        importer.ok(&format!("trust {NOBODY_UID}"));
        for handle in [handle, hip_handle] {
            let opened = importer.open(&handle);
            importer.holds(opened, "theirs");
            importer.write(opened, "shared");
            exporter.holds(address, "shared");
            importer.close(opened);
            exporter.write(address, "theirs");
        }
        // In the other direction the kernel denies it: only root can inspect root's processes.
        let own = importer.allocate(SIZE);
        let handle = importer.get(own);
        exporter.ok("trust 0");
        let refused = exporter.try_open(&handle);
        assert_refused(&refused, INVALID_DEVICE_POINTER);
        let text = refused.unwrap_err().text;
        assert!(text.contains("permission denied"), "{text}");
    }

    open_rejects_exporters_of_mixed_users(fixture) needs OtherUser {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "theirs");
        exporter.ok(&format!("started_by {NOBODY_UID}"));
        let handle = exporter.get(address);
        for handle in [handle, to_hip_handle(&handle)] {
            let refused = importer.try_open(&handle);
            assert_refused(&refused, INVALID_DEVICE_POINTER);
            let text = refused.unwrap_err().text;
            assert!(text.contains("of user 65534; only user 0 is trusted"), "{text}");
        }
        // Each of its users must be the trusted one.
        importer.ok(&format!("trust {NOBODY_UID}"));
        let text = importer.try_open(&handle).unwrap_err().text;
        assert!(text.contains("of user 0; only user 65534 is trusted"), "{text}");
    }

    open_rejects_an_impostors_server(fixture) needs OtherUser {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "genuine");
        let handle = exporter.get(address);
        let mut impostor = setup.peer();
        impostor.ok(&format!("user {NOBODY_UID}"));
        let trap = impostor.allocate(SIZE);
        let own = executor::to_hex(&impostor.get(trap).to_bytes());
        impostor.ok(&format!("usurp {} {own}", exporter.process));
        for handle in [handle, to_hip_handle(&handle)] {
            let refused = importer.try_open(&handle);
            assert_refused(&refused, INVALID_DEVICE_POINTER);
            let text = refused.unwrap_err().text;
            assert!(text.contains("another process listens"), "{text}");
        }
        impostor.kill();
        assert_eq!(exporter.get(address), handle);
        for handle in [handle, to_hip_handle(&handle)] {
            let opened = importer.open(&handle);
            importer.holds(opened, "genuine");
            importer.close(opened);
        }
    }

    open_rejects_a_handle_of_another_server(fixture) needs OtherUser {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut impostor, mut importer) = (setup.peer(), setup.peer());
        impostor.ok(&format!("user {NOBODY_UID}"));
        let trap = impostor.allocate(SIZE);
        let mut bytes = to_hip_handle(&impostor.get(trap)).to_bytes();
        // The handle names a process of a trusted user, and the server of the impostor.
        let trusted = std::process::id() as i32;
        bytes[48..52].copy_from_slice(&trusted.to_le_bytes());
        let refused = importer.try_open(&IpcHandle::from_bytes(&bytes));
        assert_refused(&refused, INVALID_DEVICE_POINTER);
    }

    open_rejects_a_registration_of_another_server(fixture) {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut exporter, mut other) = (setup.peer(), setup.peer());
        let mut importer = setup.peer();
        let [at, elsewhere] = [&mut exporter, &mut other].map(|peer| peer.allocate(SIZE));
        let (handle, theirs) = (exporter.get(at), other.get(elsewhere));
        // The exporter's own table registers memory that only the impostor's server sends.
        let mut bytes = handle.to_bytes();
        bytes[RUNTIME].copy_from_slice(&theirs.to_bytes()[RUNTIME]);
        let entry = Entry::of(&handle);
        entry.set_runtime_handle(&bytes[RUNTIME]);
        let forged = sealed(bytes, entry.generation());
        let refused = within(20, || importer.try_open(&forged));
        assert_refused(&refused, INVALID_DEVICE_POINTER);
        importer.open(&theirs);
    }

    numbers_of_other_pid_namespaces_are_rejected(fixture) needs PidNamespace {
        let setup = Setup::on(fixture);
        let mut outside = setup.peer();
        let mut parents = [setup.spare_peer(), setup.spare_peer()];
        let [mut first, mut other] =
            parents.each_mut().map(|parent| first_of_a_namespace(&setup, parent));
        // Forked while it has no runtime.
        let mut second = setup.child_of(&mut first);
        for peer in [&mut first, &mut second] {
            peer.ok("runtime 0");
        }
        let address = first.allocate(SIZE);
        first.write(address, "inside");
        let handle = first.get(address);
        assert_eq!(handle.process, 1);
        // Within the namespace everything works.
        let opened = second.open(&handle);
        second.holds(opened, "inside");
        assert_refused(&first.try_open(&handle), INVALID_CONTEXT);
        // Outside, process 1 is another.
        assert_elsewhere(&outside.try_open(&handle));
        // In the other namespace it is the importer's own number.
        other.ok("runtime 0");
        assert_elsewhere(&other.try_open(&handle));
        let address = outside.allocate(SIZE);
        let handle = outside.get(address);
        assert_elsewhere(&first.try_open(&handle));
        assert_elsewhere(&second.try_open(&handle));
    }

    a_proc_of_another_namespace_is_reported(fixture) needs PidNamespace {
        let setup = Setup::on(fixture);
        let mut outside = setup.peer();
        let address = outside.allocate(SIZE);
        let handle = outside.get(address);
        let mut parent = setup.spare_peer();
        parent.ok("namespace");
        let mut inside = setup.child_of(&mut parent);
        inside.ok("runtime 0");
        assert_elsewhere(&inside.try_open(&handle));
        let address = inside.allocate(SIZE);
        let refused = inside.ask(&format!("get {address}"));
        assert!(refused.unwrap_err().text.contains("/proc is not this namespace's"));
        inside.write(address, "usable");
        inside.holds(address, "usable");
    }
}
