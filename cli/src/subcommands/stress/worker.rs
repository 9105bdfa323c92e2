//! A worker process: warms up, counts its resources, runs the scenario, releases everything and counts
//! again. If a count has grown, the process repeats the scenario: only a count that grows again is a leak.

use super::arguments::{Stress, WorkerTask};
use super::measure::ResourceCounts;
use super::message::{Message, ProcessResult, Progress};
use super::scenario::Scenario;
use super::shared_state::SharedState;
use super::{limits, mixed};
use fastrand::Rng;
use hsa_vmm::{Runtime, Vmm};
use hsa_vmm_conformance::worker::{Messages, connect_to_parent};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The descriptor limit in the scenario "descriptors": low enough to be reached.
const DESCRIPTOR_LIMIT: u64 = 256;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Set when the parent ends the scenario.
static STOP: AtomicBool = AtomicBool::new(false);
/// Never set, for runs that the parent cannot end.
static NEVER_STOP: AtomicBool = AtomicBool::new(false);

/// Runs the scenario in this process.
pub fn run(args: &Stress, task: &WorkerTask) -> anyhow::Result<()> {
    let (mut requests, messages) = connect_to_parent()?;
    let scenario = task.scenario;
    // The parent sends no requests, but closes the socket to end the scenario.
    thread::spawn(move || {
        while let Ok(Some(serde::de::IgnoredAny)) = requests.receive() {}
        // Keep the descriptor open: closing it would hide the leak of another descriptor.
        std::mem::forget(requests);
        STOP.store(true, Ordering::Relaxed);
    });
    if scenario == Scenario::Descriptors {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: Some(DESCRIPTOR_LIMIT), ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    }
    let runtime = match args.common.runtime.open() {
        Ok(runtime) => runtime,
        Err(error) => return Ok(messages.send(&Message::NoRuntime(crate::error_message(&error)))?),
    };
    let simulation = runtime.info().path.is_none();
    messages.send(&Message::Started { simulation })?;
    let vmm = Vmm::open(&runtime)?;
    let result = match skip_reason(&runtime, scenario) {
        Some(why) => ProcessResult { skipped: Some(why), ..ProcessResult::default() },
        None => run_and_measure(args, task, &runtime, &vmm, &messages)?,
    };
    Ok(messages.send(&Message::Done(Box::new(result)))?)
}

/// Returns the reason why the scenario does not apply to a runtime.
fn skip_reason(runtime: &Runtime, scenario: Scenario) -> Option<String> {
    if runtime.gpus().next().is_none() {
        return Some("there is no GPU".to_owned());
    }
    let has_large_bar = runtime.gpus().all(|gpu| gpu.large_bar);
    (scenario == Scenario::Mappings && !has_large_bar)
        .then(|| "no large BAR: the CPU does not map the GPUs' memory".to_owned())
}

/// Runs the scenario and returns its result, with the resources that it leaked.
fn run_and_measure(
    args: &Stress,
    task: &WorkerTask,
    runtime: &Runtime,
    vmm: &Vmm,
    messages: &Messages,
) -> anyhow::Result<ProcessResult> {
    let (scenario, time) = (task.scenario, Duration::from_millis(task.milliseconds));
    let seed = task.seed ^ u64::from(task.number) << 48;
    // A runtime allocates some resources once, or once per thread. The warm-up causes these allocations.
    let warm_up_time = (time / 10).min(Duration::from_secs(2));
    let state = SharedState::new(runtime, vmm, scenario, &STOP, warm_up_time);
    // The warm-up and the measured run make different random choices.
    run_threads(args, &state, seed ^ 0x5eed, false, messages)?;
    let (_, unexpected) = state.errors();
    let before = ResourceCounts::now(runtime, vmm);

    let state = SharedState::new(runtime, vmm, scenario, &STOP, time.saturating_sub(warm_up_time));
    let began = Instant::now();
    run_threads(args, &state, seed, true, messages)?;
    let took = began.elapsed();
    let mut result = ProcessResult {
        operations: state.operations.load(Ordering::Relaxed),
        microseconds: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        most: state.max_held.load(Ordering::Relaxed),
        limit: state.limit.load(Ordering::Relaxed),
        unexpected,
        ..ProcessResult::default()
    };
    result.add_errors(state);
    result.leaks = before.leaks(|| ResourceCounts::now(runtime, vmm));
    // A resource that a runtime allocates late and keeps does not grow again. A leak grows again.
    if !result.leaks.is_empty() {
        let before = ResourceCounts::now(runtime, vmm);
        let mut repeat = |stop, time| -> anyhow::Result<()> {
            let state = SharedState::new(runtime, vmm, scenario, stop, time);
            run_threads(args, &state, seed, true, messages)?;
            result.add_errors(state);
            Ok(())
        };
        repeat(&STOP, time.saturating_sub(warm_up_time))?;
        // If the run was interrupted, a short run suffices to distinguish leaks from kept resources.
        if STOP.load(Ordering::Relaxed) {
            repeat(&NEVER_STOP, warm_up_time)?;
        }
        let repeated = before.leaks(|| ResourceCounts::now(runtime, vmm));
        result.leaks.retain(|leak| repeated.iter().any(|other| other.what == leak.what));
    }
    if let Err(error) = vmm.check() {
        result.unexpected.insert(format!("the library's ledger is inconsistent: {error}"), 1);
    }
    Ok(result)
}

impl ProcessResult {
    fn add_errors(&mut self, state: SharedState<'_>) {
        let (expected, unexpected) = state.errors();
        for (errors, more) in [(&mut self.expected, expected), (&mut self.unexpected, unexpected)] {
            for (error, count) in more {
                *errors.entry(error).or_default() += count;
            }
        }
    }
}

/// Runs the scenario in all threads until the scenario ends.
fn run_threads(
    args: &Stress,
    state: &SharedState<'_>,
    seed: u64,
    warmed_up: bool,
    messages: &Messages,
) -> anyhow::Result<()> {
    let threads = args.threads;
    let leak = args.leak.filter(|_| warmed_up);
    thread::scope(|scope| {
        let work = |number: u32| {
            let rng = Rng::with_seed(seed ^ u64::from(number) << 32);
            match state.scenario {
                Scenario::Mixed => mixed::run_mixed(state, rng, leak),
                Scenario::Vram => {
                    limits::run_vram(state, rng, (threads * args.processes) as usize);
                }
                Scenario::Descriptors => limits::run_descriptors(state, rng),
                Scenario::Mappings => limits::run_mappings(state, rng),
            }
        };
        // The name is visible in process lists.
        let name = if warmed_up { state.scenario.name() } else { "warm up".to_owned() };
        let spawn = |number: u32| {
            let thread = thread::Builder::new().name(name.clone());
            thread.spawn_scoped(scope, move || work(number))
        };
        let threads: Vec<_> = (1..=threads).map(spawn).collect::<Result<_, _>>()?;
        let mut last_sent = Instant::now();
        let mut releasing = false;
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(5));
            if last_sent.elapsed() > PROGRESS_INTERVAL || (!releasing && !state.is_running()) {
                last_sent = Instant::now();
                releasing = !state.is_running();
                let progress = Progress {
                    operations: state.operations.load(Ordering::Relaxed),
                    held: state.held.load(Ordering::Relaxed),
                    limit: state.limit.load(Ordering::Relaxed),
                };
                messages.send(&match releasing {
                    true => Message::Releasing(progress),
                    false => Message::Progress(progress),
                })?;
            }
        }
        let panicked = threads.into_iter().any(|thread| thread.join().is_err());
        if panicked {
            state.report_unexpected("a thread panicked");
        }
        Ok(())
    })
}
