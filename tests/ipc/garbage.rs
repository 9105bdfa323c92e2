//! Modified, forged and random handles.

use super::*;
use crate::fixture::on_all_fixtures;

/// Pseudorandom numbers with a fixed seed.
struct Numbers(u64);

impl Numbers {
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
        // An offset with zeros and ones, which is valid also with any bit changed.
        let handle = exporter.get(address + 0x5_5550);
        for bit in 0..8 * IpcHandle::SIZE {
            let mut bytes = handle.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = IpcHandle::from_bytes(&bytes);
            let answer = within(3, || importer.try_open(&changed));
            assert!(answer.is_err(), "bit {bit}: {answer:?}");
        }
        let opened = importer.open(&handle);
        importer.close(opened);
    }

    open_rejects_any_changed_byte(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        for index in 0..IpcHandle::SIZE {
            for change in [0x18, 0xff] {
                let mut bytes = handle.to_bytes();
                bytes[index] ^= change;
                let changed = IpcHandle::from_bytes(&bytes);
                let answer = within(3, || importer.try_open(&changed));
                assert!(answer.is_err(), "byte {index} changed by {change:#x}: {answer:?}");
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
            let genuine = to_hip_handle(&exporter.get(address));
            // The memory that is open stays open.
            let opened = importer.open(&genuine);
            for forged in [8 << 20, 2 * size as u64, 1 << 40, 1 << 46, u64::MAX - 4095, u64::MAX] {
                // Memory of less than 2 MiB is part of a block of AMD's runtime, which maps the whole block.
                if forged <= (size as u64).next_multiple_of(2 << 20) {
                    continue;
                }
                for offset in [0, forged - 8] {
                    let mut bytes = genuine.to_bytes();
                    bytes[forge::SIZE].copy_from_slice(&forged.to_le_bytes());
                    bytes[forge::OFFSET].copy_from_slice(&offset.to_le_bytes());
                    let handle = IpcHandle::from_bytes(&bytes);
                    let answer = within(30, || importer.try_open(&handle));
                    assert!(answer.is_err(), "{size:#x} as {forged:#x} at {offset:#x}: {answer:?}");
                    importer.holds(opened, "genuine");
                }
            }
            importer.close(opened);
            let opened = importer.open(&genuine);
            importer.holds(opened, "genuine");
            importer.close(opened);
            exporter.free(address);
        }
    }

    open_rejects_forged_size_with_valid_check(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let genuine = exporter.get(address);
        let entry = forge::Entry::of(&genuine);
        let generation = entry.generation();
        assert_eq!(forge::sealed(genuine.to_bytes(), generation), genuine);
        let forged = 4 * SIZE as u64;
        let mut bytes = genuine.to_bytes();
        bytes[forge::SIZE].copy_from_slice(&forged.to_le_bytes());
        let handle = forge::sealed(bytes, generation);
        // The exporter's table differs.
        assert_refused(&importer.try_open(&handle), INVALID_DEVICE_POINTER);
        // The exporter forges its table: only the runtime can detect that.
        entry.set_size(forged);
        let refused = importer.try_open(&handle);
        assert_refused(&refused, INVALID_DEVICE_POINTER);
        entry.set_size(SIZE as u64);
        let opened = importer.open(&genuine);
        importer.close(opened);
    }

    open_accepts_another_offset_with_valid_check(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address + 4096, "inside");
        let genuine = exporter.get(address);
        let mut bytes = genuine.to_bytes();
        bytes[forge::OFFSET].copy_from_slice(&4096u64.to_le_bytes());
        let refused = importer.try_open(&IpcHandle::from_bytes(&bytes));
        assert_refused(&refused, INVALID_DEVICE_POINTER);
        let handle = forge::sealed(bytes, forge::Entry::of(&genuine).generation());
        assert_eq!(handle, exporter.get(address + 4096));
        let opened = importer.open(&handle);
        importer.holds(opened, "inside");
        importer.close(opened);
    }

    random_handles_are_rejected(fixture) {
        let mut importer = Setup::on(fixture).peer();
        let own = importer.allocate(SIZE);
        // Its namespace and format.
        let namespace = importer.get(own).to_bytes();
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        for round in 0..500 {
            let mut bytes = numbers.bytes();
            match round % 4 {
                0 => bytes[48..52].copy_from_slice(&1i32.to_le_bytes()),
                1 => bytes[48..52].copy_from_slice(&(std::process::id() as i32).to_le_bytes()),
                _ => (),
            }
            // So that not only the size differs.
            bytes[32..40].copy_from_slice(&(SIZE as u64).to_le_bytes());
            bytes[40..48].fill(0);
            bytes[57..60].copy_from_slice(&namespace[57..60]);
            let answer = within(3, || importer.try_open(&IpcHandle::from_bytes(&bytes)));
            assert!(answer.is_err(), "round {round}");
        }
    }

    random_hip_handles_are_rejected_in_time(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let mut numbers = Numbers(7);
        let foreign = to_hip_handle(&handle).to_bytes();
        // An address that the exporter does not have.
        let mut elsewhere = foreign;
        elsewhere[0] ^= 0x10;
        elsewhere[1] ^= 0x10;
        // The runtime's part is random: the runtime looks for that process for ten seconds.
        let mut nonsense = foreign;
        nonsense[..32].copy_from_slice(&numbers.bytes()[..32]);
        for bytes in [elsewhere, nonsense] {
            let answer = within(30, || importer.try_open(&IpcHandle::from_bytes(&bytes)));
            assert_refused(&answer, INVALID_DEVICE_POINTER);
        }
        let opened = importer.open(&IpcHandle::from_bytes(&foreign));
        importer.close(opened);
    }
}
