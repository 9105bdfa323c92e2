//! The library rejects modified and random handles, and forged handles with a wrong size. It accepts a handle with
//! another valid offset if the check value matches.

use super::*;
use crate::fixture::on_all_fixtures;

/// A generator of pseudo-random values (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self) -> [u8; IpcHandle::SIZE] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

on_all_fixtures! {
    open_rejects_any_flipped_bit(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        // The offset contains zero bits and one bits. It stays inside the memory if one of its lower 21 bits changes.
        let handle = exporter.get_handle(address + 0x5_5550);
        for bit in 0..8 * IpcHandle::SIZE {
            let mut bytes = handle.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = IpcHandle::from_bytes(&bytes);
            let result = within(3, || importer.try_open(&changed));
            assert!(result.is_err(), "bit {bit}: {result:?}");
        }
        let opened = importer.open(&handle);
        importer.close(opened);
    }

    open_rejects_any_changed_byte(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        // With another format, the handle is one of HIP's.
        for index in (0..IpcHandle::SIZE).filter(|index| !forge::FORMAT.contains(index)) {
            for change in [0x18, 0xff] {
                let mut bytes = handle.to_bytes();
                bytes[index] ^= change;
                let changed = IpcHandle::from_bytes(&bytes);
                let result = within(3, || importer.try_open(&changed));
                assert!(result.is_err(), "byte {index} changed by {change:#x}: {result:?}");
            }
        }
        let opened = importer.open(&handle);
        importer.close(opened);
    }

    open_rejects_forged_size_of_a_hip_handle(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        for size in [SIZE, SIZE + 4096, 8192, 64 << 20] {
            let address = exporter.allocate(size);
            exporter.write(address, "genuine");
            let genuine = to_hip_handle(&exporter.get_handle(address));
            // The rejected opens below must not affect this mapping.
            let opened = importer.open(&genuine);
            for forged in [8 << 20, 2 * size as u64, 1 << 40, 1 << 46, u64::MAX - 4095, u64::MAX] {
                // AMD's runtime allocates memory of less than 2 MiB in a block of 2 MiB, and an importer maps the whole
                // block. Sizes inside the block are therefore valid.
                if forged <= (size as u64).next_multiple_of(2 << 20) {
                    continue;
                }
                for offset in [0, forged - 8] {
                    let mut bytes = genuine.to_bytes();
                    bytes[forge::SIZE].copy_from_slice(&forged.to_le_bytes());
                    bytes[forge::OFFSET].copy_from_slice(&offset.to_le_bytes());
                    let handle = IpcHandle::from_bytes(&bytes);
                    let result = within(30, || importer.try_open(&handle));
                    assert!(
                        result.is_err(),
                        "size {size:#x} forged as {forged:#x}, offset {offset:#x}: {result:?}"
                    );
                    importer.assert_contains(opened, "genuine");
                }
            }
            importer.close(opened);
            let opened = importer.open(&genuine);
            importer.assert_contains(opened, "genuine");
            importer.close(opened);
            exporter.free(address);
        }
    }

    open_rejects_forged_size_with_valid_check(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let genuine = exporter.get_handle(address);
        let entry = forge::Entry::of(&genuine);
        let generation = entry.generation();
        assert_eq!(forge::with_valid_check(genuine.to_bytes(), generation), genuine);
        let forged = 4 * SIZE as u64;
        let mut bytes = genuine.to_bytes();
        bytes[forge::SIZE].copy_from_slice(&forged.to_le_bytes());
        let handle = forge::with_valid_check(bytes, generation);
        // The size in the exporter's table differs.
        assert_error(&importer.try_open(&handle), INVALID_DEVICE_POINTER);
        // The exporter can also forge its table. Then only the runtime's own size differs.
        entry.set_size(forged);
        let result = importer.try_open(&handle);
        assert_error(&result, INVALID_DEVICE_POINTER);
        entry.set_size(SIZE as u64);
        let opened = importer.open(&genuine);
        // The exporter can also forge its table after the importer has opened the memory.
        entry.set_size(forged);
        assert_error(&importer.try_open(&handle), INVALID_DEVICE_POINTER);
        entry.set_size(SIZE as u64);
        let opened_again = importer.open(&genuine);
        assert_eq!(opened_again, opened);
        importer.close(opened);
        importer.close(opened);
    }

    open_accepts_another_offset_with_valid_check(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address + 4096, "inside");
        let genuine = exporter.get_handle(address);
        let mut bytes = genuine.to_bytes();
        bytes[forge::OFFSET].copy_from_slice(&4096u64.to_le_bytes());
        let result = importer.try_open(&IpcHandle::from_bytes(&bytes));
        assert_error(&result, INVALID_DEVICE_POINTER);
        let handle = forge::with_valid_check(bytes, forge::Entry::of(&genuine).generation());
        assert_eq!(handle, exporter.get_handle(address + 4096));
        let opened = importer.open(&handle);
        importer.assert_contains(opened, "inside");
        importer.close(opened);
    }

    open_rejects_random_handles(fixture) {
        let mut importer = Setup::on(fixture).peer();
        let own_address = importer.allocate(SIZE);
        // A handle with a valid namespace and format.
        let valid = importer.get_handle(own_address).to_bytes();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..500 {
            let mut bytes = random.bytes();
            match round % 4 {
                0 => bytes[forge::PROCESS].copy_from_slice(&1i32.to_le_bytes()),
                1 => bytes[forge::PROCESS].copy_from_slice(&(std::process::id() as i32).to_le_bytes()),
                _ => (),
            }
            // The size and offset are valid, so that a check of the size alone does not suffice.
            bytes[forge::SIZE].copy_from_slice(&(SIZE as u64).to_le_bytes());
            bytes[forge::OFFSET].fill(0);
            bytes[forge::NAMESPACE].copy_from_slice(&valid[forge::NAMESPACE]);
            bytes[forge::FORMAT].copy_from_slice(&valid[forge::FORMAT]);
            let result = within(3, || importer.try_open(&IpcHandle::from_bytes(&bytes)));
            assert!(result.is_err(), "round {round} was accepted");
        }
    }

    open_rejects_forged_hip_handles_in_time(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        let mut random = Random(7);
        let genuine = to_hip_handle(&handle).to_bytes();
        // An address that the exporter does not have.
        let mut wrong_address = genuine;
        wrong_address[0] ^= 0x10;
        wrong_address[1] ^= 0x10;
        // The runtime's part of the handle is random, and names a process that does not exist. The runtime searches for
        // this process for ten seconds.
        let mut unknown_process = genuine;
        unknown_process[forge::RUNTIME].copy_from_slice(&random.bytes()[forge::RUNTIME]);
        for bytes in [wrong_address, unknown_process] {
            let result = within(30, || importer.try_open(&IpcHandle::from_bytes(&bytes)));
            assert_error(&result, INVALID_DEVICE_POINTER);
        }
        let opened = importer.open(&IpcHandle::from_bytes(&genuine));
        importer.close(opened);
    }
}
