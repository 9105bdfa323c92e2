//! Copies by a GPU without the library's checks. The GPU's page table alone decides whether a copy is permitted.

#![expect(unsafe_code, reason = "calls the runtime's functions")]

use crate::raw_calls::{RawCalls, check_status, require_function};
use core::ffi::c_void;
use core::ptr::{null, null_mut, without_provenance, without_provenance_mut};
use hsa_vmm::hsa_sys::*;
use hsa_vmm::{Address, Agent, Runtime};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time limit of a copy. A copy that faults may never end.
const TIME_LIMIT: Duration = Duration::from_secs(15);
/// The interval between two reads of a copy's signal.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The address of the first GPU fault in this process. AMD's runtime reports no other fault afterwards.
static FAULT: OnceLock<u64> = OnceLock::new();

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyResult {
    Copied,
    /// A GPU faulted at this address.
    Faulted(u64),
}

/// The runtime's functions for copies. A handler of GPU faults is registered.
#[derive(Debug)]
pub(super) struct RawCopies {
    raw: RawCalls,
}

/// Records the first fault. Returns success, so that the runtime does not abort the process.
unsafe extern "C" fn record_fault(event: *const hsa_amd_event_t, _: *mut c_void) -> hsa_status_t {
    // SAFETY: the runtime passes a valid event. The union's field `memory_fault` is read only if the event is a memory
    // fault.
    unsafe {
        if (*event).event_type == HSA_AMD_GPU_MEMORY_FAULT_EVENT {
            let _ = FAULT.set((*event).__bindgen_anon_1.memory_fault.virtual_address);
        }
    }
    HSA_STATUS_SUCCESS
}

impl RawCopies {
    /// Finds the functions of a runtime, and registers a handler of GPU faults.
    pub fn of_runtime(runtime: &Runtime) -> Result<Self, String> {
        let raw = RawCalls::of_runtime(runtime)?;
        let register = require_function(
            raw.core.hsa_amd_register_system_event_handler,
            "hsa_amd_register_system_event_handler",
        )?;
        // SAFETY: `record_fault` reads only the event that the runtime passes, and ignores the data pointer, which is
        // null.
        check_status("hsa_amd_register_system_event_handler", unsafe {
            register(Some(record_fault), null_mut())
        })?;
        Ok(Self { raw })
    }

    /// Copies memory with a GPU, and waits for the end of the copy or for a fault.
    ///
    /// # Safety
    /// Each of the two ranges of `size` bytes belongs to a mapping or a former mapping of this process. The GPU need
    /// not have access to the ranges. Nothing else uses the ranges.
    pub unsafe fn copy(
        &self,
        gpu: &Agent,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<CopyResult, String> {
        let core = &self.raw.core;
        let create = require_function(core.hsa_signal_create, "hsa_signal_create")?;
        let begin = require_function(core.hsa_amd_memory_async_copy, "hsa_amd_memory_async_copy")?;
        let load = require_function(core.hsa_signal_load_scacquire, "hsa_signal_load_scacquire")?;
        let (mut signal, agent) = (hsa_signal_t { handle: 0 }, gpu.hsa_agent());
        // SAFETY: no consumers are named; `signal` is writable.
        check_status("hsa_signal_create", unsafe { create(1, 0, null(), &mut signal) })?;
        let destination = without_provenance_mut(destination.get());
        let source = without_provenance(source.get());
        // SAFETY: the caller guarantees the requirements of the ranges. The signal is never destroyed, and the copy
        // waits for no other signals.
        let status = unsafe { begin(destination, agent, source, agent, size, 0, null(), signal) };
        check_status("hsa_amd_memory_async_copy", status)?;
        let begun = Instant::now();
        // Do not destroy the signal: after a fault, the runtime may still use the signal.
        loop {
            if let Some(address) = FAULT.get() {
                return Ok(CopyResult::Faulted(*address));
            }
            // SAFETY: the signal is never destroyed.
            match unsafe { load(signal) } {
                0 => return Ok(CopyResult::Copied),
                1.. if begun.elapsed() < TIME_LIMIT => std::thread::sleep(POLL_INTERVAL),
                // The copy has ended with an error. The runtime may report the fault later.
                value if begun.elapsed() < TIME_LIMIT / 2 && value < 0 => {
                    std::thread::sleep(POLL_INTERVAL)
                }
                value => {
                    return Err(format!(
                        "a raw copy neither succeeded nor faulted: its signal is {value}"
                    ));
                }
            }
        }
    }
}
