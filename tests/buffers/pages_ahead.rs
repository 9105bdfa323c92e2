//! A paged buffer's thread maps pages ahead: before the caller requests them.

use crate::errors::page_error;
use crate::fault_injection::{ERROR, OUT_OF_RESOURCES};
use crate::machine::{KIB, Machine, generations};
use crate::pausable::run_in_child;
use crate::process::{End, in_child, within};
use hsa_vmm::Access;
use hsa_vmm::Error;
use hsa_vmm::buffer::{PageState, PagedBuffer, PagedStatistics};
use hsa_vmm::error::{ErrorKind, Problem};
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use std::time::{Duration, Instant};

const PAGE: usize = 16 * KIB;
const CREATE: &str = "hsa_amd_vmem_handle_create";
const MAP: &str = "hsa_amd_vmem_map";

fn new_buffer(machine: &Machine, ahead: usize) -> PagedBuffer {
    let options = PagedBuffer::builder(64 * PAGE).with_page_size(PAGE).with_pages_ahead(ahead);
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer
}

/// Waits until a condition holds for the statistics. The time limit is long, because the machine may be busy.
#[track_caller]
fn wait_for(buffer: &PagedBuffer, is_done: impl Fn(&PagedStatistics) -> bool) {
    let begun = Instant::now();
    while !is_done(&buffer.statistics()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", buffer.statistics());
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Returns a condition: this number of pages is mapped ahead.
fn ahead_is(pages: usize) -> impl Fn(&PagedStatistics) -> bool {
    move |statistics| statistics.ahead == pages
}

#[test]
fn growing_sequence_finds_pages_mapped_ahead() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = new_buffer(&machine, 3);
        buffer.map(10..12).unwrap();
        wait_for(&buffer, ahead_is(3));
        assert_eq!(buffer.state(14), Ok(PageState::Ahead), "{generation}");
        assert_eq!(buffer.state(15), Ok(PageState::Empty), "{generation}");
        // Pages mapped ahead cannot be accessed before they are requested.
        assert_eq!(
            buffer.read(12 * PAGE, &mut [0]).map_err(Error::into_kind),
            Err(page_error(12, Problem::PageNotMapped))
        );
        let calls = machine.simulation.calls("hsa_amd_vmem_set_access");
        buffer.map(12..14).unwrap();
        buffer.write(13 * PAGE, &[5]).unwrap();
        assert_eq!(buffer.statistics().found_ahead, 2, "{generation}");
        wait_for(&buffer, ahead_is(3));
        let grants = machine.simulation.calls("hsa_amd_vmem_set_access") - calls;
        assert_eq!(grants, 2, "{generation}: only the thread has granted access");
        // Maps pages that were not mapped ahead.
        buffer.map(60..63).unwrap();
        wait_for(&buffer, ahead_is(4));
        assert_eq!(buffer.state(63), Ok(PageState::Ahead), "{generation}: the last page");
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn pooled_pages_need_no_new_memory() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE).with_handle_pool(3);
        let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        wait_for(&buffer, |statistics| statistics.ready == 3);
        let plan = FaultPlan::none().always(CREATE, OUT_OF_RESOURCES);
        machine.simulation.set_faults(plan);
        // Any page can use the pool. No page is mapped before it is requested.
        for pages in [5..6, 0..2] {
            assert_eq!(buffer.state(pages.start), Ok(PageState::Empty), "{generation}");
            buffer.map(pages.clone()).unwrap();
            buffer.write(pages.start * PAGE, &[7]).unwrap();
        }
        let error = buffer.map(7..8).expect_err("the pool is empty, and no handle can be created");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{generation}: {error}");
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn pool_has_at_most_the_pages_of_the_buffer() {
    let machine = Machine::new(Config::mi300x(1));
    let options = PagedBuffer::builder(4 * PAGE).with_page_size(PAGE).with_handle_pool(1 << 40);
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    wait_for(&buffer, |statistics| statistics.ready >= 4);
    // If the library did not limit the pool, the thread would create more memory during this pause.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(buffer.statistics().ready, 4);
    drop(buffer);
    machine.assert_empty();
}

#[test]
fn unmap_removes_pages_ahead() {
    let machine = Machine::new(Config::mi300x(1).with_generation(Generation::A));
    let buffer = new_buffer(&machine, 4);
    buffer.map(0..8).unwrap();
    buffer.map(20..22).unwrap();
    wait_for(&buffer, ahead_is(8));
    // The mapped sequence now ends at page 5. Only the pages 6 to 9 may be mapped ahead: 8 and 9 stay, 10 and 11 do
    // not.
    buffer.unmap(6..8).unwrap();
    let states: Vec<_> = (5..12).map(|page| buffer.state(page).unwrap()).collect();
    use PageState::{Ahead, Empty, Mapped};
    assert_eq!(states, [Mapped, Empty, Empty, Ahead, Ahead, Empty, Empty]);
    buffer.unmap(0..6).unwrap();
    wait_for(&buffer, ahead_is(4));
    buffer.unmap(20..22).unwrap();
    assert_eq!(buffer.state(22), Ok(PageState::Empty));
    buffer.trim().unwrap();
    assert_eq!((buffer.statistics().ahead, machine.used_by(0)), (0, 0));
    buffer.map(0..1).unwrap();
    wait_for(&buffer, ahead_is(4));
    buffer.trim().unwrap();
    assert_eq!((buffer.statistics().ahead, machine.used_by(0)), (0, PAGE));
}

#[test]
fn thread_failure_is_reported_and_harmless() {
    for (generation, config) in generations() {
        for function in [CREATE, MAP, "hsa_amd_vmem_set_access"] {
            let machine = Machine::new(config.clone());
            let buffer = new_buffer(&machine, 2);
            // The caller makes the first call. The thread makes all later calls, which fail.
            let plan = (2..50).fold(FaultPlan::none(), |plan, n| plan.fail(function, n, ERROR));
            machine.simulation.set_faults(plan);
            buffer.map(0..1).unwrap();
            wait_for(&buffer, |statistics| statistics.failures_ahead == 1);
            let statistics = buffer.statistics();
            let failure = statistics.last_failure_ahead.clone().expect("the failure is recorded");
            assert!(matches!(failure.kind(), ErrorKind::Runtime { .. }), "{generation}: {failure}");
            assert!(statistics.to_string().contains("failures to map ahead: 1"), "{statistics}");
            assert!(statistics.thread_runs && statistics.ahead == 0, "{generation}, {function}");
            machine.simulation.set_faults(FaultPlan::none());
            // The thread continues after the next request.
            buffer.map(1..2).unwrap();
            wait_for(&buffer, ahead_is(2));
            assert_eq!(buffer.statistics().failures_ahead, 1, "{generation}");
            drop(buffer);
            machine.assert_empty();
        }
    }
}

#[test]
fn failed_rollback_ahead_quarantines_the_buffer() {
    let machine = Machine::new(Config::mi300x(1).with_generation(Generation::A));
    let buffer = new_buffer(&machine, 1);
    let plan = FaultPlan::none().fail("hsa_amd_vmem_set_access", 2, ERROR);
    machine.simulation.set_faults(plan.always("hsa_amd_vmem_unmap", ERROR));
    buffer.map(0..1).unwrap();
    wait_for(&buffer, |statistics| statistics.failures_ahead == 1);
    machine.simulation.set_faults(FaultPlan::none());
    let quarantine = machine.vmm.quarantined_ranges();
    let quarantine: Vec<_> = quarantine.iter().map(|entry| entry.address).collect();
    assert_eq!(quarantine, [buffer.address()]);
    assert_eq!((buffer.statistics().lost, buffer.state(1)), (0, Ok(PageState::Empty)));
    let error = buffer.map(1..2).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quarantined { .. }), "{error}");
    let error = buffer.read(0, &mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quarantined { .. }), "{error}");
}

#[test]
fn pages_ahead_are_released_when_memory_is_short() {
    for (generation, config) in generations() {
        let machine = Machine::new(config.with_vram(8 * PAGE as u64));
        let buffer = new_buffer(&machine, 3);
        buffer.map(0..2).unwrap();
        wait_for(&buffer, ahead_is(3));
        buffer.map(20..26).unwrap_or_else(|error| panic!("{generation}: eight pages fit: {error}"));
        assert_eq!(buffer.statistics().mapped, 8, "{generation}");
        wait_for(&buffer, |statistics| statistics.failures_ahead > 0);
        let error = buffer.map(40..41).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{generation}: {error}");
        buffer.unmap(0..2).unwrap();
        buffer.map(40..42).unwrap();
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn requested_pages_ahead_are_not_released() {
    for (generation, config) in generations() {
        let machine = Machine::new(config.with_vram(8 * PAGE as u64));
        let buffer = new_buffer(&machine, 3);
        buffer.map(0..2).unwrap();
        wait_for(&buffer, ahead_is(3));
        let error = buffer.map(2..10).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{generation}: {error}");
        let states: Vec<_> = (1..6).map(|page| buffer.state(page).unwrap()).collect();
        use PageState::{Ahead, Empty, Mapped};
        assert_eq!(states, [Mapped, Ahead, Ahead, Ahead, Empty], "{generation}");
        buffer.map(2..8).unwrap();
        buffer.write(4 * PAGE, &[7]).unwrap();
        assert_eq!(buffer.statistics().mapped, 8, "{generation}");
        drop(buffer);
        machine.assert_empty();
    }
}

/// Returns the number of threads with this name in this process.
fn count_threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter(|comm| comm.as_ref().is_ok_and(|comm| comm.trim() == name)).count()
}

/// Waits until this process has `expected` threads that map pages ahead.
#[track_caller]
fn wait_for_threads(expected: usize) {
    let begun = Instant::now();
    while count_threads("hsa-vmm ahead") != expected {
        assert!(begun.elapsed() < Duration::from_secs(60), "not {expected} threads");
    }
}

#[test]
fn thread_ends_with_the_buffer() {
    run_in_child(|| {
        for round in 0..30 {
            let machine = Machine::new(Config::mi300x(1));
            let buffer = new_buffer(&machine, 1 + round % 4);
            if round % 2 == 0 {
                buffer.map(0..round + 1).unwrap();
            }
            if round % 3 == 0 {
                wait_for(&buffer, |statistics| statistics.ahead > 0 || round % 2 == 1);
            }
            // A new thread sets its name late, and a joined thread stays listed for a moment.
            wait_for_threads(1);
            drop(buffer);
            machine.assert_empty();
            wait_for_threads(0);
        }
    });
}

#[test]
fn zero_page_buffers_never_map_pages_ahead() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let options = PagedBuffer::builder(16 * PAGE).with_page_size(PAGE).with_pages_ahead(3);
        let buffer =
            options.with_zero_page().reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        buffer.map(0..2).unwrap();
        wait_for(&buffer, |statistics| statistics.ready == 3);
        assert_eq!((buffer.statistics().ahead, buffer.statistics().zero), (0, 14), "{generation}");
        let mut byte = [1];
        buffer.read(2 * PAGE, &mut byte).unwrap();
        assert_eq!(byte, [0], "{generation}");
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn threads_that_map_and_unmap_do_not_deadlock() {
    within(Duration::from_secs(120), || {
        for (generation, config) in generations() {
            let machine = Machine::new(config);
            let buffer = new_buffer(&machine, 3);
            std::thread::scope(|scope| {
                for part in 0..3 {
                    let buffer = &buffer;
                    scope.spawn(move || {
                        for round in 0..60 {
                            let first = part * 20 + round % 7;
                            buffer.map(first..first + 2).unwrap();
                            buffer.write(first * PAGE, &[round as u8]).unwrap();
                            buffer.map(first + 2..first + 5).unwrap();
                            let mut byte = [0xff];
                            buffer.read(first * PAGE, &mut byte).unwrap();
                            assert_eq!(byte, [round as u8]);
                            buffer.unmap(first + 1..first + 5).unwrap();
                            buffer.unmap(first..first + 1).unwrap();
                        }
                    });
                }
                for _ in 0..30 {
                    let statistics = buffer.statistics();
                    // Each of the three threads maps at most five pages.
                    assert!(
                        statistics.mapped <= 15 && statistics.lost == 0,
                        "{generation}: {statistics}"
                    );
                    buffer.trim().unwrap();
                }
            });
            buffer.trim().unwrap();
            let statistics = buffer.statistics();
            assert_eq!(
                (statistics.mapped, statistics.ahead, statistics.maps, statistics.unmaps),
                (0, 0, 900, 900)
            );
            machine.vmm.check().unwrap();
            drop(buffer);
            machine.assert_empty();
        }
    });
}

/// A call by address can unmap a page that was mapped ahead. Mapping the page then maps new memory.
#[test]
fn map_replaces_page_ahead_unmapped_by_address() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = new_buffer(&machine, 2);
        buffer.map(0..1).unwrap();
        wait_for(&buffer, ahead_is(2));
        machine.vmm.unmap(buffer.address_of(1).unwrap(), PAGE).unwrap();
        buffer.map(1..3).unwrap();
        for page in 1..3 {
            buffer.write(page * PAGE, b"text").unwrap();
        }
        assert_eq!(buffer.statistics().mapped, 3, "{generation}");
        buffer.unmap(0..3).unwrap();
        drop(buffer);
        machine.assert_empty();
    }
}

/// Other calls also accept a page that was mapped ahead and then unmapped by its address.
#[test]
fn calls_accept_pages_ahead_unmapped_by_address() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let buffer = new_buffer(&machine, 2);
        let unmap = |page| machine.vmm.unmap(buffer.address_of(page).unwrap(), PAGE).unwrap();
        buffer.map(0..1).unwrap();
        wait_for(&buffer, ahead_is(2));
        unmap(1);
        buffer.trim().unwrap();
        assert_eq!(buffer.statistics().ahead, 0, "{generation}");
        let gpu = machine.gpu(0);
        let access_calls: [&dyn Fn() -> Result<(), Error>; 3] = [
            &|| buffer.grant(&[gpu], Access::ReadWrite),
            &|| buffer.access(gpu).map(drop),
            &|| buffer.revoke(&[gpu]),
        ];
        for call in access_calls {
            buffer.unmap(0..1).unwrap();
            buffer.map(0..1).unwrap();
            wait_for(&buffer, ahead_is(2));
            unmap(1);
            call().unwrap();
            buffer.trim().unwrap();
        }
        // An empty range maps nothing ahead.
        buffer.map(1..1).unwrap();
        buffer.map(4..5).unwrap();
        wait_for(&buffer, ahead_is(2));
        unmap(5);
        buffer.move_pages(0..1, &buffer, 5).unwrap();
        buffer.write(5 * PAGE, b"text").unwrap();
        unmap(6);
        buffer.unmap(4..6).unwrap();
        assert_eq!(buffer.statistics().ahead, 0, "{generation}");
        drop(buffer);
        machine.assert_empty();
    }
}

/// A forked child does not have the thread. The child must not wait for the thread, or for a lock that the thread held.
#[test]
fn forked_child_can_drop_and_exit() {
    run_in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let mut buffer = Some(new_buffer(&machine, 5));
        for round in 0..40 {
            let parent_buffer = buffer.as_ref().unwrap();
            let first = round % 30;
            parent_buffer.map(first..first + 1).unwrap();
            // The fork may happen in any state of the thread.
            let end = in_child(|| {
                let buffer = buffer.take().unwrap();
                let results = [
                    buffer.map(50..51),
                    buffer.unmap(first..first + 1),
                    buffer.trim(),
                    buffer.grant(&[machine.gpu(0)], Access::Read),
                    buffer.revoke(&[machine.gpu(0)]),
                    buffer.read(first * PAGE, &mut [0]),
                    buffer.write(first * PAGE, &[0]),
                    buffer.fill(first * PAGE, 0, 4),
                    buffer.zero_page_is_clean().map(drop),
                    buffer.state(0).map(drop),
                    buffer.move_pages(first..first + 1, &buffer, 51),
                    buffer.exchange_pages(first..first + 1, &buffer, 51),
                ];
                for (number, result) in results.into_iter().enumerate() {
                    let forked = |error: &Error| matches!(error.kind(), ErrorKind::Forked);
                    let is_forked = matches!(&result, Err(error) if forked(error));
                    assert!(is_forked, "{number}: {result:?}");
                }
                assert_eq!(buffer.statistics(), PagedStatistics::default());
                drop(buffer);
            });
            assert_eq!(end, End::Success, "round {round}");
            buffer.as_ref().unwrap().unmap(first..first + 1).unwrap();
        }
        drop(buffer);
        machine.assert_empty();
    });
}
