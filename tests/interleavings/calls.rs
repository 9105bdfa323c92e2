//! Records which calls of the runtime overlap.
//!
//! The library logs each call of the runtime while it still holds the call's locks. When a call is logged, this module
//! switches to the other threads, as if the call took long. The module records the calls that the other threads make
//! before the switch back.

use crate::log;
use shuttle::thread::yield_now;
use std::cell::RefCell;
use tracing::Metadata;

/// Calls in which AMD's runtime takes no lock before ROCm 10.
const UNLOCKED: [&str; 3] =
    ["import_shareable_handle", "export_shareable_handle", "get_alloc_properties_from_handle"];
/// All other calls that use handles or mappings. In these calls, the runtime takes a lock.
const LOCKED: [&str; 5] =
    ["handle_create", "handle_release", "vmem_map", "vmem_unmap", "vmem_set_access"];

thread_local! {
    /// The current recording. Shuttle runs all its threads as coroutines of one thread, which share this value.
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// The calls since [`begin_recording`].
#[derive(Clone, Debug, Default)]
pub struct Recording {
    running: Vec<String>,
    /// Pairs of calls: the second began while the first was running.
    pub overlaps: Vec<(String, String)>,
}

impl Recording {
    /// Returns whether two functions of the runtime overlapped, in either order.
    pub fn overlapped(&self, first: &str, second: &str) -> bool {
        let matches = |pair: &(String, String), first, second| {
            pair.0.ends_with(first) && pair.1.ends_with(second)
        };
        let mut pairs = self.overlaps.iter();
        pairs.any(|pair| matches(pair, first, second) || matches(pair, second, first))
    }

    /// Returns the overlaps that are data races in the runtime.
    pub fn races(&self) -> impl Iterator<Item = &(String, String)> {
        self.overlaps
            .iter()
            .filter(|(first, second)| is_race(first, second) || is_race(second, first))
    }
}

/// Returns whether an unlocked call races with a call that overlaps it.
fn is_race(unlocked: &str, overlapping: &str) -> bool {
    let is_unlocked = |call: &str| UNLOCKED.iter().any(|function| call.ends_with(function));
    let is_locked = |call: &str| LOCKED.iter().any(|function| call.ends_with(function));
    is_unlocked(unlocked) && (is_unlocked(overlapping) || is_locked(overlapping))
}

/// Begins a recording. Until [`end_recording`], every call of the runtime switches to the other threads.
pub fn begin_recording() {
    RECORDING.set(Some(Recording::default()));
}

/// Ends the recording, and returns it.
pub fn end_recording() -> Recording {
    RECORDING.take().unwrap_or_default()
}

/// Makes this module receive the log events of the runtime's calls.
pub fn subscribe() {
    let is_call = |metadata: &Metadata<'_>| {
        metadata.target().starts_with("hsa_vmm_interleaved::native")
            && metadata.fields().field("call").is_some()
    };
    log::subscribe(is_call, |fields| {
        for (_, call) in fields.into_iter().filter(|(field, _)| *field == "call") {
            record_and_yield(call);
        }
    });
}

fn record_and_yield(call: String) {
    let begin_call = |recording: &mut Option<Recording>| {
        let Some(recording) = recording else { return false };
        for running in &recording.running {
            recording.overlaps.push((running.clone(), call.clone()));
        }
        recording.running.push(call.clone());
        true
    };
    // Does not borrow the recording during the switch, because the other threads also borrow it.
    if RECORDING.with_borrow_mut(begin_call) {
        yield_now();
        RECORDING.with_borrow_mut(|recording| {
            let running = recording.as_mut().map(|recording| &mut recording.running);
            if let Some(running) = running
                && let Some(index) = running.iter().position(|running| *running == call)
            {
                running.swap_remove(index);
            }
        });
    }
}
