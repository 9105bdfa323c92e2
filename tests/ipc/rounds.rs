//! Ten thousand rounds leave everything as it was.

use super::*;
use crate::ground::plays;

const ROUNDS: usize = 10_000;

/// Descriptors and mappings of a player.
fn state(player: &mut Player) -> (usize, usize) {
    let text = player.ok("state");
    let (descriptors, mappings) = text.split_once(' ').expect("two numbers");
    (descriptors.parse().expect("a number"), mappings.parse().expect("a number"))
}

#[track_caller]
fn assert_same(before: (usize, usize), after: (usize, usize)) {
    assert_eq!(before.0, after.0, "descriptors");
    // The allocator and the runtime's threads may take and give back a few.
    assert!(after.1 <= before.1 + 8, "{} mappings became {}", before.1, after.1);
}

plays! {
    ten_thousand_opens_leave_nothing(ground) {
        let stage = Stage::on(ground);
        let (mut exporter, mut importer) = (stage.player(), stage.player());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "kept");
        let handle = exporter.get(address);
        let rounds = |importer: &mut Player, number| {
            let hex = props::to_hex(&handle.to_bytes());
            importer.ok(&format!("rounds {hex} {number}"));
        };
        rounds(&mut importer, 10);
        let before = (state(&mut exporter), state(&mut importer));
        rounds(&mut importer, ROUNDS);
        assert_same(before.0, state(&mut exporter));
        let mut after = state(&mut importer);
        if ground.leaves_a_socket() {
            assert_eq!(after.0, before.1.0 + ROUNDS, "ROCm 6.1 leaves one socket for each attach");
            after.0 -= ROUNDS;
        }
        assert_same(before.1, after);
        exporter.holds(address, "kept");
    }

    /// Two mebibytes each, on GPUs of one gibibyte: what is not given back is missed.
    ten_thousand_exports_leave_nothing(ground) {
        let mut exporter = Stage::on(ground).player();
        exporter.ok("new_rounds 10");
        let before = state(&mut exporter);
        let rounds = exporter.ask(&format!("new_rounds {ROUNDS}"));
        if ground.keeps_what_was_exported() {
            assert_refused(&rounds, OUT_OF_MEMORY);
        } else {
            rounds.unwrap();
            assert_same(before, state(&mut exporter));
        }
    }

    ten_thousand_handles_of_one_allocation_leave_nothing(ground) {
        let mut exporter = Stage::on(ground).player();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let before = state(&mut exporter);
        exporter.ok(&format!("get_rounds {address} {ROUNDS}"));
        assert_same(before, state(&mut exporter));
        assert_eq!(exporter.get(address), handle);
    }
}
