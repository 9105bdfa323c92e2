//! The table of the process's descriptors of devices.
//!
//! A program can close a descriptor and reuse its number without an interposed call (`fclose`, a
//! direct system call). Each look-up therefore also compares the file.

use crate::drm::DrmFile;
use crate::memory_file;
use libc::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// `/dev/kfd`, and the process that opened it. amdkfd rejects the calls of all other processes.
    Kfd(libc::pid_t),
    /// A render node.
    Render(Arc<DrmFile>),
}

impl std::fmt::Display for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kfd(_) => formatter.write_str("kfd"),
            Self::Render(file) => write!(formatter, "drm{}", file.gpu),
        }
    }
}

/// An open device, and the file that represents it.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    device: Device,
    /// The device and inode numbers of the file.
    file_identity: (u64, u64),
}

pub(crate) type Table = HashMap<c_int, OpenDevice>;

/// Each descriptor below this number has a flag, which is read without a lock.
const FLAGS_END: usize = 1 << 16;

static IS_DEVICE: [AtomicBool; FLAGS_END] = [const { AtomicBool::new(false) }; FLAGS_END];
/// The number of devices among the descriptors that have no flag.
static UNFLAGGED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The process that owns the table. A child of `vfork` shares this memory but has its own
/// descriptors, so it must not change the table.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The locked table. A fork waits for the lock.
pub(crate) type Guard = MutexGuard<'static, Table>;

pub(crate) fn table() -> Guard {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn process_id() -> libc::pid_t {
    std::process::id() as libc::pid_t
}

/// Makes the calling process the owner of the table.
pub(crate) fn take_ownership() {
    OWNER.store(process_id(), Ordering::Relaxed);
}

/// Returns the process that owns the table, without a system call.
pub(crate) fn owner() -> libc::pid_t {
    OWNER.load(Ordering::Relaxed)
}

/// Returns whether the calling process owns the table. A child created by `vfork` or by a direct system call
/// does not own it.
pub(crate) fn is_owner() -> bool {
    owner() == process_id()
}

/// Returns the flag of a descriptor, or `None` from `FLAGS_END` on.
fn device_flag(descriptor: c_int) -> Option<&'static AtomicBool> {
    IS_DEVICE.get(usize::try_from(descriptor).ok()?)
}

fn may_be_device(descriptor: c_int) -> bool {
    match device_flag(descriptor) {
        Some(flag) => flag.load(Ordering::Acquire),
        None => descriptor >= 0 && UNFLAGGED_COUNT.load(Ordering::Acquire) > 0,
    }
}

pub(crate) fn get(descriptor: c_int) -> Option<Device> {
    if !may_be_device(descriptor) {
        return None;
    }
    let file_identity = memory_file::identity(descriptor).ok();
    let table = table();
    let open = table.get(&descriptor)?;
    if Some(open.file_identity) == file_identity {
        return Some(open.device.clone());
    }
    // The number now refers to another file.
    drop(table);
    drop(remove(descriptor));
    None
}

pub(crate) fn insert(descriptor: c_int, device: Device) {
    let Ok(file_identity) = memory_file::identity(descriptor) else { return };
    let replaced = table().insert(descriptor, OpenDevice { device, file_identity });
    match device_flag(descriptor) {
        Some(flag) => flag.store(true, Ordering::Release),
        None if replaced.is_none() => {
            UNFLAGGED_COUNT.fetch_add(1, Ordering::Release);
        }
        None => {}
    }
}

/// Removes a descriptor from the table. Returns its device, if any, so that the caller drops the device
/// after the lock is released.
pub(crate) fn remove(descriptor: c_int) -> Option<Device> {
    if !may_be_device(descriptor) || !is_owner() {
        return None;
    }
    let removed = table().remove(&descriptor);
    match device_flag(descriptor) {
        Some(flag) => flag.store(false, Ordering::Release),
        None if removed.is_some() => {
            UNFLAGGED_COUNT.fetch_sub(1, Ordering::Release);
        }
        None => {}
    }
    removed.map(|open| open.device)
}

/// Removes the descriptors of a range.
pub(crate) fn remove_within(first: u32, last: u32) {
    let descriptors: Vec<c_int> = table().keys().copied().collect();
    for descriptor in descriptors {
        if (first..=last).contains(&(descriptor as u32)) {
            drop(remove(descriptor));
        }
    }
}

/// Registers a duplicate of a descriptor, if the descriptor is a device's.
pub(crate) fn register_duplicate(original: c_int, duplicate: c_int) {
    if duplicate >= 0 && original != duplicate && is_owner() {
        drop(remove(duplicate));
        if let Some(device) = get(original) {
            insert(duplicate, device);
        }
    }
}

/// Returns the open files of render nodes, without duplicates.
pub(crate) fn render_files() -> Vec<Arc<DrmFile>> {
    let mut files: Vec<Arc<DrmFile>> = Vec::new();
    for open in table().values() {
        if let Device::Render(file) = &open.device
            && !files.iter().any(|listed| Arc::ptr_eq(listed, file))
        {
            files.push(file.clone());
        }
    }
    files
}

/// Resets the table in a forked child: render nodes stay open, but have no state. The parent's state
/// is forgotten, not dropped, because other threads of the parent may have held its locks.
pub(crate) fn reset_in_child(table: &mut Table) {
    take_ownership();
    let mut files: HashMap<*const DrmFile, Arc<DrmFile>> = HashMap::new();
    for open in table.values_mut() {
        let Device::Render(file) = &open.device else { continue };
        let fresh = || DrmFile::new(file.gpu, file.updates);
        let fresh = files.entry(Arc::as_ptr(file)).or_insert_with(fresh);
        let fresh = Device::Render(fresh.clone());
        std::mem::forget(std::mem::replace(&mut open.device, fresh));
    }
}
