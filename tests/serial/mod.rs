//! Checks linearizability: concurrent operations have the results and the final state of some serial order.
//!
//! In a round, each thread runs a random program on the same reservations and allocations ([`Executor`]). The round
//! records the result, the begin and the end of each operation. Then [`order`] searches for a serial order in which a
//! model ([`State`]) has the same results and the same final state. If an operation ended before another began, the
//! first operation must also come first in the serial order.

#![allow(dead_code, reason = "each test binary uses a different part")]

mod executor;
pub mod order;
mod random;
mod state;
pub mod stress;

pub use executor::Executor;
pub use random::Random;
pub use state::State;

use crate::machine::Library;
use crate::thread;
use hsa_vmm::Access;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub const RESERVATIONS: usize = 2;
/// The number of slots in each reservation; a slot is a granule.
pub const SLOTS: usize = 3;
/// The number of allocations, each of one granule.
pub const HANDLES: usize = 3;
/// The number of agents: a CPU and two GPUs.
pub const AGENTS: usize = 3;

/// A granule of a reservation, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub reservation: usize,
    pub number: usize,
}

/// Adjacent granules of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRange {
    pub first: Slot,
    pub count: usize,
}

/// An operation. Numbers stand for reservations, allocations and agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Map {
        slot: Slot,
        handle: usize,
    },
    Unmap {
        range: SlotRange,
    },
    Grant {
        range: SlotRange,
        agent: usize,
        access: Access,
    },
    Revoke {
        range: SlotRange,
        agent: usize,
    },
    GetAccess {
        slot: Slot,
        agent: usize,
    },
    Write {
        slot: Slot,
        value: u8,
    },
    Read {
        slot: Slot,
    },
    Retain {
        slot: Slot,
    },
    Release {
        handle: usize,
    },
    /// Exports the allocation, imports the export, and releases the import.
    Share {
        handle: usize,
    },
    Free {
        reservation: usize,
    },
    /// Reserves the same addresses again.
    Reserve {
        reservation: usize,
    },
    /// The first step of a successful map. From then on, a release does not free the allocation.
    BeginMap {
        handle: usize,
    },
    /// The last step of a successful map, which makes the mapping visible.
    FinishMap {
        slot: Slot,
        handle: usize,
    },
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Access(Access),
    Byte(u8),
    Handle(usize),
    Rejected(Reason),
}

/// Why an operation was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NotReserved,
    NotMapped,
    AlreadyMapped,
    StillMapped,
    NotGranted,
    Released,
    AddressTaken,
}

/// An operation or a step of an operation, with its result and the times of its begin and end.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub operation: Operation,
    pub outcome: Outcome,
    pub begun: u64,
    pub ended: u64,
}

/// Splits an operation into atomic steps. Only a map has two steps. Between these steps, the runtime maps the memory,
/// and other threads may release the allocation.
fn steps(operation: Operation, outcome: Outcome) -> Vec<Operation> {
    match (operation, outcome) {
        (Operation::Map { slot, handle }, Outcome::Done) => {
            vec![Operation::BeginMap { handle }, Operation::FinishMap { slot, handle }]
        }
        _ => vec![operation],
    }
}

/// Runs the programs, each in a thread of its own, and returns the events of each thread.
pub fn run_programs(executor: &Executor, programs: &[Vec<Operation>]) -> Vec<Vec<Event>> {
    let clock = AtomicU64::new(0);
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let histories = Mutex::new(vec![Vec::new(); programs.len()]);
    thread::scope(|scope| {
        for (number, program) in programs.iter().enumerate() {
            let (tick, histories) = (&tick, &histories);
            scope.spawn(move || {
                let mut history = Vec::with_capacity(program.len());
                for &operation in program {
                    let begun = tick();
                    let outcome = executor.execute(operation);
                    let ended = tick();
                    for operation in steps(operation, outcome) {
                        history.push(Event { operation, outcome, begun, ended });
                    }
                }
                histories.lock().unwrap()[number] = history;
            });
        }
    });
    histories.into_inner().unwrap()
}

/// Runs one round, and fails unless a serial order explains the results.
#[track_caller]
pub fn run_round(library: &Library, threads: usize, steps: usize, random: &mut Random) {
    let executor = Executor::new(library);
    let mut state = State::default();
    // Executes some operations first, so that the threads' operations conflict with existing mappings.
    for _ in 0..random.below(8) {
        let operation = random.operation();
        let outcome = executor.execute(operation);
        assert!(
            state.try_apply(operation, outcome),
            "{operation:?} returned {outcome:?} in {state:?}"
        );
    }
    let programs: Vec<Vec<Operation>> =
        (0..threads).map(|_| (0..steps).map(|_| random.operation()).collect()).collect();
    let histories = run_programs(&executor, &programs);
    library.vmm.check().expect("the ledger is consistent");
    assert_eq!(library.vmm.quarantined_ranges(), []);
    let after = executor.observe_and_release();
    if !order::serial_order_exists(&state, &histories, &after) {
        for (number, history) in histories.iter().enumerate() {
            for Event { operation, outcome, begun, ended } in history {
                println!("thread {number}, {begun} to {ended}: {operation:?}: {outcome:?}");
            }
        }
        panic!("no serial order has these results:\nfrom {state:?}\nto {after:?}");
    }
    executor.free_all();
}
