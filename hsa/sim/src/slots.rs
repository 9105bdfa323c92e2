//! The table of all simulations of a process. HSA's functions have no context argument. Each slot
//! therefore has its own functions (see `abi`), which look up the slot's simulation here. The
//! number of slots is fixed.

use crate::instance::Instance;
use crate::status::HsaResult;
use hsa_sys::{HSA_STATUS_ERROR_NOT_INITIALIZED, HSA_STATUS_ERROR_OUT_OF_RESOURCES};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The maximum number of simulations in a process.
pub(crate) const SLOT_COUNT: usize = 64;

struct Slot {
    /// The process that owns the simulation, or 0. Callers check this before they lock `instance`:
    /// in a child that was forked while another thread held the lock, the lock is never released.
    process: AtomicU32,
    instance: RwLock<Option<Arc<Instance>>>,
}

static TABLE: [Slot; SLOT_COUNT] =
    [const { Slot { process: AtomicU32::new(0), instance: RwLock::new(None) } }; SLOT_COUNT];

fn current_process() -> u32 {
    std::process::id()
}

/// Acquires a free slot.
pub(crate) fn acquire() -> Option<usize> {
    (0..SLOT_COUNT).find(|slot| try_acquire(*slot))
}

/// Acquires a slot if it is free. Returns whether the slot was free.
pub(crate) fn try_acquire(slot: usize) -> bool {
    let owner = &TABLE[slot].process;
    owner.compare_exchange(0, current_process(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Acquires the slot that a forked child has inherited, if its simulation was not initialised when the process was
/// forked. As with AMD's runtime, the child can then start its own simulation. Returns whether the slot was acquired.
#[cfg(feature = "export")]
pub(crate) fn try_acquire_inherited(slot: usize) -> bool {
    let owner = TABLE[slot].process.load(Ordering::Acquire);
    if owner == 0 || owner == current_process() {
        return false;
    }
    // If another thread of the parent held the lock, the lock is never released in the child.
    let is_unused = TABLE[slot]
        .instance
        .try_read()
        .is_ok_and(|instance| instance.as_ref().is_none_or(|instance| !instance.is_initialised()));
    let process = &TABLE[slot].process;
    let exchange = |owner| {
        process.compare_exchange(owner, current_process(), Ordering::AcqRel, Ordering::Relaxed)
    };
    is_unused && exchange(owner).is_ok()
}

/// Stores the instance in an acquired slot.
pub(crate) fn fill(slot: usize, instance: Arc<Instance>) {
    *TABLE[slot].instance.write().unwrap_or_else(PoisonError::into_inner) = Some(instance);
}

/// Empties and frees a slot. Does nothing in a forked child of the process that owns the slot.
pub(crate) fn release(slot: usize) {
    if is_owned(slot) {
        let instance = TABLE[slot].instance.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(instance);
        TABLE[slot].process.store(0, Ordering::Release);
    }
}

/// Returns whether this process owns the slot.
pub(crate) fn is_owned(slot: usize) -> bool {
    TABLE[slot].process.load(Ordering::Acquire) == current_process()
}

/// Returns the instance in a slot.
///
/// # Errors
/// `NOT_INITIALIZED` if the slot is empty. `OUT_OF_RESOURCES` in a forked child of the process that owns the slot.
pub(crate) fn instance(slot: usize) -> HsaResult<Arc<Instance>> {
    match TABLE[slot].process.load(Ordering::Acquire) {
        0 => Err(HSA_STATUS_ERROR_NOT_INITIALIZED),
        owner if owner != current_process() => Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES),
        _ => {
            let instance = TABLE[slot].instance.read().unwrap_or_else(PoisonError::into_inner);
            instance.clone().ok_or(HSA_STATUS_ERROR_NOT_INITIALIZED)
        }
    }
}
