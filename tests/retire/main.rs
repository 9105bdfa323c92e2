//! Retire queues unmap mappings once signals have fired.

#[path = "../allocations/mod.rs"]
mod allocations;
#[path = "../log/mod.rs"]
mod log;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;
#[path = "../signals/mod.rs"]
mod signals;

mod failures;

use hsa_vmm::error::{Operation, Problem, Rejected};
use hsa_vmm::hsa_sys::hsa_signal_t;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::{RetireQueue, SignalCondition};
use hsa_vmm::{Access, Address, Allocation, Error, ErrorKind, Mapping, Reservation};
use machine::{KIB, Machine, access, at, fail_calls, generations};
use process::End;
use signals::Signal;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const SIZE: usize = 64 * KIB;
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
const SHORT_TIME: Duration = Duration::from_millis(30);

type Condition = (hsa_signal_t, SignalCondition);

fn machine() -> Machine {
    Machine::new(Config::mi300x(1))
}

/// Maps new memory at an offset of a reservation, with access for the CPU and the first GPU.
#[track_caller]
fn map(machine: &Machine, reservation: &Reservation, offset: usize) -> Mapping {
    let memory = Allocation::create(&machine.vmm, SIZE, &machine.shareable_on(0)).unwrap();
    let mapping = reservation.map(offset, &memory).unwrap();
    mapping.grant(&[machine.gpu(0), machine.cpu(0)], Access::ReadWrite).unwrap();
    mapping.write(0, b"used").unwrap();
    mapping
}

fn reserve(machine: &Machine, count: usize) -> Reservation {
    Reservation::builder(count * SIZE).reserve(&machine.vmm).unwrap()
}

fn submit(
    queue: &RetireQueue,
    mapping: Mapping,
    signals: &[Condition],
) -> Result<(), Rejected<Mapping>> {
    // SAFETY: each test drops its queue before its signals.
    unsafe { queue.submit(mapping, signals) }
}

fn submit_range(
    queue: &RetireQueue,
    address: Address,
    size: usize,
    signals: &[Condition],
) -> Result<(), Error> {
    // SAFETY: each test drops its queue before its signals.
    unsafe { queue.submit_range(address, size, signals) }
}

/// Fails unless the CPU and the GPU can still read the memory. If the memory is not mapped, the CPU's load ends the
/// process.
#[track_caller]
fn assert_readable(machine: &Machine, address: Address) {
    assert!(machine.simulation.page(0, address.get()).is_some(), "no entry in the page table");
    // SAFETY: a load has no effect; if the memory is not mapped, SIGSEGV fails the test.
    let byte = unsafe { (address.get() as *const u8).read_volatile() };
    assert_eq!(byte, b'u');
}

#[track_caller]
fn assert_unmapped(machine: &Machine, address: Address) {
    assert!(machine.simulation.page(0, address.get()).is_none(), "an entry in the page table");
    assert_eq!(machine.vmm.mapped_range_at(address), None);
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG_TIMEOUT, "the condition does not hold");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn mapping_is_unmapped_when_all_signals_fire() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let [done, timeline] = [1, 6].map(|value| Signal::new(&machine.runtime, value));
        let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
        let mapping = map(&machine, &reserve(&machine, 1), 0);
        let address = mapping.address();
        submit(&queue, mapping, &[done.at_most(0), timeline.at_least(7)]).unwrap();
        for (signal, value) in [(&done, 1), (&timeline, 6), (&timeline, 7)] {
            signal.set(value);
            let report = queue.poll().unwrap();
            assert_eq!((report.retired, report.pending), (0, 1), "{generation}");
            assert_readable(&machine, address);
        }
        // The queue remembers that `timeline` reached 7, so its value may change before `done` fires.
        timeline.set(0);
        done.set(-1);
        let report = queue.poll().unwrap();
        assert_eq!((report.retired, report.pending), (1, 0), "{generation}");
        assert_eq!(report.failures, [], "{generation}");
        assert_unmapped(&machine, address);
        // The queue was the last owner of the memory and the addresses.
        machine.assert_everything_freed();
        drop(queue);
        drop((done, timeline));
        machine.close();
    }
}

#[test]
fn thread_unmaps_without_poll() {
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(4).open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 2);
    // After the pause of the second round, the queue's own thread sleeps. The submission must wake the thread.
    for pause in [Duration::ZERO, Duration::from_millis(200)] {
        thread::sleep(pause);
        signal.set(1);
        let mapping = map(&machine, &reservation, 0);
        let address = mapping.address();
        submit(&queue, mapping, &[signal.at_most(0)]).unwrap();
        thread::sleep(SHORT_TIME);
        assert_readable(&machine, address);
        signal.set(0);
        wait_until(|| queue.pending() == 0);
        assert_unmapped(&machine, address);
    }
    wait_until(|| machine.vmm.usage().handles == 0);
    let report = queue.poll().unwrap();
    assert_eq!((report.retired, report.pending), (2, 0));
    assert_eq!(queue.poll().unwrap().retired, 0, "a report covers the time since the last one");
}

#[test]
fn mapping_without_signals_is_unmapped_by_next_poll() {
    let machine = machine();
    let queue = RetireQueue::builder(1).without_thread().open(&machine.vmm).unwrap();
    submit(&queue, map(&machine, &reserve(&machine, 1), 0), &[]).unwrap();
    assert_eq!(machine.vmm.usage().mappings, 1, "the submission itself must not unmap");
    assert_eq!(queue.poll().unwrap().retired, 1);
    machine.assert_everything_freed();
}

/// The queue's thread reads signals and unmaps in passes, and pauses between passes. If unmapping is slow, a pass takes
/// long, but the pause must not become longer.
#[test]
fn slow_unmaps_do_not_lengthen_the_pause() {
    const COUNT: usize = 10;
    let machine = machine();
    let reservation = reserve(&machine, COUNT + 1);
    let mappings: Vec<_> =
        (0..=COUNT).map(|index| map(&machine, &reservation, index * SIZE)).collect();
    let queue = RetireQueue::builder(COUNT + 1).open(&machine.vmm).unwrap();
    let delay = Duration::from_millis(40);
    machine.simulation.set_faults("hsa_amd_vmem_unmap=40ms".parse().unwrap());
    let begun = Instant::now();
    for (index, mapping) in mappings.into_iter().enumerate() {
        if index == COUNT {
            // Submits the last mapping after the queue's thread has begun to unmap the others.
            wait_until(|| queue.pending() < COUNT);
        }
        submit(&queue, mapping, &[]).unwrap();
    }
    drop(queue);
    let elapsed = begun.elapsed();
    machine.simulation.set_faults(FaultPlan::default());
    assert!(elapsed >= delay * COUNT as u32, "{elapsed:?}: the calls were not delayed");
    assert!(elapsed < delay * 3 * COUNT as u32, "{elapsed:?}");
    assert_eq!(machine.vmm.usage().mappings, 0);
}

#[test]
fn full_queue_returns_the_mapping() {
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 4);
    let mappings: Vec<_> = (0..3).map(|it| map(&machine, &reservation, it * SIZE)).collect();
    let is_full = |error: &Error| matches!(error.kind(), ErrorKind::LimitReached { limit: 2, .. });
    // SAFETY: the queue is dropped before the signal.
    let rejected = unsafe { queue.submit_many(mappings, &[signal.at_most(0)]) }.unwrap_err();
    // The error says that this call can never succeed, not that the queue is full at the moment.
    let problem = rejected.error.problem();
    assert_eq!((problem, queue.pending()), (Some(Problem::ExceedsCapacity(2)), 0), "all or none");
    let by_range = submit_range(&queue, reservation.address(), 3 * SIZE, &[]).unwrap_err();
    assert_eq!(by_range.problem(), problem);
    let mut mappings = rejected.value;
    let last = mappings.pop().unwrap();
    // SAFETY: the queue is dropped before the signal.
    unsafe { queue.submit_many(mappings, &[signal.at_most(0)]) }.unwrap();
    let Rejected { value: last, error } = submit(&queue, last, &[]).unwrap_err();
    assert!(is_full(&error) && error.operation() == Operation::Retire, "{error}");
    assert!(error.to_string().contains("RetireQueue::poll"), "{error}");
    let by_address = submit_range(&queue, last.address(), SIZE, &[]).unwrap_err();
    assert!(is_full(&by_address), "{by_address}");
    last.check_mapped().unwrap();
    assert_readable(&machine, last.address());
    signal.set(0);
    assert_eq!(queue.poll().unwrap().retired, 2);
    submit(&queue, last, &[]).unwrap();
    assert_eq!(queue.poll().unwrap().retired, 1);
}

#[test]
fn submission_does_not_allocate() {
    let machine = machine();
    let all: Vec<_> = (0..8).map(|_| Signal::new(&machine.runtime, 1)).collect();
    let conditions: Vec<_> = all.iter().map(|signal| signal.at_most(0)).collect();
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 3);
    let [first, second, third] = [0, 1, 2].map(|it| map(&machine, &reservation, it * SIZE));
    let before = allocations::count();
    submit(&queue, first, &conditions).unwrap();
    let by_address = submit_range(&queue, second.address(), SIZE, &conditions);
    let rejected = submit(&queue, third, &conditions);
    assert_eq!(allocations::count(), before);
    by_address.unwrap();
    let _third = rejected.unwrap_err().value;
    all.iter().for_each(|signal| signal.set(0));
    assert_eq!(queue.poll().unwrap().retired, 2);
    drop(second);
}

#[test]
fn submission_does_not_wait() {
    let machine = machine();
    let queue = RetireQueue::builder(4).open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 3);
    let [first, second, third] = [0, 1, 2].map(|it| map(&machine, &reservation, it * SIZE));
    // This thread holds the reservation's lock. To unmap `second`, the queue's thread needs the same lock, and waits.
    let pending = first.with_access(machine.gpu(0), Access::Read, |_| {
        submit(&queue, second, &[]).unwrap();
        thread::sleep(SHORT_TIME);
        submit(&queue, third, &[]).unwrap();
        queue.pending()
    });
    assert_eq!(pending.unwrap(), 2);
    assert_eq!(queue.drain(LONG_TIMEOUT).unwrap().retired, 2);
    first.check_mapped().unwrap();
}

#[test]
fn retirements_keep_their_order() {
    static UNMAPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    if process::rerun_in_own_process() {
        return;
    }
    log::subscribe(
        |metadata| metadata.target().starts_with("hsa_vmm::native"),
        |fields| {
            let value = |name| fields.iter().find(|field| field.0 == name).map(|it| it.1.clone());
            if value("calling").as_deref() == Some("hsa_amd_vmem_unmap") {
                UNMAPPED.lock().unwrap().extend(value("at").or(value("address")));
            }
        },
    );
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(8).without_thread().open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 5);
    let order = [3, 0, 4, 1, 2];
    let mappings = order.map(|index| map(&machine, &reservation, index * SIZE));
    UNMAPPED.lock().unwrap().clear();
    for mapping in mappings {
        submit(&queue, mapping, &[signal.at_most(0)]).unwrap();
    }
    signal.set(0);
    assert_eq!(queue.poll().unwrap().retired, order.len());
    let address = |index| at(reservation.address(), index * SIZE).to_string();
    assert_eq!(*UNMAPPED.lock().unwrap(), order.map(address));
}

#[test]
fn range_can_be_mapped_again_after_its_retirement() {
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 0);
    let queue = RetireQueue::builder(4).open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 1);
    for round in 1..=50 {
        let mapping = map(&machine, &reservation, 0);
        submit(&queue, mapping, &[signal.at_least(round)]).unwrap();
        let memory = Allocation::create(&machine.vmm, SIZE, &machine.shareable_on(0)).unwrap();
        let taken = reservation.map(0, &memory).unwrap_err();
        assert!(matches!(taken.problem(), Some(Problem::AlreadyMapped(_))), "{taken}");
        assert_readable(&machine, reservation.address());
        signal.set(round);
        assert_eq!(queue.drain(LONG_TIMEOUT).unwrap().failures, []);
    }
}

#[test]
fn drain_ends_at_limit_or_when_queue_is_empty() {
    let machine = machine();
    let [first, never] = [1, 1].map(|value| Signal::new(&machine.runtime, value));
    let queue =
        RetireQueue::builder(4).with_time_limit(SHORT_TIME * 10).open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 2);
    submit(&queue, map(&machine, &reservation, 0), &[first.at_most(0)]).unwrap();
    let report = queue.drain(SHORT_TIME).unwrap();
    assert_eq!((report.retired, report.pending), (0, 1), "the limit has passed");
    first.set(0);
    let report = queue.drain(LONG_TIMEOUT).unwrap();
    assert_eq!((report.retired, report.pending), (1, 0));
    submit(&queue, map(&machine, &reservation, SIZE), &[never.at_most(0)]).unwrap();
    let report = queue.drain(LONG_TIMEOUT).unwrap();
    assert_eq!((report.failures.len(), report.pending), (1, 0));
}

#[test]
fn drop_waits_for_signals() {
    for has_thread in [true, false] {
        let machine = machine();
        let signal = Signal::new(&machine.runtime, 1);
        let builder = RetireQueue::builder(4).with_time_limit(LONG_TIMEOUT);
        let builder = if has_thread { builder } else { builder.without_thread() };
        let queue = builder.open(&machine.vmm).unwrap();
        let mapping = map(&machine, &reserve(&machine, 1), 0);
        let address = mapping.address();
        submit(&queue, mapping, &[signal.at_most(0)]).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SHORT_TIME);
                assert_readable(&machine, address);
                signal.set(0);
            });
            drop(queue);
        });
        machine.assert_everything_freed();
        drop(signal);
        machine.close();
    }
}

#[test]
fn mappings_are_retired_by_address() {
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let base = machine.reserve(2 * SIZE);
    for offset in [0, SIZE] {
        let handle = machine.create(0, SIZE);
        machine.map(at(base, offset), SIZE, handle);
        machine.vmm.release(handle).unwrap();
    }
    let part = submit_range(&queue, base, SIZE / 2, &[]).unwrap_err();
    assert!(matches!(part.problem(), Some(Problem::SplitsMapping(_))), "{part}");
    submit_range(&queue, base, 2 * SIZE, &[signal.at_most(0)]).unwrap();
    assert_eq!(queue.poll().unwrap().pending, 2);
    machine.vmm.address_free(base, 2 * SIZE).unwrap_err();
    signal.set(0);
    assert_eq!(queue.poll().unwrap().retired, 2);
    machine.vmm.address_free(base, 2 * SIZE).unwrap();
    machine.assert_empty();
}
