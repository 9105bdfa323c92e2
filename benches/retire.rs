//! Measures the time to submit a mapping to a retire queue.
//!
//! ```sh
//! cargo bench -p hsa-vmm-bench --bench retire
//! ```
//!
//! Runs on the simulation. A submission makes no call of the runtime, so the simulation does not affect the figures.
//! A batch of submissions fills the queue. If the queue has a thread, this thread reads the signals of earlier
//! submissions of the batch during the measurement.

use hsa_vmm::hsa_sys::hsa_signal_t;
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::{RetireQueue, SignalCondition};
use hsa_vmm::{Allocation, AllocationProperties, Error, Mapping, Reservation, Runtime, Vmm};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: usize = 64 << 10;
const BATCH: usize = 512;
const BATCHES: usize = 40;

type Condition = (hsa_signal_t, SignalCondition);

/// Submits a mapping without waiting for its retirement.
fn submit(queue: &RetireQueue, mapping: Mapping, signals: &[Condition]) -> Result<(), Error> {
    // SAFETY: the signals exist until the runtime stops, after the queue is dropped.
    Ok(unsafe { queue.submit(mapping, signals) }?)
}

/// Submits batches to a queue with or without its own thread. Divides each batch between `threads` threads, and
/// computes the nanoseconds per submission for each thread. Returns the median and the maximum over all threads of
/// all batches.
fn measure(
    vmm: &Vmm,
    signals: &[Condition],
    set_fired: &(dyn Fn(bool) + Sync),
    (threads, with_thread): (usize, bool),
) -> Result<(f64, f64), Error> {
    let gpu = vmm.runtime().gpus().next().map(|gpu| gpu.id());
    let properties = AllocationProperties::on(gpu.unwrap_or(vmm.runtime().host().id()));
    let memory = Allocation::create(vmm, SIZE, &properties)?;
    let builder = RetireQueue::builder(BATCH).with_time_limit(Duration::from_secs(60));
    let builder = if with_thread { builder } else { builder.without_thread() };
    let queue = Arc::new(builder.open(vmm)?);
    let reservation = Reservation::builder(BATCH * SIZE).reserve(vmm)?;
    let mut times = Vec::new();
    for _ in 0..BATCHES {
        set_fired(false);
        let mut mappings = (0..BATCH).map(|index| reservation.map(index * SIZE, &memory));
        let mut parts: Vec<Vec<Mapping>> = Vec::new();
        for _ in 0..threads {
            parts.push(mappings.by_ref().take(BATCH / threads).collect::<Result<_, _>>()?);
        }
        let batch: Vec<_> = std::thread::scope(|scope| {
            let run = |part: Vec<Mapping>| {
                let queue = &queue;
                scope.spawn(move || {
                    let count = part.len() as f64;
                    let begun = Instant::now();
                    for mapping in part {
                        submit(queue, mapping, signals)?;
                    }
                    Ok(begun.elapsed().as_nanos() as f64 / count)
                })
            };
            let threads: Vec<_> = parts.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        });
        times.extend(batch.into_iter().collect::<Result<Vec<f64>, Error>>()?);
        set_fired(true);
        let report = queue.drain(Duration::from_secs(60))?;
        assert!(report.failures.is_empty() && report.pending == 0, "{report:?}");
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[times.len() - 1]))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::simulated(Config::mi300x(1))?;
    let vmm = Vmm::open(&runtime)?;
    let core = runtime.simulation().ok_or("no simulation")?.table().core;
    let create = core.hsa_signal_create.ok_or("no signals")?;
    let store = core.hsa_signal_store_screlease.ok_or("no signals")?;
    let mut signals = Vec::new();
    for _ in 0..RetireQueue::MAX_SIGNALS {
        let mut signal = hsa_signal_t { handle: 0 };
        // SAFETY: no consumers are named, and `signal` is writable.
        unsafe { create(1, 0, std::ptr::null(), &mut signal) };
        signals.push((signal, SignalCondition::AtMost(0)));
    }
    let set_fired = |fired: bool| {
        for (signal, _) in &signals {
            // SAFETY: the signals exist until the runtime stops.
            unsafe { store(*signal, i64::from(!fired)) };
        }
    };
    println!(
        "Nanoseconds per submission, median and slowest of {BATCHES} batches of {BATCH} submissions:"
    );
    println!("threads signals  unmapped by  median slowest");
    for (threads, with_thread, count) in
        [(1, false, 1), (1, true, 1), (1, true, 8), (2, true, 1), (4, true, 1)]
    {
        let (median, slowest) =
            measure(&vmm, &signals[..count], &set_fired, (threads, with_thread))?;
        let unmapped_by = if with_thread { "the queue" } else { "the caller" };
        println!("{threads:>7} {count:>7}  {unmapped_by:<11}  {median:>6.0} {slowest:>7.0}");
    }
    Ok(())
}
