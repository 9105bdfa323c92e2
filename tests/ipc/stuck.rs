//! Peers that never finish: only calls that need them wait, with a time limit.

use super::*;
use crate::fixture::{Fixture, on_all_fixtures};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Locks an export's entry in its exporter's table, as a stuck process would.
fn lock_entry(handle: &IpcHandle, kind: i32) -> File {
    let bytes = handle.to_bytes();
    let descriptor = u32::from_le_bytes([bytes[52], bytes[53], bytes[54], 0]);
    let slot = u16::from_le_bytes([bytes[55], bytes[56]]);
    let path = format!("/proc/{}/fd/{descriptor}", handle.process);
    let table = File::options().read(true).write(true).open(path).expect("this user's process");
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 64 * (1 + i64::from(slot)),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the kernel only reads the range.
    let locked = unsafe { libc::fcntl(table.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    table
}

/// Returns whether to run long tests that are equal in each mode of AMD's runtime.
fn is_worth_it(fixture: &Fixture) -> bool {
    matches!(fixture, Fixture::Simulation) || fixture.has_server()
}

on_all_fixtures! {
    a_stopped_exporter_stalls_no_other_open(fixture) {
        let setup = Setup::on(fixture);
        let (mut stuck, mut other, mut importer) = (setup.peer(), setup.peer(), setup.peer());
        let [at, elsewhere] = [&mut stuck, &mut other].map(|peer| peer.allocate(SIZE));
        let (handle, free) = (stuck.get(at), other.get(elsewhere));
        stuck.stop();
        let (waited, longest) = importer.open_beside(&handle, &free);
        stuck.signal(libc::SIGCONT);
        if fixture.has_server() {
            assert!(waited > Duration::from_secs(4), "it was not stuck: {waited:?}");
        }
        assert!(longest < Duration::from_secs(2), "another was stalled: {longest:?}");
    }

    a_stuck_free_stalls_no_other_open(fixture) {
        if !is_worth_it(fixture) {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut stuck, mut other, mut importer) = (setup.peer(), setup.peer(), setup.peer());
        let [at, elsewhere] = [&mut stuck, &mut other].map(|peer| peer.allocate(SIZE));
        let (handle, free) = (stuck.get(at), other.get(elsewhere));
        let lock = lock_entry(&handle, libc::F_WRLCK);
        let (waited, longest) = importer.open_beside(&handle, &free);
        assert!(waited > Duration::from_secs(10), "it was not stuck: {waited:?}");
        assert!(waited < Duration::from_secs(30), "{waited:?}");
        assert!(longest < Duration::from_secs(2), "another was stalled: {longest:?}");
        drop(lock);
        importer.open(&handle);
    }

    a_stuck_open_stalls_no_other_free(fixture) {
        if !is_worth_it(fixture) {
            return;
        }
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        let [at, elsewhere] = [(); 2].map(|()| exporter.allocate(SIZE));
        let handle = exporter.get(at);
        exporter.get(elsewhere);
        let lock = lock_entry(&handle, libc::F_RDLCK);
        let times = within(30, || exporter.ok(&format!("free_beside {at} {elsewhere}")));
        let (waited, other) = times.split_once(' ').expect("two numbers");
        let [waited, other] = [waited, other].map(|text| text.parse::<u64>().expect("a number"));
        assert!(waited > 10_000, "it was not stuck: {waited} ms");
        assert!(other < 2_000, "another was stalled: {other} ms");
        drop(lock);
        exporter.free(at);
    }

    relays_are_not_held_up_by_taken_names(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get(address);
        let mut squatter = setup.spare_peer();
        squatter.ok(&format!("squat {}", importer.process));
        let opened = within(20, || importer.open(&handle));
        importer.holds(opened, "there");
    }

    relays_are_not_held_up_by_connections(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let mut flooder = setup.spare_peer();
        flooder.ok("flood");
        let rounds = format!("rounds {} 50", executor::to_hex(&handle.to_bytes()));
        let connected = |flooder: &mut Peer| flooder.ok("flooded") != "0";
        within(60, || {
            importer.ok(&rounds);
            // Without a server there is no relay.
            while fixture.has_server() && !connected(&mut flooder) {
                importer.ok(&rounds);
            }
        });
    }

    exporters_survive_importers_that_hang_up(fixture) {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        exporter.ok("sigpipe");
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get(address);
        for _ in 0..10 {
            impostor::hang_up(&handle, 50);
            // Exporting again starts another server.
            assert_eq!(exporter.get(address), handle);
        }
        let mut importer = setup.peer();
        let opened = importer.open(&handle);
        importer.holds(opened, "there");
    }

    importers_survive_servers_that_hang_up(fixture) {
        if !fixture.has_server() {
            return;
        }
        let setup = Setup::on(fixture);
        let (mut exporter, mut server) = (setup.peer(), setup.spare_peer());
        let mut importer = setup.peer();
        importer.ok("sigpipe");
        let address = exporter.allocate(SIZE);
        let genuine = exporter.get(address);
        server.ok("serve_and_hang_up");
        let mut bytes = to_hip_handle(&genuine).to_bytes();
        bytes[8..12].copy_from_slice(&server.process.to_le_bytes());
        bytes[48..52].copy_from_slice(&server.process.to_le_bytes());
        let handle = IpcHandle::from_bytes(&bytes);
        for _ in 0..20 {
            let refused = within(20, || importer.try_open(&handle));
            assert_refused(&refused, INVALID_DEVICE_POINTER);
        }
        importer.open(&genuine);
    }
}
