//! Owned values can be dropped in any order. Each value keeps the values alive that it depends on.

mod machine;

use hsa_vmm::error::Rejected;
use hsa_vmm::error::{Argument, Feature, Operation, Problem};
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan, PageTableUpdates};
use hsa_vmm::vmm::{MapRequest, VmmOptions};
use hsa_vmm::{Access, Address, Allocation, ErrorKind, Mapping, Reservation, Vmm};
use machine::drops::{drop_in_order, orders};
use machine::{Library, Machine, access, assert_idle, at};

fn machine() -> Machine {
    Machine::new(Config::mi300x(2))
}

fn new_reservation(machine: &Machine, granules: usize) -> Reservation {
    Reservation::builder(granules * machine.granule()).reserve(&machine.vmm).unwrap()
}

fn new_allocation(machine: &Machine) -> Allocation {
    Allocation::create(&machine.vmm, machine.granule(), &machine.shareable_on(0)).unwrap()
}

#[test]
fn values_drop_in_any_order() {
    for (release, config) in machine::releases() {
        for order in orders() {
            let Machine { simulation, library } = Machine::new(config.clone());
            drop_in_order(order, library, simulation.config().granule as usize, release);
            assert_idle(&simulation);
            assert_eq!(simulation.calls("hsa_shut_down"), 1, "{release}, {order:?}");
        }
    }
}

#[test]
fn clones_keep_values_alive() {
    let machine = machine();
    let granule = machine.granule();
    let (reservation, memory) = (new_reservation(&machine, 1), new_allocation(&machine));
    let (reservation_clone, memory_clone) = (reservation.clone(), memory.clone());
    drop((reservation, memory));
    let mapping = reservation_clone.map(0, &memory_clone).unwrap();
    assert_eq!(mapping.size(), granule);
    assert_eq!(mapping.reservation().address(), mapping.address());
    assert_eq!(mapping.allocation().handle(), memory_clone.handle());
    drop((reservation_clone, memory_clone));
    mapping.grant(&[machine.gpu(0)], Access::ReadWrite).unwrap();
    drop(mapping);
    machine.assert_empty();
}

#[test]
fn reservation_with_clones_is_not_freed() {
    let machine = machine();
    let first = new_reservation(&machine, 1);
    let second = first.clone();
    let Rejected { value: first, error } = first.free().expect_err("there is a clone");
    assert_eq!(error.argument(), Some(Argument::Address), "{error}");
    assert_eq!(machine.vmm.usage().reservations, 1);
    drop(first);
    second.free().expect("there is no other clone");
    machine.assert_empty();
}

#[test]
fn free_of_used_reservation_returns_it() {
    let machine = machine();
    let reservation = new_reservation(&machine, 2);
    let mapping = reservation.map(0, &new_allocation(&machine)).unwrap();
    let Rejected { value: reservation, error } =
        reservation.free().expect_err("something is mapped");
    assert_eq!(error.problem(), Some(Problem::StillMapped(1)));
    let second = reservation.map(machine.granule(), mapping.allocation()).unwrap();
    drop((mapping, second));
    reservation.free().expect("nothing is mapped");
    machine.assert_empty();
}

#[test]
fn failed_free_returns_the_reservation() {
    let machine = machine();
    let reservation = new_reservation(&machine, 2);
    let faults = FaultPlan::none().fail("hsa_amd_vmem_address_free", 1, HSA_STATUS_ERROR);
    machine.simulation.set_faults(faults);
    let Rejected { value: reservation, error } =
        reservation.free().expect_err("the runtime's call fails");
    assert!(matches!(error.kind(), ErrorKind::Runtime { .. }), "{error}");
    drop(reservation);
    machine.assert_empty();
}

#[test]
fn failed_unmap_returns_the_mapping() {
    let machine = machine();
    let mapping = new_reservation(&machine, 2).map(0, &new_allocation(&machine)).unwrap();
    mapping.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    mapping.write(0, b"kept").unwrap();
    machine.simulation.set_faults(FaultPlan::none().fail(
        "hsa_amd_vmem_unmap",
        1,
        HSA_STATUS_ERROR,
    ));
    let Rejected { value: mapping, error } = mapping.unmap().expect_err("the runtime's call fails");
    assert!(matches!(error.kind(), ErrorKind::Runtime { .. }), "{error}");
    let mut bytes = [0; 4];
    mapping.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    mapping.unmap().expect("the next call succeeds");
    machine.assert_empty();
}

#[test]
fn stale_mapping_does_not_unmap_its_successor() {
    let machine = machine();
    let reservation = new_reservation(&machine, 1);
    let stale = reservation.map(0, &new_allocation(&machine)).unwrap();
    let address = stale.address();
    machine.vmm.unmap(address, machine.granule()).unwrap();
    let successor = machine.create(1, machine.granule());
    machine.map(address, machine.granule(), successor);
    let Rejected { value: stale, error } =
        stale.unmap().expect_err("another owner has mapped the addresses");
    assert_eq!(error.problem(), Some(Problem::NotMapped(address)));
    drop(stale);
    assert_eq!(machine.vmm.usage().mappings, 1, "the other owner's mapping remains");
    machine.vmm.unmap(address, machine.granule()).unwrap();
    machine.vmm.release(successor).unwrap();
    drop(reservation);
    machine.assert_empty();
}

#[test]
fn stale_reservation_does_not_free_its_successor() {
    let machine = machine();
    let granule = machine.granule();
    let memory = new_allocation(&machine);
    // Retries if another thread takes the addresses.
    for _ in 0..1000 {
        let stale = new_reservation(&machine, 1);
        let address = stale.address();
        machine.vmm.address_free(address, granule).unwrap();
        let successor = Reservation::builder(granule).exactly_at(address).reserve(&machine.vmm);
        let Ok(successor) = successor else { continue };
        let error = stale.map(0, &memory).expect_err("the addresses belong to another owner");
        assert_eq!(error.problem(), Some(Problem::NotReserved));
        let Rejected { value: stale, error } =
            stale.free().expect_err("the addresses belong to another owner");
        assert_eq!(error.problem(), Some(Problem::NotAReservation));
        drop(stale);
        assert_eq!(machine.vmm.reservations(), [(address, granule)]);
        drop((successor, memory));
        return machine.assert_empty();
    }
    panic!("the freed addresses were taken each time");
}

#[test]
fn drop_ignores_mapping_unmapped_by_address() {
    let machine = machine();
    let mapping = new_reservation(&machine, 1).map(0, &new_allocation(&machine)).unwrap();
    machine.vmm.unmap(mapping.address(), mapping.size()).unwrap();
    assert!(mapping.read(0, &mut [0; 1]).is_err());
    assert!(mapping.access(machine.gpu(0)).is_err());
    drop(mapping);
    machine.assert_empty();
}

#[test]
fn forgotten_values_are_freed_with_the_vmm() {
    for (release, config) in machine::releases() {
        let Machine { simulation, library: Library { runtime, vmm } } = Machine::new(config);
        let granule = simulation.config().granule as usize;
        let gpu = runtime.gpus().next().unwrap().id();
        let base = vmm.address_reserve(4 * granule, 0, None).unwrap();
        let properties = hsa_vmm::AllocationProperties::on(gpu);
        let handle = vmm.create(granule, &properties).unwrap();
        let released = vmm.create(granule, &properties).unwrap();
        vmm.map(base, granule, 0, handle).unwrap();
        vmm.map(at(base, granule), granule, 0, released).unwrap();
        let cpu = [access(runtime.host().id(), Access::ReadWrite)];
        vmm.set_access(base, 2 * granule, &cpu).unwrap();
        vmm.release(released).unwrap();
        vmm.retain_allocation_handle(base).unwrap();
        let clone: Vmm = vmm.clone();
        drop((vmm, runtime));
        assert_eq!(clone.usage().mappings, 2, "{release}");
        drop(clone);
        assert_idle(&simulation);
    }
}

#[test]
fn forgotten_values_can_be_freed_by_address() {
    let machine = machine();
    let mapping = new_reservation(&machine, 1).map(0, &new_allocation(&machine)).unwrap();
    let (address, size) = (mapping.address(), mapping.size());
    std::mem::forget(mapping);
    machine.vmm.unmap(address, size).expect("HIP's calls work on forgotten mappings");
    machine.vmm.address_free(address, size).unwrap();
    assert_eq!(machine.vmm.usage().handles, 1);
}

#[test]
fn drop_does_not_panic_when_frees_fail() {
    for (release, config) in machine::releases() {
        let Machine { simulation, library: Library { runtime, vmm } } = Machine::new(config);
        let granule = simulation.config().granule as usize;
        let reservation = Reservation::builder(granule).reserve(&vmm).unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let properties = hsa_vmm::AllocationProperties::on(gpu);
        let memory = Allocation::create(&vmm, granule, &properties).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        mapping.grant(&[gpu, runtime.host().id()], Access::Read).unwrap();
        let functions = ["unmap", "address_free", "handle_release", "map", "set_access"];
        let plan = functions.iter().fold(FaultPlan::none(), |plan, name| {
            plan.always(&format!("hsa_amd_vmem_{name}"), HSA_STATUS_ERROR)
        });
        simulation.set_faults(plan.always("hsa_shut_down", HSA_STATUS_ERROR));
        drop((mapping, reservation, memory));
        assert_eq!(vmm.usage().mappings, 1, "{release}");
        drop((vmm, runtime));
        assert_eq!(simulation.usage().mappings, 1, "{release}");
    }
}

/// Makes adjacent mappings of new memory. Each mapping's first byte is its number.
fn map_adjacent(
    machine: &Machine,
    reservation: &Reservation,
    numbers: core::ops::Range<usize>,
) -> Vec<Mapping> {
    let map = |number: usize| {
        let mapping =
            reservation.map(number * machine.granule(), &new_allocation(machine)).unwrap();
        mapping.grant(&[machine.cpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
        mapping.write(0, &[number as u8]).unwrap();
        mapping
    };
    numbers.map(map).collect()
}

#[test]
fn unmap_many_accepts_any_order() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let reservation = new_reservation(&machine, 5);
        let mut mappings = map_adjacent(&machine, &reservation, 0..5);
        let first = mappings.remove(0);
        mappings.rotate_left(2);
        assert!(Mapping::unmap_many(mappings).is_ok(), "{release}");
        assert_eq!(
            machine.vmm.usage().mappings,
            1,
            "{release}: the first mapping was not in the list"
        );
        assert!(Mapping::unmap_many(vec![first]).is_ok(), "{release}");
        assert!(Mapping::unmap_many(Vec::new()).is_ok(), "{release}: an empty list");
        drop(reservation);
        machine.assert_empty();
    }
}

#[test]
fn unmap_many_accepts_gaps() {
    let machine = machine();
    let reservation = new_reservation(&machine, 4);
    let mut mappings = map_adjacent(&machine, &reservation, 0..4);
    let middle = mappings.remove(2);
    Mapping::unmap_many(mappings).unwrap();
    assert_eq!(machine.vmm.usage().mappings, 1, "the middle mapping was not in the list");
    let mut byte = [0];
    middle.read(0, &mut byte).unwrap();
    assert_eq!(byte, [2]);
    drop((middle, reservation));
    machine.assert_empty();
}

#[test]
fn failed_unmap_many_returns_all_mappings() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        // From ROCm 7.0 on, one runtime call unmaps all four mappings.
        let calls = if machine.vmm.quirks().unmap_of_several_fails { 4 } else { 1 };
        for call in 1..=calls {
            let faults = FaultPlan::none().fail("hsa_amd_vmem_unmap", call, HSA_STATUS_ERROR);
            machine.simulation.set_faults(faults);
            let mappings = map_adjacent(&machine, &new_reservation(&machine, 4), 0..4);
            let Rejected { value: mappings, error } =
                Mapping::unmap_many(mappings).expect_err("the runtime's call fails");
            assert!(
                matches!(error.kind(), ErrorKind::Runtime { .. }),
                "{release}, {call}: {error}"
            );
            for (number, mapping) in mappings.iter().enumerate() {
                let mut byte = [0xff];
                mapping.read(0, &mut byte).unwrap();
                assert_eq!(byte, [number as u8], "{release}, {call}");
                assert_eq!(mapping.access(machine.gpu(1)), Ok(Access::ReadWrite));
            }
            assert!(
                Mapping::unmap_many(mappings).is_ok(),
                "{release}, {call}: the next call succeeds"
            );
        }
        machine.assert_empty();
    }
}

#[test]
fn unmap_many_does_not_unmap_a_successor() {
    let machine = machine();
    let reservation = new_reservation(&machine, 2);
    let mappings = map_adjacent(&machine, &reservation, 0..2);
    let second = mappings[1].address();
    machine.vmm.unmap(second, machine.granule()).unwrap();
    let successor = reservation.map(machine.granule(), &new_allocation(&machine)).unwrap();
    let Rejected { value: mappings, error } =
        Mapping::unmap_many(mappings).expect_err("one mapping is another owner's");
    assert_eq!(error.problem(), Some(Problem::NotMapped(second)), "{error}");
    drop(mappings);
    assert_eq!(machine.vmm.usage().mappings, 1, "the other owner's mapping remains");
    drop((successor, reservation));
    machine.assert_empty();
}

#[test]
fn memory_with_clones_or_mappings_is_not_released() {
    let machine = machine();
    let memory = new_allocation(&machine);
    let mapping = new_reservation(&machine, 1).map(0, &memory).unwrap();
    let Rejected { value: memory, error } = memory.release().expect_err("it is mapped");
    assert_eq!(error.problem(), Some(Problem::InUse));
    drop(mapping);
    let clone = memory.clone();
    let Rejected { value: memory, error } = memory.release().expect_err("there is a clone");
    assert_eq!(error.problem(), Some(Problem::InUse));
    drop(clone);
    let faults = FaultPlan::none().fail("hsa_amd_vmem_handle_release", 1, HSA_STATUS_ERROR);
    machine.simulation.set_faults(faults);
    let Rejected { value: memory, error } = memory.release().expect_err("the runtime's call fails");
    assert!(matches!(error.kind(), ErrorKind::Runtime { .. }), "{error}");
    assert!(memory.release().is_ok(), "the next call succeeds");
    machine.assert_empty();
}

#[test]
fn read_and_write_many_span_mappings() {
    let machine = machine();
    let granule = machine.granule();
    let [first, second] = [2, 1].map(|count| new_reservation(&machine, count));
    let mappings = [(&first, 0), (&first, granule), (&second, 0)]
        .map(|(reservation, offset)| reservation.map(offset, &new_allocation(&machine)).unwrap());
    for mapping in &mappings {
        mapping.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    }
    let all = mappings.each_ref();
    for mapping in &mappings {
        Mapping::write_many(&all, mapping.address(), &[7; 8]).unwrap();
        Mapping::fill_many(&all, mapping.address(), 0x0505_0505, 4).unwrap();
        let mut bytes = [0; 8];
        Mapping::read_many(&all, mapping.address(), &mut bytes).unwrap();
        assert_eq!(bytes, [5, 5, 5, 5, 7, 7, 7, 7]);
    }
    let mut across = vec![0; granule + 8];
    Mapping::read_many(&all, mappings[0].address(), &mut across).unwrap();
    assert_eq!(across[granule..], [5, 5, 5, 5, 7, 7, 7, 7]);
    // A mapping may be listed twice.
    Mapping::read_many(&[all[0], all[1], all[0]], mappings[0].address(), &mut across).unwrap();
    let (first, last) = (mappings[0].address().get(), mappings[all.len() - 1].address().get());
    // The mappings, the address, the number of bytes, and the end of the mappings.
    for (listed, at, size, end) in [
        (&all[..1], first + granule - 1, 2, first + granule),
        // The reservations may be adjacent in either order.
        (&all[2..], last + granule - 1, 2, last + granule),
    ] {
        let error = Mapping::read_many(listed, Address::new(at), &mut across[..size]).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::OutOfBounds { size, end }), "{error}");
    }
    // The mappings do not contain the first byte.
    let after = first + granule;
    for (listed, at) in [(&all[1..], first), (&all[..1], after), (&all[..0], first)] {
        let error = Mapping::read_many(listed, Address::new(at), &mut [0; 8]).unwrap_err();
        let text =
            "is not inside the mappings of the list; list all mappings that contain the bytes";
        assert_eq!(error.to_string(), format!("cannot read: address {at:#x} {text}"));
    }
}

#[test]
fn fill_writes_exactly_its_range() {
    let machine = machine();
    let mapping = new_reservation(&machine, 1).map(0, &new_allocation(&machine)).unwrap();
    mapping.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    mapping.write(0, &[9; 16]).unwrap();
    mapping.fill(4, 0x0403_0201, 8).unwrap();
    let mut found = [0; 16];
    mapping.read(0, &mut found).unwrap();
    assert_eq!(found, [9, 9, 9, 9, 1, 2, 3, 4, 1, 2, 3, 4, 9, 9, 9, 9]);
    for (offset, size) in [(mapping.size() - 4, 8), (usize::MAX - 3, 8), (mapping.size(), 4)] {
        let error = mapping.fill(offset, 0, size).expect_err("the range ends after the mapping");
        assert_eq!(error.argument(), Some(Argument::Offset), "{error}");
        assert_eq!(error.operation(), Operation::Fill, "{error}");
    }
}

#[test]
fn part_of_an_allocation_is_mapped() {
    let machine = machine();
    let granule = machine.granule();
    let allocation =
        Allocation::create(&machine.vmm, 2 * granule, &machine.shareable_on(0)).unwrap();
    let reservation = new_reservation(&machine, 1);
    let mapping = reservation.map_part(0, &allocation, 0..granule).unwrap();
    assert_eq!(mapping.size(), granule);
    mapping.unmap().unwrap();
    // Without control of page tables, the runtime would map the start of the memory.
    let error = reservation.map_part(0, &allocation, granule..2 * granule).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::MapAtOffset(granule)), "{error}");
    for part in [2 * granule..3 * granule, granule..3 * granule] {
        let error = reservation.map_part(0, &allocation, part.clone()).unwrap_err();
        assert_eq!(error.argument(), Some(Argument::Offset), "{part:?}: {error}");
    }
    let (start, end) = (granule, 0);
    let error = reservation.map_part(0, &allocation, start..end).unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Offset), "{error}");
    assert_eq!(error.problem(), Some(Problem::StartAfterEnd(end)), "{error}");
}

#[test]
fn any_part_is_mapped_with_page_tables() {
    for updates in
        [PageTableUpdates::Immediate, PageTableUpdates::NotFlushed, PageTableUpdates::Late]
    {
        let config = Config::mi300x(2).with_page_table_updates(updates);
        let machine = Machine::with_options(config, VmmOptions::new().with_page_tables(true));
        let (granule, gpu) = (machine.granule(), machine.gpu(1));
        let allocation =
            Allocation::create(&machine.vmm, 2 * granule, &machine.shareable_on(0)).unwrap();
        let reservation = new_reservation(&machine, 3);
        let all = [access(gpu, Access::ReadWrite), access(machine.cpu(0), Access::ReadWrite)];
        let second = reservation.map_part(0, &allocation, granule..2 * granule).unwrap();
        let whole = reservation.map(granule, &allocation).unwrap();
        for mapping in [&second, &whole] {
            mapping.set_access(&all).unwrap();
        }
        second.write(0, &[5; 16]).unwrap();
        let (source, target) = (second.address(), at(whole.address(), 64));
        machine.vmm.copy(gpu, target, source, 16).unwrap();
        let mut bytes = [0; 16];
        whole.read(granule, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 16], "{updates:?}: the same memory");
        whole.read(64, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 16], "{updates:?}: the GPU's copy");
        let gpu_index = 1;
        let page = machine.simulation.page(gpu_index, second.address().get()).unwrap();
        assert_eq!(page.offset, granule as u64, "{updates:?}");
        second.set_access(&[access(gpu, Access::Read)]).unwrap();
        let page = machine.simulation.page(gpu_index, second.address().get()).unwrap();
        assert_eq!((page.readable, page.writable), (true, false), "{updates:?}");
        drop((second, whole));
        assert_eq!(machine.simulation.page(gpu_index, source.get()), None, "{updates:?}");
        drop((reservation, allocation));
        machine.close();
    }
}

#[test]
fn batches_map_parts_of_an_allocation() {
    let options = VmmOptions::new().with_page_tables(true);
    let machine = Machine::with_options(Config::mi300x(1), options);
    let granule = machine.granule();
    let allocation =
        Allocation::create(&machine.vmm, 2 * granule, &machine.shareable_on(0)).unwrap();
    let reservation = new_reservation(&machine, 2);
    let all = [access(machine.gpu(0), Access::ReadWrite)];
    // Maps the second half of the memory first.
    let request = |index: usize| MapRequest {
        reservation: &reservation,
        offset: index * granule,
        allocation: &allocation,
        part: (1 - index) * granule..(2 - index) * granule,
        access: &all,
    };
    let mappings = Mapping::map_many(&[request(0), request(1)]).unwrap();
    for (index, mapping) in mappings.iter().enumerate() {
        let page = machine.simulation.page(0, mapping.address().get()).unwrap();
        assert_eq!(page.offset, ((1 - index) * granule) as u64);
    }
    let outside = MapRequest { part: granule..3 * granule, ..request(0) };
    let error = Mapping::map_many(&[outside]).unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Offset), "{error}");
    drop((mappings, reservation, allocation));
    machine.close();
}
