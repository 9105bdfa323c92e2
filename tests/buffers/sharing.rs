//! Paged buffers share pages. Also tests the `Debug` output of buffers.

use crate::fault_injection::ERROR;
use crate::machine::{KIB, MIB, Machine, at, generations};
use hsa_vmm::buffer::{GrowableVec, PageState, PagedBuffer, PausableBuffer, RingBuffer};
use hsa_vmm::error::{ErrorKind, Operation, Problem};
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Access, Allocation, GrowableBuffer, HandleType, Reservation};
use std::fmt::Debug;

const PAGE: usize = 16 * KIB;

fn new_buffer(machine: &Machine, pool: usize) -> PagedBuffer {
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE).with_handle_pool(pool);
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer
}

fn byte(buffer: &PagedBuffer, page: usize) -> u8 {
    let mut byte = [0];
    buffer.read(page * PAGE, &mut byte).unwrap();
    byte[0]
}

#[test]
fn shared_memory_is_released_with_its_last_page() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let (source, target) = (new_buffer(&machine, 0), new_buffer(&machine, 0));
        source.map(0..2).unwrap();
        source.write(0, &[1]).unwrap();
        source.write(PAGE, &[2]).unwrap();
        source.share_pages(0..2, &target, 4).unwrap();
        source.share_pages(1..2, &source, 7).unwrap();
        assert_eq!(machine.vmm.usage().handles, 2, "{generation}");
        assert_eq!(
            [byte(&target, 4), byte(&target, 5), byte(&source, 7)],
            [1, 2, 2],
            "{generation}"
        );
        let statistics = source.statistics();
        assert_eq!(
            (statistics.mapped, statistics.shared, statistics.repeated),
            (3, 3, 1),
            "{generation}"
        );
        assert_eq!(statistics.memory_size(), (2 + statistics.ready) * PAGE, "{generation}");

        source.unmap(0..2).unwrap();
        assert_eq!(machine.vmm.usage().handles, 2, "{generation}: all memory is still used");
        assert_eq!([4, 5].map(|page| target.page_users(page)), [Ok(1), Ok(2)], "{generation}");
        target.unmap(5..6).unwrap();
        assert_eq!((source.page_users(7), byte(&source, 7)), (Ok(1), 2), "{generation}");
        drop(source);
        assert_eq!(byte(&target, 4), 1, "{generation}");
        let ready = target.statistics().ready;
        assert_eq!(machine.vmm.usage().handles, 1 + ready, "{generation}");
        drop(target);
        machine.assert_empty();
    }
}

#[test]
fn shared_memory_stays_out_of_the_pool() {
    let machine = Machine::new(Config::mi300x(1));
    let (target, source) = (new_buffer(&machine, 0), new_buffer(&machine, 3));
    source.map(0..3).unwrap();
    source.write(0, &[7]).unwrap();
    source.share_pages(0..1, &target, 0).unwrap();
    for round in 0..20 {
        // If the shared memory were in the pool, `map` would map it again.
        source.unmap(0..1).unwrap();
        source.map(0..1).unwrap();
        source.write(0, &[round]).unwrap();
        assert_eq!((byte(&target, 0), target.page_users(0)), (7, Ok(1)), "{round}");
    }
    drop((target, source));
    machine.assert_empty();
}

/// A buffer releases the memory that it received from other buffers.
#[test]
fn received_memory_does_not_accumulate() {
    for (generation, config) in generations() {
        for moves in [false, true] {
            let machine = Machine::new(config.clone());
            let target = PagedBuffer::builder(PAGE).with_page_size(PAGE);
            let target = target.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
            for round in 0..20 {
                let source = new_buffer(&machine, 0);
                source.map(0..1).unwrap();
                if moves {
                    source.move_pages(0..1, &target, 0).unwrap();
                } else {
                    source.share_pages(0..1, &target, 0).unwrap();
                }
                drop(source);
                assert_eq!(target.statistics().ready, 0, "{generation}, round {round}");
                target.unmap(0..1).unwrap();
                assert_eq!(machine.used_by(0), 0, "{generation}, round {round}");
            }
            drop(target);
            machine.assert_empty();
        }
    }
}

#[test]
fn share_changes_nothing_when_a_call_fails() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let (source, target) = (new_buffer(&machine, 0), new_buffer(&machine, 0));
        source.map(0..3).unwrap();
        source.write(2 * PAGE, &[3]).unwrap();
        for call in 1.. {
            machine.simulation.set_faults(FaultPlan::none().fail_any(call, ERROR));
            let result = source.share_pages(0..3, &target, 1);
            let failed = !machine.simulation.failed_calls().is_empty();
            machine.simulation.set_faults(FaultPlan::none());
            machine.vmm.check().unwrap();
            if !failed {
                result.unwrap();
                assert!(call > 3, "{generation}: sharing maps three pages");
                break;
            }
            result.unwrap_err();
            assert_eq!(target.state(1), Ok(PageState::Empty), "{generation}");
            assert_eq!(source.page_users(0), Ok(1), "{generation}");
            assert_eq!(machine.vmm.usage().mappings, 3, "{generation}");
        }
        assert_eq!((byte(&target, 3), target.page_users(3)), (3, Ok(2)), "{generation}");
        drop((source, target));
        machine.assert_empty();
    }
}

#[test]
fn share_rejects_unsuitable_buffers_and_pages() {
    let [machine, foreign_machine] = [2, 1].map(|gpus| Machine::new(Config::mi300x(gpus)));
    let [source, target] = [0, 1].map(|_| new_buffer(&machine, 0));
    let foreign = new_buffer(&foreign_machine, 0);
    let second_vmm = hsa_vmm::Vmm::open(&machine.runtime).unwrap();
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let of_second_vmm = options.reserve(&second_vmm, &machine.shareable_on(0)).unwrap();
    let of_peer = options.reserve(&machine.vmm, &machine.shareable_on(1)).unwrap();
    source.map(0..2).unwrap();
    target.map(2..3).unwrap();
    for (destination, first, problem) in [
        (&target, 1, Problem::PageMapped),
        (&target, 7, Problem::OutOfRange(8)),
        (&of_peer, 0, Problem::DifferentLocation),
        (&foreign, 0, Problem::ForeignHandle),
        (&of_second_vmm, 0, Problem::ForeignHandle),
        (&source, 1, Problem::Overlapping),
    ] {
        let error = source.share_pages(0..2, destination, first).unwrap_err();
        assert_eq!(error.problem(), Some(problem), "{error}");
    }
    let error = source.share_pages(1..3, &target, 0).unwrap_err();
    assert_eq!(
        (error.operation(), error.problem()),
        (Operation::SharePages, Some(Problem::PageNotMapped))
    );
    for error in [source.page_users(8).unwrap_err(), source.state(8).unwrap_err()] {
        assert_eq!(error.problem(), Some(Problem::OutOfRange(8)));
        assert_eq!(error.operation(), Operation::GetPage);
    }
    assert_eq!((source.page_users(0), target.page_users(0)), (Ok(1), Ok(0)));
    machine.vmm.unmap(source.address_of(1).unwrap(), PAGE).unwrap();
    let error = source.share_pages(1..2, &target, 0).unwrap_err();
    let is_not_mapped = matches!(error.problem(), Some(Problem::NotMapped(_)));
    assert!(is_not_mapped && error.operation() == Operation::SharePages, "{error}");
}

#[test]
fn share_uses_pages_that_were_mapped_ahead() {
    let machine = Machine::new(Config::mi300x(1));
    let source = new_buffer(&machine, 0);
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE).with_pages_ahead(2);
    let target = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    target.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    source.map(0..1).unwrap();
    source.write(0, &[9]).unwrap();
    target.map(0..1).unwrap();
    while target.statistics().ahead < 2 {
        std::thread::yield_now();
    }
    source.share_pages(0..1, &target, 1).unwrap();
    assert_eq!((byte(&target, 1), target.state(1)), (9, Ok(PageState::Mapped)));
    drop((source, target));
    machine.assert_empty();
}

#[test]
fn lost_pages_name_their_cause() {
    let machine = Machine::new(Config::mi300x(1));
    let buffer = PagedBuffer::builder(4 * PAGE).with_page_size(PAGE).with_zero_page();
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    machine.simulation.set_faults(FaultPlan::none().always("hsa_amd_vmem_map", ERROR));
    let error = buffer.map(1..3).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    let ErrorKind::PagesLost { address, first: 1, count: 2, cause } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!((*address, error.pages()), (buffer.address(), Some(1..3)));
    assert_eq!(cause.pages(), Some(1..3));
    // The cause is the error of a quarantine, whose failure is the runtime's.
    assert_eq!(error.call().map(|it| it.0), Some("hsa_amd_vmem_map"));
    assert_eq!((error.operation(), cause.operation()), (Operation::MapPages, Operation::Map));
    assert_eq!(buffer.statistics().lost, 2);
    drop(buffer);
    assert_eq!(machine.vmm.quarantined_ranges().len(), 1);
}

#[track_caller]
fn assert_one_line(value: &impl Debug) {
    let text = format!("{value:?}");
    assert!(text.len() < 120 && text.contains(" at 0x") && !text.contains('\n'), "{text}");
}

#[test]
fn debug_is_one_line() {
    let machine = Machine::new(Config::mi300x(1));
    let (vmm, properties) = (&machine.vmm, machine.shareable_on(0));
    let paged = PagedBuffer::builder(64 * MIB).with_page_size(PAGE).with_zero_page();
    let paged = paged.reserve(vmm, &properties).unwrap();
    paged.map(0..100).unwrap();
    assert_one_line(&paged);
    let mut growable =
        GrowableBuffer::builder(64 * MIB).with_step(PAGE).reserve(vmm, &properties).unwrap();
    growable.grow(100 * PAGE).unwrap();
    assert_one_line(&growable);
    assert_one_line(&GrowableVec::<u32>::new(growable));
    assert_one_line(&RingBuffer::create(vmm, PAGE, 50, &properties).unwrap());
    assert_one_line(&PausableBuffer::create(vmm, 5, &properties).unwrap());
}

/// Another process may use exported memory, so a buffer never uses it for other pages.
#[test]
fn exported_memory_is_not_used_for_other_pages() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = new_buffer(&machine, 0);
        buffer.map(0..2).unwrap();
        buffer.write(0, &[1]).unwrap();
        buffer.write(PAGE, &[2]).unwrap();
        let retained = machine.vmm.retain_allocation_handle(buffer.address()).unwrap();
        let by_handle =
            machine.vmm.export_to_shareable_handle(retained, HandleType::POSIX_FILE_DESCRIPTOR);
        machine.vmm.release(retained).unwrap();
        let by_range = machine.vmm.export_address_range(at(buffer.address(), PAGE), PAGE).unwrap();
        buffer.unmap(0..2).unwrap();
        assert_eq!(buffer.statistics().ready, 0, "{generation}");
        buffer.map(4..8).unwrap();
        (4..8).for_each(|page| buffer.write(page * PAGE, &[3]).unwrap());
        for (descriptor, expected) in [(&by_handle.unwrap(), 1), (&by_range[0].descriptor, 2)] {
            let memory = Allocation::import(&machine.vmm, descriptor).unwrap();
            let reservation = Reservation::builder(PAGE).reserve(&machine.vmm).unwrap();
            let mapping = reservation.map(0, &memory).unwrap();
            mapping.grant(&[machine.cpu(0)], Access::Read).unwrap();
            let mut byte = [0];
            mapping.read(0, &mut byte).unwrap();
            assert_eq!(byte, [expected], "{generation}");
        }
        drop(buffer);
    }
}
