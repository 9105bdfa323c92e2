//! Every combination of flags: the memory's owner, the agents with access, its backing, and its contents.

use crate::fixture::{Fixture, on_amd};
use crate::host_memory::ZeroedMemory;
use crate::{AML_FAILURE, AML_NOT_SUPPORTED, GIB, MIB};
use hsa_vmm::area::{AreaFlags, AreaMemory, Backing, Device, MmapOptions};
use hsa_vmm::error::Rejected;
use hsa_vmm::simulation::{Config, Cpu};
use hsa_vmm::{Area, Vmm};
use std::cell::LazyCell;

use Backing::{Locked, Pool, Virtual};

const SIZES: [usize; 8] = [1, 32, 4096, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * GIB];
/// The largest size that is always compared completely; see [`parts`].
const MAX_COMPARED_SIZE: usize = 64 << 10;
/// The largest size of a copy.
const MAX_COPIED_SIZE: usize = 2 * MIB + 1;

/// Returns a few sizes, for tests whose result does not depend on the size. Only long tests use a large size.
fn few_sizes() -> &'static [usize] {
    if hsa_rocr::test::is_long() { &[1, 4096, 3 * GIB] } else { &[1, 4096] }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Gpu,
    Cpu,
}
use Owner::{Cpu as OfCpu, Gpu as OfGpu};

/// The expected backing and owner of a combination, and whether the host and all GPUs have access.
type Row = (Backing, Owner, bool, bool);

/// The expected rows, indexed by the flags' bits: host 1, unified 2, mapped 4, global 8.
const EXPECTED: [Row; 16] = [
    (Virtual, OfGpu, false, false), // none
    (Pool, OfCpu, true, false),     // host
    (Virtual, OfGpu, true, false),  // unified
    (Virtual, OfGpu, true, false),  // host, unified
    (Locked, OfCpu, true, false),   // mapped
    (Pool, OfCpu, true, false),     // host, mapped
    (Virtual, OfGpu, true, false),  // unified, mapped
    (Virtual, OfGpu, true, false),  // host, unified, mapped
    (Virtual, OfGpu, false, true),  // global
    (Pool, OfCpu, true, true),      // host, global
    (Virtual, OfGpu, true, true),   // unified, global
    (Virtual, OfGpu, true, true),   // host, unified, global
    (Locked, OfCpu, true, true),    // mapped, global
    (Pool, OfCpu, true, true),      // host, mapped, global
    (Virtual, OfGpu, true, true),   // unified, mapped, global
    (Virtual, OfGpu, true, true),   // host, unified, mapped, global
];

/// Returns the expected row if the CPU cannot access the GPU's memory, or GPUs cannot access each other's memory.
fn without_direct_access(bits: u32) -> Row {
    match EXPECTED[bits as usize] {
        (Virtual, OfGpu, true, all_gpus) => (Pool, OfCpu, true, all_gpus),
        row => row,
    }
}

/// Returns the expected row without virtual memory.
fn without_virtual_memory(bits: u32) -> Row {
    match without_direct_access(bits) {
        (Virtual, owner, host, all_gpus) => (Pool, owner, host, all_gpus),
        row => row,
    }
}

/// Returns bytes to write, which depend on the offset and the seed.
fn pattern(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|index| (index * 7 + index / 251 + seed) as u8).collect()
}

/// Returns the offsets and sizes of the parts that are compared. Memory that is small, or that is copied in several
/// portions, is compared completely. Other memory is compared at both ends and in the middle.
fn parts(size: usize) -> Vec<(usize, usize)> {
    if size <= MAX_COMPARED_SIZE || size == MAX_COPIED_SIZE {
        vec![(0, size)]
    } else {
        vec![(0, 4096), (size / 2, 4096), (size - 4096, 4096)]
    }
}

/// Loads the byte at an address in this process.
fn load(address: usize) -> u8 {
    // SAFETY: the address is in mapped memory of an area to which the host has access.
    unsafe { (address as *const u8).read_volatile() }
}

fn store(address: usize, value: u8) {
    // SAFETY: the address is in mapped memory of an area to which the host has access.
    unsafe { (address as *mut u8).write_volatile(value) };
}

/// Writes the memory through the library, by stores of the host if the host has access, by copies, and by a fill.
/// Checks the contents after each.
fn check_contents(
    memory: &AreaMemory<'_>,
    peer_memory: &AreaMemory<'_>,
    host_has_access: bool,
    bytes: &[u8],
    context: &str,
) {
    let mut found = vec![0; bytes.len()];
    for (offset, size) in parts(memory.size()) {
        let (bytes, found) = (&bytes[..size], &mut found[..size]);
        memory.write(offset, bytes).unwrap_or_else(|error| panic!("{context}: {error}"));
        memory.read(offset, found).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(bytes == found, "{context}: {size} bytes at {offset:#x}");
        if host_has_access {
            let last = memory.address().get() + offset + size - 1;
            assert_eq!(load(last), bytes[size - 1], "{context}: the host's view");
            store(last, !bytes[size - 1]);
            memory.read(offset + size - 1, &mut found[..1]).unwrap();
            assert_eq!(found[0], !bytes[size - 1], "{context}: the byte that the host wrote");
            store(last, bytes[size - 1]);
        }
        let copied = size.min(peer_memory.size());
        peer_memory
            .copy(0, memory, offset, copied)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        peer_memory.read(0, &mut found[..copied]).unwrap();
        assert!(found[..copied] == bytes[..copied], "{context}: copied from {offset:#x}");
        memory.copy(offset + size - copied, peer_memory, 0, copied).unwrap();
        memory.read(offset + size - copied, &mut found[..copied]).unwrap();
        assert!(found[..copied] == bytes[..copied], "{context}: copied to the end");
    }
    let filled_size = memory.size().min(64) / 4 * 4;
    memory.fill(0, 0x0102_0304, filled_size).unwrap_or_else(|error| panic!("{context}: {error}"));
    memory.read(0, &mut found[..filled_size]).unwrap();
    assert_eq!(
        found[..filled_size],
        0x0102_0304u32.to_ne_bytes().repeat(filled_size / 4),
        "{context}: filled"
    );
}

fn check_combination(
    fixture: &Fixture,
    flags: AreaFlags,
    device: usize,
    size: usize,
    row: Row,
    bytes: &[u8],
) {
    let runtime = &fixture.runtime;
    let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
    let (backing, owner, host_has_access, all_gpus_have_access) = row;
    let context = format!("{flags} on device {device}, {size:#x} bytes");
    let area = fixture.area(device, flags).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mut host_memory = (backing == Locked).then(|| ZeroedMemory::new(size));
    let options = match &mut host_memory {
        Some(memory) => MmapOptions::new().with_host_memory(memory.bytes()),
        None => MmapOptions::new(),
    };
    let memory = area.mmap(size, options).unwrap_or_else(|error| panic!("{context}: {error}"));

    assert_eq!((memory.backing(), area.backing()), (backing, Ok(backing)), "{context}");
    assert_eq!(memory.size(), size, "{context}");
    assert!(memory.allocated_size() >= size, "{context}: {:#x}", memory.allocated_size());
    assert_eq!(memory.device(), gpus[device], "{context}");
    let nearest = runtime.agent(gpus[device]).unwrap().nearest_cpu.unwrap();
    let expected = match (owner, backing) {
        (OfGpu, _) => gpus[device],
        (OfCpu, Locked) => runtime.host().id(),
        (OfCpu, _) => nearest,
    };
    assert_eq!(memory.owner(), expected, "{context}");
    assert!(memory.agents().contains(&memory.owner()), "{context}: {:?}", memory.agents());
    assert_eq!(memory.agents().contains(&runtime.host().id()), host_has_access, "{context}");
    for (number, &gpu) in gpus.iter().enumerate() {
        let has_access = all_gpus_have_access || number == device;
        assert_eq!(memory.agents().contains(&gpu), has_access, "{context}: GPU {number}");
        // AMD's runtime locks memory for all GPUs, including those that the call does not name.
        let has_access = has_access || backing == Locked;
        for offset in [0, size - 1] {
            let address = memory.device_address().checked_add(offset).unwrap();
            assert_eq!(
                fixture.can_access(number, address),
                has_access,
                "{context}: GPU {number} at {offset:#x}"
            );
        }
    }
    // Memory of the last device, for copies between devices.
    let peer_memory = fixture.area(Device::Number(gpus.len() - 1), AreaFlags::DEFAULT).unwrap();
    let peer_memory = peer_memory.mmap(size.min(MAX_COPIED_SIZE), MmapOptions::new()).unwrap();
    check_contents(&memory, &peer_memory, host_has_access, bytes, &context);

    let freed_address = memory.device_address();
    memory.munmap().unwrap_or_else(|Rejected { error, .. }| panic!("{context}: {error}"));
    if fixture.simulation.is_none() {
        assert!(!fixture.can_access(device, freed_address), "{context}: after munmap");
    }
    // The caller's own memory contains the bytes written last.
    if let Some(host_memory) = &mut host_memory {
        let first = if size < 4 { bytes[0] } else { 0x0102_0304u32.to_ne_bytes()[0] };
        assert_eq!(host_memory.bytes()[0], first, "{context}");
    }
}

/// Checks all combinations of flags with all sizes. Uses every device for 4096 bytes, and one device for other sizes.
fn check_all_combinations(fixture: &Fixture, sizes: &[usize], expected: impl Fn(u32) -> Row) {
    let bytes = LazyCell::new(|| pattern(MAX_COPIED_SIZE, 11));
    let devices = fixture.runtime.gpus().count();
    for bits in 0..16 {
        let flags = AreaFlags::from_bits_retain(bits);
        for (index, &size) in sizes.iter().enumerate() {
            for device in 0..devices {
                if size == 4096 || device == (index + bits as usize) % devices {
                    check_combination(fixture, flags, device, size, expected(bits), &bytes);
                }
            }
        }
    }
    fixture.assert_idle();
}

fn standard_row(bits: u32) -> Row {
    EXPECTED[bits as usize]
}

#[test]
fn flags_select_backing_and_access_on_the_simulation() {
    check_all_combinations(&Fixture::simulated(Config::mi300x(2)), &SIZES, standard_row);
}

#[test]
fn flags_select_backing_and_access_on_amds_runtime() {
    on_amd("combinations::flags_select_backing_and_access_on_amds_runtime", |fixture| {
        check_all_combinations(fixture, &SIZES, standard_row);
    });
}

#[test]
fn flags_select_the_backing_in_each_generation() {
    use hsa_vmm::simulation::Generation;
    for generation in Generation::ALL {
        let fixture = Fixture::simulated(Config::mi300x(2).with_generation(generation));
        for bits in 0..16 {
            let flags = AreaFlags::from_bits_retain(bits);
            check_combination(
                &fixture,
                flags,
                bits as usize % 2,
                5000,
                EXPECTED[bits as usize],
                &pattern(5000, 3),
            );
        }
        fixture.assert_idle();
    }
}

#[test]
fn flags_select_pools_without_virtual_memory() {
    let mut config = Config::mi300x(2);
    config.vmem = false;
    check_all_combinations(&Fixture::simulated(config), few_sizes(), without_virtual_memory);
}

#[test]
fn host_memory_is_used_without_large_bar() {
    check_all_combinations(
        &Fixture::simulated(Config::consumer()),
        few_sizes(),
        without_direct_access,
    );
}

#[test]
fn flags_select_the_backing_on_an_apu() {
    check_all_combinations(&Fixture::simulated(Config::apu()), few_sizes(), standard_row);
}

/// Pool memory of the host belongs to the CPU nearest to the device.
#[test]
fn host_memory_belongs_to_the_nearest_cpu() {
    let mut config = Config::mi300x(2);
    let second: Cpu = config.cpus[0].clone();
    config.cpus.push(second);
    config.gpus[1].nearest_cpu = 1;
    check_all_combinations(&Fixture::simulated(config), few_sizes(), standard_row);
}

/// With granules of 2 MiB, memory keeps its requested size, and its allocated size is rounded up.
#[test]
fn large_granules_keep_the_requested_size() {
    let fixture = Fixture::simulated(Config::mi300x(2).with_granule(2 << 20));
    for bits in 0..16 {
        let flags = AreaFlags::from_bits_retain(bits);
        check_combination(&fixture, flags, 0, 100, EXPECTED[bits as usize], &pattern(100, 5));
    }
    let area = fixture.area(Device::Current, AreaFlags::DEFAULT).unwrap();
    for (size, allocated) in [(1, 2 * MIB), (2 * MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB)] {
        let memory = area.mmap(size, MmapOptions::new()).unwrap();
        assert_eq!((memory.size(), memory.allocated_size()), (size, allocated));
    }
    drop(area);
    fixture.assert_idle();
}

/// Without peer access, only memory of the host is accessible to all GPUs.
#[test]
fn global_device_memory_needs_peer_access() {
    let mut config = Config::mi300x(2);
    config.peer_access = false;
    let fixture = Fixture::simulated(config);
    for bits in 0..16 {
        let flags = AreaFlags::from_bits_retain(bits);
        let global = flags.contains(AreaFlags::GLOBAL);
        match EXPECTED[bits as usize] {
            (Virtual, _, false, true) => {
                let area = fixture.area(1, flags).unwrap();
                let error = area.mmap(1, MmapOptions::new()).unwrap_err();
                assert_eq!(error.aml(), AML_NOT_SUPPORTED, "{error}");
                assert_eq!(area.backing(), Err(error));
            }
            (Virtual, _, true, _) if global => {
                check_combination(
                    &fixture,
                    flags,
                    1,
                    99,
                    without_direct_access(bits),
                    &pattern(99, 1),
                );
            }
            row => check_combination(&fixture, flags, 1, 99, row, &pattern(99, 1)),
        }
    }
    fixture.assert_idle();
}

/// A `Vmm` lists the memory of its areas. Large memory is aligned for large pages.
#[test]
fn virtual_memory_is_listed_by_the_vmm() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    let vmm = Vmm::open(&fixture.runtime).unwrap();
    let area = Area::new(&vmm, 1, AreaFlags::UNIFIED).unwrap();
    for size in [5, 2 * MIB, 3 * MIB + 1] {
        let memory = area.mmap(size, MmapOptions::new()).unwrap();
        let listed = vmm.mappings();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].address, memory.address());
        assert_eq!(listed[0].size, size.next_multiple_of(4096));
        assert_eq!(listed[0].access.len(), 2, "the second GPU and the CPU");
        let alignment = if size >= 2 * MIB { 2 * MIB } else { 4096 };
        assert_eq!(memory.address().get() % alignment, 0);
        // A call by address can unmap an area's memory. Reads of the memory then fail.
        vmm.unmap(listed[0].address, listed[0].size).unwrap();
        let error = memory.read(0, &mut [0; 5]).unwrap_err();
        assert_eq!(error.aml(), AML_FAILURE, "{error}");
        let Rejected { value: memory, error } = memory.munmap().unwrap_err();
        assert_eq!(error.aml(), AML_FAILURE, "{error}");
        drop(memory);
        let usage = vmm.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0));
    }
    drop((area, vmm));
    fixture.assert_idle();
}
