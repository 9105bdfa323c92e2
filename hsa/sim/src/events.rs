//! Reports of GPU memory faults.

use crate::agents::Agent;
use crate::instance::Instance;
use crate::status::HsaResult;
use core::ffi::c_void;
use hsa_sys::*;
use std::sync::{Mutex, PoisonError};

/// An invalid access of a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryFault {
    pub(crate) gpu: usize,
    pub(crate) address: usize,
    pub(crate) reason: hsa_amd_memory_fault_reason_t,
}

type Callback = unsafe extern "C" fn(*const hsa_amd_event_t, *mut c_void) -> hsa_status_t;

/// A registered callback with its argument.
#[derive(Clone, Copy, Debug)]
struct Handler {
    callback: Callback,
    data: *mut c_void,
}

// SAFETY: the pointer is only passed to the callback. The caller that registers the callback must
// expect a call on any thread, as with AMD's runtime.
unsafe impl Send for Handler {}

#[derive(Debug, Default)]
pub(crate) struct Handlers(Mutex<Vec<Handler>>);

impl Handlers {
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// `hsa_amd_register_system_event_handler`
///
/// # Safety
/// `callback` must be callable with `data` from any thread.
pub(crate) unsafe fn register(
    instance: &Instance,
    callback: hsa_amd_system_event_callback_t,
    data: *mut c_void,
) -> HsaResult {
    let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let mut handlers = instance.handlers.0.lock().unwrap_or_else(PoisonError::into_inner);
    handlers.push(Handler { callback, data });
    Ok(())
}

/// Reports a fault to all handlers. If no handler returns success, aborts the process, as AMD's
/// runtime does.
pub(crate) fn report(instance: &Instance, fault: MemoryFault) {
    // Ignore faults of background copies after a shut-down, which clears the page tables.
    if !instance.is_initialised() {
        return;
    }
    let agent = instance.agent_handle(Agent::Gpu(fault.gpu));
    let event = hsa_amd_event_t {
        event_type: HSA_AMD_GPU_MEMORY_FAULT_EVENT,
        __bindgen_anon_1: hsa_amd_event_s__bindgen_ty_1 {
            memory_fault: hsa_amd_gpu_memory_fault_info_t {
                agent,
                virtual_address: fault.address as u64,
                fault_reason_mask: fault.reason,
            },
        },
    };
    let handlers = instance.handlers.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut handled = false;
    for Handler { callback, data } in handlers {
        // SAFETY: the caller of `register` promised that any thread can call `callback`; no lock is held.
        handled |= unsafe { callback(&event, data) } == HSA_STATUS_SUCCESS;
    }
    if !handled {
        let reason = match fault.reason {
            HSA_AMD_MEMORY_FAULT_READ_ONLY => "Write access to a read-only page",
            _ => "Page not present or supervisor privilege",
        };
        eprintln!(
            "Memory access fault by GPU node-{} (Agent handle: {:#x}) on address {:#x}. Reason: \
             {reason}.",
            instance.node(Agent::Gpu(fault.gpu)),
            agent.handle,
            fault.address,
        );
        std::process::abort();
    }
}
