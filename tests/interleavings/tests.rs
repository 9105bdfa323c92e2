//! The library's own locks, run through the orders that threads can come in.
//!
//! Shuttle runs the threads one at a time and decides at every lock who goes on; here also in the
//! middle of every call of the runtime (see [`calls`]), as if it took long. It tells a deadlock by
//! itself, and prints the schedule of a failure for `shuttle::replay`.

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

/// Runs something in many orders: half of them by chance, half with few but nasty switches.
fn in_many_orders(orders: usize, act: impl Fn() + Send + Sync + Clone + 'static) {
    calls::watch();
    let mut config = Config::new();
    // The library was not written for coroutines, whose stacks are 32 KiB else.
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(orders / 2), config.clone()).run(act.clone());
    Runner::new(PctScheduler::new(3, orders / 2), config).run(act);
}
