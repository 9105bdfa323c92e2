//! Areas behave like AML's areas for HIP (`aml/area/hip.h`). AML is Argonne's memory library.

use crate::case::{Case, TestResult, ensure, ensure_bytes, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::area::{AreaFlags, AreaMemory, Backing, Device, MmapOptions};
use hsa_vmm::{AgentId, Area, ErrorKind};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "area.create.ready_made",
        "AML: aml_area_hip, aml_area_hip_unified",
        "the two predefined areas allocate memory of the first device",
        predefined_areas_allocate,
    ),
    Case::new(
        "area.mmap.device_memory",
        "AML: AML_AREA_HIP_FLAG_DEFAULT",
        "without flags, areas map memory of the device with the virtual memory calls; only the device has access",
        default_is_device_memory,
    ),
    Case::new(
        "area.mmap.host_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_HOST",
        "HOST allocates host memory; the device can access it with or without MAPPED",
        host_is_host_memory,
    ),
    Case::new(
        "area.mmap.unified_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_UNIFIED",
        "UNIFIED memory has one address for host and device, with or without HOST and MAPPED",
        unified_has_one_address,
    ),
    Case::new(
        "area.mmap.global_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_GLOBAL",
        "GLOBAL grants all devices access, and each device can copy",
        global_grants_all_devices,
    ),
    Case::new(
        "area.mmap.existing_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_MAPPED without ALLOC_HOST, hipHostRegister",
        "the program's own memory is mapped, and the device reads and writes it",
        maps_existing_memory,
    ),
    Case::new(
        "area.mmap.another_device",
        "AML: struct aml_area_hip_mmap_options",
        "mmap can choose another device than the device of the area, including device 0",
        mmap_chooses_device,
    ),
    Case::new(
        "area.mmap.any_size",
        "AML: tests/area/test_hip.c",
        "with every combination of flags, memory of any size can be allocated, written and read back",
        allocates_any_size,
    ),
    Case::new(
        "area.munmap.gives_back",
        "AML: aml_area_hip_munmap",
        "memory can be allocated and unmapped again and again; Vmm::usage counts nothing afterwards",
        munmap_frees_memory,
    ),
    Case::new(
        "area.transfer.between_kinds",
        "HIP: hipMemcpy",
        "memory of every combination of flags is copied to memory of every other combination",
        copies_between_all_flags,
    ),
];

const SIZES: [usize; 7] = [1, 32, 4096, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1];

/// Returns every combination of the four flags.
pub(super) fn flag_combinations() -> impl Iterator<Item = AreaFlags> {
    (0..16).map(AreaFlags::from_bits_retain)
}

/// Creates an area of the first GPU on which handles can be created.
pub(super) fn create_area(context: &Context, flags: AreaFlags) -> TestResult<Area> {
    Ok(Area::new(context.vmm(), context.gpu(), flags)?)
}

/// Allocates memory of an area. If the area's flags require existing memory, maps `existing` instead. Skips the case if
/// the runtime does not support the flags, for example because GPUs lack peer access.
pub(super) fn mmap<'a>(
    area: &Area,
    size: usize,
    existing: &'a mut [u8],
) -> TestResult<AreaMemory<'a>> {
    let options = match area.flags().maps_existing_memory() {
        true => MmapOptions::new().with_host_memory(existing),
        false => MmapOptions::new(),
    };
    match area.mmap(size, options) {
        Err(error) if matches!(error.kind(), ErrorKind::NotSupported(_)) => {
            Err(NotPassed::Skipped(error.to_string()))
        }
        memory => Ok(memory?),
    }
}

/// Writes up to 8 KiB to each end of the memory, and checks that `read` returns the written bytes.
fn write_and_check(memory: &AreaMemory<'_>, seed: usize) -> TestResult {
    let size = memory.size();
    let part = size.min(8192);
    let written: Vec<u8> = (0..part).map(|index| (index * 7 + seed) as u8).collect();
    for offset in [0, size - part] {
        memory.write(offset, &written)?;
        let mut read = vec![0; part];
        memory.read(offset, &mut read)?;
        ensure_bytes!(read, written, "the bytes at {offset} of {size}");
    }
    Ok(())
}

fn predefined_areas_allocate(context: &Context) -> TestResult {
    let first = context.runtime().gpus().next().map(hsa_vmm::Agent::id);
    let area = |flags| Area::new(context.vmm(), Device::Current, flags);
    let areas = [area(AreaFlags::DEFAULT)?, area(AreaFlags::UNIFIED)?];
    for (area, flags) in areas.iter().zip([AreaFlags::DEFAULT, AreaFlags::UNIFIED]) {
        ensure_eq!(area.flags(), flags, "the flags");
        let memory = mmap(area, 1000, &mut [])?;
        ensure_eq!(Some(memory.device()), first, "the device of {area}");
        write_and_check(&memory, 1)?;
    }
    Ok(())
}

/// Checks that exactly these GPUs have access, and the host if and only if `host_has_access` is true.
fn check_access(
    context: &Context,
    memory: &AreaMemory<'_>,
    gpus: &[AgentId],
    host_has_access: bool,
) -> TestResult {
    for agent in context.runtime().gpus().map(hsa_vmm::Agent::id) {
        let expected = gpus.contains(&agent);
        ensure_eq!(memory.agents().contains(&agent), expected, "whether {agent} has access");
    }
    ensure_eq!(
        memory.agents().contains(&context.host()),
        host_has_access,
        "whether the host has access"
    );
    Ok(())
}

fn default_is_device_memory(context: &Context) -> TestResult {
    let memory = mmap(&create_area(context, AreaFlags::DEFAULT)?, 100, &mut [])?;
    ensure_eq!(memory.backing(), Backing::Virtual, "the backing");
    ensure_eq!(memory.owner(), context.gpu(), "the owner");
    check_access(context, &memory, &[context.gpu()], false)?;
    let listed = context.vmm().mappings();
    ensure!(
        listed.iter().any(|mapping| mapping.address == memory.address()),
        "{} is not among the mappings of its Vmm",
        memory.address()
    );
    write_and_check(&memory, 2)
}

fn host_is_host_memory(context: &Context) -> TestResult {
    for flags in [AreaFlags::HOST, AreaFlags::HOST | AreaFlags::MAPPED] {
        let memory = mmap(&create_area(context, flags)?, 100, &mut [])?;
        ensure_eq!(memory.backing(), Backing::Pool, "the backing of {flags}");
        ensure_eq!(memory.device_address(), memory.address(), "the device's address");
        check_access(context, &memory, &[context.gpu()], true)?;
        write_and_check(&memory, 3)?;
        check_device_reads(context, &memory)?;
    }
    Ok(())
}

/// Checks that the device reads the memory's contents.
fn check_device_reads(context: &Context, memory: &AreaMemory<'_>) -> TestResult {
    let device_memory = mmap(&create_area(context, AreaFlags::DEFAULT)?, memory.size(), &mut [])?;
    device_memory.copy(0, memory, 0, memory.size())?;
    let (mut expected, mut found) = (vec![0; memory.size()], vec![1; memory.size()]);
    memory.read(0, &mut expected)?;
    device_memory.read(0, &mut found)?;
    ensure_bytes!(found, expected, "the bytes that the device reads");
    Ok(())
}

fn unified_has_one_address(context: &Context) -> TestResult {
    let other_flags = [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::MAPPED];
    let host_and_mapped = AreaFlags::HOST | AreaFlags::MAPPED;
    for flags in other_flags.into_iter().chain([host_and_mapped]) {
        let memory = mmap(&create_area(context, AreaFlags::UNIFIED | flags)?, 100, &mut [])?;
        let is_on_device = context.cpu_can_access(context.gpu());
        let backing = if is_on_device { Backing::Virtual } else { Backing::Pool };
        ensure_eq!(memory.backing(), backing, "the backing with {flags}");
        ensure_eq!(memory.device_address(), memory.address(), "the device's address");
        check_access(context, &memory, &[context.gpu()], true)?;
        write_and_check(&memory, 4)?;
        if is_on_device {
            // Compare the area's `read` with loads by the CPU.
            let (mut expected, mut found) = ([0; 100], [1; 100]);
            memory.read(0, &mut expected)?;
            context.vmm().read(memory.address(), &mut found)?;
            ensure!(expected == found, "the CPU reads other bytes");
        }
        check_device_reads(context, &memory)?;
    }
    Ok(())
}

fn global_grants_all_devices(context: &Context) -> TestResult {
    context.other_gpu()?;
    let all: Vec<_> = context.runtime().gpus().map(hsa_vmm::Agent::id).collect();
    for kind in [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::UNIFIED, AreaFlags::MAPPED] {
        let mut host_memory = vec![0; 100];
        let memory = mmap(&create_area(context, kind | AreaFlags::GLOBAL)?, 100, &mut host_memory)?;
        check_access(context, &memory, &all, kind != AreaFlags::DEFAULT)?;
        write_and_check(&memory, 5)?;
        let mut expected = [0; 100];
        memory.read(0, &mut expected)?;
        for &gpu in &all {
            let gpu_area = Area::new(context.vmm(), gpu, AreaFlags::DEFAULT)?;
            let gpu_memory = mmap(&gpu_area, 100, &mut [])?;
            gpu_memory.copy(0, &memory, 0, 100)?;
            let mut found = [1; 100];
            gpu_memory.read(0, &mut found)?;
            ensure!(expected == found, "{gpu} reads other bytes from {kind}");
        }
    }
    Ok(())
}

fn maps_existing_memory(context: &Context) -> TestResult {
    let mut host_memory = vec![1; 5000];
    let device_memory = mmap(&create_area(context, AreaFlags::DEFAULT)?, 1000, &mut [])?;
    device_memory.fill(0, 0x0505_0505, 1000)?;
    // The memory begins inside a page, and is shorter than the slice.
    let mapped = mmap(&create_area(context, AreaFlags::MAPPED)?, 4000, &mut host_memory[100..])?;
    ensure_eq!(mapped.backing(), Backing::Locked, "the backing");
    check_access(context, &mapped, &[context.gpu()], true)?;
    mapped.copy(500, &device_memory, 0, 1000)?;
    mapped.write(3996, b"last")?;
    device_memory.copy(0, &mapped, 3000, 1000)?;
    mapped.munmap()?;
    let mut expected = vec![1; 5000];
    expected[600..1600].fill(5);
    expected[4096..4100].copy_from_slice(b"last");
    ensure_bytes!(host_memory, expected, "the bytes that the device wrote");
    let mut read = vec![0; 1000];
    device_memory.read(0, &mut read)?;
    ensure_bytes!(read, expected[3100..4100], "the bytes that the device read");
    Ok(())
}

fn mmap_chooses_device(context: &Context) -> TestResult {
    context.other_gpu()?;
    for (number, gpu) in context.runtime().gpus().enumerate() {
        let last = context.runtime().gpus().count() - 1;
        let area = Area::new(context.vmm(), last, AreaFlags::DEFAULT)?;
        let memory = area.mmap(10, MmapOptions::new().with_device(number))?;
        ensure_eq!(memory.device(), gpu.id(), "the device with number {number}");
        write_and_check(&memory, 6)?;
        let memory = area.mmap(10, MmapOptions::new().with_device(gpu.id()))?;
        ensure_eq!(memory.owner(), gpu.id(), "the owner");
    }
    Ok(())
}

fn allocates_any_size(context: &Context) -> TestResult {
    let mut host_memory = vec![0; SIZES.into_iter().max().unwrap_or(0)];
    for flags in flag_combinations() {
        let area = create_area(context, flags)?;
        for size in SIZES {
            let memory = mmap(&area, size, &mut host_memory)?;
            ensure_eq!(memory.size(), size, "the size of {flags}");
            ensure!(memory.allocated_size() >= size, "{flags}: less memory than requested");
            write_and_check(&memory, size)?;
            memory.munmap()?;
        }
    }
    Ok(())
}

fn munmap_frees_memory(context: &Context) -> TestResult {
    let mut host_memory = vec![0; 100_000];
    for flags in flag_combinations() {
        let area = create_area(context, flags)?;
        for round in 0..5 {
            let memory = mmap(&area, 100_000, &mut host_memory)?;
            memory.write(99_999, &[round])?;
            memory.munmap()?;
        }
    }
    let usage = context.vmm().usage();
    let in_use = usage.reservations + usage.handles + usage.mappings;
    ensure!(in_use == 0, "memory is leaked: {usage:?}");
    Ok(())
}

fn copies_between_all_flags(context: &Context) -> TestResult {
    for (seed, flags) in flag_combinations().enumerate() {
        let mut host_memory = vec![0; 3000];
        let memory = mmap(&create_area(context, flags)?, 3000, &mut host_memory)?;
        write_and_check(&memory, seed)?;
        let mut expected = vec![0; 3000];
        memory.read(0, &mut expected)?;
        for other_flags in flag_combinations() {
            let mut host_memory = vec![0; 3000];
            let other = mmap(&create_area(context, other_flags)?, 3000, &mut host_memory)?;
            other.copy(10, &memory, 1000, 2000)?;
            let mut found = vec![0; 2000];
            other.read(10, &mut found)?;
            ensure_bytes!(found, expected[1000..], "from {flags} to {other_flags}");
        }
    }
    Ok(())
}
