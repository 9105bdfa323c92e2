//! Opened memory is closed by its owner: a value, or the caller by address.

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    close_by_address_spares_what_a_value_owns(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "shared");
        let handle = exporter.get(address);
        for handle in [handle, to_hip_handle(&handle)] {
            let owned = importer.open(&handle);
            for at in [owned, owned + 16, owned + SIZE - 1] {
                let refused = importer.ask(&format!("close_raw {at}"));
                assert_refused(&refused, INVALID_VALUE);
                let text = refused.unwrap_err().text;
                assert!(text.contains("OpenedMemory"), "{text}");
                importer.holds(owned, "shared");
            }
            importer.close(owned);
            assert_refused(&importer.ask(&format!("close_raw {owned}")), INVALID_VALUE);
        }
    }

    opens_by_hand_and_by_a_value_are_counted_apart(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "shared");
        let handle = exporter.get(address);
        let by_hand = importer.try_open_raw(&handle, 0).unwrap();
        let owned = importer.open(&handle);
        assert_eq!(by_hand, owned, "of one allocation there is one mapping");
        importer.ok(&format!("close_raw {by_hand}"));
        assert_refused(&importer.ask(&format!("close_raw {by_hand}")), INVALID_VALUE);
        importer.holds(owned, "shared");
        // In the other order.
        let by_hand = importer.try_open_raw(&handle, 0).unwrap();
        importer.close(owned);
        let owned = importer.open(&handle);
        assert_eq!(by_hand, owned, "it was open all the time");
        importer.holds(owned, "shared");
        importer.close(owned);
        importer.ok(&format!("close_raw {by_hand}"));
        assert_refused(&importer.ask(&format!("close_raw {by_hand}")), INVALID_VALUE);
    }

    opens_of_hips_handles_are_counted_apart(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "shared");
        let handle = to_hip_handle(&exporter.get(address));
        let owned = importer.open(&handle);
        let by_hand = importer.try_open_raw(&handle, 0).unwrap();
        importer.ok(&format!("close_raw {by_hand}"));
        assert_refused(&importer.ask(&format!("close_raw {by_hand}")), INVALID_VALUE);
        importer.holds(owned, "shared");
        importer.close(owned);
    }
}
