//! Ring buffers: the same memory is mapped several times side by side, so that its beginning follows its end.

use crate::Context;
use crate::case::{Case, TestResult, ensure_bytes, ensure_eq};
use hsa_vmm::Access;
use hsa_vmm::buffer::RingBuffer;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::hip::HipError;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.ring.no_seam",
        "reference 6.2 #25: the same memory at two addresses",
        "bytes that the CPU writes past the end appear at the beginning, in every mapping",
        writes_continue_at_start,
    ),
    Case::new(
        "buffer.ring.gpus_see_no_seam",
        "reference 6.2 #25; ROCm/hip#3728",
        "each GPU that was granted access copies past the end in one call",
        gpus_copy_past_end,
    ),
    Case::new(
        "buffer.ring.is_one_memory",
        "HIP: hipMemMap of one handle at several addresses",
        "a ring has one handle for all its mappings, and releases all resources",
        uses_one_handle,
    ),
    Case::new(
        "buffer.ring.positions_go_on",
        "documentation: RingBuffer::address_of",
        "positions increase without limit, and are taken modulo the size",
        positions_wrap_around,
    ),
    Case::new(
        "buffer.ring.larger_than_itself",
        "documentation: Problem::TooLarge",
        "more bytes than the ring's size can be neither read nor written",
        rejects_more_than_size,
    ),
    Case::new(
        "buffer.ring.no_ring",
        "documentation: Problem::TooFewTimes",
        "creating a ring is rejected if its memory would be mapped fewer than two times, or if its size is 0",
        rejects_invalid_rings,
    ),
    Case::new(
        "buffer.ring.read_only",
        "HIP: hipMemSetAccess, hipMemAccessFlagsProtRead",
        "with read access the CPU cannot write, and its access can be revoked",
        cpu_with_read_access_cannot_write,
    ),
];

/// Creates a ring of one granule that is mapped `times` times, for the first GPU and the CPU.
fn create_ring(context: &Context, times: usize) -> TestResult<RingBuffer> {
    let (size, properties) = (context.granule(), context.properties());
    let ring = RingBuffer::create(context.vmm(), size, times, &properties)?;
    ring.grant(&context.default_agents(), Access::ReadWrite)?;
    Ok(ring)
}

/// Returns bytes that differ at any two positions whose distance is a power of two.
fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index % 251) as u8).collect()
}

fn writes_continue_at_start(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    for times in [2, 3] {
        let ring = create_ring(context, times)?;
        let pattern = pattern(ring.size());
        let start = (ring.size() - 100) as u64;
        ring.write(start, &pattern)?;
        let mut found = vec![0; ring.size()];
        for mapping in 0..times as u64 {
            let position = start + mapping * ring.size() as u64;
            ring.read(position, &mut found)?;
            ensure_bytes!(found, pattern, "the contents of mapping {mapping} of {times}");
        }
        for mapping in 0..times {
            let mut found = [0; 4];
            context.vmm().read(context.granule_at(ring.address(), mapping), &mut found)?;
            ensure_bytes!(found, pattern[100..104], "the start of mapping {mapping}");
        }
    }
    Ok(())
}

fn gpus_copy_past_end(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let ring = create_ring(context, 2)?;
    let pattern = pattern(ring.size());
    let start = (ring.size() / 2 + 64) as u64;
    ring.write(start, &pattern)?;
    for &gpu in context.gpus() {
        let can_access = context.runtime().agent(gpu).is_some_and(|a| a.can_access(context.gpu()));
        if !can_access || !context.cpu_can_access(gpu) {
            continue;
        }
        ring.grant(&[gpu], Access::ReadWrite)?;
        let copy = context.reserve(1)?;
        let memory = context.create_on(gpu, 1)?;
        context.map(copy, 1, memory)?;
        context.set_access(copy, 1, &context.gpu_and_cpu(gpu), Access::ReadWrite)?;
        context.vmm().copy(gpu, copy, ring.address_of(start), ring.size())?;
        let mut found = vec![0; ring.size()];
        context.vmm().read(copy, &mut found)?;
        ensure_bytes!(found, pattern, "the bytes that GPU {gpu} copied");
    }
    Ok(())
}

fn uses_one_handle(context: &Context) -> TestResult {
    for times in [2, 5] {
        let ring = create_ring(context, times)?;
        ensure_eq!(ring.times(), times, "times");
        let usage = context.vmm().usage();
        ensure_eq!(
            (usage.reservations, usage.handles, usage.mappings),
            (1, 1, times),
            "objects in use"
        );
        context.vmm().fill(ring.address(), 0xc700, ring.size())?;
        for mapping in 0..times {
            context.check_contents(context.granule_at(ring.address(), mapping), 1, 0xc700)?;
        }
    }
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn positions_wrap_around(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let ring = create_ring(context, 2)?;
    let size = ring.size() as u64;
    for (position, equivalent) in [(0, 3 * size), (7, 7 + 1000 * size), (u64::MAX % size, u64::MAX)]
    {
        ensure_eq!(ring.address_of(position), ring.address_of(equivalent), "{equivalent:#x}");
        ring.write(equivalent, &position.to_le_bytes())?;
        let mut found = [0; 8];
        ring.read(position, &mut found)?;
        ensure_eq!(found, position.to_le_bytes(), "at {position:#x}, written at {equivalent:#x}");
    }
    Ok(())
}

fn rejects_more_than_size(context: &Context) -> TestResult {
    let ring = create_ring(context, 3)?;
    let mut bytes = vec![0; ring.size() + 1];
    let expected = HipError::InvalidValue;
    for position in [0, 1, u64::MAX] {
        context.expect_error(expected, || ring.read(position, &mut bytes))?;
        context.expect_error(expected, || ring.write(position, &bytes))?;
    }
    Ok(())
}

fn rejects_invalid_rings(context: &Context) -> TestResult {
    for times in [0, 1] {
        let create = || {
            let (size, properties) = (context.granule(), context.properties());
            RingBuffer::create(context.vmm(), size, times, &properties).map(|_| ())
        };
        let error = context.expect_error(HipError::InvalidValue, create)?;
        ensure_eq!(error.problem(), Some(Problem::TooFewTimes), "the error");
    }
    let create = || RingBuffer::create(context.vmm(), 0, 2, &context.properties()).map(|_| ());
    let expected = context.rejected_reservation_error();
    let error = context.expect_error(expected, create)?;
    ensure_eq!(error.argument(), Some(Argument::Size), "the argument");
    Ok(())
}

fn cpu_with_read_access_cannot_write(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let ring = create_ring(context, 2)?;
    context.vmm().fill(ring.address(), 0xc800, ring.size())?;
    ring.grant(&[context.host()], Access::Read)?;
    let size = ring.size() as u64;
    for mapping in 0..2 {
        context.check_contents(context.granule_at(ring.address(), mapping), 1, 0xc800)?;
        let at = mapping as u64 * size;
        context.expect_error(HipError::InvalidValue, || ring.write(at, &[1]))?;
    }
    ring.revoke(&[context.host()])?;
    ensure_eq!(ring.access(context.host())?, Access::None, "revoked access");
    context.expect_error(HipError::InvalidValue, || ring.read(0, &mut [0])).map(|_| ())
}
