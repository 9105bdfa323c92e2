//! An owned value whose mapping was unmapped by address does not act on the successor: a new mapping at the same
//! addresses. The tests run on the simulation.

mod machine;
mod successor;

use hsa_vmm::error::{Error, Problem};
use hsa_vmm::{Access, AccessDescriptor, Allocation, Mapping, Reservation};
use machine::{Library, Machine};

/// Runs a test on every release.
fn run_on_releases(test: impl Fn(&Library)) {
    for (release, config) in machine::releases() {
        println!("{release}");
        test(&Machine::new(config));
    }
}

#[test]
fn mapping_never_acts_on_its_successor() {
    run_on_releases(successor::check_mapping);
}

#[test]
fn growable_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_growable_buffer);
}

#[test]
fn ring_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_ring_buffer);
}

#[test]
fn pausable_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_pausable_buffer);
}

#[test]
fn paged_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_paged_buffer);
}

#[test]
fn area_memory_never_acts_on_its_successor() {
    run_on_releases(successor::check_area_memory);
}

#[test]
fn reservation_never_acts_on_its_successor() {
    run_on_releases(successor::check_reservation);
}

/// Calls by address replace a mapping by a larger mapping, or free the addresses.
#[test]
fn calls_on_stale_mappings_return_not_mapped() {
    for (release, config) in machine::releases() {
        for frees in [false, true] {
            let machine = Machine::new(config.clone());
            let (granule, gpu) = (machine.granule(), machine.gpu(0));
            let size = 2 * granule;
            let reservation = Reservation::builder(size).reserve(&machine.vmm).unwrap();
            let create = || {
                let properties = machine.shareable_on(0);
                Allocation::create(&machine.vmm, granule, &properties).unwrap()
            };
            let base = reservation.address();
            let other_reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
            let mut other = other_reservation.map(0, &create()).unwrap();
            let mut stale = reservation.map(0, &create()).unwrap();
            machine.vmm.unmap(base, granule).unwrap();
            let large = machine.create(0, size);
            if frees {
                machine.vmm.address_free(base, size).unwrap();
            } else {
                machine.map(base, size, large);
            }
            let check = |call: &str, result: Result<(), Error>| {
                let problem = result.expect_err(call).problem();
                let expected = Some(Problem::NotMapped(base));
                assert_eq!(problem, expected, "{release}, frees: {frees}, {call}");
            };
            check("check_mapped", stale.check_mapped());
            check("grant", stale.grant(&[gpu], Access::Read));
            check("revoke", stale.revoke(&[gpu]));
            check("read", stale.read(0, &mut [0]));
            check("fill", stale.fill(0, 0, 4));
            check("with_access", stale.with_access(gpu, Access::Read, drop));
            check("exchange", stale.exchange(&mut other));
            check("exchange", other.exchange(&mut stale));
            check("revoke_many", Mapping::revoke_many(&[&other, &stale], &[gpu]));
            let moved = stale.relocate(&other_reservation, 0).expect_err("relocate");
            check("relocate", Err(moved.error));
            let unmapped = moved.value.unmap().expect_err("unmap");
            check("unmap", Err(unmapped.error));
            let unmapped =
                Mapping::unmap_many(vec![other, unmapped.value]).expect_err("unmap_many");
            check("unmap_many", Err(unmapped.error));
            drop(unmapped.value);
            if !frees {
                machine.vmm.unmap(base, size).unwrap();
            }
            machine.vmm.release(large).unwrap();
            drop((reservation, other_reservation));
            machine.assert_empty();
        }
    }
}

/// Lists that contain an unmapped mapping, and the mapping that is now at its address.
#[test]
fn lists_with_stale_and_new_mapping_are_rejected() {
    run_on_releases(|library| {
        let granule = library.granule();
        let reservation = Reservation::builder(granule).reserve(&library.vmm).unwrap();
        let memory = Allocation::create(&library.vmm, granule, &library.shareable_on(0)).unwrap();
        let mut stale = reservation.map(0, &memory).unwrap();
        library.vmm.unmap(stale.address(), granule).unwrap();
        let mut new = reservation.map(0, &memory).unwrap();
        let gpu = library.gpu(0);
        let check = |call: &str, result: Result<(), Error>| {
            let error = result.expect_err(call);
            assert_eq!(error.problem(), Some(Problem::NotMapped(new.address())), "{call}");
        };
        check("revoke_many", Mapping::revoke_many(&[&stale, &new], &[gpu]));
        let grants = [AccessDescriptor { agent: gpu, access: Access::Read }];
        let changes = [(&stale, &grants[..]), (&new, &grants[..])];
        check("set_access_many", Mapping::set_access_many(&changes));
        let address = new.address();
        let error = stale.exchange(&mut new).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotMapped(address)), "exchange");
        // The text does not advise to unmap or look up the mapping, as if it was this value's.
        let error = stale.read(0, &mut [0]).unwrap_err();
        assert!(error.to_string().contains("other memory may be mapped there now"), "{error}");

        // A list that contains one mapping twice is a mistake of the caller.
        let error = Mapping::revoke_many(&[&new, &new], &[gpu]).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::Overlapping));
        assert!(error.to_string().ends_with("overlaps another entry of the list"), "{error}");

        let rejected = Mapping::unmap_many(vec![stale, new]).unwrap_err();
        assert_eq!(rejected.error.problem(), Some(Problem::NotMapped(address)), "unmap_many");
        rejected.value[1].check_mapped().unwrap();
    });
}
