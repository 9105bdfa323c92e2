//! Makes runtime calls fail during operations on buffers. Either each call fails alone, in turn, or one call and all
//! later calls fail. The modules that use this module check the result.

use crate::machine::{Machine, generations, without_cpu_mapping};
use crate::process::merged_permissions;
use hsa_vmm::Error;
use hsa_vmm::simulation::{Config, FaultPlan, Generation, Page, Usage};
use hsa_vmm::vmm::MappingInfo;
use std::fmt::Debug;

pub const ERROR: u32 = 0x1000;
pub const OUT_OF_RESOURCES: u32 = 0x1008;

/// The buffers of a test, with contents.
pub trait Setup: Sized {
    /// The state that must not change when one call fails.
    type State: Debug + PartialEq;

    fn new(config: &Config) -> Self;

    fn machine(&self) -> &Machine;

    fn state(&self) -> Self::State;
}

pub type Operation<S> = fn(&mut S) -> Result<(), Error>;

/// The state of the library and the runtime that a failed operation must not change. The state consists of the
/// mappings, the access of GPUs and of this process, and the runtime's usage.
#[derive(Debug, PartialEq)]
pub struct RuntimeState {
    mappings: Vec<MappingInfo>,
    pages: Vec<[Option<Page>; 2]>,
    pub usage: Usage,
    quarantined: usize,
    process: Vec<(usize, usize, String)>,
}

impl RuntimeState {
    pub fn of(machine: &Machine) -> Self {
        machine.vmm.check().unwrap();
        let mappings = machine.vmm.mappings();
        let page = |mapping: &MappingInfo| {
            [0, 1].map(|gpu| machine.simulation.page(gpu, mapping.address.get()))
        };
        let ranges =
            machine.vmm.reservations().into_iter().map(|(start, size)| (start.get(), size));
        Self {
            pages: mappings.iter().map(page).collect(),
            process: merged_permissions(ranges)
                .unwrap_or_else(|hole| panic!("a hole at {hole:#x}")),
            mappings,
            usage: machine.simulation.usage(),
            quarantined: machine.vmm.quarantined_ranges().len(),
        }
    }
}

/// Returns one configuration of each generation, one of ROCm 6.1, and one on which the CPU cannot map dma-bufs.
pub fn configurations() -> Vec<(&'static str, Config)> {
    let generation_a = || Config::mi300x(2).with_generation(Generation::A);
    let mut configurations = generations();
    configurations.push(("6.1", generation_a().with_extension(4)));
    configurations
        .push(("generation A, CPU access by the runtime", without_cpu_mapping(generation_a())));
    configurations
}

/// An operation during which calls failed.
pub struct FailedOperation<S: Setup> {
    pub name: &'static str,
    pub operation: Operation<S>,
    /// The first function that failed.
    pub function: &'static str,
    pub result: Result<(), Error>,
    /// The buffers after the operation. No further call fails.
    pub setup: S,
    pub before: S::State,
    /// Describes the configuration, the operation and the failed call, for messages.
    pub context: String,
}

impl<S: Setup> FailedOperation<S> {
    /// Fails if the state has changed.
    #[track_caller]
    pub fn assert_unchanged(&self) {
        assert_eq!(self.setup.state(), self.before, "{}: {:?}", self.context, self.result);
    }

    /// Repeats the operation, which must succeed.
    #[track_caller]
    pub fn repeat(&mut self) {
        (self.operation)(&mut self.setup)
            .unwrap_or_else(|error| panic!("{}, again: {error}", self.context));
    }
}

/// Performs each operation on each configuration many times. Each time, a different call fails with one of the
/// statuses. Returns the number of runs in which a call failed.
pub fn fail_one_call<S: Setup>(
    configurations: impl IntoIterator<Item = (&'static str, Config)>,
    operations: &[(&'static str, Operation<S>)],
    statuses: impl Fn(&str) -> &'static [u32],
    mut check: impl FnMut(FailedOperation<S>),
) -> usize {
    let mut failures = 0;
    for (configuration, config) in configurations {
        for &(name, operation) in operations {
            for status in statuses(configuration) {
                let describe =
                    |call| format!("{configuration}: {name}, call {call} returns {status:#x}");
                let plan = |call| FaultPlan::none().fail_any(call, *status);
                failures +=
                    run_with_each_call(&config, (name, operation), describe, plan, &mut check);
            }
        }
    }
    failures
}

/// Performs each operation on each configuration many times. Each time, a different call fails, and all later calls of
/// the operation and of its rollback fail too. After the operation, calls succeed again. Returns the number of runs in
/// which a call failed.
pub fn fail_all_calls_from<S: Setup>(
    configurations: impl IntoIterator<Item = (&'static str, Config)>,
    operations: &[(&'static str, Operation<S>)],
    mut check: impl FnMut(FailedOperation<S>),
) -> usize {
    let mut runs = 0;
    for (configuration, config) in configurations {
        for &(name, operation) in operations {
            let describe =
                |call| format!("{configuration}: {name}, from call {call} on everything fails");
            let plan = |call| FaultPlan::none().fail_any_from(call, ERROR);
            runs += run_with_each_call(&config, (name, operation), describe, plan, &mut check);
        }
    }
    runs
}

/// Performs an operation repeatedly. Each time, `plan` makes a different call fail. Ends when no call fails. Returns
/// the number of runs in which a call failed.
fn run_with_each_call<S: Setup>(
    config: &Config,
    (name, operation): (&'static str, Operation<S>),
    describe: impl Fn(u64) -> String,
    plan: impl Fn(u64) -> FaultPlan,
    check: &mut impl FnMut(FailedOperation<S>),
) -> usize {
    for call in 1.. {
        let context = describe(call);
        let mut setup = S::new(config);
        let simulation = setup.machine().simulation.clone();
        let before = setup.state();
        simulation.set_faults(plan(call));
        let result = operation(&mut setup);
        let failed = simulation.failed_calls();
        simulation.set_faults(FaultPlan::none());
        setup.machine().vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
        let Some(&(function, _)) = failed.first() else {
            result.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(call > 1, "{context}: the operation makes no calls");
            return call as usize - 1;
        };
        let context = format!("{context}: {function}");
        check(FailedOperation { name, operation, function, result, setup, before, context });
    }
    unreachable!("an operation makes a finite number of calls")
}
