//! Processes that are killed, stopped, or out of descriptors during calls.

use super::*;
use crate::fixture::on_all_fixtures;

fn rounds(handle: &hsa_vmm::ipc::IpcHandle) -> String {
    format!("rounds {} 1000000", executor::to_hex(&handle.to_bytes()))
}

on_all_fixtures! {
    killed_importer_does_not_affect_others(fixture) {
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        let address = exporter.allocate(SIZE);
        exporter.write(address, "safe");
        let handle = exporter.get(address);
        let before = exporter.ok("state");
        for round in 0..8 {
            let mut importer = setup.peer();
            importer.send(&rounds(&handle));
            std::thread::sleep(Duration::from_millis(3 + 7 * round));
            importer.kill();
        }
        let mut importer = setup.peer();
        // The server of AMD's runtime may have ended with an importer. The same handle is valid again after
        // the exporter has requested it once more.
        assert_eq!(exporter.get(address), handle);
        let opened = importer.open(&handle);
        importer.holds(opened, "safe");
        let descriptors = |state: &str| state.split(' ').next().map(str::to_owned);
        assert_eq!(descriptors(&exporter.ok("state")), descriptors(&before));
        within(5, || exporter.free(address));
    }

    killed_exporter_is_not_waited_for(fixture) {
        let setup = Setup::on(fixture);
        let mut importer = setup.peer();
        for round in 0..8 {
            let mut exporter = setup.peer();
            let address = exporter.allocate(SIZE);
            let handle = exporter.get(address);
            importer.send(&rounds(&handle));
            std::thread::sleep(Duration::from_millis(5 + 3 * round));
            exporter.kill();
            let ended = within(15, || importer.answer());
            assert_refused(&ended, INVALID_DEVICE_POINTER);
        }
    }

    free_does_not_wait_for_importers(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        for _ in 0..8 {
            let address = exporter.allocate(SIZE);
            let handle = exporter.get(address);
            importer.send(&rounds(&handle));
            std::thread::sleep(Duration::from_millis(20));
            within(10, || exporter.free(address));
            let ended = within(10, || importer.answer());
            assert_refused(&ended, INVALID_DEVICE_POINTER);
        }
    }

    importer_without_descriptors_gets_an_error(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
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

    exporter_without_descriptors_gets_an_error(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let (first, second) = (exporter.allocate(SIZE), exporter.allocate(SIZE));
        let handle = exporter.get(first);
        exporter.ok("limit 3");
        // The server of AMD's runtime needs two descriptors for each request.
        let answer = within(30, || importer.try_open(&handle));
        if fixture.has_server() {
            assert_refused(&answer, INVALID_DEVICE_POINTER);
        }
        exporter.ok("no_limit");
        within(30, || importer.open(&handle));
        exporter.get(second);
    }

    stopped_exporter_is_not_waited_for(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        exporter.stop();
        let answer = within(30, || importer.try_open(&handle));
        if fixture.has_server() {
            assert_refused(&answer, INVALID_DEVICE_POINTER);
        }
        exporter.signal(libc::SIGCONT);
        importer.open(&handle);
    }
}
