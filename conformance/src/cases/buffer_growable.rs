//! Buffers that grow and shrink in place.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use hsa_vmm::buffer::GrowableVec;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, Error, GrowableBuffer};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.growable.grows_in_place",
        "hip-tests: hipMemSetAccess_GrowVMM; HIP's guide: increase memory size",
        "a buffer grows in place step by step and keeps its contents",
        grows_in_place,
    ),
    Case::new(
        "buffer.growable.size_is_what_was_asked",
        "documentation: GrowableBuffer::size, mapped",
        "the size is exact to the byte; the size of the mapped memory is a multiple of the step",
        size_is_exact,
    ),
    Case::new(
        "buffer.growable.shrinks",
        "HIP: hipMemUnmap, hipMemRelease",
        "shrinking releases memory and keeps the rest; the buffer can grow again",
        shrinking_releases_memory,
    ),
    Case::new(
        "buffer.growable.seen_by_all_gpus",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "agents that were granted access can also use memory added later",
        new_memory_keeps_grants,
    ),
    Case::new(
        "buffer.growable.revoked",
        "documentation: GrowableBuffer::revoke",
        "an agent whose access was revoked can use neither existing nor added memory",
        new_memory_keeps_revocation,
    ),
    Case::new(
        "buffer.growable.with_stock",
        "documentation: GrowableBuilder::with_handle_pool",
        "memory prepared in advance behaves like other memory, and all of it is released",
        prepared_memory_is_released,
    ),
    Case::new(
        "buffer.growable.beyond_maximum",
        "documentation: Problem::TooLarge",
        "growth past the reservation is rejected and leaves the buffer unchanged",
        rejects_growth_beyond_maximum,
    ),
    Case::new(
        "buffer.growable.beyond_end",
        "documentation: Problem::OutOfBounds",
        "bytes past the size cannot be read, written, filled or released",
        rejects_access_beyond_end,
    ),
    Case::new(
        "buffer.growable.size_zero",
        "HIP: hipMemAddressReserve",
        "a buffer with no capacity is rejected",
        rejects_zero_capacity,
    ),
    Case::new(
        "buffer.growable.address_taken",
        "documentation: GrowableBuilder::exactly_at; HIP may choose another address",
        "a buffer at a fixed address that is in use is rejected",
        rejects_taken_address,
    ),
    Case::new(
        "buffer.growable.typed",
        "documentation: GrowableVec",
        "values are pushed, read, written and popped as in a vector",
        behaves_like_vector,
    ),
];

/// Creates an empty buffer that can grow to `granules` granules, one at a time. The first GPU, and the CPU if possible,
/// get access.
fn create_growable(context: &Context, granules: usize) -> TestResult<GrowableBuffer> {
    let options =
        GrowableBuffer::builder(granules * context.granule()).with_step(context.granule());
    let buffer = options.reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.default_agents(), Access::ReadWrite)?;
    Ok(buffer)
}

fn grows_in_place(context: &Context) -> TestResult {
    let mut buffer = create_growable(context, 6)?;
    let (at, granule) = (buffer.address(), context.granule());
    for step in 0..6 {
        buffer.grow(granule)?;
        buffer.fill(step * granule, 0xc100 + step as u32, granule)?;
        ensure_eq!(buffer.address(), at, "the address after {} steps", step + 1);
        for earlier in 0..=step {
            context.check_contents(context.granule_at(at, earlier), 1, 0xc100 + earlier as u32)?;
        }
    }
    context.check_through_gpu(context.gpu(), context.granule_at(at, 5), 1, 0xc105)
}

fn size_is_exact(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let mut buffer = create_growable(context, 2)?;
    let granule = context.granule();
    for (size, mapped) in
        [(1, granule), (granule, granule), (granule + 1, 2 * granule), (0, 0), (5, granule)]
    {
        buffer.resize(size)?;
        ensure_eq!((buffer.size(), buffer.mapped_size()), (size, mapped), "size and memory");
        ensure_eq!(context.vmm().usage().mappings, mapped / granule, "mappings");
    }
    buffer.write(0, b"hello")?;
    let mut text = [0; 5];
    buffer.read(0, &mut text)?;
    ensure_eq!(&text, b"hello", "the contents");
    Ok(())
}

fn shrinking_releases_memory(context: &Context) -> TestResult {
    let mut buffer = create_growable(context, 4)?;
    let (at, granule) = (buffer.address(), context.granule());
    buffer.grow(4 * granule)?;
    buffer.fill(0, 0xc200, 4 * granule)?;
    for remaining in [3, 1] {
        buffer.resize(remaining * granule)?;
        ensure_eq!(context.vmm().usage().handles, remaining, "handles");
        context.check_contents(at, remaining, 0xc200)?;
    }
    buffer.grow(granule)?;
    buffer.fill(granule, 0xc201, granule)?;
    context.check_contents(at, 1, 0xc200)?;
    context.check_contents(context.granule_at(at, 1), 1, 0xc201)?;
    drop(buffer);
    let usage = context.vmm().usage();
    ensure_eq!((usage.reservations, usage.handles), (0, 0), "leaks of a dropped buffer");
    Ok(())
}

fn new_memory_keeps_grants(context: &Context) -> TestResult {
    context.other_gpu()?;
    let mut buffer = create_growable(context, 3)?;
    let can_access =
        |agent| context.runtime().agent(agent).is_some_and(|a| a.can_access(context.gpu()));
    let gpus: Vec<_> = context.gpus().iter().copied().filter(|&gpu| can_access(gpu)).collect();
    buffer.grow(context.granule())?;
    buffer.grant(&gpus, Access::ReadWrite)?;
    buffer.grow(2 * context.granule())?;
    buffer.fill(0, 0xc300, 3 * context.granule())?;
    for gpu in gpus {
        ensure_eq!(buffer.access(gpu)?, Access::ReadWrite, "access of GPU {gpu}");
        context.check_through_gpu(gpu, buffer.address(), 3, 0xc300)?;
    }
    Ok(())
}

fn new_memory_keeps_revocation(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let mut buffer = create_growable(context, 2)?;
    buffer.grow(context.granule())?;
    buffer.fill(0, 0xc400, context.granule())?;
    buffer.revoke(&[context.host()])?;
    buffer.grow(context.granule())?;
    ensure_eq!(buffer.access(context.host())?, Access::None, "access of the CPU");
    for offset in [0, context.granule()] {
        context.expect_error(HipError::InvalidValue, || buffer.read(offset, &mut [0; 4]))?;
    }
    buffer.fill(context.granule(), 0xc401, context.granule())?;
    buffer.grant(&[context.host()], Access::Read)?;
    context.check_contents(buffer.address(), 1, 0xc400)?;
    context.check_contents(context.granule_at(buffer.address(), 1), 1, 0xc401)
}

fn prepared_memory_is_released(context: &Context) -> TestResult {
    let granule = context.granule();
    let options = GrowableBuffer::builder(8 * granule).with_step(granule).with_handle_pool(3);
    let mut buffer = options.reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.default_agents(), Access::ReadWrite)?;
    for step in 0..8 {
        buffer.grow(granule)?;
        buffer.fill(step * granule, 0xc500 + step as u32, granule)?;
    }
    for step in 0..8 {
        context.check_contents(
            context.granule_at(buffer.address(), step),
            1,
            0xc500 + step as u32,
        )?;
    }
    drop(buffer);
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn rejects_growth_beyond_maximum(context: &Context) -> TestResult {
    let mut buffer = create_growable(context, 2)?;
    let granule = context.granule();
    buffer.grow(granule)?;
    buffer.fill(0, 0xc600, granule)?;
    for additional in [granule + 1, 2 * granule, usize::MAX] {
        let error = context.expect_error(HipError::InvalidValue, || buffer.grow(additional))?;
        let is_too_large = matches!(error.problem(), Some(Problem::TooLarge { .. }));
        ensure!(is_too_large, "{error}");
        ensure_eq!(buffer.size(), granule, "the size after {additional:#x} bytes were rejected");
    }
    context.check_contents(buffer.address(), 1, 0xc600)
}

fn rejects_access_beyond_end(context: &Context) -> TestResult {
    let mut buffer = create_growable(context, 2)?;
    let size = context.granule() - 8;
    buffer.grow(size)?;
    let check_out_of_bounds = |error: Error| {
        let problem = error.problem();
        let is_out_of_bounds =
            matches!(problem, Some(Problem::OutOfBounds { .. } | Problem::TooLarge { .. }));
        ensure!(is_out_of_bounds, "{error}");
        Ok(())
    };
    let expected = HipError::InvalidValue;
    for offset in [size - 3, size, usize::MAX] {
        check_out_of_bounds(context.expect_error(expected, || buffer.read(offset, &mut [0; 4]))?)?;
        check_out_of_bounds(context.expect_error(expected, || buffer.write(offset, &[0; 4]))?)?;
    }
    check_out_of_bounds(context.expect_error(expected, || buffer.fill(size - 4, 0, 8))?)?;
    check_out_of_bounds(context.expect_error(expected, || buffer.shrink(size + 1))?)
}

fn rejects_zero_capacity(context: &Context) -> TestResult {
    let expected = context.rejected_reservation_error();
    let reserve =
        || GrowableBuffer::builder(0).reserve(context.vmm(), &context.properties()).map(|_| ());
    context.expect_error(expected, reserve).map(|_| ())
}

fn rejects_taken_address(context: &Context) -> TestResult {
    let options = GrowableBuffer::builder(2 * context.granule()).with_step(context.granule());
    let expected = context.rejected_reservation_error();
    let reserve_at =
        |address| options.exactly_at(address).reserve(context.vmm(), &context.properties());
    // Try again, because another thread can reserve the freed addresses first.
    for _ in 0..1000 {
        let taken = context.reserve(2)?;
        let error = context.expect_error(expected, || reserve_at(taken).map(|_| ()))?;
        ensure!(is_address_taken(&error), "{error}");
        context.vmm().address_free(taken, 2 * context.granule())?;
        match reserve_at(taken) {
            Err(error) if is_address_taken(&error) => {}
            buffer => {
                ensure_eq!(buffer?.address(), taken, "the requested address");
                return Ok(());
            }
        }
    }
    ensure!(false, "none of 1000 reservations got the address that was just freed");
    Ok(())
}

fn is_address_taken(error: &Error) -> bool {
    (error.argument(), error.problem()) == (Some(Argument::Address), Some(Problem::AddressTaken))
}

fn behaves_like_vector(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let mut values = GrowableVec::<u64>::new(create_growable(context, 2)?);
    let count = context.granule() as u64 / 8 + 3;
    values.extend(&(0..count).collect::<Vec<_>>())?;
    values.push(count)?;
    ensure_eq!(values.len() as u64, count + 1, "the number of values");
    values.set(3, 77)?;
    ensure_eq!((values.get(3)?, values.get(4)?), (77, 4), "the fourth and fifth value");
    ensure_eq!(values.pop()?, Some(count), "the last value");
    values.truncate(2)?;
    ensure_eq!(values.to_vec()?, [0, 1], "the first two values");
    let error = context.expect_error(HipError::InvalidValue, || values.get(2))?;
    ensure!(matches!(error.problem(), Some(Problem::OutOfBounds { .. })), "{error}");
    Ok(())
}
