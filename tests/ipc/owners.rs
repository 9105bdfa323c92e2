//! Only the owner of opened memory can close the memory. The owner is an `OpenedMemory` value, or the caller of
//! `Ipc::open_mem_handle`. Only the process that allocated the memory can export it.

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    close_by_address_rejects_owned_memory(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "shared");
        let handle = exporter.get_handle(address);
        for handle in [handle, to_hip_handle(&handle)] {
            let owned = importer.open(&handle);
            for inside in [owned, owned + 16, owned + SIZE - 1] {
                let result = importer.try_run(&format!("close_raw {inside}"));
                assert_error(&result, INVALID_VALUE);
                let text = result.unwrap_err().text;
                assert!(text.contains("OpenedMemory"), "{text}");
                importer.assert_contains(owned, "shared");
            }
            importer.close(owned);
            assert_error(&importer.try_run(&format!("close_raw {owned}")), INVALID_VALUE);
        }
    }

    export_rejects_opened_memory(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        let opened = importer.open(&handle);
        for inside in [opened, opened + SIZE - 1] {
            let result = importer.try_run(&format!("get_handle {inside}"));
            assert_error(&result, INVALID_VALUE);
            let text = result.unwrap_err().text;
            assert!(text.contains("belongs to another process"), "{text}");
        }
        importer.close(opened);
    }

    raw_and_owned_opens_are_counted_separately(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "shared");
        let handle = exporter.get_handle(address);
        let raw = importer.try_open_raw(&handle, 0).unwrap();
        let owned = importer.open(&handle);
        assert_eq!(raw, owned, "both opens return the same mapping");
        importer.run(&format!("close_raw {raw}"));
        assert_error(&importer.try_run(&format!("close_raw {raw}")), INVALID_VALUE);
        importer.assert_contains(owned, "shared");
        // Now the owned value is closed first.
        let raw = importer.try_open_raw(&handle, 0).unwrap();
        importer.close(owned);
        let owned = importer.open(&handle);
        assert_eq!(raw, owned, "the raw open has kept the mapping");
        importer.assert_contains(owned, "shared");
        importer.close(owned);
        importer.run(&format!("close_raw {raw}"));
        assert_error(&importer.try_run(&format!("close_raw {raw}")), INVALID_VALUE);
    }

    opens_of_hip_handles_are_counted_separately(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "shared");
        let handle = to_hip_handle(&exporter.get_handle(address));
        let owned = importer.open(&handle);
        let raw = importer.try_open_raw(&handle, 0).unwrap();
        importer.run(&format!("close_raw {raw}"));
        assert_error(&importer.try_run(&format!("close_raw {raw}")), INVALID_VALUE);
        importer.assert_contains(owned, "shared");
        importer.close(owned);
    }
}
