//! Property tests: run random sequences of operations on the library and on the model. Shrink a failing sequence.

mod regressions;

use hsa_rocr::test::report;
use hsa_vmm::Runtime;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm_conformance::operations::{
    Comparisons, Difference, DifferentialTest, ObjectCounts, Operation, with_retries,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine;
use regressions::Regression;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The setup of a sequence: a runtime and its parameters.
pub trait Setup: Clone + Debug + Serialize + DeserializeOwned + 'static {
    /// Generates setups.
    fn any() -> BoxedStrategy<Self>;
    fn runtime(&self) -> Runtime;
    /// Returns the options to open the library with.
    fn options(&self) -> VmmOptions;
}

/// The environment variable with the maximum number of shrink steps; 20,000 by default.
const SHRINK_STEPS: &str = "PROPTEST_MAX_SHRINK_ITERS";

/// The maximum number of operations in a sequence.
const MAX_OPERATIONS: usize = 100;

/// Generates sequences for a setup. Operations select objects by index, so any operation can follow any other
/// operation. The generator therefore needs only the approximate number of objects, and does not run the model. The
/// model runs together with the library, because the model needs some of the library's results.
struct Sequences<S>(PhantomData<S>);

impl<S: Setup> ReferenceStateMachine for Sequences<S> {
    type State = (S, ObjectCounts);
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<(S, ObjectCounts)> {
        S::any().prop_map(|setup| (setup, ObjectCounts::default())).boxed()
    }

    fn transitions(&(_, object_counts): &(S, ObjectCounts)) -> BoxedStrategy<Operation> {
        let bytes = any::<[u8; Operation::BYTES]>();
        bytes.prop_map(move |bytes| Operation::from_bytes(&bytes, object_counts)).boxed()
    }

    fn apply(
        (setup, object_counts): (S, ObjectCounts),
        operation: &Operation,
    ) -> (S, ObjectCounts) {
        (setup, object_counts.after(operation))
    }
}

/// A test locks this mutex while it runs. Tests count the descriptors of the process, so they must run one at a time.
static RUNNING: Mutex<()> = Mutex::new(());

/// Runs `cases` sequences, or as many as `PROPTEST_CASES` says, with the seed `PROPTEST_RNG_SEED` or a random seed.
/// First runs the saved sequences in `tests/regressions/NAME.jsonl`. Shrinks a failing sequence, and adds the shrunk
/// sequence to this file.
pub fn run<S: Setup>(name: &str, cases: u32) {
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    for Regression { setup, operations } in regressions::load::<S>(name) {
        let result = run_sequence(&setup, &operations, || ());
        result.unwrap_or_else(|error| panic!("{error}: {setup:?} {operations:?}"));
    }
    let default = Config::default();
    let is_set = |variable| std::env::var_os(variable).is_some();
    let seed = match default.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => random_seed(),
    };
    let config = Config {
        cases: if is_set("PROPTEST_CASES") { default.cases } else { cases },
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: if is_set(SHRINK_STEPS) { default.max_shrink_iters } else { 20_000 },
        failure_persistence: None,
        ..default
    };
    let (sequences_run, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let sequences = Sequences::<S>::sequential_strategy(1..MAX_OPERATIONS);
    let result = TestRunner::new(config).run(&sequences, |((setup, _), operations, counter)| {
        // Shrink steps are not counted.
        sequences_run.fetch_add(counter.is_some().into(), Ordering::Relaxed);
        let on_operation = || {
            let counter = counter.as_ref().map(|counter| counter.fetch_add(1, Ordering::SeqCst));
            steps.fetch_add(counter.is_some().into(), Ordering::Relaxed);
        };
        run_sequence(&setup, &operations, on_operation)
    });
    let (sequences_run, steps) = (sequences_run.into_inner(), steps.into_inner());
    report(&format!("{name}: {sequences_run} sequences, {steps} steps, PROPTEST_RNG_SEED={seed}"));
    match result {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("{name}: {reason}"),
        Err(TestError::Fail(reason, ((setup, _), operations, _))) => {
            let saved = regressions::save(name, &Regression { setup, operations });
            panic!("{name}: {reason}\n{saved:?}\nPROPTEST_RNG_SEED={seed}");
        }
    }
}

fn run_sequence<S: Setup>(
    setup: &S,
    operations: &[Operation],
    on_operation: impl Fn(),
) -> Result<(), TestCaseError> {
    let runtime = setup.runtime();
    let run_once = || -> Result<(), (String, Difference)> {
        let with_position = |position: &str| {
            let position = position.to_owned();
            move |difference| (position, difference)
        };
        let (options, each) = (setup.options(), Comparisons::EachOperation);
        let mut test = DifferentialTest::open_with(&runtime, options, each)
            .map_err(with_position("at the start"))?;
        for (number, operation) in operations.iter().enumerate() {
            on_operation();
            test.apply(operation).map_err(with_position(&format!("operation {number}")))?;
        }
        test.finish().map_err(with_position("at the end"))
    };
    with_retries(run_once, |(_, difference)| difference)
        .map_err(|(position, difference)| TestCaseError::fail(format!("{position}: {difference}")))
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
