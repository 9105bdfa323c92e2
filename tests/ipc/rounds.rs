//! Many rounds leak nothing: ten thousand with `HSA_VMM_LONG=1`, by default a thousand.

use super::*;
use crate::fixture::on_all_fixtures;

/// Returns the number of rounds.
fn rounds() -> usize {
    hsa_rocr::test::share(10_000)
}

/// Returns the numbers of descriptors and mappings of a peer.
fn state(peer: &mut Peer) -> (usize, usize) {
    let text = peer.ok("state");
    let (descriptors, mappings) = text.split_once(' ').expect("two numbers");
    (descriptors.parse().expect("a number"), mappings.parse().expect("a number"))
}

/// Returns the same, after the server of AMD's runtime has closed the last descriptor that it sent.
fn state_at_rest(peer: &mut Peer) -> (usize, usize) {
    std::thread::sleep(Duration::from_millis(200));
    state(peer)
}

/// Fails unless a peer has as many descriptors and mappings as before, and `more` descriptors.
#[track_caller]
fn assert_same(before: (usize, usize), peer: &mut Peer, more: usize) {
    let begun = Instant::now();
    let mut after = state(peer);
    while after.0 != before.0 + more && begun.elapsed() < Duration::from_secs(10) {
        after = state_at_rest(peer);
    }
    assert_eq!(after.0, before.0 + more, "descriptors");
    // The allocator and the runtime's threads may map and unmap a few.
    assert!(after.1 <= before.1 + 8, "{} mappings became {}", before.1, after.1);
}

on_all_fixtures! {
    many_opens_leave_nothing(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "kept");
        let handle = exporter.get(address);
        let run = |importer: &mut Peer, number| {
            let hex = executor::to_hex(&handle.to_bytes());
            importer.ok(&format!("rounds {hex} {number}"));
        };
        run(&mut importer, 10);
        let before = (state_at_rest(&mut exporter), state(&mut importer));
        run(&mut importer, rounds());
        assert_same(before.0, &mut exporter, 0);
        // ROCm 6.1 leaves one socket for each attach.
        let left = if fixture.leaves_a_socket() { rounds() } else { 0 };
        assert_same(before.1, &mut importer, left);
        exporter.holds(address, "kept");
    }

    /// Two mebibytes each, on GPUs of one gibibyte: a leak exhausts the memory.
    many_exports_leave_nothing(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        exporter.ok("new_rounds 10");
        let before = state(&mut exporter);
        let rounds = exporter.ask(&format!("new_rounds {}", rounds()));
        if fixture.keeps_what_was_exported() {
            assert_refused(&rounds, OUT_OF_MEMORY);
        } else {
            rounds.unwrap();
            assert_same(before, &mut exporter, 0);
        }
    }

    many_handles_of_one_allocation_leave_nothing(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        let before = state(&mut exporter);
        exporter.ok(&format!("get_rounds {address} {}", rounds()));
        assert_same(before, &mut exporter, 0);
        assert_eq!(exporter.get(address), handle);
    }
}
