//! Runs rounds for a limited time.

use super::{Random, round};
use crate::machine::Library;
use std::time::{Duration, Instant, SystemTime};

const THREADS: usize = 8;
const STEPS: usize = 4;

/// Returns the time for one test: a few seconds, or `HSA_VMM_STRESS_SECONDS`.
fn time() -> Duration {
    let seconds = std::env::var("HSA_VMM_STRESS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(3, |text| text.parse().expect("seconds")))
}

/// Returns the seed of the first round: a new one each time, or `HSA_VMM_STRESS_SEED`.
fn seed() -> u64 {
    let seed = std::env::var("HSA_VMM_STRESS_SEED").ok();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|it| it.as_nanos());
    seed.map_or_else(|| now().expect("1970 is over") as u64, |text| text.parse().expect("a seed"))
}

/// Runs rounds of eight threads for a share of the time, at least five. Prints their seeds.
#[track_caller]
pub fn stress(name: &str, library: &Library, share: u32) {
    let (begun, first) = (Instant::now(), seed());
    let mut seed = first;
    while begun.elapsed() < time() / share || seed < first + 5 {
        println!("{name}: HSA_VMM_STRESS_SEED={seed}");
        round(library, THREADS, STEPS, &mut Random(seed));
        seed += 1;
    }
    println!("{name}: {} rounds in {:?}", seed - first, begun.elapsed());
}
