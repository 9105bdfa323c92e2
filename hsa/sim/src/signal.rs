//! Signals: values that one thread changes and another waits for.

use crate::instance::Instance;
use crate::physical;
use crate::status::{HsaResult, non_null};
use hsa_sys::*;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How often a wait checks whether the simulation still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum time that a copy waits for the first read of its signal
/// ([`Config::early_waits`](crate::Config::early_waits)).
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// One signal.
#[derive(Debug)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    value: hsa_signal_value_t,
    /// Whether a caller has loaded or waited for the value.
    read: bool,
}

impl Signal {
    fn new(value: hsa_signal_value_t) -> Self {
        Self { state: Mutex::new(State { value, read: false }), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn load(&self) -> hsa_signal_value_t {
        self.read().0
    }

    pub(crate) fn update(&self, change: impl FnOnce(hsa_signal_value_t) -> hsa_signal_value_t) {
        let mut state = self.state();
        state.value = change(state.value);
        self.changed.notify_all();
    }

    /// Returns the value, and whether this is its first read.
    fn read(&self) -> (hsa_signal_value_t, bool) {
        let mut state = self.state();
        let first = !core::mem::replace(&mut state.read, true);
        if first {
            self.changed.notify_all();
        }
        (state.value, first)
    }

    /// Waits until the condition holds, the timeout expires or the simulation is dropped. Returns
    /// the value.
    pub(crate) fn wait(
        &self,
        instance: &Instance,
        condition: impl Fn(hsa_signal_value_t) -> bool,
        timeout: Option<Duration>,
    ) -> hsa_signal_value_t {
        self.wait_for(instance, |state| condition(state.value), timeout)
    }

    /// Waits until a caller has read the value, at most one second.
    pub(crate) fn wait_until_read(&self, instance: &Instance) {
        self.wait_for(instance, |state| state.read, Some(READ_TIMEOUT));
    }

    fn wait_for(
        &self,
        instance: &Instance,
        done: impl Fn(&State) -> bool,
        timeout: Option<Duration>,
    ) -> hsa_signal_value_t {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state();
        while !done(&state) && !instance.is_dropped() {
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if remaining == Some(Duration::ZERO) {
                break;
            }
            let pause = remaining.map_or(POLL_INTERVAL, |remaining| remaining.min(POLL_INTERVAL));
            let waited = self.changed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.value
    }
}

/// All signals of an instance.
#[derive(Debug)]
pub(crate) struct Signals(RwLock<SignalTable>);

#[derive(Debug)]
struct SignalTable {
    signals: HashMap<u64, Arc<Signal>>,
    next: u64,
}

impl Default for Signals {
    fn default() -> Self {
        // A random start, so that handles of another runtime's signals are rejected.
        let next = physical::random() & !u64::from(u32::MAX) | 1;
        Self(RwLock::new(SignalTable { signals: HashMap::new(), next }))
    }
}

impl Signals {
    pub(crate) fn get(&self, signal: hsa_signal_t) -> Option<Arc<Signal>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.signals.get(&signal.handle).cloned()
    }

    pub(crate) fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).signals.clear();
    }
}

/// `hsa_signal_create`
///
/// # Safety
/// `consumers` must be null or point at `consumer_count` agents, `signal` be null or writable.
pub(crate) unsafe fn create(
    instance: &Instance,
    initial: hsa_signal_value_t,
    consumer_count: u32,
    consumers: *const hsa_agent_t,
    signal: *mut hsa_signal_t,
) -> HsaResult {
    let signal = non_null(signal)?;
    if consumer_count > 0 {
        // SAFETY: the caller promises the array.
        unsafe { instance.agents_of(consumers, consumer_count as usize)? };
    }
    let new_signal = Arc::new(Signal::new(initial));
    let mut table = instance.signals.0.write().unwrap_or_else(PoisonError::into_inner);
    let handle = table.next;
    table.next += 1;
    table.signals.insert(handle, new_signal);
    // SAFETY: not null, and the caller promises the rest.
    unsafe { signal.write(hsa_signal_t { handle }) };
    Ok(())
}

/// `hsa_signal_destroy`
pub(crate) fn destroy(instance: &Instance, signal: hsa_signal_t) -> HsaResult {
    let mut table = instance.signals.0.write().unwrap_or_else(PoisonError::into_inner);
    let removed = table.signals.remove(&signal.handle);
    removed.map(drop).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL)
}

/// `hsa_signal_load_scacquire`; returns 0 for an invalid signal.
pub(crate) fn load(instance: &Instance, signal: hsa_signal_t) -> hsa_signal_value_t {
    instance.signals.get(signal).map_or(0, |signal| signal.load())
}

/// `hsa_signal_store_screlease`
pub(crate) fn store(instance: &Instance, signal: hsa_signal_t, value: hsa_signal_value_t) {
    if let Some(signal) = instance.signals.get(signal) {
        signal.update(|_| value);
    }
}

/// `hsa_signal_wait_scacquire`; returns 0 at once for an invalid signal. With
/// [`Config::early_waits`](crate::Config::early_waits), the first wait returns at once.
pub(crate) fn wait(
    instance: &Instance,
    signal: hsa_signal_t,
    condition: hsa_signal_condition_t,
    compare: hsa_signal_value_t,
    timeout: u64,
    _state: hsa_wait_state_t,
) -> hsa_signal_value_t {
    let Some(signal) = instance.signals.get(signal) else { return 0 };
    let (value, first) = signal.read();
    if first && instance.config.early_waits {
        return value;
    }
    let holds = |value| match condition {
        HSA_SIGNAL_CONDITION_EQ => value == compare,
        HSA_SIGNAL_CONDITION_NE => value != compare,
        HSA_SIGNAL_CONDITION_LT => value < compare,
        HSA_SIGNAL_CONDITION_GTE => value >= compare,
        _ => true,
    };
    // The largest value means no timeout. Timeouts are in nanoseconds, as timestamps are.
    let timeout = (timeout != u64::MAX).then(|| Duration::from_nanos(timeout));
    signal.wait(instance, holds, timeout)
}
