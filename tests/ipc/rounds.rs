//! Many exports and opens leak nothing, except what a known defect of AMD's runtime leaks. Each test repeats a call ten
//! thousand times with `HSA_VMM_LONG=1`, otherwise a thousand times.

use super::*;
use crate::fixture::on_all_fixtures;

fn rounds() -> usize {
    hsa_rocr::test::count_to_run(10_000)
}

/// Returns the numbers of descriptors and mappings of a peer.
fn resources(peer: &mut Peer) -> (usize, usize) {
    let text = peer.run("count_resources");
    let (descriptors, mappings) = text.split_once(' ').expect("two numbers");
    (descriptors.parse().expect("a number"), mappings.parse().expect("a number"))
}

/// Waits 200 ms, and then does the same as [`resources`]. During the wait, the server of AMD's runtime closes the last
/// descriptor that the server has sent.
fn resources_after_pause(peer: &mut Peer) -> (usize, usize) {
    std::thread::sleep(Duration::from_millis(200));
    resources(peer)
}

/// Fails unless a peer has leaked exactly this number of descriptors, and no mappings.
#[track_caller]
fn assert_leaked(before: (usize, usize), peer: &mut Peer, leaked: usize) {
    let begun = Instant::now();
    let mut after = resources(peer);
    while after.0 != before.0 + leaked && begun.elapsed() < Duration::from_secs(10) {
        after = resources_after_pause(peer);
    }
    assert_eq!(after.0, before.0 + leaked, "descriptors");
    // The allocator and the runtime's threads may add a few mappings.
    assert!(after.1 <= before.1 + 8, "{} mappings became {}", before.1, after.1);
}

on_all_fixtures! {
    many_opens_leak_nothing(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "kept");
        let handle = exporter.get_handle(address);
        let open_and_close = |importer: &mut Peer, number| {
            let hex = executor::to_hex(&handle.to_bytes());
            importer.run(&format!("open_repeatedly {hex} {number}"));
        };
        open_and_close(&mut importer, 10);
        let before = (resources_after_pause(&mut exporter), resources(&mut importer));
        open_and_close(&mut importer, rounds());
        assert_leaked(before.0, &mut exporter, 0);
        // ROCm 6.1 leaks one socket for each attach.
        let sockets = if fixture.leaks_sockets() { rounds() } else { 0 };
        assert_leaked(before.1, &mut importer, sockets);
        exporter.assert_contains(address, "kept");
    }

    /// Each round exports 2 MiB of a GPU with 1 GiB, so a leak exhausts the memory.
    many_exports_leak_nothing(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        exporter.run("export_repeatedly 10");
        let before = resources(&mut exporter);
        let result = exporter.try_run(&format!("export_repeatedly {}", rounds()));
        if fixture.leaks_exported_memory() {
            assert_error(&result, OUT_OF_MEMORY);
        } else {
            result.unwrap();
            assert_leaked(before, &mut exporter, 0);
        }
    }

    repeated_exports_leak_nothing(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        let before = resources(&mut exporter);
        exporter.run(&format!("get_handle_repeatedly {address} {}", rounds()));
        assert_leaked(before, &mut exporter, 0);
        assert_eq!(exporter.get_handle(address), handle);
    }
}
