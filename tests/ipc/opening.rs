//! Opening a handle returns the exported bytes at the right offset, with the right size. The library rejects its own
//! handles of freed memory. For HIP's handles of freed memory, the runtime decides.

use super::*;
use crate::executor::to_hex;
use crate::fixture::on_all_fixtures;

/// The offset of an address inside an allocation.
const INTERIOR_OFFSET: usize = 0x1_2340;

on_all_fixtures! {
    open_rejects_handle_of_freed_memory(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        importer.open(&handle);
        exporter.free(address);
        let result = within(3, || importer.try_open(&handle));
        assert_error(&result, INVALID_DEVICE_POINTER);
        assert!(result.unwrap_err().text.contains("freed"));
    }

    open_rejects_old_handle_of_reused_address(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let (address, old) = exporter.reuse_address();
        exporter.write(address, "another");
        let new_handle = exporter.get_handle(address);
        assert_error(&within(3, || importer.try_open(&old)), INVALID_DEVICE_POINTER);
        let opened = importer.open(&new_handle);
        importer.assert_contains(opened, "another");
    }

    open_rejects_handle_of_dead_process(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        exporter.kill();
        assert_error(&within(3, || importer.try_open(&handle)), INVALID_DEVICE_POINTER);
        let hip_handle = to_hip_handle(&handle);
        assert_error(&within(3, || importer.try_open(&hip_handle)), INVALID_DEVICE_POINTER);
    }

    open_rejects_handle_of_reused_process_id(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut other, mut importer) =
            (setup.peer(), setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        let generation = forge::Entry::of(&handle).generation();
        let others_address = other.allocate(SIZE);
        let others_handle = other.get_handle(others_address);
        exporter.kill();
        let mut bytes = handle.to_bytes();
        // A test cannot choose a process ID. The test therefore writes the process ID and slot of a
        // living peer into the dead exporter's handle.
        bytes[forge::PROCESS].copy_from_slice(&other.process.to_le_bytes());
        let others_bytes = others_handle.to_bytes();
        bytes[forge::SLOT].copy_from_slice(&others_bytes[forge::SLOT]);
        let reused = forge::with_valid_check(bytes, generation);
        assert_error(&within(3, || importer.try_open(&reused)), INVALID_DEVICE_POINTER);
        // The library also rejects the handle if it contains the living peer's runtime handle.
        bytes[forge::RUNTIME].copy_from_slice(&others_bytes[forge::RUNTIME]);
        let reused = forge::with_valid_check(bytes, generation);
        assert_error(&within(3, || importer.try_open(&reused)), INVALID_DEVICE_POINTER);
        importer.open(&others_handle);
    }

    open_accepts_hip_handles(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "plain");
        let hip_handle = to_hip_handle(&exporter.get_handle(address));
        let opened = importer.open(&hip_handle);
        importer.assert_contains(opened, "plain");
        importer.close(opened);
        // Each open needs one close, even if the runtime returns the same address twice.
        let twice = [importer.open(&hip_handle), importer.open(&hip_handle)];
        for opened in twice {
            importer.close(opened);
        }
        assert_error(&importer.try_run(&format!("close_raw {}", twice[1])), INVALID_VALUE);
        exporter.free(address);
        // As in HIP, the runtime decides whether freed memory can still be opened. ROCm 6.1 still opens the memory.
        if let Err(error) = within(30, || importer.try_open(&hip_handle)) {
            assert_eq!(error.hip, INVALID_DEVICE_POINTER, "{}", error.text);
        }
    }

    open_returns_the_exported_interior_address(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let inside = address + INTERIOR_OFFSET;
        exporter.write(inside, "inside");
        let handle = exporter.get_handle(inside);
        assert_eq!((handle.offset, handle.allocation_size), (INTERIOR_OFFSET as u64, SIZE as u64));
        let opened = importer.open(&handle);
        importer.assert_contains(opened, "inside");
        // A handle of the first address opens the same mapping.
        let base = importer.open(&exporter.get_handle(address));
        assert_eq!(base + INTERIOR_OFFSET, opened);
        importer.close(opened);
        importer.close(base);
        assert_error(&importer.try_run(&format!("close_raw {base}")), INVALID_VALUE);
        let last = exporter.get_handle(address + SIZE - 1);
        let opened = importer.try_open_raw(&last, 0).unwrap();
        assert_error(&importer.try_run(&format!("close_raw {}", opened + 1)), INVALID_VALUE);
        // Any address of the mapped allocation closes the memory, even an address before the opened address.
        importer.run(&format!("close_raw {}", opened - 77));
    }

    opened_memory_extends_from_offset_to_end(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let inside = address + INTERIOR_OFFSET;
        exporter.write(address + SIZE - 4, "last");
        let opened = importer.open(&exporter.get_handle(inside));
        let size = SIZE - INTERIOR_OFFSET;
        assert_eq!(importer.run(&format!("get_size {opened}")), size.to_string());
        assert!(importer.run(&format!("read {opened} {size}")).ends_with(&to_hex(b"last")));
        assert_error(&importer.try_run(&format!("read {opened} {}", size + 1)), INVALID_VALUE);
        importer.run(&format!("fill {opened} {} {size}", 0x6464_6464));
        exporter.assert_contains(inside - 4, "\0\0\0\0dddd");
        exporter.assert_contains(address + SIZE - 4, "dddd");
        assert_error(&importer.try_run(&format!("fill {opened} 0 {}", size + 4)), INVALID_VALUE);
    }

    memory_of_any_size_is_shared(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        for size in [4096, 100, 8192, 65536, SIZE, SIZE + 4096, 3 << 20] {
            let address = exporter.allocate(size);
            assert_shared(&mut exporter, address, &mut importer);
            exporter.free(address);
        }
    }

    small_allocations_are_opened_separately(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let addresses: Vec<usize> = (0..4).map(|_| exporter.allocate(4096)).collect();
        for (index, &address) in addresses.iter().enumerate() {
            exporter.write(address, &format!("number-{index}"));
        }
        for (index, &address) in addresses.iter().enumerate() {
            let opened = importer.open(&exporter.get_handle(address));
            importer.assert_contains(opened, &format!("number-{index}"));
        }
    }
}
