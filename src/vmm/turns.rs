//! Which calls of the runtime may be under way at the same time.
//!
//! Before ROCm 10, `hsa_amd_vmem_export_shareable_handle`, `…_import_shareable_handle` and
//! `…_get_alloc_properties_from_handle` read or change the runtime's table of handles without
//! taking its lock (`runtime.cpp`; with threads they were seen to fail and to crash). Here they
//! wait for the calls that they would race with, and those for them. Nothing else waits: two
//! operations on different reservations never do.
//!
//! Calls under the runtime's lock are many and the others few. As long as there are none of these,
//! a call only counts itself, and different threads count in different places.

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, thread_number};
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
    /// Whether it is one of the many, that take the runtime's lock.
    fn is_locked(self) -> bool {
        matches!(self, Self::Read | Self::Change)
    }

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

/// How many places threads count in.
const PLACES: usize = 16;

/// Calls under way that have not been through the queue, of some threads. Its size is that of two of
/// the processor's cache lines, so that who counts in one does not slow who counts in another.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count {
    reads: AtomicUsize,
    changes: AtomicUsize,
}

impl Count {
    fn of(&self, turn: Turn) -> &AtomicUsize {
        if turn == Turn::Read { &self.reads } else { &self.changes }
    }
}

/// Lets calls take turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    counts: [Count; PLACES],
    /// How many calls without the runtime's lock are under way or wait. While there are any, all go
    /// through the queue.
    unlocked: AtomicUsize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Turns {
    /// Makes a call when nothing that it would race with is under way.
    pub fn take<T>(&self, turn: Turn, call: impl FnOnce() -> T) -> T {
        if turn.is_locked() {
            // Whoever comes without the lock counts first and looks then, as is done here, so that
            // one of the two sees the other.
            let count = self.counts[place()].of(turn);
            count.fetch_add(1, Ordering::SeqCst);
            let counted = Counted { turns: self, count };
            if self.unlocked.load(Ordering::SeqCst) == 0 {
                return call();
            }
            drop(counted);
            let _queued = self.queue(turn);
            return call();
        }
        self.unlocked.fetch_add(1, Ordering::SeqCst);
        let _unlocked = Unlocked { turns: self };
        let _queued = self.queue(turn);
        call()
    }

    /// Waits in the queue for a turn.
    fn queue(&self, turn: Turn) -> Queued<'_> {
        let mut queue = lock(&self.queue);
        let number = queue.next;
        queue.next += 1;
        let may_begin = |queue: &Queue| queue.may_begin(number, turn) && !self.meets(turn);
        if !may_begin(&queue) {
            queue.waiting.push_back((number, turn));
            while !may_begin(&queue) {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.waiting.retain(|&(other, _)| other != number);
        }
        queue.running.push(turn);
        Queued { turns: self, turn }
    }

    /// Whether a call would race with one that has not been through the queue.
    fn meets(&self, turn: Turn) -> bool {
        [Turn::Read, Turn::Change].into_iter().filter(|&other| turn.races_with(other)).any(
            |other| self.counts.iter().any(|count| count.of(other).load(Ordering::SeqCst) != 0),
        )
    }

    fn tell_those_who_wait(&self, queue: MutexGuard<'_, Queue>) {
        // It is a system call, whether anybody waits or not.
        let somebody_waits = !queue.waiting.is_empty();
        drop(queue);
        if somebody_waits {
            self.changed.notify_all();
        }
    }
}

/// Where this thread counts; threads take the places in turn.
fn place() -> usize {
    thread_number() % PLACES
}

/// Ends a call that has not been through the queue, also if it panics.
struct Counted<'a> {
    turns: &'a Turns,
    count: &'a AtomicUsize,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        if self.turns.unlocked.load(Ordering::SeqCst) != 0 {
            self.turns.tell_those_who_wait(lock(&self.turns.queue));
        }
    }
}

/// Ends a turn that was waited for, also if the call panics.
struct Queued<'a> {
    turns: &'a Turns,
    turn: Turn,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.turns.queue);
        if let Some(at) = queue.running.iter().position(|&turn| turn == self.turn) {
            queue.running.swap_remove(at);
        }
        self.turns.tell_those_who_wait(queue);
    }
}

/// Lets the many pass the queue again.
struct Unlocked<'a> {
    turns: &'a Turns,
}

impl Drop for Unlocked<'_> {
    fn drop(&mut self) {
        self.turns.unlocked.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Turn::{Change, Read, UnlockedChange, UnlockedRead};
    use super::{Turn, Turns};
    use crate::sync::{Mutex, lock};
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
        for turn in ALL {
            let call = || turns.take(turn, || panic!("planted"));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
            turns.take(UnlockedChange, || ());
        }
    }

    #[test]
    fn the_many_pass_the_queue_unless_somebody_is_in_it() {
        let turns = Turns::default();
        let passed = || lock(&turns.queue).next;
        turns.take(Read, || turns.take(Change, || ()));
        assert_eq!(passed(), 0);
        turns.take(UnlockedRead, || turns.take(Read, || ()));
        assert_eq!(passed(), 2);
        turns.take(Change, || ());
        assert_eq!(passed(), 2);
    }

    /// Whoever comes without the lock waits for one that has passed the queue, and is told when it has
    /// ended.
    #[test]
    fn the_few_wait_for_those_who_passed_the_queue() {
        for (many, few) in
            [(Read, UnlockedChange), (Change, UnlockedChange), (Change, UnlockedRead)]
        {
            let turns = Turns::default();
            let has_ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let waiting = turns.take(many, || {
                    let waiting = scope.spawn(|| {
                        turns.take(few, || assert!(has_ended.load(Ordering::SeqCst), "{many:?}"));
                    });
                    while lock(&turns.queue).waiting.is_empty() {
                        std::thread::yield_now();
                        assert!(!waiting.is_finished(), "{few:?} did not wait for {many:?}");
                    }
                    has_ended.store(true, Ordering::SeqCst);
                    waiting
                });
                waiting.join().unwrap();
            });
        }
    }

    /// Those who wait begin in the order in which they came.
    #[test]
    fn who_came_first_begins_first() {
        let turns = Turns::default();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            turns.take(UnlockedChange, || {
                for (number, turn) in
                    [UnlockedChange, Read, UnlockedChange, Change].iter().enumerate()
                {
                    let (turns, order) = (&turns, &order);
                    scope.spawn(move || turns.take(*turn, || lock(order).push(number)));
                    while lock(&turns.queue).waiting.len() <= number {
                        std::thread::yield_now();
                    }
                }
            });
        });
        assert_eq!(*lock(&order), [0, 1, 2, 3]);
    }

    #[test]
    fn threads_count_in_places_of_their_own() {
        let places = std::thread::scope(|scope| {
            let both = [scope.spawn(super::place), scope.spawn(super::place)];
            both.map(|thread| thread.join().unwrap())
        });
        assert_ne!(places[0], places[1]);
        assert_eq!(super::place(), super::place());
    }
}
