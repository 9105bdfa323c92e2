//! Copies and fills that an agent carries out.

use super::{Failure, Native, NativeAgent, Status, call_optional};
use core::ffi::c_void;
use hsa_sys as sys;

impl Native {
    /// Has an agent copy, and waits for it.
    pub fn copy(
        &self,
        destination: usize,
        source: usize,
        size: usize,
        agent: NativeAgent,
    ) -> Result<(), Failure> {
        let core = &self.table.core;
        let missing = |call| Failure { call, status: Status::NOT_SUPPORTED };
        // A wait that cannot be done must be known before the copy begins.
        let wait = core.hsa_signal_wait_scacquire.ok_or(missing("hsa_signal_wait_scacquire"))?;
        let mut signal = sys::hsa_signal_t { handle: 0 };
        // SAFETY: no consumers are named, and `signal` is writable.
        unsafe { call_optional!(core, hsa_signal_create(1, 0, core::ptr::null(), &mut signal)) }?;
        // SAFETY: the caller holds the gates of both ranges and has checked in the ledger that
        // the agent may read the one and write the other; the signal was just made.
        let started = unsafe {
            call_optional!(
                core,
                hsa_amd_memory_async_copy(
                    destination as *mut c_void,
                    agent.raw(),
                    source as *const c_void,
                    agent.raw(),
                    size,
                    0,
                    core::ptr::null(),
                    signal
                )
            )
        };
        let outcome = started.and_then(|()| {
            // The copy counts the signal down to 0, or sets it negative if it failed.
            // SAFETY: the signal is alive until it is destroyed below.
            let value = unsafe {
                wait(signal, sys::HSA_SIGNAL_CONDITION_LT, 1, u64::MAX, sys::HSA_WAIT_STATE_BLOCKED)
            };
            if value == 0 {
                Ok(())
            } else {
                let status = Status::new(sys::HSA_STATUS_ERROR_MEMORY_FAULT);
                Err(Failure { call: "hsa_amd_memory_async_copy", status })
            }
        });
        // SAFETY: nothing waits for the signal any more.
        if let Err(failure) = unsafe { call_optional!(core, hsa_signal_destroy(signal)) } {
            tracing::warn!(?failure, "a signal could not be destroyed");
        }
        outcome
    }

    /// Fills with a 32-bit value, `count` times; the agent that owns the memory does it.
    pub fn fill(&self, address: usize, value: u32, count: usize) -> Result<(), Failure> {
        // SAFETY: the caller holds the range's gate and has checked in the ledger that it is
        // mapped and its owner may write it.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_memory_fill(address as *mut c_void, value, count)
            )
        }
    }
}
