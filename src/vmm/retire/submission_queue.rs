//! A bounded queue that any thread can add to without allocating or waiting.

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use std::collections::TryReserveError;

/// A ring of slots. A thread that adds a value first reserves a place, and then stores the value in a slot that no
/// other thread uses. The place stays reserved until [`finish`](Self::finish) is called for the value.
///
/// Values get consecutive numbers, and are taken in this order. The number of places that are reserved and not
/// finished is at most the number of slots. The slot of a new number is therefore empty: its previous value was
/// taken out before.
#[derive(Debug)]
pub(super) struct SubmissionQueue<T> {
    /// The storing thread and the taking thread lock a slot's mutex only while they move the value.
    slots: Box<[Mutex<Option<T>>]>,
    /// The number of places that are reserved and not finished.
    reserved: AtomicUsize,
    /// The number of the next value.
    next: AtomicU64,
}

impl<T> SubmissionQueue<T> {
    /// Creates an empty queue with `capacity` slots.
    ///
    /// # Errors
    /// If the slots cannot be allocated.
    pub fn new(capacity: usize) -> Result<Self, TryReserveError> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(capacity)?;
        slots.resize_with(capacity, || Mutex::new(None));
        let slots = slots.into_boxed_slice();
        Ok(Self { slots, reserved: AtomicUsize::new(0), next: AtomicU64::new(0) })
    }

    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of places that are reserved and not finished.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::SeqCst)
    }

    /// Returns the number that the next value will have.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Reserves places for values with consecutive numbers, and returns the first number. Returns `None` if there
    /// are not enough free places.
    pub fn reserve(&self, count: usize) -> Option<u64> {
        let add = |reserved: usize| {
            reserved.checked_add(count).filter(|&reserved| reserved <= self.capacity())
        };
        self.reserved.fetch_update(Ordering::SeqCst, Ordering::Relaxed, add).ok()?;
        Some(self.next.fetch_add(count as u64, Ordering::AcqRel))
    }

    /// Stores the value with a number that [`reserve`](Self::reserve) has returned.
    pub fn store(&self, number: u64, value: T) {
        *lock(self.slot(number)) = Some(value);
    }

    /// Takes the value with a number; `None` if it is not stored yet. Called by one thread at a time, in the order
    /// of the numbers.
    pub fn take(&self, number: u64) -> Option<T> {
        if number >= self.next() { None } else { lock(self.slot(number)).take() }
    }

    /// Ends the reservation of one place, whose value was taken.
    pub fn finish(&self) {
        self.reserved.fetch_sub(1, Ordering::SeqCst);
    }

    fn slot(&self, number: u64) -> &Mutex<Option<T>> {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    #[test]
    fn reserve_fails_until_taken_values_are_finished() {
        let queue = SubmissionQueue::new(2).unwrap();
        for round in 0..5 {
            let first = queue.reserve(2).unwrap();
            assert_eq!(first, 2 * round);
            assert_eq!(queue.reserve(1), None);
            queue.store(first + 1, 'b');
            assert_eq!(queue.take(first), None, "not stored yet");
            queue.store(first, 'a');
            assert_eq!((queue.take(first), queue.take(first + 1)), (Some('a'), Some('b')));
            assert_eq!((queue.reserve(1), queue.reserved()), (None, 2), "taken, but not finished");
            queue.finish();
            queue.finish();
            assert_eq!((queue.reserve(3), queue.reserve(usize::MAX)), (None, None));
        }
    }

    #[test]
    fn values_of_many_threads_are_taken_once() {
        let (queue, threads, values_per_thread) = (SubmissionQueue::new(7).unwrap(), 4, 2000);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for value in 0..values_per_thread {
                        let number = loop {
                            match queue.reserve(1) {
                                Some(number) => break number,
                                None => std::thread::yield_now(),
                            }
                        };
                        queue.store(number, value);
                    }
                });
            }
            let mut sum = 0;
            for number in 0..threads * values_per_thread {
                let value = loop {
                    match queue.take(number) {
                        Some(value) => break value,
                        None => std::thread::yield_now(),
                    }
                };
                sum += value;
                queue.finish();
            }
            assert_eq!(sum, threads * values_per_thread * (values_per_thread - 1) / 2);
        });
        assert_eq!(queue.reserved(), 0);
    }
}
