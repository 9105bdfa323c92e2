//! What the threads of a scene share: the runtime, when to stop, and what they have done.

use super::scene::Scene;
use hsa_vmm::{AgentId, Error, Runtime, Vmm};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many different errors are kept.
const KINDS: usize = 20;

/// The stage of a scene.
#[derive(Debug)]
pub struct Stage<'a> {
    pub runtime: &'a Runtime,
    pub vmm: &'a Vmm,
    pub scene: Scene,
    /// Somebody wants it to end.
    pub stop: &'a AtomicBool,
    /// When it ends.
    pub until: Instant,
    pub operations: AtomicU64,
    pub held: AtomicU64,
    pub most: AtomicU64,
    pub limit: AtomicU64,
    /// Held by the thread that counts anew what is held.
    pub counting: Mutex<()>,
    expected: Mutex<BTreeMap<String, u64>>,
    unexpected: Mutex<BTreeMap<String, u64>>,
}

impl<'a> Stage<'a> {
    pub fn new(
        runtime: &'a Runtime,
        vmm: &'a Vmm,
        scene: Scene,
        stop: &'a AtomicBool,
        time: Duration,
    ) -> Self {
        Self {
            runtime,
            vmm,
            scene,
            stop,
            until: Instant::now() + time,
            operations: AtomicU64::new(0),
            held: AtomicU64::new(0),
            most: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            counting: Mutex::default(),
            expected: Mutex::default(),
            unexpected: Mutex::default(),
        }
    }

    /// Whether it goes on.
    pub fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() < self.until
    }

    /// Counts a call of the library, and its error if it is one.
    pub fn call<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(value) => Some(value),
            Err(error) if self.scene.expects(&error) => {
                note(&self.expected, &error.to_string());
                None
            }
            Err(error) => {
                self.wrong(&error.to_string());
                None
            }
        }
    }

    /// Something is not as it must be.
    pub fn wrong(&self, what: &str) {
        note(&self.unexpected, what);
    }

    /// More of what the scene is about is held.
    pub fn holds(&self, more: u64) {
        let held = self.held.fetch_add(more, Ordering::Relaxed) + more;
        self.most.fetch_max(held, Ordering::Relaxed);
    }

    /// So much is held, as somebody else counts it.
    pub fn reaches(&self, held: u64) {
        self.most.fetch_max(held, Ordering::Relaxed);
    }

    /// Less.
    pub fn gives(&self, less: u64) {
        self.held.fetch_sub(less, Ordering::Relaxed);
    }

    /// The processor, if it reaches the memory of the GPUs.
    pub fn cpu(&self) -> Option<AgentId> {
        let reaches = self.runtime.gpus().all(|gpu| gpu.large_bar);
        reaches.then(|| self.runtime.host().id())
    }

    /// The errors that were expected, and those that were not.
    pub fn errors(self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        let inner = |errors: Mutex<_>| errors.into_inner().unwrap_or_else(|e| e.into_inner());
        (inner(self.expected), inner(self.unexpected))
    }
}

fn note(errors: &Mutex<BTreeMap<String, u64>>, text: &str) {
    // Addresses and sizes would make each one another.
    let text: Vec<_> =
        text.split(' ').map(|word| if word.contains("0x") { "…" } else { word }).collect();
    let mut errors = errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let text = text.join(" ");
    if errors.len() < KINDS || errors.contains_key(&text) {
        *errors.entry(text).or_default() += 1;
    }
}
