//! Handles of freed memory, offsets, and sizes.

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    a_handle_of_freed_memory_is_refused(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        importer.open(&handle);
        exporter.free(address);
        let refused = within(3, || importer.try_open(&handle));
        assert_refused(&refused, INVALID_DEVICE_POINTER);
        assert!(refused.unwrap_err().text.contains("freed"));
    }

    a_handle_of_freed_memory_is_refused_though_the_address_is_reused(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let (address, old) = exporter.reuse();
        exporter.write(address, "another");
        let new = exporter.get(address);
        assert_refused(&within(3, || importer.try_open(&old)), INVALID_DEVICE_POINTER);
        let opened = importer.open(&new);
        importer.holds(opened, "another");
    }

    a_handle_of_a_dead_process_is_refused(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        exporter.kill();
        assert_refused(&within(3, || importer.try_open(&handle)), INVALID_DEVICE_POINTER);
        let foreign = to_hip_handle(&handle);
        assert_refused(&within(3, || importer.try_open(&foreign)), INVALID_DEVICE_POINTER);
    }

    a_handle_of_a_process_number_that_is_in_use_again_is_refused(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut namesake, mut importer) =
            (setup.peer(), setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let generation = forge::Entry::of(&handle).generation();
        let same = namesake.allocate(SIZE);
        let other = namesake.get(same);
        exporter.kill();
        let mut bytes = handle.to_bytes();
        // Another process has the number, and its table under the same descriptor and slot.
        bytes[forge::PROCESS].copy_from_slice(&namesake.process.to_le_bytes());
        bytes[forge::PLACE].copy_from_slice(&other.to_bytes()[forge::PLACE]);
        let reused = forge::sealed(bytes, generation);
        assert_refused(&within(3, || importer.try_open(&reused)), INVALID_DEVICE_POINTER);
        // Also if the runtime's part of the handle is of that process.
        bytes[forge::RUNTIME].copy_from_slice(&other.to_bytes()[forge::RUNTIME]);
        let reused = forge::sealed(bytes, generation);
        assert_refused(&within(3, || importer.try_open(&reused)), INVALID_DEVICE_POINTER);
        importer.open(&other);
    }

    a_handle_of_hips_own_is_opened(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "plain");
        let foreign = to_hip_handle(&exporter.get(address));
        let opened = importer.open(&foreign);
        importer.holds(opened, "plain");
        importer.close(opened);
        // Once for each open, also if the runtime returns the same address again.
        let twice = [importer.open(&foreign), importer.open(&foreign)];
        for opened in twice {
            importer.close(opened);
        }
        assert_refused(&importer.ask(&format!("close_raw {}", twice[1])), INVALID_VALUE);
        exporter.free(address);
        // The runtime decides whether it can still be opened, as with HIP: ROCm 6.1 keeps it.
        if let Err(refused) = within(30, || importer.try_open(&foreign)) {
            assert_eq!(refused.hip, INVALID_DEVICE_POINTER, "{}", refused.text);
        }
    }

    the_offset_of_an_interior_address_is_honoured(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let inside = address + 0x1_2340;
        exporter.write(inside, "inside");
        let handle = exporter.get(inside);
        assert_eq!((handle.offset, handle.allocation_size), (0x1_2340, SIZE as u64));
        let opened = importer.open(&handle);
        importer.holds(opened, "inside");
        // The same memory through its beginning is the same mapping.
        let base = importer.open(&exporter.get(address));
        assert_eq!(base + 0x1_2340, opened);
        importer.close(opened);
        importer.close(base);
        assert_refused(&importer.ask(&format!("close_raw {base}")), INVALID_VALUE);
        let last = exporter.get(address + SIZE - 1);
        let opened = importer.try_open_raw(&last, 0).unwrap();
        assert_refused(&importer.ask(&format!("close_raw {}", opened + 1)), INVALID_VALUE);
        // Any address inside closes it.
        importer.ok(&format!("close_raw {}", opened - 77));
    }

    what_is_opened_reaches_from_the_offset_to_the_end(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let inside = address + 0x1_2340;
        exporter.write(address + SIZE - 4, "last");
        let opened = importer.open(&exporter.get(inside));
        let size = SIZE - 0x1_2340;
        assert_eq!(importer.ok(&format!("size {opened}")), size.to_string());
        assert!(importer.ok(&format!("read {opened} {size}")).ends_with("6c617374"));
        assert_refused(&importer.ask(&format!("read {opened} {}", size + 1)), INVALID_VALUE);
        importer.ok(&format!("fill {opened} {} {size}", 0x6464_6464));
        exporter.holds(inside - 4, "\0\0\0\0dddd");
        exporter.holds(address + SIZE - 4, "dddd");
        assert_refused(&importer.ask(&format!("fill {opened} 0 {}", size + 4)), INVALID_VALUE);
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

    neighbours_in_one_block_do_not_see_each_other(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let own: Vec<usize> = (0..4).map(|_| exporter.allocate(4096)).collect();
        for (index, &address) in own.iter().enumerate() {
            exporter.write(address, &format!("number-{index}"));
        }
        for (index, &address) in own.iter().enumerate() {
            let opened = importer.open(&exporter.get(address));
            importer.holds(opened, &format!("number-{index}"));
        }
    }
}
