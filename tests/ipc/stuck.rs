//! Peers that never come to an end: nothing but what was asked of them waits, and that not for ever.

use super::*;
use crate::ground::{Ground, plays};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Holds a lock of an export's entry in its exporter's table, as a process that is stuck would.
fn lock_entry(handle: &IpcHandle, kind: i32) -> File {
    let bytes = handle.to_bytes();
    let descriptor = u32::from_le_bytes([bytes[52], bytes[53], bytes[54], 0]);
    let slot = u16::from_le_bytes([bytes[55], bytes[56]]);
    let path = format!("/proc/{}/fd/{descriptor}", handle.process());
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

/// Whether to try what is the same in each way that AMD's runtime shares memory, and takes long.
fn is_worth_it(ground: &Ground) -> bool {
    matches!(ground, Ground::Simulation) || ground.has_server()
}

plays! {
    a_stopped_exporter_stalls_no_other_open(ground) {
        let stage = Stage::on(ground);
        let (mut stuck, mut other, mut importer) = (stage.player(), stage.player(), stage.player());
        let [at, elsewhere] = [&mut stuck, &mut other].map(|player| player.allocate(SIZE));
        let (handle, free) = (stuck.get(at), other.get(elsewhere));
        stuck.stop();
        let (waited, longest) = importer.open_beside(&handle, &free);
        stuck.signal(libc::SIGCONT);
        if ground.has_server() {
            assert!(waited > Duration::from_secs(4), "it was not stuck: {waited:?}");
        }
        assert!(longest < Duration::from_secs(2), "another was stalled: {longest:?}");
    }

    a_stuck_free_stalls_no_other_open(ground) {
        if !is_worth_it(ground) {
            return;
        }
        let stage = Stage::on(ground);
        let (mut stuck, mut other, mut importer) = (stage.player(), stage.player(), stage.player());
        let [at, elsewhere] = [&mut stuck, &mut other].map(|player| player.allocate(SIZE));
        let (handle, free) = (stuck.get(at), other.get(elsewhere));
        let lock = lock_entry(&handle, libc::F_WRLCK);
        let (waited, longest) = importer.open_beside(&handle, &free);
        assert!(waited > Duration::from_secs(10), "it was not stuck: {waited:?}");
        assert!(waited < Duration::from_secs(30), "{waited:?}");
        assert!(longest < Duration::from_secs(2), "another was stalled: {longest:?}");
        drop(lock);
        importer.open(&handle);
    }

    a_stuck_open_stalls_no_other_free(ground) {
        if !is_worth_it(ground) {
            return;
        }
        let stage = Stage::on(ground);
        let mut exporter = stage.player();
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

    relays_are_not_held_up_by_taken_names(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get(address);
        let mut squatter = stage.spare_player();
        squatter.ok(&format!("squat {}", importer.process));
        let opened = within(20, || importer.open(&handle));
        importer.holds(opened, "there");
    }

    relays_are_not_held_up_by_connections(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let mut flooder = stage.spare_player();
        flooder.ok("flood");
        let rounds = format!("rounds {} 50", props::to_hex(&handle.to_bytes()));
        let connected = |flooder: &mut Player| flooder.ok("flooded") != "0";
        within(60, || {
            importer.ok(&rounds);
            // Without a server there is no relay.
            while ground.has_server() && !connected(&mut flooder) {
                importer.ok(&rounds);
            }
        });
    }

    exporters_survive_importers_that_hang_up(ground) {
        if !ground.has_server() {
            return;
        }
        let stage = Stage::on(ground);
        let mut exporter = stage.player();
        exporter.ok("sigpipe");
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get(address);
        for _ in 0..10 {
            impostor::hang_up(&handle, 50);
            // Which starts another server.
            assert_eq!(exporter.get(address), handle);
        }
        let mut importer = stage.player();
        let opened = importer.open(&handle);
        importer.holds(opened, "there");
    }

    importers_survive_servers_that_hang_up(ground) {
        if !ground.has_server() {
            return;
        }
        let stage = Stage::on(ground);
        let (mut exporter, mut server) = (stage.player(), stage.spare_player());
        let mut importer = stage.player();
        importer.ok("sigpipe");
        let address = exporter.allocate(SIZE);
        let genuine = exporter.get(address);
        server.ok("serve_and_hang_up");
        let mut bytes = as_hips(&genuine).to_bytes();
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
