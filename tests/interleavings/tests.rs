//! Tests the library's own locks with the model checker shuttle.
//!
//! Shuttle runs one thread at a time, and chooses the next thread at every lock. The module [`calls`] makes shuttle
//! also choose the next thread during every call of the runtime, as if the call took long. Shuttle detects deadlocks,
//! and prints the schedule of a failure for `shuttle::replay`.

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

/// Runs `test` with many schedules. Half of the schedules are random. The other half switches threads only at a few
/// random points (probabilistic concurrency testing).
fn in_many_schedules(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    calls::subscribe();
    let mut config = Config::new();
    // The default stack of 32 KiB is too small for the library.
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(schedules / 2), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(test);
}
