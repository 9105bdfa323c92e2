//! Buffers that grow in place, and rings.

use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_eq};
use hsa_vmm::vmm::{Argument, Problem};
use hsa_vmm::{
    Access, AllocationProperties, BufferError, GrowableBuffer, GrowableVec, HipError, RingBuffer,
    VmmError,
};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.growable.grows_in_place",
        "hip-tests: hipMemSetAccess_GrowVMM; HIP's guide: increase memory size",
        "a buffer grows step by step where it is; what was in it stays",
        grows,
    ),
    Case::new(
        "buffer.growable.size_is_what_was_asked",
        "documentation: GrowableBuffer::size, mapped",
        "the size is counted in bytes, the memory behind it in whole steps",
        size,
    ),
    Case::new(
        "buffer.growable.shrinks",
        "HIP: hipMemUnmap, hipMemRelease",
        "what a buffer gives up is memory again; the rest stays, and it can grow again",
        shrinks,
    ),
    Case::new(
        "buffer.growable.seen_by_all_gpus",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "whoever was granted the buffer may use what it grows by, too",
        seen_by_all,
    ),
    Case::new(
        "buffer.growable.revoked",
        "documentation: GrowableBuffer::revoke",
        "an agent that it is taken from may use neither what is there nor what comes",
        revoked,
    ),
    Case::new(
        "buffer.growable.with_stock",
        "documentation: GrowableOptions::with_stock",
        "growth from memory that was made ahead is like any other, and all of it is given back",
        with_stock,
    ),
    Case::new(
        "buffer.growable.beyond_maximum",
        "documentation: BufferError::BeyondMaximum",
        "growth beyond the addresses is refused, and the buffer is as it was",
        beyond_maximum,
    ),
    Case::new(
        "buffer.growable.beyond_end",
        "documentation: BufferError::BeyondEnd",
        "bytes that it does not have are neither read, written, filled nor given up",
        beyond_end,
    ),
    Case::new(
        "buffer.growable.size_zero",
        "HIP: hipMemAddressReserve",
        "a buffer that may never hold anything is refused",
        size_zero,
    ),
    Case::new(
        "buffer.growable.address_taken",
        "documentation: GrowableOptions::exactly_at; HIP may choose another address",
        "a buffer that insists on addresses of another is refused",
        address_taken,
    ),
    Case::new(
        "buffer.growable.typed",
        "documentation: GrowableVec",
        "values are pushed, read, written and popped as in a vector",
        typed,
    ),
    Case::new(
        "buffer.ring.no_seam",
        "reference 6.2 #20: the same memory at two addresses",
        "what is written over the end is at the beginning, for the CPU at every turn",
        no_seam,
    ),
    Case::new(
        "buffer.ring.gpus_see_no_seam",
        "reference 6.2 #20; ROCm/hip#3728",
        "each GPU that was granted copies over the end in one go",
        gpus_see_no_seam,
    ),
    Case::new(
        "buffer.ring.is_one_memory",
        "HIP: hipMemMap of one handle at several addresses",
        "a ring has one handle, however often it is mapped, and gives all back",
        one_memory,
    ),
    Case::new(
        "buffer.ring.positions_go_on",
        "documentation: RingBuffer::address_of",
        "positions count on for ever, and are theirs modulo the size",
        positions,
    ),
    Case::new(
        "buffer.ring.larger_than_itself",
        "documentation: BufferError::BeyondEnd",
        "more bytes than the ring has are neither read nor written",
        larger,
    ),
    Case::new(
        "buffer.ring.no_ring",
        "documentation: BufferError::NoRing",
        "what is mapped once is no ring, nor what has no size",
        no_ring,
    ),
    Case::new(
        "buffer.ring.read_only",
        "HIP: hipMemSetAccess, hipMemAccessFlagsProtRead",
        "a CPU that may only read the ring writes at no turn, and its access can be taken",
        read_only,
    ),
];

fn properties(context: &Context) -> AllocationProperties {
    AllocationProperties::on(context.gpu())
}

/// An empty buffer that grows by granules, for the first GPU and the CPU.
fn growable(context: &Context, granules: usize) -> Verdict<GrowableBuffer> {
    let options = GrowableBuffer::of(granules * context.granule()).in_steps_of(context.granule());
    let mut buffer = options.reserve(context.vmm(), &properties(context))?;
    buffer.grant(&context.users(), Access::ReadWrite)?;
    Ok(buffer)
}

fn grows(context: &Context) -> Verdict {
    let mut buffer = growable(context, 6)?;
    let (at, granule) = (buffer.address(), context.granule());
    for step in 0..6 {
        buffer.grow(granule)?;
        buffer.fill(step * granule, 0xc100 + step as u32, granule)?;
        ensure_eq!(buffer.address(), at, "the address after {} steps", step + 1);
        for before in 0..=step {
            context.holds(context.on(at, before), 1, 0xc100 + before as u32)?;
        }
    }
    context.seen_by(context.gpu(), context.on(at, 5), 1, 0xc105)
}

fn size(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let mut buffer = growable(context, 2)?;
    let granule = context.granule();
    for (size, mapped) in
        [(1, granule), (granule, granule), (granule + 1, 2 * granule), (0, 0), (5, granule)]
    {
        buffer.resize(size)?;
        ensure_eq!((buffer.size(), buffer.mapped()), (size, mapped), "size and memory");
        ensure_eq!(context.vmm().usage().mappings, mapped / granule, "mappings");
    }
    buffer.write(0, b"hello")?;
    let mut text = [0; 5];
    buffer.read(0, &mut text)?;
    ensure_eq!(&text, b"hello", "what was written");
    Ok(())
}

fn shrinks(context: &Context) -> Verdict {
    let mut buffer = growable(context, 4)?;
    let (at, granule) = (buffer.address(), context.granule());
    buffer.grow(4 * granule)?;
    buffer.fill(0, 0xc200, 4 * granule)?;
    for left in [3, 1] {
        buffer.resize(left * granule)?;
        ensure_eq!(context.vmm().usage().handles, left, "handles");
        context.holds(at, left, 0xc200)?;
    }
    buffer.grow(granule)?;
    buffer.fill(granule, 0xc201, granule)?;
    context.holds(at, 1, 0xc200)?;
    context.holds(context.on(at, 1), 1, 0xc201)?;
    drop(buffer);
    let usage = context.vmm().usage();
    ensure_eq!((usage.reservations, usage.handles), (0, 0), "what is left of a buffer");
    Ok(())
}

fn seen_by_all(context: &Context) -> Verdict {
    context.other_gpu()?;
    let mut buffer = growable(context, 3)?;
    let reach = |agent| context.runtime().agent(agent).is_some_and(|a| a.reaches(context.gpu()));
    let gpus: Vec<_> = context.gpus().iter().copied().filter(|&gpu| reach(gpu)).collect();
    buffer.grow(context.granule())?;
    buffer.grant(&gpus, Access::ReadWrite)?;
    buffer.grow(2 * context.granule())?;
    buffer.fill(0, 0xc300, 3 * context.granule())?;
    for gpu in gpus {
        ensure_eq!(buffer.access(gpu), Access::ReadWrite, "access of GPU {gpu}");
        context.seen_by(gpu, buffer.address(), 3, 0xc300)?;
    }
    Ok(())
}

fn revoked(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let mut buffer = growable(context, 2)?;
    buffer.grow(context.granule())?;
    buffer.fill(0, 0xc400, context.granule())?;
    buffer.revoke(&[context.host()])?;
    buffer.grow(context.granule())?;
    ensure_eq!(buffer.access(context.host()), Access::None, "access of the CPU");
    for offset in [0, context.granule()] {
        context.refuses_buffer(HipError::InvalidValue, || buffer.read(offset, &mut [0; 4]))?;
    }
    buffer.fill(context.granule(), 0xc401, context.granule())?;
    buffer.grant(&[context.host()], Access::Read)?;
    context.holds(buffer.address(), 1, 0xc400)?;
    context.holds(context.on(buffer.address(), 1), 1, 0xc401)
}

fn with_stock(context: &Context) -> Verdict {
    let granule = context.granule();
    let options = GrowableBuffer::of(8 * granule).in_steps_of(granule).with_stock(3);
    let mut buffer = options.reserve(context.vmm(), &properties(context))?;
    buffer.grant(&context.users(), Access::ReadWrite)?;
    for step in 0..8 {
        buffer.grow(granule)?;
        buffer.fill(step * granule, 0xc500 + step as u32, granule)?;
    }
    for step in 0..8 {
        context.holds(context.on(buffer.address(), step), 1, 0xc500 + step as u32)?;
    }
    drop(buffer);
    ensure_eq!(context.vmm().usage().handles, 0, "handles that are left");
    Ok(())
}

fn beyond_maximum(context: &Context) -> Verdict {
    let mut buffer = growable(context, 2)?;
    let granule = context.granule();
    buffer.grow(granule)?;
    buffer.fill(0, 0xc600, granule)?;
    for more in [granule + 1, 2 * granule, usize::MAX] {
        let error = context.refuses_buffer(HipError::InvalidValue, || buffer.grow(more))?;
        ensure!(matches!(error, BufferError::BeyondMaximum { .. }), "{error}");
        ensure_eq!(buffer.size(), granule, "the size after {more:#x} bytes more were refused");
    }
    context.holds(buffer.address(), 1, 0xc600)
}

fn beyond_end(context: &Context) -> Verdict {
    let mut buffer = growable(context, 2)?;
    let size = context.granule() - 8;
    buffer.grow(size)?;
    let beyond = |error: BufferError| {
        ensure!(matches!(error, BufferError::BeyondEnd { .. }), "{error}");
        Ok(())
    };
    let refused = HipError::InvalidValue;
    for offset in [size - 3, size, usize::MAX] {
        beyond(context.refuses_buffer(refused, || buffer.read(offset, &mut [0; 4]))?)?;
        beyond(context.refuses_buffer(refused, || buffer.write(offset, &[0; 4]))?)?;
    }
    beyond(context.refuses_buffer(refused, || buffer.fill(size - 4, 0, 8))?)?;
    beyond(context.refuses_buffer(refused, || buffer.shrink(size + 1))?)
}

fn size_zero(context: &Context) -> Verdict {
    // HIP 6 calls every bad reservation out of memory.
    let expected = match context.profile() {
        hsa_vmm::HipProfile::Hip6 => HipError::OutOfMemory,
        _ => HipError::InvalidValue,
    };
    let reserve = || GrowableBuffer::of(0).reserve(context.vmm(), &properties(context)).map(|_| ());
    context.refuses_buffer(expected, reserve).map(|_| ())
}

fn address_taken(context: &Context) -> Verdict {
    let taken = context.reserve(2)?;
    let options = GrowableBuffer::of(2 * context.granule()).in_steps_of(context.granule());
    let expected = match context.profile() {
        hsa_vmm::HipProfile::Hip6 => HipError::OutOfMemory,
        _ => HipError::InvalidValue,
    };
    let reserve =
        || options.exactly_at(taken).reserve(context.vmm(), &properties(context)).map(|_| ());
    let error = context.refuses_buffer(expected, reserve)?;
    let is_it = matches!(
        error,
        BufferError::Vmm(VmmError::InvalidArgument {
            argument: Argument::Address,
            problem: Problem::AddressTaken,
            ..
        })
    );
    ensure!(is_it, "{error}");
    context.vmm().address_free(taken, 2 * context.granule())?;
    let buffer = options.exactly_at(taken).reserve(context.vmm(), &properties(context))?;
    ensure_eq!(buffer.address(), taken, "the address that was insisted on");
    Ok(())
}

fn typed(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let mut values = GrowableVec::<u64>::new(growable(context, 2)?);
    let count = context.granule() as u64 / 8 + 3;
    values.extend(&(0..count).collect::<Vec<_>>())?;
    values.push(count)?;
    ensure_eq!(values.len() as u64, count + 1, "how many there are");
    values.set(3, 77)?;
    ensure_eq!((values.get(3)?, values.get(4)?), (77, 4), "the fourth and fifth");
    ensure_eq!(values.pop()?, Some(count), "the last");
    values.truncate(2)?;
    ensure_eq!(values.to_vec()?, [0, 1], "the first two");
    let refused = context.refuses_buffer(HipError::InvalidValue, || values.get(2))?;
    ensure!(matches!(refused, BufferError::BeyondEnd { .. }), "{refused}");
    Ok(())
}

fn ring(context: &Context, times: usize) -> Verdict<RingBuffer> {
    let options = RingBuffer::of(context.granule()).times(times);
    let ring = options.map(context.vmm(), &properties(context))?;
    ring.grant(&context.users(), Access::ReadWrite)?;
    Ok(ring)
}

/// Bytes that are never the same at places a power of two apart.
fn text(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index % 251) as u8).collect()
}

fn no_seam(context: &Context) -> Verdict {
    context.needs_cpu()?;
    for times in [2, 3] {
        let ring = ring(context, times)?;
        let text = text(ring.size());
        let start = (ring.size() - 100) as u64;
        ring.write(start, &text)?;
        let mut found = vec![0; ring.size()];
        for turn in 0..times as u64 {
            let position = start + turn * ring.size() as u64;
            ring.read(position, &mut found)?;
            ensure!(found == text, "turn {turn} of {times} has something else");
        }
        for turn in 0..times {
            let mut found = [0; 4];
            context.vmm().read(context.on(ring.address(), turn), &mut found)?;
            ensure_eq!(found, text[100..104], "at the start of turn {turn}");
        }
    }
    Ok(())
}

fn gpus_see_no_seam(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let ring = ring(context, 2)?;
    let text = text(ring.size());
    let start = (ring.size() / 2 + 64) as u64;
    ring.write(start, &text)?;
    for &gpu in context.gpus() {
        let reaches = context.runtime().agent(gpu).is_some_and(|a| a.reaches(context.gpu()));
        if !reaches || !context.cpu_sees(gpu) {
            continue;
        }
        ring.grant(&[gpu], Access::ReadWrite)?;
        let to = context.reserve(1)?;
        let memory = context.create_on(gpu, 1)?;
        context.map(to, 1, memory)?;
        context.grant(to, 1, &context.users_of(gpu), Access::ReadWrite)?;
        context.vmm().copy(gpu, to, ring.address_of(start), ring.size())?;
        let mut found = vec![0; ring.size()];
        context.vmm().read(to, &mut found)?;
        ensure!(found == text, "GPU {gpu} copied something else");
    }
    Ok(())
}

fn one_memory(context: &Context) -> Verdict {
    for times in [2, 5] {
        let ring = ring(context, times)?;
        ensure_eq!(ring.times(), times, "times");
        let usage = context.vmm().usage();
        ensure_eq!((usage.reservations, usage.handles, usage.mappings), (1, 1, times), "in use");
        context.vmm().fill(ring.address(), 0xc700, ring.size())?;
        for turn in 0..times {
            context.holds(context.on(ring.address(), turn), 1, 0xc700)?;
        }
    }
    ensure_eq!(context.vmm().usage().handles, 0, "handles that are left");
    Ok(())
}

fn positions(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let ring = ring(context, 2)?;
    let size = ring.size() as u64;
    for (position, same) in [(0, 3 * size), (7, 7 + 1000 * size), (u64::MAX % size, u64::MAX)] {
        ensure_eq!(ring.address_of(position), ring.address_of(same), "{same:#x}");
        ring.write(same, &position.to_le_bytes())?;
        let mut found = [0; 8];
        ring.read(position, &mut found)?;
        ensure_eq!(found, position.to_le_bytes(), "at {position:#x}, written at {same:#x}");
    }
    Ok(())
}

fn larger(context: &Context) -> Verdict {
    let ring = ring(context, 3)?;
    let mut bytes = vec![0; ring.size() + 1];
    let refused = HipError::InvalidValue;
    for position in [0, 1, u64::MAX] {
        context.refuses_buffer(refused, || ring.read(position, &mut bytes))?;
        context.refuses_buffer(refused, || ring.write(position, &bytes))?;
    }
    Ok(())
}

fn no_ring(context: &Context) -> Verdict {
    for times in [0, 1] {
        let map = || {
            let options = RingBuffer::of(context.granule()).times(times);
            options.map(context.vmm(), &properties(context)).map(|_| ())
        };
        let error = context.refuses_buffer(HipError::InvalidValue, map)?;
        ensure_eq!(error, BufferError::NoRing { times }, "the error");
    }
    let nothing = RingBuffer::of(0).map(context.vmm(), &properties(context));
    ensure!(nothing.is_err(), "a ring without a size was mapped");
    Ok(())
}

fn read_only(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let ring = ring(context, 2)?;
    context.vmm().fill(ring.address(), 0xc800, ring.size())?;
    ring.grant(&[context.host()], Access::Read)?;
    let size = ring.size() as u64;
    for turn in 0..2 {
        context.holds(context.on(ring.address(), turn), 1, 0xc800)?;
        let at = turn as u64 * size;
        context.refuses_buffer(HipError::InvalidValue, || ring.write(at, &[1]))?;
    }
    ring.revoke(&[context.host()])?;
    ensure_eq!(ring.access(context.host())?, Access::None, "access that was taken");
    context.refuses_buffer(HipError::InvalidValue, || ring.read(0, &mut [0])).map(|_| ())
}
