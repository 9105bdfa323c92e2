//! Paged buffers map and unmap pages, with and without a zero page.

use crate::errors::{out_of_bounds, page_error};
use crate::fault_injection::OUT_OF_RESOURCES;
use crate::machine::{KIB, MIB, Machine, generations};
use crate::process::{
    FAULT, assert_inaccessible, load_in_child, rerun_in_own_process, store_in_child,
};
use hsa_vmm::Error;
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::{Argument, ErrorKind, Problem};
use hsa_vmm::simulation::{Config, FaultPlan, GpuPermissions};
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties};

const PAGE: usize = 16 * KIB;

fn new_buffer(machine: &Machine, has_zero_page: bool) -> PagedBuffer {
    let options = PagedBuffer::builder(16 * PAGE).with_page_size(PAGE);
    let options = if has_zero_page { options.with_zero_page() } else { options };
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer
}

#[test]
fn paged_buffers_accept_any_size() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        for size in [1, 32, 4 * KIB, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1] {
            for has_zero_page in [false, true] {
                let context = format!("{generation}: pages of {size}, zeros: {has_zero_page}");
                let options = PagedBuffer::builder(3 * size).with_page_size(size);
                let options = if has_zero_page { options.with_zero_page() } else { options };
                let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
                let page_size = size.next_multiple_of(machine.granule());
                assert_eq!(buffer.page_size(), page_size, "{context}");
                let pages = (3 * size).div_ceil(page_size);
                assert_eq!(
                    (buffer.page_count(), buffer.capacity()),
                    (pages, pages * page_size),
                    "{context}"
                );
                buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
                buffer.map(0..pages).unwrap();
                assert_eq!(
                    machine.used_by(0),
                    (pages + usize::from(has_zero_page)) * page_size,
                    "{context}"
                );
                assert_eq!(machine.used_by(0), buffer.statistics().memory_size(), "{context}");
                let bytes: Vec<u8> = (0..=255).collect();
                for page in 0..pages {
                    buffer.write(page * buffer.page_size(), &bytes).unwrap();
                }
                let last_offset = buffer.capacity() - 256;
                buffer.write(last_offset, &bytes).unwrap();
                let mut found = vec![0; 256];
                buffer.read(last_offset, &mut found).unwrap();
                assert_eq!(found, bytes, "{context}");
                buffer.unmap(0..pages).unwrap();
                drop(buffer);
                machine.assert_empty();
            }
        }
    }
}

#[test]
fn buffer_of_three_gibibytes_maps_and_unmaps() {
    for (generation, config) in generations() {
        let machine = Machine::new(config.with_vram(4 << 30));
        for has_zero_page in [false, true] {
            let options = PagedBuffer::builder(3 << 30);
            let options = if has_zero_page { options.with_zero_page() } else { options };
            let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
            buffer.grant(&[machine.cpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
            assert_eq!((buffer.page_size(), buffer.page_count()), (2 * MIB, 1536), "{generation}");
            buffer.map(0..1536).unwrap();
            buffer.write((3 << 30) - 4, b"last").unwrap();
            buffer.unmap(0..1535).unwrap();
            for page in (0..1535).rev().step_by(7) {
                buffer.map(page..page + 1).unwrap();
            }
            let mut text = [0; 4];
            buffer.read((3 << 30) - 4, &mut text).unwrap();
            assert_eq!(&text, b"last", "{generation}");
            drop(buffer);
            machine.assert_empty();
        }
        let too_large =
            PagedBuffer::builder(8 << 30).reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        let error = too_large.map(0..4096).unwrap_err();
        let is_out_of_memory = matches!(error.kind(), ErrorKind::OutOfMemory { .. });
        assert!(is_out_of_memory && too_large.statistics().mapped == 0, "{generation}");
        assert_eq!(machine.used_by(0), 0, "{generation}");
    }
}

#[test]
fn unmapped_pages_are_empty_and_reserved() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = new_buffer(&machine, false);
        buffer.map(3..6).unwrap();
        buffer.unmap(4..5).unwrap();
        let states: Vec<_> = (2..7).map(|page| buffer.state(page).unwrap()).collect();
        use PageState::{Empty, Mapped};
        assert_eq!(states, [Empty, Mapped, Empty, Mapped, Empty], "{generation}");
        for page in [2, 4, 6] {
            let address = buffer.address_of(page).unwrap();
            assert_inaccessible(address.get(), PAGE, generation);
            assert!(machine.simulation.page(0, address.get()).is_none(), "{generation}");
            let not_mapped = Err(page_error(page, Problem::PageNotMapped));
            assert_eq!(
                buffer.read(page * PAGE, &mut [0]).map_err(Error::into_kind),
                not_mapped,
                "{generation}"
            );
            assert_eq!(
                buffer.write(page * PAGE, &[0]).map_err(Error::into_kind),
                not_mapped,
                "{generation}"
            );
            assert_eq!(
                buffer.fill(page * PAGE, 0, 4).map_err(Error::into_kind),
                not_mapped,
                "{generation}"
            );
        }
        assert_eq!(
            buffer.write(4 * PAGE - 1, &[0; 2]).map_err(Error::into_kind),
            Err(page_error(4, Problem::PageNotMapped))
        );
        buffer.write(4 * PAGE - 1, &[0]).unwrap();
        assert!(buffer.zero_page_is_clean().unwrap(), "{generation}: without a zero page");
    }
}

#[test]
fn zero_page_backs_unmapped_pages() {
    if rerun_in_own_process() {
        return;
    }
    for (generation, config) in generations() {
        let machine = Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced));
        // Fills memory that the zero page will use.
        let (dirty, handle) = machine.map_new_memory(0, PAGE);
        machine.grant(dirty, PAGE, machine.gpu(0), Access::ReadWrite);
        machine.vmm.fill(dirty, 0xdead_beef, PAGE).unwrap();
        machine.vmm.unmap(dirty, PAGE).unwrap();
        machine.vmm.release(handle).unwrap();
        machine.vmm.address_free(dirty, PAGE).unwrap();

        let buffer = new_buffer(&machine, true);
        assert_eq!(machine.used_by(0), PAGE, "{generation}: one page for all");
        buffer.map(3..6).unwrap();
        buffer.fill(3 * PAGE, 0x0707_0707, 3 * PAGE).unwrap();
        buffer.unmap(4..5).unwrap();
        let is_zero = |page: usize| {
            let mut bytes = vec![1; PAGE];
            buffer.read(page * PAGE, &mut bytes).unwrap();
            bytes.iter().all(|&byte| byte == 0)
        };
        for page in [0, 2, 4, 6, 15] {
            assert_eq!(buffer.state(page), Ok(PageState::Zero), "{generation}");
            assert!(is_zero(page), "{generation}: {page}");
            let address = buffer.address_of(page).unwrap().get();
            assert_eq!(
                load_in_child(address),
                crate::process::End::Success,
                "{generation}: loads do not fault"
            );
            assert_eq!(store_in_child(address), FAULT, "{generation}: stores fault");
            let entry = machine.simulation.page(0, address).expect("GPUs map the zero page, too");
            assert_eq!((entry.readable, entry.writable), (true, false), "{generation}");
            assert_eq!(
                buffer.write(page * PAGE, &[1]).map_err(Error::into_kind),
                Err(page_error(page, Problem::PageNotMapped))
            );
        }
        let mut bytes_at_edge = [1; 2];
        buffer.read(4 * PAGE - 1, &mut bytes_at_edge).unwrap();
        assert_eq!(bytes_at_edge, [7, 0], "{generation}: across the end of a mapped page");
        assert_eq!(buffer.statistics().zero, 14, "{generation}");
        let ready = buffer.statistics().ready;
        assert_eq!(
            machine.used_by(0),
            (3 + ready) * PAGE,
            "{generation}: two pages and the zero page"
        );
        assert_eq!(machine.used_by(0), buffer.statistics().memory_size(), "{generation}");

        // A GPU's store to the zero page is detected.
        assert!(buffer.zero_page_is_clean().unwrap(), "{generation}");
        let last = buffer.address_of(15).unwrap();
        let owner = AccessDescriptor { agent: machine.gpu(0), access: Access::ReadWrite };
        machine.vmm.set_access(last, PAGE, &[owner]).unwrap();
        machine.vmm.fill(hsa_vmm::Address::new(last.get() + PAGE - 4), 1, 4).unwrap();
        assert!(!buffer.zero_page_is_clean().unwrap(), "{generation}");
        // The store is also detected while no page maps the zero page.
        let zero = |page: &usize| buffer.state(*page) == Ok(PageState::Zero);
        (0..16).filter(zero).for_each(|page| buffer.map(page..page + 1).unwrap());
        assert_eq!(buffer.statistics().zero, 0, "{generation}");
        assert!(!buffer.zero_page_is_clean().unwrap(), "{generation}");
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn invalid_ranges_are_rejected() {
    let machine = Machine::new(Config::mi300x(1));
    for has_zero_page in [false, true] {
        let buffer = new_buffer(&machine, has_zero_page);
        buffer.map(4..8).unwrap();
        let calls = machine.simulation.all_calls();
        let out_of_range = |page| Err(page_error(page, Problem::OutOfRange(16)));
        assert_eq!(buffer.map(15..17).map_err(Error::into_kind), out_of_range(16));
        assert_eq!(buffer.map(20..21).map_err(Error::into_kind), out_of_range(20));
        assert_eq!(
            buffer.map(usize::MAX - 1..usize::MAX).map_err(Error::into_kind),
            out_of_range(usize::MAX - 1)
        );
        assert_eq!(buffer.unmap(7..17).map_err(Error::into_kind), out_of_range(16));
        assert_eq!(buffer.state(16).map(drop).map_err(Error::into_kind), out_of_range(16));
        assert_eq!(
            buffer.state(usize::MAX).map(drop).map_err(Error::into_kind),
            out_of_range(usize::MAX)
        );
        assert_eq!(buffer.address_of(16).map(drop).map_err(Error::into_kind), out_of_range(16));
        assert_eq!(
            buffer.map(2..5).map_err(Error::into_kind),
            Err(page_error(4, Problem::PageMapped))
        );
        assert_eq!(
            buffer.unmap(2..5).map_err(Error::into_kind),
            Err(page_error(2, Problem::PageNotMapped))
        );
        assert_eq!(
            buffer.unmap(7..9).map_err(Error::into_kind),
            Err(page_error(8, Problem::PageNotMapped))
        );
        let queue = RetireQueue::builder(1).without_thread().open(&machine.vmm).unwrap();
        for (empty, expected) in [
            (4..4, Ok(())),
            (9..9, Ok(())),
            (16..16, Ok(())),
            (17..17, out_of_range(17)),
            (usize::MAX..usize::MAX, out_of_range(usize::MAX)),
        ] {
            for result in [
                buffer.map(empty.clone()),
                buffer.unmap(empty.clone()),
                buffer.move_pages(empty.clone(), &buffer, 16),
                buffer.share_pages(empty.clone(), &buffer, 16),
                buffer.exchange_pages(empty.clone(), &buffer, 16),
            ] {
                assert_eq!(result.map_err(Error::into_kind), expected, "{empty:?}");
            }
            if !has_zero_page {
                // SAFETY: the call submits no pages.
                let retired = unsafe { buffer.retire(empty.clone(), &queue, &[]) };
                assert_eq!(retired.map_err(Error::into_kind), expected, "{empty:?}");
            }
            let moved = buffer.move_pages(0..0, &buffer, empty.start);
            assert_eq!(moved.is_ok(), expected.is_ok(), "{empty:?}");
        }
        #[allow(clippy::reversed_empty_ranges, reason = "what a caller may pass")]
        let inverted = 9..5;
        for result in [
            buffer.map(inverted.clone()),
            buffer.unmap(inverted.clone()),
            buffer.move_pages(inverted.clone(), &buffer, 0),
            buffer.share_pages(inverted.clone(), &buffer, 0),
            buffer.exchange_pages(inverted.clone(), &buffer, 0),
            // SAFETY: the call is rejected, and passes no signals.
            unsafe { buffer.retire(inverted.clone(), &queue, &[]) },
        ] {
            let expected = page_error(9, Problem::StartAfterEnd(5));
            assert_eq!(result.map_err(Error::into_kind), Err(expected));
        }
        let expected = out_of_bounds(16 * PAGE - 1, 2, 16 * PAGE);
        assert_eq!(
            buffer.read(16 * PAGE - 1, &mut [0; 2]).map_err(Error::into_kind),
            Err(expected)
        );
        let expected = out_of_bounds(usize::MAX, 2, 16 * PAGE);
        assert_eq!(buffer.write(usize::MAX, &[0; 2]).map_err(Error::into_kind), Err(expected));
        assert_eq!(machine.simulation.all_calls(), calls, "the runtime was not called");
    }
    let reserve_error = |options: hsa_vmm::buffer::PagedBuilder,
                         properties: &AllocationProperties| {
        options.reserve(&machine.vmm, properties).unwrap_err()
    };
    let properties = machine.shareable_on(0);
    for (options, argument, problem) in [
        (PagedBuffer::builder(0), Argument::Capacity, Problem::Zero),
        (PagedBuffer::builder(usize::MAX), Argument::Capacity, Problem::Overflow),
        (PagedBuffer::builder(1).with_page_size(0), Argument::PageSize, Problem::Zero),
        (PagedBuffer::builder(1).with_page_size(usize::MAX), Argument::PageSize, Problem::Overflow),
    ] {
        let error = reserve_error(options, &properties);
        assert_eq!((error.argument(), error.problem()), (Some(argument), Some(problem)), "{error}");
    }
    reserve_error(PagedBuffer::builder(1), &AllocationProperties::on(machine.cpu(0)));
    machine.assert_empty();
}

#[test]
fn grants_hold_for_later_pages() {
    for (generation, config) in generations() {
        let machine = Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced));
        for has_zero_page in [false, true] {
            let buffer = new_buffer(&machine, has_zero_page);
            let peer = machine.gpu(1);
            buffer.map(0..2).unwrap();
            buffer.grant(&[peer], Access::ReadWrite).unwrap();
            buffer.map(4..5).unwrap();
            let access = |page: usize| {
                let address = buffer.address_of(page).unwrap();
                machine.vmm.get_access(peer, address).ok()
            };
            let unmapped = has_zero_page.then_some(Access::Read);
            let expected = |mapped| [Some(mapped), Some(mapped), unmapped, unmapped, Some(mapped)];
            assert_eq!(
                [0, 1, 2, 3, 4].map(access),
                expected(Access::ReadWrite),
                "{generation}, {has_zero_page}"
            );
            buffer.grant(&[peer], Access::Read).unwrap();
            assert_eq!(
                [0, 1, 2, 3, 4].map(access),
                expected(Access::Read),
                "{generation}, {has_zero_page}"
            );
            buffer.revoke(&[peer]).unwrap();
            let unmapped = has_zero_page.then_some(Access::None);
            let none = Some(Access::None);
            assert_eq!(
                [0, 1, 2, 3, 4].map(access),
                [none, none, unmapped, unmapped, none],
                "{generation}"
            );
            buffer.map(8..9).unwrap();
            for page in 0..9 {
                let address = buffer.address_of(page).unwrap().get();
                assert!(
                    machine.simulation.page(1, address).is_none(),
                    "{generation}, {has_zero_page}: {page}"
                );
            }
            drop(buffer);
            machine.assert_empty();
        }
    }
}

#[test]
fn statistics_count_pages() {
    let machine = Machine::new(Config::mi300x(1));
    let buffer = new_buffer(&machine, true);
    buffer.map(0..10).unwrap();
    buffer.unmap(2..6).unwrap();
    buffer.map(5..6).unwrap();
    let statistics = buffer.statistics();
    assert_eq!((statistics.pages, statistics.page_size), (16, PAGE));
    assert_eq!(
        (statistics.mapped, statistics.zero, statistics.ahead, statistics.lost),
        (7, 9, 0, 0)
    );
    assert_eq!((statistics.most_mapped, statistics.maps, statistics.unmaps), (10, 11, 4));
    assert_eq!(
        (statistics.found_ahead, statistics.mapped_ahead, statistics.failures_ahead),
        (0, 0, 0)
    );
    assert!(!statistics.thread_runs);
    let text = statistics.to_string();
    assert!(
        text.starts_with(
            "7 of 16 pages mapped (at most 10), 0 shared, 0 repeated, 0 ahead, 9 zero"
        ),
        "{text}"
    );
}

#[test]
fn failed_map_releases_memory() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
        let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        for failing_call in [1, 3] {
            machine.simulation.set_faults(FaultPlan::none().fail(
                "hsa_amd_vmem_map",
                failing_call,
                OUT_OF_RESOURCES,
            ));
            buffer.map(0..8).unwrap_err();
            let context = format!("{generation}, call {failing_call}");
            assert_eq!(buffer.statistics().ready, 0, "{context}");
            assert_eq!(machine.vmm.usage().handles, 0, "{context}");
            assert_eq!(machine.used_by(0), 0, "{context}");
        }
        buffer.map(0..8).unwrap();
        assert_eq!(machine.vmm.usage().handles, 8, "{generation}");
    }
}
