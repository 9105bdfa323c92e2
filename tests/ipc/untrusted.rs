//! The library rejects exporters of another user until the caller trusts the user, and exporters in another PID
//! namespace.

use super::*;
use crate::fixture::on_all_fixtures;
use crate::forge::{Entry, PROCESS, RUNTIME, with_valid_check};
use crate::process::namespaces::{NOBODY_UID, Need, has_privilege};

/// Starts the first process of a new PID namespace, with its own `/proc`.
fn first_process_of_namespace(setup: &Setup, parent: &mut Peer) -> Peer {
    parent.run("new_pid_namespace");
    let mut first = setup.child_of(parent);
    first.run("mount_proc");
    first
}

#[track_caller]
fn assert_of_other_namespace(result: &Result<usize, PeerError>) {
    assert_error(result, INVALID_DEVICE_POINTER);
    let text = &result.as_ref().unwrap_err().text;
    assert!(text.contains("another PID namespace"), "{text}");
}

/// The runtime would connect to any server that a handle names.
#[track_caller]
fn assert_of_other_server(result: &Result<usize, PeerError>) {
    assert_error(result, INVALID_DEVICE_POINTER);
    let text = &result.as_ref().unwrap_err().text;
    assert!(text.contains("its handle is not of the kind that this process"), "{text}");
}

on_all_fixtures! {
    another_user_is_rejected_until_trusted(fixture) needs OtherUser {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        exporter.run(&format!("become_user {NOBODY_UID}"));
        let address = exporter.allocate(SIZE);
        exporter.write(address, "theirs");
        let handle = exporter.get_handle(address);
        let hip_handle = to_hip_handle(&handle);
        for handle in [handle, hip_handle] {
            let result = importer.try_open(&handle);
            assert_error(&result, INVALID_DEVICE_POINTER);
            let text = result.unwrap_err().text;
            assert!(text.contains("of user 65534; only user 0 is trusted"), "{text}");
        }
        importer.run(&format!("trust {NOBODY_UID}"));
        for handle in [handle, hip_handle] {
            let opened = importer.open(&handle);
            importer.assert_contains(opened, "theirs");
            importer.write(opened, "shared");
            exporter.assert_contains(address, "shared");
            importer.close(opened);
            exporter.write(address, "theirs");
        }
        // The kernel rejects the other direction: only root can inspect root's processes.
        let own_address = importer.allocate(SIZE);
        let handle = importer.get_handle(own_address);
        exporter.run("trust 0");
        let result = exporter.try_open(&handle);
        assert_error(&result, INVALID_DEVICE_POINTER);
        let text = result.unwrap_err().text;
        assert!(text.contains("permission denied"), "{text}");
    }

    open_rejects_exporters_of_mixed_users(fixture) needs OtherUser {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "theirs");
        exporter.run(&format!("set_real_user {NOBODY_UID}"));
        let handle = exporter.get_handle(address);
        for handle in [handle, to_hip_handle(&handle)] {
            let result = importer.try_open(&handle);
            assert_error(&result, INVALID_DEVICE_POINTER);
            let text = result.unwrap_err().text;
            assert!(text.contains("of user 65534; only user 0 is trusted"), "{text}");
        }
        // The trusted user must be the real and the effective user of the exporter.
        importer.run(&format!("trust {NOBODY_UID}"));
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
        let handle = exporter.get_handle(address);
        let mut impostor = setup.peer();
        impostor.run(&format!("become_user {NOBODY_UID}"));
        let impostors_address = impostor.allocate(SIZE);
        let own_handle = executor::to_hex(&impostor.get_handle(impostors_address).to_bytes());
        impostor.run(&format!("replace_server {} {own_handle}", exporter.process));
        for handle in [handle, to_hip_handle(&handle)] {
            let result = importer.try_open(&handle);
            assert_error(&result, INVALID_DEVICE_POINTER);
            let text = result.unwrap_err().text;
            assert!(text.contains("another process listens"), "{text}");
        }
        impostor.kill();
        assert_eq!(exporter.get_handle(address), handle);
        for handle in [handle, to_hip_handle(&handle)] {
            let opened = importer.open(&handle);
            importer.assert_contains(opened, "genuine");
            importer.close(opened);
        }
    }

    open_rejects_a_handle_of_another_server(fixture) needs OtherUser {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut impostor, mut importer) = (setup.peer(), setup.peer());
        impostor.run(&format!("become_user {NOBODY_UID}"));
        let impostors_address = impostor.allocate(SIZE);
        let mut bytes = to_hip_handle(&impostor.get_handle(impostors_address)).to_bytes();
        // The handle names a process of a trusted user, and the server of the impostor.
        let trusted = std::process::id() as i32;
        bytes[PROCESS].copy_from_slice(&trusted.to_le_bytes());
        let result = importer.try_open(&IpcHandle::from_bytes(&bytes));
        assert_of_other_server(&result);
    }

    open_rejects_a_table_entry_of_another_server(fixture) {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut exporter, mut other) = (setup.peer(), setup.peer());
        let mut importer = setup.peer();
        let [handle, others_handle] = [&mut exporter, &mut other].map(|peer| {
            let address = peer.allocate(SIZE);
            peer.get_handle(address)
        });
        // Makes the exporter's table list memory that only the other peer's server can send.
        let mut bytes = handle.to_bytes();
        bytes[RUNTIME].copy_from_slice(&others_handle.to_bytes()[RUNTIME]);
        let entry = Entry::of(&handle);
        entry.set_runtime_handle(&bytes[RUNTIME]);
        let forged = with_valid_check(bytes, entry.generation());
        let result = within(20, || importer.try_open(&forged));
        assert_of_other_server(&result);
        importer.open(&others_handle);
    }

    open_rejects_handles_of_other_pid_namespaces(fixture) needs PidNamespace {
        let setup = Setup::on(fixture);
        let mut outside = setup.peer();
        let mut parents = [setup.peer_without_runtime(), setup.peer_without_runtime()];
        let [mut first, mut other] =
            parents.each_mut().map(|parent| first_process_of_namespace(&setup, parent));
        // Forks before the first process has a runtime.
        let mut second = setup.child_of(&mut first);
        for peer in [&mut first, &mut second] {
            peer.run("open_runtime 0");
        }
        let address = first.allocate(SIZE);
        first.write(address, "inside");
        let handle = first.get_handle(address);
        assert_eq!(handle.process, 1);
        // Within the namespace, processes can share memory.
        let opened = second.open(&handle);
        second.assert_contains(opened, "inside");
        assert_error(&first.try_open(&handle), INVALID_CONTEXT);
        // Outside, process 1 is another process.
        assert_of_other_namespace(&outside.try_open(&handle));
        // In the other namespace, the importer itself is process 1.
        other.run("open_runtime 0");
        assert_of_other_namespace(&other.try_open(&handle));
        let address = outside.allocate(SIZE);
        let handle = outside.get_handle(address);
        assert_of_other_namespace(&first.try_open(&handle));
        assert_of_other_namespace(&second.try_open(&handle));
    }

    export_reports_proc_of_another_namespace(fixture) needs PidNamespace {
        let setup = Setup::on(fixture);
        let mut outside = setup.peer();
        let address = outside.allocate(SIZE);
        let handle = outside.get_handle(address);
        let mut parent = setup.peer_without_runtime();
        parent.run("new_pid_namespace");
        let mut inside = setup.child_of(&mut parent);
        inside.run("open_runtime 0");
        assert_of_other_namespace(&inside.try_open(&handle));
        let address = inside.allocate(SIZE);
        let result = inside.try_run(&format!("get_handle {address}"));
        assert!(result.unwrap_err().text.contains("/proc is not this namespace's"));
        inside.write(address, "usable");
        inside.assert_contains(address, "usable");
    }
}
