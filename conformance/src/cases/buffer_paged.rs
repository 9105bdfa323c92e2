//! Buffers whose pages get and release memory.

use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_eq};
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::{Problem, Value};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, Error, ErrorKind};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "buffer.paged.come_and_go",
        "vAttention: pages of a KV cache; HIP: hipMemMap, hipMemUnmap",
        "pages get and release memory in any order; the others stay",
        come_and_go,
    ),
    Case::new(
        "buffer.paged.runs",
        "documentation: PagedBuffer::map: all of them or none",
        "a range of pages is mapped and unmapped completely or not at all",
        runs,
    ),
    Case::new(
        "buffer.paged.no_such_page",
        "documentation: Problem::OutOfRange",
        "pages past the end are refused",
        no_such_page,
    ),
    Case::new(
        "buffer.paged.not_mapped",
        "documentation: Problem::PageNotMapped",
        "a page without memory, or whose memory was released, cannot be read, written or filled",
        not_mapped,
    ),
    Case::new(
        "buffer.paged.zero_page",
        "documentation: PagedBuilder::with_zero_page",
        "pages without memory read as zeros, also after losing memory, and cannot be written",
        zero_page,
    ),
    Case::new(
        "buffer.paged.seen_by_all_gpus",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "agents that were granted access can use pages that are mapped later",
        seen_by_all,
    ),
    Case::new(
        "buffer.paged.moved",
        "documentation: PagedBuffer::move_pages",
        "pages move to another buffer without a copy: the memory is the same",
        moved,
    ),
    Case::new(
        "buffer.paged.exchanged",
        "documentation: PagedBuffer::exchange_pages",
        "pages exchange their memory, within a buffer and between two",
        exchanged,
    ),
    Case::new(
        "buffer.paged.other_pages",
        "documentation: Problem::DifferentPages",
        "pages of another size, or over mapped pages, cannot be moved or exchanged",
        other_pages,
    ),
    Case::new(
        "buffer.paged.shared",
        "documentation: PagedBuffer::share_pages",
        "shared pages of two buffers, or of one, are the same memory",
        shared,
    ),
    Case::new(
        "buffer.paged.shared_released",
        "documentation: PagedBuffer::share_pages",
        "shared memory stays when one buffer unmaps it, and is released with its last page",
        shared_released,
    ),
    Case::new(
        "buffer.paged.shared_access",
        "documentation: PagedBuffer::share_pages",
        "access to a shared page depends on the buffer whose address is used",
        shared_access,
    ),
    Case::new(
        "buffer.paged.shared_refused",
        "documentation: PagedBuffer::share_pages",
        "pages are not shared over mapped pages, nor with pages of another size",
        shared_refused,
    ),
    Case::new(
        "buffer.paged.mapped_ahead",
        "documentation: PagedBuilder::with_pages_ahead",
        "pages prepared in advance behave like others, and all are released",
        mapped_ahead,
    ),
];

/// Creates a buffer with pages of one granule, for the first GPU and the CPU.
fn paged(context: &Context, pages: usize, zeros: bool) -> Verdict<PagedBuffer> {
    let options = PagedBuffer::builder(pages * context.granule()).with_page_size(context.granule());
    let options = if zeros { options.with_zero_page() } else { options };
    let buffer = options.reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.users(), Access::ReadWrite)?;
    Ok(buffer)
}

/// Returns the page that an error names, and the problem.
fn blamed(error: &Error) -> Option<(u64, Problem)> {
    match *error.kind() {
        ErrorKind::InvalidArgument { value: Value::Number(page), problem, .. } => {
            Some((page, problem))
        }
        _ => None,
    }
}

/// Fills a page with a value.
fn fill(context: &Context, buffer: &PagedBuffer, page: usize, value: u32) -> Verdict {
    Ok(buffer.fill(page * context.granule(), value, context.granule())?)
}

fn holds(context: &Context, buffer: &PagedBuffer, page: usize, value: u32) -> Verdict {
    context.holds(buffer.address_of(page)?, 1, value)
}

fn come_and_go(context: &Context) -> Verdict {
    let buffer = paged(context, 8, false)?;
    let at = buffer.address();
    for page in [5, 0, 7, 2] {
        buffer.map(page..page + 1)?;
        fill(context, &buffer, page, 0xd100 + page as u32)?;
    }
    buffer.unmap(0..1)?;
    buffer.map(1..2)?;
    fill(context, &buffer, 1, 0xd101)?;
    for page in [1, 2, 5, 7] {
        holds(context, &buffer, page, 0xd100 + page as u32)?;
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

fn runs(context: &Context) -> Verdict {
    let buffer = paged(context, 6, false)?;
    buffer.map(1..4)?;
    for page in 1..4 {
        fill(context, &buffer, page, 0xd200 + page as u32)?;
    }
    // Page 3 is already mapped, page 4 is not.
    let error = context.refuses(HipError::InvalidValue, || buffer.map(3..6))?;
    ensure_eq!(blamed(&error), Some((3, Problem::PageMapped)), "the error");
    let error = context.refuses(HipError::InvalidValue, || buffer.unmap(2..6))?;
    ensure_eq!(blamed(&error), Some((4, Problem::PageNotMapped)), "the error");
    for page in 1..4 {
        holds(context, &buffer, page, 0xd200 + page as u32)?;
    }
    buffer.unmap(1..4)?;
    ensure_eq!(context.vmm().usage().mappings, 0, "mappings");
    Ok(())
}

fn no_such_page(context: &Context) -> Verdict {
    let buffer = paged(context, 3, false)?;
    let refused = HipError::InvalidValue;
    for pages in [3..4, 2..4, 7..9, usize::MAX - 1..usize::MAX] {
        for error in [
            context.refuses(refused, || buffer.map(pages.clone()))?,
            context.refuses(refused, || buffer.unmap(pages.clone()))?,
        ] {
            ensure_eq!(error.problem(), Some(Problem::OutOfRange(3)), "{error}");
        }
    }
    context.refuses(refused, || buffer.address_of(3))?;
    context.refuses(refused, || buffer.state(usize::MAX))?;
    Ok(())
}

fn not_mapped(context: &Context) -> Verdict {
    let buffer = paged(context, 3, false)?;
    let granule = context.granule();
    buffer.map(0..2)?;
    buffer.fill(0, 0xd300, 2 * granule)?;
    buffer.unmap(1..2)?;
    let refused = HipError::InvalidValue;
    for (offset, page) in [(granule - 4, 1), (granule, 1), (2 * granule, 2)] {
        for error in [
            context.refuses(refused, || buffer.read(offset, &mut [0; 8]))?,
            context.refuses(refused, || buffer.write(offset, &[0; 8]))?,
            context.refuses(refused, || buffer.fill(offset, 0, 8))?,
        ] {
            ensure_eq!(
                blamed(&error),
                Some((page as u64, Problem::PageNotMapped)),
                "the error at {offset:#x}"
            );
        }
    }
    holds(context, &buffer, 0, 0xd300)
}

fn zero_page(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let buffer = paged(context, 5, true)?;
    let zeros = |pages: &[usize]| {
        for &page in pages {
            holds(context, &buffer, page, 0)?;
            ensure_eq!(buffer.state(page)?, PageState::Zero, "page {page}");
        }
        Ok(())
    };
    zeros(&[0, 1, 2, 3, 4])?;
    buffer.map(1..3)?;
    fill(context, &buffer, 1, 0xd400)?;
    fill(context, &buffer, 2, 0xd401)?;
    zeros(&[0, 3, 4])?;
    holds(context, &buffer, 2, 0xd401)?;
    for page in [0, 4] {
        let offset = page * context.granule();
        for error in [
            context.refuses(HipError::InvalidValue, || buffer.write(offset, &[1]))?,
            context.refuses(HipError::InvalidValue, || buffer.fill(offset, 1, 4))?,
        ] {
            ensure_eq!(blamed(&error), Some((page as u64, Problem::PageNotMapped)), "the error");
        }
    }
    let at = buffer.address_of(3)?;
    context.refuses(HipError::InvalidValue, || context.vmm().write(at, &[1]))?;
    buffer.unmap(1..2)?;
    zeros(&[0, 1, 3, 4])?;
    context.seen_by(context.gpu(), buffer.address_of(1)?, 1, 0)?;
    ensure!(buffer.zero_page_is_clean()?, "something was written to the zero page");
    Ok(())
}

fn seen_by_all(context: &Context) -> Verdict {
    context.other_gpu()?;
    let buffer = paged(context, 3, false)?;
    let reach = |agent| context.runtime().agent(agent).is_some_and(|a| a.reaches(context.gpu()));
    let gpus: Vec<_> = context.gpus().iter().copied().filter(|&gpu| reach(gpu)).collect();
    buffer.map(0..1)?;
    buffer.grant(&gpus, Access::ReadWrite)?;
    buffer.map(2..3)?;
    fill(context, &buffer, 0, 0xd500)?;
    fill(context, &buffer, 2, 0xd501)?;
    for gpu in gpus {
        context.seen_by(gpu, buffer.address_of(0)?, 1, 0xd500)?;
        context.seen_by(gpu, buffer.address_of(2)?, 1, 0xd501)?;
    }
    Ok(())
}

fn moved(context: &Context) -> Verdict {
    let (one, other) = (paged(context, 4, false)?, paged(context, 4, false)?);
    one.map(0..2)?;
    fill(context, &one, 0, 0xd600)?;
    fill(context, &one, 1, 0xd601)?;
    let handles = |at| context.vmm().retain_allocation_handle(at);
    let before = handles(one.address_of(1)?)?;
    context.keep(before);
    one.move_pages(0..2, &other, 2)?;
    let after = handles(other.address_of(3)?)?;
    context.keep(after);
    ensure_eq!(after, before, "the handle of the page");
    holds(context, &other, 2, 0xd600)?;
    holds(context, &other, 3, 0xd601)?;
    ensure_eq!((one.statistics().mapped, other.statistics().mapped), (0, 2), "pages");
    let taken = context.refuses(HipError::InvalidValue, || other.move_pages(2..3, &other, 3))?;
    ensure_eq!(blamed(&taken), Some((3, Problem::PageMapped)), "the error");
    // Within a buffer.
    other.move_pages(3..4, &other, 0)?;
    holds(context, &other, 0, 0xd601)?;
    holds(context, &other, 2, 0xd600)
}

fn exchanged(context: &Context) -> Verdict {
    let (one, other) = (paged(context, 2, false)?, paged(context, 2, false)?);
    for (buffer, value) in [(&one, 0xd700), (&other, 0xd710)] {
        buffer.map(0..2)?;
        fill(context, buffer, 0, value)?;
        fill(context, buffer, 1, value + 1)?;
    }
    one.exchange_pages(0..2, &other, 0)?;
    for (buffer, value) in [(&one, 0xd710), (&other, 0xd700)] {
        holds(context, buffer, 0, value)?;
        holds(context, buffer, 1, value + 1)?;
    }
    one.exchange_pages(0..1, &one, 1)?;
    holds(context, &one, 0, 0xd711)?;
    holds(context, &one, 1, 0xd710)?;
    context.seen_by(context.gpu(), one.address_of(0)?, 1, 0xd711)
}

fn other_pages(context: &Context) -> Verdict {
    let one = paged(context, 4, false)?;
    let large = PagedBuffer::builder(4 * context.granule()).with_page_size(2 * context.granule());
    let large = large.reserve(context.vmm(), &context.properties())?;
    one.map(0..3)?;
    let refused = HipError::InvalidValue;
    for error in [
        context.refuses(refused, || one.move_pages(0..1, &large, 0))?,
        context.refuses(refused, || one.exchange_pages(0..1, &large, 0))?,
    ] {
        ensure_eq!(error.problem(), Some(Problem::DifferentPages), "the error");
    }
    context.refuses(refused, || one.exchange_pages(0..2, &one, 1))?;
    context.refuses(refused, || one.move_pages(0..2, &one, 1)).map(|_| ())
}

fn mapped_ahead(context: &Context) -> Verdict {
    let options = PagedBuffer::builder(12 * context.granule()).with_page_size(context.granule());
    let buffer = options.with_pages_ahead(3).reserve(context.vmm(), &context.properties())?;
    buffer.grant(&context.users(), Access::ReadWrite)?;
    for page in 0..12 {
        buffer.map(page..page + 1)?;
        fill(context, &buffer, page, 0xd800 + page as u32)?;
    }
    for page in 0..12 {
        holds(context, &buffer, page, 0xd800 + page as u32)?;
    }
    buffer.unmap(4..12)?;
    buffer.trim()?;
    ensure_eq!(buffer.statistics().mapped, 4, "pages in use");
    drop(buffer);
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn shared(context: &Context) -> Verdict {
    let (one, other) = (paged(context, 4, false)?, paged(context, 4, true)?);
    one.map(0..2)?;
    fill(context, &one, 0, 0xd900)?;
    fill(context, &one, 1, 0xd901)?;
    one.share_pages(0..2, &other, 1)?;
    holds(context, &other, 1, 0xd900)?;
    holds(context, &other, 2, 0xd901)?;
    fill(context, &other, 2, 0xd902)?;
    holds(context, &one, 1, 0xd902)?;
    one.share_pages(1..2, &one, 3)?;
    fill(context, &one, 3, 0xd903)?;
    holds(context, &other, 2, 0xd903)?;
    context.seen_by(context.gpu(), other.address_of(2)?, 1, 0xd903)?;
    let users = [(&one, 0, 2), (&one, 1, 3), (&other, 2, 3), (&other, 0, 0)];
    for (buffer, page, expected) in users {
        ensure_eq!(buffer.page_users(page)?, expected, "users of page {page}");
    }
    let found = (one.statistics(), other.statistics());
    ensure_eq!((found.0.mapped, found.0.shared, found.0.repeated), (3, 3, 1), "pages here");
    ensure_eq!((found.1.mapped, found.1.shared, found.1.repeated), (2, 2, 0), "pages there");
    // Two shared pages, and the zero page.
    ensure_eq!(context.vmm().usage().handles, 3, "handles");
    Ok(())
}

fn shared_released(context: &Context) -> Verdict {
    let (one, other) = (paged(context, 3, false)?, paged(context, 3, false)?);
    one.map(0..3)?;
    for page in 0..3 {
        fill(context, &one, page, 0xda10 + page as u32)?;
    }
    one.share_pages(0..3, &other, 0)?;
    one.unmap(0..1)?;
    other.unmap(1..2)?;
    holds(context, &other, 0, 0xda10)?;
    holds(context, &one, 1, 0xda11)?;
    one.move_pages(2..3, &one, 0)?;
    holds(context, &one, 0, 0xda12)?;
    ensure_eq!(one.page_users(0)?, 2, "users of a moved page");
    other.exchange_pages(0..1, &other, 2)?;
    holds(context, &other, 0, 0xda12)?;
    ensure_eq!((other.page_users(0)?, other.page_users(2)?), (2, 1), "users after an exchange");
    drop(one);
    holds(context, &other, 0, 0xda12)?;
    holds(context, &other, 2, 0xda10)?;
    ensure_eq!(other.page_users(0)?, 1, "users of a page after the other buffer was dropped");
    drop(other);
    ensure_eq!(context.vmm().usage().handles, 0, "leaked handles");
    Ok(())
}

fn shared_access(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let (one, other) = (paged(context, 2, false)?, paged(context, 2, false)?);
    one.map(0..1)?;
    fill(context, &one, 0, 0xdb10)?;
    other.grant(&[context.host()], Access::Read)?;
    one.share_pages(0..1, &other, 1)?;
    holds(context, &other, 1, 0xdb10)?;
    let offset = context.granule();
    context.refuses(HipError::InvalidValue, || other.write(offset, &[0; 4]))?;
    one.write(0, &0xdb11_u32.to_ne_bytes())?;
    let mut bytes = [0; 4];
    other.read(offset, &mut bytes)?;
    ensure_eq!(u32::from_ne_bytes(bytes), 0xdb11, "the value in the other buffer");
    let place = other.address_of(1)?;
    context.refuses(HipError::InvalidValue, || context.vmm().write(place, &[0; 4]))?;
    one.revoke(&[context.host()])?;
    context.refuses(HipError::InvalidValue, || one.read(0, &mut [0; 4]))?;
    other.read(offset, &mut bytes)?;
    ensure_eq!(u32::from_ne_bytes(bytes), 0xdb11, "the value in the other buffer afterwards");
    Ok(())
}

fn shared_refused(context: &Context) -> Verdict {
    let (one, other) = (paged(context, 4, false)?, paged(context, 4, false)?);
    let large = PagedBuffer::builder(4 * context.granule()).with_page_size(2 * context.granule());
    let large = large.reserve(context.vmm(), &context.properties())?;
    one.map(0..3)?;
    other.map(2..3)?;
    let refused = HipError::InvalidValue;
    let error = context.refuses(refused, || one.share_pages(0..3, &other, 1))?;
    ensure_eq!(blamed(&error), Some((2, Problem::PageMapped)), "the error");
    let error = context.refuses(refused, || one.share_pages(2..4, &other, 0))?;
    ensure_eq!(blamed(&error), Some((3, Problem::PageNotMapped)), "the error");
    let error = context.refuses(refused, || one.share_pages(0..2, &other, 3))?;
    ensure_eq!(blamed(&error), Some((4, Problem::OutOfRange(4))), "the error");
    let error = context.refuses(refused, || one.share_pages(0..1, &large, 0))?;
    ensure_eq!(error.problem(), Some(Problem::DifferentPages), "the error");
    context.refuses(refused, || one.share_pages(0..2, &one, 1))?;
    ensure_eq!((one.page_users(0)?, other.page_users(2)?), (1, 1), "users");
    Ok(())
}
