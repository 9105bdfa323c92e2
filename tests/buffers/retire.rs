//! Paged buffers retire pages that a GPU's kernel may still read.

use crate::machine::{KIB, Machine, generations};
use crate::signals::Signal;
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::{ErrorKind, Feature, Problem};
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::vmm::{RetireQueue, SignalCondition};
use hsa_vmm::{Access, Error};
use std::ops::Range;
use std::time::{Duration, Instant};

const PAGE: usize = 64 * KIB;

fn new_buffer(machine: &Machine, pages: usize) -> PagedBuffer {
    new_buffer_with_pool(machine, pages, 0)
}

fn new_buffer_with_pool(machine: &Machine, pages: usize, pool: usize) -> PagedBuffer {
    let buffer = PagedBuffer::builder(pages * PAGE).with_page_size(PAGE).with_handle_pool(pool);
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.gpu(0), machine.cpu(0)], Access::ReadWrite).unwrap();
    buffer
}

fn retire(
    buffer: &PagedBuffer,
    pages: Range<usize>,
    queue: &RetireQueue,
    signals: &[(hsa_vmm::hsa_sys::hsa_signal_t, SignalCondition)],
) -> Result<(), Error> {
    // SAFETY: each test drops its queue before its signals.
    unsafe { buffer.retire(pages, queue, signals) }
}

#[test]
fn retired_pages_stay_readable_until_signals_fire() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let signal = Signal::new(&machine.runtime, 1);
        let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
        let buffer = new_buffer(&machine, 8);
        buffer.map(0..4).unwrap();
        buffer.write(PAGE, b"read by a kernel").unwrap();
        let used = machine.used_by(0);
        retire(&buffer, 1..3, &queue, &[signal.at_most(0)]).unwrap();
        assert_eq!(buffer.state(1).unwrap(), PageState::Retiring, "{generation}");
        let statistics = buffer.statistics();
        assert_eq!((statistics.mapped, statistics.retiring, statistics.unmaps), (2, 2, 0));
        assert_eq!(
            statistics.memory_size(),
            4 * PAGE,
            "{generation}: a GPU may use retiring pages"
        );
        assert!(statistics.to_string().contains("2 retiring"), "{statistics}");
        // A GPU can still read the pages.
        assert_eq!(queue.poll().unwrap().pending, 2);
        let address = buffer.address_of(1).unwrap();
        assert!(machine.simulation.page(0, address.get()).is_some(), "{generation}");
        // SAFETY: a load has no effect; if the page is not mapped, SIGSEGV fails the test.
        assert_eq!(unsafe { (address.get() as *const u8).read_volatile() }, b'r');
        // The buffer rejects calls on retiring pages.
        let errors = [
            buffer.map(1..2).unwrap_err(),
            buffer.unmap(1..2).unwrap_err(),
            buffer.write(PAGE, b"x").unwrap_err(),
            retire(&buffer, 0..2, &queue, &[]).unwrap_err(),
            buffer.move_pages(0..1, &buffer, 2).unwrap_err(),
        ];
        let problems = errors.map(|error| error.problem());
        assert_eq!(problems, [Some(Problem::PageRetiring); 5], "{generation}");
        assert_eq!(buffer.read(PAGE, &mut [0]).unwrap_err().problem(), problems[0], "{generation}");

        signal.set(0);
        assert_eq!(queue.poll().unwrap().retired, 2);
        let statistics = buffer.statistics();
        assert_eq!((statistics.retiring, statistics.unmaps), (0, 2), "{generation}");
        assert_eq!((statistics.ready, statistics.memory_size()), (0, 2 * PAGE), "{generation}");
        let problem = buffer.read(PAGE, &mut [0]).unwrap_err().problem();
        assert_eq!(problem, Some(Problem::PageNotMapped), "{generation}");
        assert_eq!(buffer.state(1).unwrap(), PageState::Empty, "{generation}");
        assert!(machine.simulation.page(0, address.get()).is_none(), "{generation}");
        assert_eq!(machine.used_by(0), used / 2, "{generation}: the memory is released");
        buffer.map(1..3).unwrap();
        buffer.write(PAGE, b"new").unwrap();
        drop((buffer, queue));
        machine.assert_everything_freed();
    }
}

/// Another buffer shares the memory of a retiring page, and unmaps its own page first.
#[test]
fn memory_of_retiring_pages_is_not_reused() {
    for (generation, config) in generations() {
        for pool in [0, 3] {
            let machine = Machine::new(config.clone());
            let signal = Signal::new(&machine.runtime, 1);
            let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
            let [first, second] = [0, pool].map(|pool| new_buffer_with_pool(&machine, 8, pool));
            first.map(0..1).unwrap();
            first.write(0, b"read by a kernel").unwrap();
            first.share_pages(0..1, &second, 0).unwrap();
            retire(&first, 0..1, &queue, &[signal.at_most(0)]).unwrap();
            assert_eq!(second.page_users(0), Ok(2), "{generation}: a GPU may read the page");
            second.unmap(0..1).unwrap();
            second.map(3..7).unwrap();
            second.write(3 * PAGE, &[0xff; 4 * PAGE]).unwrap();
            let page = first.address().get() as *const u8;
            // SAFETY: a load has no effect; if the page is not mapped, SIGSEGV fails the test.
            assert_eq!(unsafe { page.read_volatile() }, b'r', "{generation}, {pool} pooled");

            signal.set(0);
            assert_eq!(queue.poll().unwrap().retired, 1, "{generation}");
            assert_eq!(first.state(0), Ok(PageState::Empty), "{generation}");
            drop((first, second, queue));
            machine.assert_everything_freed();
        }
    }
}

/// The queue releases the memory of a retired page even if no other call of the buffer follows.
#[test]
fn retired_page_stops_using_shared_memory() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
        let [first, second] = [(); 2].map(|()| new_buffer(&machine, 8));
        first.map(0..2).unwrap();
        first.share_pages(0..1, &second, 0).unwrap();
        assert_eq!(machine.vmm.usage().handles, 2, "{generation}");
        retire(&first, 0..2, &queue, &[]).unwrap();
        assert_eq!((first.page_users(0), second.page_users(0)), (Ok(0), Ok(2)), "{generation}");
        assert_eq!(queue.poll().unwrap().retired, 2, "{generation}");
        assert_eq!(machine.vmm.usage().handles, 1, "{generation}");
        assert_eq!(second.page_users(0), Ok(1), "{generation}");
        drop((first, second, queue));
        machine.assert_everything_freed();
    }
}

#[test]
fn full_queue_leaves_pages_mapped() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let buffer = new_buffer(&machine, 4);
    buffer.map(0..3).unwrap();
    let error = retire(&buffer, 0..3, &queue, &[]).unwrap_err();
    // The queue can never accept more pages than its capacity. If the queue is only full at the moment, it can accept
    // the page later.
    assert_eq!(error.problem(), Some(Problem::ExceedsCapacity(2)), "{error}");
    buffer.write(0, &[7; 3 * PAGE]).unwrap();
    assert_eq!(buffer.statistics().mapped, 3);
    retire(&buffer, 0..2, &queue, &[]).unwrap();
    let error = retire(&buffer, 2..3, &queue, &[]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LimitReached { limit: 2, .. }), "{error}");
    // The queue keeps the addresses and the memory after the buffer is dropped.
    drop(buffer);
    assert_eq!(machine.vmm.usage().mappings, 2);
    drop(queue);
    machine.assert_everything_freed();
}

#[test]
fn late_signal_quarantines_the_page() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let signal = Signal::new(&machine.runtime, 1);
    let limit = Duration::from_millis(20);
    let queue = RetireQueue::builder(2).with_time_limit(limit).open(&machine.vmm).unwrap();
    let buffer = new_buffer(&machine, 4);
    buffer.map(0..2).unwrap();
    buffer.share_pages(0..1, &buffer, 2).unwrap();
    retire(&buffer, 0..1, &queue, &[signal.at_most(0)]).unwrap();
    let report = queue.drain(Duration::from_secs(60)).unwrap();
    assert_eq!(report.failures.len(), 1);
    // A read does not first update the states of pages that the queue has unmapped or quarantined, but must find the
    // quarantine nevertheless.
    let error = buffer.read(0, &mut [0]).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::PageQuarantined));
    signal.set(0);
    assert_eq!(buffer.state(0).unwrap(), PageState::Quarantined);
    let statistics = buffer.statistics();
    assert_eq!((statistics.retiring, statistics.quarantined, statistics.unmaps), (0, 1, 0));
    assert_eq!(
        (statistics.repeated, statistics.memory_size()),
        (1, 2 * PAGE),
        "shared with page 2"
    );
    let problems = [
        buffer.map(0..1).unwrap_err().problem(),
        buffer.unmap(0..1).unwrap_err().problem(),
        retire(&buffer, 0..1, &queue, &[]).unwrap_err().problem(),
    ];
    assert_eq!(problems, [Some(Problem::PageQuarantined); 3]);
    // Access to the quarantined page cannot be revoked.
    buffer.revoke(&[machine.gpu(0)]).unwrap();
    let access = |page| machine.vmm.get_access(machine.gpu(0), buffer.address_of(page).unwrap());
    assert_eq!([0, 1].map(access), [Ok(Access::ReadWrite), Ok(Access::None)]);
    assert_eq!(buffer.access(machine.gpu(0)), Ok(Access::None));
    // Other pages can be used.
    buffer.unmap(1..3).unwrap();
    buffer.map(1..4).unwrap();
    assert_eq!(buffer.statistics().memory_size(), 4 * PAGE);
    let address = buffer.address();
    drop((buffer, queue));
    assert!(machine.simulation.page(0, address.get()).is_some());
    assert_eq!(machine.vmm.usage().mappings, 1);
}

#[test]
fn retire_rejects_buffers_with_a_zero_page() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let buffer = PagedBuffer::builder(4 * PAGE).with_page_size(PAGE).with_zero_page();
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.map(0..1).unwrap();
    let error = retire(&buffer, 0..1, &queue, &[]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::NotSupported(Feature::RetireFromZeroPageBuffer));
    buffer.unmap(0..1).unwrap();
}

/// If a failed rollback has quarantined the buffer's addresses, a retire queue does not take its pages.
#[test]
fn retire_rejects_quarantined_addresses() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = new_buffer(&machine, 4);
        buffer.map(0..4).unwrap();
        machine.simulation.set_faults(FaultPlan::none().fail_any_from(2, 0x1000));
        let lost = buffer.exchange_pages(0..1, &buffer, 1).unwrap_err();
        assert!(matches!(lost.kind(), ErrorKind::PagesLost { .. }), "{generation}: {lost}");
        machine.simulation.set_faults(FaultPlan::none());
        let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
        for result in [retire(&buffer, 3..4, &queue, &[]), buffer.unmap(3..4)] {
            let is_rejected = |it: &Error| matches!(it.kind(), ErrorKind::Quarantined { .. });
            assert!(result.as_ref().is_err_and(is_rejected), "{generation}: {result:?}");
        }
        assert_eq!(queue.pending(), 0, "{generation}");
        assert_eq!(buffer.state(3).unwrap(), PageState::Mapped, "{generation}");
    }
}

/// If another mapping takes the address of a retiring page, the page is empty, and no longer retiring.
#[test]
fn another_mapping_ends_retiring() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let (vmm, buffer) = (&machine.vmm, new_buffer(&machine, 4));
    buffer.map(0..2).unwrap();
    retire(&buffer, 0..1, &queue, &[signal.at_most(0)]).unwrap();
    assert_eq!(buffer.state(0).unwrap(), PageState::Retiring);
    let address = buffer.address_of(0).unwrap();
    vmm.unmap(address, PAGE).unwrap();
    let handle = machine.create(0, PAGE);
    vmm.map(address, PAGE, 0, handle).unwrap();
    assert_eq!(buffer.state(0).unwrap(), PageState::Empty);
    assert_eq!(buffer.statistics().retiring, 0);

    // The queue does not unmap the other mapping.
    signal.set(0);
    assert_eq!(queue.poll().unwrap().pending, 0);
    assert!(vmm.mapping_at(address).is_some());
    vmm.unmap(address, PAGE).unwrap();
    vmm.release(handle).unwrap();
    drop((buffer, queue));
    machine.assert_everything_freed();
}

/// The time of a call on one page does not grow with the number of other pages that are retiring.
#[test]
fn calls_do_not_examine_other_retiring_pages() {
    const COUNT: usize = 300;
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(COUNT).without_thread().open(&machine.vmm).unwrap();
    let buffer = new_buffer(&machine, COUNT + 1);
    buffer.map(0..COUNT).unwrap();
    let measure = || {
        let begun = Instant::now();
        buffer.state(COUNT).unwrap();
        begun.elapsed()
    };
    let shortest = || (0..200).map(|_| measure()).min().unwrap();
    let before = shortest();
    retire(&buffer, 0..COUNT, &queue, &[signal.at_most(0)]).unwrap();
    let after = shortest();
    assert!(after < 20 * before, "{before:?}, then {after:?}");
}

/// The thread that maps ahead also maps pages that were retired, and that the queue has unmapped.
#[test]
fn unmapped_retired_pages_are_mapped_ahead() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let buffer = PagedBuffer::builder(4 * PAGE).with_page_size(PAGE).with_pages_ahead(1);
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.map(1..2).unwrap();
    retire(&buffer, 1..2, &queue, &[]).unwrap();
    assert_eq!(queue.poll().unwrap().retired, 1);
    buffer.map(0..1).unwrap();
    let begun = Instant::now();
    while buffer.state(1) != Ok(PageState::Ahead) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", buffer.statistics());
        std::thread::sleep(Duration::from_millis(1));
    }
}
