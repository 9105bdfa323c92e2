//! Every native call on the way of pausing and resuming fails: the buffer is as it was.

use crate::machine::{Machine, eras, without_cpu_mapping};
use crate::pausable::{alone, contents, filled, pattern};
use crate::process::permissions;
use hsa_vmm::buffer::{BufferError, Contents, PausableBuffer};
use hsa_vmm::simulation::{Config, Era, FaultPlan, Page, Usage};
use hsa_vmm::vmm::MappingInfo;
use hsa_vmm::{Access, Address, VmmError};

const SIZE: usize = 5000;
const ERROR: u32 = 0x1000;
const OUT_OF_RESOURCES: u32 = 0x1008;

/// Two buffers: one that is resident, and one that is paused.
struct Stage {
    resident: PausableBuffer,
    paused: PausableBuffer,
    machine: Machine,
}

impl Stage {
    fn new(config: &Config) -> Self {
        let machine = Machine::new(config.clone());
        let (resident, mut paused) = (filled(&machine, SIZE), filled(&machine, SIZE));
        paused.pause(Contents::Save).unwrap();
        Self { resident, paused, machine }
    }

    /// Ends with both resident, and their contents there unless they were to be dropped.
    fn assert_contents(&mut self, dropped: bool, when: &str) {
        for (buffer, kept) in [(&mut self.resident, !dropped), (&mut self.paused, true)] {
            if buffer.is_paused() {
                buffer.resume().unwrap_or_else(|error| panic!("{when}, and then: {error}"));
            }
            assert!(!kept || contents(buffer) == pattern(SIZE, 1), "{when}: the contents");
            for agent in [self.machine.cpu(0), self.machine.gpu(0)] {
                let access = self.machine.vmm.get_access(agent, buffer.address());
                assert_eq!(access, Ok(buffer.access(agent)), "{when}");
            }
        }
    }

    fn end(self, when: &str) {
        let Self { resident, paused, machine } = self;
        drop((resident, paused));
        assert_eq!(machine.vmm.quarantine(), [], "{when}");
        machine.close();
    }
}

/// What must not change.
#[derive(Debug, PartialEq)]
struct State {
    buffers: Vec<(bool, bool, usize, Address)>,
    mappings: Vec<MappingInfo>,
    pages: Vec<Option<Page>>,
    usage: Usage,
    quarantined: usize,
    process: Vec<String>,
}

impl State {
    fn of(Stage { resident, paused, machine }: &Stage) -> Self {
        machine.vmm.check().unwrap();
        let mappings = machine.vmm.mappings();
        let page = |it: &MappingInfo| machine.simulation.page(0, it.address.get());
        let process = machine.vmm.reservations().into_iter().flat_map(|(address, size)| {
            let pieces = permissions(address.get(), size).expect("no hole");
            // Whether addresses without access are shared with anybody does not matter.
            pieces.into_iter().map(|(start, end, what)| format!("{start:x} {end:x} {}", &what[..3]))
        });
        Self {
            buffers: [resident, paused]
                .map(|it| (it.is_paused(), it.holds_addresses(), it.saved(), it.address()))
                .into(),
            pages: mappings.iter().map(page).collect(),
            process: process.collect(),
            mappings,
            usage: machine.usage_but_for_lingering(),
            quarantined: machine.vmm.quarantine().len(),
        }
    }
}

type Act = fn(&mut Stage) -> Result<(), BufferError>;

const DROPS: &str = "pause and drop";

const ACTS: &[(&str, Act)] = &[
    ("pause and save", |s| s.resident.pause(Contents::Save)),
    (DROPS, |s| s.resident.pause(Contents::Drop)),
    ("resume", |s| s.paused.resume()),
    ("resume anywhere", |s| s.paused.resume_anywhere().map(drop)),
    ("let a peer in", |s| s.resident.grant(&[s.machine.gpu(1)], Access::Read)),
    ("let nobody in but the CPU", |s| s.resident.grant(&[s.machine.gpu(0)], Access::None)),
    ("make one", |s| PausableBuffer::create(&s.machine.vmm, SIZE, &s.machine.on(1)).map(drop)),
];

/// Calls whose failure an operation survives.
fn is_survived(name: &str, function: &str) -> bool {
    match function {
        // What it costs is a signal, or memory of this process that stays pinned.
        "hsa_signal_destroy" | "hsa_amd_memory_unlock" => true,
        // Of what is only there to be dropped.
        "hsa_amd_vmem_handle_release" | "hsa_amd_vmem_unmap" | "hsa_amd_vmem_address_free" => {
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
    alone(|| {
        let (mut failures, mut lost) = (0, 0);
        for (ground, config) in grounds() {
            for &(name, act) in ACTS {
                for status in [ERROR, OUT_OF_RESOURCES] {
                    for call in 1.. {
                        let mut stage = Stage::new(&config);
                        let simulation = stage.machine.simulation.clone();
                        let before = State::of(&stage);
                        simulation.set_faults(FaultPlan::none().fail_any(call, status));
                        let answer = act(&mut stage);
                        let failed = simulation.failed_calls();
                        simulation.set_faults(FaultPlan::none());
                        let when = format!("{ground}: {name}, call {call} answers {status:#x}");
                        let Some(&(function, _)) = failed.first() else {
                            answer.unwrap_or_else(|error| panic!("{when}: {error}"));
                            break;
                        };
                        let when = format!("{when}: {function}");
                        failures += 1;
                        match answer {
                            Ok(()) => assert!(is_survived(name, function), "{when}: it came about"),
                            Err(BufferError::AddressLost { .. }) => {
                                assert!(name.starts_with("pause") && ground == "era B", "{when}");
                                assert!(function.contains("address_reserve"), "{when}");
                                assert!(!stage.resident.holds_addresses(), "{when}");
                                assert_eq!(stage.machine.used_by(0), 0, "{when}");
                                stage.assert_contents(name == DROPS, &when);
                                lost += 1;
                            }
                            Err(error) => {
                                assert_eq!(State::of(&stage), before, "{when}: {error}");
                                act(&mut stage).unwrap_or_else(|e| panic!("{when}, again: {e}"));
                                stage.assert_contents(name == DROPS, &when);
                            }
                        }
                        stage.end(&when);
                    }
                }
            }
        }
        println!("{failures} failures, {lost} lost addresses");
        assert!(failures > 400 && lost == 4, "{failures} failures, {lost} lost addresses");
    });
}

/// From some call on nothing works any more, not even taking back what was done; then it does.
#[test]
fn a_runtime_that_goes_on_failing_loses_no_contents() {
    alone(|| {
        let (mut ends, mut kept) = (0, 0);
        for (ground, config) in grounds() {
            for &(name, act) in ACTS {
                for call in 1.. {
                    let when = format!("{ground}: {name}, from call {call} on everything fails");
                    let mut stage = Stage::new(&config);
                    let simulation = stage.machine.simulation.clone();
                    simulation.set_faults(FaultPlan::none().fail_any_from(call, ERROR));
                    let answer = act(&mut stage);
                    let failed = simulation.failed_calls();
                    simulation.set_faults(FaultPlan::none());
                    stage.machine.vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
                    if failed.is_empty() {
                        break;
                    }
                    ends += 1;
                    let quarantined = |error: &BufferError| {
                        matches!(error, BufferError::Vmm(VmmError::Quarantined { .. }))
                    };
                    let quarantine = stage.machine.vmm.quarantine();
                    let places = [stage.resident.address(), stage.paused.address()];
                    if quarantine.iter().all(|entry| !places.contains(&entry.address)) {
                        // Paused against its will, it has kept the memory and what is in it.
                        let lost = matches!(answer, Err(BufferError::AddressLost { .. }));
                        let fails = answer.is_err() && !lost;
                        kept += usize::from(fails && stage.resident.is_paused());
                        stage.assert_contents(name == DROPS && !fails, &when);
                        // What was only there for a copy may be in quarantine.
                        if quarantine.is_empty() {
                            stage.end(&when);
                        }
                    } else {
                        // Nothing of it is used any more, and nobody waits for anything.
                        let again = act(&mut stage);
                        assert!(
                            answer.as_ref().err().is_some_and(quarantined)
                                || again.as_ref().err().is_some_and(quarantined)
                                || name.starts_with("make"),
                            "{when}: {answer:?}, then {again:?}"
                        );
                    }
                }
            }
        }
        println!("{ends} runtimes that failed for good, {kept} buffers that kept their memory");
        assert!(ends > 200 && kept > 0, "{ends}, {kept}");
    });
}
