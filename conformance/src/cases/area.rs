//! Areas, as AML documents its areas for HIP (`aml/area/hip.h`).

use crate::case::{Case, Verdict, ensure, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::area::{Argument, Backing, MmapOptions, Problem};
use hsa_vmm::{AgentId, Area, AreaError, AreaFlags, AreaMemory, HipError};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "area.create.device_out_of_range",
        "AML: aml_area_hip_create, AML_EINVAL",
        "there is no area for a device that there is not",
        device_out_of_range,
    ),
    Case::new(
        "area.create.not_a_device",
        "AML: aml_area_hip_create, AML_EINVAL",
        "there is no area for a CPU, nor for an invented agent",
        not_a_device,
    ),
    Case::new(
        "area.create.unknown_flags",
        "decision: flags that mean nothing are refused",
        "there is no area with flags that mean nothing",
        unknown_flags,
    ),
    Case::new(
        "area.create.ready_made",
        "AML: aml_area_hip, aml_area_hip_unified",
        "the two areas that are there already give memory of the first device",
        ready_made,
    ),
    Case::new(
        "area.mmap.device_memory",
        "AML: AML_AREA_HIP_FLAG_DEFAULT",
        "without flags it is virtual memory of the device, and visible to it alone",
        device_memory,
    ),
    Case::new(
        "area.mmap.host_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_HOST",
        "HOST is memory of the host, which the device may use, mapped or not",
        host_memory,
    ),
    Case::new(
        "area.mmap.unified_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_UNIFIED",
        "UNIFIED is one address for host and device, whatever HOST and MAPPED say",
        unified_memory,
    ),
    Case::new(
        "area.mmap.global_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_GLOBAL",
        "GLOBAL lets all devices in, which then copy",
        global_memory,
    ),
    Case::new(
        "area.mmap.existing_memory",
        "AML: AML_AREA_HIP_FLAG_ALLOC_MAPPED without ALLOC_HOST, hipHostRegister",
        "bytes of the program are mapped, and have what the device has written",
        existing_memory,
    ),
    Case::new(
        "area.mmap.existing_memory_missing",
        "AML: \"ptr\" must not be NULL, AML_EINVAL",
        "MAPPED without HOST takes memory that is there, all of it, and nothing else does",
        existing_memory_missing,
    ),
    Case::new(
        "area.mmap.another_device",
        "AML: struct aml_area_hip_mmap_options",
        "one mmap may be told another device than the area's, the first one too",
        another_device,
    ),
    Case::new(
        "area.mmap.any_size",
        "AML: tests/area/test_hip.c",
        "every combination of flags gives memory of any size that holds what is written",
        any_size,
    ),
    Case::new(
        "area.mmap.zero_size",
        "decision: no memory of no bytes",
        "no memory of no bytes is given",
        zero_size,
    ),
    Case::new(
        "area.mmap.too_large",
        "AML: AML_ENOMEM, hipErrorOutOfMemory",
        "more than there is cannot be had, of any kind",
        too_large,
    ),
    Case::new(
        "area.munmap.gives_back",
        "AML: aml_area_hip_munmap",
        "what is unmapped can be had again, as often as one likes",
        gives_back,
    ),
    Case::new(
        "area.transfer.beyond",
        "decision: an error, never a fault",
        "bytes beyond the size that was asked for are not read or written",
        beyond,
    ),
    Case::new(
        "area.transfer.between_kinds",
        "HIP: hipMemcpy",
        "memory of every combination of flags is copied to memory of every other",
        between_kinds,
    ),
];

const SIZES: [usize; 7] = [1, 32, 4096, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1];

fn all_flags() -> impl Iterator<Item = AreaFlags> {
    (0..16).map(AreaFlags::from_bits_retain)
}

/// An area for the first GPU that has memory for handles.
fn area(context: &Context, flags: AreaFlags) -> Verdict<Area> {
    Ok(Area::create_in(context.vmm(), context.gpu(), flags)?)
}

/// Memory of an area, or a skip where GPUs do not reach what they should.
fn mmap<'a>(area: &Area, size: usize, own: &'a mut [u8]) -> Verdict<AreaMemory<'a>> {
    let options = MmapOptions::new();
    let options = if area.flags().maps_existing_memory() { options.mapping(own) } else { options };
    match area.mmap(size, options) {
        Err(error @ AreaError::NotSupported { .. }) => Err(NotPassed::Skipped(error.to_string())),
        memory => Ok(memory?),
    }
}

fn refused<T>(
    context: &Context,
    expected: HipError,
    answer: Result<T, AreaError>,
) -> Verdict<AreaError> {
    match answer {
        Ok(_) => Err(NotPassed::Failed(format!("succeeded where {expected} was expected"))),
        Err(error) => {
            ensure_eq!(error.hip(context.profile()), expected, "{error}");
            context.note_refusal(expected);
            Ok(error)
        }
    }
}

/// Checks that all of memory holds what is written, or both ends of what is large.
fn holds(memory: &AreaMemory<'_>, seed: usize) -> Verdict {
    let size = memory.size();
    let part = size.min(8192);
    let written: Vec<u8> = (0..part).map(|index| (index * 7 + seed) as u8).collect();
    for offset in [0, size - part] {
        memory.write(offset, &written)?;
        let mut read = vec![0; part];
        memory.read(offset, &mut read)?;
        ensure!(read == written, "of {size} bytes, those at {offset} are not what was written");
    }
    Ok(())
}

fn device_out_of_range(context: &Context) -> Verdict {
    let devices = context.runtime().gpus().count();
    for number in [devices, devices + 1, usize::MAX] {
        let problem = Some(Problem::NoSuchDevice { number, devices });
        let answer = Area::create(context.runtime(), number, AreaFlags::DEFAULT);
        let error = refused(context, HipError::InvalidDevice, answer)?;
        ensure_eq!((error.problem(), error.aml()), (problem, 3), "{error}");
        let area = area(context, AreaFlags::DEFAULT)?;
        let answer = area.mmap(1, MmapOptions::new().on(number));
        let error = refused(context, HipError::InvalidDevice, answer)?;
        ensure_eq!(error.problem(), problem, "{error}");
    }
    Ok(())
}

fn not_a_device(context: &Context) -> Verdict {
    for agent in [context.host(), context.invented_agent()] {
        let answer = Area::create(context.runtime(), agent, AreaFlags::DEFAULT);
        let error = refused(context, HipError::InvalidDevice, answer)?;
        ensure_eq!(error.problem(), Some(Problem::NotAGpu(agent)), "{error}");
    }
    Ok(())
}

fn unknown_flags(context: &Context) -> Verdict {
    for bits in [0x10, 0x1f, u32::MAX] {
        let flags = AreaFlags::from_bits_retain(bits);
        let answer = Area::create_in(context.vmm(), context.gpu(), flags);
        let error = refused(context, HipError::InvalidValue, answer)?;
        ensure_eq!(error.problem(), Some(Problem::UnknownFlags(bits & !0xf)), "{error}");
    }
    Ok(())
}

fn ready_made(context: &Context) -> Verdict {
    let first = context.runtime().gpus().next().map(hsa_vmm::Agent::id);
    let areas = [Area::of_device(context.runtime())?, Area::unified(context.runtime())?];
    for (area, flags) in areas.iter().zip([AreaFlags::DEFAULT, AreaFlags::UNIFIED]) {
        ensure_eq!(area.flags(), flags, "the flags");
        let memory = mmap(area, 1000, &mut [])?;
        ensure_eq!(Some(memory.device()), first, "the device of {area}");
        holds(&memory, 1)?;
    }
    Ok(())
}

/// Checks who may use memory: which GPUs, and whether the host.
fn visible(context: &Context, memory: &AreaMemory<'_>, gpus: &[AgentId], host: bool) -> Verdict {
    for agent in context.runtime().gpus().map(hsa_vmm::Agent::id) {
        let expected = gpus.contains(&agent);
        ensure_eq!(memory.is_visible_to(agent), expected, "whether {agent} may use it");
    }
    ensure_eq!(memory.is_visible_to(context.host()), host, "whether the host may use it");
    Ok(())
}

fn device_memory(context: &Context) -> Verdict {
    let memory = mmap(&area(context, AreaFlags::DEFAULT)?, 100, &mut [])?;
    ensure_eq!(memory.backing(), Backing::Virtual, "what is behind it");
    ensure_eq!(memory.owner(), context.gpu(), "whose it is");
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
        ensure_eq!(memory.backing(), Backing::Pool, "what is behind {flags}");
        ensure_eq!(memory.device_address(), memory.address(), "the device's address");
        visible(context, &memory, &[context.gpu()], true)?;
        holds(&memory, 3)?;
        device_sees(context, &memory)?;
    }
    Ok(())
}

/// Checks that the device reads what is in memory.
fn device_sees(context: &Context, memory: &AreaMemory<'_>) -> Verdict {
    let device = mmap(&area(context, AreaFlags::DEFAULT)?, memory.size(), &mut [])?;
    device.copy(0, memory, 0, memory.size())?;
    let (mut here, mut there) = (vec![0; memory.size()], vec![1; memory.size()]);
    memory.read(0, &mut here)?;
    device.read(0, &mut there)?;
    ensure!(here == there, "the device sees something else");
    Ok(())
}

fn unified_memory(context: &Context) -> Verdict {
    let others = [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::MAPPED];
    let both = AreaFlags::HOST | AreaFlags::MAPPED;
    for flags in others.into_iter().chain([both]) {
        let memory = mmap(&area(context, AreaFlags::UNIFIED | flags)?, 100, &mut [])?;
        let of_device = context.cpu_sees(context.gpu());
        let backing = if of_device { Backing::Virtual } else { Backing::Pool };
        ensure_eq!(memory.backing(), backing, "what is behind it with {flags}");
        ensure_eq!(memory.device_address(), memory.address(), "the device's address");
        visible(context, &memory, &[context.gpu()], true)?;
        holds(&memory, 4)?;
        if of_device {
            // By the CPU's own loads.
            let (mut here, mut there) = ([0; 100], [1; 100]);
            memory.read(0, &mut here)?;
            context.vmm().read(memory.address(), &mut there)?;
            ensure!(here == there, "the CPU sees something else");
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
            let theirs = Area::create(context.runtime(), gpu, AreaFlags::DEFAULT)?;
            let theirs = mmap(&theirs, 100, &mut [])?;
            theirs.copy(0, &memory, 0, 100)?;
            let mut there = [1; 100];
            theirs.read(0, &mut there)?;
            ensure!(here == there, "{gpu} sees something else of {kind}");
        }
    }
    Ok(())
}

fn existing_memory(context: &Context) -> Verdict {
    let mut own = vec![1; 5000];
    let device = mmap(&area(context, AreaFlags::DEFAULT)?, 1000, &mut [])?;
    device.fill(0, 0x0505_0505, 1000)?;
    // In the middle of a page, and less than there is.
    let mapped = mmap(&area(context, AreaFlags::MAPPED)?, 4000, &mut own[100..])?;
    ensure_eq!(mapped.backing(), Backing::Locked, "what is behind it");
    visible(context, &mapped, &[context.gpu()], true)?;
    mapped.copy(500, &device, 0, 1000)?;
    mapped.write(3996, b"last")?;
    device.copy(0, &mapped, 3000, 1000)?;
    mapped.munmap()?;
    let mut expected = vec![1; 5000];
    expected[600..1600].fill(5);
    expected[4096..4100].copy_from_slice(b"last");
    ensure!(own == expected, "the bytes are not what the device has written");
    let mut read = vec![0; 1000];
    device.read(0, &mut read)?;
    ensure!(read == expected[3100..4100], "the device has read something else");
    Ok(())
}

fn existing_memory_missing(context: &Context) -> Verdict {
    let mut own = [0; 10];
    for flags in all_flags() {
        let area = area(context, flags)?;
        let (answer, argument) = if flags.maps_existing_memory() {
            let none = area.mmap(10, MmapOptions::new());
            let error = refused(context, HipError::InvalidValue, none)?;
            ensure_eq!(error.problem(), Some(Problem::NoHostMemory), "{error}");
            (area.mmap(11, MmapOptions::new().mapping(&mut own)), Argument::Size)
        } else {
            (area.mmap(10, MmapOptions::new().mapping(&mut own)), Argument::Host)
        };
        let error = refused(context, HipError::InvalidValue, answer)?;
        let found = matches!(error, AreaError::InvalidValue { argument: it, .. } if it == argument);
        ensure!(found, "{flags}: {error}");
    }
    Ok(())
}

fn another_device(context: &Context) -> Verdict {
    context.other_gpu()?;
    for (number, gpu) in context.runtime().gpus().enumerate() {
        let last = context.runtime().gpus().count() - 1;
        let area = Area::create(context.runtime(), last, AreaFlags::DEFAULT)?;
        let memory = area.mmap(10, MmapOptions::new().on(number))?;
        ensure_eq!(memory.device(), gpu.id(), "the device of number {number}");
        holds(&memory, 6)?;
        let memory = area.mmap(10, MmapOptions::new().on(gpu.id()))?;
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

fn zero_size(context: &Context) -> Verdict {
    let mut own = [0; 10];
    for flags in all_flags() {
        let options = match flags.maps_existing_memory() {
            true => MmapOptions::new().mapping(&mut own),
            false => MmapOptions::new(),
        };
        let answer = area(context, flags)?.mmap(0, options);
        let error = refused(context, HipError::InvalidValue, answer)?;
        ensure_eq!(error.problem(), Some(Problem::Zero), "{error}");
    }
    Ok(())
}

fn too_large(context: &Context) -> Verdict {
    let pools = context.runtime().agents().iter().flat_map(|agent| agent.pools());
    let most = pools.map(|pool| pool.size()).max().unwrap_or(0);
    for flags in [AreaFlags::DEFAULT, AreaFlags::HOST, AreaFlags::UNIFIED] {
        for size in [most + (1 << 30), usize::MAX] {
            let answer = area(context, flags)?.mmap(size, MmapOptions::new());
            let error = refused(context, HipError::OutOfMemory, answer)?;
            ensure_eq!(error.aml(), 2, "{error}");
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
    ensure!(left == 0, "left behind: {usage:?}");
    Ok(())
}

fn beyond(context: &Context) -> Verdict {
    let mut own = [0; 100];
    for flags in all_flags() {
        let memory = mmap(&area(context, flags)?, 100, &mut own)?;
        let answers = [
            memory.read(100, &mut [0]),
            memory.read(96, &mut [0; 5]),
            memory.write(usize::MAX, &[0]),
            memory.fill(0, 0, 104),
            memory.copy(97, &memory, 0, 4),
        ];
        for answer in answers {
            let error = refused(context, HipError::InvalidValue, answer)?;
            let beyond = matches!(error.problem(), Some(Problem::Beyond { whole: 100, .. }));
            ensure!(beyond, "{flags}: {error}");
        }
    }
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
            ensure!(found == expected[1000..], "from {flags} to {others}");
        }
    }
    Ok(())
}
