//! Threads that retire mappings whose signals fire at random, late or never.

use crate::machine::{Library, access};
use crate::signals::Signal;
use hsa_vmm::error::Rejected;
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Access, Address, Allocation, ErrorKind, Reservation};
use std::collections::BTreeSet;
use std::mem::take;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// The size of a mapping in bytes.
const SIZE: usize = 64 << 10;
/// The number of mappings that fit into a thread's reservation. Mappings with late signals stay in their slots, so
/// there must be more slots than such mappings.
const SLOTS: usize = 256;
/// How long a worker sleeps before it tries again, so that the queue's own thread can run.
const PAUSE: Duration = Duration::from_micros(100);
/// On average, one of `LATE_SUBMISSION_INTERVAL` submissions has signals that fire too late or never.
const LATE_SUBMISSION_INTERVAL: usize = 250;

/// The parameters of a load test.
pub struct Load<'a> {
    pub library: &'a Library,
    pub threads: usize,
    /// The number of retirements of each thread.
    pub retirements_per_thread: usize,
    /// The capacity of the queue.
    pub capacity: usize,
    /// The queue's time limit for signals.
    pub time_limit: Duration,
    /// Fails if an agent cannot read the byte at an address.
    pub read: &'a (dyn Fn(Address, u8) + Sync),
}

/// The results of a load test.
#[derive(Debug, Default)]
pub struct Outcome {
    pub retired: usize,
    pub quarantined: usize,
    /// Submissions to a full queue.
    pub rejected: usize,
    /// The total time of successful submissions.
    pub submitting: Duration,
}

/// A random number generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }
}

/// A submitted mapping.
struct Pending {
    address: Address,
    tag: u8,
    signals: Vec<Signal>,
    /// The number of signals that have fired.
    fired: usize,
    submitted: Instant,
}

/// The mappings that may still be mapped when the workers have ended.
#[derive(Default)]
struct RemainingMappings {
    /// Mappings whose signals fire too late or never.
    late: Vec<Pending>,
    /// Mappings whose signals have fired, perhaps too late.
    possibly_late: Vec<Pending>,
}

impl Load<'_> {
    /// Runs the workers. Fails unless exactly the mappings with late signals are still mapped.
    #[track_caller]
    pub fn run(&self) -> Outcome {
        let queue = RetireQueue::builder(self.capacity).with_time_limit(self.time_limit);
        let queue = queue.open(&self.library.vmm).unwrap();
        let remaining_mappings = Mutex::new(RemainingMappings::default());
        let mut outcome = Outcome::default();
        thread::scope(|scope| {
            let run = |seed| {
                let (queue, remaining_mappings) = (&queue, &remaining_mappings);
                scope.spawn(move || Worker::new(self, queue, seed).run(remaining_mappings))
            };
            let workers: Vec<_> = (1..=self.threads as u64).map(run).collect();
            for worker in workers {
                let (rejected, submitting) = worker.join().expect("a thread has panicked");
                outcome.rejected += rejected;
                outcome.submitting += submitting;
            }
        });
        let report = queue.drain(4 * self.time_limit).unwrap();
        assert_eq!(report.pending, 0);
        outcome.retired = report.retired;
        outcome.quarantined = report.failures.len();
        assert_eq!(
            outcome.retired + outcome.quarantined,
            self.threads * self.retirements_per_thread
        );
        for failure in &report.failures {
            let late = matches!(failure.error.kind(), ErrorKind::NotSignaled { .. });
            assert!(late && failure.quarantined, "{failure:?}");
        }

        // Signals that fire now are too late.
        let RemainingMappings { late: mut remaining, possibly_late } =
            remaining_mappings.into_inner().unwrap();
        let quarantined: BTreeSet<_> = report.failures.iter().map(|it| it.address).collect();
        // If several mappings were at the same address, only the last of them can still be mapped.
        for pending in possibly_late.into_iter().rev() {
            let is_known = remaining.iter().any(|it| it.address == pending.address);
            if quarantined.contains(&pending.address) && !is_known {
                remaining.push(pending);
            }
        }
        for (index, pending) in remaining.iter().enumerate() {
            (self.read)(pending.address, pending.tag);
            if index % 2 == 0 {
                pending.signals.iter().for_each(|signal| signal.set(0));
            }
        }
        thread::sleep(Duration::from_millis(20));
        drop(queue);
        let vmm = &self.library.vmm;
        vmm.check().unwrap();
        let sorted = |all: &mut dyn Iterator<Item = Address>| all.collect::<BTreeSet<_>>();
        let remaining_addresses = remaining.iter().map(|it| {
            (self.read)(it.address, it.tag);
            it.address
        });
        let remaining_addresses = sorted(&mut remaining_addresses.into_iter());
        assert_eq!(remaining_addresses.len(), outcome.quarantined);
        assert_eq!(
            sorted(&mut vmm.quarantined_ranges().iter().map(|it| it.address)),
            remaining_addresses
        );
        assert_eq!(sorted(&mut vmm.mappings().iter().map(|it| it.address)), remaining_addresses);
        assert_eq!(
            vmm.usage().handles,
            remaining_addresses.len(),
            "only the memory of quarantined mappings is left"
        );
        outcome
    }
}

struct Worker<'a> {
    load: &'a Load<'a>,
    queue: &'a RetireQueue,
    reservation: Reservation,
    random: Random,
    /// Submitted mappings whose signals will fire in time.
    pending: Vec<Pending>,
    /// Submitted mappings whose signals fire too late, or never.
    late: Vec<Pending>,
    /// Submitted mappings whose signals have fired, perhaps too late.
    possibly_late: Vec<Pending>,
    /// Signals for new submissions.
    idle: Vec<Signal>,
    /// Fired signals that the retirement of the mapping at the address may still use.
    used: Vec<(Address, Vec<Signal>)>,
    rejected: usize,
    submitting: Duration,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Load<'a>, queue: &'a RetireQueue, seed: u64) -> Self {
        let reservation = Reservation::builder(SLOTS * SIZE).reserve(&load.library.vmm).unwrap();
        let (pending, late, possibly_late) = (Vec::new(), Vec::new(), Vec::new());
        let (idle, used) = (Vec::new(), Vec::new());
        let (rejected, submitting) = (0, Duration::ZERO);
        let random = Random(seed);
        Self {
            load,
            queue,
            reservation,
            random,
            pending,
            late,
            possibly_late,
            idle,
            used,
            rejected,
            submitting,
        }
    }

    fn run(mut self, remaining_mappings: &Mutex<RemainingMappings>) -> (usize, Duration) {
        for number in 0..self.load.retirements_per_thread {
            self.retire(number as u8 | 1);
            // Fires one signal for each submission on average.
            for _ in 0..self.random.below(3) {
                self.fire_one();
            }
        }
        while !self.pending.is_empty() {
            self.fire_one();
        }
        while !self.used.is_empty() {
            self.reclaim_signals();
            thread::sleep(PAUSE);
        }
        let mut remaining = remaining_mappings.lock().unwrap();
        remaining.late.append(&mut self.late);
        remaining.possibly_late.append(&mut self.possibly_late);
        (self.rejected, self.submitting)
    }

    /// Maps new memory in an unused slot, and submits the mapping.
    fn retire(&mut self, tag: u8) {
        let library = self.load.library;
        let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
        let mapping = loop {
            let offset = self.random.below(SLOTS) * SIZE;
            match self.reservation.map(offset, &memory) {
                Ok(mapping) => break mapping,
                // The slot is in use, or the queue has quarantined its mapping because a signal was late.
                Err(error) => {
                    let quarantined = matches!(error.kind(), ErrorKind::Quarantined { .. });
                    assert!(quarantined || error.problem().is_some(), "{error}");
                }
            }
            if self.random.below(4) == 0 {
                self.fire_one();
                self.reclaim_signals();
            }
        };
        // The queue has unmapped the earlier mapping in this slot, so its signals can be used again.
        let (ended, used) =
            take(&mut self.used).into_iter().partition(|it| it.0 == mapping.address());
        self.used = used;
        self.idle.extend(Vec::into_iter(ended).flat_map(|(_, signals)| signals));
        let agents = [library.gpu(0), library.cpu(0)];
        mapping.set_access(&agents.map(|it| access(it, Access::ReadWrite))).unwrap();
        mapping.write(0, &[tag]).unwrap();
        let address = mapping.address();
        let count = 1 + self.random.below(3);
        while self.idle.len() < count {
            self.idle.push(Signal::new(&library.runtime, 1));
        }
        let signals = self.idle.split_off(self.idle.len() - count);
        signals.iter().for_each(|signal| signal.set(1));
        let conditions: Vec<_> = signals.iter().map(|signal| signal.at_most(0)).collect();
        let mut mapping = Some(mapping);
        let submitted = loop {
            let submitted = Instant::now();
            // SAFETY: a signal is destroyed only after the retirement that waits for it has ended.
            let result = unsafe { self.queue.submit(mapping.take().unwrap(), &conditions) };
            match result {
                Ok(()) => break submitted,
                Err(Rejected { value, error }) => {
                    assert!(matches!(error.kind(), ErrorKind::LimitReached { .. }), "{error}");
                    mapping = Some(value);
                    self.rejected += 1;
                    self.fire_one();
                    thread::sleep(PAUSE);
                }
            }
        };
        self.submitting += submitted.elapsed();
        let pending = Pending { address, tag, signals, fired: 0, submitted };
        match self.random.below(LATE_SUBMISSION_INTERVAL) {
            0 => self.late.push(pending),
            _ => self.pending.push(pending),
        }
    }

    /// Fires one signal of a random mapping. Until its last signal fires, the mapping must be readable.
    fn fire_one(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let index = self.random.below(self.pending.len());
        let mapping = &mut self.pending[index];
        (self.load.read)(mapping.address, mapping.tag);
        mapping.fired += 1;
        if mapping.fired < mapping.signals.len() {
            // Signal 0 fires last, below.
            mapping.signals[mapping.fired].set(0);
            return;
        }
        let mapping = self.pending.swap_remove(index);
        // On a busy machine, the last signal may fire after the time limit. The queue may then either unmap or
        // quarantine the mapping.
        if mapping.submitted.elapsed() > self.load.time_limit / 2 {
            mapping.signals[0].set(0);
            self.possibly_late.push(mapping);
            return;
        }
        mapping.signals[0].set(0);
        self.used.push((mapping.address, mapping.signals));
        self.reclaim_signals();
    }

    /// Collects the signals of mappings that the queue has unmapped, for new submissions.
    fn reclaim_signals(&mut self) {
        let vmm = &self.load.library.vmm;
        let mut index = 0;
        while let Some((address, _)) = self.used.get(index) {
            if vmm.mapped_range_at(*address).is_some() {
                index += 1;
                continue;
            }
            let (_, signals) = self.used.swap_remove(index);
            self.idle.extend(signals);
        }
    }
}
