//! Runtime calls that fail half-way. A half-done unmap has revoked the access of some agents. A half-done map or grant
//! has unmapped the addresses. In the last tests, a rollback fails half-way. Other failures while the library is
//! dropped: `drop.rs`.

mod hostile;
mod log;
mod machine;
mod process;

use hostile::{HostileRuntime, assert_quarantines, foreign_page_is_at, make_two_mappings};
use hsa_vmm::error::Rejected;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::{MapRequest, Probing, Quirks, VmmOptions};
use hsa_vmm::{Access, Allocation, AllocationProperties, Mapping, Reservation, Runtime, Vmm};
use machine::{Machine, access, at, releases, without_cpu_mapping};
use std::sync::Mutex;

/// To unmap memory, AMD's runtime revokes the access of one agent after the other, and returns at the first failure.
/// The runtime also revokes the access of agents whose access was set to none before.
#[test]
fn half_done_unmap_is_rolled_back() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in releases() {
        for (config, controls_page_tables) in [config.clone(), without_cpu_mapping(config)]
            .into_iter()
            .flat_map(|it| [(it.clone(), false), (it, true)])
        {
            let context = format!(
                "{release}, dma-bufs for the CPU: {}, control of page tables: {controls_page_tables}",
                config.dmabuf_cpu_mapping
            );
            let options = VmmOptions::new().with_page_tables(controls_page_tables);
            let machine = Machine::with_options(config, options);
            let size = machine.granule();
            let (base, _) = machine.map_new_memory(0, size);
            let agents = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
            // Bit `n` of `granted`: whether agent `n` is granted access. Bit `n` of `reduced`: whether the access of
            // agent `n` is then set to none.
            for (granted, reduced) in
                (1..8).flat_map(|it| (0..8).map(move |reduced| (it, it & reduced)))
            {
                let context = format!("{context}, granted {granted:#b}, then none {reduced:#b}");
                let set = |bits: u32, requested| {
                    let with_bit = (0..3).filter(|bit| bits & 1 << bit != 0);
                    let list: Vec<_> = with_bit.map(|bit| access(agents[bit], requested)).collect();
                    if !list.is_empty() {
                        machine.vmm.set_access(base, size, &list).expect(&context);
                    }
                };
                set(granted, Access::ReadWrite);
                set(reduced, Access::None);
                machine.simulation.set_faults("hsa_amd_vmem_unmap#1=half".parse().unwrap());
                machine.vmm.unmap(base, size).expect_err(&context);
                machine.simulation.set_faults(FaultPlan::none());
                assert_eq!(machine.vmm.quarantined_ranges(), [], "{context}");
                for (bit, &agent) in agents.iter().enumerate() {
                    let expected = match granted & !reduced & 1 << bit {
                        0 => Access::None,
                        _ => Access::ReadWrite,
                    };
                    let found = machine.vmm.get_access(agent, base);
                    assert_eq!(found, Ok(expected), "{context}: {agent}");
                    if let Some(gpu) = bit
                        .checked_sub(1)
                        .filter(|_| expected != Access::None || controls_page_tables)
                    {
                        let page = machine.simulation.page(gpu, base.get());
                        let writable = page.is_some_and(|page| page.writable);
                        assert_eq!(writable, expected != Access::None, "{context}: {agent}");
                    }
                }
                if granted & !reduced & 1 == 0 {
                    process::assert_inaccessible(base.get(), size, &context);
                }
                // Afterwards, all agents can use the same memory, and the library can unmap it.
                set(7, Access::ReadWrite);
                machine.vmm.write(base, b"by the CPU").expect(&context);
                for gpu in &agents[1..] {
                    let (source, target) = (base, at(base, 64));
                    machine.vmm.fill(target, 0, 64).expect(&context);
                    machine.vmm.copy(*gpu, target, source, 12).expect(&context);
                    let mut bytes = [0; 10];
                    machine.vmm.read(target, &mut bytes).expect(&context);
                    assert_eq!(&bytes, b"by the CPU", "{context}: {gpu}");
                }
                machine.vmm.unmap(base, size).expect(&context);
                assert_eq!(machine.vmm.quarantined_ranges(), [], "{context}");
                process::assert_inaccessible(base.get(), size, &context);
                machine.map(base, size, machine.create(0, size));
            }
        }
    }
}

/// After a failed unmap, the library cannot know whether the runtime still maps the memory for the CPU. The rollback
/// therefore unmaps the memory and maps it again.
#[test]
fn failed_unmap_rolls_back_with_runtime_cpu_access() {
    if process::rerun_in_own_process() {
        return;
    }
    for half_done in [0, 1] {
        let hostile = HostileRuntime::new();
        let (_runtime, vmm, gpu) = hostile.open();
        let base = make_two_mappings(&vmm, gpu);
        hostile.set(c"hostile_unmap_half_done", half_done);
        hostile.set(c"hostile_unmap_fails_at", 1);
        vmm.unmap(base, 4096).unwrap_err();
        assert_eq!(vmm.quarantined_ranges(), [], "half done: {half_done}");
        let mut bytes = [0; 4];
        vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mine", "half done: {half_done}");
        vmm.unmap(base, 2 * 4096).unwrap();
        process::assert_inaccessible(base.get(), 2 * 4096, "unmapped");
    }
}

#[test]
fn failed_unmap_keeps_foreign_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    for half_done in [0, 1] {
        let hostile = HostileRuntime::new();
        let (_runtime, vmm, gpu) = hostile.open();
        let base = make_two_mappings(&vmm, gpu);
        hostile.set(c"hostile_foreign_mappings", 1);
        hostile.set(c"hostile_unmap_half_done", half_done);
        hostile.set(c"hostile_unmap_fails_at", 1);
        assert_quarantines(vmm.unmap(base, 4096));
        assert!(foreign_page_is_at(base), "half done: {half_done}");
        drop(vmm);
        assert!(foreign_page_is_at(base), "half done: {half_done}");
    }
}

/// ROCm 7.2 unmaps memory of the CPU, and then fills the hole. If it fails in between, it still lists the CPU. A second
/// unmap would then unmap a foreign mapping in the hole.
#[test]
fn second_unmap_spares_foreign_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    for foreign_count in [0, 1] {
        let hostile = HostileRuntime::with_options(&["-DEXTENSION=15"]);
        let (_runtime, vmm, gpu) = hostile.open();
        let base = make_two_mappings(&vmm, gpu);
        hostile.set(c"hostile_foreign_mappings", foreign_count);
        hostile.set(c"hostile_unmap_half_done", 1);
        hostile.set(c"hostile_unmap_keeps_cpu", 1);
        hostile.set(c"hostile_unmap_fails_at", 1);
        let unmapped = vmm.unmap(base, 4096);
        if foreign_count == 0 {
            unmapped.unwrap_err();
            assert_eq!(vmm.quarantined_ranges(), []);
            let mut bytes = [0; 4];
            vmm.read(base, &mut bytes).unwrap();
            assert_eq!(&bytes, b"mine");
            vmm.unmap(base, 2 * 4096).unwrap();
            continue;
        }
        assert_quarantines(unmapped);
        assert!(foreign_page_is_at(base), "after the rollback");
        drop(vmm);
        assert!(foreign_page_is_at(base), "after the drop");
    }
}

/// The library fills the hole that a failed map leaves. If the hole contains a foreign mapping, the reservation is
/// quarantined, because freeing it would unmap the foreign mapping.
#[test]
fn failed_map_leaves_no_hole() {
    if process::rerun_in_own_process() {
        return;
    }
    for foreign_count in [0, 1] {
        let hostile = HostileRuntime::new();
        let (_runtime, vmm, gpu) = hostile.open();
        let base = vmm.address_reserve(4096, 0, None).unwrap();
        let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
        hostile.set(c"hostile_foreign_mappings", foreign_count);
        hostile.set(c"hostile_map_fails_at", 1);
        let mapped = vmm.map(base, 4096, 0, handle);
        if foreign_count == 0 {
            mapped.unwrap_err();
            process::assert_inaccessible(base.get(), 4096, "after the failure");
            assert_eq!(vmm.quarantined_ranges(), []);
            vmm.map(base, 4096, 0, handle).unwrap();
            continue;
        }
        assert_quarantines(mapped);
        vmm.address_free(base, 4096).unwrap_err();
        drop(vmm);
        assert!(foreign_page_is_at(base));
    }
}

/// As above, for a map that moves memory.
#[test]
fn failed_map_of_an_exchange_leaves_no_hole() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let base = vmm.address_reserve(2 * 4096, 0, None).unwrap();
    // Without CPU access, the unmaps of the exchange leave no hole.
    for address in [base, at(base, 4096)] {
        let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
        vmm.map(address, 4096, 0, handle).unwrap();
    }
    hostile.set(c"hostile_foreign_mappings", 1);
    hostile.set(c"hostile_map_fails_at", 3);
    assert_quarantines(vmm.exchange(base, at(base, 4096), 4096));
    let foreign = hostile.foreign_address();
    assert!(foreign_page_is_at(foreign));
    drop(vmm);
    assert!(foreign_page_is_at(foreign));
}

#[test]
fn failed_map_of_a_probe_keeps_foreign_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    for failing_map in [1, 2] {
        let hostile = HostileRuntime::new();
        hostile.set(c"hostile_foreign_mappings", 1);
        hostile.set(c"hostile_map_fails_at", failing_map);
        // SAFETY: this test compiled the runtime, which implements HSA's functions.
        let runtime = unsafe { Runtime::load_from(&hostile.path) }.unwrap();
        let options = VmmOptions::new().with_probing(Probing::Always);
        let vmm = Vmm::open_with(&runtime, options).unwrap();
        let foreign = hostile.foreign_address();
        assert!(foreign_page_is_at(foreign), "map {failing_map}");
        drop((vmm, runtime));
        assert!(foreign_page_is_at(foreign), "map {failing_map}, after the drop");
    }
}

/// The library fills the hole that a failed grant leaves, before another thread can create a mapping in the hole.
#[test]
fn failed_first_grant_to_the_cpu_leaves_no_hole() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (runtime, vmm, gpu) = hostile.open();
    let base = vmm.address_reserve(4096, 0, None).unwrap();
    let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
    vmm.map(base, 4096, 0, handle).unwrap();
    hostile.set(c"hostile_access_makes_hole", 1);
    hostile.set(c"hostile_access_fails_at", 1);
    let grants = [access(runtime.host().id(), Access::ReadWrite)];
    vmm.set_access(base, 4096, &grants).unwrap_err();
    process::assert_inaccessible(base.get(), 4096, "after the failure");
    assert_eq!(vmm.quarantined_ranges(), []);
    vmm.set_access(base, 4096, &grants).unwrap();
    vmm.write(base, b"mine").unwrap();
    vmm.unmap(base, 4096).unwrap();
    process::assert_inaccessible(base.get(), 4096, "unmapped");
}

/// A failed grant leaves a hole, in which another thread creates a mapping. A later grant would replace this mapping,
/// so the library quarantines the range.
#[test]
fn foreign_mapping_after_failed_grant_is_quarantined() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (runtime, _, gpu) = hostile.open();
    let mut quirks = Quirks::default();
    // Makes the library replace the mapping after each unmap.
    quirks.unmap_keeps_memory = true;
    let options = VmmOptions::new().with_probing(Probing::Never).with_quirks(quirks);
    let vmm = Vmm::open_with(&runtime, options).unwrap();
    let base = vmm.address_reserve(4096, 0, None).unwrap();
    let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
    vmm.map(base, 4096, 0, handle).unwrap();
    hostile.set(c"hostile_foreign_mappings", 1);
    hostile.set(c"hostile_access_makes_hole", 1);
    hostile.set(c"hostile_access_fails_at", 1);
    let grants = [access(runtime.host().id(), Access::ReadWrite)];
    assert_quarantines(vmm.set_access(base, 4096, &grants));
    assert!(foreign_page_is_at(base));
    vmm.set_access(base, 4096, &grants).unwrap_err();
    vmm.unmap(base, 4096).unwrap_err();
    drop(vmm);
    let end = process::load_in_child(base.get());
    assert!(
        end == process::End::Success && foreign_page_is_at(base),
        "{end:?} after the `Vmm` was dropped"
    );
}

/// After the replacement of a mapping by an overlapping mapping has failed, the ledger lists either the old mapping or
/// the new mapping.
#[test]
fn failed_overlapping_replacement_is_consistent() {
    if process::rerun_in_own_process() {
        return;
    }
    for failing_unmap in [2, 3] {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        let reservation = Reservation::builder(2 * granule).reserve(&machine.vmm).unwrap();
        let large =
            Allocation::create(&machine.vmm, 2 * granule, &machine.shareable_on(0)).unwrap();
        let small = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        let old_mapping = reservation.map(0, &large).unwrap();
        let grants = [access(machine.gpu(0), Access::ReadWrite)];
        let new_request = MapRequest {
            reservation: &reservation,
            offset: granule,
            allocation: &small,
            part: 0..granule,
            access: &grants,
        };
        let faults = FaultPlan::none().fail("hsa_amd_vmem_set_access", 1, HSA_STATUS_ERROR).fail(
            "hsa_amd_vmem_unmap",
            failing_unmap,
            HSA_STATUS_ERROR,
        );
        machine.simulation.set_faults(faults);
        let rejected =
            Mapping::replace_many(vec![old_mapping], &[new_request]).expect_err("a call fails");
        machine.simulation.set_faults(FaultPlan::none());
        machine.vmm.check().unwrap();
        let listed = machine.vmm.mappings();
        assert_eq!(listed.len(), 1, "{failing_unmap}: {listed:?}");
        drop(rejected);
    }
}

/// A mapping that was unmapped, but whose addresses were lost, is not unmapped again when it is dropped.
#[test]
fn mapping_without_addresses_is_unmapped_once() {
    static WARNINGS: Mutex<Vec<log::Fields>> = Mutex::new(Vec::new());
    if process::rerun_in_own_process() {
        return;
    }
    log::subscribe(
        |metadata| *metadata.level() == tracing::Level::WARN,
        |fields| WARNINGS.lock().unwrap().push(fields),
    );
    let hostile = HostileRuntime::new();
    let (runtime, vmm, gpu) = hostile.open();
    let reservation = Reservation::builder(4096).reserve(&vmm).unwrap();
    let memory = Allocation::create(&vmm, 4096, &AllocationProperties::on(gpu)).unwrap();
    let mapping = reservation.map(0, &memory).unwrap();
    mapping.grant(&[runtime.host().id()], Access::ReadWrite).unwrap();
    hostile.set(c"hostile_foreign_mappings", 1);
    let Rejected { value, error } = mapping.unmap().unwrap_err();
    assert_quarantines(Err(error));
    assert_eq!(vmm.mappings(), []);
    WARNINGS.lock().unwrap().clear();
    drop(value);
    assert_eq!(*WARNINGS.lock().unwrap(), [] as [log::Fields; 0]);
}
