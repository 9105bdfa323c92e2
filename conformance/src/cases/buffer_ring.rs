//! Ring buffers, mapped twice so that the end is followed by the beginning.

use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_bytes, ensure_eq};
use hsa_vmm::Access;
use hsa_vmm::buffer::RingBuffer;
use hsa_vmm::error::Problem;
use hsa_vmm::hip::HipError;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.ring.no_seam",
        "reference 6.2 #25: the same memory at two addresses",
        "what is written past the end is at the beginning, for the CPU, on every round",
        no_seam,
    ),
    Case::new(
        "buffer.ring.gpus_see_no_seam",
        "reference 6.2 #25; ROCm/hip#3728",
        "each GPU that was granted access copies past the end in one call",
        gpus_see_no_seam,
    ),
    Case::new(
        "buffer.ring.is_one_memory",
        "HIP: hipMemMap of one handle at several addresses",
        "a ring has one handle for all its mappings, and releases everything",
        one_memory,
    ),
    Case::new(
        "buffer.ring.positions_go_on",
        "documentation: RingBuffer::address_of",
        "positions increase without limit, and are taken modulo the size",
        positions,
    ),
    Case::new(
        "buffer.ring.larger_than_itself",
        "documentation: Problem::TooLarge",
        "more bytes than the ring's size can be neither read nor written",
        larger,
    ),
    Case::new(
        "buffer.ring.no_ring",
        "documentation: Problem::TooFewTimes",
        "a ring mapped once, or of size 0, is refused",
        no_ring,
    ),
    Case::new(
        "buffer.ring.read_only",
        "HIP: hipMemSetAccess, hipMemAccessFlagsProtRead",
        "with read access the CPU cannot write, and its access can be revoked",
        read_only,
    ),
];

fn ring(context: &Context, times: usize) -> Verdict<RingBuffer> {
    let (size, properties) = (context.granule(), context.properties());
    let ring = RingBuffer::create(context.vmm(), size, times, &properties)?;
    ring.grant(&context.users(), Access::ReadWrite)?;
    Ok(ring)
}

/// Returns bytes that differ at any two positions a power of two apart.
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
            ensure_bytes!(found, text, "turn {turn} of {times} has something else");
        }
        for turn in 0..times {
            let mut found = [0; 4];
            context.vmm().read(context.on(ring.address(), turn), &mut found)?;
            ensure_bytes!(found, text[100..104], "at the start of turn {turn}");
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
        ensure_bytes!(found, text, "GPU {gpu} copied something else");
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
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
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
        context.refuses(refused, || ring.read(position, &mut bytes))?;
        context.refuses(refused, || ring.write(position, &bytes))?;
    }
    Ok(())
}

fn no_ring(context: &Context) -> Verdict {
    for times in [0, 1] {
        let map = || {
            let (size, properties) = (context.granule(), context.properties());
            RingBuffer::create(context.vmm(), size, times, &properties).map(|_| ())
        };
        let error = context.refuses(HipError::InvalidValue, map)?;
        ensure_eq!(error.problem(), Some(Problem::TooFewTimes), "the error");
    }
    let nothing = RingBuffer::create(context.vmm(), 0, 2, &context.properties());
    ensure!(nothing.is_err(), "a ring of size 0 was mapped");
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
        context.refuses(HipError::InvalidValue, || ring.write(at, &[1]))?;
    }
    ring.revoke(&[context.host()])?;
    ensure_eq!(ring.access(context.host())?, Access::None, "revoked access");
    context.refuses(HipError::InvalidValue, || ring.read(0, &mut [0])).map(|_| ())
}
