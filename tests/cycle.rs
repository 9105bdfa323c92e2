//! The full cycle (reserve, create, map, grant, use, revoke, unmap, release, free) by calls and by owned
//! values, on every kind of machine and every release.

mod machine;
mod process;

use hsa_vmm::agent::Enforcement;
use hsa_vmm::simulation::{Config, GpuPermissions};
use hsa_vmm::{Access, Allocation, Error, ErrorKind, Reservation};
use machine::{KIB, MIB, Machine, access, at, without_cpu_mapping};

/// Counts of resources, to compare before and after.
#[derive(Debug, PartialEq)]
struct Process {
    descriptors: usize,
    regions: usize,
}

fn process() -> Process {
    // Mappings of files only, because the allocator's own change.
    let of_files = |region: &process::Region| region.name.contains("hsa-sim");
    let regions = process::regions().iter().filter(|region| of_files(region)).count();
    Process { descriptors: process::descriptors(), regions }
}

fn pattern(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// HIP's calls, one after the other.
fn by_calls(machine: &Machine, name: &str) {
    let vmm = &machine.vmm;
    let granule = machine.granule();
    let gpus = machine.gpus();
    let cpu = machine.cpu(0);
    let last = gpus.len() - 1;
    let cpu_reaches = |gpu: usize| machine.runtime.host().reaches(gpus[gpu]);
    let base = machine.reserve(8 * granule);
    process::assert_untouchable(base.get(), 8 * granule, name);
    let near = machine.create(0, granule);
    let far = machine.create(last, 2 * granule);
    machine.map(base, granule, near);
    machine.map(at(base, granule), 2 * granule, far);
    machine.map(at(base, 5 * granule), granule, near);
    process::assert_untouchable(base.get(), 8 * granule, name);
    let all_agents: Vec<_> = gpus.iter().map(|&gpu| access(gpu, Access::ReadWrite)).collect();
    vmm.set_access(base, 3 * granule, &all_agents).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (number, &gpu) in gpus.iter().enumerate() {
        for offset in [0, granule, 3 * granule - 1] {
            let page = machine.simulation.page(number, at(base, offset).get());
            assert!(page.is_some_and(|page| page.writable), "{name}: GPU {number} at {offset:#x}");
        }
        assert_eq!(vmm.get_access(gpu, at(base, granule)).unwrap(), Access::ReadWrite);
        assert_eq!(vmm.get_access(gpu, at(base, 5 * granule)).unwrap(), Access::None);
    }
    // GPUs write, and the last one copies what the first has written.
    vmm.fill(base, 0x0403_0201, granule).unwrap_or_else(|e| panic!("{name}: {e}"));
    vmm.copy(gpus[last], at(base, granule), base, granule).unwrap();
    if cpu_reaches(0) && cpu_reaches(last) {
        // The CPU reads it, also through the alias.
        machine.grant(base, 3 * granule, cpu, Access::ReadWrite);
        machine.grant(at(base, 5 * granule), granule, cpu, Access::Read);
        let expected = [1, 2, 3, 4].repeat(granule / 4);
        let mut bytes = vec![0; granule];
        for place in [0, granule, 5 * granule] {
            vmm.read(at(base, place), &mut bytes).unwrap();
            assert!(bytes == expected, "{name}: at {place:#x}");
        }
        // A GPU copies what the CPU writes to the memory of another handle.
        let written = pattern(7, granule);
        vmm.write(base, &written).unwrap();
        vmm.read(at(base, 5 * granule), &mut bytes).unwrap();
        assert!(bytes == written, "{name}: the alias is the same memory");
        vmm.copy(gpus[0], at(base, 2 * granule), base, granule).unwrap();
        vmm.read(at(base, 2 * granule), &mut bytes).unwrap();
        assert!(bytes == written, "{name}: a GPU's copy of what the CPU wrote");
        // Across the boundary of two mappings.
        let across = pattern(9, 64);
        vmm.write(at(base, granule - 32), &across).unwrap();
        let mut seen = [0; 64];
        vmm.read(at(base, granule - 32), &mut seen).unwrap();
        assert_eq!(seen[..], across[..], "{name}");
        // Unmapped, and mapped at another address: the contents stay.
        vmm.unmap(base, 3 * granule).unwrap_or_else(|e| panic!("{name}: {e}"));
        process::assert_untouchable(base.get(), 3 * granule, name);
        machine.map(at(base, 6 * granule), 2 * granule, far);
        process::assert_untouchable(at(base, 6 * granule).get(), 2 * granule, name);
        machine.grant(at(base, 6 * granule), 2 * granule, cpu, Access::Read);
        vmm.read(at(base, 7 * granule + 32), &mut bytes[..32]).unwrap();
        assert_eq!(bytes[..32], written[32..64], "{name}: after mapping again");
        // Mapping one of the two granules is enough.
        vmm.unmap(at(base, 6 * granule), 2 * granule).unwrap();
        machine.map(at(base, 6 * granule), granule, far);
        vmm.unmap(at(base, 6 * granule), granule).unwrap();
    } else {
        let refused = vmm.set_access(base, granule, &[access(cpu, Access::Read)]);
        assert!(
            matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::NotSupported(_))),
            "{name}: {refused:?}"
        );
        vmm.unmap(base, 3 * granule).unwrap();
    }
    for gpu in 0..gpus.len() {
        assert_eq!(machine.simulation.page(gpu, base.get()), None, "{name}");
    }
    // Released before it is unmapped, and in the other order.
    vmm.release(near).unwrap();
    assert!(vmm.allocation_size(near).is_err());
    let kept = vmm.retain_allocation_handle(at(base, 5 * granule + 1)).unwrap();
    assert_eq!(kept, near);
    assert_eq!(vmm.allocation_size(kept).unwrap(), granule);
    vmm.release(kept).unwrap();
    vmm.unmap(at(base, 5 * granule), granule).unwrap();
    vmm.release(far).unwrap();
    assert_eq!(vmm.usage().handles, 0, "{name}");
    process::assert_taken(base.get(), 8 * granule, name);
    vmm.address_free(base, 8 * granule).unwrap();
    machine.assert_empty();
}

/// The same with owned values.
fn by_values(machine: &Machine, name: &str) {
    let granule = machine.granule();
    let gpus = machine.gpus();
    let cpu = machine.cpu(0);
    let reservation = Reservation::builder(4 * granule).aligned_to(2 * MIB).reserve(&machine.vmm);
    let reservation = reservation.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(reservation.address().get() % (2 * MIB), 0, "{name}");
    let memory = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
    let one = reservation.map(0, &memory).unwrap();
    let other = reservation.map(2 * granule, &memory).unwrap();
    // One after the other, the owner first, which fails in ROCm 7.14.
    for &gpu in &gpus {
        one.grant(&[gpu], Access::ReadWrite).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for (number, &gpu) in gpus.iter().enumerate() {
        assert_eq!(one.access(gpu).unwrap(), Access::ReadWrite, "{name}");
        assert_eq!(other.access(gpu).unwrap(), Access::None, "{name}");
        let page = machine.simulation.page(number, one.address().get());
        assert!(page.is_some(), "{name}: GPU {number}");
        assert_eq!(machine.simulation.page(number, other.address().get()), None, "{name}");
    }
    one.fill(0, 0xaaaa_aaaa, one.size()).unwrap();
    if machine.runtime.gpus().all(|gpu| gpu.large_bar) {
        other.grant(&[cpu], Access::ReadWrite).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut bytes = [0; 8];
        other.read(granule - 8, &mut bytes).unwrap();
        assert_eq!(bytes, [0xaa; 8], "{name}");
        other.write(4, b"text").unwrap();
        one.grant(&[cpu], Access::Read).unwrap();
        one.read(4, &mut bytes).unwrap();
        assert_eq!(&bytes, b"text\xaa\xaa\xaa\xaa", "{name}");
        assert!(one.write(4, b"text").is_err());
    }
    one.revoke(&gpus).unwrap_or_else(|e| panic!("{name}: {e}"));
    for number in 0..gpus.len() {
        assert_eq!(machine.simulation.page(number, one.address().get()), None, "{name}");
    }
    drop(reservation);
    drop(memory);
    assert_eq!(machine.vmm.usage().mappings, 2);
    drop(one);
    assert_eq!(machine.vmm.usage().reservations, 1, "{name}");
    other.unmap().unwrap();
    machine.assert_empty();
}

#[track_caller]
fn live(config: Config, name: &str) {
    let before = process();
    let machine = Machine::new(config);
    by_calls(&machine, name);
    by_values(&machine, name);
    by_calls(&machine, name);
    machine.close();
    assert_eq!(process(), before, "{name}");
}

/// Kinds of machines. They are cheap, because memory is allocated on the first access.
fn kinds() -> [(&'static str, Config); 5] {
    [
        ("MI300X", Config::mi300x(1)),
        ("two MI300X", Config::mi300x(2)),
        ("eight MI300X", Config::mi300x(8)),
        ("a Radeon", Config::consumer()),
        ("an MI300A", Config::apu()),
    ]
}

fn live_everywhere(granule: usize) {
    if process::ran_alone() {
        return;
    }
    for (release, of_release) in machine::releases() {
        for (kind, config) in kinds() {
            let mut config = config
                .with_generation(of_release.generation)
                .with_extension(of_release.extension_minor)
                .with_granule(granule as u64);
            config.extension_reported = of_release.extension_reported;
            live(config, &format!("{kind} with ROCm {release}"));
        }
    }
}

#[test]
fn full_cycle_on_every_machine_and_generation() {
    live_everywhere(4 * KIB);
}

#[test]
fn full_cycle_in_large_granules() {
    if process::ran_alone() {
        return;
    }
    for (generation, config) in machine::generations() {
        live(config.with_granule(2 * MIB as u64), &format!("{generation} in 2 MiB"));
    }
}

#[test]
fn full_cycle_with_runtime_cpu_access() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        live(without_cpu_mapping(config), &format!("ROCm {release} by the runtime"));
    }
}

#[test]
fn full_cycle_with_enforced_gpu_permissions() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        live(config.with_gpu_permissions(GpuPermissions::Enforced), &format!("ROCm {release}"));
    }
}

#[test]
fn set_access_keeps_unnamed_agents() {
    if process::ran_alone() {
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
        let all = [cpu, gpu, owner].map(|agent| machine.vmm.get_access(agent, base).unwrap());
        assert_eq!(all, [Access::Read, Access::Read, Access::ReadWrite], "{release}");
        // Named twice: the last one counts.
        let twice = [access(gpu, Access::ReadWrite), access(gpu, Access::None)];
        machine.vmm.set_access(base, granule, &twice).unwrap();
        assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), Access::None, "{release}");
        assert_eq!(permissions(1), Some((true, true)), "{release}");
    }
}

#[test]
fn enforcement_is_reported_per_agent() {
    if process::ran_alone() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let agents = machine.runtime.agents();
    assert_eq!(agents[0].enforcement(), Enforcement::Enforced);
    assert_eq!(agents[1].enforcement(), Enforcement::Remembered);
}
