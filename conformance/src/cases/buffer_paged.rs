//! Buffers whose pages are mapped and unmapped separately.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::{Problem, Value};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, Error, ErrorKind};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.paged.come_and_go",
        "vAttention: pages of a KV cache; HIP: hipMemMap, hipMemUnmap",
        "pages get and release memory in any order; other pages do not change",
        maps_pages_in_any_order,
    ),
    Case::new(
        "buffer.paged.runs",
        "documentation: PagedBuffer::map: all of them or none",
        "one call maps or unmaps all pages of a range, or none",
        maps_all_pages_or_none,
    ),
    Case::new(
        "buffer.paged.no_such_page",
        "documentation: Problem::OutOfRange",
        "pages past the end are rejected",
        rejects_pages_beyond_end,
    ),
    Case::new(
        "buffer.paged.not_mapped",
        "documentation: Problem::PageNotMapped",
        "a page that is not mapped, or no longer mapped, cannot be read, written or filled",
        rejects_access_to_unmapped_pages,
    ),
    Case::new(
        "buffer.paged.zero_page",
        "documentation: PagedBuilder::with_zero_page",
        "pages that are not mapped, or no longer mapped, read as zeros and cannot be written",
        unmapped_pages_read_as_zeros,
    ),
    Case::new(
        "buffer.paged.seen_by_all_gpus",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "agents that were granted access can use pages that are mapped later",
        new_pages_keep_grants,
    ),
    Case::new(
        "buffer.paged.moved",
        "documentation: PagedBuffer::move_pages",
        "pages move to another buffer without a copy: the memory is the same",
        moves_pages,
    ),
    Case::new(
        "buffer.paged.exchanged",
        "documentation: PagedBuffer::exchange_pages",
        "pages exchange their memory, within a buffer and between two buffers",
        exchanges_pages,
    ),
    Case::new(
        "buffer.paged.other_pages",
        "documentation: Problem::DifferentPages",
        "pages cannot be moved over mapped pages; pages of different sizes can be neither moved nor exchanged",
        rejects_incompatible_pages,
    ),
    Case::new(
        "buffer.paged.shared",
        "documentation: PagedBuffer::share_pages",
        "shared pages are the same memory, in two buffers or in one",
        shares_pages,
    ),
    Case::new(
        "buffer.paged.shared_released",
        "documentation: PagedBuffer::share_pages",
        "shared memory stays when one buffer unmaps it, and is released when no page uses it any longer",
        releases_shared_pages,
    ),
    Case::new(
        "buffer.paged.shared_access",
        "documentation: PagedBuffer::share_pages",
        "access to a shared page depends on the buffer whose address is used",
        shared_pages_have_own_access,
    ),
    Case::new(
        "buffer.paged.shared_refused",
        "documentation: PagedBuffer::share_pages",
        "pages cannot be shared over mapped pages, nor with pages of another size",
        rejects_invalid_sharing,
    ),
    Case::new(
        "buffer.paged.mapped_ahead",
        "documentation: PagedBuilder::with_pages_ahead",
        "pages prepared in advance behave like other pages, and all of them are released",
        prepared_pages_are_released,
    ),
];

/// Creates a buffer with pages of one granule, for the first GPU and the CPU.
fn create_paged(context: &Context, pages: usize, with_zero_page: bool) -> TestResult<PagedBuffer> {
    let options = PagedBuffer::builder(pages * context.granule()).with_page_size(context.granule());
    let options = if with_zero_page { options.with_zero_page() } else { options };
    let buffer = options.reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.default_agents(), Access::ReadWrite)?;
    Ok(buffer)
}

/// Returns the page and the problem that an error reports.
fn rejected_page(error: &Error) -> Option<(u64, Problem)> {
    match *error.kind() {
        ErrorKind::InvalidArgument { value: Value::Number(page), problem, .. } => {
            Some((page, problem))
        }
        _ => None,
    }
}

fn fill_page(context: &Context, buffer: &PagedBuffer, page: usize, value: u32) -> TestResult {
    Ok(buffer.fill(page * context.granule(), value, context.granule())?)
}

fn check_page(context: &Context, buffer: &PagedBuffer, page: usize, value: u32) -> TestResult {
    context.check_contents(buffer.address_of(page)?, 1, value)
}

fn maps_pages_in_any_order(context: &Context) -> TestResult {
    let buffer = create_paged(context, 8, false)?;
    let at = buffer.address();
    for page in [5, 0, 7, 2] {
        buffer.map(page..page + 1)?;
        fill_page(context, &buffer, page, 0xd100 + page as u32)?;
    }
    buffer.unmap(0..1)?;
    buffer.map(1..2)?;
    fill_page(context, &buffer, 1, 0xd101)?;
    for page in [1, 2, 5, 7] {
        check_page(context, &buffer, page, 0xd100 + page as u32)?;
        ensure_eq!(buffer.state(page)?, PageState::Mapped, "page {page}");
    }
    for page in [0, 3, 4, 6] {
        ensure_eq!(buffer.state(page)?, PageState::Empty, "page {page}");
    }
    ensure_eq!((buffer.address(), buffer.statistics().mapped), (at, 4), "address and pages");
    drop(buffer);
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn maps_all_pages_or_none(context: &Context) -> TestResult {
    let buffer = create_paged(context, 6, false)?;
    buffer.map(1..4)?;
    for page in 1..4 {
        fill_page(context, &buffer, page, 0xd200 + page as u32)?;
    }
    // Page 3 is already mapped, page 4 is not.
    let error = context.expect_error(HipError::InvalidValue, || buffer.map(3..6))?;
    ensure_eq!(rejected_page(&error), Some((3, Problem::PageMapped)), "the error");
    let error = context.expect_error(HipError::InvalidValue, || buffer.unmap(2..6))?;
    ensure_eq!(rejected_page(&error), Some((4, Problem::PageNotMapped)), "the error");
    for page in 1..4 {
        check_page(context, &buffer, page, 0xd200 + page as u32)?;
    }
    buffer.unmap(1..4)?;
    ensure_eq!(context.vmm().usage().mappings, 0, "mappings");
    Ok(())
}

fn rejects_pages_beyond_end(context: &Context) -> TestResult {
    let buffer = create_paged(context, 3, false)?;
    let expected = HipError::InvalidValue;
    for pages in [3..4, 2..4, 7..9, usize::MAX - 1..usize::MAX] {
        for error in [
            context.expect_error(expected, || buffer.map(pages.clone()))?,
            context.expect_error(expected, || buffer.unmap(pages.clone()))?,
        ] {
            ensure_eq!(error.problem(), Some(Problem::OutOfRange(3)), "{error}");
        }
    }
    context.expect_error(expected, || buffer.address_of(3))?;
    context.expect_error(expected, || buffer.state(usize::MAX))?;
    Ok(())
}

fn rejects_access_to_unmapped_pages(context: &Context) -> TestResult {
    let buffer = create_paged(context, 3, false)?;
    let granule = context.granule();
    buffer.map(0..2)?;
    buffer.fill(0, 0xd300, 2 * granule)?;
    buffer.unmap(1..2)?;
    let expected = HipError::InvalidValue;
    for (offset, page) in [(granule - 4, 1), (granule, 1), (2 * granule, 2)] {
        for error in [
            context.expect_error(expected, || buffer.read(offset, &mut [0; 8]))?,
            context.expect_error(expected, || buffer.write(offset, &[0; 8]))?,
            context.expect_error(expected, || buffer.fill(offset, 0, 8))?,
        ] {
            ensure_eq!(
                rejected_page(&error),
                Some((page as u64, Problem::PageNotMapped)),
                "the error at {offset:#x}"
            );
        }
    }
    check_page(context, &buffer, 0, 0xd300)
}

fn unmapped_pages_read_as_zeros(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let buffer = create_paged(context, 5, true)?;
    let check_zeros = |pages: &[usize]| {
        for &page in pages {
            check_page(context, &buffer, page, 0)?;
            ensure_eq!(buffer.state(page)?, PageState::Zero, "page {page}");
        }
        Ok(())
    };
    check_zeros(&[0, 1, 2, 3, 4])?;
    buffer.map(1..3)?;
    fill_page(context, &buffer, 1, 0xd400)?;
    fill_page(context, &buffer, 2, 0xd401)?;
    check_zeros(&[0, 3, 4])?;
    check_page(context, &buffer, 2, 0xd401)?;
    for page in [0, 4] {
        let offset = page * context.granule();
        for error in [
            context.expect_error(HipError::InvalidValue, || buffer.write(offset, &[1]))?,
            context.expect_error(HipError::InvalidValue, || buffer.fill(offset, 1, 4))?,
        ] {
            ensure_eq!(
                rejected_page(&error),
                Some((page as u64, Problem::PageNotMapped)),
                "the error"
            );
        }
    }
    let at = buffer.address_of(3)?;
    context.expect_error(HipError::InvalidValue, || context.vmm().write(at, &[1]))?;
    buffer.unmap(1..2)?;
    check_zeros(&[0, 1, 3, 4])?;
    context.check_through_gpu(context.gpu(), buffer.address_of(1)?, 1, 0)?;
    ensure!(buffer.zero_page_is_clean()?, "something was written to the zero page");
    Ok(())
}

fn new_pages_keep_grants(context: &Context) -> TestResult {
    context.other_gpu()?;
    let buffer = create_paged(context, 3, false)?;
    let can_access =
        |agent| context.runtime().agent(agent).is_some_and(|a| a.can_access(context.gpu()));
    let gpus: Vec<_> = context.gpus().iter().copied().filter(|&gpu| can_access(gpu)).collect();
    buffer.map(0..1)?;
    buffer.grant(&gpus, Access::ReadWrite)?;
    buffer.map(2..3)?;
    fill_page(context, &buffer, 0, 0xd500)?;
    fill_page(context, &buffer, 2, 0xd501)?;
    for gpu in gpus {
        context.check_through_gpu(gpu, buffer.address_of(0)?, 1, 0xd500)?;
        context.check_through_gpu(gpu, buffer.address_of(2)?, 1, 0xd501)?;
    }
    Ok(())
}

fn moves_pages(context: &Context) -> TestResult {
    let (first, second) = (create_paged(context, 4, false)?, create_paged(context, 4, false)?);
    first.map(0..2)?;
    fill_page(context, &first, 0, 0xd600)?;
    fill_page(context, &first, 1, 0xd601)?;
    let handle_at = |at| context.vmm().retain_allocation_handle(at);
    let before = handle_at(first.address_of(1)?)?;
    context.release_at_end(before);
    first.move_pages(0..2, &second, 2)?;
    let after = handle_at(second.address_of(3)?)?;
    context.release_at_end(after);
    ensure_eq!(after, before, "the handle of the page");
    check_page(context, &second, 2, 0xd600)?;
    check_page(context, &second, 3, 0xd601)?;
    ensure_eq!((first.statistics().mapped, second.statistics().mapped), (0, 2), "pages");
    let error =
        context.expect_error(HipError::InvalidValue, || second.move_pages(2..3, &second, 3))?;
    ensure_eq!(rejected_page(&error), Some((3, Problem::PageMapped)), "the error");
    // Move a page within one buffer.
    second.move_pages(3..4, &second, 0)?;
    check_page(context, &second, 0, 0xd601)?;
    check_page(context, &second, 2, 0xd600)
}

fn exchanges_pages(context: &Context) -> TestResult {
    let (first, second) = (create_paged(context, 2, false)?, create_paged(context, 2, false)?);
    for (buffer, value) in [(&first, 0xd700), (&second, 0xd710)] {
        buffer.map(0..2)?;
        fill_page(context, buffer, 0, value)?;
        fill_page(context, buffer, 1, value + 1)?;
    }
    first.exchange_pages(0..2, &second, 0)?;
    for (buffer, value) in [(&first, 0xd710), (&second, 0xd700)] {
        check_page(context, buffer, 0, value)?;
        check_page(context, buffer, 1, value + 1)?;
    }
    first.exchange_pages(0..1, &first, 1)?;
    check_page(context, &first, 0, 0xd711)?;
    check_page(context, &first, 1, 0xd710)?;
    context.check_through_gpu(context.gpu(), first.address_of(0)?, 1, 0xd711)
}

fn rejects_incompatible_pages(context: &Context) -> TestResult {
    let first = create_paged(context, 4, false)?;
    let large = PagedBuffer::builder(4 * context.granule()).with_page_size(2 * context.granule());
    let large = large.reserve(context.vmm(), &context.properties())?;
    first.map(0..3)?;
    let expected = HipError::InvalidValue;
    for error in [
        context.expect_error(expected, || first.move_pages(0..1, &large, 0))?,
        context.expect_error(expected, || first.exchange_pages(0..1, &large, 0))?,
    ] {
        ensure_eq!(error.problem(), Some(Problem::DifferentPages), "the error");
    }
    context.expect_error(expected, || first.exchange_pages(0..2, &first, 1))?;
    context.expect_error(expected, || first.move_pages(0..2, &first, 1)).map(|_| ())
}

fn prepared_pages_are_released(context: &Context) -> TestResult {
    let options = PagedBuffer::builder(12 * context.granule()).with_page_size(context.granule());
    let buffer = options.with_pages_ahead(3).reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.default_agents(), Access::ReadWrite)?;
    for page in 0..12 {
        buffer.map(page..page + 1)?;
        fill_page(context, &buffer, page, 0xd800 + page as u32)?;
    }
    for page in 0..12 {
        check_page(context, &buffer, page, 0xd800 + page as u32)?;
    }
    buffer.unmap(4..12)?;
    buffer.trim()?;
    ensure_eq!(buffer.statistics().mapped, 4, "pages in use");
    drop(buffer);
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn shares_pages(context: &Context) -> TestResult {
    let (first, second) = (create_paged(context, 4, false)?, create_paged(context, 4, true)?);
    first.map(0..2)?;
    fill_page(context, &first, 0, 0xd900)?;
    fill_page(context, &first, 1, 0xd901)?;
    first.share_pages(0..2, &second, 1)?;
    check_page(context, &second, 1, 0xd900)?;
    check_page(context, &second, 2, 0xd901)?;
    fill_page(context, &second, 2, 0xd902)?;
    check_page(context, &first, 1, 0xd902)?;
    first.share_pages(1..2, &first, 3)?;
    fill_page(context, &first, 3, 0xd903)?;
    check_page(context, &second, 2, 0xd903)?;
    context.check_through_gpu(context.gpu(), second.address_of(2)?, 1, 0xd903)?;
    let page_users = [(&first, 0, 2), (&first, 1, 3), (&second, 2, 3), (&second, 0, 0)];
    for (buffer, page, expected) in page_users {
        ensure_eq!(buffer.page_users(page)?, expected, "users of page {page}");
    }
    let (a, b) = (first.statistics(), second.statistics());
    ensure_eq!((a.mapped, a.shared, a.repeated), (3, 3, 1), "pages of the first buffer");
    ensure_eq!((b.mapped, b.shared, b.repeated), (2, 2, 0), "pages of the second buffer");
    // Two shared pages, and the zero page.
    ensure_eq!(context.vmm().usage().handles, 3, "handles");
    Ok(())
}

fn releases_shared_pages(context: &Context) -> TestResult {
    let (first, second) = (create_paged(context, 3, false)?, create_paged(context, 3, false)?);
    first.map(0..3)?;
    for page in 0..3 {
        fill_page(context, &first, page, 0xda10 + page as u32)?;
    }
    first.share_pages(0..3, &second, 0)?;
    first.unmap(0..1)?;
    second.unmap(1..2)?;
    check_page(context, &second, 0, 0xda10)?;
    check_page(context, &first, 1, 0xda11)?;
    first.move_pages(2..3, &first, 0)?;
    check_page(context, &first, 0, 0xda12)?;
    ensure_eq!(first.page_users(0)?, 2, "users of a moved page");
    second.exchange_pages(0..1, &second, 2)?;
    check_page(context, &second, 0, 0xda12)?;
    ensure_eq!((second.page_users(0)?, second.page_users(2)?), (2, 1), "users after an exchange");
    drop(first);
    check_page(context, &second, 0, 0xda12)?;
    check_page(context, &second, 2, 0xda10)?;
    ensure_eq!(second.page_users(0)?, 1, "users of a page after the other buffer was dropped");
    drop(second);
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn shared_pages_have_own_access(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (first, second) = (create_paged(context, 2, false)?, create_paged(context, 2, false)?);
    first.map(0..1)?;
    fill_page(context, &first, 0, 0xdb10)?;
    second.grant(&[context.host()], Access::Read)?;
    first.share_pages(0..1, &second, 1)?;
    check_page(context, &second, 1, 0xdb10)?;
    let offset = context.granule();
    context.expect_error(HipError::InvalidValue, || second.write(offset, &[0; 4]))?;
    first.write(0, &0xdb11_u32.to_ne_bytes())?;
    let mut bytes = [0; 4];
    second.read(offset, &mut bytes)?;
    ensure_eq!(u32::from_ne_bytes(bytes), 0xdb11, "the value in the other buffer");
    let address = second.address_of(1)?;
    context.expect_error(HipError::InvalidValue, || context.vmm().write(address, &[0; 4]))?;
    first.revoke(&[context.host()])?;
    context.expect_error(HipError::InvalidValue, || first.read(0, &mut [0; 4]))?;
    second.read(offset, &mut bytes)?;
    ensure_eq!(u32::from_ne_bytes(bytes), 0xdb11, "the value in the other buffer afterwards");
    Ok(())
}

fn rejects_invalid_sharing(context: &Context) -> TestResult {
    let (first, second) = (create_paged(context, 4, false)?, create_paged(context, 4, false)?);
    let large = PagedBuffer::builder(4 * context.granule()).with_page_size(2 * context.granule());
    let large = large.reserve(context.vmm(), &context.properties())?;
    first.map(0..3)?;
    second.map(2..3)?;
    let expected = HipError::InvalidValue;
    let error = context.expect_error(expected, || first.share_pages(0..3, &second, 1))?;
    ensure_eq!(rejected_page(&error), Some((2, Problem::PageMapped)), "the error");
    let error = context.expect_error(expected, || first.share_pages(2..4, &second, 0))?;
    ensure_eq!(rejected_page(&error), Some((3, Problem::PageNotMapped)), "the error");
    let error = context.expect_error(expected, || first.share_pages(0..2, &second, 3))?;
    ensure_eq!(rejected_page(&error), Some((4, Problem::OutOfRange(4))), "the error");
    let error = context.expect_error(expected, || first.share_pages(0..1, &large, 0))?;
    ensure_eq!(error.problem(), Some(Problem::DifferentPages), "the error");
    context.expect_error(expected, || first.share_pages(0..2, &first, 1))?;
    ensure_eq!((first.page_users(0)?, second.page_users(2)?), (1, 1), "users");
    Ok(())
}
