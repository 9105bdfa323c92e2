//! Signals: values that one thread changes and another waits for.

#[cfg(feature = "export")]
use crate::address_space;
use crate::instance::Instance;
use crate::physical;
#[cfg(feature = "export")]
use crate::physical::Memory;
use crate::status::{HsaResult, non_null};
use hsa_sys::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The interval at which a wait checks whether the simulation still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The interval at which a wait checks a signal whose value can change without a call. Callers with
/// a pointer to the value, and other processes, change the value in this way.
const SHARED_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The maximum time that a copy waits for the first read of its signal
/// ([`Config::early_waits`](crate::Config::early_waits)).
const READ_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Signal {
    value: Storage,
    /// Whether a caller has loaded the value or waited for it. Code that changes the value and wakes waiters holds
    /// this lock.
    was_read: Mutex<bool>,
    changed: Condvar,
    /// Whether the value can change without a call ([`SHARED_POLL_INTERVAL`]).
    is_shared: AtomicBool,
}

/// The memory of a value.
#[derive(Debug)]
enum Storage {
    Own(AtomicI64),
    /// Shared with other processes: the address of the mapping.
    #[cfg(feature = "export")]
    Mapped(usize, Arc<Memory>),
}

#[cfg(feature = "export")]
impl Drop for Storage {
    fn drop(&mut self) {
        if let Self::Mapped(address, memory) = self {
            // SAFETY: the range was mapped only for this value, which is no longer used.
            unsafe { address_space::release(*address, memory.size as usize) };
        }
    }
}

impl Signal {
    pub(crate) fn new(value: hsa_signal_value_t) -> Self {
        Self::from_storage(Storage::Own(AtomicI64::new(value)))
    }

    /// Creates a signal whose value is at the start of a memory file.
    #[cfg(feature = "export")]
    pub(crate) fn mapped(instance: &Instance, memory: Arc<Memory>) -> HsaResult<Self> {
        let signal = Self::from_storage(Storage::Mapped(instance.map_memory(&memory)?, memory));
        signal.is_shared.store(true, Relaxed);
        Ok(signal)
    }

    fn from_storage(value: Storage) -> Self {
        let (was_read, changed) = (Mutex::new(false), Condvar::new());
        Self { value, was_read, changed, is_shared: AtomicBool::new(false) }
    }

    fn value(&self) -> &AtomicI64 {
        match &self.value {
            Storage::Own(value) => value,
            #[cfg(feature = "export")]
            // SAFETY: the address is the start of a mapped page, which lives as long as `self`. All
            // users access the value atomically.
            Storage::Mapped(address, _) => unsafe {
                AtomicI64::from_ptr(core::ptr::with_exposed_provenance_mut(*address))
            },
        }
    }

    /// Returns the shared memory of the value, if any.
    #[cfg(feature = "export")]
    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        match &self.value {
            Storage::Own(_) => None,
            Storage::Mapped(_, memory) => Some(memory),
        }
    }

    /// Returns the address of the value, which the caller may then read and write atomically.
    #[cfg(feature = "export")]
    pub(crate) fn value_pointer(&self) -> *mut hsa_signal_value_t {
        self.is_shared.store(true, Relaxed);
        self.value().as_ptr()
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.was_read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value, and records that it was read.
    pub(crate) fn load(&self) -> hsa_signal_value_t {
        self.read().0
    }

    /// Returns the value without recording a read.
    #[cfg(feature = "export")]
    pub(crate) fn peek(&self) -> hsa_signal_value_t {
        self.value().load(Acquire)
    }

    /// Changes the value atomically, wakes the waiters, and returns the previous value.
    pub(crate) fn update(
        &self,
        mut change: impl FnMut(hsa_signal_value_t) -> hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        let _guard = self.lock();
        let changed = self.value().fetch_update(AcqRel, Acquire, |value| Some(change(value)));
        self.changed.notify_all();
        let (Ok(previous) | Err(previous)) = changed;
        previous
    }

    /// Sets the value atomically without waking waiters, which notice the change at their next check.
    #[cfg(feature = "export")]
    pub(crate) fn store_silently(&self, value: hsa_signal_value_t) {
        self.value().store(value, std::sync::atomic::Ordering::Release);
    }

    /// Makes all waiters check their conditions.
    #[cfg(feature = "export")]
    pub(crate) fn notify(&self) {
        let _guard = self.lock();
        self.changed.notify_all();
    }

    /// Returns the value, and whether this call is the first that reads it. Records the read.
    fn read(&self) -> (hsa_signal_value_t, bool) {
        // Load the value and record the read under one lock: a copy that waits for the read may change the value as
        // soon as the lock is free.
        let mut was_read = self.lock();
        let value = self.value().load(Acquire);
        let first = !core::mem::replace(&mut *was_read, true);
        drop(was_read);
        if first {
            self.changed.notify_all();
        }
        (value, first)
    }

    /// Waits until the condition holds, the timeout expires or the simulation is dropped. Returns
    /// the value.
    pub(crate) fn wait(
        &self,
        instance: &Instance,
        condition: impl Fn(hsa_signal_value_t) -> bool,
        timeout: Option<Duration>,
    ) -> hsa_signal_value_t {
        self.wait_for(instance, |value, _| condition(value), timeout)
    }

    /// Waits until a caller has read the value, at most one second.
    pub(crate) fn wait_until_read(&self, instance: &Instance) {
        self.wait_for(instance, |_, was_read| was_read, Some(READ_TIMEOUT));
    }

    fn wait_for(
        &self,
        instance: &Instance,
        done: impl Fn(hsa_signal_value_t, bool) -> bool,
        timeout: Option<Duration>,
    ) -> hsa_signal_value_t {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut was_read = self.lock();
        loop {
            // Return the value for which the condition holds, even if the signal changes again.
            let value = self.value().load(Acquire);
            if done(value, *was_read) || instance.is_dropped() {
                return value;
            }
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if remaining == Some(Duration::ZERO) {
                return value;
            }
            let shared = self.is_shared.load(Relaxed);
            let interval = if shared { SHARED_POLL_INTERVAL } else { POLL_INTERVAL };
            let pause = remaining.map_or(interval, |remaining| remaining.min(interval));
            let waited = self.changed.wait_timeout(was_read, pause);
            was_read = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
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
        // The first handle is random, so that the handles of another runtime's signals are
        // rejected.
        let next = physical::random() & !u64::from(u32::MAX) | 1;
        Self(RwLock::new(SignalTable { signals: HashMap::new(), next }))
    }
}

impl Signals {
    pub(crate) fn get(&self, signal: hsa_signal_t) -> Option<Arc<Signal>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.signals.get(&signal.handle).cloned()
    }

    pub(crate) fn add(&self, signal: Arc<Signal>) -> hsa_signal_t {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let handle = table.next;
        table.next += 1;
        table.signals.insert(handle, signal);
        hsa_signal_t { handle }
    }

    /// Removes a signal. Calls that already wait for the signal keep using it.
    pub(crate) fn remove(&self, signal: hsa_signal_t) -> Option<Arc<Signal>> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.signals.remove(&signal.handle)
    }

    pub(crate) fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).signals.clear();
    }
}

/// `hsa_signal_create`
///
/// # Safety
/// `consumers` must be null or point at `consumer_count` agents. `signal` must be null or writable.
pub(crate) unsafe fn create(
    instance: &Instance,
    initial: hsa_signal_value_t,
    consumer_count: u32,
    consumers: *const hsa_agent_t,
    signal: *mut hsa_signal_t,
) -> HsaResult {
    let signal = non_null(signal)?;
    if consumer_count > 0 {
        // SAFETY: the caller promises `consumer_count` agents.
        unsafe { instance.agents_of(consumers, consumer_count as usize)? };
    }
    let handle = instance.signals.add(Arc::new(Signal::new(initial)));
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { signal.write(handle) };
    Ok(())
}

/// `hsa_signal_destroy`
pub(crate) fn destroy(instance: &Instance, signal: hsa_signal_t) -> HsaResult {
    instance.signals.remove(signal).map(drop).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL)
}

/// `hsa_signal_load_scacquire`. Returns 0 for an invalid signal.
pub(crate) fn load(instance: &Instance, signal: hsa_signal_t) -> hsa_signal_value_t {
    instance.signals.get(signal).map_or(0, |signal| signal.load())
}

/// `hsa_signal_store_screlease`
pub(crate) fn store(instance: &Instance, signal: hsa_signal_t, value: hsa_signal_value_t) {
    if let Some(signal) = instance.signals.get(signal) {
        signal.update(|_| value);
    }
}

/// `hsa_signal_wait_scacquire`. Returns 0 at once for an invalid signal. With
/// [`Config::early_waits`](crate::Config::early_waits), the first wait also returns at once, unless a caller has loaded
/// the value before.
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
    signal.wait(instance, |value| holds(condition, value, compare), duration(timeout))
}

/// Returns whether a condition holds. An unknown condition always holds.
pub(crate) fn holds(
    condition: hsa_signal_condition_t,
    value: hsa_signal_value_t,
    compare: hsa_signal_value_t,
) -> bool {
    match condition {
        HSA_SIGNAL_CONDITION_EQ => value == compare,
        HSA_SIGNAL_CONDITION_NE => value != compare,
        HSA_SIGNAL_CONDITION_LT => value < compare,
        HSA_SIGNAL_CONDITION_GTE => value >= compare,
        _ => true,
    }
}

/// Converts a caller's timeout, which is in the unit of timestamps. The largest value means no
/// timeout.
pub(crate) fn duration(timeout: u64) -> Option<Duration> {
    (timeout != u64::MAX).then(|| Duration::from_nanos(timeout))
}
