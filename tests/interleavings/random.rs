//! Small random programs: in every tried order, the results have a serial order.

use crate::machine::{self, Machine};
use crate::serial::{Random, round};
use crate::{calls, in_many_orders};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each order runs a program of its own; the first one has this seed.
const FIRST: u64 = 1;
const ORDERS: usize = 100;

fn programs(threads: usize, steps: usize) {
    for (_, config) in machine::generations() {
        let seed = Arc::new(AtomicU64::new(FIRST));
        in_many_orders(ORDERS, move || {
            let machine = Machine::new(config.clone());
            let seed = seed.fetch_add(1, Ordering::Relaxed);
            calls::begin();
            round(&machine, threads, steps, &mut Random(seed));
            let seen = calls::end();
            if machine.vmm.quirks().some_calls_take_no_lock {
                assert_eq!(seen.races().next(), None, "seed {seed}");
            }
            machine.close();
        });
    }
}

#[test]
fn two_threads_of_four_operations_have_a_serial_order() {
    programs(2, 4);
}

#[test]
fn four_threads_of_two_operations_have_a_serial_order() {
    programs(4, 2);
}
