//! The full cycle on every kind of machine and every release: reserve, create, map, grant, use, revoke, unmap, release,
//! free. The tests named `full_cycle_…` run the cycle with calls of `Vmm`, with owned values, and again with calls.

mod machine;
mod process;

use hsa_vmm::agent::Enforcement;
use hsa_vmm::simulation::{Config, GpuPermissions};
use hsa_vmm::{Access, Allocation, Error, ErrorKind, Reservation};
use machine::{KIB, MIB, Machine, access, at, without_cpu_mapping};

/// The numbers of resources of this process, which must be the same before and after a cycle.
#[derive(Debug, PartialEq)]
struct ProcessCounts {
    descriptors: usize,
    regions: usize,
}

fn process_counts() -> ProcessCounts {
    // Counts only the simulation's mappings, because the number of the memory allocator's mappings varies.
    let of_simulation = |region: &process::Region| region.name.contains("hsa-sim");
    let regions = process::regions().iter().filter(|region| of_simulation(region)).count();
    ProcessCounts { descriptors: process::descriptors(), regions }
}

fn pattern(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn cycle_by_calls(machine: &Machine, name: &str) {
    let vmm = &machine.vmm;
    let granule = machine.granule();
    let gpus = machine.gpus();
    let cpu = machine.cpu(0);
    let last_gpu = gpus.len() - 1;
    let cpu_can_access = |gpu: usize| machine.runtime.host().can_access(gpus[gpu]);
    let base = machine.reserve(8 * granule);
    process::assert_inaccessible(base.get(), 8 * granule, name);
    let small = machine.create(0, granule);
    let large = machine.create(last_gpu, 2 * granule);
    machine.map(base, granule, small);
    machine.map(at(base, granule), 2 * granule, large);
    machine.map(at(base, 5 * granule), granule, small);
    process::assert_inaccessible(base.get(), 8 * granule, name);
    let gpu_grants: Vec<_> = gpus.iter().map(|&gpu| access(gpu, Access::ReadWrite)).collect();
    vmm.set_access(base, 3 * granule, &gpu_grants).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (number, &gpu) in gpus.iter().enumerate() {
        for offset in [0, granule, 3 * granule - 1] {
            let page = machine.simulation.page(number, at(base, offset).get());
            assert!(page.is_some_and(|page| page.writable), "{name}: GPU {number} at {offset:#x}");
        }
        assert_eq!(vmm.get_access(gpu, at(base, granule)).unwrap(), Access::ReadWrite);
        assert_eq!(vmm.get_access(gpu, at(base, 5 * granule)).unwrap(), Access::None);
    }
    // One GPU writes, and the last GPU copies the written bytes.
    vmm.fill(base, 0x0403_0201, granule).unwrap_or_else(|e| panic!("{name}: {e}"));
    vmm.copy(gpus[last_gpu], at(base, granule), base, granule).unwrap();
    if cpu_can_access(0) && cpu_can_access(last_gpu) {
        // The CPU reads the bytes, the copy, and the bytes in the second mapping of `small`.
        machine.grant(base, 3 * granule, cpu, Access::ReadWrite);
        machine.grant(at(base, 5 * granule), granule, cpu, Access::Read);
        let expected = [1, 2, 3, 4].repeat(granule / 4);
        let mut bytes = vec![0; granule];
        for offset in [0, granule, 5 * granule] {
            vmm.read(at(base, offset), &mut bytes).unwrap();
            assert!(bytes == expected, "{name}: at {offset:#x}");
        }
        // A GPU copies the CPU's bytes to the memory of another handle.
        let written = pattern(7, granule);
        vmm.write(base, &written).unwrap();
        vmm.read(at(base, 5 * granule), &mut bytes).unwrap();
        assert!(bytes == written, "{name}: both mappings show the same memory");
        vmm.copy(gpus[0], at(base, 2 * granule), base, granule).unwrap();
        vmm.read(at(base, 2 * granule), &mut bytes).unwrap();
        assert!(bytes == written, "{name}: a GPU's copy of the CPU's bytes");
        // Writes and reads across the boundary of two mappings.
        let across = pattern(9, 64);
        vmm.write(at(base, granule - 32), &across).unwrap();
        let mut found = [0; 64];
        vmm.read(at(base, granule - 32), &mut found).unwrap();
        assert_eq!(found[..], across[..], "{name}");
        // The contents stay when memory is unmapped and mapped at another address.
        vmm.unmap(base, 3 * granule).unwrap_or_else(|e| panic!("{name}: {e}"));
        process::assert_inaccessible(base.get(), 3 * granule, name);
        machine.map(at(base, 6 * granule), 2 * granule, large);
        process::assert_inaccessible(at(base, 6 * granule).get(), 2 * granule, name);
        machine.grant(at(base, 6 * granule), 2 * granule, cpu, Access::Read);
        vmm.read(at(base, 7 * granule + 32), &mut bytes[..32]).unwrap();
        assert_eq!(bytes[..32], written[32..64], "{name}: after mapping again");
        // Maps only one of the two granules.
        vmm.unmap(at(base, 6 * granule), 2 * granule).unwrap();
        machine.map(at(base, 6 * granule), granule, large);
        vmm.unmap(at(base, 6 * granule), granule).unwrap();
    } else {
        let result = vmm.set_access(base, granule, &[access(cpu, Access::Read)]);
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::NotSupported(_))),
            "{name}: {result:?}"
        );
        vmm.unmap(base, 3 * granule).unwrap();
    }
    for gpu in 0..gpus.len() {
        assert_eq!(machine.simulation.page(gpu, base.get()), None, "{name}");
    }
    // Releases `small` while its memory is mapped, and `large` after its memory was unmapped.
    vmm.release(small).unwrap();
    assert!(vmm.allocation_size(small).is_err());
    let retained = vmm.retain_allocation_handle(at(base, 5 * granule + 1)).unwrap();
    assert_eq!(retained, small);
    assert_eq!(vmm.allocation_size(retained).unwrap(), granule);
    vmm.release(retained).unwrap();
    vmm.unmap(at(base, 5 * granule), granule).unwrap();
    vmm.release(large).unwrap();
    assert_eq!(vmm.usage().handles, 0, "{name}");
    process::assert_mapped(base.get(), 8 * granule, name);
    vmm.address_free(base, 8 * granule).unwrap();
    machine.assert_empty();
}

fn cycle_by_values(machine: &Machine, name: &str) {
    let granule = machine.granule();
    let gpus = machine.gpus();
    let cpu = machine.cpu(0);
    let reservation = Reservation::builder(4 * granule).aligned_to(2 * MIB).reserve(&machine.vmm);
    let reservation = reservation.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(reservation.address().get() % (2 * MIB), 0, "{name}");
    let memory = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
    let first = reservation.map(0, &memory).unwrap();
    let second = reservation.map(2 * granule, &memory).unwrap();
    // Grants one GPU after the other, the owner first. Without a workaround, these grants fail in ROCm 7.14.
    for &gpu in &gpus {
        first.grant(&[gpu], Access::ReadWrite).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for (number, &gpu) in gpus.iter().enumerate() {
        assert_eq!(first.access(gpu).unwrap(), Access::ReadWrite, "{name}");
        assert_eq!(second.access(gpu).unwrap(), Access::None, "{name}");
        let page = machine.simulation.page(number, first.address().get());
        assert!(page.is_some(), "{name}: GPU {number}");
        assert_eq!(machine.simulation.page(number, second.address().get()), None, "{name}");
    }
    first.fill(0, 0xaaaa_aaaa, first.size()).unwrap();
    if machine.runtime.gpus().all(|gpu| gpu.large_bar) {
        second.grant(&[cpu], Access::ReadWrite).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut bytes = [0; 8];
        second.read(granule - 8, &mut bytes).unwrap();
        assert_eq!(bytes, [0xaa; 8], "{name}");
        second.write(4, b"text").unwrap();
        first.grant(&[cpu], Access::Read).unwrap();
        first.read(4, &mut bytes).unwrap();
        assert_eq!(&bytes, b"text\xaa\xaa\xaa\xaa", "{name}");
        assert!(first.write(4, b"text").is_err());
    }
    first.revoke(&gpus).unwrap_or_else(|e| panic!("{name}: {e}"));
    for number in 0..gpus.len() {
        assert_eq!(machine.simulation.page(number, first.address().get()), None, "{name}");
    }
    drop(reservation);
    drop(memory);
    assert_eq!(machine.vmm.usage().mappings, 2);
    drop(first);
    assert_eq!(machine.vmm.usage().reservations, 1, "{name}");
    second.unmap().unwrap();
    machine.assert_empty();
}

#[track_caller]
fn check_full_cycle(config: Config, name: &str) {
    let before = process_counts();
    let machine = Machine::new(config);
    cycle_by_calls(&machine, name);
    cycle_by_values(&machine, name);
    cycle_by_calls(&machine, name);
    machine.close();
    assert_eq!(process_counts(), before, "{name}");
}

/// Returns every kind of machine, with its name. The machines need little memory, because the simulation allocates
/// memory on the first access.
fn machines() -> [(&'static str, Config); 5] {
    [
        ("MI300X", Config::mi300x(1)),
        ("two MI300X", Config::mi300x(2)),
        ("eight MI300X", Config::mi300x(8)),
        ("a Radeon", Config::consumer()),
        ("an MI300A", Config::apu()),
    ]
}

fn check_every_machine(granule: usize) {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, release_config) in machine::releases() {
        for (name, config) in machines() {
            let mut config = config
                .with_generation(release_config.generation)
                .with_extension(release_config.extension_minor)
                .with_granule(granule as u64);
            config.extension_reported = release_config.extension_reported;
            check_full_cycle(config, &format!("{name} with ROCm {release}"));
        }
    }
}

#[test]
fn full_cycle_works_on_every_machine_and_release() {
    check_every_machine(4 * KIB);
}

#[test]
fn full_cycle_works_in_large_granules() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in machine::generations() {
        check_full_cycle(config.with_granule(2 * MIB as u64), &format!("{generation} in 2 MiB"));
    }
}

#[test]
fn full_cycle_works_with_runtime_cpu_access() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        check_full_cycle(
            without_cpu_mapping(config),
            &format!("ROCm {release}, CPU access by the runtime"),
        );
    }
}

#[test]
fn full_cycle_works_with_enforced_permissions() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        check_full_cycle(
            config.with_gpu_permissions(GpuPermissions::Enforced),
            &format!("ROCm {release}"),
        );
    }
}

#[test]
fn set_access_keeps_unnamed_agents() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced));
        let granule = machine.granule();
        let base = machine.reserve(granule);
        let handle = machine.create(1, granule);
        machine.map(base, granule, handle);
        let [cpu, gpu, owner] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
        for agent in [cpu, gpu, owner] {
            machine.grant(base, granule, agent, Access::ReadWrite);
        }
        machine.grant(base, granule, gpu, Access::Read);
        machine.grant(base, granule, cpu, Access::Read);
        let permissions = |number| {
            let page = machine.simulation.page(number, base.get());
            page.map(|page| (page.readable, page.writable))
        };
        assert_eq!(permissions(0), Some((true, false)), "{release}");
        assert_eq!(permissions(1), Some((true, true)), "{release}");
        let recorded = [cpu, gpu, owner].map(|agent| machine.vmm.get_access(agent, base).unwrap());
        assert_eq!(recorded, [Access::Read, Access::Read, Access::ReadWrite], "{release}");
        // If an agent is named twice, the last access counts.
        let twice = [access(gpu, Access::ReadWrite), access(gpu, Access::None)];
        machine.vmm.set_access(base, granule, &twice).unwrap();
        assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), Access::None, "{release}");
        assert_eq!(permissions(1), Some((true, true)), "{release}");
    }
}

#[test]
fn enforcement_is_reported_per_agent() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let agents = machine.runtime.agents();
    assert_eq!(agents[0].enforcement(), Enforcement::Enforced);
    assert_eq!(agents[1].enforcement(), Enforcement::Recorded);
}
