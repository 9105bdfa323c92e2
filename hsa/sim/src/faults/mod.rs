//! What is planned to go wrong, and how a call does.
//!
//! A place where a fault shows asks [`Instance::has_fault`], which is a look at a flag as long as
//! nothing is planned.

mod plan;

pub use plan::{FaultPlan, FaultPlanError};

use crate::address_space::PAGE;
use crate::instance::Instance;
use crate::physical::Memory;
use crate::status::HsaResult;
use hsa_faults::{FaultKind, Injector, with_fault};
use hsa_sys::hsa_access_permission_t;
use plan::Status;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A plan, and how far it has come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Whether anything is planned, so that a call without takes no lock for it.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    injector: Arc<Injector<Status>>,
    /// Which calls were made to fail: the function, and how many calls of it there were by then.
    failed: Vec<(&'static str, u64)>,
    calls: std::collections::HashMap<&'static str, u64>,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another plan, whose calls count from now.
    pub(crate) fn set(&self, plan: FaultPlan) {
        let mut state = self.state();
        self.any.store(!plan.is_empty(), Relaxed);
        *state = State { injector: Arc::new(Injector::new(plan.plan)), ..State::default() };
    }

    pub(crate) fn failed(&self) -> Vec<(&'static str, u64)> {
        self.state().failed.clone()
    }

    /// What is planned for a call of the function now: it has waited when this returns.
    pub(crate) fn next(&self, name: &'static str) -> HsaResult<Option<FaultKind>> {
        if !self.any.load(Relaxed) {
            return Ok(None);
        }
        let mut state = self.state();
        let calls = state.calls.entry(name).or_default();
        *calls += 1;
        let (call, injection) = (*calls, state.injector.count(name));
        if injection.refused().is_some() {
            state.failed.push((name, call));
        }
        drop(state);
        injection.apply().map_err(|Status(status)| status)
    }

    fn has_fault(&self, wrong: FaultKind) -> bool {
        self.any.load(Relaxed) && hsa_faults::has_fault(wrong)
    }
}

/// Functions whose arguments are numbers: what is at the addresses they name, the simulation looks
/// up in its own books, or has the kernel read and write. So they can be performed when their
/// caller is long gone.
pub(crate) fn may_be_late(function: &str) -> bool {
    const THESE: [&str; 7] = [
        "hsa_amd_vmem_map",
        "hsa_amd_vmem_unmap",
        "hsa_amd_vmem_handle_release",
        "hsa_amd_vmem_address_free",
        "hsa_amd_memory_pool_free",
        "hsa_memory_copy",
        "hsa_amd_memory_fill",
    ];
    THESE.contains(&function)
}

/// What a call does, without its arguments.
pub(crate) type Body = Box<dyn FnOnce(&Arc<Instance>) -> HsaResult>;

/// A call that another thread performs.
struct Late(Body);

// SAFETY: only made of functions that may be late, whose arguments are numbers to the simulation
// although some have the type of a pointer.
unsafe impl Send for Late {}

impl Late {
    fn perform(self, instance: &Arc<Instance>) {
        // Nobody is there any more to be told.
        let _ = (self.0)(instance);
    }
}

/// Performs a call that goes wrong so.
pub(crate) fn perform(wrong: FaultKind, instance: &Arc<Instance>, body: Body) -> HsaResult {
    match wrong {
        FaultKind::Lost => Ok(()),
        FaultKind::Late(delay) => {
            let (instance, late) = (Arc::clone(instance), Late(body));
            let work = move || {
                std::thread::sleep(delay);
                late.perform(&instance);
            };
            // Without a thread it is lost and not late.
            let _ = std::thread::Builder::new().name("hsa-sim late".into()).spawn(work);
            Ok(())
        }
        _ => with_fault(Some(wrong), || body(instance)),
    }
}

impl Instance {
    /// Whether the call that this thread is in goes wrong so.
    pub(crate) fn has_fault(&self, wrong: FaultKind) -> bool {
        self.faults.has_fault(wrong)
    }

    /// A size, as the call tells it.
    pub(crate) fn reported_size(&self, size: u64) -> u64 {
        match () {
            () if self.has_fault(FaultKind::Half) => size / 2,
            () if self.has_fault(FaultKind::Double) => size * 2,
            () => size,
        }
    }

    /// A number of bytes, as far as the call acts on them: at least a page of them.
    pub(crate) fn affected_size(&self, size: usize) -> usize {
        if self.has_fault(FaultKind::Half) {
            (size / 2).next_multiple_of(PAGE).min(size)
        } else {
            size
        }
    }

    /// The memory that the call was told to show, or what it shows.
    pub(crate) fn visible_memory(&self, memory: Arc<Memory>) -> Arc<Memory> {
        if self.has_fault(FaultKind::Other) { memory.substitute() } else { memory }
    }

    /// A permission, as it comes to be.
    pub(crate) fn applied_permission(
        &self,
        permission: hsa_access_permission_t,
    ) -> hsa_access_permission_t {
        match () {
            () if self.has_fault(FaultKind::Wide) => hsa_sys::HSA_ACCESS_PERMISSION_RW,
            () if self.has_fault(FaultKind::Narrow) => hsa_sys::HSA_ACCESS_PERMISSION_RO,
            () => permission,
        }
    }

    /// A descriptor of memory, for the caller.
    pub(crate) fn export(&self, memory: &Arc<Memory>) -> io::Result<OwnedFd> {
        let writable = self.config.dmabuf_cpu_mapping;
        if self.has_fault(FaultKind::Leak) {
            let _ = memory.export(writable)?.into_raw_fd();
        }
        self.visible_memory(Arc::clone(memory)).export(writable)
    }
}
