//! Processes are killed, are stopped, or run out of descriptors during calls of IPC.

use super::*;
use crate::fixture::on_all_fixtures;

/// Returns the command that opens and closes a handle a million times.
fn open_repeatedly_command(handle: &hsa_vmm::ipc::IpcHandle) -> String {
    format!("open_repeatedly {} 1000000", executor::to_hex(&handle.to_bytes()))
}

on_all_fixtures! {
    killed_importer_does_not_affect_others(fixture) {
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        let address = exporter.allocate(SIZE);
        exporter.write(address, "safe");
        let handle = exporter.get_handle(address);
        let before = exporter.run("count_resources");
        for round in 0..8 {
            let mut importer = setup.peer();
            importer.send(&open_repeatedly_command(&handle));
            std::thread::sleep(Duration::from_millis(3 + 7 * round));
            importer.kill();
        }
        let mut importer = setup.peer();
        // The server of AMD's runtime may have ended when an importer was killed. Exporting again starts another
        // server, and returns the same handle.
        assert_eq!(exporter.get_handle(address), handle);
        let opened = importer.open(&handle);
        importer.assert_contains(opened, "safe");
        let descriptors = |resources: &str| resources.split(' ').next().map(str::to_owned);
        assert_eq!(descriptors(&exporter.run("count_resources")), descriptors(&before));
        within(5, || exporter.free(address));
    }

    open_fails_after_exporter_is_killed(fixture) {
        let setup = Setup::on(fixture);
        let mut importer = setup.peer();
        for round in 0..8 {
            let mut exporter = setup.peer();
            let address = exporter.allocate(SIZE);
            let handle = exporter.get_handle(address);
            importer.send(&open_repeatedly_command(&handle));
            std::thread::sleep(Duration::from_millis(5 + 3 * round));
            exporter.kill();
            let result = within(15, || importer.receive());
            assert_error(&result, INVALID_DEVICE_POINTER);
        }
    }

    free_does_not_wait_for_importers(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        for _ in 0..8 {
            let address = exporter.allocate(SIZE);
            let handle = exporter.get_handle(address);
            importer.send(&open_repeatedly_command(&handle));
            std::thread::sleep(Duration::from_millis(20));
            within(10, || exporter.free(address));
            let result = within(10, || importer.receive());
            assert_error(&result, INVALID_DEVICE_POINTER);
        }
    }

    open_fails_without_descriptors(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "there");
        let handle = exporter.get_handle(address);
        let opened = importer.open(&handle);
        importer.close(opened);
        importer.run("limit_descriptors 3");
        let result = within(15, || importer.try_open(&handle));
        assert_error(&result, OPERATING_SYSTEM);
        importer.run("raise_descriptor_limit");
        let opened = importer.open(&handle);
        importer.assert_contains(opened, "there");
    }

    open_returns_if_exporter_has_no_descriptors(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let (first, second) = (exporter.allocate(SIZE), exporter.allocate(SIZE));
        let handle = exporter.get_handle(first);
        exporter.run("limit_descriptors 3");
        // The server of AMD's runtime needs two descriptors for each request.
        let result = within(30, || importer.try_open(&handle));
        if fixture.has_server() {
            assert_error(&result, INVALID_DEVICE_POINTER);
        }
        exporter.run("raise_descriptor_limit");
        within(30, || importer.open(&handle));
        exporter.get_handle(second);
    }

    open_does_not_hang_on_stopped_exporter(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        exporter.stop();
        let result = within(30, || importer.try_open(&handle));
        if fixture.has_server() {
            assert_error(&result, INVALID_DEVICE_POINTER);
        }
        exporter.send_signal(libc::SIGCONT);
        importer.open(&handle);
    }
}
