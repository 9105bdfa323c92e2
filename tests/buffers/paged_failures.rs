//! The runtime calls of operations on paged buffers fail. If only one call fails, the buffers do not change. If one
//! call and all later calls fail, pages can be lost, and the library reports them.

use crate::fault_injection::{
    ERROR, OUT_OF_RESOURCES, Operation, RuntimeState, Setup, configurations, fail_all_calls_from,
    fail_one_call,
};
use crate::machine::{KIB, Machine};
use crate::pausable::run_in_child;
use hsa_rocr::test;
use hsa_vmm::Access;
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::{ErrorKind, Problem};
use hsa_vmm::simulation::Config;

const PAGE: usize = 16 * KIB;
const PAGES: usize = 8;

/// Two buffers with some mapped pages. `with_zeros` has a zero page.
struct Buffers {
    plain: PagedBuffer,
    with_zeros: PagedBuffer,
    machine: Machine,
}

impl Setup for Buffers {
    type State = (Vec<PageState>, RuntimeState);

    fn new(config: &Config) -> Self {
        let machine = Machine::new(config.clone());
        let [plain, with_zeros] = [false, true].map(|has_zero_page| {
            let options = PagedBuffer::builder(PAGES * PAGE).with_page_size(PAGE);
            let options = if has_zero_page { options.with_zero_page() } else { options };
            let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
            buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
            buffer.map(1..4).unwrap();
            (1..4).for_each(|page| buffer.write(page * PAGE, &[page as u8 + 10; 9]).unwrap());
            buffer
        });
        Self { plain, with_zeros, machine }
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn state(&self) -> Self::State {
        let mut runtime = RuntimeState::of(&self.machine);
        // A buffer keeps memory that the runtime failed to release, and uses it for the next page.
        let ready: usize = self.buffers().iter().map(|buffer| buffer.statistics().ready).sum();
        runtime.usage.handles -= ready;
        runtime.usage.vram_used[0] -= (ready * PAGE) as u64;
        let buffers = self.buffers().into_iter();
        let states = buffers.flat_map(|buffer| (0..PAGES).map(|page| buffer.state(page).unwrap()));
        (states.collect(), runtime)
    }
}

impl Buffers {
    fn buffers(&self) -> [&PagedBuffer; 2] {
        [&self.plain, &self.with_zeros]
    }

    /// Checks that all zero pages, and those of pages 1 to 3 that are mapped, can be read. Unless pages were exchanged,
    /// also checks their contents.
    fn assert_contents(&self, exchanged: bool, context: &str) {
        for (number, buffer) in self.buffers().into_iter().enumerate() {
            for page in 0..PAGES {
                let mut bytes = [0xee; 9];
                let expected = match buffer.state(page).unwrap() {
                    PageState::Lost => continue,
                    PageState::Empty => {
                        assert!(number == 0, "{context}: page {page} does not show the zero page");
                        continue;
                    }
                    PageState::Zero => 0,
                    PageState::Mapped if (1..4).contains(&page) => page as u8 + 10,
                    PageState::Mapped | PageState::Ahead => continue,
                    state => panic!("{state:?}"),
                };
                buffer.read(page * PAGE, &mut bytes).unwrap_or_else(|e| panic!("{context}: {e}"));
                assert!(exchanged || bytes == [expected; 9], "{context}: page {page}: {bytes:?}");
            }
        }
    }

    fn close(self) {
        let Self { plain, with_zeros, machine } = self;
        drop((plain, with_zeros));
        machine.close();
    }
}

const EXCHANGE: &str = "exchange";

const OPERATIONS: &[(&str, Operation<Buffers>)] = &[
    ("map pages", |s| s.plain.map(4..7)),
    ("map pages over zeros", |s| s.with_zeros.map(4..7)),
    ("unmap pages", |s| s.plain.unmap(1..3)),
    ("unmap pages and map zeros", |s| s.with_zeros.unmap(2..4)),
    ("grant a peer", |s| s.plain.grant(&[s.machine.gpu(1)], Access::Read)),
    ("grant a peer at zeros", |s| s.with_zeros.grant(&[s.machine.gpu(1)], Access::ReadWrite)),
    ("change the CPU's access", |s| {
        s.with_zeros.grant(&[s.machine.cpu(0), s.machine.gpu(1)], Access::Read)
    }),
    ("revoke", |s| s.with_zeros.revoke(&[s.machine.gpu(0)])),
    ("move to the other buffer", |s| s.plain.move_pages(2..4, &s.with_zeros, 5)),
    ("move back", |s| s.with_zeros.move_pages(1..3, &s.plain, 5)),
    ("move within a buffer", |s| s.with_zeros.move_pages(1..3, &s.with_zeros, 6)),
    (EXCHANGE, |s| s.plain.exchange_pages(1..3, &s.with_zeros, 2)),
    ("make a buffer", |s| {
        let options = PagedBuffer::builder(3 * PAGE).with_page_size(PAGE).with_zero_page();
        options.reserve(&s.machine.vmm, &s.machine.shareable_on(1)).map(drop)
    }),
];

/// Returns whether an operation succeeds although this function fails.
fn tolerates_failure(name: &str, function: &str) -> bool {
    match function {
        "hsa_signal_destroy" | "hsa_amd_memory_unlock" => true,
        // The buffer keeps the memory for the next page, or until the buffer is dropped.
        "hsa_amd_vmem_handle_release" => name.starts_with("unmap") || name.starts_with("make"),
        // The "make" operation calls the first two functions only to drop a value, which returns no error. Without
        // aligned reservations, the library repeats the third call until it succeeds.
        "hsa_amd_vmem_unmap" | "hsa_amd_vmem_address_free" | "hsa_amd_vmem_address_reserve" => {
            name.starts_with("make")
        }
        _ => false,
    }
}

#[test]
fn one_failure_changes_nothing() {
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        // The status matters only for the creation of memory.
        let statuses = |configuration: &str| {
            if configuration == "generation C" { &[ERROR, OUT_OF_RESOURCES][..] } else { &[ERROR] }
        };
        // By default, tests only every third configuration. The configurations take long, and behave alike.
        let selected = configurations().into_iter().step_by(if test::is_long() { 1 } else { 3 });
        let failures = fail_one_call(selected, OPERATIONS, statuses, |mut failed| {
            if failed.result.is_ok() {
                let is_tolerated = tolerates_failure(failed.name, failed.function);
                assert!(is_tolerated, "{}: the operation succeeded", failed.context);
            } else {
                failed.assert_unchanged();
                failed.setup.assert_contents(false, &failed.context);
                failed.repeat();
            }
            failed.setup.close();
        });
        println!("{failures} failures");
        assert!(failures > test::count_to_run(1000), "only {failures}");
    });
}

#[test]
fn repeated_failures_report_lost_pages() {
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        let (mut losses, mut quarantined) = (0, 0);
        // Tests only every second configuration. The configurations take long, and behave alike.
        let selected = configurations().into_iter().step_by(2);
        let runs = fail_all_calls_from(selected, OPERATIONS, |mut failed| {
            let (name, context, result) = (failed.name, &failed.context, &failed.result);
            let in_quarantine = !failed.setup.machine.vmm.quarantined_ranges().is_empty();
            quarantined += usize::from(in_quarantine);
            let lost_pages: usize =
                failed.setup.buffers().iter().map(|buffer| buffer.statistics().lost).sum();
            if lost_pages > 0 {
                losses += 1;
                let reported = matches!(&result, Err(error) if matches!(error.kind(), ErrorKind::PagesLost { .. }));
                assert!(reported, "{context}: {result:?}");
                let repeated = (failed.operation)(&mut failed.setup).unwrap_err();
                let is_rejected = matches!(
                    repeated.kind(),
                    ErrorKind::InvalidArgument { problem: Problem::PageLost, .. }
                        | ErrorKind::Quarantined { .. }
                );
                assert!(is_rejected || name.starts_with("move"), "{context}: {repeated}");
            }
            if !in_quarantine {
                let exchanged = name == EXCHANGE && result.is_ok();
                failed.setup.assert_contents(exchanged, context);
                failed.setup.close();
            }
        });
        println!("{runs} runs: {losses} with lost pages, {quarantined} with quarantined ranges");
        assert!(runs > 300 && losses > 20 && quarantined > 5, "{runs}, {losses}, {quarantined}");
    });
}
