//! Unmaps memory later, when signals show that no agent uses it any more.

mod pass;
mod submission_queue;

use super::ledger::AddressRange;
use super::owned::Mapping;
use super::{Address, Vmm};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem, Rejected, Value};
use crate::signal::SignalCondition;
use crate::sync::spawn;
use crate::sync::thread::JoinHandle;
use core::time::Duration;
use derive_more::Debug;
use hsa_sys::hsa_signal_t;
use pass::{Core, Retirement, Signals};
use std::sync::Arc;
use std::time::Instant;

/// A report of a [`RetireQueue`]: what happened since the previous report ([`RetireQueue::poll`],
/// [`RetireQueue::drain`]).
///
/// ```
/// # fn print(queue: &hsa_vmm::vmm::RetireQueue) -> Result<(), hsa_vmm::Error> {
/// let report = queue.poll()?;
/// println!("{} unmapped, {} pending", report.retired, report.pending);
/// for failure in report.failures {
///     println!("{}: {}", failure.address, failure.error);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the report contains the errors"]
#[non_exhaustive]
pub struct RetireReport {
    /// The number of mappings that were unmapped since the previous report.
    pub retired: usize,
    /// The number of mappings that are in the queue now.
    pub pending: usize,
    /// The mappings that have left the queue since the previous report because of an error. The list has at most as
    /// many elements as the queue's capacity; the log contains all failures.
    pub failures: Vec<RetireFailure>,
}

/// A mapping that a [`RetireQueue`] did not unmap, or whose addresses it could not keep reserved.
///
/// ```
/// use hsa_vmm::vmm::RetireQueue;
///
/// fn print_failures(queue: &RetireQueue) -> Result<(), hsa_vmm::Error> {
///     for failure in queue.poll()?.failures {
///         eprintln!("{} was not retired: {}", failure.address, failure.error);
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetireFailure {
    /// The start address of the mapping.
    pub address: Address,
    /// The size in bytes.
    pub size: usize,
    /// The reason: [`ErrorKind::NotSignaled`], or the error of [`Vmm::unmap`].
    pub error: Error,
    /// Whether the mapping or its reservation is quarantined ([`Vmm::quarantined_ranges`]): the addresses are never
    /// used again. The mapping itself may not exist any more: the queue may have unmapped it, but failed to keep its
    /// addresses reserved. If `false`, a call by address unmapped the mapping before the queue did.
    pub quarantined: bool,
}

/// The builder of a [`RetireQueue`]; see [`RetireQueue::builder`].
///
/// ```
/// use hsa_vmm::vmm::RetireQueue;
/// use hsa_vmm::{Error, Vmm};
/// use std::time::Duration;
///
/// fn open(vmm: &Vmm) -> Result<RetireQueue, Error> {
///     RetireQueue::builder(1024).with_time_limit(Duration::from_secs(10)).open(vmm)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "no queue exists before `open`"]
pub struct RetireQueueBuilder {
    capacity: usize,
    limit: Duration,
    has_thread: bool,
}

impl RetireQueueBuilder {
    /// Sets how long the queue waits for the signals of a mapping; the default is ten seconds. If the signals have not
    /// fired by then, the queue quarantines the mapping.
    pub fn with_time_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Creates no thread. Mappings are then unmapped only when the caller calls [`RetireQueue::poll`] or
    /// [`RetireQueue::drain`], or drops the queue.
    pub fn without_thread(self) -> Self {
        Self { has_thread: false, ..self }
    }

    /// Creates the queue and, by default, its thread.
    ///
    /// # Errors
    /// [`Problem::Zero`] for a capacity of 0; [`Problem::OutOfMemory`] if memory for the capacity cannot be
    /// allocated; [`ErrorKind::NotSupported`] if the runtime does not export `hsa_signal_load_scacquire`;
    /// [`ErrorKind::System`] if no thread can be created.
    pub fn open(self, vmm: &Vmm) -> Result<RetireQueue, Error> {
        vmm.run(Operation::OpenQueue, |shared| {
            Argument::Capacity.check_not_zero(self.capacity)?;
            if !shared.native().can_load_signals() {
                return Err(Feature::Function("hsa_signal_load_scacquire").into());
            }
            let core = Core::new(vmm.clone(), self.capacity, self.limit).map_err(|_| {
                ErrorKind::invalid(Argument::Capacity, self.capacity, Problem::OutOfMemory)
            })?;
            let core = Arc::new(core);
            let mut thread = None;
            if self.has_thread {
                let core = core.clone();
                let spawned = spawn("hsa-vmm retire", move || core.run());
                let failed = |error| ErrorKind::of_io("pthread_create", &error);
                thread = Some(spawned.map_err(failed)?);
            }
            Ok(RetireQueue { core, thread })
        })
    }
}

/// A queue that unmaps each of its mappings when HSA signals show that no agent uses the mapping any more.
///
/// Without a queue, a program must wait for a GPU kernel to end before it releases memory that the kernel reads. A
/// retire queue takes the mapping, and unmaps it when all signals of the mapping meet their conditions
/// (`hsa_signal_load_scacquire`). The queue then releases the memory and frees the addresses, if nothing else refers to
/// them. Until then, the addresses stay in use.
///
/// * [`submit`](Self::submit) does not allocate, and waits for no other thread and no call of the runtime. The
///   queue is bounded; if it is full, the error contains the mapping.
/// * A thread of the queue unmaps the mappings. If the queue was built
///   [without a thread](RetireQueueBuilder::without_thread), [`poll`](Self::poll) and [`drain`](Self::drain) unmap
///   them.
/// * Mappings whose signals have fired are unmapped in the order of their submission. A mapping does not wait for the
///   signals of an earlier mapping. A range can only be mapped and submitted again after it was unmapped, so the
///   retirements of a range keep their order.
/// * A mapping whose signals do not fire within the time limit, or that the runtime fails to unmap twice, is
///   quarantined ([`Vmm::quarantined_ranges`]). Its bytes can still be read and written, but calls that unmap it or
///   change its access fail, and its reservation is not freed. If the rollback of a failed unmap also fails, the whole
///   reservation is quarantined, and the library no longer reads or writes its bytes. Dropping the `Vmm` tries again
///   to unmap the mappings whose signals fired in time. The others stay mapped until the process ends, and the runtime
///   stays started.
/// * Calls by address do not wait for the signals: [`Vmm::unmap`] unmaps a mapping that is in the queue immediately,
///   although a GPU may still use it. The report then contains the mapping with [`Problem::NotMapped`].
/// * [`poll`](Self::poll) and [`drain`](Self::drain) return the errors of unmapping; the queue also logs them. If the
///   runtime fails to release memory or to free addresses, this is only logged, as when an owned value is dropped.
/// * Dropping the queue waits until the queue is empty. This takes at most the time limit, plus the time of the runtime
///   calls that unmap.
/// * In a forked child, every fallible call returns [`ErrorKind::Forked`], and dropping the queue does nothing.
///
/// Neither the closure of [`Mapping::with_access`] nor a subscriber of `tracing` may call `poll` or `drain`, or drop
/// the queue: that would deadlock.
///
/// ```
/// use hsa_vmm::vmm::{RetireQueue, SignalCondition};
/// use hsa_vmm::{Allocation, AllocationProperties, Reservation, Runtime, Vmm, hsa_sys};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// # let hsa = &runtime.table().core;
/// # let (create, store) = (hsa.hsa_signal_create.unwrap(), hsa.hsa_signal_store_screlease.unwrap());
/// let reservation = Reservation::builder(2 << 20).reserve(&vmm)?;
/// let memory = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?;
/// let mapping = reservation.map(0, &memory)?;
/// let mut done = hsa_sys::hsa_signal_t { handle: 0 };
/// // The program creates a signal, and submits a kernel (not shown) whose packet names `done` as completion signal.
/// unsafe { create(1, 0, std::ptr::null(), &mut done) };
///
/// let queue = RetireQueue::builder(1024).open(&vmm)?;
/// // SAFETY: the signal is not destroyed before the queue is drained.
/// unsafe { queue.submit(mapping, &[(done, SignalCondition::AtMost(0))]) }?;
/// assert_eq!(vmm.usage().mappings, 1);
/// // The kernel ends.
/// unsafe { store(done, 0) };
/// let report = queue.drain(std::time::Duration::from_secs(5))?;
/// assert_eq!((report.retired, vmm.usage().mappings), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("RetireQueue({} of {} pending)", self.pending(), self.capacity())]
pub struct RetireQueue {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl RetireQueue {
    /// The maximum number of signals of one submission.
    ///
    /// To wait for more signals, combine them into one by a barrier packet on an HSA queue of the caller.
    pub const MAX_SIGNALS: usize = pass::MAX_SIGNALS;

    /// Returns a builder for a queue that holds at most `capacity` mappings. Each page of a
    /// [`PagedBuffer`](crate::buffer::PagedBuffer) is a mapping: the capacity must be at least the number of pages that
    /// one call retires. The queue allocates some 620 bytes for each mapping of its capacity when it is opened.
    pub fn builder(capacity: usize) -> RetireQueueBuilder {
        RetireQueueBuilder { capacity, limit: Duration::from_secs(10), has_thread: true }
    }

    /// Returns the maximum number of mappings in the queue.
    pub fn capacity(&self) -> usize {
        self.core.submissions.capacity()
    }

    /// Returns the number of mappings in the queue. A mapping is not counted any more as soon as it is unmapped.
    /// Its memory and its reservation can be in use for a moment longer; after [`drain`](Self::drain), they are
    /// not, unless the runtime failed to release or free them.
    pub fn pending(&self) -> usize {
        self.core.submissions.reserved()
    }

    /// Submits a mapping. The queue unmaps it when every signal meets its condition, or as soon as possible if
    /// `signals` is empty. Does not allocate and does not wait. If the queue's thread sleeps, wakes the thread.
    ///
    /// A signal counts as fired once the queue has read a value that meets its condition. If a signal is reset before
    /// the queue has read that value, the queue may miss it.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] if the queue is full; [`Problem::ExceedsCapacity`] for more mappings than the
    /// queue's capacity; [`Problem::TooMany`] for more than [`MAX_SIGNALS`](Self::MAX_SIGNALS) signals;
    /// [`Problem::Null`] for a null signal; [`Problem::ForeignHandle`] for a mapping of another `Vmm`;
    /// [`ErrorKind::Quarantined`] if the mapping's reservation is quarantined; [`ErrorKind::Forked`]. The error contains
    /// the mapping. Dropping the error, as the operator `?` does, unmaps the mapping at once, even if an agent still
    /// uses it.
    ///
    /// # Safety
    /// The signals must be signals of the `Vmm`'s runtime, and must not be destroyed before the retirement has
    /// ended. Their conditions must not all hold before every agent has finished using the mapping.
    pub unsafe fn submit(
        &self,
        mapping: Mapping,
        signals: &[(hsa_signal_t, SignalCondition)],
    ) -> Result<(), Rejected<Mapping>> {
        let submitted = self.submit_all([mapping], signals);
        submitted.map_err(|Rejected { value: [mapping], error }| Rejected { value: mapping, error })
    }

    /// Submits many mappings with the same signals, all or none, as [`submit`](Self::submit) does for one mapping.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit); the error contains all mappings.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    pub unsafe fn submit_many(
        &self,
        mappings: Vec<Mapping>,
        signals: &[(hsa_signal_t, SignalCondition)],
    ) -> Result<(), Rejected<Vec<Mapping>>> {
        self.submit_all(mappings, signals)
    }

    /// Submits the mappings that [`Vmm::map`] has created in a range, all or none, as [`submit`](Self::submit) does for
    /// one mapping.
    ///
    /// The caller must not unmap the range afterwards. If the caller does, the report contains the mapping with
    /// [`Problem::NotMapped`], and the queue does not change a new mapping at its addresses.
    ///
    /// # Errors
    /// As for [`Vmm::unmap`] if the range does not consist of whole mappings; otherwise as for
    /// [`submit`](Self::submit).
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    pub unsafe fn submit_range(
        &self,
        address: Address,
        size: usize,
        signals: &[(hsa_signal_t, SignalCondition)],
    ) -> Result<(), Error> {
        self.run(signals, |signals| {
            let range = AddressRange::new(address, size)?;
            let shared = &self.core.vmm.shared;
            let reservation = shared.ledger.reservations.containing(range)?;
            reservation.check_usable()?;
            let mappings = reservation.mappings();
            mappings.check_not_quarantined(mappings.adjacent(range)?.map(|it| it.serial))?;
            let first = self.reserve(mappings.adjacent(range)?.count())?;
            for (number, it) in (first..).zip(mappings.adjacent(range)?) {
                self.store(number, (it.range(), it.serial), None, signals.clone());
            }
            Ok(())
        })?;
        self.wake();
        Ok(())
    }

    /// Unmaps every mapping whose signals meet their conditions. Returns what this call and the queue's thread have
    /// done since the previous report. Does not wait for signals. If another thread is unmapping mappings of this
    /// queue, waits for that thread.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`]. The failures of single mappings are in the report.
    pub fn poll(&self) -> Result<RetireReport, Error> {
        self.drain(Duration::ZERO)
    }

    /// Waits until every mapping that was submitted before this call is unmapped or quarantined, but for at most
    /// `limit`. Returns what happened since the previous report. Mappings that are still in the queue count as
    /// [`RetireReport::pending`].
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    pub fn drain(&self, limit: Duration) -> Result<RetireReport, Error> {
        Operation::Retire.run(|| self.core.vmm.runtime().check_not_forked())?;
        Ok(self.core.drain(Instant::now().checked_add(limit)))
    }

    /// Submits all mappings or none. Does not allocate.
    fn submit_all<M: AsRef<[Mapping]> + IntoIterator<Item = Mapping>>(
        &self,
        mappings: M,
        signals: &[(hsa_signal_t, SignalCondition)],
    ) -> Result<(), Rejected<M>> {
        let reserved = self.run(signals, |signals| {
            let all = mappings.as_ref();
            let vmm = &self.core.vmm;
            if all.iter().any(|it| it.allocation.handle_of(vmm).is_err()) {
                let problem = Problem::ForeignHandle;
                return Err(ErrorKind::without_value(Argument::Mappings, problem));
            }
            all.iter().try_for_each(Mapping::check_addresses_usable)?;
            Ok((self.reserve(all.len())?, signals))
        });
        match reserved {
            Ok((first, signals)) => {
                for (number, it) in (first..).zip(mappings) {
                    self.store(number, (it.range(), it.serial), Some(it), signals.clone());
                }
                self.wake();
                Ok(())
            }
            Err(error) => Err(Rejected { value: mappings, error }),
        }
    }

    /// Checks the signals and calls `act` with them, except in a forked child.
    fn run<T>(
        &self,
        signals: &[(hsa_signal_t, SignalCondition)],
        act: impl FnOnce(Signals) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        self.core.vmm.run(Operation::Retire, |_| {
            if signals.len() > Self::MAX_SIGNALS {
                let count = Value::Count(signals.len());
                let problem = Problem::TooMany(Self::MAX_SIGNALS);
                return Err(ErrorKind::invalid(Argument::Signals, count, problem));
            }
            if let Some(index) = signals.iter().position(|(signal, _)| signal.handle == 0) {
                let value = Value::Number(index as u64);
                return Err(ErrorKind::invalid(Argument::Signal, value, Problem::Null));
            }
            act(Signals::from_slice(signals))
        })
    }

    fn reserve(&self, count: usize) -> Result<u64, ErrorKind> {
        let (table, capacity) = ("pending retirements", self.capacity());
        if count > capacity {
            let problem = Problem::ExceedsCapacity(capacity);
            return Err(ErrorKind::invalid(Argument::Mappings, Value::Count(count), problem));
        }
        let advice = "try again when some have ended (RetireQueue::poll, RetireQueue::drain)";
        let full = ErrorKind::LimitReached { table, limit: capacity, advice };
        self.core.submissions.reserve(count).ok_or(full)
    }

    fn store(
        &self,
        number: u64,
        (range, serial): (AddressRange, u64),
        mapping: Option<Mapping>,
        signals: Signals,
    ) {
        let deadline = Instant::now().checked_add(self.core.limit);
        let retirement = Retirement { number, range, serial, mapping, signals, deadline };
        self.core.submissions.store(number, retirement);
    }

    /// Wakes the thread if it sleeps until a mapping is submitted.
    fn wake(&self) {
        if let Some(thread) = &self.thread
            && self.core.begin_wake()
        {
            thread.thread().unpark();
        }
    }
}

impl Drop for RetireQueue {
    fn drop(&mut self) {
        if self.core.vmm.runtime().has_forked() {
            // Leaks the queue: its thread does not exist in a forked child, and may have held a lock at the fork.
            std::mem::forget((self.core.clone(), self.thread.take()));
            return;
        }
        self.core.end();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                crate::log::event!(ERROR, "the thread of a retire queue has panicked");
            }
        }
        // The loop ends, because every deadline passes within the time limit. If the limit is too large for a deadline,
        // the loop waits for the signals.
        while self.pending() > 0 {
            let _ = self.core.drain(None);
        }
    }
}
