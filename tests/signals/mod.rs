//! HSA signals that a test creates and sets.

#![allow(dead_code, reason = "each test binary uses a different part")]

use hsa_vmm::Runtime;
use hsa_vmm::hsa_sys::{
    HSA_STATUS_SUCCESS, hsa_agent_t, hsa_signal_create_fn, hsa_signal_destroy_fn,
    hsa_signal_store_screlease_fn, hsa_signal_t,
};
use hsa_vmm::vmm::SignalCondition;
use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::NonNull;

/// A signal, which is destroyed when this value is dropped.
pub struct Signal {
    pub handle: hsa_signal_t,
    store: hsa_signal_store_screlease_fn,
    destroy: hsa_signal_destroy_fn,
}

impl Signal {
    /// Creates a signal on the simulation or on a loaded runtime.
    #[track_caller]
    pub fn new(runtime: &Runtime, value: i64) -> Self {
        let (create, store, destroy) = match runtime.simulation() {
            Some(simulation) => {
                let core = &simulation.table().core;
                (core.hsa_signal_create, core.hsa_signal_store_screlease, core.hsa_signal_destroy)
            }
            None => {
                let [create, store, destroy] =
                    [c"hsa_signal_create", c"hsa_signal_store_screlease", c"hsa_signal_destroy"]
                        .map(|name| runtime.function(name).expect("the runtime has signals"));
                // SAFETY: the runtime's functions have the types that hsa.h declares.
                unsafe {
                    (
                        transmute::<NonNull<c_void>, hsa_signal_create_fn>(create),
                        transmute::<NonNull<c_void>, hsa_signal_store_screlease_fn>(store),
                        transmute::<NonNull<c_void>, hsa_signal_destroy_fn>(destroy),
                    )
                }
            }
        };
        let mut handle = hsa_signal_t { handle: 0 };
        let consumers = std::ptr::null::<hsa_agent_t>();
        // SAFETY: the function reads no consumers, because their number is 0, and writes only to `handle`.
        let status = unsafe { create.expect("signals")(value, 0, consumers, &mut handle) };
        assert_eq!(status, HSA_STATUS_SUCCESS);
        Self { handle, store, destroy }
    }

    pub fn set(&self, value: i64) {
        // SAFETY: `new` created the signal, and only `drop` destroys it.
        unsafe { self.store.expect("signals")(self.handle, value) };
    }

    /// Returns the condition that this signal is at most `value`, for signals that count down.
    pub fn at_most(&self, value: i64) -> (hsa_signal_t, SignalCondition) {
        (self.handle, SignalCondition::AtMost(value))
    }

    /// Returns the condition that this signal is at least `value`, for signals that count up.
    pub fn at_least(&self, value: i64) -> (hsa_signal_t, SignalCondition) {
        (self.handle, SignalCondition::AtLeast(value))
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: tests drop a signal after its queue, or after the end of the retirement that waits for the signal.
        unsafe { self.destroy.expect("signals")(self.handle) };
    }
}
