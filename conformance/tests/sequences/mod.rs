//! Sequences of operations as property tests: drawn, put to library and model, and shrunk.

mod regressions;

use hsa_rocr::test::tell;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::operations::{Difference, Operation, Stock, Trial, tried_again};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine;
use regressions::Regression;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What sequences run on, and what of it may vary.
pub trait Ground: Clone + Debug + Serialize + DeserializeOwned + 'static {
    /// All that there are.
    fn any() -> BoxedStrategy<Self>;
    /// A runtime on it.
    fn runtime(&self) -> Runtime;
}

/// How often a failure is made smaller, if not 20,000 times.
const SHRINKING: &str = "PROPTEST_MAX_SHRINK_ITERS";

/// The most operations in a sequence.
const LONGEST: usize = 100;

/// Sequences on a ground. Any operation may follow any other, as each names what it works on by
/// its place among what there is, so that drawing needs to know only about how much there is. The
/// model itself runs beside the library, which has to tell it what the documents leave open.
struct Sequences<G>(PhantomData<G>);

impl<G: Ground> ReferenceStateMachine for Sequences<G> {
    type State = (G, Stock);
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<(G, Stock)> {
        G::any().prop_map(|ground| (ground, Stock::default())).boxed()
    }

    fn transitions(&(_, stock): &(G, Stock)) -> BoxedStrategy<Operation> {
        let bytes = any::<[u8; Operation::BYTES]>();
        bytes.prop_map(move |bytes| Operation::drawn_from(&bytes, stock)).boxed()
    }

    fn apply((ground, stock): (G, Stock), operation: &Operation) -> (G, Stock) {
        (ground, stock.after(operation))
    }
}

/// Descriptors of the process are counted, so that one sequence runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs sequences: so many, or as many as `PROPTEST_CASES` says, from the seed in
/// `PROPTEST_RNG_SEED` or a fresh one. What fails is made small, kept in
/// `tests/regressions/NAME.jsonl`, and run first the next time.
pub fn run<G: Ground>(name: &str, cases: u32) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for Regression { ground, operations } in regressions::known::<G>(name) {
        let result = sequence(&ground.runtime(), &operations, || ());
        result.unwrap_or_else(|error| panic!("{error}: {ground:?} {operations:?}"));
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
    let result = TestRunner::new(config).run(&sequences, |((ground, _), operations, seen)| {
        // What is not counted is a try to make a failure smaller.
        tried.fetch_add(seen.is_some().into(), Ordering::Relaxed);
        let begun = || {
            let seen = seen.as_ref().map(|seen| seen.fetch_add(1, Ordering::SeqCst));
            steps.fetch_add(seen.is_some().into(), Ordering::Relaxed);
        };
        sequence(&ground.runtime(), &operations, begun)
    });
    let (tried, steps) = (tried.into_inner(), steps.into_inner());
    tell(&format!("{name}: {tried} sequences, {steps} steps, PROPTEST_RNG_SEED={seed}"));
    match result {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("{name}: {reason}"),
        Err(TestError::Fail(reason, ((ground, _), operations, _))) => {
            let kept = regressions::keep(name, &Regression { ground, operations });
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
        let mut trial = Trial::open(runtime).map_err(at("at the start"))?;
        for (number, operation) in operations.iter().enumerate() {
            begun();
            trial.apply(operation).map_err(at(&format!("operation {number}")))?;
        }
        trial.finish().map_err(at("at the end"))
    };
    tried_again(once, |(_, difference)| difference)
        .map_err(|(place, difference)| TestCaseError::fail(format!("{place}: {difference}")))
}

fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
