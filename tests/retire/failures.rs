//! Retire queues when signals fire too late, calls fail, or submissions are invalid.

use super::*;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::report::IdleItem;
use hsa_vmm::simulation::Generation;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn late_signal_quarantines_and_never_unmaps() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let signal = Signal::new(&machine.runtime, 1);
        let queue = RetireQueue::builder(4).with_time_limit(SHORT_TIME).without_thread();
        let queue = queue.open(&machine.vmm).unwrap();
        let reservation = reserve(&machine, 2);
        let [late, other] = [0, SIZE].map(|offset| map(&machine, &reservation, offset));
        let address = late.address();
        submit(&queue, late, &[signal.at_most(0)]).unwrap();
        let report = queue.drain(LONG_TIMEOUT).unwrap();
        let [failure] = &report.failures[..] else { panic!("{generation}: {report:?}") };
        let expected = ErrorKind::NotSignaled {
            signal: signal.handle.handle,
            condition: SignalCondition::AtMost(0),
            value: 1,
            limit: SHORT_TIME,
        };
        assert_eq!((failure.error.kind(), failure.quarantined), (&expected, true), "{generation}");
        assert_eq!((failure.address, failure.size), (address, SIZE), "{generation}");
        let listed = machine.vmm.quarantined_ranges();
        assert_eq!((listed.len(), listed[0].address, listed[0].size), (1, address, SIZE));
        assert_eq!(listed[0].failure, expected, "{generation}");

        // The signal fires too late. No call may unmap the range any more.
        signal.set(0);
        assert_eq!(queue.poll().unwrap().retired, 0);
        let vmm = &machine.vmm;
        let gpu = access(machine.gpu(0), Access::None);
        let both = [(address, SIZE), (at(address, SIZE), SIZE)];
        let spare = machine.create(0, SIZE);
        for result in [
            vmm.map(address, SIZE, 0, spare),
            vmm.unmap(address, SIZE),
            vmm.unmap(address, 2 * SIZE),
            vmm.unmap_many(&both),
            vmm.set_access(address, SIZE, &[gpu]),
            vmm.revoke(address, SIZE, &[machine.gpu(0)]),
            vmm.exchange(address, at(address, SIZE), SIZE),
            submit_range(&queue, address, 2 * SIZE, &[]),
            vmm.address_free(address, 2 * SIZE),
            reservation.clone().free().map_err(Error::from),
        ] {
            let is_quarantined = |it: &Error| matches!(it.kind(), ErrorKind::Quarantined { .. });
            assert!(result.as_ref().is_err_and(is_quarantined), "{generation}: {result:?}");
        }
        vmm.release(spare).unwrap();
        vmm.check().unwrap();
        assert_readable(&machine, address);

        // Other mappings of the reservation can be used and unmapped.
        other.write(0, b"other").unwrap();
        other.unmap().unwrap();
        drop(map(&machine, &reservation, SIZE));
        drop((queue, reservation));
        assert_readable(&machine, address);

        // The drop of the `Vmm` frees everything else.
        let other_base = machine.reserve(SIZE);
        let handle = machine.create(0, SIZE);
        machine.map(other_base, SIZE, handle);
        let simulation = machine.simulation.clone();
        drop(signal);
        drop(machine);
        assert!(simulation.page(0, address.get()).is_some(), "{generation}: still mapped");
        let usage = simulation.usage();
        assert_eq!((usage.reservations, usage.mappings), (1, 1), "{generation}: {usage:?}");
        assert_eq!(simulation.calls("hsa_shut_down"), 0, "{generation}: a stop would unmap");
    }
}

/// An agent can still use the mapping, although the caller has taken all access.
#[test]
fn quarantined_mapping_is_not_idle() {
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(4).with_time_limit(SHORT_TIME).without_thread();
    let queue = queue.open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 2);
    let [late, other] = [0, SIZE].map(|offset| map(&machine, &reservation, offset));
    let no_access = [machine.gpu(0), machine.cpu(0)].map(|agent| access(agent, Access::None));
    machine.vmm.set_access(late.address(), 2 * SIZE, &no_access).unwrap();
    submit(&queue, late, &[signal.at_most(0)]).unwrap();
    assert_eq!(queue.drain(LONG_TIMEOUT).unwrap().failures.len(), 1);
    let report = machine.vmm.report();
    let [IdleItem::Mapping(idle)] = report.idle()[..] else { panic!("{report}") };
    assert_eq!(idle.address, other.address());
}

#[test]
fn unmap_that_fails_once_is_repeated() {
    let machine = machine();
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 1);
    let mapping = map(&machine, &reservation, 0);
    machine.simulation.set_faults(FaultPlan::none().fail(
        "hsa_amd_vmem_unmap",
        1,
        HSA_STATUS_ERROR,
    ));
    submit(&queue, mapping, &[]).unwrap();
    let report = queue.poll().unwrap();
    assert_eq!((report.retired, report.failures.len()), (1, 0), "{report:?}");
    drop((queue, reservation));
    machine.assert_everything_freed();
}

/// No agent uses a mapping whose signals have fired. Therefore the drop of the `Vmm` frees the mapping.
#[test]
fn unmap_that_fails_twice_quarantines() {
    let machine = machine();
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 2);
    let [first, second] = [0, SIZE].map(|offset| map(&machine, &reservation, offset));
    let address = first.address();
    let calls = machine.simulation.calls("hsa_amd_vmem_unmap") + 1;
    let plan =
        fail_calls(FaultPlan::default(), "hsa_amd_vmem_unmap", calls..calls + 2, HSA_STATUS_ERROR);
    machine.simulation.set_faults(plan);
    submit(&queue, first, &[]).unwrap();
    submit(&queue, second, &[]).unwrap();
    let report = queue.poll().unwrap();
    machine.simulation.set_faults(FaultPlan::default());
    assert_eq!((report.retired, report.failures.len()), (1, 1), "{report:?}");
    let failure = &report.failures[0];
    assert_eq!((failure.address, failure.quarantined), (address, true));
    assert_eq!(failure.error.call().map(|(call, _)| call), Some("hsa_amd_vmem_unmap"));
    assert_eq!(machine.vmm.quarantined_ranges().len(), 1);
    assert_eq!(machine.vmm.usage().mappings, 1);
    machine.vmm.check().unwrap();
    drop((queue, reservation));
    machine.close();
}

#[test]
fn drop_waits_until_the_limit_and_quarantines() {
    for has_thread in [true, false] {
        let machine = machine();
        let signal = Signal::new(&machine.runtime, 1);
        let builder = RetireQueue::builder(4).with_time_limit(10 * SHORT_TIME);
        let builder = if has_thread { builder } else { builder.without_thread() };
        let queue = builder.open(&machine.vmm).unwrap();
        let mapping = map(&machine, &reserve(&machine, 1), 0);
        let address = mapping.address();
        submit(&queue, mapping, &[signal.at_most(0)]).unwrap();
        let begun = Instant::now();
        drop(queue);
        assert!(begun.elapsed() >= 9 * SHORT_TIME, "the drop ended long before the limit");
        assert!(begun.elapsed() < LONG_TIMEOUT);
        assert_readable(&machine, address);
        assert_eq!(machine.vmm.quarantined_ranges().len(), 1);
    }
}

#[test]
fn mapping_unmapped_after_submission_is_reported() {
    let machine = machine();
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 1);
    let mapping = map(&machine, &reservation, 0);
    let address = mapping.address();
    submit(&queue, mapping, &[]).unwrap();
    machine.vmm.unmap(address, SIZE).unwrap();
    let new_mapping = map(&machine, &reservation, 0);
    let report = queue.poll().unwrap();
    assert_eq!((report.retired, report.failures.len()), (0, 1), "{report:?}");
    let failure = &report.failures[0];
    assert!(!failure.quarantined);
    assert!(matches!(failure.error.problem(), Some(Problem::NotMapped(_))), "{failure:?}");
    new_mapping.check_mapped().unwrap();
    drop((new_mapping, reservation));
    machine.assert_everything_freed();
}

#[test]
fn errors_at_retiring_mapping_advise_to_drain() {
    let machine = machine();
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let mapping = map(&machine, &reserve(&machine, 1), 0);
    let (address, spare) = (mapping.address(), machine.create(0, SIZE));
    submit(&queue, mapping, &[]).unwrap();
    for result in
        [machine.vmm.map(address, SIZE, 0, spare), machine.vmm.address_free(address, SIZE)]
    {
        let text = result.unwrap_err().to_string();
        assert!(text.ends_with("retire queue"), "{text}");
    }
}

#[test]
fn unmapped_mapping_is_reported_before_its_signal() {
    let machine = machine();
    let never = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(4).with_time_limit(SHORT_TIME).without_thread();
    let queue = queue.open(&machine.vmm).unwrap();
    let mapping = map(&machine, &reserve(&machine, 1), 0);
    let address = mapping.address();
    submit(&queue, mapping, &[never.at_most(0)]).unwrap();
    machine.vmm.unmap(address, SIZE).unwrap();
    let report = queue.drain(LONG_TIMEOUT).unwrap();
    let [failure] = &report.failures[..] else { panic!("{report:?}") };
    assert_eq!(failure.error.problem(), Some(Problem::NotMapped(address)), "{failure:?}");
    assert_eq!((failure.quarantined, machine.vmm.quarantined_ranges()), (false, vec![]));
}

#[test]
fn invalid_submissions_return_the_mapping() {
    let (machine, other) = (machine(), machine());
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let mapping = map(&machine, &reserve(&machine, 1), 0);
    let null = (hsa_signal_t { handle: 0 }, SignalCondition::AtMost(0));
    let Rejected { value: mapping, error } =
        submit(&queue, mapping, &[signal.at_most(0), null]).unwrap_err();
    assert_eq!(error.to_string(), "cannot retire memory: signal 1 is null");
    let nine = [signal.at_most(0); RetireQueue::MAX_SIGNALS + 1];
    let Rejected { value: mapping, error } = submit(&queue, mapping, &nine).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::TooMany(8)));
    let text =
        "cannot retire memory: list of signals with 9 elements is too long; the maximum is 8";
    assert_eq!(error.to_string(), text);
    let foreign = map(&other, &reserve(&other, 1), 0);
    let error = submit(&queue, foreign, &[]).unwrap_err().error;
    assert_eq!(error.problem(), Some(Problem::ForeignHandle));
    let text =
        "list of mappings contains a mapping of another Vmm; submit it to a queue of that Vmm";
    assert!(error.to_string().ends_with(text), "{error}");
    assert_eq!(queue.pending(), 0);
    mapping.check_mapped().unwrap();
    let error = RetireQueue::builder(0).open(&machine.vmm).unwrap_err();
    assert_eq!(error.to_string(), "cannot open a retire queue: capacity 0x0 is zero");
    // The first capacity needs more memory than exists. For the second capacity, the size of the allocation overflows.
    for capacity in [1 << 48, usize::MAX] {
        let error = RetireQueue::builder(capacity).open(&machine.vmm).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::OutOfMemory), "{error}");
        assert!(error.to_string().contains(&format!("{capacity:#x}")), "{error}");
    }
}

#[test]
fn forked_child_gets_errors_and_does_nothing() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = machine();
    let signal = Signal::new(&machine.runtime, 1);
    let queue = RetireQueue::builder(4).open(&machine.vmm).unwrap();
    let reservation = reserve(&machine, 2);
    let [first, second] = [0, SIZE].map(|offset| map(&machine, &reservation, offset));
    let address = first.address();
    submit(&queue, first, &[signal.at_most(0)]).unwrap();
    let mut all = Some((queue, second));
    let end = process::in_child(|| {
        let (queue, second) = all.take().unwrap();
        let Rejected { value: second, error } = submit(&queue, second, &[]).unwrap_err();
        let opened = RetireQueue::builder(1).open(&machine.vmm).map(drop);
        for result in [
            Err(error),
            submit_range(&queue, address, SIZE, &[]),
            queue.poll().map(drop),
            queue.drain(LONG_TIMEOUT).map(drop),
            opened,
        ] {
            assert_eq!(result.unwrap_err().kind(), &ErrorKind::Forked);
        }
        drop((queue, second));
    });
    assert_eq!(end, End::Success);
    let (queue, second) = all.unwrap();
    assert_readable(&machine, address);
    signal.set(0);
    assert_eq!(queue.drain(LONG_TIMEOUT).unwrap().retired, 1);
    drop((queue, second, reservation));
    machine.assert_everything_freed();
}

/// The queue unmaps the memory, but other code maps memory in the hole that the runtime leaves.
#[test]
fn lost_addresses_count_as_quarantined() {
    static ADDRESS: AtomicUsize = AtomicUsize::new(0);
    if process::rerun_in_own_process() {
        return;
    }
    log::subscribe(
        |metadata| metadata.target().starts_with("hsa_vmm::native"),
        |fields| {
            let address = ADDRESS.load(Ordering::SeqCst) as *mut _;
            if fields.contains(&("call", "hsa_amd_vmem_unmap".to_owned())) {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
                // SAFETY: these flags replace no mapping.
                unsafe { mmap_anonymous(address, 4096, ProtFlags::READ, flags) }.unwrap();
            }
        },
    );
    let config = Config::mi300x(1).with_generation(Generation::A);
    let machine = Machine::new(machine::without_cpu_mapping(config));
    let queue = RetireQueue::builder(4).without_thread().open(&machine.vmm).unwrap();
    let mapping = map(&machine, &reserve(&machine, 1), 0);
    let address = mapping.address();
    ADDRESS.store(address.get(), Ordering::SeqCst);
    submit(&queue, mapping, &[]).unwrap();
    let report = queue.poll().unwrap();
    let [failure] = &report.failures[..] else { panic!("{report:?}") };
    assert_eq!((failure.address, failure.quarantined), (address, true), "{failure:?}");
    assert!(matches!(failure.error.kind(), ErrorKind::Quarantined { .. }), "{failure:?}");
    assert_eq!((machine.vmm.usage().mappings, machine.vmm.quarantined_ranges().len()), (0, 1));
}
