//! Runs rounds of random operations for a limited time.

use super::{Random, run_round};
use crate::machine::Library;
use std::time::{Duration, Instant, SystemTime};

const THREADS: usize = 8;
const STEPS: usize = 4;

/// Returns the time for one test: `HSA_VMM_STRESS_SECONDS`, or by default three seconds.
fn time_for_one_test() -> Duration {
    let seconds = std::env::var("HSA_VMM_STRESS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(3, |text| text.parse().expect("seconds")))
}

/// Returns the seed of the first round: `HSA_VMM_STRESS_SEED`, or by default the time.
fn seed() -> u64 {
    let seed = std::env::var("HSA_VMM_STRESS_SEED").ok();
    let time =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|time| time.as_nanos());
    seed.map_or_else(
        || time().expect("the clock is set") as u64,
        |text| text.parse().expect("a seed"),
    )
}

/// Runs rounds of eight threads for `1 / divisor` of the test's time, but at least five rounds. Prints the seed of each
/// round.
#[track_caller]
pub fn stress(name: &str, library: &Library, divisor: u32) {
    let (begun, first_seed) = (Instant::now(), seed());
    let mut seed = first_seed;
    while begun.elapsed() < time_for_one_test() / divisor || seed < first_seed + 5 {
        println!("{name}: HSA_VMM_STRESS_SEED={seed}");
        run_round(library, THREADS, STEPS, &mut Random(seed));
        seed += 1;
    }
    println!("{name}: {} rounds in {:?}", seed - first_seed, begun.elapsed());
}
