//! Every native call on the way fails: the buffer is as it was, and nothing is lost.

use crate::machine::{KIB, Machine, eras, without_cpu_mapping};
use hsa_vmm::buffer::BufferError;
use hsa_vmm::simulation::{Config, Era, FaultPlan, Page, Usage};
use hsa_vmm::vmm::MappingInfo;
use hsa_vmm::{Access, GrowableBuffer, GrowableVec, RingBuffer, VmmError};

const STEP: usize = 16 * KIB;
const ERROR: u32 = 0x1000;
const OUT_OF_RESOURCES: u32 = 0x1008;

/// Two buffers and a ring, with something in them.
struct Stage {
    /// Two steps of six, of which four are in the first reservation.
    small: GrowableVec<u8>,
    /// Six of six.
    full: GrowableBuffer,
    ring: RingBuffer,
    machine: Machine,
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|byte| (byte % 253) as u8 + 1).collect()
}

impl Stage {
    fn new(config: &Config) -> Self {
        let machine = Machine::new(config.clone());
        let agents = [machine.cpu(0), machine.gpu(0)];
        let buffer = |steps: usize| {
            let mut buffer = machine.extended(STEP, &[2]);
            buffer.grant(&agents, Access::ReadWrite).unwrap();
            buffer.grow(steps * STEP).unwrap();
            buffer.write(0, &text(steps * STEP)).unwrap();
            buffer
        };
        let (small, full) = (GrowableVec::new(buffer(2)), buffer(6));
        let ring = RingBuffer::of(STEP).times(3).map(&machine.vmm, &machine.on(1)).unwrap();
        ring.grant(&[machine.cpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
        ring.write(0, &text(STEP)).unwrap();
        Self { small, full, ring, machine }
    }

    /// Whether what is left of the buffers holds what was in it.
    fn assert_contents(&self, when: &str) {
        for buffer in [self.small.buffer(), &self.full] {
            let known = buffer.size().min(6 * STEP);
            let mut found = vec![0; known];
            buffer.read(0, &mut found).unwrap_or_else(|error| panic!("{when}: {error}"));
            assert!(found == text(known), "{when}: the contents have changed");
        }
        let mut found = vec![0; STEP];
        self.ring.read(STEP as u64, &mut found).unwrap();
        assert!(found == text(STEP), "{when}: the ring's contents have changed");
    }
}

/// What must not change.
#[derive(Debug, PartialEq)]
struct State {
    sizes: [(usize, usize, usize); 2],
    mappings: Vec<MappingInfo>,
    pages: Vec<Option<Page>>,
    usage: Usage,
    quarantined: usize,
    process: Vec<(usize, usize, String)>,
}

impl State {
    fn of(stage: &Stage) -> Self {
        let Stage { small, full, machine, .. } = stage;
        machine.vmm.check().unwrap();
        let mappings = machine.vmm.mappings();
        let page = |gpu| move |it: &MappingInfo| (gpu, it.address.get());
        let places = mappings.iter().map(page(0)).chain(mappings.iter().map(page(1)));
        let pages = places.map(|(gpu, address)| machine.simulation.page(gpu, address)).collect();
        let mut process = Vec::new();
        for (address, size) in machine.vmm.reservations() {
            let pieces = crate::process::permissions(address.get(), size).expect("no hole");
            // Whether addresses without access are shared with anybody does not matter.
            for (start, end, what) in pieces {
                match process.last_mut() {
                    Some((_, last, same)) if *last == start && what.starts_with(same as &str) => {
                        *last = end;
                    }
                    _ => process.push((start, end, what[..3].to_owned())),
                }
            }
        }
        Self {
            sizes: [small.buffer(), full].map(|it| (it.size(), it.mapped(), it.maximum())),
            mappings,
            pages,
            usage: machine.usage_but_for_lingering(),
            quarantined: machine.vmm.quarantine().len(),
            process,
        }
    }
}

type Act = fn(&mut Stage) -> Result<(), BufferError>;

const ACTS: &[(&str, Act)] = &[
    ("grow by one step", |s| s.small.buffer_mut().grow(1)),
    ("grow into the next reservation", |s| s.small.buffer_mut().grow(4 * STEP)),
    ("add values", |s| s.small.extend(&text(3 * STEP)[2 * STEP..])),
    ("shrink by one step", |s| s.full.shrink(STEP)),
    ("shrink to the end of a reservation", |s| s.full.shrink(2 * STEP)),
    ("shrink into the first reservation", |s| s.full.shrink(4 * STEP + 1)),
    ("shrink to nothing", |s| s.full.resize(0)),
    ("let a peer in", |s| s.full.grant(&[s.machine.gpu(1)], Access::Read)),
    ("change what the CPU may", |s| {
        s.full.grant(&[s.machine.cpu(0), s.machine.gpu(0)], Access::Read)
    }),
    ("let a peer in and change", |s| {
        s.full.grant(&[s.machine.gpu(1), s.machine.cpu(0)], Access::Read)
    }),
    ("revoke", |s| s.full.revoke(&[s.machine.gpu(0)])),
    ("make a buffer and fill it", |s| {
        let options = GrowableBuffer::of(4 * STEP).in_steps_of(STEP);
        let mut buffer = options.reserve(&s.machine.vmm, &s.machine.on(1))?;
        buffer.grant(&[s.machine.gpu(1)], Access::ReadWrite)?;
        buffer.grow(3 * STEP)
    }),
    ("make a ring", |s| {
        RingBuffer::of(STEP).times(3).map(&s.machine.vmm, &s.machine.on(1)).map(drop)
    }),
    ("let a peer at the ring", |s| s.ring.grant(&[s.machine.gpu(0)], Access::ReadWrite)),
    ("revoke the ring", |s| s.ring.revoke(&[s.machine.gpu(1)])),
];

/// Calls whose failure an operation survives.
fn is_survived(name: &str, function: &str) -> bool {
    match function {
        // The memory is kept for the next growth, or for the end of all.
        "hsa_amd_vmem_handle_release" => name.starts_with("shrink") || name.starts_with("make"),
        // Of what is only there to be dropped.
        "hsa_amd_vmem_unmap" | "hsa_amd_vmem_address_free" => name.starts_with("make"),
        // Before aligned reservations it is tried until it works.
        "hsa_amd_vmem_address_reserve" => name.starts_with("make"),
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
    for (number, (ground, config)) in grounds().into_iter().enumerate() {
        // What the runtime answers makes the less difference.
        let statuses = if number == 0 { &[ERROR, OUT_OF_RESOURCES][..] } else { &[ERROR] };
        for &(name, act) in ACTS {
            for &status in statuses {
                for call in 1.. {
                    let when = format!("{ground}: {name}, call {call} answers {status:#x}");
                    let mut stage = Stage::new(&config);
                    let simulation = stage.machine.simulation.clone();
                    let before = State::of(&stage);
                    simulation.set_faults(FaultPlan::none().fail_any(call, status));
                    let answer = act(&mut stage);
                    let failed = simulation.failed_calls();
                    simulation.set_faults(FaultPlan::none());
                    let Some(&(function, _)) = failed.first() else {
                        answer.unwrap_or_else(|error| panic!("{when}: {error}"));
                        assert!(call > 1, "{when}: it calls nothing");
                        break;
                    };
                    failures += 1;
                    let when = format!("{when}: {function}");
                    match answer {
                        Ok(()) => assert!(is_survived(name, function), "{when}: it came about"),
                        Err(error) => {
                            let lost =
                                matches!(error, BufferError::Vmm(VmmError::Quarantined { .. }));
                            assert!(!lost, "{when}: {error}");
                            assert_eq!(State::of(&stage), before, "{when}: {error}");
                            stage.assert_contents(&when);
                            act(&mut stage)
                                .unwrap_or_else(|error| panic!("{when}, again: {error}"));
                        }
                    }
                    let Stage { small, full, ring, machine } = stage;
                    drop((small, full, ring));
                    if name.starts_with("make") {
                        machine.close();
                    } else {
                        machine.assert_empty();
                    }
                }
            }
        }
    }
    println!("{failures} failures");
    assert!(failures > 800, "only {failures}");
}

/// From some call on nothing works any more, not even taking back what was done; then it does.
#[test]
fn a_runtime_that_goes_on_failing_loses_no_contents() {
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
                let vmm = stage.machine.vmm.clone();
                vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
                if failed.is_empty() {
                    break;
                }
                if vmm.quarantine().is_empty() {
                    stage.assert_contents(&when);
                    if answer.is_err() && stage.full.size() == 6 * STEP {
                        act(&mut stage).unwrap_or_else(|error| panic!("{when}, again: {error}"));
                    }
                    // Whatever was left behind the ends is gone with the next change of size.
                    for buffer in [stage.small.buffer_mut(), &mut stage.full] {
                        let steps = buffer.mapped() / STEP;
                        buffer.resize((steps + 1) % 2 * STEP).unwrap();
                        buffer.resize(2 * STEP).unwrap();
                    }
                    // Two of each buffer, three of the ring. What could not be dropped is there
                    // until the end.
                    if !name.starts_with("make") {
                        assert_eq!(vmm.usage().mappings, 2 + 2 + 3, "{when}");
                    }
                }
                let Stage { small, full, ring, machine } = stage;
                drop((small, full, ring, vmm));
                if machine.vmm.quarantine().is_empty() {
                    machine.close();
                }
            }
        }
    }
}
