//! Property tests: random sequences of operations, run on library and model, shrunk on failure.

mod regressions;

use hsa_rocr::test::report;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::operations::{
    Difference, DifferentialTest, ObjectCounts, Operation, with_retries,
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

/// The runtime of the sequences, with everything that varies.
pub trait Setup: Clone + Debug + Serialize + DeserializeOwned + 'static {
    /// Generates setups.
    fn any() -> BoxedStrategy<Self>;
    /// Opens the runtime.
    fn runtime(&self) -> Runtime;
}

/// The variable with the maximum number of shrink steps; 20,000 by default.
const SHRINKING: &str = "PROPTEST_MAX_SHRINK_ITERS";

/// The maximum number of operations in a sequence.
const LONGEST: usize = 100;

/// Generates sequences for a setup. Operations name objects by index, so that any operation can follow
/// any other, and the generator needs only the approximate number of objects. The model runs beside the
/// library, because some results are up to the library.
struct Sequences<G>(PhantomData<G>);

impl<G: Setup> ReferenceStateMachine for Sequences<G> {
    type State = (G, ObjectCounts);
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<(G, ObjectCounts)> {
        G::any().prop_map(|setup| (setup, ObjectCounts::default())).boxed()
    }

    fn transitions(&(_, object_counts): &(G, ObjectCounts)) -> BoxedStrategy<Operation> {
        let bytes = any::<[u8; Operation::BYTES]>();
        bytes.prop_map(move |bytes| Operation::drawn_from(&bytes, object_counts)).boxed()
    }

    fn apply(
        (setup, object_counts): (G, ObjectCounts),
        operation: &Operation,
    ) -> (G, ObjectCounts) {
        (setup, object_counts.after(operation))
    }
}

/// The tests count descriptors of the process, so that only one sequence runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `cases` sequences, or `PROPTEST_CASES`, with the seed `PROPTEST_RNG_SEED` or a random one. A
/// failing sequence is shrunk, saved in `tests/regressions/NAME.jsonl`, and run first the next time.
pub fn run<G: Setup>(name: &str, cases: u32) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for Regression { setup, operations } in regressions::known::<G>(name) {
        let result = sequence(&setup.runtime(), &operations, || ());
        result.unwrap_or_else(|error| panic!("{error}: {setup:?} {operations:?}"));
    }
    let default = Config::default();
    let given = |variable| std::env::var_os(variable).is_some();
    let seed = match default.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => rand_seed(),
    };
    let config = Config {
        cases: if given("PROPTEST_CASES") { default.cases } else { cases },
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: if given(SHRINKING) { default.max_shrink_iters } else { 20_000 },
        failure_persistence: None,
        ..default
    };
    let (tried, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let sequences = Sequences::<G>::sequential_strategy(1..LONGEST);
    let result = TestRunner::new(config).run(&sequences, |((setup, _), operations, seen)| {
        // Shrink steps are not counted.
        tried.fetch_add(seen.is_some().into(), Ordering::Relaxed);
        let begun = || {
            let seen = seen.as_ref().map(|seen| seen.fetch_add(1, Ordering::SeqCst));
            steps.fetch_add(seen.is_some().into(), Ordering::Relaxed);
        };
        sequence(&setup.runtime(), &operations, begun)
    });
    let (tried, steps) = (tried.into_inner(), steps.into_inner());
    report(&format!("{name}: {tried} sequences, {steps} steps, PROPTEST_RNG_SEED={seed}"));
    match result {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("{name}: {reason}"),
        Err(TestError::Fail(reason, ((setup, _), operations, _))) => {
            let kept = regressions::keep(name, &Regression { setup, operations });
            panic!("{name}: {reason}\n{kept:?}\nPROPTEST_RNG_SEED={seed}");
        }
    }
}

fn sequence(
    runtime: &Runtime,
    operations: &[Operation],
    begun: impl Fn(),
) -> Result<(), TestCaseError> {
    let once = || -> Result<(), (String, Difference)> {
        let at = |place: &str| {
            let place = place.to_owned();
            move |difference| (place, difference)
        };
        let mut test = DifferentialTest::open(runtime).map_err(at("at the start"))?;
        for (number, operation) in operations.iter().enumerate() {
            begun();
            test.apply(operation).map_err(at(&format!("operation {number}")))?;
        }
        test.finish().map_err(at("at the end"))
    };
    with_retries(once, |(_, difference)| difference)
        .map_err(|(place, difference)| TestCaseError::fail(format!("{place}: {difference}")))
}

fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
