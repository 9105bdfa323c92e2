//! Each name belongs to one reservation, mapping or memory, and the library removes both together.

use super::*;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::{Address, Allocation, Error, ErrorKind, PoolMemory, Reservation, Vmm};

/// Returns the names of the reservations, of the mappings and of the memory.
fn names(machine: &Machine) -> [Vec<Option<String>>; 3] {
    let report = machine.vmm.report();
    let mappings = report.reservations.iter().flat_map(|reservation| &reservation.mappings);
    let mappings = mappings.map(|entry| entry.name.clone()).collect();
    let memory = report.memory.iter().map(|entry| entry.name.clone()).collect();
    [report.reservations.iter().map(|entry| entry.name.clone()).collect(), mappings, memory]
}

#[test]
fn names_can_be_set_changed_and_removed() {
    let machine = machine();
    let vmm = &machine.vmm;
    let (base, handles) = map_granules(&machine, 4, &[0, 1]);
    assert_eq!(names(&machine), [vec![None], vec![None, None], vec![None, None]]);
    // The calls accept any address inside the reservation or mapping.
    vmm.name_reservation(at(base, 3 * GRANULE + 1), "cache").unwrap();
    vmm.name_mapping(at(base, 2 * GRANULE - 1), "second").unwrap();
    vmm.name_handle(handles[0], "page").unwrap();
    let some = |name: &str| Some(name.to_owned());
    // A mapping without a name has the name of its memory.
    let expected =
        [vec![some("cache")], vec![some("page"), some("second")], vec![some("page"), None]];
    assert_eq!(names(&machine), expected);
    vmm.name_reservation(base, "Cache").unwrap();
    vmm.name_mapping(at(base, GRANULE), "").unwrap();
    vmm.name_handle(handles[0], "").unwrap();
    assert_eq!(names(&machine), [vec![some("Cache")], vec![None, None], vec![None, None]]);
}

#[test]
fn naming_rejects_values_that_do_not_exist() {
    let machine = machine();
    let vmm = &machine.vmm;
    let (base, handles) = map_granules(&machine, 2, &[0]);
    let assert_rejected = |result: Result<(), Error>, argument, problem| {
        let error = result.unwrap_err();
        assert_eq!((error.argument(), error.problem()), (Some(argument), Some(problem)), "{error}");
        assert!(error.to_string().starts_with("cannot set a name: "), "{error}");
    };
    let beyond = at(base, 2 * GRANULE);
    for address in [Address::NULL, at(beyond, 1 << 40)] {
        assert_rejected(
            vmm.name_reservation(address, "x"),
            Argument::Address,
            Problem::NotReserved,
        );
    }
    let free = at(base, GRANULE);
    assert_rejected(vmm.name_mapping(free, "x"), Argument::Address, Problem::NotMapped(free));
    vmm.unmap(base, GRANULE).unwrap();
    assert_rejected(vmm.name_mapping(base, "x"), Argument::Address, Problem::NotMapped(base));
    vmm.release(handles[0]).unwrap();
    assert_rejected(vmm.name_handle(handles[0], "x"), Argument::Handle, Problem::Released);
}

#[test]
fn names_are_removed_with_their_values() {
    let machine = machine();
    let vmm = &machine.vmm;
    let (base, handles) = map_granules(&machine, 2, &[0]);
    vmm.name_reservation(base, "old").unwrap();
    vmm.name_mapping(base, "old").unwrap();
    vmm.name_handle(handles[0], "old").unwrap();
    vmm.unmap(base, GRANULE).unwrap();
    vmm.release(handles[0]).unwrap();
    // The new handle reuses the old handle's slot, and the new mapping reuses the address.
    let handle = machine.create(0, GRANULE);
    machine.map(base, GRANULE, handle);
    assert_eq!(names(&machine), [vec![Some("old".to_owned())], vec![None], vec![None]]);
    vmm.unmap(base, GRANULE).unwrap();
    vmm.address_free(base, 2 * GRANULE).unwrap();
    vmm.release(handle).unwrap();
    machine.assert_empty();
}

/// Frees a reservation and reserves the same addresses again. Returns `None` if another thread has taken the addresses.
fn reserve_again(vmm: &Vmm, base: Address) -> Option<Reservation> {
    vmm.address_free(base, 2 * GRANULE).unwrap();
    match Reservation::builder(2 * GRANULE).exactly_at(base).reserve(vmm) {
        Ok(reservation) => Some(reservation),
        Err(error) => {
            assert_eq!(error.problem(), Some(Problem::AddressTaken));
            None
        }
    }
}

#[test]
fn new_reservation_inherits_no_name() {
    let machine = machine();
    let name_and_reserve_again = || {
        let base = machine.reserve(2 * GRANULE);
        machine.vmm.name_reservation(base, "old").unwrap();
        reserve_again(&machine.vmm, base)
    };
    let reservation = (0..1000)
        .find_map(|_| name_and_reserve_again())
        .expect("the freed addresses are free in one round");
    assert_eq!(names(&machine)[0], [None]);
    drop(reservation);
    machine.assert_empty();
}

/// An owned value whose range was freed by address does not set the names of values that were created later in the
/// range.
#[test]
fn stale_owned_value_names_nothing() {
    // Retries if another thread takes the addresses.
    let ran = (0..1000).any(|_| try_naming_stale_values().is_some());
    assert!(ran, "the freed addresses were taken each time");
}

/// Sets names through owned values that are stale. Returns `None` if another thread has taken the addresses.
fn try_naming_stale_values() -> Option<()> {
    let machine = machine();
    let vmm = &machine.vmm;
    let reservation = Reservation::builder(2 * GRANULE).reserve(vmm).unwrap().named("mine");
    let memory =
        Allocation::create(vmm, GRANULE, &machine.shareable_on(0)).unwrap().named("memory");
    let mapping = reservation.map(0, &memory).unwrap().named("mapping");
    let some = |name: &str| vec![Some(name.to_owned())];
    assert_eq!(names(&machine), [some("mine"), some("mapping"), some("memory")]);
    assert_eq!(reservation.name().as_deref(), Some("mine"));
    let base = reservation.address();
    vmm.unmap(base, GRANULE).unwrap();
    machine.map(base, GRANULE, memory.handle());
    let mapping = mapping.named("not mine");
    assert_eq!(names(&machine)[1], some("memory"));
    vmm.unmap(base, GRANULE).unwrap();
    let successor = reserve_again(vmm, base)?;
    vmm.name_reservation(base, "another's").unwrap();
    assert_eq!(reservation.name(), None);
    vmm.name_reservation(base, "").unwrap();
    let reservation = reservation.named("not mine");
    assert_eq!(names(&machine)[0], [None]);
    drop((mapping, reservation, successor));
    Some(())
}

#[test]
fn pool_memory_is_reported_until_freed() {
    let machine = machine();
    let [first, second] = [0, 1].map(|gpu| machine.gpu(gpu));
    let memory = PoolMemory::allocate(&machine.runtime, first, 5000).unwrap().named("staging");
    memory.allow(&[second]).unwrap();
    let report = machine.vmm.report();
    assert!(!report.is_empty(), "{report}");
    let [entry] = &report.pool_memory[..] else { panic!("{report}") };
    assert_eq!((entry.address, entry.size), (memory.address(), 5000));
    assert_eq!((entry.name.as_deref(), entry.agent), (Some("staging"), first));
    assert_eq!(entry.agents, [first, second]);
    let memory = memory.named("");
    assert_eq!(machine.vmm.report().pool_memory[0].name, None);
    memory.free().unwrap();
    assert!(machine.vmm.report().is_empty());
}

#[test]
fn naming_fails_in_a_forked_child() {
    let machine = machine();
    let (base, handles) = map_granules(&machine, 2, &[0]);
    let end = process::in_child(|| {
        let vmm = &machine.vmm;
        let results = [
            vmm.name_reservation(base, "x"),
            vmm.name_mapping(base, "x"),
            vmm.name_handle(handles[0], "x"),
        ];
        for result in results {
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Forked)),
                "{result:?}"
            );
        }
        assert!(vmm.report().is_empty());
    });
    assert_eq!(end, process::End::Success);
}
