//! Parents, children and grandchildren share memory by IPC. Each process has a runtime of its own, and the processes
//! end in different orders.

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    parent_child_and_grandchild_share(fixture) {
        let setup = Setup::on(fixture);
        let mut parent = setup.peer_without_runtime();
        let mut child = setup.child_of(&mut parent);
        let mut grandchild = setup.child_of(&mut child);
        for peer in [&mut parent, &mut child, &mut grandchild] {
            peer.run("open_runtime 0");
        }
        let address = parent.allocate(SIZE);
        parent.write(address, "one");
        let handle = parent.get_handle(address);
        let (in_child, in_grandchild) = (child.open(&handle), grandchild.open(&handle));
        child.assert_contains(in_child, "one");
        child.write(in_child, "two");
        grandchild.assert_contains(in_grandchild, "two");
        grandchild.write(in_grandchild, "six");
        parent.assert_contains(address, "six");
        // In the other direction, the grandchild exports its memory to the parent and the child.
        let exported = grandchild.allocate(SIZE);
        grandchild.write(exported, "upwards");
        let handle = grandchild.get_handle(exported);
        let (in_parent, in_child) = (parent.open(&handle), child.open(&handle));
        parent.assert_contains(in_parent, "upwards");
        child.write(in_child, "UPWARDS");
        parent.assert_contains(in_parent, "UPWARDS");
    }

    three_processes_share_memory_in_a_ring(fixture) {
        let setup = Setup::on(fixture);
        let mut peers = [setup.peer(), setup.peer(), setup.peer()];
        let own_addresses = peers.each_mut().map(|peer| peer.allocate(SIZE));
        let handles = [0, 1, 2].map(|index| peers[index].get_handle(own_addresses[index]));
        let opened_addresses = [0, 1, 2].map(|index| peers[index].open(&handles[(index + 1) % 3]));
        for index in 0..3 {
            peers[index].write(opened_addresses[index], &format!("from-{index}"));
        }
        for index in 0..3 {
            peers[index].assert_contains(own_addresses[index], &format!("from-{}", (index + 2) % 3));
        }
    }

    opened_memory_outlives_the_exporter(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "left");
        let handle = exporter.get_handle(address);
        let opened = importer.open(&handle);
        exporter.kill();
        importer.assert_contains(opened, "left");
        importer.write(opened, "mine");
        importer.assert_contains(opened, "mine");
        let result = within(10, || importer.try_open(&handle));
        assert_error(&result, INVALID_DEVICE_POINTER);
        importer.close(opened);
    }

    opened_memory_outlives_free(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "left");
        let opened = importer.open(&exporter.get_handle(address));
        exporter.free(address);
        importer.assert_contains(opened, "left");
        let unrelated = exporter.allocate(SIZE);
        exporter.write(unrelated, "unrelated");
        importer.assert_contains(opened, "left");
        importer.close(opened);
    }

    exporter_survives_killed_importers(fixture) {
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        for round in 0..3 {
            let mut importer = setup.peer();
            let opened = importer.open(&handle);
            importer.write(opened, &format!("round-{round}"));
            importer.kill();
            exporter.assert_contains(address, &format!("round-{round}"));
        }
        within(5, || exporter.free(address));
    }

    threads_open_memory_of_several_exporters(fixture) {
        let setup = Setup::on(fixture);
        let mut exporters = [setup.peer(), setup.peer()];
        let mut importer = setup.peer();
        let handles = exporters.each_mut().map(|exporter| {
            let address = exporter.allocate(SIZE);
            executor::to_hex(&exporter.get_handle(address).to_bytes())
        });
        importer.run(&format!("open_in_threads {} {} 200", handles[0], handles[1]));
    }

    ipc_fails_in_a_forked_child(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let (address, own_address) = (exporter.allocate(SIZE), importer.allocate(SIZE));
        exporter.write(address, "kept");
        let handle = exporter.get_handle(address);
        importer.get_handle(own_address);
        let opened = importer.open(&handle);
        let hex = executor::to_hex(&handle.to_bytes());
        importer.run(&format!("call_in_child {own_address} {hex}"));
        // The forked child has dropped its copies of the importer's values. The importer's own values are unaffected.
        importer.assert_contains(opened, "kept");
        importer.write(own_address, "own");
        importer.assert_contains(own_address, "own");
    }
}
