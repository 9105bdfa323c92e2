//! Retire queues, which unmap memory when signals fire. HIP has no retire queues.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::retiring::RetireFixture;
use hsa_vmm::Access;
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::Problem;
use hsa_vmm::hip::HipError;

const SOURCE: &str =
    "HSA: hsa_signal_load_scacquire; openxla/xla#43398: free after the last kernel";

pub(super) const CASES: &[Case] = &[
    Case::new(
        "retire.signal.fires",
        SOURCE,
        "memory keeps its contents and its addresses until the signal fires, and is then released",
        memory_stays_until_signal_fires,
    ),
    Case::new(
        "retire.signals.all",
        SOURCE,
        "memory stays until the last of several signals fires",
        memory_waits_for_all_signals,
    ),
    Case::new(
        "retire.queue.full",
        SOURCE,
        "a full queue rejects a range, and the range can be used as before",
        full_queue_rejects_range,
    ),
    Case::new(
        "retire.range.part_of_a_mapping",
        "HIP: hipMemUnmap",
        "half a mapping is rejected",
        rejects_part_of_mapping,
    ),
    Case::new(
        "retire.addresses.again",
        SOURCE,
        "the addresses can be mapped again once the memory is unmapped, and not before",
        addresses_are_mapped_again,
    ),
    Case::new(
        "retire.buffer.pages",
        SOURCE,
        "pages of a buffer stay mapped until the signal fires, and can then be mapped again",
        pages_stay_until_signal_fires,
    ),
];

fn memory_stays_until_signal_fires(context: &Context) -> TestResult {
    let fixture = RetireFixture::new(context, 4)?;
    let (at, handle) = context.map_filled(2, 0x9191_9191)?;
    let (vmm, size) = (context.vmm(), 2 * context.granule());
    fixture.submit(at, size, 1)?;
    vmm.release(handle)?;
    ensure_eq!(fixture.poll()?.retired, 0, "unmapped before the signal");
    context.check_contents(at, 2, 0x9191_9191)?;
    context.expect_error(still_mapped_error(context), || vmm.address_free(at, size))?;
    fixture.fire(0);
    let report = fixture.poll()?;
    ensure_eq!((report.retired, report.pending), (1, 0), "after the signal");
    ensure!(report.failures.is_empty(), "{:?}", report.failures);
    ensure!(vmm.mapped_range_at(at).is_none(), "still mapped after the signal");
    ensure_eq!(vmm.usage().handles, 0, "memory after the signal");
    Ok(vmm.address_free(at, size)?)
}

/// Returns the error of an attempt to free a reservation that still contains a mapping.
fn still_mapped_error(context: &Context) -> HipError {
    match context.profile() {
        hsa_vmm::hip::HipProfile::Hip6 => HipError::Unknown,
        _ => HipError::InvalidValue,
    }
}

fn memory_waits_for_all_signals(context: &Context) -> TestResult {
    let fixture = RetireFixture::new(context, 4)?;
    let (at, _) = context.map_filled(1, 0x9292_9292)?;
    fixture.submit(at, context.granule(), 2)?;
    fixture.fire(1);
    ensure_eq!(fixture.poll()?.pending, 1, "after one of two signals");
    context.check_contents(at, 1, 0x9292_9292)?;
    fixture.fire(0);
    ensure_eq!(fixture.poll()?.retired, 1, "after both signals");
    Ok(())
}

fn full_queue_rejects_range(context: &Context) -> TestResult {
    let fixture = RetireFixture::new(context, 1)?;
    let (first, _) = context.map_filled(1, 0x9393_9393)?;
    let (second, _) = context.map_filled(1, 0x9494_9494)?;
    let size = context.granule();
    fixture.submit(first, size, 1)?;
    context.expect_error(HipError::OutOfMemory, || fixture.submit(second, size, 1))?;
    context.check_contents(second, 1, 0x9494_9494)?;
    context.vmm().unmap(second, size)?;
    fixture.fire(0);
    ensure_eq!(fixture.poll()?.retired, 1, "the range that was accepted");
    Ok(())
}

fn rejects_part_of_mapping(context: &Context) -> TestResult {
    let fixture = RetireFixture::new(context, 1)?;
    let (at, _) = context.map_filled(2, 0x9595_9595)?;
    let submit = || fixture.submit(at, context.granule(), 1);
    context.expect_error(HipError::InvalidValue, submit)?;
    fixture.fire(0);
    ensure_eq!(fixture.poll()?.retired, 0, "ranges retired after the rejection");
    context.check_contents(at, 2, 0x9595_9595)
}

fn addresses_are_mapped_again(context: &Context) -> TestResult {
    let fixture = RetireFixture::new(context, 1)?;
    let (at, _) = context.map_filled(1, 0x9696_9696)?;
    let (vmm, size, handle) = (context.vmm(), context.granule(), context.create(1)?);
    fixture.submit(at, size, 1)?;
    let map = || vmm.map(at, size, 0, handle);
    let error = context.expect_error(HipError::InvalidValue, map)?;
    ensure_eq!(error.problem(), Some(Problem::AlreadyMapped(at)), "{error}");
    fixture.fire(0);
    ensure_eq!(fixture.poll()?.retired, 1, "after the signal");
    context.map(at, 1, handle)?;
    context.set_access(at, 1, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 1, 0x9797_9797)?;
    ensure_eq!(fixture.poll()?.retired, 0, "ranges retired after the new mapping");
    context.check_contents(at, 1, 0x9797_9797)
}

fn pages_stay_until_signal_fires(context: &Context) -> TestResult {
    let fixture = RetireFixture::new(context, 4)?;
    let page = context.granule();
    let buffer = PagedBuffer::builder(4 * page).with_page_size(page);
    let buffer = buffer.reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.default_agents(), Access::ReadWrite)?;
    buffer.map(0..3)?;
    buffer.fill(page, 0x9898_9898, page)?;
    fixture.submit_pages(&buffer, 1..3)?;
    ensure_eq!(fixture.poll()?.pending, 2, "before the signal");
    ensure_eq!(buffer.state(1)?, PageState::Retiring, "before the signal");
    context.check_contents(buffer.address_of(1)?, 1, 0x9898_9898)?;
    let error = context.expect_error(HipError::InvalidValue, || buffer.map(1..2))?;
    ensure_eq!(error.problem(), Some(Problem::PageRetiring), "{error}");
    fixture.fire(0);
    ensure_eq!(fixture.poll()?.retired, 2, "after the signal");
    buffer.map(1..4)?;
    buffer.fill(page, 0x9999_9999, page)?;
    context.check_contents(buffer.address_of(1)?, 1, 0x9999_9999)
}
