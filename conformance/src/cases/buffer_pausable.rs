//! Buffers that release their memory temporarily and keep their addresses.

use crate::case::{Case, Verdict, ensure, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::buffer::{Contents, PausableBuffer};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, ErrorKind};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.pausable.contents_come_back",
        "vLLM: sleep mode, level 1; torch_memory_saver",
        "a paused buffer resumes with its contents at the same address",
        |c| unless_lost(c, contents_come_back),
    ),
    Case::new(
        "buffer.pausable.memory_goes",
        "vllm#46203, torch_memory_saver#83",
        "a paused buffer has addresses but no memory, and no agent has access",
        |c| unless_lost(c, memory_goes),
    ),
    Case::new(
        "buffer.pausable.addresses_stay",
        "vLLM: sleep mode; pointers in recorded graphs",
        "the addresses of a paused buffer are not given to other reservations",
        |c| unless_lost(c, addresses_stay),
    ),
    Case::new(
        "buffer.pausable.contents_dropped",
        "vLLM: sleep mode, level 2",
        "a buffer that discarded its contents can be used again",
        |c| unless_lost(c, contents_dropped),
    ),
    Case::new(
        "buffer.pausable.access_comes_back",
        "HIP: hipMemSetAccess is needed after every hipMemMap",
        "access granted before or during the pause applies after it",
        |c| unless_lost(c, access_comes_back),
    ),
    Case::new(
        "buffer.pausable.twice",
        "documentation: ErrorKind::Paused, NotPaused",
        "a paused buffer cannot be paused again, and one that is not paused cannot resume",
        |c| unless_lost(c, twice),
    ),
    Case::new(
        "buffer.pausable.any_size",
        "documentation: PausableBuffer::create",
        "a buffer can have any size from one byte, and bytes past it cannot be used",
        |c| unless_lost(c, any_size),
    ),
];

/// Creates a buffer of granules, for the first GPU and the CPU, filled with a value.
fn pausable(context: &Context, granules: usize, value: u32) -> Verdict<PausableBuffer> {
    let size = granules * context.granule();
    let mut buffer = PausableBuffer::create(context.vmm(), size, &context.properties())?;
    buffer.grant(&context.users(), Access::ReadWrite)?;
    context.fill(buffer.address(), granules, value)?;
    Ok(buffer)
}

/// The error after which a case runs again.
const LOST: &str = "another thread of this process took the addresses, again and again";

/// Pauses a buffer. If the runtime releases memory only together with its addresses, another thread
/// of this process can reserve them. Only a process without such threads can guarantee otherwise.
fn pause(context: &Context, buffer: &mut PausableBuffer, contents: Contents) -> Verdict {
    match buffer.pause(contents) {
        Err(error)
            if matches!(error.kind(), ErrorKind::AddressLost { .. })
                && !context.counts_descriptors() =>
        {
            Err(NotPassed::Skipped(LOST.to_owned()))
        }
        answer => Ok(answer?),
    }
}

/// Runs a case until no other thread has reserved the buffer's addresses.
fn unless_lost(context: &Context, case: fn(&Context) -> Verdict) -> Verdict {
    let lost = Err(NotPassed::Skipped(LOST.to_owned()));
    (0..50).map(|_| case(context)).find(|verdict| *verdict != lost).unwrap_or(lost.clone())
}

fn contents_come_back(context: &Context) -> Verdict {
    let mut buffer = pausable(context, 2, 0xd900)?;
    let at = buffer.address();
    context.fill(context.on(at, 1), 1, 0xd901)?;
    for _ in 0..3 {
        pause(context, &mut buffer, Contents::Save)?;
        buffer.resume()?;
        ensure_eq!(buffer.address(), at, "the address");
        context.holds(at, 1, 0xd900)?;
        context.holds(context.on(at, 1), 1, 0xd901)?;
        context.seen_by(context.gpu(), context.on(at, 1), 1, 0xd901)?;
    }
    Ok(())
}

fn memory_goes(context: &Context) -> Verdict {
    let mut buffer = pausable(context, 2, 0xda00)?;
    let at = buffer.address();
    pause(context, &mut buffer, Contents::Save)?;
    ensure!(buffer.is_paused() && buffer.holds_addresses(), "paused, with its addresses");
    let usage = context.vmm().usage();
    ensure_eq!((usage.reservations, usage.handles, usage.mappings), (1, 0, 0), "in use");
    let refused = HipError::InvalidValue;
    context.refuses(refused, || context.vmm().read(at, &mut [0; 4]))?;
    context.refuses(refused, || context.vmm().fill(at, 0, context.granule()))?;
    let error = context.refuses(refused, || buffer.write(0, &[0; 4]))?;
    ensure_eq!(error.into_kind(), ErrorKind::Paused, "the error");
    buffer.resume()?;
    context.holds(at, 2, 0xda00)
}

fn addresses_stay(context: &Context) -> Verdict {
    let mut buffer = pausable(context, 4, 0xdb00)?;
    let at = buffer.address();
    pause(context, &mut buffer, Contents::Drop)?;
    let size = 4 * context.granule();
    for _ in 0..8 {
        let other = context.vmm().address_reserve(size, 0, Some(at))?;
        let apart = other.get() >= at.get() + size || other.get() + size <= at.get();
        ensure!(apart, "{other} was reserved while {at} is paused");
    }
    buffer.resume()?;
    ensure_eq!(buffer.address(), at, "the address");
    context.fill(at, 4, 0xdb01)?;
    context.holds(at, 4, 0xdb01)
}

fn contents_dropped(context: &Context) -> Verdict {
    let mut buffer = pausable(context, 1, 0xdc00)?;
    pause(context, &mut buffer, Contents::Drop)?;
    ensure_eq!(buffer.saved(), 0, "saved bytes");
    buffer.resume()?;
    context.fill(buffer.address(), 1, 0xdc01)?;
    context.holds(buffer.address(), 1, 0xdc01)
}

fn access_comes_back(context: &Context) -> Verdict {
    let other = context.other_gpu()?;
    let mut buffer = pausable(context, 1, 0xdd00)?;
    pause(context, &mut buffer, Contents::Save)?;
    buffer.grant(&[other], Access::Read)?;
    buffer.resume()?;
    for agent in context.users() {
        ensure_eq!(buffer.access(agent)?, Access::ReadWrite, "access of agent {agent}");
        let found = context.vmm().get_access(agent, buffer.address())?;
        ensure_eq!(found, Access::ReadWrite, "access of agent {agent}, as Vmm reports");
    }
    ensure_eq!(buffer.access(other)?, Access::Read, "access granted during the pause");
    context.holds(buffer.address(), 1, 0xdd00)?;
    context.seen_by(other, buffer.address(), 1, 0xdd00)
}

fn twice(context: &Context) -> Verdict {
    let mut buffer = pausable(context, 1, 0xde00)?;
    let refused = HipError::InvalidValue;
    let error = context.refuses(refused, || buffer.resume())?;
    ensure_eq!(error.into_kind(), ErrorKind::NotPaused, "the error");
    pause(context, &mut buffer, Contents::Save)?;
    for contents in [Contents::Save, Contents::Drop] {
        let error = context.refuses(refused, || buffer.pause(contents))?;
        ensure_eq!(error.into_kind(), ErrorKind::Paused, "the error");
    }
    buffer.resume()?;
    context.holds(buffer.address(), 1, 0xde00)
}

fn any_size(context: &Context) -> Verdict {
    context.needs_cpu()?;
    for size in [1, 5, context.granule() - 1, context.granule() + 1] {
        let mut buffer = PausableBuffer::create(context.vmm(), size, &context.properties())?;
        buffer.grant(&context.users(), Access::ReadWrite)?;
        let granules = size.div_ceil(context.granule());
        ensure_eq!((buffer.size(), buffer.extent()), (size, granules * context.granule()), "sizes");
        buffer.write(size - 1, &[0xdf])?;
        context.refuses(HipError::InvalidValue, || buffer.write(size - 1, &[1, 2]))?;
        pause(context, &mut buffer, Contents::Save)?;
        buffer.resume()?;
        let mut last = [0];
        buffer.read(size - 1, &mut last)?;
        ensure_eq!(last, [0xdf], "the last of {size} bytes");
    }
    let nothing = PausableBuffer::create(context.vmm(), 0, &context.properties());
    ensure!(nothing.is_err(), "a buffer of size 0 was created");
    Ok(())
}
