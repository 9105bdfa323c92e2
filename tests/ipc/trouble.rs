//! Processes that are killed, stopped, or out of descriptors in the middle of something.

use super::*;
use crate::ground::plays;

fn rounds(handle: &hsa_vmm::IpcHandle) -> String {
    format!("rounds {} 1000000", props::to_hex(&handle.to_bytes()))
}

plays! {
    an_importer_killed_while_mapping_harms_nobody(ground) {
        let stage = Stage::on(ground);
        let mut exporter = stage.player();
        let address = exporter.allocate(SIZE);
        exporter.write(address, "safe");
        let handle = exporter.get(address);
        let before = exporter.ok("state");
        for round in 0..8 {
            let mut importer = stage.player();
            importer.tell(&rounds(&handle));
            std::thread::sleep(Duration::from_millis(3 + 7 * round));
            importer.kill();
        }
        let mut importer = stage.player();
        // The server of AMD's runtime may have ended with an importer. The same handle is good
        // again when the exporter has asked for it once more.
        assert_eq!(exporter.get(address), handle);
        let opened = importer.open(&handle);
        importer.holds(opened, "safe");
        let descriptors = |state: &str| state.split(' ').next().map(str::to_owned);
        assert_eq!(descriptors(&exporter.ok("state")), descriptors(&before));
        within(5, || exporter.free(address));
    }

    an_exporter_killed_while_others_map_is_not_waited_for(ground) {
        let stage = Stage::on(ground);
        let mut importer = stage.player();
        for round in 0..8 {
            let mut exporter = stage.player();
            let address = exporter.allocate(SIZE);
            let handle = exporter.get(address);
            importer.tell(&rounds(&handle));
            std::thread::sleep(Duration::from_millis(5 + 3 * round));
            exporter.kill();
            let ended = within(15, || importer.answer());
            assert_refused(&ended, INVALID_DEVICE_POINTER);
        }
    }

    an_exporter_that_frees_while_others_map_is_not_kept_waiting(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        for _ in 0..8 {
            let address = exporter.allocate(SIZE);
            let handle = exporter.get(address);
            importer.tell(&rounds(&handle));
            std::thread::sleep(Duration::from_millis(20));
            within(10, || exporter.free(address));
            let ended = within(10, || importer.answer());
            assert_refused(&ended, INVALID_DEVICE_POINTER);
        }
    }

    an_importer_without_descriptors_is_told_so(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get(address);
        let opened = importer.open(&handle);
        importer.close(opened);
        importer.ok("limit 3");
        let refused = within(15, || importer.try_open(&handle));
        assert_refused(&refused, OPERATING_SYSTEM);
        importer.ok("no_limit");
        let opened = importer.open(&handle);
        importer.holds(opened, "there");
    }

    an_exporter_without_descriptors_is_told_so(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let (first, second) = (exporter.allocate(SIZE), exporter.allocate(SIZE));
        let handle = exporter.get(first);
        exporter.ok("limit 3");
        // The server of AMD's runtime needs two descriptors for each that asks.
        let answer = within(30, || importer.try_open(&handle));
        if ground.has_server() {
            assert_refused(&answer, INVALID_DEVICE_POINTER);
        }
        exporter.ok("no_limit");
        within(30, || importer.open(&handle));
        exporter.get(second);
    }

    a_stopped_exporter_is_not_waited_for(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        exporter.stop();
        let answer = within(30, || importer.try_open(&handle));
        if ground.has_server() {
            assert_refused(&answer, INVALID_DEVICE_POINTER);
        }
        exporter.signal(libc::SIGCONT);
        importer.open(&handle);
    }
}
