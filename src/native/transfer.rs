//! Copies and fills memory, by a GPU or by this process. Reads signals of the caller.

use super::library_lock::allocate_unlocked;
use super::memory::{copy_memory, fill_memory, read_memory, write_memory};
use super::{Failure, Native, NativeAgent, Status, call_optional, hex};
use core::ffi::c_void;
use core::ptr::null;
use hsa_sys as sys;

/// The maximum number of bytes of this process's own memory that a copy pins at a time.
const PINNED_SIZE: usize = 1 << 20;

/// The engine that copies and fills.
///
/// For a CPU, this process copies by its own loads and stores. AMD's runtime would copy in a thread, and this thread
/// accesses the signal again after it has signalled completion. The waiting thread may have destroyed the signal by
/// then (ROCm 6.1, 6.4 and 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyEngine {
    /// This process's loads and stores.
    Cpu,
    /// An agent, by `hsa_amd_memory_async_copy`.
    Agent(NativeAgent),
    /// The first agent, by `hsa_amd_memory_async_copy` with a CPU, the second agent, as the agent of the source.
    ///
    /// If both agents are equal, AMD's runtime looks up the owner of memory of another process. A copy to memory of a GPU
    /// that `ROCR_VISIBLE_DEVICES` hides then never starts (ROCm 6.1, 6.4 and 7.2).
    AgentWithCpu(NativeAgent, NativeAgent),
}

impl CopyEngine {
    /// Returns the agents of the destination and the source. Returns `None` if this process copies.
    fn agents(self) -> Option<(NativeAgent, NativeAgent)> {
        match self {
            Self::Cpu => None,
            Self::Agent(agent) => Some((agent, agent)),
            Self::AgentWithCpu(agent, cpu) => Some((agent, cpu)),
        }
    }
}

impl Native {
    /// Copies between two ranges, and waits for the end of the copy. If the ranges overlap, the contents of the
    /// destination are undefined.
    ///
    /// # Safety
    /// Until the function returns, both ranges are allocated, and the engine (this process, for a CPU) can read
    /// the source and write the destination. This process accesses the bytes only by functions of this
    /// module and of [`memory`](super::memory).
    pub unsafe fn copy(
        &self,
        engine: CopyEngine,
        destination: usize,
        source: usize,
        size: usize,
    ) -> Result<(), Failure> {
        let Some(agents) = engine.agents() else {
            // SAFETY: the caller guarantees that this process can read the source and write the destination.
            unsafe { copy_memory(destination, source, size) };
            return Ok(());
        };
        // SAFETY: the caller guarantees that the agent can read the source and write the destination.
        unsafe { self.copy_by_agent(destination, source, size, agents) }
    }

    /// Fills memory with a 32-bit value, and waits for the end of the fill. `size` is in bytes, a multiple of four.
    ///
    /// An agent fills memory by copies. `hsa_amd_memory_fill` cannot be used, because it rejects addresses of virtual
    /// memory (ROCm 6.4 returns `INVALID_ALLOCATION`).
    ///
    /// # Safety
    /// The engine can read and write the destination until the call returns.
    pub unsafe fn fill(
        &self,
        engine: CopyEngine,
        address: usize,
        value: u32,
        size: usize,
    ) -> Result<(), Failure> {
        /// The number of bytes that are copied from this process's memory. Further bytes are copied from the filled
        /// part.
        const PATTERN_SIZE: usize = 64 << 10;
        let Some(agents) = engine.agents() else {
            // SAFETY: the caller guarantees that this process can write the destination.
            unsafe { fill_memory(address, value, size) };
            return Ok(());
        };
        let pattern_size = size.min(PATTERN_SIZE);
        let mut pattern = Pinned::new(self, pattern_size, agents.0)?;
        // SAFETY: the pinned bytes are this process's own, and no copy from them runs.
        unsafe { fill_memory(pattern.bytes.as_mut_ptr() as usize, value, pattern_size) };
        // SAFETY: the pinned bytes are as long as the pattern; the caller guarantees that the agent can write the
        // destination.
        unsafe { self.copy_by_agent(address, pattern.address, pattern_size, agents) }?;
        drop(pattern);
        let mut filled = pattern_size;
        while filled < size {
            let count = filled.min(size - filled);
            // SAFETY: the caller guarantees that the agent can read and write the destination. The two parts are
            // adjacent.
            unsafe { self.copy_by_agent(address + filled, address, count, agents) }?;
            filled += count;
        }
        Ok(())
    }

    /// Copies memory to this process's bytes. An agent can copy memory that no CPU can access.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of the source.
    pub unsafe fn read(
        &self,
        engine: CopyEngine,
        address: usize,
        bytes: &mut [u8],
    ) -> Result<(), Failure> {
        let Some(agents) = engine.agents() else {
            // SAFETY: the caller guarantees that this process can read the source.
            unsafe { read_memory(address, bytes) };
            return Ok(());
        };
        let pinned = Pinned::new(self, bytes.len(), agents.0)?;
        for (index, part) in bytes.chunks_mut(PINNED_SIZE).enumerate() {
            let source = address + index * PINNED_SIZE;
            // SAFETY: the pinned bytes are at least as long as a part; the caller guarantees that the agent can read
            // the source.
            unsafe { self.copy_by_agent(pinned.address, source, part.len(), agents) }?;
            // SAFETY: the pinned bytes are this process's own, and the copy to them has ended.
            unsafe { read_memory(pinned.bytes.as_ptr() as usize, part) };
        }
        Ok(())
    }

    /// Copies this process's bytes to memory. An agent can copy to memory that no CPU can access.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of the destination.
    pub unsafe fn write(
        &self,
        engine: CopyEngine,
        address: usize,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let Some(agents) = engine.agents() else {
            // SAFETY: the caller guarantees that this process can write the destination.
            unsafe { write_memory(address, bytes) };
            return Ok(());
        };
        let mut pinned = Pinned::new(self, bytes.len(), agents.0)?;
        for (index, part) in bytes.chunks(PINNED_SIZE).enumerate() {
            // SAFETY: the pinned bytes are this process's own, at least as long as a part, and no copy from them runs.
            unsafe { write_memory(pinned.bytes.as_mut_ptr() as usize, part) };
            let destination = address + index * PINNED_SIZE;
            // SAFETY: the pinned bytes are at least as long as a part; the caller guarantees that the agent can write
            // the destination.
            unsafe { self.copy_by_agent(destination, pinned.address, part.len(), agents) }?;
        }
        Ok(())
    }

    /// Copies by `hsa_amd_memory_async_copy`, and waits for the end of the copy.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy).
    unsafe fn copy_by_agent(
        &self,
        destination: usize,
        source: usize,
        size: usize,
        (agent, source_agent): (NativeAgent, NativeAgent),
    ) -> Result<(), Failure> {
        // Looks the function up before the copy begins: without it, this call could not wait for the end of the copy.
        let wait = self.table.core.hsa_signal_wait_scacquire;
        let wait = wait.ok_or(Failure::missing("hsa_signal_wait_scacquire"))?;
        let mut signal = sys::hsa_signal_t { handle: 0 };
        // SAFETY: the list of consumers is empty, and `signal` is writable.
        unsafe {
            call_optional!(
                self.hsa_signal_create(1, 0, null(), &mut signal),
                { value = 1 },
                { signal = %hex(signal.handle) }
            )
        }?;
        Failure::check_result("hsa_signal_create", signal.handle)?;
        let (to, from) = (destination as *mut c_void, source as *const c_void);
        let (to_agent, from_agent, dependencies) = (agent.raw(), source_agent.raw(), null());
        // SAFETY: the caller guarantees that the agent can access both ranges until the copy has ended; the signal was
        // just created.
        let started = unsafe {
            call_optional!(
                self.hsa_amd_memory_async_copy(
                    to, to_agent, from, from_agent, size, 0, dependencies, signal
                ),
                {
                    to = %hex(destination),
                    from = %hex(source),
                    agent = %self.show_agent(agent),
                    size,
                    signal = %hex(signal.handle)
                }
            )
        };
        let outcome = started.and_then(|()| {
            // The copy decrements the signal from 1 to 0, or sets it to a negative value if it
            // failed. HSA allows a wait to return before the condition holds, so only the value
            // shows that the copy has ended. Until then the memory must stay allocated.
            let call = "hsa_amd_memory_async_copy";
            crate::log::event!(TRACE, signal = %hex(signal.handle), "waits for the end of a copy");
            let (less_than, blocked) = (sys::HSA_SIGNAL_CONDITION_LT, sys::HSA_WAIT_STATE_BLOCKED);
            loop {
                // SAFETY: the signal is alive until it is destroyed below.
                match unsafe { wait(signal, less_than, 1, u64::MAX, blocked) } {
                    value @ 1.. => {
                        crate::log::event!(TRACE, value, "a wait for a copy returned early")
                    }
                    0 => return Ok(()),
                    value => {
                        crate::log::event!(WARN, value, "the signal of a copy reports a failure");
                        return Err(Failure { call, status: Status::COPY_FAILED });
                    }
                }
            }
        });
        // SAFETY: nothing waits for the signal any more.
        if let Err(failure) = unsafe {
            call_optional!(self.hsa_signal_destroy(signal), { signal = %hex(signal.handle) })
        } {
            crate::log::event!(WARN, ?failure, "a signal could not be destroyed");
        }
        outcome
    }

    /// Returns whether the runtime exports the function that reads a signal.
    pub fn can_load_signals(&self) -> bool {
        self.table.core.hsa_signal_load_scacquire.is_some()
    }

    /// Returns the value of a signal; `None` if the runtime does not export `hsa_signal_load_scacquire`. Does not log
    /// the call, because retire queues repeat the call often.
    ///
    /// # Safety
    /// The signal must be a signal of this runtime, and must not have been destroyed.
    pub unsafe fn load_signal(&self, signal: sys::hsa_signal_t) -> Option<i64> {
        let load = self.table.core.hsa_signal_load_scacquire?;
        // SAFETY: the caller guarantees that the signal exists.
        Some(unsafe { load(signal) })
    }
}

/// Bytes of this process that an agent can access until they are dropped.
struct Pinned<'a> {
    native: &'a Native,
    bytes: Vec<u8>,
    /// The address of the bytes for the agent.
    address: usize,
}

impl<'a> Pinned<'a> {
    /// Allocates at most [`PINNED_SIZE`] bytes.
    ///
    /// # Errors
    /// `OUT_OF_RESOURCES` also if this process has no memory for the bytes, or has reached the kernel's limit of
    /// mappings.
    fn new(native: &'a Native, size: usize, agent: NativeAgent) -> Result<Self, Failure> {
        let allocate = || {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size.min(PINNED_SIZE)).ok()?;
            bytes.resize(size.min(PINNED_SIZE), 0);
            Some(bytes)
        };
        let bytes = allocate_unlocked(allocate, |bytes| bytes.as_deref().unwrap_or_default());
        let mut bytes = bytes
            .ok_or(Failure { call: "hsa_amd_memory_lock", status: Status::OUT_OF_RESOURCES })?;
        // SAFETY: the new value owns the bytes, and unlocks them before it frees them. No locked range overlaps them.
        let address = unsafe { native.lock(bytes.as_mut_ptr() as usize, bytes.len(), &[agent]) }?;
        Ok(Self { native, bytes, address })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` locked the bytes, and no copy from or to them is in progress.
        let unlocked = unsafe { self.native.unlock_or_retry(self.bytes.as_mut_ptr() as usize) };
        if let Err(failure) = unlocked {
            crate::log::event!(WARN, ?failure, "memory of this process stays pinned");
            // Leaks the bytes, because an agent can still access them.
            core::mem::forget(core::mem::take(&mut self.bytes));
        }
    }
}
