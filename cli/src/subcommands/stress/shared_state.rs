//! The state shared by the threads of a scenario: runtime, time limit, counters and errors.

use super::scenario::Scenario;
use hsa_vmm::{AgentId, Error, Runtime, Vmm};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of different errors that are recorded.
const MAX_ERRORS: usize = 20;

/// The state shared by the threads of a scenario.
#[derive(Debug)]
pub struct SharedState<'a> {
    pub runtime: &'a Runtime,
    pub vmm: &'a Vmm,
    pub scenario: Scenario,
    /// Set to end the scenario early.
    pub stop: &'a AtomicBool,
    /// The time when the scenario ends.
    pub until: Instant,
    pub operations: AtomicU64,
    /// The amount of the scenario's resource that the process holds.
    pub held: AtomicU64,
    /// The maximum of `held`.
    pub max_held: AtomicU64,
    /// The limit of the resource. Zero if it is unknown.
    pub limit: AtomicU64,
    /// Locked by the thread that recounts `held`.
    pub counting: Mutex<()>,
    expected: Mutex<BTreeMap<String, u64>>,
    unexpected: Mutex<BTreeMap<String, u64>>,
}

impl<'a> SharedState<'a> {
    pub fn new(
        runtime: &'a Runtime,
        vmm: &'a Vmm,
        scenario: Scenario,
        stop: &'a AtomicBool,
        time: Duration,
    ) -> Self {
        Self {
            runtime,
            vmm,
            scenario,
            stop,
            until: Instant::now() + time,
            operations: AtomicU64::new(0),
            held: AtomicU64::new(0),
            max_held: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            counting: Mutex::default(),
            expected: Mutex::default(),
            unexpected: Mutex::default(),
        }
    }

    /// Returns whether the scenario continues.
    pub fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() < self.until
    }

    /// Counts a library call, and its error if it failed. Returns the call's value.
    pub fn count<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(value) => Some(value),
            Err(error) if self.scenario.expects(&error) => {
                add_error(&self.expected, &error.to_string());
                None
            }
            Err(error) => {
                self.report_unexpected(&error.to_string());
                None
            }
        }
    }

    /// Records an unexpected error.
    pub fn report_unexpected(&self, what: &str) {
        add_error(&self.unexpected, what);
    }

    pub fn add_held(&self, amount: u64) {
        let held = self.held.fetch_add(amount, Ordering::Relaxed) + amount;
        self.max_held.fetch_max(held, Ordering::Relaxed);
    }

    /// Sets `max_held` to a count of the resource if the count is higher.
    pub fn update_max_held(&self, count: u64) {
        self.max_held.fetch_max(count, Ordering::Relaxed);
    }

    pub fn remove_held(&self, amount: u64) {
        self.held.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Returns the CPU's agent if the CPU can access the memory of all GPUs.
    pub fn cpu(&self) -> Option<AgentId> {
        let can_access_all = self.runtime.gpus().all(|gpu| gpu.large_bar);
        can_access_all.then(|| self.runtime.host().id())
    }

    /// Returns the expected and the unexpected errors, with their counts.
    pub fn errors(self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        let into_map = |errors: Mutex<_>| errors.into_inner().unwrap_or_else(|e| e.into_inner());
        (into_map(self.expected), into_map(self.unexpected))
    }
}

/// Counts an error by its text.
fn add_error(errors: &Mutex<BTreeMap<String, u64>>, text: &str) {
    // Without addresses and sizes, equal errors have equal texts.
    let text: Vec<_> =
        text.split(' ').map(|word| if word.contains("0x") { "…" } else { word }).collect();
    let mut errors = errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let text = text.join(" ");
    if errors.len() < MAX_ERRORS || errors.contains_key(&text) {
        *errors.entry(text).or_default() += 1;
    }
}
