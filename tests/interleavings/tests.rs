//! The library's own locks under a model checker.
//!
//! Shuttle runs one thread at a time, and chooses the next thread at every lock. With [`calls`], it also chooses
//! during every call of the runtime, as if the call took long. Shuttle detects deadlocks, and prints the
//! schedule of a failure for `shuttle::replay`.

extern crate hsa_vmm_interleaved as hsa_vmm;

mod calls;
mod conflicts;
#[path = "../log/mod.rs"]
mod log;
#[path = "../machine/mod.rs"]
mod machine;
mod random;
#[path = "../serial/mod.rs"]
mod serial;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;
use shuttle::{Config, Runner};

/// Runs a function with many schedules: half of them random, half with a few adversarial switches (PCT).
fn in_many_schedules(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    calls::subscribe();
    let mut config = Config::new();
    // The default stack of 32 KiB is too small for the library.
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(schedules / 2), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(test);
}
