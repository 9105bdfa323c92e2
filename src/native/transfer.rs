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

    /// Has an agent fill with a 32-bit value, and waits for it. `size` is in bytes.
    ///
    /// By copies: `hsa_amd_memory_fill` refuses addresses of virtual memory (ROCm 6.4 answers
    /// `INVALID_ALLOCATION`), because it chooses the agent by what it knows of the address.
    pub fn fill(
        &self,
        address: usize,
        value: u32,
        size: usize,
        agent: NativeAgent,
    ) -> Result<(), Failure> {
        /// What comes from the process's own memory; the rest is copied from what is there.
        const FIRST: usize = 64 << 10;
        let first = size.min(FIRST);
        let mut pattern = vec![value; first / 4];
        let source = self.lock(&mut pattern, agent)?;
        let mut outcome = self.copy(address, source, first, agent);
        self.unlock(&mut pattern);
        let mut done = first;
        while outcome.is_ok() && done < size {
            let next = done.min(size - done);
            outcome = self.copy(address + done, address, next, agent);
            done += next;
        }
        outcome
    }

    /// Pins memory of this process for an agent, and returns the agent's address of it.
    fn lock(&self, words: &mut [u32], agent: NativeAgent) -> Result<usize, Failure> {
        let mut address: *mut c_void = core::ptr::null_mut();
        let mut agents = [agent.raw()];
        // SAFETY: the words are borrowed until `unlock`, the agent comes from the runtime, and
        // `address` is writable.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_memory_lock(
                    words.as_mut_ptr().cast(),
                    size_of_val(words),
                    agents.as_mut_ptr(),
                    1,
                    &mut address
                )
            )
        }?;
        Ok(address as usize)
    }

    fn unlock(&self, words: &mut [u32]) {
        // SAFETY: what `lock` pinned, and no copy from it is under way.
        let unlocked = unsafe {
            call_optional!(self.table.core, hsa_amd_memory_unlock(words.as_mut_ptr().cast()))
        };
        if let Err(failure) = unlocked {
            tracing::warn!(?failure, "memory of this process stays pinned");
        }
    }
}
