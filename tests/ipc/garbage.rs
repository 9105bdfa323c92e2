//! Handles that were changed, made up, or never made.

use super::*;
use crate::ground::plays;

/// Numbers that look random and are the same each time.
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

plays! {
    a_handle_with_any_byte_changed_is_refused(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        for index in 0..IpcHandle::SIZE {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = handle.to_bytes();
                bytes[index] ^= change;
                let changed = IpcHandle::from_bytes(&bytes);
                let answer = within(3, || importer.try_open(&changed));
                if (40..48).contains(&index) && changed.offset() < SIZE as u64 {
                    // Another address of the same memory, which is as good.
                    importer.close(answer.unwrap());
                } else {
                    assert!(answer.is_err(), "byte {index} changed by {change:#x}");
                }
            }
        }
        let opened = importer.open(&handle);
        importer.close(opened);
    }

    made_up_handles_are_refused(ground) {
        let mut importer = Stage::on(ground).player();
        let own = importer.allocate(SIZE);
        let namespace = importer.get(own).to_bytes();
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        for round in 0..500 {
            let mut bytes = numbers.bytes();
            match round % 4 {
                0 => bytes[48..52].copy_from_slice(&1i32.to_le_bytes()),
                1 => bytes[48..52].copy_from_slice(&(std::process::id() as i32).to_le_bytes()),
                _ => (),
            }
            // So that more than the size is looked at.
            bytes[32..40].copy_from_slice(&(SIZE as u64).to_le_bytes());
            bytes[40..48].fill(0);
            bytes[57..59].copy_from_slice(&namespace[57..59]);
            let answer = within(3, || importer.try_open(&IpcHandle::from_bytes(&bytes)));
            assert!(answer.is_err(), "round {round}");
        }
    }

    made_up_handles_of_hips_are_refused_in_time(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let mut numbers = Numbers(7);
        let foreign = as_hips(&handle).to_bytes();
        // An address that the exporter does not have.
        let mut elsewhere = foreign;
        elsewhere[0] ^= 0x10;
        elsewhere[1] ^= 0x10;
        // The runtime's part made up altogether: it looks for that process for ten seconds.
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
