//! The runtime fails at every call it can fail at, and nothing comes of it: whatever was asked
//! for fails with an error, and the state is what it was before, or is known to be lost.

mod machine;
mod process;

use hsa_vmm::simulation::{Config, Era, FaultPlan, GpuPermissions};
use hsa_vmm::vmm::{MappingInfo, Problem, Usage};
use hsa_vmm::{Access, Address, AgentId, Handle, HandleType, Reservation, VmmError};
use machine::{Library, Machine, access, at, failing, with_two_cpus, without_cpu_mapping};
use std::cell::RefCell;
use std::os::fd::OwnedFd;

const ERROR: u32 = 0x1000;
const INVALID_ALLOCATION: u32 = 0x1003;
const OUT_OF_RESOURCES: u32 = 0x1008;

/// "For ever", in calls.
const EVER: u64 = 400;

/// Two reservations and what is in them: aliases, an agent that has lost its access again, and
/// memory that only its mapping keeps alive.
struct Scene {
    machine: Machine,
    /// Eight granules, of which the first five are mapped in four mappings.
    used: Address,
    /// Two granules with nothing in them.
    empty: Address,
    spare: Handle,
    shared: OwnedFd,
    handles: RefCell<Vec<Handle>>,
}

const MAPPED: usize = 5;

impl Scene {
    fn new(config: &Config) -> Self {
        let mut config = config.clone().with_gpu_permissions(GpuPermissions::Enforced);
        config.gpus.truncate(2);
        let machine = Machine::new(config);
        let granule = machine.granule();
        let (used, empty) = (machine.reserve(8 * granule), machine.reserve(2 * granule));
        let [a, b, spare] = [0, 1, 0].map(|gpu| machine.create(gpu, granule));
        let double = machine.create(0, 2 * granule);
        // Everything is touched once, so that the runtime makes no more files later on.
        for (index, handle) in [a, b, spare, double].into_iter().enumerate() {
            machine.map(used, granule, handle);
            machine.grant(used, granule, machine.cpu(0), Access::ReadWrite);
            machine.vmm.write(used, &[index as u8 + 1; 16]).unwrap();
            machine.vmm.unmap(used, granule).unwrap();
        }
        machine.map(used, granule, a);
        machine.map(at(used, granule), granule, b);
        machine.map(at(used, 2 * granule), 2 * granule, double);
        machine.map(at(used, 4 * granule), granule, a);
        let [cpu, gpu, peer] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
        let both = [access(cpu, Access::ReadWrite), access(gpu, Access::ReadWrite)];
        machine.vmm.set_access(used, granule, &both).unwrap();
        let crossed = [access(gpu, Access::Read), access(peer, Access::ReadWrite)];
        machine.vmm.set_access(at(used, granule), granule, &crossed).unwrap();
        machine.grant(at(used, 2 * granule), 2 * granule, cpu, Access::Read);
        for was in [Access::ReadWrite, Access::None] {
            let lost = [access(cpu, was), access(gpu, was)];
            machine.vmm.set_access(at(used, 4 * granule), granule, &lost).unwrap();
        }
        machine.vmm.release(b).unwrap();
        let file = HandleType::PosixFileDescriptor;
        let shared = machine.vmm.export_to_shareable_handle(spare, file, 0).unwrap();
        let handles = RefCell::new(vec![a, spare, double]);
        Self { machine, used, empty, spare, shared, handles }
    }

    fn granule(&self) -> usize {
        self.machine.granule()
    }

    fn mapped(&self) -> usize {
        MAPPED * self.granule()
    }

    /// Everything gone, and nothing left in the runtime.
    fn tear_down(self, when: &str) {
        let vmm = &self.machine.vmm;
        for mapping in vmm.mappings() {
            vmm.unmap(mapping.address, mapping.size).unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        for &handle in self.handles.borrow().iter() {
            vmm.release(handle).unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        for (address, size) in vmm.reservations() {
            vmm.address_free(address, size).unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        vmm.check().unwrap_or_else(|e| panic!("{when}: {e}"));
        let usage = self.machine.simulation.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0), "{when}");
        assert_eq!(usage.vram_used, [0, 0], "{when}");
    }
}

/// A GPU's page-table entry: readable, writable, offset in the handle.
type Entry = Option<(bool, bool, u64)>;

/// What must not change.
#[derive(Debug, PartialEq)]
struct State {
    reservations: Vec<(Address, usize)>,
    mappings: Vec<MappingInfo>,
    usage: Usage,
    access: Vec<(Address, AgentId, Access)>,
    /// Of each mapping and GPU: whether it can read and write.
    pages: Vec<(Address, usize, Entry)>,
    /// What this process may do where.
    process: Vec<(usize, usize, String)>,
    runtime: (usize, usize, usize, Vec<u64>),
    descriptors: usize,
    quarantined: usize,
}

impl State {
    fn of(scene: &Scene, when: &str) -> Self {
        let Machine { simulation, library: Library { runtime, vmm } } = &scene.machine;
        vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
        let mappings = vmm.mappings();
        let mut rights = Vec::new();
        let mut pages = Vec::new();
        for mapping in &mappings {
            let here = mapping.address;
            for agent in runtime.agents() {
                rights.push((here, agent.id(), vmm.get_access(agent.id(), here).unwrap()));
            }
            for gpu in 0..2 {
                // An entry that allows nothing is as good as none.
                let page = simulation.page(gpu, here.get()).filter(|p| p.readable || p.writable);
                pages.push((here, gpu, page.map(|p| (p.readable, p.writable, p.offset))));
            }
        }
        let mut process: Vec<(usize, usize, String)> = Vec::new();
        for (address, size) in vmm.reservations() {
            let pieces = process::permissions(address.get(), size);
            let pieces = pieces.unwrap_or_else(|hole| panic!("{when}: a hole at {hole:#x}"));
            // Whether addresses without access are shared with anybody does not matter.
            for (start, end, what) in pieces {
                match process.last_mut() {
                    Some((_, last, same)) if *last == start && what.starts_with(same.as_str()) => {
                        *last = end;
                    }
                    _ => process.push((start, end, what[..3].to_owned())),
                }
            }
        }
        let usage = simulation.usage();
        Self {
            reservations: vmm.reservations(),
            usage: vmm.usage(),
            access: rights,
            pages,
            process,
            runtime: (usage.reservations, usage.handles, usage.mappings, usage.vram_used),
            descriptors: process::descriptors(),
            quarantined: vmm.quarantine().len(),
            mappings,
        }
    }
}

impl State {
    /// Fails with no more than what is different.
    #[track_caller]
    fn assert_same(&self, after: &Self, when: &str) {
        assert_eq!(self.reservations, after.reservations, "{when}");
        assert_eq!(self.mappings, after.mappings, "{when}");
        assert_eq!(self.access, after.access, "{when}");
        assert_eq!(self.pages, after.pages, "{when}");
        assert_eq!(self.process, after.process, "{when}");
        assert_eq!(self, after, "{when}");
    }
}

type Act = fn(&Scene) -> Result<(), VmmError>;

/// Everything that calls the runtime, in several variants.
const ACTS: &[(&str, Act)] = &[
    ("reserve", |s| s.machine.vmm.address_reserve(2 * s.granule(), 0, None, 0).map(drop)),
    ("reserve aligned", |s| {
        s.machine.vmm.address_reserve(2 * s.granule(), 16 << 20, None, 0).map(drop)
    }),
    ("reserve near an address that is not aligned", |s| {
        // Below what is reserved and above a page that is not: free, most likely.
        let hint = Address::new((s.used.get() & !((1 << 30) - 1)) - (1 << 30) + s.granule());
        s.machine.vmm.address_reserve(s.granule(), 2 * s.granule(), Some(hint), 0).map(drop)
    }),
    ("reserve where something is", |s| {
        match Reservation::of(s.granule()).exactly_at(s.used).reserve(&s.machine.vmm) {
            Ok(_) => unreachable!("it is taken"),
            Err(error) if error.problem() == Some(Problem::AddressTaken) => Ok(()),
            Err(error) => Err(error),
        }
    }),
    ("free", |s| s.machine.vmm.address_free(s.empty, 2 * s.granule())),
    ("create", |s| {
        let made = s.machine.vmm.create(s.granule(), &s.machine.on(1), 0)?;
        s.handles.borrow_mut().push(made);
        Ok(())
    }),
    ("release", |s| {
        s.machine.vmm.release(s.spare)?;
        s.handles.borrow_mut().retain(|&handle| handle != s.spare);
        Ok(())
    }),
    ("map", |s| s.machine.vmm.map(at(s.used, s.mapped()), s.granule(), 0, s.spare, 0)),
    ("grant everybody everything", |s| {
        let all: Vec<_> = s.machine.runtime.agents().iter().map(|agent| agent.id()).collect();
        let all: Vec<_> = all.into_iter().map(|agent| access(agent, Access::ReadWrite)).collect();
        s.machine.vmm.set_access(s.used, s.mapped(), &all)
    }),
    ("grant the CPU to read", |s| {
        let cpu = [access(s.machine.cpu(0), Access::Read)];
        s.machine.vmm.set_access(s.used, s.mapped(), &cpu)
    }),
    ("grant the CPU to write", |s| {
        let cpu = [access(s.machine.cpu(0), Access::ReadWrite)];
        s.machine.vmm.set_access(s.used, s.mapped(), &cpu)
    }),
    ("forbid the CPU", |s| {
        let cpu = [access(s.machine.cpu(0), Access::None)];
        s.machine.vmm.set_access(s.used, s.mapped(), &cpu)
    }),
    ("forbid a GPU", |s| {
        let gpu = [access(s.machine.gpu(0), Access::None)];
        s.machine.vmm.set_access(s.used, s.mapped(), &gpu)
    }),
    ("grant both GPUs to read", |s| {
        let gpus = [s.machine.gpu(0), s.machine.gpu(1)].map(|gpu| access(gpu, Access::Read));
        s.machine.vmm.set_access(s.used, s.mapped(), &gpus)
    }),
    ("change the CPU and a GPU", |s| {
        let both = [s.machine.cpu(0), s.machine.gpu(0)].map(|id| access(id, Access::Read));
        s.machine.vmm.set_access(at(s.used, 2 * s.granule()), 3 * s.granule(), &both)
    }),
    ("unmap several", |s| s.machine.vmm.unmap(s.used, s.mapped())),
    ("unmap one that the CPU sees", |s| s.machine.vmm.unmap(s.used, s.granule())),
    ("revoke a GPU", |s| s.machine.vmm.revoke(s.used, s.mapped(), &[s.machine.gpu(0)])),
    ("revoke the other GPU", |s| s.machine.vmm.revoke(s.used, s.mapped(), &[s.machine.gpu(1)])),
    ("revoke the CPU", |s| s.machine.vmm.revoke(s.used, s.mapped(), &[s.machine.cpu(0)])),
    ("revoke from everybody", |s| {
        let all: Vec<_> = s.machine.runtime.agents().iter().map(|agent| agent.id()).collect();
        s.machine.vmm.revoke(s.used, s.mapped(), &all)
    }),
    ("export", |s| {
        let file = HandleType::PosixFileDescriptor;
        s.machine.vmm.export_to_shareable_handle(s.spare, file, 0).map(drop)
    }),
    ("import", |s| {
        let file = HandleType::PosixFileDescriptor;
        let made = s.machine.vmm.import_from_shareable_handle(&s.shared, file)?;
        s.handles.borrow_mut().push(made);
        Ok(())
    }),
    ("fill", |s| s.machine.vmm.fill(s.used, 0x0101_0101, 16)),
    ("copy", |s| {
        let far = at(s.used, 2048);
        s.machine.vmm.copy(s.machine.gpu(0), far, s.used, 16)
    }),
];

/// Which calls an operation makes, in a scene of its own.
fn calls_of(config: &Config, act: Act, name: &str) -> Vec<(&'static str, u64)> {
    let scene = Scene::new(config);
    let before = scene.machine.simulation.all_calls();
    act(&scene).unwrap_or_else(|error| panic!("{name} works when nothing fails: {error}"));
    let after = scene.machine.simulation.all_calls();
    // A function that answers a value has no status to fail with.
    let fails = |name: &str| name != "hsa_signal_wait_scacquire";
    let made = before.iter().zip(&after).filter(|(old, new)| old.1 < new.1 && fails(old.0));
    let calls = made.map(|(before, after)| (after.0, after.1 - before.1)).collect();
    scene.tear_down(name);
    calls
}

/// Calls whose failure an operation survives: it did what was asked for.
fn is_survived(name: &str, function: &str) -> bool {
    match function {
        // The owner of an import is then not known.
        "hsa_amd_vmem_get_alloc_properties_from_handle" => true,
        // What it costs is a signal, or memory of this process that stays pinned.
        "hsa_signal_destroy" | "hsa_amd_memory_unlock" => true,
        // The mapping is gone; what is left of its memory is in the quarantine.
        "hsa_amd_vmem_handle_release" => name.starts_with("unmap"),
        // Before aligned reservations it is tried until it works, more or less often.
        "hsa_amd_vmem_address_reserve" | "hsa_amd_vmem_address_free" => {
            name.starts_with("reserve aligned") || name.starts_with("reserve near")
        }
        _ => false,
    }
}

/// What was written at the beginning is still there, seen by the CPU.
fn assert_contents(scene: &Scene, when: &str) {
    let granule = scene.granule();
    for (offset, expected) in [(0, 1), (1, 2), (2, 4), (4, 1)] {
        let address = at(scene.used, offset * granule);
        let size = if offset == 2 { 2 * granule } else { granule };
        scene
            .machine
            .vmm
            .set_access(address, size, &[access(scene.machine.cpu(0), Access::Read)])
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        let mut bytes = [0; 16];
        scene.machine.vmm.read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [expected; 16], "{when}: at {offset}");
    }
}

/// One failure: nothing may have changed, and the same works afterwards.
fn fail_once(config: &Config, release: &str) {
    for &(name, act) in ACTS {
        for (function, calls) in calls_of(config, act, name) {
            for number in 1..=calls {
                for status in [ERROR, OUT_OF_RESOURCES] {
                    let when = format!("{release}: {name}, {function} #{number} is {status:#x}");
                    let scene = Scene::new(config);
                    let before = State::of(&scene, &when);
                    let plan = FaultPlan::none().fail(function, number, status);
                    scene.machine.simulation.set_faults(plan);
                    let answer = act(&scene);
                    scene.machine.simulation.set_faults(FaultPlan::none());
                    if answer.is_ok() && is_survived(name, function) {
                        continue;
                    }
                    if function.ends_with("address_free") && name.starts_with("reserve") {
                        // The range could not be given back: it is known to be lost.
                        let lost = scene.machine.vmm.quarantine();
                        assert_eq!(lost.len(), 1, "{when}: {answer:?}");
                        continue;
                    }
                    let error = answer.expect_err(&when);
                    assert!(!matches!(error, VmmError::Quarantined { .. }), "{when}: {error}");
                    before.assert_same(&State::of(&scene, &when), &when);
                    act(&scene).unwrap_or_else(|error| panic!("{when}, then again: {error}"));
                    scene.tear_down(&when);
                }
            }
        }
    }
}

/// After a failure without quarantine nothing has changed; else the quarantine says so.
fn judge(scene: Scene, before: &State, answer: Result<(), VmmError>, when: &str) {
    let vmm = &scene.machine.vmm;
    match answer {
        Ok(()) => {}
        Err(VmmError::Quarantined { address, now, .. }) => {
            assert!(now, "{when}: by this very operation");
            vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
            let listed = vmm.quarantine();
            assert!(listed.iter().any(|entry| entry.address == address), "{when}: {listed:?}");
            for (start, size) in vmm.reservations() {
                process::assert_taken(start.get(), size, when);
            }
            // Nothing of it is used again.
            let again = vmm.unmap(scene.used, scene.granule());
            let refused = matches!(again, Err(VmmError::Quarantined { now: false, .. }));
            assert!(refused, "{when}: {again:?}");
        }
        Err(_) if vmm.quarantine().len() > before.quarantined => {
            let addresses = vmm.reservations();
            for (start, size) in addresses {
                process::assert_taken(start.get(), size, when);
            }
        }
        Err(_) => {
            before.assert_same(&State::of(&scene, when), when);
            assert_contents(&scene, when);
            scene.tear_down(when);
        }
    }
}

/// A function that fails from some call on, for ever.
fn fail_on(config: &Config, release: &str) {
    for &(name, act) in ACTS {
        for (function, calls) in calls_of(config, act, name) {
            for number in 1..=calls {
                let when = format!("{release}: {name}, {function} fails from #{number} on");
                let scene = Scene::new(config);
                let before = State::of(&scene, &when);
                let plan = failing(FaultPlan::none(), function, number..EVER, ERROR);
                scene.machine.simulation.set_faults(plan);
                let answer = act(&scene);
                scene.machine.simulation.set_faults(FaultPlan::none());
                judge(scene, &before, answer, &when);
            }
        }
    }
}

/// Every operation, with one call of one function failing, and then any one call of any function
/// that undoing it makes.
fn fail_twice(config: &Config, release: &str) {
    for &(name, act) in ACTS.iter().filter(|(name, _)| !name.starts_with("reserve")) {
        let first_calls = calls_of(config, act, name);
        for &(function, calls) in &first_calls {
            for number in 1..=calls {
                // Which calls there are when this one fails.
                let once = FaultPlan::none().fail(function, number, ERROR);
                let scene = Scene::new(config);
                let before = scene.machine.simulation.all_calls();
                scene.machine.simulation.set_faults(once.clone());
                if act(&scene).is_ok() {
                    continue;
                }
                let after = scene.machine.simulation.all_calls();
                drop(scene);
                for ((second, start), (_, end)) in before.into_iter().zip(after) {
                    for other in 1..=end - start {
                        let when = format!(
                            "{release}: {name}, {function} #{number} and {second} #{other} fail"
                        );
                        let scene = Scene::new(config);
                        let before = State::of(&scene, &when);
                        let plan = once.clone().fail(second, other, INVALID_ALLOCATION);
                        scene.machine.simulation.set_faults(plan);
                        let answer = act(&scene);
                        scene.machine.simulation.set_faults(FaultPlan::none());
                        judge(scene, &before, answer, &when);
                    }
                }
            }
        }
    }
}

fn era(era: Era) -> Config {
    Config::mi300x(2).with_era(era)
}

#[test]
fn one_failure_changes_nothing_in_era_a() {
    let _alone = process::alone();
    fail_once(&era(Era::A), "era A");
}

#[test]
fn one_failure_changes_nothing_before_aligned_reservations() {
    let _alone = process::alone();
    fail_once(&era(Era::A).with_extension(4), "6.1");
}

#[test]
fn one_failure_changes_nothing_in_era_b() {
    let _alone = process::alone();
    fail_once(&era(Era::B), "era B");
}

#[test]
fn one_failure_changes_nothing_in_era_c() {
    let _alone = process::alone();
    fail_once(&era(Era::C), "era C");
}

#[test]
fn one_failure_changes_nothing_in_era_d() {
    let _alone = process::alone();
    fail_once(&era(Era::D), "era D");
}

#[test]
fn one_failure_changes_nothing_where_the_runtime_gives_the_cpu_its_access() {
    let _alone = process::alone();
    for (release, config) in machine::eras() {
        fail_once(&without_cpu_mapping(config.clone()), &format!("{release} by the runtime"));
        let two = with_two_cpus(without_cpu_mapping(config));
        fail_once(&two, &format!("{release} by the runtime, two CPUs"));
    }
}

#[test]
fn a_function_that_goes_on_failing_leaves_the_state_as_it_was_or_in_quarantine() {
    let _alone = process::alone();
    for (release, config) in machine::eras() {
        fail_on(&config, release);
        fail_on(&without_cpu_mapping(config), &format!("{release} by the runtime"));
    }
}

#[test]
fn two_failures_leave_the_state_as_it_was_or_in_quarantine() {
    let _alone = process::alone();
    fail_twice(&era(Era::A), "era A");
    fail_twice(&era(Era::C), "era C");
    fail_twice(&without_cpu_mapping(era(Era::A)), "era A by the runtime");
    fail_twice(&without_cpu_mapping(era(Era::B)), "era B by the runtime");
}
