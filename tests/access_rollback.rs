//! After a failed change of access, agents keep their access, no other agent gains access, and the ledger matches the
//! runtime.

mod machine;
mod process;

use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan, Generation, GpuPermissions};
use hsa_vmm::vmm::{Allocation, Location, NewMapping, Quirks, Reservation, Usage, VmmOptions};
use hsa_vmm::{Access, AccessDescriptor, Address, Error, ErrorKind, HandleType};
use machine::{Machine, access, at, generations, releases, without_cpu_mapping};

const SET_ACCESS: &str = "hsa_amd_vmem_set_access";
const MAP: &str = "hsa_amd_vmem_map";
const UNMAP: &str = "hsa_amd_vmem_unmap";

/// Maps new memory of the first GPU, and returns its range.
fn map_new_memory(machine: &Machine) -> (Address, usize) {
    let granule = machine.granule();
    let base = machine.reserve(granule);
    machine.map(base, granule, machine.create(0, granule));
    (base, granule)
}

/// Makes the first call of the runtime's `function` fail during `set_access`, and returns the error of `set_access`.
fn change_while_failing(
    machine: &Machine,
    function: &str,
    (base, size): (Address, usize),
    requested: &[AccessDescriptor],
) -> Error {
    machine.simulation.set_faults(FaultPlan::none().fail(function, 1, HSA_STATUS_ERROR));
    let error = machine.vmm.set_access(base, size, requested).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    error
}

/// A rollback may map the memory again. A GPU whose access was set to none then has no page-table entry any more. The
/// library must record that the entry is gone. Otherwise, the next rollback would set this GPU's access to none again,
/// and AMD's runtime would map the memory for the GPU.
#[test]
fn second_failure_keeps_access_none() {
    if process::rerun_in_own_process() {
        return;
    }
    // In ROCm generation E, memory without access has no entry.
    let with_entries = |(_, config): &(_, Config)| config.generation != Generation::E;
    for (generation, config) in generations().into_iter().filter(with_entries) {
        let machine = Machine::new(config);
        let range @ (base, size) = map_new_memory(&machine);
        let [owner, peer] = [machine.gpu(0), machine.gpu(1)];
        machine.grant(base, size, peer, Access::ReadWrite);
        machine.grant(base, size, peer, Access::None);
        assert!(
            machine.simulation.page(1, base.get()).is_some(),
            "{generation}: setting access to none keeps the page"
        );
        for (role, agent) in [("owner", owner), ("peer", peer)] {
            let requested = [access(agent, Access::ReadWrite)];
            change_while_failing(&machine, SET_ACCESS, range, &requested);
            for gpu in 0..2 {
                let page = machine.simulation.page(gpu, base.get());
                assert_eq!(page, None, "{generation}: GPU {gpu} after the {role}'s failure");
            }
        }
        machine.grant(base, size, peer, Access::ReadWrite);
        assert!(machine.simulation.page(1, base.get()).is_some(), "{generation}");
    }
}

/// Another agent may be using the memory, and would fault if the memory were unmapped even for a moment.
#[test]
fn failed_change_keeps_other_agents_access() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        for config in [config.clone(), without_cpu_mapping(config)] {
            let config = config.with_gpu_permissions(GpuPermissions::Enforced);
            let machine = Machine::new(config);
            let range @ (base, size) = map_new_memory(&machine);
            let (owner, cpu) = (machine.gpu(0), machine.cpu(0));
            machine.grant(base, size, owner, Access::ReadWrite);
            let unmaps = machine.simulation.calls(UNMAP);
            let read_only = [access(owner, Access::Read)];
            change_while_failing(&machine, SET_ACCESS, range, &read_only);
            let with_cpu = [access(cpu, Access::ReadWrite), access(owner, Access::Read)];
            change_while_failing(&machine, SET_ACCESS, range, &with_cpu);
            assert_eq!(machine.simulation.calls(UNMAP), unmaps, "{generation}");
            let page = machine.simulation.page(0, base.get());
            assert!(page.is_some_and(|page| page.writable), "{generation}: {page:?}");
            process::assert_inaccessible(base.get(), size, generation);
        }
    }
}

/// In ROCm 6.0 to 7.1, unmapping memory that the CPU could access leaves a hole, which the library must fill.
#[test]
fn rollback_records_the_cpu_as_runtime_granted() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in releases() {
        let machine = Machine::new(without_cpu_mapping(config));
        let (base, size) = map_new_memory(&machine);
        let (owner, cpu) = (machine.gpu(0), machine.cpu(0));
        machine.grant(base, size, owner, Access::ReadWrite);
        // The first call grants the CPU access; the second fails.
        machine.simulation.set_faults(FaultPlan::none().fail(SET_ACCESS, 2, HSA_STATUS_ERROR));
        let requested = [access(cpu, Access::ReadWrite), access(owner, Access::Read)];
        machine.vmm.set_access(base, size, &requested).unwrap_err();
        machine.simulation.set_faults(FaultPlan::none());
        process::assert_inaccessible(base.get(), size, release);
        machine.vmm.unmap(base, size).unwrap();
        process::assert_inaccessible(base.get(), size, release);
        assert_eq!(machine.vmm.quarantined_ranges(), [], "{release}");
    }
}

/// Revoking unmaps the memory, maps it again, and grants the other agents access again. If the runtime maps memory for
/// the CPU, the next unmap can leave a hole. It leaves no hole if a call failed before the CPU got access again.
#[test]
fn revoke_that_fails_twice_is_rolled_back() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in releases() {
        for config in [config.clone(), without_cpu_mapping(config)] {
            let machine = Machine::new(config);
            let size = machine.granule();
            let base = machine.reserve(2 * size);
            let addresses = [base, at(base, size)];
            let [owner, peer, cpu] = [machine.gpu(0), machine.gpu(1), machine.cpu(0)];
            let grants = [owner, peer, cpu].map(|agent| access(agent, Access::ReadWrite));
            for address in addresses {
                machine.map(address, size, machine.create(0, size));
                machine.vmm.set_access(address, size, &grants).unwrap();
                machine.vmm.write(address, b"kept").unwrap();
            }
            let no_faults = FaultPlan::none;
            for (case, faults, revoked) in [
                (
                    "granting fails twice",
                    no_faults().fail(SET_ACCESS, 1, HSA_STATUS_ERROR).fail(
                        SET_ACCESS,
                        2,
                        HSA_STATUS_ERROR,
                    ),
                    peer,
                ),
                (
                    "the second unmap fails, then restoring access",
                    no_faults().fail(UNMAP, 2, HSA_STATUS_ERROR).fail(
                        SET_ACCESS,
                        3,
                        HSA_STATUS_ERROR,
                    ),
                    owner,
                ),
            ] {
                let context = format!("{release}: {case}");
                machine.simulation.set_faults(faults);
                let error = machine.vmm.revoke(base, 2 * size, &[revoked]).unwrap_err();
                machine.simulation.set_faults(no_faults());
                assert!(
                    !matches!(error.kind(), ErrorKind::Quarantined { .. }),
                    "{context}: {error}"
                );
                assert_eq!(machine.vmm.quarantined_ranges(), [], "{context}");
                for address in addresses {
                    let mut bytes = [0; 4];
                    machine.vmm.read(address, &mut bytes).unwrap();
                    assert_eq!(&bytes, b"kept", "{context}");
                    let pages =
                        [0, 1].map(|gpu| machine.simulation.page(gpu, address.get()).is_some());
                    assert_eq!(pages, [true, true], "{context}");
                }
            }
            machine.vmm.unmap(base, 2 * size).unwrap();
            process::assert_inaccessible(base.get(), 2 * size, release);
        }
    }
}

/// The rollback maps the memory again, without access for a GPU whose access was set to none.
#[test]
fn failed_revoke_keeps_access_none() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let range @ (base, size) = map_new_memory(&machine);
        let [owner, peer] = [machine.gpu(0), machine.gpu(1)];
        let grants = [owner, peer].map(|agent| access(agent, Access::ReadWrite));
        machine.vmm.set_access(base, size, &grants).unwrap();
        machine.grant(base, size, peer, Access::None);
        machine.simulation.set_faults(FaultPlan::none().fail(MAP, 1, HSA_STATUS_ERROR));
        machine.vmm.revoke(base, size, &[owner]).unwrap_err();
        let pages = || [0, 1].map(|gpu| machine.simulation.page(gpu, base.get()).is_some());
        assert_eq!(pages(), [true, false], "{generation}");
        change_while_failing(&machine, SET_ACCESS, range, &[access(peer, Access::ReadWrite)]);
        assert_eq!(pages(), [true, false], "{generation}");
    }
}

/// An exchange maps the memory again, without access for GPUs whose access was set to none.
#[test]
fn failure_after_exchange_keeps_access_none() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let ranges = [map_new_memory(&machine), map_new_memory(&machine)];
        let peer = machine.gpu(1);
        for (base, size) in ranges {
            machine.grant(base, size, machine.gpu(0), Access::ReadWrite);
            machine.grant(base, size, peer, Access::ReadWrite);
            machine.grant(base, size, peer, Access::None);
        }
        let [(first, size), (second, _)] = ranges;
        machine.vmm.exchange(first, second, size).unwrap();
        for range in ranges {
            change_while_failing(&machine, SET_ACCESS, range, &[access(peer, Access::ReadWrite)]);
            let pages = [0, 1].map(|gpu| machine.simulation.page(gpu, range.0.get()).is_some());
            assert_eq!(pages, [true, false], "{generation}");
        }
    }
}

/// The test switches on the quirk `peer_after_owner_fails`, so that the library maps the memory again to grant the peer
/// access. If a call fails, the library rolls back the CPU's access, which it has changed first.
#[test]
fn failed_grant_to_peer_rolls_back_the_cpu() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let mut quirks = Quirks::of_extension((1, config.extension_minor as u16));
        quirks.peer_after_owner_fails = true;
        let options = VmmOptions::new().with_quirks(quirks);
        let machine = Machine::with_options(config, options);
        let range @ (base, size) = map_new_memory(&machine);
        machine.grant(base, size, machine.gpu(0), Access::ReadWrite);
        let grants = [machine.cpu(0), machine.gpu(1)].map(|agent| access(agent, Access::ReadWrite));
        for function in [UNMAP, MAP, SET_ACCESS] {
            change_while_failing(&machine, function, range, &grants);
            process::assert_inaccessible(base.get(), size, &format!("{generation}: {function}"));
            let pages = [0, 1].map(|gpu| machine.simulation.page(gpu, base.get()).is_some());
            assert_eq!(pages, [true, false], "{generation}: {function}");
        }
        machine.vmm.set_access(base, size, &grants).unwrap();
        machine.vmm.write(base, b"both").unwrap();
        assert_eq!(machine.vmm.quarantined_ranges(), [], "{generation}");
    }
}

/// In ROCm 7.14, the library must map the memory again to grant a peer access after the owner. The library then adds
/// the peer to `runtime_granted`, the agents to which the runtime has granted access.
#[test]
fn peer_granted_after_owner_can_lose_access() {
    if process::rerun_in_own_process() {
        return;
    }
    let config = Config::mi300x(2).with_generation(Generation::C);
    let machine = Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced));
    let (base, size) = map_new_memory(&machine);
    for gpu in 0..2 {
        machine.grant(base, size, machine.gpu(gpu), Access::ReadWrite);
    }
    machine.grant(base, size, machine.gpu(1), Access::None);
    let readable = [0, 1]
        .map(|gpu| machine.simulation.page(gpu, base.get()).is_some_and(|page| page.readable));
    assert_eq!(readable, [true, false]);
}

/// The rollback only unmaps a new mapping. The rollback restores no access, because no agent had access.
#[test]
fn failed_grant_unmaps_a_new_mapping_once() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let size = machine.granule();
        let (address, handle) = (machine.reserve(size), machine.create(0, size));
        let new_mappings = [NewMapping { address, size, offset: 0, handle }];
        let grants = [access(machine.gpu(1), Access::ReadWrite)];
        machine.simulation.set_faults(FaultPlan::none().fail(SET_ACCESS, 1, HSA_STATUS_ERROR));
        let calls =
            machine.calls(|| drop(machine.vmm.map_many(&new_mappings, &grants).unwrap_err()));
        assert_eq!(calls, [("map", 1), ("unmap", 1), ("set_access", 1)], "{generation}");
        assert_eq!(machine.vmm.mappings(), [], "{generation}");
    }
}

/// If the owner of memory is unknown, ROCm 7.14 needs a new mapping to be mapped again before two GPUs get access. The
/// rollback unmaps the new mapping, and does not map it once more.
#[test]
fn rollback_does_not_map_a_new_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::C));
    let size = machine.granule();
    let properties = machine.shareable_on(0);
    let exported = machine.vmm.create(size, &properties).unwrap();
    let kind = HandleType::POSIX_FILE_DESCRIPTOR;
    let descriptor = machine.vmm.export_to_shareable_handle(exported, kind).unwrap();
    let handle = machine.vmm.import_from_shareable_handle(&descriptor, kind).unwrap();
    assert_eq!(machine.vmm.allocation_properties(handle).unwrap().location, Location::Unknown);
    let address = machine.reserve(size);
    let new_mappings = [NewMapping { address, size, offset: 0, handle }];
    let grants = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
    machine.simulation.set_faults(FaultPlan::none().always(SET_ACCESS, HSA_STATUS_ERROR));
    let calls = machine.calls(|| drop(machine.vmm.map_many(&new_mappings, &grants).unwrap_err()));
    let maps = calls.iter().find(|(name, _)| *name == "map").map(|it| it.1);
    assert_eq!(maps, Some(3), "{calls:?}");
    assert_eq!(machine.vmm.mappings(), []);
    assert_eq!(machine.vmm.quarantined_ranges(), []);
}

/// Mapping the memory again fails twice. The reason for the quarantine names both failed calls.
#[test]
fn quarantine_names_both_failed_maps() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let (base, size) = map_new_memory(&machine);
        machine.grant(base, size, machine.gpu(0), Access::ReadWrite);
        let faults =
            FaultPlan::none().fail(MAP, 1, HSA_STATUS_ERROR).fail(MAP, 2, HSA_STATUS_ERROR);
        machine.simulation.set_faults(faults);
        machine.vmm.revoke(base, size, &[machine.gpu(0)]).unwrap_err();
        let [entry] = &machine.vmm.quarantined_ranges()[..] else { panic!("{generation}") };
        let reason = entry.reason();
        assert_eq!(reason.matches(MAP).count(), 2, "{generation}: {reason}");
    }
}

/// The wait for page tables fails after a change, and again after the change's rollback. A GPU may therefore still use
/// the memory through an old page-table entry.
#[test]
fn failed_wait_keeps_memory_until_a_later_wait() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        for options in
            [VmmOptions::new().with_barrier(true), VmmOptions::new().with_page_tables(true)]
        {
            let machine = Machine::with_options(config.clone(), options);
            let (vmm, simulation) = (&machine.vmm, &machine.simulation);
            let (base, size) = map_new_memory(&machine);
            let handle = vmm.retain_allocation_handle(base).unwrap();
            vmm.release(handle).unwrap();
            simulation.set_faults("hsa_amd_memory_lock=0x1008".parse().unwrap());
            let change = [access(machine.gpu(0), Access::ReadWrite)];
            vmm.set_access(base, size, &change).unwrap_err();
            vmm.unmap(base, size).unwrap();
            for _ in 0..2 {
                let error = vmm.release(handle).expect_err(generation).to_string();
                assert!(error.contains("hsa_amd_memory_lock"), "{generation}: {error}");
                let error = vmm.address_free(base, size).unwrap_err().to_string();
                assert!(error.contains("hsa_amd_memory_lock"), "{generation}: {error}");
                // A new mapping would make memory usable that a GPU may still access at the old addresses.
                let maps = simulation.calls("hsa_amd_vmem_map");
                vmm.map(base, size, 0, handle).expect_err(generation);
                assert_eq!(simulation.calls("hsa_amd_vmem_map"), maps, "{generation}");
                assert_eq!(simulation.usage().handles, 1, "{generation}");
            }
            simulation.set_faults(FaultPlan::none());
            let waits = simulation.calls("hsa_amd_memory_lock");
            vmm.release(handle).unwrap();
            vmm.address_free(base, size).unwrap();
            assert_eq!(
                simulation.calls("hsa_amd_memory_lock"),
                waits + 1,
                "{generation}: one wait"
            );
            machine.assert_empty();
        }
    }
}

/// Waits for page tables fail while values are dropped. Each drop tries again.
#[test]
fn dropped_values_are_freed_after_failed_waits() {
    // The drop of the mapping waits, and again after its rollback. If both waits fail, the next drop waits again.
    for (failing, releases_first) in
        [(&[1][..], false), (&[1, 2], false), (&[1, 2, 4], false), (&[1, 2, 4], true)]
    {
        for (generation, config) in generations() {
            let machine = Machine::with_options(config, VmmOptions::new().with_barrier(true));
            let granule = machine.granule();
            let allocation =
                Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
            let reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
            let mapping = reservation.map(0, &allocation).unwrap();
            mapping.grant(&[machine.gpu(0)], Access::ReadWrite).unwrap();
            let fail = |plan: FaultPlan, &number: &u64| {
                plan.fail("hsa_amd_memory_lock", number, HSA_STATUS_ERROR)
            };
            let failed = machine.simulation.failed_calls().len();
            machine.simulation.set_faults(failing.iter().fold(FaultPlan::none(), fail));
            drop(mapping);
            if releases_first {
                drop(allocation);
                drop(reservation);
            } else {
                drop(reservation);
                drop(allocation);
            }
            let failed = machine.simulation.failed_calls().len() - failed;
            machine.simulation.set_faults(FaultPlan::none());
            assert_eq!(machine.vmm.usage(), Usage::default(), "{generation}, waits {failing:?}");
            assert_eq!(failed, failing.len(), "{generation}, waits {failing:?}");
            machine.assert_empty();
        }
    }
}

/// The wait for page tables fails while the library is dropped. The memory stays allocated, and the runtime stays
/// started.
#[test]
fn dropped_library_keeps_memory_after_a_failed_wait() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let machine = Machine::with_options(config, VmmOptions::new().with_barrier(true));
        let (base, size) = map_new_memory(&machine);
        let change = [access(machine.gpu(0), Access::ReadWrite)];
        machine.vmm.set_access(base, size, &change).unwrap();
        machine.simulation.set_faults("hsa_amd_memory_lock=0x1008".parse().unwrap());
        let Machine { simulation, library } = machine;
        drop(library);
        assert_eq!(simulation.usage().mappings, 0, "{generation}");
        assert_eq!(simulation.usage().handles, 1, "{generation}");
        assert_eq!(simulation.calls("hsa_shut_down"), 0, "{generation}");
    }
}
