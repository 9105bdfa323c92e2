//! Applies planned faults to calls.
//!
//! The code that implements a fault calls [`Instance::has_fault`], which only reads a flag while
//! the plan is empty.

mod plan;

pub use plan::{FaultPlan, FaultPlanError};

use crate::address_space::PAGE;
use crate::instance::Instance;
use crate::physical::Memory;
use crate::status::HsaResult;
use hsa_faults::{FaultKind, Injector, with_fault};
use hsa_sys::hsa_access_permission_t;
use plan::Status;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The plan and its counters.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Whether the plan has rules. If not, calls take no lock.
    has_rules: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    injector: Arc<Injector<Status>>,
    /// The calls that failed as planned: the function, and the call's number in [`calls`](Self::calls).
    failed: Vec<(&'static str, u64)>,
    /// The number of calls of each function since the plan was set.
    calls: std::collections::HashMap<&'static str, u64>,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the plan, restarts its counters and clears the list of failed calls.
    pub(crate) fn set(&self, plan: FaultPlan) {
        let mut state = self.state();
        self.has_rules.store(!plan.is_empty(), Relaxed);
        *state = State { injector: Arc::new(Injector::new(plan.plan)), ..State::default() };
    }

    /// Sets the initial plan. When a rule first has an effect, appends a line to the file that the
    /// variable [`hsa_faults::RECORD`] names, if set. A privileged process ignores the variable.
    pub(crate) fn set_initial(&self, plan: FaultPlan) {
        let path = std::env::var_os(hsa_faults::RECORD).filter(|path| !path.is_empty());
        let record = path.filter(|_| !plan.is_empty() && !hsa_sys::library::is_privileged());
        self.set(plan.clone());
        if let Some(path) = record {
            // Opens the file for each line, so that the simulation holds no additional descriptor.
            let append_rule =
                move |rule| {
                    let file = File::options().append(true).open(&path);
                    // Ignores errors: a failure to write must not make the call fail.
                    drop(file.and_then(|mut file| {
                        file.write_all(format!("runtime {rule}\n").as_bytes())
                    }));
                };
            self.state().injector = Arc::new(Injector::new(plan.plan).with_reporter(append_rule));
        }
    }

    pub(crate) fn failed(&self) -> Vec<(&'static str, u64)> {
        self.state().failed.clone()
    }

    /// Counts a call of a function and applies its planned delay. Returns its planned error, or its other
    /// planned fault.
    pub(crate) fn begin_call(&self, name: &'static str) -> HsaResult<Option<FaultKind>> {
        if !self.has_rules.load(Relaxed) {
            return Ok(None);
        }
        let mut state = self.state();
        let calls = state.calls.entry(name).or_default();
        *calls += 1;
        let (call, injection) = (*calls, state.injector.count_call(name));
        if injection.error().is_some() {
            state.failed.push((name, call));
        }
        drop(state);
        injection.apply().map_err(|Status(status)| status)
    }

    fn has_fault(&self, fault: FaultKind) -> bool {
        self.has_rules.load(Relaxed) && hsa_faults::has_fault(fault)
    }

    fn record_effect(&self) {
        let injector = Arc::clone(&self.state().injector);
        injector.report_effect();
    }
}

/// Returns whether a call of the function can be performed after it has returned to its caller.
/// Such functions never dereference pointer arguments: they look the addresses up, or pass them to
/// the kernel.
pub(crate) fn supports_late(function: &str) -> bool {
    const FUNCTIONS: [&str; 7] = [
        "hsa_amd_vmem_map",
        "hsa_amd_vmem_unmap",
        "hsa_amd_vmem_handle_release",
        "hsa_amd_vmem_address_free",
        "hsa_amd_memory_pool_free",
        "hsa_memory_copy",
        "hsa_amd_memory_fill",
    ];
    FUNCTIONS.contains(&function)
}

/// The code of a call, with its arguments.
pub(crate) type Body = Box<dyn FnOnce(&Arc<Instance>) -> HsaResult>;

/// A call that is performed later by another thread.
struct DelayedCall(Body);

// SAFETY: the value is only created for functions of `supports_late`, which treat pointers as numbers.
unsafe impl Send for DelayedCall {}

impl DelayedCall {
    fn perform(self, instance: &Arc<Instance>) {
        // The caller has returned already, so the status is dropped.
        let _ = (self.0)(instance);
    }
}

/// Performs a call with its planned fault.
pub(crate) fn perform(fault: FaultKind, instance: &Arc<Instance>, body: Body) -> HsaResult {
    match fault {
        FaultKind::Lost => Ok(()),
        FaultKind::Late(delay) => {
            let (instance, call) = (Arc::clone(instance), DelayedCall(body));
            let delayed = move || {
                std::thread::sleep(delay);
                call.perform(&instance);
            };
            // If no thread can be started, the call is lost.
            let _ = crate::thread::spawn("hsa-sim late", delayed);
            Ok(())
        }
        _ => with_fault(Some(fault), || body(instance)),
    }
}

impl Instance {
    /// Returns whether the current call has this fault.
    pub(crate) fn has_fault(&self, fault: FaultKind) -> bool {
        self.faults.has_fault(fault)
    }

    /// Returns whether the current call has this fault. If so, records that the fault changes the call.
    pub(crate) fn change_call(&self, fault: FaultKind) -> bool {
        let changes = self.has_fault(fault);
        if changes {
            self.faults.record_effect();
        }
        changes
    }

    /// Returns the size that the call reports, changed by the faults `half` and `double`.
    pub(crate) fn reported_size(&self, size: u64) -> u64 {
        match (self.change_call(FaultKind::Half), self.change_call(FaultKind::Double)) {
            (true, _) => size / 2,
            (_, true) => size * 2,
            _ => size,
        }
    }

    /// Returns how many of `size` bytes the call acts on: with the fault `half`, half of them, rounded up to whole
    /// pages.
    pub(crate) fn affected_size(&self, size: usize) -> usize {
        if self.change_call(FaultKind::Half) {
            (size / 2).next_multiple_of(PAGE).min(size)
        } else {
            size
        }
    }

    /// Returns the memory that the call maps or exports: with the fault `other`, a substitute.
    pub(crate) fn visible_memory(&self, memory: Arc<Memory>) -> Arc<Memory> {
        if self.has_fault(FaultKind::WrongMemory) { memory.substitute() } else { memory }
    }

    /// Returns the permission that the call applies: the requested permission, changed by the
    /// faults `wide` and `narrow`.
    pub(crate) fn applied_permission(
        &self,
        permission: hsa_access_permission_t,
    ) -> hsa_access_permission_t {
        let applied = match (self.has_fault(FaultKind::Wide), self.has_fault(FaultKind::Narrow)) {
            (true, _) => hsa_sys::HSA_ACCESS_PERMISSION_RW,
            (_, true) => hsa_sys::HSA_ACCESS_PERMISSION_RO,
            _ => return permission,
        };
        if applied != permission {
            self.faults.record_effect();
        }
        applied
    }

    /// Exports memory as a descriptor for the caller, with the faults `leak` and `other`.
    pub(crate) fn export(&self, memory: &Arc<Memory>) -> io::Result<OwnedFd> {
        let writable = self.config.dmabuf_cpu_mapping;
        if self.has_fault(FaultKind::Leak) {
            let _ = memory.export(writable)?.into_raw_fd();
        }
        self.visible_memory(Arc::clone(memory)).export(writable)
    }
}
