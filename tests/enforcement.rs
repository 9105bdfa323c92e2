//! Permissions are enforced where `Agent::enforcement` says so.

mod machine;
mod process;

use hsa_vmm::error::{Feature, Problem};
use hsa_vmm::simulation::{Config, GpuPermissions};
use hsa_vmm::{Access, AccessDescriptor, Address, AgentId, Error, ErrorKind, HandleType};
use machine::{Machine, access, at, with_two_cpus, without_cpu_mapping};
use process::{End, FAULT, loading_from, storing_at};

/// One mapping.
fn mapped(config: Config) -> (Machine, Address, usize) {
    let machine = Machine::new(config);
    let granule = machine.granule();
    let base = machine.reserve(2 * granule);
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    (machine, base, granule)
}

/// Returns the generations, each with both ways of mapping for the CPU.
fn both_ways() -> Vec<(String, Config)> {
    let generations = machine::generations();
    let ours =
        generations.clone().into_iter().map(|(generation, config)| (generation.to_owned(), config));
    let theirs = generations.into_iter().map(|(generation, config)| {
        (format!("{generation} by the runtime"), without_cpu_mapping(config))
    });
    ours.chain(theirs).collect()
}

#[track_caller]
fn assert_touch(name: &str, base: Address, load: End, store: End) {
    assert_eq!(loading_from(base.get()), load, "{name}: a load");
    assert_eq!(storing_at(base.get() + 8), store, "{name}: a store");
}

#[test]
fn cpu_permissions_are_enforced() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in both_ways() {
        let (machine, base, granule) = mapped(config);
        let cpu = machine.cpu(0);
        let grant = |access| machine.grant(base, granule, cpu, access);
        assert_touch(&format!("{name}, before"), base, FAULT, FAULT);
        grant(Access::Read);
        assert_touch(&format!("{name}, read"), base, End::Success, FAULT);
        grant(Access::ReadWrite);
        assert_touch(&format!("{name}, read and write"), base, End::Success, End::Success);
        let mut bytes = [0; 9];
        machine.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(bytes[8], 0x5a, "{name}: the child's store is seen, it is the same memory");
        grant(Access::Read);
        assert_touch(&format!("{name}, read again"), base, End::Success, FAULT);
        grant(Access::None);
        assert_touch(&format!("{name}, none"), base, FAULT, FAULT);
        assert!(machine.vmm.read(base, &mut bytes).is_err());
        grant(Access::ReadWrite);
        machine.vmm.revoke(base, granule, &[cpu]).unwrap();
        assert_touch(&format!("{name}, revoked"), base, FAULT, FAULT);
        grant(Access::ReadWrite);
        machine.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(bytes[8], 0x5a, "{name}: the contents stay");
        machine.vmm.unmap(base, granule).unwrap();
        assert_touch(&format!("{name}, unmapped"), base, FAULT, FAULT);
        assert_touch(&format!("{name}, beside"), at(base, granule), FAULT, FAULT);
    }
}

#[test]
fn process_has_the_most_access_of_any_cpu() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in both_ways() {
        let (machine, base, granule) = mapped(with_two_cpus(config));
        let [first, second] = [machine.cpu(0), machine.cpu(1)];
        let grant = |agent, access| machine.grant(base, granule, agent, access);
        let may = |step: &str, load: bool, store: bool| {
            let end = |may| if may { End::Success } else { FAULT };
            assert_touch(&format!("{name}: {step}"), base, end(load), end(store));
            assert_eq!(machine.vmm.read(base, &mut [0; 4]).is_ok(), load, "{name}: {step}");
            assert_eq!(machine.vmm.write(base, &[0; 4]).is_ok(), store, "{name}: {step}");
        };
        grant(second, Access::Read);
        may("the second may read", true, false);
        grant(first, Access::ReadWrite);
        may("the first may write", true, true);
        assert_eq!(machine.vmm.get_access(second, base).unwrap(), Access::Read, "{name}");
        grant(second, Access::None);
        may("the second may nothing", true, true);
        grant(second, Access::Read);
        grant(first, Access::None);
        may("the first may nothing, the second read", true, false);
        machine.vmm.revoke(base, granule, &[first]).unwrap();
        may("revoked from the first", true, false);
        let both = [access(first, Access::ReadWrite), access(second, Access::None)];
        machine.vmm.set_access(base, granule, &both).unwrap();
        may("the first instead of the second", true, true);
        machine.vmm.revoke(base, granule, &[first, second]).unwrap();
        may("revoked from both", false, false);
        machine.vmm.unmap(base, granule).unwrap();
        process::assert_untouchable(base.get(), 2 * granule, &name);
        assert_eq!(machine.vmm.quarantine(), [], "{name}");
    }
}

#[test]
fn gpu_keeps_access_until_revoke() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in both_ways() {
        let (machine, base, granule) = mapped(config);
        let [gpu, peer, cpu] = [machine.gpu(0), machine.gpu(1), machine.cpu(0)];
        let all = [gpu, peer, cpu].map(|agent| access(agent, Access::ReadWrite));
        machine.vmm.set_access(base, granule, &all).unwrap();
        machine.vmm.write(base, b"kept").unwrap();
        for forbidden in [Access::Read, Access::None] {
            machine.grant(base, granule, gpu, forbidden);
            assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), forbidden, "{name}");
            let page = machine.simulation.page(0, base.get());
            assert!(page.is_some_and(|page| page.writable), "{name}: it is only remembered");
            // The library's own calls respect it.
            let copied = machine.vmm.copy(gpu, at(base, 64), base, 4);
            assert!(copied.is_err(), "{name}");
        }
        machine.vmm.revoke(base, granule, &[gpu]).unwrap();
        assert_eq!(machine.simulation.page(0, base.get()), None, "{name}: really taken away");
        assert!(machine.simulation.page(1, base.get()).is_some(), "{name}: the peer keeps it");
        let mut bytes = [0; 4];
        machine.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{name}: the CPU too");
        assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), Access::None, "{name}");
        machine.vmm.copy(peer, at(base, 64), base, 4).unwrap();
        // Revoking twice is not an error, and access can be granted again.
        machine.vmm.revoke(base, granule, &[gpu]).unwrap();
        machine.grant(base, granule, gpu, Access::ReadWrite);
        machine.vmm.copy(gpu, at(base, 128), base, 4).unwrap();
        machine.vmm.unmap(base, granule).unwrap();
        assert_eq!(machine.simulation.page(0, base.get()), None, "{name}");
        assert_eq!(machine.simulation.page(1, base.get()), None, "{name}");
    }
}

#[test]
fn revoke_of_several_keeps_the_others() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in both_ways() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        for number in 0..4 {
            let handle = machine.create(number % 2, granule);
            machine.map(at(base, number * granule), granule, handle);
        }
        let all: Vec<AccessDescriptor> =
            machine.gpus().into_iter().map(|gpu| access(gpu, Access::ReadWrite)).collect();
        machine.vmm.set_access(base, 4 * granule, &all).unwrap();
        machine.vmm.revoke(at(base, granule), 2 * granule, &[machine.gpu(1)]).unwrap();
        for number in 0..4 {
            let address = at(base, number * granule).get();
            let revoked = number == 1 || number == 2;
            assert!(machine.simulation.page(0, address).is_some(), "{name}: {number}");
            assert_eq!(machine.simulation.page(1, address).is_none(), revoked, "{name}: {number}");
        }
    }
}

#[test]
fn agent_copies_need_access_to_the_range() {
    let machine = Machine::new(Config::mi300x(1));
    let (granule, gpu) = (machine.granule(), machine.gpu(0));
    let base = machine.reserve(3 * granule);
    for number in 0..3 {
        machine.map(at(base, number * granule), granule, machine.create(0, granule));
    }
    // Only the middle mapping, not its neighbours.
    let (middle, last) = (at(base, granule), at(base, 2 * granule));
    machine.grant(middle, granule, gpu, Access::ReadWrite);
    let half = granule / 2;
    machine.vmm.copy(gpu, at(middle, half), middle, half).unwrap();
    machine.vmm.copy(gpu, middle, at(middle, half), half).unwrap();
    for (address, expected) in [
        (last, last),
        (at(last, 4), at(last, 4)),
        (at(middle, granule - 4), last),
        (at(base, granule - 4), at(base, granule - 4)),
    ] {
        let refused = machine.vmm.copy(gpu, address, middle, 8).unwrap_err();
        let Some(Problem::NotGranted { at, .. }) = refused.problem() else { panic!("{refused}") };
        assert_eq!(at, expected, "{refused}");
    }
}

/// After a revocation the runtime has granted the remaining agents access again, and the library must record
/// that: otherwise it would not revoke their access later, nor fill the hole that the runtime leaves.
#[test]
fn remaining_agents_can_be_revoked_later() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in both_ways() {
        let machine = Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced));
        let (granule, [first, second]) = (machine.granule(), [0, 1].map(|gpu| machine.gpu(gpu)));
        let (base, size) = (machine.reserve(3 * granule), 3 * granule);
        let places = [0, 1, 2].map(|number| at(base, number * granule));
        for place in places {
            machine.map(place, granule, machine.create(0, granule));
        }
        let set = |agents: &[AgentId], wanted| {
            let list: Vec<_> = agents.iter().map(|&agent| access(agent, wanted)).collect();
            machine.vmm.set_access(base, size, &list).unwrap();
        };
        set(&[first, second, machine.cpu(0)], Access::ReadWrite);
        machine.vmm.revoke(base, size, &[second]).unwrap();
        set(&[first, machine.cpu(0)], Access::None);
        for place in places {
            let page = machine.simulation.page(0, place.get());
            assert!(page.is_none_or(|page| !page.readable), "{name}: {place} can be read");
        }
        process::assert_untouchable(base.get(), size, &name);
        machine.vmm.unmap(base, size).unwrap();
        process::assert_taken(base.get(), size, &name);
    }
}

#[test]
fn enforcing_gpus_get_the_requested_access() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in machine::generations() {
        let (machine, base, granule) =
            mapped(config.with_gpu_permissions(GpuPermissions::Enforced));
        let gpu = machine.gpu(0);
        for wanted in [Access::Read, Access::ReadWrite, Access::None] {
            machine.grant(base, granule, gpu, wanted);
            let page = machine.simulation.page(0, base.get()).unwrap();
            assert_eq!(page.readable, wanted >= Access::Read, "{name}");
            assert_eq!(page.writable, wanted == Access::ReadWrite, "{name}");
        }
    }
}

#[test]
fn forbidding_without_a_grant_maps_nothing() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in machine::generations() {
        let (machine, base, granule) = mapped(config);
        machine.grant(base, granule, machine.gpu(1), Access::None);
        assert_eq!(machine.simulation.page(1, base.get()), None, "{name}");
        assert_eq!(machine.simulation.calls("hsa_amd_vmem_set_access"), 0, "{name}");
    }
}

#[test]
fn cpu_grant_without_large_bar_is_rejected() {
    if process::ran_alone() {
        return;
    }
    for (generation, of_generation) in machine::generations() {
        let mut config = Config::consumer().with_generation(of_generation.generation);
        config.gpus.truncate(1);
        let (machine, base, granule) = mapped(config);
        assert!(!machine.runtime.gpus().next().unwrap().large_bar);
        let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
        let refused = |answer: Result<(), Error>| {
            let feature = Feature::CpuAccess;
            let as_it_should = matches!(answer.as_ref().map_err(Error::kind),
                Err(ErrorKind::NotSupported(found)) if *found == feature
            );
            assert!(as_it_should, "{generation}: {answer:?}");
        };
        refused(machine.vmm.set_access(base, granule, &[access(cpu, Access::Read)]));
        // The GPU is named first, but nothing takes effect.
        let both = [gpu, cpu].map(|agent| access(agent, Access::ReadWrite));
        refused(machine.vmm.set_access(base, granule, &both));
        assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), Access::None, "{generation}");
        assert_eq!(machine.simulation.page(0, base.get()), None, "{generation}");
        machine.grant(base, granule, cpu, Access::None);
        machine.grant(base, granule, gpu, Access::ReadWrite);
        // An import, whose owner may be unknown, does not help either.
        let file = HandleType::POSIX_FILE_DESCRIPTOR;
        let handle = machine.vmm.retain_allocation_handle(base).unwrap();
        let shared = machine.vmm.export_to_shareable_handle(handle, file).unwrap();
        let imported = machine.vmm.import_from_shareable_handle(&shared, file).unwrap();
        machine.map(at(base, granule), granule, imported);
        let there = at(base, granule);
        refused(machine.vmm.set_access(there, granule, &[access(cpu, Access::Read)]));
        machine.grant(there, granule, cpu, Access::None);
        machine.grant(there, granule, gpu, Access::ReadWrite);
    }
}

/// Uses up the kernel's limit of mappings until it is dropped.
struct Exhausted(Vec<*mut libc::c_void>);

impl Exhausted {
    fn new() -> Self {
        // Allocates the vector before the limit is reached.
        let mut pages = Vec::with_capacity(1 << 20);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        while pages.len() < pages.capacity() {
            // The kernel does not merge adjacent mappings that differ.
            let protection = if pages.len() % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
            // SAFETY: new memory that nothing uses.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                return Self(pages);
            }
            pages.push(page);
        }
        panic!("there is no end to them");
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        for &page in &self.0 {
            // SAFETY: a page of this value that nothing uses.
            unsafe { libc::munmap(page, 4096) };
        }
    }
}

#[test]
fn view_is_removed_at_the_mapping_limit() {
    if process::ran_alone() {
        return;
    }
    for (name, config) in both_ways() {
        let end = process::in_child(|| {
            let (machine, base, granule) = mapped(config.clone());
            let handle = machine.create(0, granule);
            machine.map(at(base, granule), granule, handle);
            let all = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
            machine.vmm.set_access(base, granule, &all).unwrap();
            machine.vmm.write(base, b"text").unwrap();
            let exhausted = Exhausted::new();
            // A call that needs a new mapping may fail or succeed; its result is correct.
            let cpu = [access(machine.cpu(0), Access::ReadWrite)];
            let granted = machine.vmm.set_access(at(base, granule), granule, &cpu);
            let unmapped = machine.vmm.unmap(base, granule);
            drop(exhausted);
            match granted {
                Ok(()) => machine.vmm.write(at(base, granule), b"text").unwrap(),
                Err(_) => {
                    let start = at(base, granule).get();
                    process::assert_untouchable(start, granule, "refused");
                }
            }
            match unmapped {
                Ok(()) => process::assert_untouchable(base.get(), granule, "unmapped"),
                Err(error) if matches!(error.kind(), ErrorKind::Quarantined { now: true, .. }) => {}
                Err(_) => {
                    let mut text = [0; 4];
                    machine.vmm.read(base, &mut text).unwrap();
                    assert_eq!(&text, b"text");
                }
            }
            machine.vmm.check().unwrap();
        });
        assert_eq!(end, End::Success, "{name}");
    }
}

/// The runtime is not called when CPUs lose access, also after memory was mapped again: `mprotect` changes the
/// protection, whether the library or the runtime has mapped the memory for the CPU.
#[test]
fn two_cpus_can_be_revoked_one_by_one() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        for config in [config.clone(), without_cpu_mapping(config)] {
            let config = with_two_cpus(config).with_gpu_permissions(GpuPermissions::Enforced);
            let (machine, base, size) = mapped(config);
            let [first, second] = [machine.cpu(0), machine.cpu(1)];
            let [owner, peer] = [machine.gpu(0), machine.gpu(1)];
            let all = [first, second, owner, peer].map(|agent| access(agent, Access::ReadWrite));
            machine.vmm.set_access(base, size, &all).unwrap();
            machine.vmm.revoke(base, size, &[peer]).unwrap();
            machine.vmm.write(base, b"kept").unwrap();
            let both = [first, second].map(|cpu| access(cpu, Access::None));
            let calls = machine.simulation.calls("hsa_amd_vmem_set_access");
            machine.vmm.set_access(base, size, &both).unwrap();
            let reported = machine.simulation.calls("hsa_amd_vmem_set_access") > calls;
            assert!(!reported, "{release}");
            process::assert_untouchable(base.get(), size, release);
            machine.vmm.unmap(base, size).unwrap();
            process::assert_untouchable(base.get(), size, release);
            assert_eq!(machine.vmm.quarantine(), [], "{release}");
        }
    }
}

#[test]
fn two_cpus_can_be_revoked_together() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(without_cpu_mapping(with_two_cpus(config)));
        let size = machine.granule();
        let (base, handle) = (machine.reserve(size), machine.create(0, size));
        machine.map(base, size, handle);
        for (wanted, permissions) in [(Access::ReadWrite, "rw-"), (Access::None, "---")] {
            let both = [0, 1].map(|cpu| access(machine.cpu(cpu), wanted));
            machine.vmm.set_access(base, size, &both).unwrap();
            let found = process::permissions(base.get(), size).unwrap();
            assert_eq!(found.len(), 1, "{release}: {found:?}");
            assert!(found[0].2.starts_with(permissions), "{release}, {wanted}: {found:?}");
        }
        machine.vmm.unmap(base, size).unwrap();
        machine.vmm.release(handle).unwrap();
        machine.vmm.address_free(base, size).unwrap();
        machine.assert_empty();
    }
}
