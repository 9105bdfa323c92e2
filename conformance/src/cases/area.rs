//! Areas with the behaviour of AML's areas for HIP (`aml/area/hip.h`).

use crate::case::{Case, Verdict, ensure, ensure_bytes, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::area::{AreaFlags, AreaMemory, Backing, Device, MmapOptions};
use hsa_vmm::{AgentId, Area, ErrorKind};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "area.create.ready_made",
        "AML: aml_area_hip, aml_area_hip_unified",
        "the two predefined areas allocate memory of the first device",
        ready_made,
    ),
    Case::new(
        "area.mmap.device_memory",
        "AML: AML_AREA_HIP_FLAG_DEFAULT",
        "without flags the memory is virtual and only the device has access",
        device_memory,
    ),
    Case::new(
        "area.mmap.host_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_HOST",
        "HOST is host memory, which the device can access with or without MAPPED",
        host_memory,
    ),
    Case::new(
        "area.mmap.unified_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_UNIFIED",
        "UNIFIED is one address for host and device, with any of HOST and MAPPED",
        unified_memory,
    ),
    Case::new(
        "area.mmap.global_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_GLOBAL",
        "GLOBAL gives all devices access, and each of them copies",
        global_memory,
    ),
    Case::new(
        "area.mmap.existing_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_MAPPED without ALLOC_HOST, hipHostRegister",
        "the program's own memory is mapped, and holds what the device writes",
        existing_memory,
    ),
    Case::new(
        "area.mmap.another_device",
        "AML: struct aml_area_hip_mmap_options",
        "one mmap can choose another device than the area's, also device 0",
        another_device,
    ),
    Case::new(
        "area.mmap.any_size",
        "AML: tests/area/test_hip.c",
        "every combination of flags allocates memory of any size that holds what is written",
        any_size,
    ),
    Case::new(
        "area.munmap.gives_back",
        "AML: aml_area_hip_munmap",
        "unmapped memory can be allocated again, any number of times",
        gives_back,
    ),
    Case::new(
        "area.transfer.between_kinds",
        "HIP: hipMemcpy",
        "memory of every combination of flags is copied to memory of every other",
        between_kinds,
    ),
];

const SIZES: [usize; 7] = [1, 32, 4096, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1];

pub(super) fn all_flags() -> impl Iterator<Item = AreaFlags> {
    (0..16).map(AreaFlags::from_bits_retain)
}

/// Returns an area of the first GPU with a pool for handles.
pub(super) fn area(context: &Context, flags: AreaFlags) -> Verdict<Area> {
    Ok(Area::new(context.vmm(), context.gpu(), flags)?)
}

/// Allocates memory of an area. Skips the case if GPUs lack peer access.
pub(super) fn mmap<'a>(area: &Area, size: usize, own: &'a mut [u8]) -> Verdict<AreaMemory<'a>> {
    let options = MmapOptions::new();
    let options =
        if area.flags().maps_existing_memory() { options.with_host_memory(own) } else { options };
    match area.mmap(size, options) {
        Err(error) if matches!(error.kind(), ErrorKind::NotSupported(_)) => {
            Err(NotPassed::Skipped(error.to_string()))
        }
        memory => Ok(memory?),
    }
}

/// Checks that memory holds what is written: all of small memory, both ends of large.
pub(super) fn holds(memory: &AreaMemory<'_>, seed: usize) -> Verdict {
    let size = memory.size();
    let part = size.min(8192);
    let written: Vec<u8> = (0..part).map(|index| (index * 7 + seed) as u8).collect();
    for offset in [0, size - part] {
        memory.write(offset, &written)?;
        let mut read = vec![0; part];
        memory.read(offset, &mut read)?;
        ensure_bytes!(read, written, "of {size} bytes, those at {offset}");
    }
    Ok(())
}

fn ready_made(context: &Context) -> Verdict {
    let first = context.runtime().gpus().next().map(hsa_vmm::Agent::id);
    let area = |flags| Area::new(context.vmm(), Device::Current, flags);
    let areas = [area(AreaFlags::DEFAULT)?, area(AreaFlags::UNIFIED)?];
    for (area, flags) in areas.iter().zip([AreaFlags::DEFAULT, AreaFlags::UNIFIED]) {
        ensure_eq!(area.flags(), flags, "the flags");
        let memory = mmap(area, 1000, &mut [])?;
        ensure_eq!(Some(memory.device()), first, "the device of {area}");
        holds(&memory, 1)?;
    }
    Ok(())
}

/// Checks which GPUs have access, and whether the host has.
fn visible(context: &Context, memory: &AreaMemory<'_>, gpus: &[AgentId], host: bool) -> Verdict {
    for agent in context.runtime().gpus().map(hsa_vmm::Agent::id) {
        let expected = gpus.contains(&agent);
        ensure_eq!(memory.agents().contains(&agent), expected, "whether {agent} has access");
    }
    ensure_eq!(memory.agents().contains(&context.host()), host, "whether the host has access");
    Ok(())
}

fn device_memory(context: &Context) -> Verdict {
    let memory = mmap(&area(context, AreaFlags::DEFAULT)?, 100, &mut [])?;
    ensure_eq!(memory.backing(), Backing::Virtual, "the backing");
    ensure_eq!(memory.owner(), context.gpu(), "the owner");
    visible(context, &memory, &[context.gpu()], false)?;
    let listed = context.vmm().mappings();
    ensure!(
        listed.iter().any(|mapping| mapping.address == memory.address()),
        "{} is not among the mappings of its Vmm",
        memory.address()
    );
    holds(&memory, 2)
}

fn host_memory(context: &Context) -> Verdict {
    for flags in [AreaFlags::HOST, AreaFlags::HOST | AreaFlags::MAPPED] {
        let memory = mmap(&area(context, flags)?, 100, &mut [])?;
        ensure_eq!(memory.backing(), Backing::Pool, "the backing of {flags}");
        ensure_eq!(memory.device_address(), memory.address(), "the device's address");
        visible(context, &memory, &[context.gpu()], true)?;
        holds(&memory, 3)?;
        device_sees(context, &memory)?;
    }
    Ok(())
}

/// Checks that the device reads the memory's contents.
fn device_sees(context: &Context, memory: &AreaMemory<'_>) -> Verdict {
    let device = mmap(&area(context, AreaFlags::DEFAULT)?, memory.size(), &mut [])?;
    device.copy(0, memory, 0, memory.size())?;
    let (mut here, mut there) = (vec![0; memory.size()], vec![1; memory.size()]);
    memory.read(0, &mut here)?;
    device.read(0, &mut there)?;
    ensure_bytes!(there, here, "the device reads something else");
    Ok(())
}

fn unified_memory(context: &Context) -> Verdict {
    let others = [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::MAPPED];
    let both = AreaFlags::HOST | AreaFlags::MAPPED;
    for flags in others.into_iter().chain([both]) {
        let memory = mmap(&area(context, AreaFlags::UNIFIED | flags)?, 100, &mut [])?;
        let of_device = context.cpu_sees(context.gpu());
        let backing = if of_device { Backing::Virtual } else { Backing::Pool };
        ensure_eq!(memory.backing(), backing, "the backing with {flags}");
        ensure_eq!(memory.device_address(), memory.address(), "the device's address");
        visible(context, &memory, &[context.gpu()], true)?;
        holds(&memory, 4)?;
        if of_device {
            // The CPU's own loads.
            let (mut here, mut there) = ([0; 100], [1; 100]);
            memory.read(0, &mut here)?;
            context.vmm().read(memory.address(), &mut there)?;
            ensure!(here == there, "the CPU reads something else");
        }
        device_sees(context, &memory)?;
    }
    Ok(())
}

fn global_memory(context: &Context) -> Verdict {
    context.other_gpu()?;
    let all: Vec<_> = context.runtime().gpus().map(hsa_vmm::Agent::id).collect();
    for kind in [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::UNIFIED, AreaFlags::MAPPED] {
        let mut own = vec![0; 100];
        let memory = mmap(&area(context, kind | AreaFlags::GLOBAL)?, 100, &mut own)?;
        visible(context, &memory, &all, kind != AreaFlags::DEFAULT)?;
        holds(&memory, 5)?;
        let mut here = [0; 100];
        memory.read(0, &mut here)?;
        for &gpu in &all {
            let theirs = Area::new(context.vmm(), gpu, AreaFlags::DEFAULT)?;
            let theirs = mmap(&theirs, 100, &mut [])?;
            theirs.copy(0, &memory, 0, 100)?;
            let mut there = [1; 100];
            theirs.read(0, &mut there)?;
            ensure!(here == there, "{gpu} reads something else from {kind}");
        }
    }
    Ok(())
}

fn existing_memory(context: &Context) -> Verdict {
    let mut own = vec![1; 5000];
    let device = mmap(&area(context, AreaFlags::DEFAULT)?, 1000, &mut [])?;
    device.fill(0, 0x0505_0505, 1000)?;
    // Neither page-aligned nor all of the slice.
    let mapped = mmap(&area(context, AreaFlags::MAPPED)?, 4000, &mut own[100..])?;
    ensure_eq!(mapped.backing(), Backing::Locked, "the backing");
    visible(context, &mapped, &[context.gpu()], true)?;
    mapped.copy(500, &device, 0, 1000)?;
    mapped.write(3996, b"last")?;
    device.copy(0, &mapped, 3000, 1000)?;
    mapped.munmap()?;
    let mut expected = vec![1; 5000];
    expected[600..1600].fill(5);
    expected[4096..4100].copy_from_slice(b"last");
    ensure_bytes!(own, expected, "the bytes are not what the device wrote");
    let mut read = vec![0; 1000];
    device.read(0, &mut read)?;
    ensure_bytes!(read, expected[3100..4100], "the device has read something else");
    Ok(())
}

fn another_device(context: &Context) -> Verdict {
    context.other_gpu()?;
    for (number, gpu) in context.runtime().gpus().enumerate() {
        let last = context.runtime().gpus().count() - 1;
        let area = Area::new(context.vmm(), last, AreaFlags::DEFAULT)?;
        let memory = area.mmap(10, MmapOptions::new().with_device(number))?;
        ensure_eq!(memory.device(), gpu.id(), "the device with number {number}");
        holds(&memory, 6)?;
        let memory = area.mmap(10, MmapOptions::new().with_device(gpu.id()))?;
        ensure_eq!(memory.owner(), gpu.id(), "the owner");
    }
    Ok(())
}

fn any_size(context: &Context) -> Verdict {
    let mut own = vec![0; SIZES.into_iter().max().unwrap_or(0)];
    for flags in all_flags() {
        let area = area(context, flags)?;
        for size in SIZES {
            let memory = mmap(&area, size, &mut own)?;
            ensure_eq!(memory.size(), size, "the size of {flags}");
            ensure!(memory.allocated_size() >= size, "{flags}: less than asked for");
            holds(&memory, size)?;
            memory.munmap()?;
        }
    }
    Ok(())
}

fn gives_back(context: &Context) -> Verdict {
    let mut own = vec![0; 100_000];
    for flags in all_flags() {
        let area = area(context, flags)?;
        for round in 0..5 {
            let memory = mmap(&area, 100_000, &mut own)?;
            memory.write(99_999, &[round])?;
            memory.munmap()?;
        }
    }
    let usage = context.vmm().usage();
    let left = usage.reservations + usage.handles + usage.mappings;
    ensure!(left == 0, "memory is leaked: {usage:?}");
    Ok(())
}

fn between_kinds(context: &Context) -> Verdict {
    for (seed, flags) in all_flags().enumerate() {
        let mut own = vec![0; 3000];
        let memory = mmap(&area(context, flags)?, 3000, &mut own)?;
        holds(&memory, seed)?;
        let mut expected = vec![0; 3000];
        memory.read(0, &mut expected)?;
        for others in all_flags() {
            let mut own = vec![0; 3000];
            let other = mmap(&area(context, others)?, 3000, &mut own)?;
            other.copy(10, &memory, 1000, 2000)?;
            let mut found = vec![0; 2000];
            other.read(10, &mut found)?;
            ensure_bytes!(found, expected[1000..], "from {flags} to {others}");
        }
    }
    Ok(())
}
