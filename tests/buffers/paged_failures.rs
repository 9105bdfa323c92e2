//! Every native call on the way of mapping, unmapping and moving pages fails: the buffers are as
//! they were, or the pages that are lost are known.

use crate::machine::{KIB, Machine, eras, without_cpu_mapping};
use crate::process::permissions;
use hsa_vmm::buffer::{BufferError, PageState};
use hsa_vmm::simulation::{Config, Era, FaultPlan, Page, Usage};
use hsa_vmm::vmm::MappingInfo;
use hsa_vmm::{Access, PagedBuffer, VmmError};

const PAGE: usize = 16 * KIB;
const PAGES: usize = 8;
const ERROR: u32 = 0x1000;
const OUT_OF_RESOURCES: u32 = 0x1008;

/// Two buffers with some pages mapped, the second one with zeros behind the others.
struct Stage {
    plain: PagedBuffer,
    zero: PagedBuffer,
    machine: Machine,
}

impl Stage {
    fn new(config: &Config) -> Self {
        let machine = Machine::new(config.clone());
        let [plain, zero] = [false, true].map(|zero| {
            let options = PagedBuffer::of(PAGES * PAGE).in_pages_of(PAGE);
            let options = if zero { options.with_zero_page() } else { options };
            let buffer = options.reserve(&machine.vmm, &machine.on(0)).unwrap();
            buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
            buffer.map(1..4).unwrap();
            (1..4).for_each(|page| buffer.write(page * PAGE, &[page as u8 + 10; 9]).unwrap());
            buffer
        });
        Self { plain, zero, machine }
    }

    fn buffers(&self) -> [&PagedBuffer; 2] {
        [&self.plain, &self.zero]
    }

    /// Whether every page has what it should have, if it is not lost.
    fn assert_contents(&self, exchanged: bool, when: &str) {
        for (number, buffer) in self.buffers().into_iter().enumerate() {
            for page in 0..PAGES {
                let mut bytes = [0xee; 9];
                let expected = match buffer.state(page).unwrap() {
                    PageState::Lost => continue,
                    PageState::Empty => {
                        assert!(number == 0, "{when}: page {page} shows nothing");
                        continue;
                    }
                    PageState::Zero => 0,
                    PageState::Mapped if (1..4).contains(&page) => page as u8 + 10,
                    PageState::Mapped | PageState::Ahead => continue,
                };
                buffer.read(page * PAGE, &mut bytes).unwrap_or_else(|e| panic!("{when}: {e}"));
                assert!(exchanged || bytes == [expected; 9], "{when}: page {page}: {bytes:?}");
            }
        }
    }
}

/// What must not change.
#[derive(Debug, PartialEq)]
struct State {
    pages: Vec<PageState>,
    mappings: Vec<MappingInfo>,
    entries: Vec<Option<Page>>,
    usage: Usage,
    quarantined: usize,
    process: Vec<String>,
}

impl State {
    fn of(stage: &Stage) -> Self {
        let machine = &stage.machine;
        machine.vmm.check().unwrap();
        let mappings = machine.vmm.mappings();
        let entry =
            |it: &MappingInfo| [0, 1].map(|gpu| machine.simulation.page(gpu, it.address.get()));
        let process = machine.vmm.reservations().into_iter().flat_map(|(address, size)| {
            let pieces = permissions(address.get(), size).expect("no hole");
            let mut all: Vec<(usize, usize, String)> = Vec::new();
            // Whether addresses without access are shared with anybody does not matter.
            for (start, end, what) in pieces {
                match all.last_mut() {
                    Some((_, last, same)) if *last == start && what.starts_with(same as &str) => {
                        *last = end;
                    }
                    _ => all.push((start, end, what[..3].to_owned())),
                }
            }
            all.into_iter().map(|(start, end, what)| format!("{start:x} {end:x} {what}"))
        });
        let mut usage = machine.usage_but_for_lingering();
        // Memory that the runtime would not give back is kept for the next page.
        let ready: usize = stage.buffers().iter().map(|buffer| buffer.statistics().ready).sum();
        usage.handles -= ready;
        usage.vram_used[0] -= (ready * PAGE) as u64;
        let states = stage.buffers().into_iter();
        let states = states.flat_map(|it| (0..PAGES).map(|page| it.state(page).unwrap()));
        Self {
            pages: states.collect(),
            entries: mappings.iter().flat_map(entry).collect(),
            process: process.collect(),
            mappings,
            usage,
            quarantined: machine.vmm.quarantine().len(),
        }
    }
}

type Act = fn(&Stage) -> Result<(), BufferError>;

const EXCHANGE: &str = "exchange";

const ACTS: &[(&str, Act)] = &[
    ("map a run", |s| s.plain.map(4..7)),
    ("map a run over zeros", |s| s.zero.map(4..7)),
    ("unmap a run", |s| s.plain.unmap(1..3)),
    ("unmap a run and lay zeros", |s| s.zero.unmap(2..4)),
    ("let a peer in", |s| s.plain.grant(&[s.machine.gpu(1)], Access::Read)),
    ("let a peer in at zeros", |s| s.zero.grant(&[s.machine.gpu(1)], Access::ReadWrite)),
    ("change what the CPU may", |s| {
        s.zero.grant(&[s.machine.cpu(0), s.machine.gpu(1)], Access::Read)
    }),
    ("revoke", |s| s.zero.revoke(&[s.machine.gpu(0)])),
    ("move to the other", |s| s.plain.move_pages(2..4, &s.zero, 5)),
    ("move back", |s| s.zero.move_pages(1..3, &s.plain, 5)),
    ("move within", |s| s.zero.move_pages(1..3, &s.zero, 6)),
    (EXCHANGE, |s| s.plain.exchange_pages(1..3, &s.zero, 2)),
    ("make one", |s| {
        let options = PagedBuffer::of(3 * PAGE).in_pages_of(PAGE).with_zero_page();
        options.reserve(&s.machine.vmm, &s.machine.on(1)).map(drop)
    }),
];

/// Calls whose failure an operation survives.
fn is_survived(name: &str, function: &str) -> bool {
    match function {
        "hsa_signal_destroy" | "hsa_amd_memory_unlock" => true,
        // The memory is kept for the next page, or for the end of all.
        "hsa_amd_vmem_handle_release" => name.starts_with("unmap") || name.starts_with("make"),
        // Of what is only there to be dropped; before aligned reservations it is tried again.
        "hsa_amd_vmem_unmap" | "hsa_amd_vmem_address_free" | "hsa_amd_vmem_address_reserve" => {
            name.starts_with("make")
        }
        _ => false,
    }
}

fn grounds() -> Vec<(&'static str, Config)> {
    let mut grounds = eras();
    grounds.push(("6.1", Config::mi300x(2).with_era(Era::A).with_extension(4)));
    let by_runtime = without_cpu_mapping(Config::mi300x(2).with_era(Era::A));
    grounds.push(("era A, the CPU by the runtime", by_runtime));
    grounds
}

#[test]
fn one_failure_changes_nothing() {
    let mut failures = 0;
    for (ground, config) in grounds() {
        for &(name, act) in ACTS {
            // Which status it is makes no difference but to memory that is made.
            let statuses: &[u32] =
                if ground == "era C" { &[ERROR, OUT_OF_RESOURCES] } else { &[ERROR] };
            for &status in statuses {
                for call in 1.. {
                    let when = format!("{ground}: {name}, call {call} answers {status:#x}");
                    let stage = Stage::new(&config);
                    let simulation = stage.machine.simulation.clone();
                    let before = State::of(&stage);
                    simulation.set_faults(FaultPlan::none().fail_any(call, status));
                    let answer = act(&stage);
                    let failed = simulation.failed_calls();
                    simulation.set_faults(FaultPlan::none());
                    let Some(&(function, _)) = failed.first() else {
                        answer.unwrap_or_else(|error| panic!("{when}: {error}"));
                        break;
                    };
                    let when = format!("{when}: {function}");
                    failures += 1;
                    match answer {
                        Ok(()) => assert!(is_survived(name, function), "{when}: it came about"),
                        Err(error) => {
                            assert_eq!(State::of(&stage), before, "{when}: {error}");
                            stage.assert_contents(false, &when);
                            act(&stage).unwrap_or_else(|e| panic!("{when}, then again: {e}"));
                        }
                    }
                    let Stage { plain, zero, machine } = stage;
                    drop((plain, zero));
                    machine.close();
                }
            }
        }
    }
    println!("{failures} failures");
    assert!(failures > 1000, "only {failures}");
}

/// From some call on nothing works any more, not even taking back what was done; then it does.
#[test]
fn what_a_runtime_that_goes_on_failing_takes_is_known() {
    let (mut ends, mut lost, mut quarantined) = (0, 0, 0);
    for (ground, config) in grounds() {
        for &(name, act) in ACTS {
            for call in 1.. {
                let when = format!("{ground}: {name}, from call {call} on everything fails");
                let stage = Stage::new(&config);
                let simulation = stage.machine.simulation.clone();
                simulation.set_faults(FaultPlan::none().fail_any_from(call, ERROR));
                let answer = act(&stage);
                let failed = simulation.failed_calls();
                simulation.set_faults(FaultPlan::none());
                stage.machine.vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
                if failed.is_empty() {
                    break;
                }
                ends += 1;
                let in_quarantine = !stage.machine.vmm.quarantine().is_empty();
                quarantined += usize::from(in_quarantine);
                let missing: usize = stage.buffers().iter().map(|it| it.statistics().lost).sum();
                if missing > 0 {
                    lost += 1;
                    let told = matches!(answer, Err(BufferError::PagesLost { .. }));
                    assert!(told, "{when}: {answer:?}");
                    let again = act(&stage).unwrap_err();
                    let refused = matches!(
                        again,
                        BufferError::PageLost { .. }
                            | BufferError::Vmm(VmmError::Quarantined { .. })
                    );
                    assert!(refused || name.starts_with("move"), "{when}: {again}");
                }
                if !in_quarantine {
                    let exchanged = name == EXCHANGE && answer.is_ok();
                    stage.assert_contents(exchanged, &when);
                    let Stage { plain, zero, machine } = stage;
                    drop((plain, zero));
                    machine.close();
                }
            }
        }
    }
    println!("{ends} runtimes that failed: {lost} lost pages, {quarantined} quarantines");
    assert!(ends > 300 && lost > 20 && quarantined > 5, "{ends}, {lost}, {quarantined}");
}
