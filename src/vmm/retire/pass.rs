//! A pass over the pending mappings: reads their signals, and unmaps or quarantines them.

use super::submission_queue::SubmissionQueue;
use super::{RetireFailure, RetireReport};
use crate::error::{Error, ErrorKind, Operation, Problem};
use crate::signal::SignalCondition;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock, thread};
use crate::vmm::ledger::AddressRange;
use crate::vmm::owned::Mapping;
use crate::vmm::{ExpectedMappings, Shared, Vmm};
use core::time::Duration;
use hsa_sys::hsa_signal_t;
use smallvec::SmallVec;
use std::collections::TryReserveError;
use std::time::Instant;

/// The maximum number of signals of a mapping. [`Signals`] stores up to this number of signals inline, so that a
/// submission does not allocate.
pub(super) const MAX_SIGNALS: usize = 8;

pub(super) type Signals = SmallVec<[(hsa_signal_t, SignalCondition); MAX_SIGNALS]>;

/// The pause after a pass that made progress. Each pass without progress doubles the pause, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// The limit of the pause after a pass that took long: the process may have been stopped during the pass.
const LONGEST_PAUSE_AFTER_LONG_PASS: Duration = Duration::from_millis(100);
/// The number of passes over an empty queue after which the thread sleeps until another thread wakes it. Waking costs a
/// system call. While mappings are submitted steadily, the thread does not sleep, and submissions avoid this call.
const PASSES_BEFORE_SLEEP: u32 = 20;

/// A submitted mapping.
#[derive(Debug)]
pub(super) struct Retirement {
    pub number: u64,
    pub range: AddressRange,
    pub serial: u64,
    /// The owned mapping; `None` for a mapping that was submitted by its address.
    pub mapping: Option<Mapping>,
    /// The signals whose conditions have not held yet.
    pub signals: Signals,
    /// When the time limit passes; `None` if the limit is too large for an [`Instant`].
    pub deadline: Option<Instant>,
}

/// The part of a queue that is shared with its thread.
#[derive(Debug)]
pub(super) struct Core {
    pub vmm: Vmm,
    pub limit: Duration,
    pub submissions: SubmissionQueue<Retirement>,
    /// Locked during the whole pass, including its runtime calls.
    pending: Mutex<Pending>,
    /// Whether the thread sleeps, or is about to sleep, until another thread wakes it.
    sleeps: AtomicBool,
    /// Whether the queue was dropped. If set, the thread ends when nothing is pending.
    ended: AtomicBool,
}

#[derive(Debug)]
struct Pending {
    /// The retirements that have not ended, ordered by their numbers in [`Core::submissions`].
    retirements: Vec<Retirement>,
    /// The number of the next retirement to take from [`Core::submissions`].
    next: u64,
    report: RetireReport,
}

/// The pause between two passes, which grows while there is no progress.
struct Backoff(Duration);

impl Backoff {
    /// Returns the pause after a pass. If no signal fires and each pass takes at most 25 ms, the thread is busy for at
    /// most a fifth of the time.
    fn after(&mut self, started: Instant, made_progress: bool) -> Duration {
        if made_progress {
            self.0 = FIRST_PAUSE;
            return self.0;
        }
        self.0 = (2 * self.0).min(LONGEST_PAUSE);
        self.0.max(started.elapsed().saturating_mul(4)).min(LONGEST_PAUSE_AFTER_LONG_PASS)
    }
}

impl Core {
    /// Creates an empty queue for at most `capacity` mappings. `limit` is the time limit of each mapping.
    ///
    /// # Errors
    /// If memory for this capacity cannot be allocated.
    pub fn new(vmm: Vmm, capacity: usize, limit: Duration) -> Result<Self, TryReserveError> {
        let (next, report) = (0, RetireReport::default());
        let mut retirements = Vec::new();
        retirements.try_reserve_exact(capacity)?;
        Ok(Self {
            vmm,
            limit,
            submissions: SubmissionQueue::new(capacity)?,
            pending: Mutex::new(Pending { retirements, next, report }),
            sleeps: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    /// Marks the thread as awake. Returns `true` if the thread was asleep; the caller must then wake it.
    pub fn begin_wake(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst)
    }

    /// Makes the thread end when nothing is pending.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Makes passes until the queue is dropped and nothing is pending. The thread runs this function.
    pub fn run(&self) {
        let (mut backoff, mut empty_passes) = (Backoff(FIRST_PAUSE), 0);
        loop {
            let mut pending = lock(&self.pending);
            // Reads the time after locking, so that waiting for another thread's pass does not count as this thread's
            // work.
            let started = Instant::now();
            let made_progress = self.pass(&mut pending);
            drop(pending);
            let is_empty = self.submissions.reserved() == 0;
            if is_empty && self.ended.load(Ordering::SeqCst) {
                return;
            }
            empty_passes = if is_empty && !made_progress { empty_passes + 1 } else { 0 };
            let pause = backoff.after(started, made_progress);
            if empty_passes < PASSES_BEFORE_SLEEP {
                thread::sleep(pause);
                continue;
            }
            // A submitting thread stores its retirement before it reads `sleeps`. Therefore either the submitting
            // thread wakes this thread, or this thread finds the retirement here.
            self.sleeps.store(true, Ordering::SeqCst);
            if self.submissions.reserved() == 0 && !self.ended.load(Ordering::SeqCst) {
                thread::park();
            }
            self.sleeps.store(false, Ordering::SeqCst);
            (backoff, empty_passes) = (Backoff(FIRST_PAUSE), 0);
        }
    }

    /// Makes passes until every retirement that was submitted before this call has ended, or until `deadline`. Returns
    /// the report.
    pub fn drain(&self, deadline: Option<Instant>) -> RetireReport {
        let (end, mut backoff) = (self.submissions.next(), Backoff(FIRST_PAUSE));
        loop {
            let mut pending = lock(&self.pending);
            let started = Instant::now();
            let made_progress = self.pass(&mut pending);
            let oldest = pending.retirements.first().map_or(pending.next, |it| it.number);
            let remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if oldest >= end || remaining == Some(Duration::ZERO) {
                let report = core::mem::take(&mut pending.report);
                return RetireReport { pending: self.submissions.reserved(), ..report };
            }
            drop(pending);
            let pause = backoff.after(started, made_progress);
            thread::sleep(remaining.map_or(pause, |remaining| remaining.min(pause)));
        }
    }

    /// Takes new submissions, and ends the retirements whose signals have fired or whose time limit has passed. Returns
    /// whether it took or ended any.
    fn pass(&self, pending: &mut Pending) -> bool {
        // Reads the time before the signals, so that a signal that fires in time never counts as late.
        let now = Instant::now();
        let Pending { retirements, next, report } = pending;
        let first_new = *next;
        while let Some(new) = self.submissions.take(*next) {
            retirements.push(new);
            *next += 1;
        }
        let count = retirements.len();
        retirements.retain_mut(|it| {
            let ended = self.end_if_due(it, now, report);
            if ended {
                self.submissions.finish();
            }
            !ended
        });
        retirements.len() < count || *next > first_new
    }

    /// Unmaps a mapping whose signals have fired. Quarantines it if unmapping fails twice, or if its time limit has
    /// passed first. Returns whether the retirement has ended.
    fn end_if_due(
        &self,
        retirement: &mut Retirement,
        now: Instant,
        report: &mut RetireReport,
    ) -> bool {
        let shared = &*self.vmm.shared;
        let mut unmet = None;
        retirement.signals.retain(|(signal, condition)| {
            // SAFETY: the caller of `submit` guarantees that the signals exist until the retirement ends.
            let value = unsafe { shared.native().load_signal(*signal) };
            let holds = value.is_some_and(|value| condition.holds(value));
            if !holds {
                unmet = Some((signal.handle, *condition, value.unwrap_or_default()));
            }
            !holds
        });
        let result = match unmet {
            None => Operation::Unmap.run(|| {
                let expected = ExpectedMappings::Only(core::slice::from_ref(&retirement.serial));
                let range = [retirement.range];
                let unmap = || shared.unmap_and_map(Operation::Unmap, &range, expected, &mut []);
                // Tries twice: after a failure that was rolled back, the second call can succeed.
                unmap().or_else(|failure| match failure {
                    ErrorKind::Quarantined { .. } => Err(failure),
                    _ => unmap(),
                })
            }),
            Some((signal, condition, value)) => {
                if retirement.deadline.is_none_or(|deadline| now < deadline) {
                    return false;
                }
                let limit = self.limit;
                let kind = ErrorKind::NotSignaled { signal, condition, value, limit };
                Err(Error::new(Operation::Retire, kind))
            }
        };
        match result {
            Ok(()) => report.retired += 1,
            Err(mut error) => {
                // Another call has unmapped the mapping if the error is `NotMapped`. If the reservation is quarantined,
                // the mapping need not exist any more.
                let quarantined = !matches!(error.problem(), Some(Problem::NotMapped(_)))
                    && (shared.quarantine_mapping(retirement.range, retirement.serial, &error)
                        || matches!(error.kind(), ErrorKind::Quarantined { .. }));
                if !quarantined && matches!(error.kind(), ErrorKind::NotSignaled { .. }) {
                    // The mapping does not exist any more: a call by address has unmapped it.
                    let problem = Problem::NotMapped(retirement.range.address());
                    error = Error::new(Operation::Unmap, retirement.range.invalid(problem));
                }
                let (address, size) = (retirement.range.address(), retirement.range.size);
                crate::log::event!(WARN, %error, %address, size, quarantined, "a mapping was not retired");
                if report.failures.len() < self.submissions.capacity() {
                    report.failures.push(RetireFailure { address, size, error, quarantined });
                }
            }
        }
        // The ledger has the mapping's final state, so dropping the owned value must not unmap.
        if let Some(mapping) = &mut retirement.mapping {
            mapping.unmaps_on_drop = false;
        }
        true
    }
}

impl Shared {
    /// Quarantines a single mapping: it stays mapped, and operations on it fail. Returns `false` if this mapping does
    /// not exist any more.
    fn quarantine_mapping(&self, range: AddressRange, serial: u64, error: &Error) -> bool {
        let Some(reservation) = self.ledger.reservations.find(range.start) else { return false };
        // Also locks a quarantined reservation, because the operation that has quarantined it may still be changing its
        // mappings.
        let _guard = reservation.lock_unchecked();
        let found = reservation.mappings().exact(range);
        if found.is_none_or(|it| it.serial != serial) {
            return false;
        }
        if reservation.mappings().quarantined(serial).is_none() {
            let failure = error.kind().clone();
            let entry = self.list_quarantine(error.operation(), range, failure, None);
            reservation.mappings_mut().mark_quarantined(serial, entry);
        }
        true
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    /// A debugger or `SIGSTOP` can stop the process for any time during a pass.
    #[test]
    fn long_pass_does_not_stall_the_queue() {
        let mut backoff = Backoff(FIRST_PAUSE);
        let started = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let pause = backoff.after(started, false);
        assert!(pause <= Duration::from_secs(1), "{pause:?}");
    }
}
