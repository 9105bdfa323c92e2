//! Parents, children and grandchildren, each with a runtime of its own, that end in different orders.

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    parent_child_and_grandchild_share(fixture) {
        let setup = Setup::on(fixture);
        let mut parent = setup.spare_peer();
        let mut child = setup.child_of(&mut parent);
        let mut grandchild = setup.child_of(&mut child);
        for peer in [&mut parent, &mut child, &mut grandchild] {
            peer.ok("runtime 0");
        }
        let address = parent.allocate(SIZE);
        parent.write(address, "one");
        let handle = parent.get(address);
        let (in_child, in_grandchild) = (child.open(&handle), grandchild.open(&handle));
        child.holds(in_child, "one");
        child.write(in_child, "two");
        grandchild.holds(in_grandchild, "two");
        grandchild.write(in_grandchild, "six");
        parent.holds(address, "six");
        // The grandchild's own memory, sent to its parents.
        let upwards = grandchild.allocate(SIZE);
        grandchild.write(upwards, "upwards");
        let handle = grandchild.get(upwards);
        let (in_parent, in_child) = (parent.open(&handle), child.open(&handle));
        parent.holds(in_parent, "upwards");
        child.write(in_child, "UPWARDS");
        parent.holds(in_parent, "UPWARDS");
    }

    three_processes_share_a_ring(fixture) {
        let setup = Setup::on(fixture);
        let mut peers = [setup.peer(), setup.peer(), setup.peer()];
        let own = peers.each_mut().map(|peer| peer.allocate(SIZE));
        let handles = [0, 1, 2].map(|index| peers[index].get(own[index]));
        let next = [0, 1, 2].map(|index| peers[index].open(&handles[(index + 1) % 3]));
        for index in 0..3 {
            peers[index].write(next[index], &format!("from-{index}"));
        }
        for index in 0..3 {
            peers[index].holds(own[index], &format!("from-{}", (index + 2) % 3));
        }
    }

    what_is_open_outlives_the_exporter(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "left");
        let handle = exporter.get(address);
        let opened = importer.open(&handle);
        exporter.kill();
        importer.holds(opened, "left");
        importer.write(opened, "mine");
        importer.holds(opened, "mine");
        let again = within(10, || importer.try_open(&handle));
        assert_refused(&again, INVALID_DEVICE_POINTER);
        importer.close(opened);
    }

    what_is_open_outlives_freeing(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "left");
        let opened = importer.open(&exporter.get(address));
        exporter.free(address);
        importer.holds(opened, "left");
        let other = exporter.allocate(SIZE);
        exporter.write(other, "none-of-his");
        importer.holds(opened, "left");
        importer.close(opened);
    }

    the_exporter_goes_on_when_the_importer_ends(fixture) {
        let setup = Setup::on(fixture);
        let mut exporter = setup.peer();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        for round in 0..3 {
            let mut importer = setup.peer();
            let opened = importer.open(&handle);
            importer.write(opened, &format!("round-{round}"));
            importer.kill();
            exporter.holds(address, &format!("round-{round}"));
        }
        within(5, || exporter.free(address));
    }

    threads_open_and_close_what_several_have_exported(fixture) {
        let setup = Setup::on(fixture);
        let mut exporters = [setup.peer(), setup.peer()];
        let mut importer = setup.peer();
        let handles = exporters.each_mut().map(|exporter| {
            let address = exporter.allocate(SIZE);
            executor::to_hex(&exporter.get(address).to_bytes())
        });
        importer.ok(&format!("thread_rounds {} {} 200", handles[0], handles[1]));
    }

    a_forked_child_has_no_ipc(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let (address, own) = (exporter.allocate(SIZE), importer.allocate(SIZE));
        exporter.write(address, "kept");
        let handle = exporter.get(address);
        importer.get(own);
        let opened = importer.open(&handle);
        let hex = executor::to_hex(&handle.to_bytes());
        importer.ok(&format!("forked {own} {hex}"));
        // The values that the child dropped did not affect the parent.
        importer.holds(opened, "kept");
        importer.write(own, "own");
        importer.holds(own, "own");
    }
}
