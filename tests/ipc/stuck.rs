//! A peer that never replies delays only the calls that need this peer, and only up to a time limit.

use super::*;
use crate::fixture::{Fixture, on_all_fixtures};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Locks the entry of a handle in its exporter's table, like a process that hangs while it holds the lock. Dropping the
/// returned file unlocks the entry.
fn lock_entry(handle: &IpcHandle, lock_type: i32) -> File {
    let (table, slot) = (forge::open_table(handle.process), forge::slot(handle));
    let range = libc::flock {
        l_type: lock_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: forge::ENTRY_SIZE as i64 * (1 + i64::from(slot)),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the kernel only reads the range.
    let locked = unsafe { libc::fcntl(table.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    table
}

/// Returns HIP's handle with the process of `server` instead of the exporter, in both fields.
fn handle_of_server(genuine: &IpcHandle, server: &Peer) -> IpcHandle {
    let mut bytes = to_hip_handle(genuine).to_bytes();
    bytes[8..12].copy_from_slice(&server.process.to_le_bytes());
    bytes[forge::PROCESS].copy_from_slice(&server.process.to_le_bytes());
    IpcHandle::from_bytes(&bytes)
}

/// Returns whether to run a long test on this fixture. On AMD's runtime, long tests run only in the mode with a server,
/// because both modes behave alike.
fn runs_long_test(name: &str, fixture: &Fixture) -> bool {
    (matches!(fixture, Fixture::Simulation) || fixture.has_server())
        && hsa_rocr::test::runs_long_test(name)
}

on_all_fixtures! {
    stopped_exporter_delays_no_other_open(fixture) {
        let setup = Setup::on(fixture);
        let (mut stuck, mut other, mut importer) = (setup.peer(), setup.peer(), setup.peer());
        let handles = [&mut stuck, &mut other].map(|peer| {
            let address = peer.allocate(SIZE);
            peer.get_handle(address)
        });
        stuck.stop();
        let (waited, longest) = importer.open_concurrently(&handles[0], &handles[1]);
        stuck.send_signal(libc::SIGCONT);
        if fixture.has_server() {
            assert!(waited > Duration::from_secs(4), "the first open did not wait: {waited:?}");
        }
        assert!(longest < Duration::from_secs(2), "the other open waited: {longest:?}");
    }

    stuck_free_delays_no_other_open(fixture) {
        if !runs_long_test("stuck::stuck_free_delays_no_other_open", fixture) {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut stuck, mut other, mut importer) = (setup.peer(), setup.peer(), setup.peer());
        let handles = [&mut stuck, &mut other].map(|peer| {
            let address = peer.allocate(SIZE);
            peer.get_handle(address)
        });
        let lock = lock_entry(&handles[0], libc::F_WRLCK);
        let (waited, longest) = importer.open_concurrently(&handles[0], &handles[1]);
        assert!(waited > Duration::from_secs(10), "the first open did not wait: {waited:?}");
        assert!(waited < Duration::from_secs(30), "{waited:?}");
        assert!(longest < Duration::from_secs(2), "the other open waited: {longest:?}");
        drop(lock);
        importer.open(&handles[0]);
    }

    stuck_open_delays_no_other_free(fixture) {
        if !runs_long_test("stuck::stuck_open_delays_no_other_free", fixture) {
            return;
        }
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        let [first, second] = [(); 2].map(|()| exporter.allocate(SIZE));
        let handle = exporter.get_handle(first);
        exporter.get_handle(second);
        let lock = lock_entry(&handle, libc::F_RDLCK);
        let times = within(30, || exporter.run(&format!("free_concurrently {first} {second}")));
        let (first_ms, second_ms) = times.split_once(' ').expect("two numbers");
        let [first_ms, second_ms] =
            [first_ms, second_ms].map(|text| text.parse::<u64>().expect("a number"));
        assert!(first_ms > 10_000, "the first free did not wait: {first_ms} ms");
        assert!(second_ms < 2_000, "the second free waited: {second_ms} ms");
        drop(lock);
        exporter.free(first);
    }

    taken_names_do_not_delay_relays(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get_handle(address);
        let mut squatter = setup.peer_without_runtime();
        squatter.run(&format!("bind_relay_names {}", importer.process));
        let opened = within(20, || importer.open(&handle));
        importer.assert_contains(opened, "there");
    }

    connections_do_not_delay_relays(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        let mut flooder = setup.peer_without_runtime();
        flooder.run("connect_to_relays");
        let rounds = format!("open_repeatedly {} 50", executor::to_hex(&handle.to_bytes()));
        let connected = |flooder: &mut Peer| flooder.run("count_connections") != "0";
        within(60, || {
            importer.run(&rounds);
            // The library starts relays only if the exporter has a server.
            while fixture.has_server() && !connected(&mut flooder) {
                importer.run(&rounds);
            }
        });
    }

    exporters_survive_importers_that_disconnect(fixture) {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        exporter.run("reset_sigpipe");
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get_handle(address);
        for _ in 0..10 {
            impostor::disconnect_before_reply(&handle, 50);
            // Exporting again starts another server.
            assert_eq!(exporter.get_handle(address), handle);
        }
        let mut importer = setup.peer();
        let opened = importer.open(&handle);
        importer.assert_contains(opened, "there");
    }

    /// In the mode with a server, AMD's runtime keeps the sent file open after it has failed to attach, so that the
    /// library's close is not the last.
    slow_close_of_sent_file_delays_no_other_open(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut server) = (setup.peer(), setup.peer_without_runtime());
        let mut importer = setup.peer();
        let address = exporter.allocate(SIZE);
        let genuine = exporter.get_handle(address);
        server.run("send_slow_descriptor");
        let handle = handle_of_server(&genuine, &server);
        let (waited, longest) = importer.open_concurrently(&handle, &genuine);
        assert!(waited < impostor::CLOSE_TIME / 2, "the open waited for the close: {waited:?}");
        assert!(longest < Duration::from_secs(2), "the other open waited: {longest:?}");
    }

    importers_survive_servers_that_disconnect(fixture) {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut exporter, mut server) = (setup.peer(), setup.peer_without_runtime());
        let mut importer = setup.peer();
        importer.run("reset_sigpipe");
        let address = exporter.allocate(SIZE);
        let genuine = exporter.get_handle(address);
        server.run("send_invalid_descriptor");
        let handle = handle_of_server(&genuine, &server);
        for _ in 0..20 {
            let result = within(20, || importer.try_open(&handle));
            assert_error(&result, INVALID_DEVICE_POINTER);
        }
        importer.open(&genuine);
    }
}
