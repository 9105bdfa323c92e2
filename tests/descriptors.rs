//! Calls without a free file descriptor: an error of its own, and nothing changes.

mod hostile;
mod machine;
mod process;

use hostile::Hostile;
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, AllocationProperties, Error, ErrorKind, Handle, HandleType};
use machine::{Machine, access, at};
use process::End;
use process::limit::{allow_more, no_limit};
use std::os::fd::OwnedFd;

const FILE: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

fn export(machine: &Machine, handle: Handle) -> OwnedFd {
    machine.vmm.export_to_shareable_handle(handle, FILE).expect("an export")
}

/// Runs a test on a machine of each release, in a process of its own, where it can use up all
/// descriptors.
fn on_each_release(test: impl Fn(&Machine)) {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let end = process::in_child(|| test(&Machine::new(config)));
        assert_eq!(end, End::Success, "{release}");
    }
}

#[test]
fn calls_without_descriptors_change_nothing() {
    on_each_release(|machine| {
        let vmm = &machine.vmm;
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let untouched = machine.create(0, granule);
        let base = machine.reserve(2 * granule);
        machine.map(base, granule, handle);
        machine.map(at(base, granule), granule, untouched);
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let shared = export(machine, handle);
        allow_more(0);
        let state = || (vmm.usage(), vmm.mappings(), machine.simulation.usage());
        let before = state();
        let cpu = [access(machine.cpu(0), Access::ReadWrite)];
        let answers = [
            ("export", vmm.export_to_shareable_handle(handle, FILE).map(drop)),
            ("import", vmm.import_from_shareable_handle(&shared, FILE).map(drop)),
            ("set_access", vmm.set_access(base, granule, &cpu)),
            ("set_access of several", vmm.set_access(base, 2 * granule, &cpu)),
        ];
        for (name, answer) in answers {
            let out =
                matches!(answer.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(out, "{name}: {answer:?}");
        }
        if machine.simulation.config().generation == hsa_vmm::simulation::Generation::C {
            let answer = vmm.create(granule, &machine.on(0));
            assert!(
                matches!(answer.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)),
                "{answer:?}"
            );
        }
        assert_eq!(state(), before);
        no_limit();
        machine.grant(base, 2 * granule, machine.cpu(0), Access::ReadWrite);
        drop(export(machine, handle));
        vmm.import_from_shareable_handle(&shared, FILE).unwrap();
    });
}

/// AMD's runtime before 7.14 aborts the process when it grants a GPU access without a descriptor: it is not
/// called then. Agents with access need none for a change of permission.
#[test]
fn only_gpu_grants_need_a_descriptor() {
    on_each_release(|machine| {
        let granule = machine.granule();
        let (base, _) = machine.mapped(0, granule);
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let calls = || machine.simulation.calls("hsa_amd_vmem_set_access");
        allow_more(0);
        machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
        machine.grant(base, granule, machine.gpu(1), Access::None);
        if machine.vmm.quirks().grant_without_descriptor_aborts {
            let before = calls();
            let peer = [access(machine.gpu(1), Access::Read)];
            let answer = machine.vmm.set_access(base, granule, &peer);
            assert!(
                matches!(answer.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)),
                "{answer:?}"
            );
            assert_eq!(calls(), before);
        }
    });
}

#[test]
fn running_out_of_descriptors_half_way_rolls_back() {
    on_each_release(|machine| {
        let vmm = &machine.vmm;
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        for number in 0..4 {
            let handle = machine.create(0, granule);
            machine.map(at(base, number * granule), granule, handle);
        }
        let both = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
        for more in 1..4 {
            allow_more(more);
            let before = (vmm.usage(), vmm.mappings());
            let answer = vmm.set_access(base, 4 * granule, &both);
            if answer.is_ok() {
                break;
            }
            let out =
                matches!(answer.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(out, "{more}: {answer:?}");
            assert_eq!((vmm.usage(), vmm.mappings()), before);
            no_limit();
            for number in 0..4 {
                let page = machine.simulation.page(0, at(base, number * granule).get());
                assert_eq!(page, None, "{more}");
            }
            process::assert_untouchable(base.get(), 4 * granule, "half-way");
        }
        no_limit();
        vmm.set_access(base, 4 * granule, &both).unwrap();
    });
}

/// From ROCm 7.14 on, an import is opened when the first GPU is granted access. Found by
/// `exhaustive_faults` with six operations.
#[test]
fn grants_to_an_import_need_a_descriptor() {
    on_each_release(|machine| {
        let granule = machine.granule();
        let shared = export(machine, machine.create(0, granule));
        let imported = machine.vmm.import_from_shareable_handle(&shared, FILE).unwrap();
        let base = machine.reserve(granule);
        machine.map(base, granule, imported);
        let grant = [access(machine.gpu(0), Access::ReadWrite)];
        let before = (machine.vmm.mappings(), machine.simulation.usage());
        allow_more(0);
        let answer = machine.vmm.set_access(base, granule, &grant);
        no_limit();
        match answer {
            Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {
                assert_eq!((machine.vmm.mappings(), machine.simulation.usage()), before);
                machine.vmm.set_access(base, granule, &grant).unwrap();
            }
            answer => assert_eq!(answer, Ok(())),
        }
    });
}

/// Memory that is unmapped to revoke access could not be mapped again.
#[test]
fn revoke_without_descriptors_changes_nothing() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        for the_cpu_sees_it in [true, false] {
            let config = config.clone();
            let end = process::in_child(|| revoked_without_descriptor(config, the_cpu_sees_it));
            assert_eq!(end, End::Success, "{release}, seen by the CPU: {the_cpu_sees_it}");
        }
    }
}

fn revoked_without_descriptor(config: Config, the_cpu_sees_it: bool) {
    let machine = Machine::new(config);
    let (granule, vmm) = (machine.granule(), &machine.vmm);
    let (base, size) = (machine.reserve(2 * granule), 2 * granule);
    for place in [base, at(base, granule)] {
        machine.map(place, granule, machine.create(0, granule));
    }
    let [first, second] = [0, 1].map(|gpu| machine.gpu(gpu));
    let mut agents = vec![first, second];
    if the_cpu_sees_it {
        agents.push(machine.cpu(0));
    }
    let all: Vec<_> = agents.iter().map(|&agent| access(agent, Access::ReadWrite)).collect();
    vmm.set_access(base, size, &all).unwrap();
    let state = || {
        let pages = [0, 1].map(|gpu| machine.simulation.page(gpu, base.get()));
        let process = process::permissions(base.get(), size);
        (vmm.mappings(), vmm.quarantine(), pages, process, machine.simulation.all_calls())
    };
    for agents in [&[first][..], &[second], &[first, second]] {
        let before = state();
        allow_more(0);
        let answer = vmm.revoke(base, size, agents);
        no_limit();
        match answer {
            Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {
                assert_eq!(state(), before, "{agents:?}")
            }
            // Some runtimes need none if the CPU has no view.
            Ok(()) if !the_cpu_sees_it && !vmm.quirks().grant_without_descriptor_aborts => {
                vmm.set_access(base, size, &all).unwrap();
            }
            _ => panic!("{agents:?}: {answer:?}"),
        }
    }
    vmm.revoke(base, size, &[second]).unwrap();
    assert_eq!(machine.simulation.page(1, base.get()), None);
}

/// The library's copy of the descriptor takes one, and some runtimes need another to check it.
#[test]
fn import_without_descriptors_has_its_own_error() {
    on_each_release(|machine| {
        let handle = machine.create(0, machine.granule());
        let shared = export(machine, handle);
        for more in 0..16 {
            allow_more(more);
            let answer = machine.vmm.import_from_shareable_handle(&shared, FILE);
            no_limit();
            match answer {
                Ok(_) if more > 0 => return,
                Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {}
                _ => panic!("{more} more: {answer:?}"),
            }
        }
        panic!("it eventually succeeds");
    });
}

/// The CPU's access changes before the GPUs'.
#[test]
fn set_access_keeps_cpu_access_after_failure() {
    on_each_release(|machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let shared = export(machine, machine.create(0, granule));
        // From ROCm 7.14 on an import needs a descriptor when the first GPU is granted access.
        let imported = vmm.import_from_shareable_handle(&shared, FILE).unwrap();
        let base = machine.reserve(granule);
        machine.map(base, granule, imported);
        let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
        for granted in [Access::ReadWrite, Access::Read] {
            for wanted in [Access::None, Access::Read, Access::ReadWrite] {
                machine.grant(base, granule, cpu, granted);
                let state = || {
                    let process = process::permissions(base.get(), granule);
                    (
                        vmm.mappings(),
                        vmm.quarantine(),
                        process,
                        machine.simulation.page(0, base.get()),
                    )
                };
                let before = state();
                allow_more(0);
                let both = [access(cpu, wanted), access(gpu, Access::ReadWrite)];
                let answer = vmm.set_access(base, granule, &both);
                no_limit();
                match answer {
                    Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {
                        assert_eq!(state(), before)
                    }
                    // ROCm 7.14 needs none once it has opened the memory.
                    answer => {
                        assert_eq!(answer, Ok(()));
                        vmm.revoke(base, granule, &[gpu]).unwrap();
                    }
                }
            }
        }
        machine.grant(base, granule, cpu, Access::ReadWrite);
        vmm.write(base, b"kept").unwrap();
        machine.grant(base, granule, cpu, Access::None);
        process::assert_untouchable(base.get(), granule, "inaccessible");
    });
}

/// Several mappings, of which the first may have been changed when the descriptors run out.
#[test]
fn set_access_of_several_restores_after_failure() {
    on_each_release(|machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let base = machine.reserve(3 * granule);
        for number in 0..3 {
            let shared = export(machine, machine.create(0, granule));
            let imported = vmm.import_from_shareable_handle(&shared, FILE).unwrap();
            machine.map(at(base, number * granule), granule, imported);
        }
        let size = 3 * granule;
        machine.grant(base, size, machine.cpu(0), Access::ReadWrite);
        vmm.write(base, b"kept").unwrap();
        for spare in 0..16 {
            let state = || {
                let pages =
                    [0, 1, 2].map(|n| machine.simulation.page(0, at(base, n * granule).get()));
                let process = process::permissions(base.get(), size);
                (vmm.mappings(), vmm.quarantine(), pages.map(|page| page.is_some()), process)
            };
            let before = state();
            allow_more(spare);
            let both =
                [access(machine.cpu(0), Access::None), access(machine.gpu(0), Access::ReadWrite)];
            let answer = vmm.set_access(base, size, &both);
            no_limit();
            if answer.is_ok() {
                machine.grant(base, size, machine.cpu(0), Access::Read);
                let mut bytes = [0; 4];
                vmm.read(base, &mut bytes).unwrap();
                assert_eq!(&bytes, b"kept");
                return;
            }
            let out =
                matches!(answer.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(out, "{spare}: {answer:?}");
            assert_eq!(state(), before, "{spare}");
        }
        panic!("it eventually succeeds");
    });
}

/// Mapped memory of the hostile runtime, which the CPU may read and write.
fn on_hostile(act: impl Fn(&Hostile, &hsa_vmm::Vmm, hsa_vmm::Address, [hsa_vmm::AgentId; 2])) {
    for writable in [1, 0] {
        let hostile = Hostile::new();
        let end = process::in_child(|| {
            hostile.set(c"hostile_writable", writable);
            let (runtime, vmm, gpu) = hostile.open();
            let cpu = runtime.host().id();
            let base = vmm.address_reserve(4 * 4096, 0, None).unwrap();
            for number in 0..2 {
                let memory = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
                vmm.map(at(base, number * 4096), 4096, 0, memory).unwrap();
            }
            let both = [gpu, cpu].map(|agent| access(agent, Access::ReadWrite));
            vmm.set_access(base, 2 * 4096, &both).unwrap();
            vmm.write(base, b"kept").unwrap();
            act(&hostile, &vmm, base, [gpu, cpu]);
            no_limit();
            assert_eq!(vmm.quarantine(), []);
            let mut bytes = [0; 4];
            vmm.read(base, &mut bytes).unwrap();
            assert_eq!(&bytes, b"kept");
            vmm.check().unwrap();
            vmm.unmap(base, 2 * 4096).unwrap();
            process::assert_untouchable(base.get(), 4 * 4096, "unmapped");
        });
        assert_eq!(end, End::Success, "writable: {writable}");
    }
}

/// Another thread takes the last descriptors while the memory is unmapped.
#[test]
fn revoke_survives_loss_of_descriptors() {
    if process::ran_alone() {
        return;
    }
    on_hostile(|hostile, vmm, base, [gpu, _]| {
        allow_more(1);
        hostile.set(c"hostile_hoards", 1);
        vmm.revoke(base, 2 * 4096, &[gpu]).unwrap();
        assert_eq!(hostile.get(c"hostile_hoards"), 0);
        assert_eq!(vmm.get_access(gpu, base).unwrap(), Access::None);
    });
}

#[test]
fn exchange_survives_loss_of_descriptors() {
    if process::ran_alone() {
        return;
    }
    on_hostile(|hostile, vmm, base, _| {
        allow_more(1);
        hostile.set(c"hostile_hoards", 1);
        let second = at(base, 4096);
        vmm.exchange(base, second, 4096).unwrap();
        let mut bytes = [0; 4];
        vmm.read(second, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        no_limit();
        vmm.exchange(base, second, 4096).unwrap();
    });
}

/// A mapping that the runtime refuses to unmap does not change. That needs no descriptor.
#[test]
fn refused_unmap_needs_no_descriptor() {
    if process::ran_alone() {
        return;
    }
    on_hostile(|hostile, vmm, base, _| {
        allow_more(0);
        hostile.set(c"hostile_unmap_fails_at", 1);
        vmm.unmap(base, 4096).unwrap_err();
        hostile.set(c"hostile_unmap_fails_at", 2);
        vmm.unmap_many(&[(base, 2 * 4096)]).unwrap_err();
    });
}
