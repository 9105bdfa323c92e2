//! Each runtime call of each operation fails in turn. The operation returns an error, unless it can succeed without the
//! call. After an error, the state is unchanged, or the library quarantines what it could not restore.

mod machine;
mod process;
mod scenario;

use hsa_vmm::simulation::{Config, FaultPlan, Generation, GpuPermissions, Simulation};
use hsa_vmm::vmm::Quarantined;
use hsa_vmm::{Access, Error, ErrorKind};
use machine::{Machine, fail_calls, with_two_cpus, without_cpu_mapping};
use scenario::{OPERATIONS, Operation, Scenario, StateSnapshot};
use std::ops::Deref;
use std::sync::Arc;

const ERROR: u32 = 0x1000;
const INVALID_ALLOCATION: u32 = 0x1003;
const OUT_OF_RESOURCES: u32 = 0x1008;

/// A number of calls that no operation reaches.
const CALL_LIMIT: u64 = 400;

/// A scenario on a simulation.
struct SimulatedScenario {
    simulation: Arc<Simulation>,
    scenario: Scenario,
}

impl Deref for SimulatedScenario {
    type Target = Scenario;

    fn deref(&self) -> &Scenario {
        &self.scenario
    }
}

impl SimulatedScenario {
    fn new(config: &Config) -> Self {
        let mut config = config.clone().with_gpu_permissions(GpuPermissions::Enforced);
        config.gpus.truncate(2);
        let Machine { simulation, library } = Machine::new(config);
        Self { simulation, scenario: Scenario::new(library) }
    }

    /// Frees everything. Fails if the runtime then still has resources.
    fn tear_down(self, context: &str) {
        self.scenario.tear_down(context);
        let usage = self.simulation.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0), "{context}");
        assert_eq!(usage.vram_used, [0, 0], "{context}");
    }
}

/// A GPU's page-table entry: readable, writable, offset in the handle.
type Entry = Option<(bool, bool, u64)>;

/// The state that a failed operation must not change.
#[derive(Debug, PartialEq)]
struct State {
    snapshot: StateSnapshot,
    /// For each mapping and GPU: its page-table entry.
    pages: Vec<(usize, usize, Entry)>,
    runtime: (usize, usize, usize, Vec<u64>),
}

impl State {
    fn of(scenario: &SimulatedScenario, context: &str) -> Self {
        let snapshot = StateSnapshot::of(&scenario.library, context);
        let mut pages = Vec::new();
        for mapping in &snapshot.mappings {
            let address = mapping.address.get();
            for gpu in 0..2 {
                // An entry without permissions counts as no entry.
                let page = scenario
                    .simulation
                    .page(gpu, address)
                    .filter(|page| page.readable || page.writable);
                pages.push((
                    address,
                    gpu,
                    page.map(|page| (page.readable, page.writable, page.offset)),
                ));
            }
        }
        let usage = scenario.simulation.usage();
        let runtime = (usage.reservations, usage.handles, usage.mappings, usage.vram_used);
        Self { snapshot, pages, runtime }
    }

    /// Fails if the states differ, and shows only the parts that differ.
    #[track_caller]
    fn assert_unchanged(&self, after: &Self, context: &str) {
        self.snapshot.assert_unchanged(&after.snapshot, context);
        assert_eq!(self.pages, after.pages, "{context}");
        assert_eq!(self, after, "{context}");
    }
}

/// Performs an operation in a new scenario. Returns the functions of the runtime that the operation calls, and the
/// number of calls.
fn calls_of(config: &Config, operation: Operation, name: &str) -> Vec<(&'static str, u64)> {
    let scenario = SimulatedScenario::new(config);
    let before = scenario.simulation.all_calls();
    operation(&scenario)
        .unwrap_or_else(|error| panic!("{name} succeeds when nothing fails: {error}"));
    let after = scenario.simulation.all_calls();
    // `hsa_signal_wait_scacquire` returns the signal's value and no status, so it cannot fail.
    let can_fail = |name: &str| name != "hsa_signal_wait_scacquire";
    let calls_made =
        before.iter().zip(&after).filter(|(old, new)| old.1 < new.1 && can_fail(old.0));
    let calls = calls_made.map(|(before, after)| (after.0, after.1 - before.1)).collect();
    scenario.tear_down(name);
    calls
}

/// Returns whether an operation may succeed although this function fails.
fn tolerates_failure(name: &str, function: &str) -> bool {
    match function {
        // Without the properties, the owner of an import is unknown.
        "hsa_amd_vmem_get_alloc_properties_from_handle" => true,
        // The failure leaks a signal, or leaves memory of this process locked.
        "hsa_signal_destroy" | "hsa_amd_memory_unlock" => true,
        // The mapping was removed. The library quarantines only its memory.
        "hsa_amd_vmem_handle_release" => name.starts_with("unmap"),
        // If the runtime cannot align reservations, the library retries until the call succeeds.
        "hsa_amd_vmem_address_reserve" | "hsa_amd_vmem_address_free" => {
            name.starts_with("reserve aligned") || name.starts_with("reserve near")
        }
        // The library reserves other addresses.
        "hsa_amd_vmem_address_reserve_align" => name.starts_with("reserve near"),
        _ => false,
    }
}

/// Makes one call fail at a time. Checks that the state is unchanged, and that the operation then succeeds.
fn fail_once(config: &Config, release: &str) {
    for &(name, operation) in OPERATIONS {
        for (function, calls) in calls_of(config, operation, name) {
            for number in 1..=calls {
                for status in [ERROR, OUT_OF_RESOURCES] {
                    let context = format!("{release}: {name}, {function} #{number} is {status:#x}");
                    let scenario = SimulatedScenario::new(config);
                    let before = State::of(&scenario, &context);
                    let plan = FaultPlan::none().fail(function, number, status);
                    scenario.simulation.set_faults(plan);
                    let result = operation(&scenario);
                    scenario.simulation.set_faults(FaultPlan::none());
                    if result.is_ok() && tolerates_failure(name, function) {
                        scenario.library.vmm.check().expect(&context);
                        continue;
                    }
                    if function.ends_with("address_free") && name.starts_with("reserve") {
                        // The library quarantines a range that it could not free.
                        let quarantine = scenario.library.vmm.quarantined_ranges();
                        assert_eq!(quarantine.len(), 1, "{context}: {result:?}");
                        continue;
                    }
                    let error = result.expect_err(&context);
                    assert!(
                        !matches!(error.kind(), ErrorKind::Quarantined { .. }),
                        "{context}: {error}"
                    );
                    before.assert_unchanged(&State::of(&scenario, &context), &context);
                    operation(&scenario)
                        .unwrap_or_else(|error| panic!("{context}, repeated: {error}"));
                    scenario.tear_down(&context);
                }
            }
        }
    }
}

/// Checks that a failed operation has changed nothing, or has quarantined a range.
fn check_failure(
    scenario: SimulatedScenario,
    before: &State,
    result: Result<(), Error>,
    context: &str,
) {
    let vmm = &scenario.library.vmm;
    match result.as_ref().map_err(Error::kind) {
        Ok(()) => vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}")),
        Err(ErrorKind::Quarantined { range, now }) => {
            assert!(now, "{context}: quarantined by this operation");
            vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
            let listed = vmm.quarantined_ranges();
            assert!(listed.iter().any(|entry| *entry == **range), "{context}: {listed:?}");
            for (start, size) in vmm.reservations() {
                process::assert_mapped(start.get(), size, context);
            }
            // No call uses the range again.
            let repeated = vmm.unmap(range.address, scenario.granule());
            let rejected = match (range.operation, repeated.as_ref().map_err(Error::kind)) {
                // The range is not a reservation of the library.
                (hsa_vmm::error::Operation::AddressReserve, repeated) => repeated.is_err(),
                (_, repeated) => {
                    matches!(repeated, Err(ErrorKind::Quarantined { now: false, .. }))
                }
            };
            assert!(rejected, "{context}: {repeated:?}");
        }
        Err(_) if vmm.quarantined_ranges().len() > before.snapshot.quarantined => {
            let addresses = vmm.reservations();
            for (start, size) in addresses {
                process::assert_mapped(start.get(), size, context);
            }
        }
        Err(_) => {
            before.assert_unchanged(&State::of(&scenario, context), context);
            scenario.assert_contents(context);
            scenario.tear_down(context);
        }
    }
}

/// Makes each function that an operation calls fail from its n-th call on, for every n. Checks that each failed
/// operation has changed nothing, or has quarantined a range.
fn fail_from(config: &Config, release: &str) {
    for &(name, operation) in OPERATIONS {
        for (function, calls) in calls_of(config, operation, name) {
            for number in 1..=calls {
                let context = format!("{release}: {name}, {function} fails from #{number} on");
                let scenario = SimulatedScenario::new(config);
                let before = State::of(&scenario, &context);
                let plan = fail_calls(FaultPlan::none(), function, number..CALL_LIMIT, ERROR);
                scenario.simulation.set_faults(plan);
                let result = operation(&scenario);
                scenario.simulation.set_faults(FaultPlan::none());
                check_failure(scenario, &before, result, &context);
            }
        }
    }
}

/// Makes each pair of calls of an operation fail. The second call may belong to the rollback. Leaves out the operations
/// that reserve.
fn fail_twice(config: &Config, release: &str) {
    for &(name, operation) in OPERATIONS.iter().filter(|(name, _)| !name.starts_with("reserve")) {
        let first_calls = calls_of(config, operation, name);
        for &(function, calls) in &first_calls {
            for number in 1..=calls {
                // Counts the calls of the operation and of its rollback when the first call fails.
                let first_failure = FaultPlan::none().fail(function, number, ERROR);
                let scenario = SimulatedScenario::new(config);
                let calls_before = scenario.simulation.all_calls();
                scenario.simulation.set_faults(first_failure.clone());
                if operation(&scenario).is_ok() {
                    continue;
                }
                let calls_after = scenario.simulation.all_calls();
                drop(scenario);
                for ((second, count_before), (_, count_after)) in
                    calls_before.into_iter().zip(calls_after)
                {
                    for second_number in 1..=count_after - count_before {
                        let context = format!(
                            "{release}: {name}, {function} #{number} and {second} #{second_number} fail"
                        );
                        let scenario = SimulatedScenario::new(config);
                        let before = State::of(&scenario, &context);
                        let plan =
                            first_failure.clone().fail(second, second_number, INVALID_ALLOCATION);
                        scenario.simulation.set_faults(plan);
                        let result = operation(&scenario);
                        scenario.simulation.set_faults(FaultPlan::none());
                        check_failure(scenario, &before, result, &context);
                    }
                }
            }
        }
    }
}

fn config_of(generation: Generation) -> Config {
    Config::mi300x(2).with_generation(generation)
}

#[test]
fn one_failure_changes_nothing_in_generation_a() {
    if process::rerun_in_own_process() {
        return;
    }
    fail_once(&config_of(Generation::A), "generation A");
}

#[test]
fn one_failure_changes_nothing_in_rocm_6_1() {
    if process::rerun_in_own_process() {
        return;
    }
    fail_once(&config_of(Generation::A).with_extension(4), "6.1");
}

#[test]
fn one_failure_changes_nothing_in_generation_b() {
    if process::rerun_in_own_process() {
        return;
    }
    fail_once(&config_of(Generation::B), "generation B");
}

#[test]
fn one_failure_changes_nothing_in_generation_c() {
    if process::rerun_in_own_process() {
        return;
    }
    fail_once(&config_of(Generation::C), "generation C");
}

#[test]
fn one_failure_changes_nothing_in_generation_d() {
    if process::rerun_in_own_process() {
        return;
    }
    fail_once(&config_of(Generation::D), "generation D");
}

#[test]
fn one_failure_is_harmless_with_runtime_cpu_access() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in machine::generations() {
        fail_once(
            &without_cpu_mapping(config.clone()),
            &format!("{generation}, CPU access by the runtime"),
        );
        let two_cpus = with_two_cpus(without_cpu_mapping(config));
        fail_once(&two_cpus, &format!("{generation}, CPU access by the runtime, two CPUs"));
    }
}

#[test]
fn repeated_failures_restore_or_quarantine() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in machine::generations() {
        fail_from(&config, generation);
        let context = format!("{generation}, CPU access by the runtime");
        fail_from(&without_cpu_mapping(config), &context);
    }
}

#[test]
fn two_failures_restore_or_quarantine() {
    if process::rerun_in_own_process() {
        return;
    }
    fail_twice(&config_of(Generation::A), "generation A");
    fail_twice(&config_of(Generation::C), "generation C");
    if !hsa_rocr::test::is_long() {
        return;
    }
    fail_twice(
        &without_cpu_mapping(config_of(Generation::A)),
        "generation A, CPU access by the runtime",
    );
    fail_twice(
        &without_cpu_mapping(config_of(Generation::B)),
        "generation B, CPU access by the runtime",
    );
}

/// `runtime_granted` contains the agents to which the runtime has granted access. A CPU whose access was set to none
/// stays in this set: unmapping the memory still leaves a hole that the library must fill. The CPU also stays in the
/// set after a failed unmap whose rollback has granted access again.
#[test]
fn failed_unmap_keeps_runtime_granted() {
    if process::rerun_in_own_process() {
        return;
    }
    for extension in [4, 7] {
        let config = without_cpu_mapping(Config::mi300x(2).with_generation(Generation::A));
        let machine = Machine::new(config.with_extension(extension));
        let (gpu, cpu, size) = (machine.gpu(0), machine.cpu(0), machine.granule());
        let (base, handle) = machine.map_new_memory(0, size);
        let vmm = &machine.vmm;
        machine.grant(base, size, gpu, Access::ReadWrite);
        machine.grant(base, size, cpu, Access::ReadWrite);
        machine.grant(base, size, cpu, Access::None);
        machine.simulation.set_faults(FaultPlan::default().fail("hsa_amd_vmem_unmap", 1, ERROR));
        let result = vmm.unmap(base, size);
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Runtime { .. })),
            "{result:?}"
        );
        machine.simulation.set_faults(FaultPlan::default());
        vmm.unmap(base, size).unwrap();
        process::assert_inaccessible(base.get(), size, "unmapped");
        assert_eq!(vmm.quarantined_ranges(), []);
        vmm.release(handle).unwrap();
        machine.close();
    }
}

const RESERVE: [&str; 2] = ["hsa_amd_vmem_address_reserve", "hsa_amd_vmem_address_reserve_align"];

/// The runtime fails if it gets a hint. The library then reserves other addresses.
#[test]
fn failed_hint_causes_no_error() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let hint = machine.reserve(granule);
        vmm.address_free(hint, granule).unwrap();
        let fail = |plan: FaultPlan, function| plan.fail(function, 1, OUT_OF_RESOURCES);
        machine.simulation.set_faults(RESERVE.into_iter().fold(FaultPlan::none(), fail));
        let address = vmm.address_reserve(granule, 0, Some(hint)).expect(release);
        vmm.address_free(address, granule).unwrap();
        machine.assert_empty();
    }
}

/// The runtime reserves other addresses than requested, and fails to free them.
#[test]
fn addresses_that_stay_reserved_are_quarantined() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let taken = machine.reserve(granule);
        let faults = FaultPlan::none().fail("hsa_amd_vmem_address_free", 1, ERROR);
        machine.simulation.set_faults(faults);
        let error = vmm.address_reserve_at(taken, granule).unwrap_err();
        let ErrorKind::Quarantined { range, now: true } = error.kind() else {
            panic!("{release}: {error}")
        };
        assert_eq!(vmm.quarantined_ranges(), [Quarantined::clone(range)], "{release}");
    }
}
