//! The child of a fork gets an error from every call, and what it drops harms nobody.

mod machine;
mod process;

use hsa_vmm::Kept;
use hsa_vmm::simulation::Config;
use hsa_vmm::{
    Access, Allocation, AllocationProperties, Granularity, HandleType, Reservation, Vmm, VmmError,
};
use machine::{Library, Machine, access};
use process::End;
use std::fs::File;

const FILE: HandleType = HandleType::PosixFileDescriptor;

#[test]
fn every_call_of_a_child_is_refused() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let vmm = &machine.vmm;
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        machine.map(base, granule, handle);
        let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
        let both = [cpu, gpu].map(|agent| access(agent, Access::ReadWrite));
        vmm.set_access(base, granule, &both).unwrap();
        vmm.write(base, b"kept").unwrap();
        let reservation = Reservation::of(granule).reserve(vmm).unwrap();
        let allocation = Allocation::create(vmm, granule, &machine.on(0)).unwrap();
        let mapping = reservation.map(0, &allocation).unwrap();
        let shared = allocation.export().unwrap();
        let end = process::in_child(|| {
            let calls = machine.simulation.all_calls();
            let answers = [
                vmm.address_reserve(granule, 0, None, 0).map(drop),
                vmm.address_reserve(0, 3, None, 7).map(drop),
                vmm.address_free(base, granule),
                vmm.create(granule, &machine.on(0), 0).map(drop),
                vmm.release(handle),
                vmm.map(base, granule, 0, handle, 0),
                vmm.map(base, 0, 1, handle, 1),
                vmm.unmap(base, granule),
                vmm.set_access(base, granule, &both),
                vmm.set_access(base, granule, &[]),
                vmm.get_access(gpu, base).map(drop),
                vmm.revoke(base, granule, &[gpu]),
                vmm.allocation_granularity(&AllocationProperties::on(gpu), Granularity::Minimum)
                    .map(drop),
                vmm.allocation_properties(handle).map(drop),
                vmm.allocation_size(handle).map(drop),
                vmm.export_to_shareable_handle(handle, FILE, 0).map(drop),
                vmm.import_from_shareable_handle(&shared, FILE).map(drop),
                vmm.import_from_shareable_handle(File::open("/dev/null").unwrap(), FILE).map(drop),
                vmm.retain_allocation_handle(base).map(drop),
                vmm.map_array_async(1),
                vmm.read(base, &mut [0; 4]),
                vmm.read(base, &mut []),
                vmm.write(base, b"lost"),
                vmm.copy(gpu, base, base, 4),
                vmm.copy_to_host(gpu, &mut [0; 4], base),
                vmm.copy_to_host(gpu, &mut [], base),
                vmm.copy_from_host(gpu, base, b"lost"),
                vmm.exchange(base, base, granule),
                vmm.relocate(base, base, granule),
                vmm.fill(base, 0, 4),
                Vmm::open(&machine.runtime).map(drop),
                Reservation::of(granule).reserve(vmm).map(drop),
                Allocation::create(vmm, granule, &machine.on(0)).map(drop),
                Allocation::import(vmm, &shared).map(drop),
                Allocation::at(vmm, base).map(drop),
                allocation.export().map(drop),
                reservation.map(0, &allocation).map(drop),
                mapping.grant(&[gpu], Access::Read),
                mapping.read(0, &mut [0; 4]),
                mapping.write(0, b"lost"),
                mapping.fill(0, 1, 4),
                mapping.revoke(&[gpu]),
            ];
            for (number, answer) in answers.into_iter().enumerate() {
                let refused = matches!(answer, Err(VmmError::Forked { .. }));
                assert!(refused, "{number}: {answer:?}");
            }
            assert_eq!(machine.simulation.all_calls(), calls, "the runtime was not asked");
        });
        assert_eq!(end, End::Well, "{release}");
        let mut bytes = [0; 4];
        vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{release}");
    }
}

#[test]
fn a_child_that_drops_everything_harms_nobody() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let reservation = Reservation::of(granule).reserve(&machine.vmm).unwrap();
        let allocation = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
        let mapping = reservation.map(0, &allocation).unwrap();
        mapping.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
        mapping.write(0, b"kept").unwrap();
        let before = (machine.vmm.usage(), machine.simulation.usage());
        let everything = (machine, reservation, allocation, mapping);
        let mut everything = Some(everything);
        let end = process::in_child(|| {
            let (machine, reservation, allocation, mapping) = everything.take().unwrap();
            let Kept { value: mapping, error } = mapping.unmap().unwrap_err();
            assert!(matches!(error, VmmError::Forked { .. }));
            drop((mapping, allocation));
            let Kept { value: reservation, error } = reservation.free().unwrap_err();
            assert!(matches!(error, VmmError::Forked { .. }));
            drop(reservation);
            let Machine { simulation, library: Library { runtime, vmm } } = machine;
            drop(vmm);
            drop(runtime);
            drop(simulation);
        });
        assert_eq!(end, End::Well, "{release}");
        let (machine, reservation, allocation, mapping) = everything.take().unwrap();
        assert_eq!((machine.vmm.usage(), machine.simulation.usage()), before, "{release}");
        let mut bytes = [0; 4];
        mapping.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{release}");
        drop((mapping, allocation, reservation));
        machine.assert_empty();
    }
}

#[test]
fn a_child_may_open_a_runtime_of_its_own() {
    if process::ran_alone() {
        return;
    }
    let machine = Machine::new(Config::mi300x(2));
    let end = process::in_child(|| {
        let own = Machine::new(Config::mi300x(2));
        let granule = own.granule();
        let base = own.reserve(granule);
        let handle = own.create(0, granule);
        own.map(base, granule, handle);
        own.grant(base, granule, own.cpu(0), Access::ReadWrite);
        own.vmm.write(base, b"text").unwrap();
        // What was inherited is another's to it.
        assert!(
            own.vmm.set_access(base, granule, &[access(machine.gpu(0), Access::Read)]).is_err()
        );
        // A grandchild is no better off with it.
        let end = process::in_child(|| {
            assert!(matches!(own.vmm.read(base, &mut [0]), Err(VmmError::Forked { .. })));
        });
        assert_eq!(end, End::Well);
        own.vmm.unmap(base, granule).unwrap();
        own.vmm.release(handle).unwrap();
        own.vmm.address_free(base, granule).unwrap();
        own.assert_empty();
        own.close();
    });
    assert_eq!(end, End::Well);
    let base = machine.reserve(machine.granule());
    machine.vmm.address_free(base, machine.granule()).unwrap();
    machine.assert_empty();
}

#[test]
fn a_fork_while_threads_are_at_work_does_not_hang_the_child() {
    if process::ran_alone() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let base = machine.reserve(granule);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let there = machine.reserve(granule);
                    let handle = machine.create(0, granule);
                    machine.map(there, granule, handle);
                    machine.vmm.unmap(there, granule).unwrap();
                    machine.vmm.release(handle).unwrap();
                    machine.vmm.address_free(there, granule).unwrap();
                }
            });
        }
        for _ in 0..50 {
            let end = process::in_child(|| {
                assert!(matches!(machine.vmm.unmap(base, granule), Err(VmmError::Forked { .. })));
            });
            if end != End::Well {
                over.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert_eq!(end, End::Well);
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    machine.vmm.address_free(base, granule).unwrap();
    machine.assert_empty();
}
