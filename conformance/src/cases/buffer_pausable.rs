//! Buffers that release their memory temporarily and keep their addresses.

use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::buffer::{PausableBuffer, PauseMode};
use hsa_vmm::error::Argument;
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, ErrorKind};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.pausable.contents_come_back",
        "vLLM: sleep mode, level 1; torch_memory_saver",
        "a paused buffer resumes with its contents at the same address",
        resumes_with_contents,
    ),
    Case::new(
        "buffer.pausable.memory_goes",
        "vllm#46203, torch_memory_saver#83",
        "a paused buffer has addresses but no memory, and no agent has access",
        pausing_releases_memory,
    ),
    Case::new(
        "buffer.pausable.memory_returns",
        "torch_memory_saver#83; HSA: HSA_AMD_AGENT_INFO_MEMORY_AVAIL",
        "the memory of a paused buffer is available again",
        pausing_returns_memory,
    ),
    Case::new(
        "buffer.pausable.addresses_stay",
        "vLLM: sleep mode; pointers in recorded graphs",
        "the addresses of a paused buffer are not used by other reservations",
        pausing_keeps_addresses,
    ),
    Case::new(
        "buffer.pausable.contents_dropped",
        "vLLM: sleep mode, level 2",
        "a buffer that discarded its contents can be used again",
        resumes_without_contents,
    ),
    Case::new(
        "buffer.pausable.access_comes_back",
        "HIP: hipMemSetAccess is needed after every hipMemMap",
        "access that was granted before or during the pause applies after the buffer resumes",
        resumes_with_access,
    ),
    Case::new(
        "buffer.pausable.twice",
        "documentation: ErrorKind::Paused, NotPaused",
        "a paused buffer cannot be paused again, and a buffer that is not paused cannot resume",
        rejects_second_pause_and_resume,
    ),
    Case::new(
        "buffer.pausable.any_size",
        "documentation: PausableBuffer::create",
        "a buffer can have any size from one byte, and bytes past its end cannot be used",
        accepts_any_size,
    ),
];

/// Creates a buffer of `granules` granules for the first GPU and the CPU, and fills it with a value.
fn create_pausable(context: &Context, granules: usize, value: u32) -> TestResult<PausableBuffer> {
    let size = granules * context.granule();
    let buffer = PausableBuffer::create(context.vmm(), size, &context.properties())?;
    buffer.grant(&context.default_agents(), Access::ReadWrite)?;
    context.fill(buffer.address(), granules, value)?;
    Ok(buffer)
}

fn resumes_with_contents(context: &Context) -> TestResult {
    let mut buffer = create_pausable(context, 2, 0xd900)?;
    let at = buffer.address();
    context.fill(context.granule_at(at, 1), 1, 0xd901)?;
    for _ in 0..3 {
        buffer.pause(PauseMode::Save)?;
        buffer.resume()?;
        ensure_eq!(buffer.address(), at, "the address");
        context.check_contents(at, 1, 0xd900)?;
        context.check_contents(context.granule_at(at, 1), 1, 0xd901)?;
        context.check_through_gpu(context.gpu(), context.granule_at(at, 1), 1, 0xd901)?;
    }
    Ok(())
}

fn pausing_releases_memory(context: &Context) -> TestResult {
    let mut buffer = create_pausable(context, 2, 0xda00)?;
    let at = buffer.address();
    buffer.pause(PauseMode::Save)?;
    ensure!(
        buffer.is_paused() && buffer.holds_addresses(),
        "the buffer is not paused, or has lost its addresses"
    );
    let usage = context.vmm().usage();
    ensure_eq!((usage.reservations, usage.handles, usage.mappings), (1, 0, 0), "objects in use");
    let expected = HipError::InvalidValue;
    context.expect_error(expected, || context.vmm().read(at, &mut [0; 4]))?;
    context.expect_error(expected, || context.vmm().fill(at, 0, context.granule()))?;
    let error = context.expect_error(expected, || buffer.write(0, &[0; 4]))?;
    ensure_eq!(error.into_kind(), ErrorKind::Paused, "the error");
    buffer.resume()?;
    context.check_contents(at, 2, 0xda00)
}

fn pausing_returns_memory(context: &Context) -> TestResult {
    const SIZE: usize = 64 << 20;
    let available = || context.available_memory(context.gpu());
    let size = SIZE.min(available()? / 4).next_multiple_of(context.granule());
    let mut differences = Vec::new();
    // Other processes use GPU memory, too. Therefore, one attempt in which the memory returns is enough.
    for _ in 0..10 {
        let mut buffer = PausableBuffer::create(context.vmm(), size, &context.properties())?;
        buffer.grant(&context.default_agents(), Access::ReadWrite)?;
        let before = available()?;
        buffer.pause(PauseMode::Discard)?;
        let after = available()?;
        if after >= before.saturating_add(size / 2) {
            return Ok(());
        }
        differences.push(after.cast_signed() - before.cast_signed());
    }
    Err(NotPassed::Failed(format!(
        "pausing {size:#x} bytes changed the available memory by {differences:?} bytes"
    )))
}

fn pausing_keeps_addresses(context: &Context) -> TestResult {
    let mut buffer = create_pausable(context, 4, 0xdb00)?;
    let at = buffer.address();
    buffer.pause(PauseMode::Discard)?;
    let size = 4 * context.granule();
    for _ in 0..8 {
        let other = context.vmm().address_reserve(size, 0, Some(at))?;
        let is_outside = other.get() >= at.get() + size || other.get() + size <= at.get();
        ensure!(is_outside, "{other} was reserved while {at} is paused");
    }
    buffer.resume()?;
    ensure_eq!(buffer.address(), at, "the address");
    context.fill(at, 4, 0xdb01)?;
    context.check_contents(at, 4, 0xdb01)
}

fn resumes_without_contents(context: &Context) -> TestResult {
    let mut buffer = create_pausable(context, 1, 0xdc00)?;
    buffer.pause(PauseMode::Discard)?;
    ensure_eq!(buffer.saved_size(), 0, "saved bytes");
    buffer.resume()?;
    context.fill(buffer.address(), 1, 0xdc01)?;
    context.check_contents(buffer.address(), 1, 0xdc01)
}

fn resumes_with_access(context: &Context) -> TestResult {
    let other = context.other_gpu()?;
    let mut buffer = create_pausable(context, 1, 0xdd00)?;
    buffer.pause(PauseMode::Save)?;
    buffer.grant(&[other], Access::Read)?;
    buffer.resume()?;
    for agent in context.default_agents() {
        ensure_eq!(buffer.access(agent)?, Access::ReadWrite, "access of agent {agent}");
        let found = context.vmm().get_access(agent, buffer.address())?;
        ensure_eq!(found, Access::ReadWrite, "access of agent {agent}, as Vmm reports");
    }
    ensure_eq!(buffer.access(other)?, Access::Read, "access granted during the pause");
    context.check_contents(buffer.address(), 1, 0xdd00)?;
    context.check_through_gpu(other, buffer.address(), 1, 0xdd00)
}

fn rejects_second_pause_and_resume(context: &Context) -> TestResult {
    let mut buffer = create_pausable(context, 1, 0xde00)?;
    let expected = HipError::InvalidValue;
    let error = context.expect_error(expected, || buffer.resume())?;
    ensure_eq!(error.into_kind(), ErrorKind::NotPaused, "the error");
    buffer.pause(PauseMode::Save)?;
    for mode in [PauseMode::Save, PauseMode::Discard] {
        let error = context.expect_error(expected, || buffer.pause(mode))?;
        ensure_eq!(error.into_kind(), ErrorKind::Paused, "the error");
    }
    buffer.resume()?;
    context.check_contents(buffer.address(), 1, 0xde00)
}

fn accepts_any_size(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    for size in [1, 5, context.granule() - 1, context.granule() + 1] {
        let mut buffer = PausableBuffer::create(context.vmm(), size, &context.properties())?;
        buffer.grant(&context.default_agents(), Access::ReadWrite)?;
        let granules = size.div_ceil(context.granule());
        ensure_eq!((buffer.size(), buffer.extent()), (size, granules * context.granule()), "sizes");
        buffer.write(size - 1, &[0xdf])?;
        context.expect_error(HipError::InvalidValue, || buffer.write(size - 1, &[1, 2]))?;
        buffer.pause(PauseMode::Save)?;
        buffer.resume()?;
        let mut last = [0];
        buffer.read(size - 1, &mut last)?;
        ensure_eq!(last, [0xdf], "the last of {size} bytes");
    }
    let create = || PausableBuffer::create(context.vmm(), 0, &context.properties()).map(|_| ());
    let expected = context.rejected_reservation_error();
    let error = context.expect_error(expected, create)?;
    ensure_eq!(error.argument(), Some(Argument::Size), "the argument");
    Ok(())
}
