//! Pool memory, the equivalent of `hipMalloc`.

#![expect(unsafe_code, reason = "calls a function of the runtime that the library does not use")]

use crate::case::{Case, TestResult, ensure, ensure_bytes, ensure_eq};
use crate::contents::copy_engine;
use crate::raw_calls::RawCalls;
use crate::{Context, NotPassed};
use hsa_vmm::error::Problem;
use hsa_vmm::hip::HipError;
use hsa_vmm::{Error, PoolMemory};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "pool.memory.holds_what_is_written",
        "HIP: hipMalloc, hipMemcpy",
        "memory of every GPU and of the host, of any size, can be written and read back",
        holds_written_data,
    ),
    Case::new(
        "pool.memory.filled",
        "HIP: hipMemsetD32",
        "filling a part does not change the rest",
        fills_part,
    ),
    Case::new(
        "pool.memory.filled_by_the_runtime",
        "HSA: hsa_amd_memory_fill",
        "the runtime's fill, which the library does not use, fills exactly the range",
        runtime_fills_range,
    ),
    Case::new(
        "pool.memory.copied_between_gpus",
        "HIP: hipMemcpyDtoD, hipDeviceEnablePeerAccess",
        "a copy from another GPU is rejected until peer access is enabled, and then succeeds",
        copies_between_gpus,
    ),
    Case::new(
        "pool.memory.zero_size",
        "HSA: hsa_amd_memory_pool_allocate",
        "a size of 0 is rejected",
        rejects_zero_size,
    ),
    Case::new(
        "pool.memory.too_large",
        "HIP: hipMalloc, hipErrorOutOfMemory",
        "more memory than exists is rejected",
        rejects_huge_size,
    ),
    Case::new(
        "pool.memory.beyond",
        "decision: an error, never a fault",
        "bytes past the memory can be neither read nor written",
        rejects_access_beyond_end,
    ),
];

fn allocate(context: &Context, size: usize) -> TestResult<PoolMemory> {
    Ok(PoolMemory::allocate(context.runtime(), context.gpu(), size)?)
}

fn holds_written_data(context: &Context) -> TestResult {
    let agents = context.gpus().iter().copied().chain([context.host()]);
    for agent in agents {
        for size in [1, 100, 4096, 4097, 3 << 20] {
            let memory = PoolMemory::allocate(context.runtime(), agent, size)?;
            ensure_eq!(memory.size(), size, "the size");
            ensure!(memory.allocated_size() >= size, "less memory was allocated than requested");
            let written: Vec<u8> = (0..size).map(|index| (index * 7 + size) as u8).collect();
            memory.write(0, &written)?;
            let mut read = vec![0; size];
            memory.read(0, &mut read)?;
            let engine = if agent == context.host() { "the CPU" } else { copy_engine() };
            let (bytes, hold) = if size == 1 { ("byte", "does") } else { ("bytes", "do") };
            ensure_bytes!(
                read,
                written,
                "{size} {bytes} of {agent} {hold} not hold what was written (written and read by {engine})"
            );
        }
    }
    Ok(())
}

fn fills_part(context: &Context) -> TestResult {
    let memory = allocate(context, 3 << 20)?;
    memory.fill(0, 0x0101_0101, 3 << 20)?;
    let (gpu, engine) = (context.gpu(), copy_engine());
    let mut bytes = vec![0; 3 << 20];
    let mut expected = vec![1; 3 << 20];
    memory.read(0, &mut bytes)?;
    ensure_bytes!(bytes, expected, "memory of {gpu}, filled by this GPU ({engine})");
    memory.fill(4096, 0x0202_0202, 1 << 20)?;
    memory.read(0, &mut bytes)?;
    let part = 4096..4096 + (1 << 20);
    ensure_bytes!(
        bytes[part.clone()],
        vec![2; 1 << 20],
        "the part of memory of {gpu} that this GPU filled again ({engine})"
    );
    expected[part].fill(2);
    ensure_bytes!(bytes, expected, "memory of {gpu}, partly filled again by this GPU ({engine})");
    Ok(())
}

fn runtime_fills_range(context: &Context) -> TestResult {
    const PAGE: usize = 4096;
    let raw = RawCalls::of_runtime(context.runtime()).map_err(NotPassed::Failed)?;
    for &gpu in context.gpus() {
        let memory = PoolMemory::allocate(context.runtime(), gpu, 6 * PAGE)?;
        memory.write(0, &[0x11; 6 * PAGE])?;
        let start = crate::context::offset_by(memory.address(), PAGE);
        // SAFETY: the range is four of the memory's six pages; only this thread uses the memory.
        unsafe { raw.fill(start, 0x8765_4321, PAGE) }.map_err(NotPassed::Failed)?;
        let mut found = vec![0; 6 * PAGE];
        memory.read(0, &mut found)?;
        let filled = 0x8765_4321_u32.to_le_bytes().repeat(PAGE);
        ensure_bytes!(found[PAGE..5 * PAGE], filled, "the memory of {gpu} that was filled");
        ensure_bytes!(found[..PAGE], [0x11; PAGE], "the page before the filled memory of {gpu}");
        ensure_bytes!(found[5 * PAGE..], [0x11; PAGE], "the page after the filled memory of {gpu}");
    }
    Ok(())
}

fn copies_between_gpus(context: &Context) -> TestResult {
    let other = context.other_gpu()?;
    let destination = allocate(context, 8192)?;
    let source = PoolMemory::allocate(context.runtime(), other, 8192)?;
    source.fill(0, 0x5a5a_5a5a, 8192)?;
    destination.fill(0, 0, 8192)?;
    let call_result = destination.copy(0, &source, 4096, 4096);
    let problem = call_result.as_ref().err().and_then(Error::problem);
    ensure_eq!(problem, Some(Problem::NotAllowed(context.gpu())), "{call_result:?}");
    source.allow(&[context.gpu()])?;
    destination.copy(0, &source, 4096, 4096)?;
    let mut bytes = [0; 8192];
    destination.read(0, &mut bytes)?;
    let mut expected = [0; 8192];
    expected[..4096].fill(0x5a);
    let (gpu, engine) = (context.gpu(), copy_engine());
    ensure_bytes!(bytes, expected, "{gpu} ({engine}) copied wrong data from {other}");
    Ok(())
}

/// Checks that a call failed with the expected HIP error, and records this error.
fn expect_pool_error<T>(
    context: &Context,
    expected: HipError,
    result: Result<T, Error>,
) -> TestResult<Error> {
    match result {
        Ok(_) => Err(NotPassed::Failed(format!("succeeded where {expected} was expected"))),
        Err(error) => {
            ensure_eq!(error.hip(context.profile()), expected, "{error}");
            context.record_expected_error(expected);
            Ok(error)
        }
    }
}

fn rejects_zero_size(context: &Context) -> TestResult {
    let result = PoolMemory::allocate(context.runtime(), context.gpu(), 0);
    expect_pool_error(context, HipError::InvalidValue, result)?;
    Ok(())
}

fn rejects_huge_size(context: &Context) -> TestResult {
    let pool = context.runtime().agent(context.gpu()).and_then(|gpu| gpu.vmem_pool());
    let size = pool.map_or(0, |pool| pool.size) + (1 << 30);
    let result = PoolMemory::allocate(context.runtime(), context.gpu(), size);
    expect_pool_error(context, HipError::OutOfMemory, result)?;
    Ok(())
}

fn rejects_access_beyond_end(context: &Context) -> TestResult {
    let memory = allocate(context, 4096)?;
    for (offset, size) in [(0, 4097), (4096, 1), (usize::MAX, 2), (1, usize::MAX)] {
        let expected = Some(Problem::OutOfBounds { size, end: 4096 });
        let error =
            expect_pool_error(context, HipError::InvalidValue, memory.fill(offset, 0, size))?;
        ensure_eq!(error.problem(), expected, "{error}");
    }
    let error = expect_pool_error(context, HipError::InvalidValue, memory.read(4090, &mut [0; 7]))?;
    ensure!(matches!(error.problem(), Some(Problem::OutOfBounds { .. })), "{error}");
    let error = expect_pool_error(context, HipError::InvalidValue, memory.write(4090, &[0; 7]))?;
    ensure!(matches!(error.problem(), Some(Problem::OutOfBounds { .. })), "{error}");
    Ok(())
}
