//! The functions of signals. Whatever memory order a function has in its name, its loads acquire and its stores
//! release.

use super::call;
use crate::ipc::{self, SharedObject};
use crate::physical::Memory;
use crate::signal::{Signal, duration, holds};
use crate::status::{HsaResult, non_null};
use crate::{agents::Agent, instance::Instance, slots};
use core::ffi::c_void;
use hsa_sys::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a wait for several signals checks their values.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The interval at which the thread of a handler checks whether it must end.
const HANDLER_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A callback for a signal. It returns whether to keep waiting.
type Handler = Option<unsafe extern "C" fn(hsa_signal_value_t, *mut c_void) -> bool>;

fn find(signal: hsa_signal_t) -> Option<Arc<Signal>> {
    slots::instance(0).ok()?.signals.get(signal)
}

/// Changes a signal's value. Returns the previous value, or 0 for an invalid signal.
fn update(
    signal: hsa_signal_t,
    change: impl FnMut(hsa_signal_value_t) -> hsa_signal_value_t,
) -> hsa_signal_value_t {
    find(signal).map_or(0, |signal| signal.update(change))
}

fn wait(
    signal: hsa_signal_t,
    condition: hsa_signal_condition_t,
    compare: hsa_signal_value_t,
    timeout: u64,
    state: hsa_wait_state_t,
) -> hsa_signal_value_t {
    let Ok(instance) = slots::instance(0) else { return 0 };
    crate::signal::wait(&instance, signal, condition, compare, timeout, state)
}

macro_rules! operations {
    (
        load { $($load:ident)* }
        store { $($store:ident)* }
        wait { $($wait:ident)* }
        exchange { $($exchange:ident)* }
        compare_and_swap { $($cas:ident)* }
        change { $($change:path: $($changed:ident)*;)* }
    ) => {
        $(
            /// Reads a signal.
            #[unsafe(no_mangle)]
            pub extern "C" fn $load(signal: hsa_signal_t) -> hsa_signal_value_t {
                find(signal).map_or(0, |signal| signal.load())
            }
        )*
        $(
            /// Sets a signal.
            #[unsafe(no_mangle)]
            pub extern "C" fn $store(signal: hsa_signal_t, value: hsa_signal_value_t) {
                update(signal, |_| value);
            }
        )*
        $(
            /// Waits for a signal.
            #[unsafe(no_mangle)]
            pub extern "C" fn $wait(
                signal: hsa_signal_t,
                condition: hsa_signal_condition_t,
                compare: hsa_signal_value_t,
                timeout: u64,
                state: hsa_wait_state_t,
            ) -> hsa_signal_value_t {
                wait(signal, condition, compare, timeout, state)
            }
        )*
        $(
            /// Sets a signal, and returns the previous value.
            #[unsafe(no_mangle)]
            pub extern "C" fn $exchange(
                signal: hsa_signal_t,
                value: hsa_signal_value_t,
            ) -> hsa_signal_value_t {
                update(signal, |_| value)
            }
        )*
        $(
            /// Sets a signal if it has the expected value, and returns the previous value.
            #[unsafe(no_mangle)]
            pub extern "C" fn $cas(
                signal: hsa_signal_t,
                expected: hsa_signal_value_t,
                value: hsa_signal_value_t,
            ) -> hsa_signal_value_t {
                update(signal, |previous| if previous == expected { value } else { previous })
            }
        )*
        $($(
            /// Adds a value to a signal, subtracts the value, or applies a bitwise operation.
            #[unsafe(no_mangle)]
            pub extern "C" fn $changed(signal: hsa_signal_t, value: hsa_signal_value_t) {
                update(signal, |previous| $change(previous, value));
            }
        )*)*
    };
}
operations! {
    load { hsa_signal_load_acquire hsa_signal_load_relaxed }
    store { hsa_signal_store_relaxed hsa_signal_store_release }
    wait { hsa_signal_wait_acquire hsa_signal_wait_relaxed }
    exchange {
        hsa_signal_exchange_acq_rel hsa_signal_exchange_acquire hsa_signal_exchange_relaxed
        hsa_signal_exchange_release hsa_signal_exchange_scacq_screl
        hsa_signal_exchange_scacquire hsa_signal_exchange_screlease
    }
    compare_and_swap {
        hsa_signal_cas_acq_rel hsa_signal_cas_acquire hsa_signal_cas_relaxed
        hsa_signal_cas_release hsa_signal_cas_scacq_screl hsa_signal_cas_scacquire
        hsa_signal_cas_screlease
    }
    change {
        hsa_signal_value_t::wrapping_add:
            hsa_signal_add_acq_rel hsa_signal_add_acquire hsa_signal_add_relaxed
            hsa_signal_add_release hsa_signal_add_scacq_screl hsa_signal_add_scacquire
            hsa_signal_add_screlease;
        hsa_signal_value_t::wrapping_sub:
            hsa_signal_subtract_acq_rel hsa_signal_subtract_acquire hsa_signal_subtract_relaxed
            hsa_signal_subtract_release hsa_signal_subtract_scacq_screl
            hsa_signal_subtract_scacquire hsa_signal_subtract_screlease;
        core::ops::BitAnd::bitand:
            hsa_signal_and_acq_rel hsa_signal_and_acquire hsa_signal_and_relaxed
            hsa_signal_and_release hsa_signal_and_scacq_screl hsa_signal_and_scacquire
            hsa_signal_and_screlease;
        core::ops::BitOr::bitor:
            hsa_signal_or_acq_rel hsa_signal_or_acquire hsa_signal_or_relaxed
            hsa_signal_or_release hsa_signal_or_scacq_screl hsa_signal_or_scacquire
            hsa_signal_or_screlease;
        core::ops::BitXor::bitxor:
            hsa_signal_xor_acq_rel hsa_signal_xor_acquire hsa_signal_xor_relaxed
            hsa_signal_xor_release hsa_signal_xor_scacq_screl hsa_signal_xor_scacquire
            hsa_signal_xor_screlease;
    }
}

macro_rules! silent_stores {
    ($($name:ident)*) => { $(
        /// Sets a signal without waking waiters.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(signal: hsa_signal_t, value: hsa_signal_value_t) {
            if let Some(signal) = find(signal) {
                signal.store_silently(value);
            }
        }
    )* };
}
silent_stores! { hsa_signal_silent_store_relaxed hsa_signal_silent_store_screlease }

/// Creates a signal whose value other processes can use.
fn shared_signal(instance: &Instance, initial: hsa_signal_value_t) -> HsaResult<Signal> {
    const PAGE: u64 = crate::address_space::PAGE as u64;
    let owner = Agent::Cpu(0);
    let claim = instance.claim(owner, PAGE).ok_or(HSA_STATUS_ERROR_OUT_OF_RESOURCES)?;
    let signal = Signal::mapped(instance, Memory::new(PAGE, owner, claim))?;
    signal.store_silently(initial);
    Ok(signal)
}

super::exports! {
    hsa_amd_signal_create(
        initial: hsa_signal_value_t,
        consumer_count: u32,
        consumers: *const hsa_agent_t,
        attributes: u64,
        signal: *mut hsa_signal_t,
    ) => |instance| {
        if attributes & u64::from(HSA_AMD_SIGNAL_IPC) == 0 {
            // SAFETY: both functions have the same contract.
            return unsafe {
                crate::signal::create(instance, initial, consumer_count, consumers, signal)
            };
        }
        let signal = non_null(signal)?;
        let handle = instance.signals.add(Arc::new(shared_signal(instance, initial)?));
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { signal.write(handle) };
        Ok(())
    };

    hsa_amd_ipc_signal_create(signal: hsa_signal_t, handle: *mut hsa_amd_ipc_signal_t) => |instance| {
        let handle = non_null(handle)?;
        let signal = instance.signals.get(signal).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL)?;
        // Only signals with the attribute HSA_AMD_SIGNAL_IPC can be shared.
        let memory = signal.memory().ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        let found = ipc::handle_of(memory, memory.size, SharedObject::Signal)?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { handle.write(found) };
        Ok(())
    };

    hsa_amd_ipc_signal_attach(
        handle: *const hsa_amd_ipc_signal_t,
        signal: *mut hsa_signal_t,
    ) => |instance| {
        let (handle, signal) = (non_null(handle.cast_mut())?, non_null(signal)?);
        // SAFETY: not null, and readable as HSA documents the function.
        let words = unsafe { handle.read_unaligned() }.handle;
        let memory = ipc::open(instance, words, SharedObject::Signal);
        let memory = memory.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        let attached = instance.signals.add(Arc::new(Signal::mapped(instance, memory)?));
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { signal.write(attached) };
        Ok(())
    };

    hsa_amd_signal_value_pointer(
        signal: hsa_signal_t,
        pointer: *mut *mut hsa_signal_value_t,
    ) => |instance| {
        let pointer = non_null(pointer)?;
        let signal = instance.signals.get(signal).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL)?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { pointer.write(signal.value_pointer()) };
        Ok(())
    };

    hsa_amd_signal_async_handler(
        signal: hsa_signal_t,
        condition: hsa_signal_condition_t,
        compare: hsa_signal_value_t,
        handler: Handler,
        argument: *mut c_void,
    ) => |instance| {
        let handler = handler.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        let found = instance.signals.get(signal).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL)?;
        let (instance, argument) = (Arc::clone(instance), argument.expose_provenance());
        // Each handler has its own thread, which ends when the signal is destroyed, the runtime is shut down or the
        // handler returns `false`.
        let run = move || loop {
            let holds = |value| holds(condition, value, compare);
            let value = found.wait(&instance, holds, Some(HANDLER_CHECK_INTERVAL));
            if !instance.is_initialised() || instance.signals.get(signal).is_none() {
                return;
            }
            let argument = core::ptr::with_exposed_provenance_mut(argument);
            // SAFETY: the caller must expect the call on any thread, as with AMD's runtime.
            if holds(value) && !unsafe { handler(value, argument) } {
                return;
            }
        };
        crate::thread::spawn("hsa-sim handler", run)
    };
}

/// The arguments of a wait for several signals.
struct WaitArguments {
    signals: Vec<(Option<Arc<Signal>>, hsa_signal_condition_t, hsa_signal_value_t)>,
    deadline: Option<Instant>,
}

impl WaitArguments {
    /// Reads the caller's arrays.
    ///
    /// # Safety
    /// The arrays must have `count` elements.
    unsafe fn new(
        count: u32,
        signals: *const hsa_signal_t,
        conditions: *const hsa_signal_condition_t,
        values: *const hsa_signal_value_t,
        timeout: u64,
    ) -> Self {
        // SAFETY: the caller promises `count` elements.
        let element = |index| unsafe {
            (
                find(signals.add(index).read()),
                conditions.add(index).read(),
                values.add(index).read(),
            )
        };
        let deadline = duration(timeout).and_then(|timeout| Instant::now().checked_add(timeout));
        Self { signals: (0..count as usize).map(element).collect(), deadline }
    }

    /// Returns an element for each signal: the value if the condition holds, and `None` if not or
    /// if the signal is invalid.
    fn satisfied_values(&self) -> impl Iterator<Item = Option<hsa_signal_value_t>> {
        self.signals.iter().map(|(signal, condition, compare)| {
            let value = signal.as_ref()?.peek();
            holds(*condition, value, *compare).then_some(value)
        })
    }

    /// Calls `check` until it returns a result, and returns this result. Returns `None` after the timeout.
    fn wait<T>(&self, check: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            if let Some(result) = check() {
                return Some(result);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Waits until one of several signals satisfies its condition. Returns the signal's index, or `u32::MAX`
/// after the timeout.
///
/// # Safety
/// As documented by HSA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_signal_wait_any(
    count: u32,
    signals: *const hsa_signal_t,
    conditions: *const hsa_signal_condition_t,
    values: *const hsa_signal_value_t,
    timeout: u64,
    _state: hsa_wait_state_t,
    satisfying: *mut hsa_signal_value_t,
) -> u32 {
    // SAFETY: the caller promises `count` elements.
    let arguments = unsafe { WaitArguments::new(count, signals, conditions, values, timeout) };
    let check = || {
        arguments.satisfied_values().enumerate().find_map(|(index, value)| Some((index, value?)))
    };
    let Some((index, value)) = arguments.wait(check) else { return u32::MAX };
    if let Ok(satisfying) = non_null(satisfying) {
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { satisfying.write(value) };
    }
    index as u32
}

/// Waits until all signals satisfy their conditions. Returns 0, or `u32::MAX` after the timeout.
///
/// # Safety
/// As documented by HSA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_signal_wait_all(
    count: u32,
    signals: *const hsa_signal_t,
    conditions: *const hsa_signal_condition_t,
    values: *const hsa_signal_value_t,
    timeout: u64,
    _state: hsa_wait_state_t,
    satisfying: *mut hsa_signal_value_t,
) -> u32 {
    // SAFETY: the caller promises `count` elements.
    let arguments = unsafe { WaitArguments::new(count, signals, conditions, values, timeout) };
    let check = || arguments.satisfied_values().collect::<Option<Vec<_>>>();
    let Some(values) = arguments.wait(check) else { return u32::MAX };
    if let Ok(satisfying) = non_null(satisfying) {
        // SAFETY: not null, and with room for all values as HSA documents the function.
        unsafe { satisfying.as_ptr().copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }
    0
}
