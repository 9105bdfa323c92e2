//! Threads run small random programs. In every schedule that the test tries, the results have a serial order.

use crate::machine::{self, Machine};
use crate::serial::{Random, run_round};
use crate::{calls, in_many_schedules};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The seed of the first schedule's programs. Each further schedule uses the next seed.
const FIRST_SEED: u64 = 1;
const SCHEDULES: usize = 100;

fn run_programs(threads: usize, steps: usize) {
    for (_, config) in machine::generations() {
        let seed = Arc::new(AtomicU64::new(FIRST_SEED));
        in_many_schedules(SCHEDULES, move || {
            let machine = Machine::new(config.clone());
            let seed = seed.fetch_add(1, Ordering::Relaxed);
            calls::begin_recording();
            run_round(&machine, threads, steps, &mut Random(seed));
            let recording = calls::end_recording();
            if machine.vmm.quirks().some_calls_take_no_lock {
                assert_eq!(recording.races().next(), None, "seed {seed}");
            }
            machine.close();
        });
    }
}

#[test]
fn two_threads_of_four_calls_have_a_serial_order() {
    run_programs(2, 4);
}

#[test]
fn four_threads_of_two_calls_have_a_serial_order() {
    run_programs(4, 2);
}
