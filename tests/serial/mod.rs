//! Operations of several threads, and whether what they answered and what they left is what some
//! serial order of them would have answered and left.
//!
//! A round has a small world ([`Executor`]) and a program for each thread. It is played, each
//! operation with its answer and when it began and ended, and then an order is looked for
//! ([`order`]) in which a model of that world ([`State`]) gives the same answers and ends the same.
//! An operation that had ended before another began also comes before it in that order.

#![allow(dead_code, reason = "every test binary uses another part")]

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

/// Reservations of a world, granules in each, and allocations of one granule.
pub const RESERVATIONS: usize = 2;
pub const SLOTS: usize = 3;
pub const HANDLES: usize = 3;
/// A CPU and two GPUs.
pub const AGENTS: usize = 3;

/// A granule of a reservation, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub reservation: usize,
    pub number: usize,
}

/// Granules of a reservation that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: Slot,
    pub count: usize,
}

/// What a thread does; reservations, allocations and agents by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Map {
        slot: Slot,
        handle: usize,
    },
    Unmap {
        run: Run,
    },
    Grant {
        run: Run,
        agent: usize,
        access: Access,
    },
    Revoke {
        run: Run,
        agent: usize,
    },
    Ask {
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
    /// Exports; what comes of it is imported and released again.
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
    /// What a successful map does first: from here on a release does not end the allocation.
    Hold {
        handle: usize,
    },
    /// What it does last, when the runtime has mapped: from here on it can be seen.
    Appear {
        slot: Slot,
        handle: usize,
    },
}

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Access(Access),
    Byte(u8),
    Handle(usize),
    Refused(Reason),
}

/// Why an operation was refused.
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

/// An operation that was done, and when.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub operation: Operation,
    pub answer: Answer,
    pub begun: u64,
    pub ended: u64,
}

/// What is one step for those who watch. Only a map has two: between them the runtime maps, which
/// nobody waits for, and the allocation may be released.
fn steps(operation: Operation, answer: Answer) -> Vec<Operation> {
    match (operation, answer) {
        (Operation::Map { slot, handle }, Answer::Done) => {
            vec![Operation::Hold { handle }, Operation::Appear { slot, handle }]
        }
        _ => vec![operation],
    }
}

/// Plays the programs, each in a thread of its own, and returns what each thread saw.
pub fn play(executor: &Executor, programs: &[Vec<Operation>]) -> Vec<Vec<Event>> {
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
                    let answer = executor.execute(operation);
                    let ended = tick();
                    for operation in steps(operation, answer) {
                        history.push(Event { operation, answer, begun, ended });
                    }
                }
                histories.lock().unwrap()[number] = history;
            });
        }
    });
    histories.into_inner().unwrap()
}

/// Plays one round in a new world and fails unless it can be explained by a serial order.
#[track_caller]
pub fn round(library: &Library, threads: usize, steps: usize, random: &mut Random) {
    let executor = Executor::new(library);
    let mut state = State::default();
    // Some of it in one thread, so that there is something to quarrel about.
    for _ in 0..random.below(8) {
        let operation = random.operation();
        let answer = executor.execute(operation);
        assert!(state.admits(operation, answer), "{operation:?} answered {answer:?} in {state:?}");
    }
    let programs: Vec<Vec<Operation>> =
        (0..threads).map(|_| (0..steps).map(|_| random.operation()).collect()).collect();
    let histories = play(&executor, &programs);
    library.vmm.check().expect("the books are right");
    assert_eq!(library.vmm.quarantine(), []);
    let after = executor.observed();
    if !order::exists(&state, &histories, &after) {
        for (number, history) in histories.iter().enumerate() {
            for Event { operation, answer, begun, ended } in history {
                println!("thread {number}, {begun} to {ended}: {operation:?}: {answer:?}");
            }
        }
        panic!("no serial order explains this:\nfrom {state:?}\nto {after:?}");
    }
    executor.clear();
}
