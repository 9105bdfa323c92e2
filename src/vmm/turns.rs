//! Which calls of the runtime may be under way at the same time.
//!
//! Before ROCm 10, `hsa_amd_vmem_export_shareable_handle`, `…_import_shareable_handle` and
//! `…_get_alloc_properties_from_handle` read or change the runtime's table of handles without
//! taking its lock (`runtime.cpp`; with threads they were seen to fail and to crash). Here they
//! wait for the calls that they would race with, and those for them. Nothing else waits: two
//! operations on different reservations never do.

use crate::sync::{Condvar, Mutex, lock};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// What a call does to the runtime's table of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Reads it under the runtime's lock: map.
    Read,
    /// Changes it under the runtime's lock: create, release.
    Change,
    /// Reads it without the lock: export, properties.
    UnlockedRead,
    /// Changes it without the lock: import.
    UnlockedChange,
}

impl Turn {
    /// Whether a call of this kind would race with one of the other.
    fn races_with(self, other: Self) -> bool {
        use Turn::{Change, UnlockedChange, UnlockedRead};
        let either = |kind| self == kind || other == kind;
        either(UnlockedChange) || either(UnlockedRead) && either(Change)
    }
}

/// Calls under way and calls that wait, in the order in which they came.
#[derive(Debug, Default)]
struct Queue {
    running: Vec<Turn>,
    waiting: VecDeque<(u64, Turn)>,
    next: u64,
}

impl Queue {
    /// Whether the call of this number may begin: nothing that it races with is under way or has
    /// waited longer.
    fn may_begin(&self, number: u64, turn: Turn) -> bool {
        let before = self.waiting.iter().take_while(|&&(other, _)| other != number);
        !self.running.iter().any(|&other| turn.races_with(other))
            && !before.into_iter().any(|&(_, other)| turn.races_with(other))
    }
}

/// Lets calls take turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Turns {
    /// Makes a call when nothing that it would race with is under way.
    pub fn take<T>(&self, turn: Turn, call: impl FnOnce() -> T) -> T {
        let mut queue = lock(&self.queue);
        let number = queue.next;
        queue.next += 1;
        if !queue.may_begin(number, turn) {
            queue.waiting.push_back((number, turn));
            while !queue.may_begin(number, turn) {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.waiting.retain(|&(other, _)| other != number);
        }
        queue.running.push(turn);
        drop(queue);
        let _ended = Ended { turns: self, turn };
        call()
    }
}

/// Ends a turn, also if the call panics.
struct Ended<'a> {
    turns: &'a Turns,
    turn: Turn,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.turns.queue);
        if let Some(at) = queue.running.iter().position(|&turn| turn == self.turn) {
            queue.running.swap_remove(at);
        }
        let somebody_waits = !queue.waiting.is_empty();
        drop(queue);
        // It is a system call, whether anybody waits or not.
        if somebody_waits {
            self.turns.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Turn::{Change, Read, UnlockedChange, UnlockedRead};
    use super::{Turn, Turns};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    const ALL: [Turn; 4] = [Read, Change, UnlockedRead, UnlockedChange];

    #[test]
    fn only_races_are_kept_apart() {
        let apart = |one: Turn, other: Turn| one.races_with(other);
        for one in ALL {
            for other in ALL {
                assert_eq!(apart(one, other), apart(other, one), "{one:?} {other:?}");
            }
            assert!(apart(one, UnlockedChange), "{one:?}");
        }
        for (one, other) in [(Read, Read), (Read, Change), (Change, Change)] {
            assert!(!apart(one, other), "the runtime's own lock does that");
        }
        assert!(!apart(UnlockedRead, UnlockedRead) && !apart(UnlockedRead, Read));
        assert!(apart(UnlockedRead, Change));
    }

    /// Calls that do not race are under way at the same time: each waits for the other inside.
    #[test]
    fn what_does_not_race_does_not_wait() {
        let turns = Arc::new(Turns::default());
        for (one, other) in [(Read, Read), (Read, UnlockedRead), (UnlockedRead, UnlockedRead)] {
            let inside = Arc::new(Barrier::new(2));
            let thread = {
                let (turns, inside) = (turns.clone(), inside.clone());
                std::thread::spawn(move || turns.take(one, || inside.wait()))
            };
            turns.take(other, || inside.wait());
            thread.join().unwrap();
        }
    }

    #[test]
    fn what_races_waits_and_everybody_has_a_turn() {
        let turns = Arc::new(Turns::default());
        let changing = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let (turns, changing, done) = (turns.clone(), changing.clone(), done.clone());
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        if number == 0 {
                            turns.take(UnlockedChange, || {
                                assert!(!changing.swap(true, Ordering::SeqCst));
                                std::thread::sleep(Duration::from_micros(10));
                                changing.store(false, Ordering::SeqCst);
                            });
                        } else {
                            turns.take(ALL[number % 3], || {
                                assert!(!changing.load(Ordering::SeqCst));
                            });
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(done.load(Ordering::Relaxed), 8 * 200);
    }

    #[test]
    fn a_turn_ends_when_its_call_panics() {
        let turns = Turns::default();
        let call = || turns.take(UnlockedChange, || panic!("planted"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        turns.take(UnlockedChange, || ());
    }
}
