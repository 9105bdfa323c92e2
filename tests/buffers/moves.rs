//! Paged buffers move and exchange pages.

use crate::errors::{destination_page_error, different_pages, other_page_error, page_error};
use crate::machine::{KIB, Machine, generations};
use crate::process::{rerun_in_own_process, within};
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Error};
use std::sync::Barrier;
use std::time::Duration;

const PAGE: usize = 16 * KIB;

fn new_buffer(machine: &Machine, has_zero_page: bool) -> PagedBuffer {
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let options = if has_zero_page { options.with_zero_page() } else { options };
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    buffer
}

/// Writes a byte into a page, so that [`mark_of`] can recognise the page's memory later.
fn mark(buffer: &PagedBuffer, page: usize, mark: u8) {
    buffer.write(page * PAGE + 100, &[mark]).unwrap();
}

fn mark_of(buffer: &PagedBuffer, page: usize) -> u8 {
    let mut byte = [0xff];
    buffer.read(page * PAGE + 100, &mut byte).unwrap();
    byte[0]
}

#[test]
fn pages_move_between_buffers_and_within_one() {
    for (generation, config) in generations() {
        for (zero_source, zero_target) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let machine = Machine::new(config.clone());
            let (source, target) =
                (new_buffer(&machine, zero_source), new_buffer(&machine, zero_target));
            target.grant(&[machine.gpu(1)], Access::ReadWrite).unwrap();
            source.map(0..4).unwrap();
            (0..4).for_each(|page| mark(&source, page, 10 + page as u8));
            let used = machine.used_by(0);
            source.move_pages(1..3, &target, 5).unwrap();
            assert_eq!((mark_of(&target, 5), mark_of(&target, 6)), (11, 12), "{generation}");
            let peer_access = |page: usize| {
                machine.vmm.get_access(machine.gpu(1), target.address_of(page).unwrap()).unwrap()
            };
            assert_eq!(
                peer_access(5),
                Access::ReadWrite,
                "{generation}: agents with access to the buffer can access the page"
            );
            let result = source.read(PAGE + 100, &mut [0]);
            if zero_source {
                assert_eq!(mark_of(&source, 1), 0, "{generation}");
            } else {
                assert_eq!(
                    result.map_err(Error::into_kind),
                    Err(page_error(1, Problem::PageNotMapped)),
                    "{generation}"
                );
            }
            // Defragmentation: the remaining pages become adjacent.
            source.move_pages(3..4, &source, 1).unwrap();
            assert_eq!((mark_of(&source, 0), mark_of(&source, 1)), (10, 13), "{generation}");
            assert_eq!(
                (source.statistics().mapped, target.statistics().mapped),
                (2, 2),
                "{generation}"
            );
            assert_eq!(machine.used_by(0), used, "{generation}: no memory was created");
            target.exchange_pages(5..7, &source, 0).unwrap();
            assert_eq!((mark_of(&source, 0), mark_of(&source, 1)), (11, 12), "{generation}");
            assert_eq!((mark_of(&target, 5), mark_of(&target, 6)), (10, 13), "{generation}");
            assert_eq!(
                peer_access(6),
                Access::ReadWrite,
                "{generation}: pages get the access of their buffer"
            );
            target.exchange_pages(5..6, &target, 6).unwrap();
            assert_eq!((mark_of(&target, 5), mark_of(&target, 6)), (13, 10), "{generation}");
            // The buffer that now owns the memory releases it.
            source.unmap(0..2).unwrap();
            assert_eq!((mark_of(&target, 5), mark_of(&target, 6)), (13, 10), "{generation}");
            drop((source, target));
            machine.assert_empty();
        }
    }
}

/// The access of the first page was set by its address. The second page has the access of its buffer.
#[test]
fn exchange_keeps_access_set_by_address() {
    for (generation, config) in generations() {
        for between_buffers in [false, true] {
            let machine = Machine::new(config.clone());
            let [first, second] = [(); 2].map(|()| new_buffer(&machine, false));
            let agents = [machine.cpu(0), machine.gpu(0)];
            for buffer in [&first, &second] {
                buffer.grant(&agents, Access::ReadWrite).unwrap();
                buffer.map(0..2).unwrap();
            }
            let read = agents.map(|agent| AccessDescriptor { agent, access: Access::Read });
            machine.vmm.set_access(first.address(), PAGE, &read).unwrap();
            mark(&first, 1, 1);
            mark(&second, 1, 2);
            let other = if between_buffers { &second } else { &first };
            first.exchange_pages(0..1, other, 1).unwrap();
            assert_eq!(mark_of(&first, 0), 1 + u8::from(between_buffers), "{generation}");
            for (address, expected) in
                [(first.address(), Access::Read), (other.address_of(1).unwrap(), Access::ReadWrite)]
            {
                for agent in agents {
                    let access = machine.vmm.get_access(agent, address);
                    assert_eq!(access, Ok(expected), "{generation}: {agent} at {address}");
                }
            }
            let error = first.write(0, &[1]).unwrap_err();
            assert!(matches!(error.problem(), Some(Problem::NotGranted { .. })), "{error}");
        }
    }
}

#[test]
fn failed_moves_change_nothing() {
    let [machine, foreign_machine] = [0, 1].map(|_| Machine::new(Config::mi300x(2)));
    let [source, target] = [0, 1].map(|_| new_buffer(&machine, false));
    let foreign = new_buffer(&foreign_machine, false);
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(2 * PAGE);
    let larger = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let peer_buffer = options.reserve(&machine.vmm, &machine.shareable_on(1)).unwrap();
    source.map(0..3).unwrap();
    target.map(2..3).unwrap();
    let not_shareable = AllocationProperties::on(machine.gpu(0));
    let not_shareable = options.reserve(&machine.vmm, &not_shareable).unwrap();
    let second_vmm = hsa_vmm::Vmm::open(&machine.runtime).unwrap();
    let of_second_vmm = options.reserve(&second_vmm, &machine.shareable_on(0)).unwrap();
    let calls = machine.simulation.all_calls();
    for of_another_vmm in [&foreign, &of_second_vmm] {
        let error = source.move_pages(0..1, of_another_vmm, 0).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::ForeignHandle), "{error}");
    }
    for (unsuitable, problem) in [
        (&larger, Problem::DifferentPages),
        (&peer_buffer, Problem::DifferentLocation),
        (&not_shareable, Problem::DifferentProperties),
    ] {
        assert_eq!(
            source.move_pages(0..1, unsuitable, 0).map_err(Error::into_kind),
            Err(different_pages(Argument::Destination, problem))
        );
        assert_eq!(
            source.exchange_pages(0..1, unsuitable, 0).map_err(Error::into_kind),
            Err(different_pages(Argument::OtherBuffer, problem))
        );
    }
    assert_eq!(
        source.move_pages(2..4, &target, 4).map_err(Error::into_kind),
        Err(page_error(3, Problem::PageNotMapped))
    );
    assert_eq!(
        source.move_pages(0..2, &target, 1).map_err(Error::into_kind),
        Err(destination_page_error(2, Problem::PageMapped))
    );
    let out_of_range = destination_page_error(8, Problem::OutOfRange(8));
    assert_eq!(source.move_pages(0..2, &target, 7).map_err(Error::into_kind), Err(out_of_range));
    assert_eq!(
        source.move_pages(0..2, &target, usize::MAX).map_err(Error::into_kind),
        Err(destination_page_error(usize::MAX, Problem::OutOfRange(8)))
    );
    assert_eq!(
        source.exchange_pages(0..1, &target, 0).map_err(Error::into_kind),
        Err(other_page_error(0, Problem::PageNotMapped))
    );
    let error = source.move_pages(0..2, &source, 1).unwrap_err();
    assert!(error.to_string().contains("overlaps"), "{error}");
    source.move_pages(1..1, &target, 2).expect("an empty range");
    source.exchange_pages(1..1, &target, 2).expect("an empty range");
    assert_eq!(machine.simulation.all_calls(), calls);
    assert_eq!((source.statistics().mapped, target.statistics().mapped), (3, 1));
}

#[test]
fn opposite_moves_do_not_deadlock() {
    within(Duration::from_secs(120), || {
        let machine = Machine::new(Config::mi300x(1));
        let (first_buffer, second_buffer) =
            (new_buffer(&machine, false), new_buffer(&machine, true));
        first_buffer.map(0..2).unwrap();
        second_buffer.map(2..4).unwrap();
        let move_back_and_forth = |source: &PagedBuffer, target: &PagedBuffer, first: usize| {
            for _ in 0..200 {
                source.move_pages(first..first + 2, target, first).unwrap();
                target.move_pages(first..first + 2, source, first).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| move_back_and_forth(&first_buffer, &second_buffer, 0));
            scope.spawn(|| move_back_and_forth(&second_buffer, &first_buffer, 2));
            scope.spawn(|| {
                for _ in 0..200 {
                    let _ = first_buffer.exchange_pages(0..2, &second_buffer, 2);
                }
            });
        });
        assert_eq!((first_buffer.statistics().mapped, second_buffer.statistics().mapped), (2, 2));
        drop((first_buffer, second_buffer));
        machine.assert_empty();
    });
}

/// The program has freed the addresses of one buffer, and the other buffer has reserved them.
#[test]
fn buffers_at_the_same_address_do_not_deadlock() {
    if rerun_in_own_process() {
        return;
    }
    within(Duration::from_secs(120), || {
        let machine = Machine::new(Config::mi300x(1));
        let freed = new_buffer(&machine, false);
        machine.vmm.address_free(freed.address(), 8 * PAGE).unwrap();
        let buffer = new_buffer(&machine, false);
        assert_eq!(buffer.address(), freed.address());
        let barrier = Barrier::new(2);
        let share_from = |source: &PagedBuffer, target: &PagedBuffer| {
            barrier.wait();
            for _ in 0..200_000 {
                let error = source.share_pages(0..1, target, 0).unwrap_err();
                assert_eq!(error.problem(), Some(Problem::PageNotMapped));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| share_from(&freed, &buffer));
            scope.spawn(|| share_from(&buffer, &freed));
        });
    });
}

/// The page of the freed buffer has a stale mapping at the address of the other buffer's page.
#[test]
fn failed_exchange_keeps_pages_at_same_address() {
    if rerun_in_own_process() {
        return;
    }
    for is_called_on_freed in [false, true] {
        let machine = Machine::new(Config::mi300x(1));
        let freed = new_buffer(&machine, false);
        freed.map(0..1).unwrap();
        machine.vmm.unmap(freed.address(), PAGE).unwrap();
        machine.vmm.address_free(freed.address(), 8 * PAGE).unwrap();
        let buffer = new_buffer(&machine, false);
        assert_eq!(buffer.address(), freed.address());
        buffer.map(0..1).unwrap();
        mark(&buffer, 0, 7);

        let [first, second] =
            if is_called_on_freed { [&freed, &buffer] } else { [&buffer, &freed] };
        let error = first.exchange_pages(0..1, second, 0).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotMapped(buffer.address())), "{error}");
        assert_eq!([&freed, &buffer].map(|it| it.state(0).unwrap()), [PageState::Mapped; 2]);
        assert_eq!(mark_of(&buffer, 0), 7);
        drop(freed);
        assert_eq!(mark_of(&buffer, 0), 7, "the freed buffer does not own the page");
        buffer.unmap(0..1).unwrap();
    }
}
