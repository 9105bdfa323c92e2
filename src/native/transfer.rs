//! Copies and fills that an agent carries out.

use super::{Failure, Native, NativeAgent, Status, call_optional, read_memory};
use core::ffi::c_void;
use hsa_sys as sys;

/// What is pinned of this process's own memory at a time.
const PORTION: usize = 1 << 20;

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
            // The copy decrements the signal from 1 to 0, or sets it to a negative value if it
            // failed. HSA allows a wait to return before the condition holds, so only the value
            // says that the copy has ended; until then the memory must stay.
            let value = loop {
                // SAFETY: the signal is alive until it is destroyed below.
                let value = unsafe {
                    let (condition, state) =
                        (sys::HSA_SIGNAL_CONDITION_LT, sys::HSA_WAIT_STATE_BLOCKED);
                    wait(signal, condition, 1, u64::MAX, state)
                };
                if value < 1 {
                    break value;
                }
                crate::log::trace!(value, "a wait for a copy returned early");
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
            crate::log::warning!(?failure, "a signal could not be destroyed");
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
        let pattern = Pinned::new(self, value.to_ne_bytes().repeat(first / 4), agent)?;
        self.copy(address, pattern.address, first, agent)?;
        drop(pattern);
        let mut done = first;
        while done < size {
            let next = done.min(size - done);
            self.copy(address + done, address, next, agent)?;
            done += next;
        }
        Ok(())
    }

    /// Has an agent copy memory to this process's bytes, whether or not a CPU reaches it.
    pub fn read_by_agent(
        &self,
        address: usize,
        bytes: &mut [u8],
        agent: NativeAgent,
    ) -> Result<(), Failure> {
        let pinned = Pinned::new(self, vec![0; bytes.len().min(PORTION)], agent)?;
        for (index, part) in bytes.chunks_mut(PORTION).enumerate() {
            self.copy(pinned.address, address + index * PORTION, part.len(), agent)?;
            read_memory(pinned.bytes.as_ptr() as usize, part);
        }
        Ok(())
    }

    /// Has an agent copy this process's bytes to memory, whether or not a CPU reaches it.
    pub fn write_by_agent(
        &self,
        address: usize,
        bytes: &[u8],
        agent: NativeAgent,
    ) -> Result<(), Failure> {
        let mut pinned = Pinned::new(self, vec![0; bytes.len().min(PORTION)], agent)?;
        for (index, part) in bytes.chunks(PORTION).enumerate() {
            pinned.bytes[..part.len()].copy_from_slice(part);
            self.copy(address + index * PORTION, pinned.address, part.len(), agent)?;
        }
        Ok(())
    }
}

/// Bytes of this process that an agent reaches until they are dropped.
struct Pinned<'a> {
    native: &'a Native,
    bytes: Vec<u8>,
    /// The agent's address of them.
    address: usize,
}

impl<'a> Pinned<'a> {
    fn new(native: &'a Native, mut bytes: Vec<u8>, agent: NativeAgent) -> Result<Self, Failure> {
        let address = native.lock(bytes.as_mut_ptr() as usize, bytes.len(), &[agent])?;
        Ok(Self { native, bytes, address })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // No copy from or to it is under way.
        if let Err(failure) = self.native.unlock(self.bytes.as_mut_ptr() as usize) {
            crate::log::warning!(?failure, "memory of this process stays pinned");
            // An agent still reaches it, so that it must not become anything else's.
            core::mem::forget(core::mem::take(&mut self.bytes));
        }
    }
}
