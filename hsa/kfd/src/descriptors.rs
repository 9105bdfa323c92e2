//! Which descriptors of the process are devices.

use crate::drm::DrmFile;
use libc::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What is open behind a descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// `/dev/kfd`, and the process that opened it: amdkfd serves no other.
    Kfd(libc::pid_t),
    /// A render node.
    Render(Arc<DrmFile>),
}

/// Descriptors below this are told from others without a lock.
const QUICK: usize = 1 << 16;

static TRACKED: [AtomicBool; QUICK] = [const { AtomicBool::new(false) }; QUICK];
/// How many descriptors from `QUICK` up are devices.
static HIGH: AtomicUsize = AtomicUsize::new(0);

fn table() -> MutexGuard<'static, HashMap<c_int, Device>> {
    static TABLE: OnceLock<Mutex<HashMap<c_int, Device>>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn quick(descriptor: c_int) -> Option<&'static AtomicBool> {
    TRACKED.get(usize::try_from(descriptor).ok()?)
}

fn may_be_device(descriptor: c_int) -> bool {
    match quick(descriptor) {
        Some(tracked) => tracked.load(Ordering::Acquire),
        None => descriptor >= 0 && HIGH.load(Ordering::Acquire) > 0,
    }
}

/// The device behind a descriptor, if it is one.
pub(crate) fn get(descriptor: c_int) -> Option<Device> {
    if !may_be_device(descriptor) {
        return None;
    }
    table().get(&descriptor).cloned()
}

/// A descriptor now is a device.
pub(crate) fn insert(descriptor: c_int, device: Device) {
    let replaced = table().insert(descriptor, device);
    match quick(descriptor) {
        Some(tracked) => tracked.store(true, Ordering::Release),
        None if replaced.is_none() => {
            HIGH.fetch_add(1, Ordering::Release);
        }
        None => {}
    }
}

/// A descriptor is no longer a device, if it was one. Returns what it was, so that the last
/// reference to a file is dropped after the lock is.
pub(crate) fn remove(descriptor: c_int) -> Option<Device> {
    if !may_be_device(descriptor) {
        return None;
    }
    let removed = table().remove(&descriptor);
    match quick(descriptor) {
        Some(tracked) => tracked.store(false, Ordering::Release),
        None if removed.is_some() => {
            HIGH.fetch_sub(1, Ordering::Release);
        }
        None => {}
    }
    removed
}

/// A descriptor is a duplicate of another.
pub(crate) fn copy(from: c_int, to: c_int) {
    if to >= 0 && from != to {
        drop(remove(to));
        if let Some(device) = get(from) {
            insert(to, device);
        }
    }
}
