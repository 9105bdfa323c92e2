//! Pages shared between paged buffers, and what `Debug` of buffers prints.

use crate::machine::{KIB, MIB, Machine, generations};
use hsa_vmm::buffer::{GrowableVec, PageState, PagedBuffer, PausableBuffer, RingBuffer};
use hsa_vmm::error::{ErrorKind, Operation, Problem};
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Access, GrowableBuffer};
use std::fmt::Debug;

const PAGE: usize = 16 * KIB;

fn buffer(machine: &Machine, pool: usize) -> PagedBuffer {
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE).with_handle_pool(pool);
    let buffer = options.reserve(&machine.vmm, &machine.on(0)).unwrap();
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
        let (one, other) = (buffer(&machine, 0), buffer(&machine, 0));
        one.map(0..2).unwrap();
        one.write(0, &[1]).unwrap();
        one.write(PAGE, &[2]).unwrap();
        one.share_pages(0..2, &other, 4).unwrap();
        one.share_pages(1..2, &one, 7).unwrap();
        assert_eq!(machine.vmm.usage().handles, 2, "{generation}");
        assert_eq!([byte(&other, 4), byte(&other, 5), byte(&one, 7)], [1, 2, 2], "{generation}");
        let found = one.statistics();
        assert_eq!((found.mapped, found.shared, found.repeated), (3, 3, 1), "{generation}");
        assert_eq!(found.memory(), (2 + found.ready) * PAGE, "{generation}");

        one.unmap(0..2).unwrap();
        assert_eq!(machine.vmm.usage().handles, 2, "{generation}: none had its last page");
        assert_eq!([4, 5].map(|page| other.page_users(page)), [Ok(1), Ok(2)], "{generation}");
        other.unmap(5..6).unwrap();
        assert_eq!((one.page_users(7), byte(&one, 7)), (Ok(1), 2), "{generation}");
        drop(one);
        assert_eq!(byte(&other, 4), 1, "{generation}");
        let kept = other.statistics().ready;
        assert_eq!(machine.vmm.usage().handles, 1 + kept, "{generation}");
        drop(other);
        machine.assert_empty();
    }
}

#[test]
fn the_pool_gets_memory_only_with_its_last_page() {
    let machine = Machine::new(Config::mi300x(1));
    let (one, other) = (buffer(&machine, 0), buffer(&machine, 3));
    other.map(0..3).unwrap();
    other.write(0, &[7]).unwrap();
    other.share_pages(0..1, &one, 0).unwrap();
    for round in 0..20 {
        // If the shared memory were in the pool, this would map it again.
        other.unmap(0..1).unwrap();
        other.map(0..1).unwrap();
        other.write(0, &[round]).unwrap();
        assert_eq!((byte(&one, 0), one.page_users(0)), (7, Ok(1)), "{round}");
    }
    drop((one, other));
    machine.assert_empty();
}

#[test]
fn share_changes_nothing_when_a_call_fails() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let (one, other) = (buffer(&machine, 0), buffer(&machine, 0));
        one.map(0..3).unwrap();
        one.write(2 * PAGE, &[3]).unwrap();
        for call in 1.. {
            machine.simulation.set_faults(FaultPlan::none().fail_any(call, 0x1000));
            let answer = one.share_pages(0..3, &other, 1);
            let failed = !machine.simulation.failed_calls().is_empty();
            machine.simulation.set_faults(FaultPlan::none());
            machine.vmm.check().unwrap();
            if !failed {
                answer.unwrap();
                assert!(call > 3, "{generation}: it maps three pages");
                break;
            }
            answer.unwrap_err();
            assert_eq!(other.state(1), Ok(PageState::Empty), "{generation}");
            assert_eq!(one.page_users(0), Ok(1), "{generation}");
            assert_eq!(machine.vmm.usage().mappings, 3, "{generation}");
        }
        assert_eq!((byte(&other, 3), other.page_users(3)), (3, Ok(2)), "{generation}");
        drop((one, other));
        machine.assert_empty();
    }
}

#[test]
fn share_rejects_other_buffers_and_pages() {
    let (machine, foreign) = (Machine::new(Config::mi300x(2)), Machine::new(Config::mi300x(1)));
    let (one, other, foreign) = (buffer(&machine, 0), buffer(&machine, 0), buffer(&foreign, 0));
    let vmm = hsa_vmm::Vmm::open(&machine.runtime).unwrap();
    let second = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let second = second.reserve(&vmm, &machine.on(0)).unwrap();
    let peer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let peer = peer.reserve(&machine.vmm, &machine.on(1)).unwrap();
    one.map(0..2).unwrap();
    other.map(2..3).unwrap();
    for (destination, first, problem) in [
        (&other, 1, Problem::PageMapped),
        (&other, 7, Problem::OutOfRange(8)),
        (&peer, 0, Problem::DifferentPages),
        (&foreign, 0, Problem::ForeignHandle),
        (&second, 0, Problem::ForeignHandle),
        (&one, 1, Problem::Overlapping),
    ] {
        let error = one.share_pages(0..2, destination, first).unwrap_err();
        assert_eq!(error.problem(), Some(problem), "{error}");
    }
    let error = one.share_pages(1..3, &other, 0).unwrap_err();
    assert_eq!(
        (error.operation(), error.problem()),
        (Operation::SharePages, Some(Problem::PageNotMapped))
    );
    assert_eq!(one.page_users(8).unwrap_err().problem(), Some(Problem::OutOfRange(8)));
    assert_eq!((one.page_users(0), other.page_users(0)), (Ok(1), Ok(0)));
}

#[test]
fn share_uses_pages_that_were_mapped_ahead() {
    let machine = Machine::new(Config::mi300x(1));
    let one = buffer(&machine, 0);
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE).with_pages_ahead(2);
    let other = options.reserve(&machine.vmm, &machine.on(0)).unwrap();
    other.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    one.map(0..1).unwrap();
    one.write(0, &[9]).unwrap();
    other.map(0..1).unwrap();
    while other.statistics().ahead < 2 {
        std::thread::yield_now();
    }
    one.share_pages(0..1, &other, 1).unwrap();
    assert_eq!((byte(&other, 1), other.state(1)), (9, Ok(PageState::Mapped)));
    drop((one, other));
    machine.assert_empty();
}

#[test]
fn lost_pages_name_their_cause() {
    let machine = Machine::new(Config::mi300x(1));
    let buffer = PagedBuffer::builder(4 * PAGE).with_page_size(PAGE).with_zero_page();
    let buffer = buffer.reserve(&machine.vmm, &machine.on(0)).unwrap();
    machine.simulation.set_faults(FaultPlan::none().always("hsa_amd_vmem_map", 0x1000));
    let error = buffer.map(1..3).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    let ErrorKind::PagesLost { first: 1, count: 2, cause } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!((error.operation(), cause.operation()), (Operation::MapPages, Operation::Map));
    assert_eq!(buffer.statistics().lost, 2);
    drop(buffer);
    assert_eq!(machine.vmm.quarantine().len(), 1);
}

#[track_caller]
fn assert_one_line(value: &impl Debug) {
    let text = format!("{value:?}");
    assert!(text.len() < 120 && text.contains(" at 0x") && !text.contains('\n'), "{text}");
}

#[test]
fn debug_is_one_line() {
    let machine = Machine::new(Config::mi300x(1));
    let (vmm, on) = (&machine.vmm, machine.on(0));
    let paged = PagedBuffer::builder(64 * MIB).with_page_size(PAGE).with_zero_page();
    let paged = paged.reserve(vmm, &on).unwrap();
    paged.map(0..100).unwrap();
    assert_one_line(&paged);
    let mut growable = GrowableBuffer::builder(64 * MIB).with_step(PAGE).reserve(vmm, &on).unwrap();
    growable.grow(100 * PAGE).unwrap();
    assert_one_line(&growable);
    assert_one_line(&GrowableVec::<u32>::new(growable));
    assert_one_line(&RingBuffer::create(vmm, PAGE, 50, &on).unwrap());
    assert_one_line(&PausableBuffer::create(vmm, 5, &on).unwrap());
}
