//! The table of the process's descriptors that are devices.
//!
//! A number can be reused without an interposed call (`fclose`, a direct system call), so the file
//! behind it is compared, too.

use crate::drm::DrmFile;
use crate::memory_file;
use libc::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The device of a descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// `/dev/kfd`, and the process that opened it: amdkfd serves no other.
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

#[derive(Debug)]
pub(crate) struct Open {
    device: Device,
    file: (u64, u64),
}

pub(crate) type Table = HashMap<c_int, Open>;

/// Descriptors below this are checked without a lock.
const QUICK: usize = 1 << 16;

static TRACKED: [AtomicBool; QUICK] = [const { AtomicBool::new(false) }; QUICK];
/// How many descriptors from `QUICK` up are devices.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// The process whose descriptors these are. A child of `vfork` has descriptors of its own but its
/// parent's memory, so that it must not change the table.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Locks the table; a fork waits meanwhile.
pub(crate) type Held = MutexGuard<'static, Table>;

/// The table.
pub(crate) fn table() -> Held {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the calling process, by a system call.
pub(crate) fn this_process() -> libc::pid_t {
    std::process::id() as libc::pid_t
}

/// Makes the table this process's.
pub(crate) fn own() {
    OWNER.store(this_process(), Ordering::Relaxed);
}

/// Returns the process that owns the table, without a system call.
pub(crate) fn owner() -> libc::pid_t {
    OWNER.load(Ordering::Relaxed)
}

/// Whether this is the process whose table it is, and no child that shares its memory or that
/// came about behind libc's back.
pub(crate) fn is_owner() -> bool {
    owner() == this_process()
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

/// Returns the device of a descriptor.
pub(crate) fn get(descriptor: c_int) -> Option<Device> {
    if !may_be_device(descriptor) {
        return None;
    }
    let file = memory_file::identity(descriptor).ok();
    let table = table();
    let open = table.get(&descriptor)?;
    if Some(open.file) == file {
        return Some(open.device.clone());
    }
    // The number refers to another file now.
    drop(table);
    drop(remove(descriptor));
    None
}

/// Registers a descriptor of a device.
pub(crate) fn insert(descriptor: c_int, device: Device) {
    let Ok(file) = memory_file::identity(descriptor) else { return };
    let replaced = table().insert(descriptor, Open { device, file });
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
    if !may_be_device(descriptor) || !is_owner() {
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
    removed.map(|open| open.device)
}

/// Removes the descriptors of a range.
pub(crate) fn remove_within(first: u32, last: u32) {
    let known: Vec<c_int> = table().keys().copied().collect();
    for descriptor in known {
        if (first..=last).contains(&(descriptor as u32)) {
            drop(remove(descriptor));
        }
    }
}

/// Registers a duplicate of a descriptor.
pub(crate) fn copy(from: c_int, to: c_int) {
    if to >= 0 && from != to && is_owner() {
        drop(remove(to));
        if let Some(device) = get(from) {
            insert(to, device);
        }
    }
}

/// Returns the open render nodes, each once.
pub(crate) fn render_files() -> Vec<Arc<DrmFile>> {
    let mut files: Vec<Arc<DrmFile>> = Vec::new();
    for open in table().values() {
        if let Device::Render(file) = &open.device
            && !files.iter().any(|known| Arc::ptr_eq(known, file))
        {
            files.push(file.clone());
        }
    }
    files
}

/// What a child has of its parent's devices: the files are open, but nothing is behind them. The
/// parent's things are forgotten and not dropped, as other threads of it may have held their
/// locks.
pub(crate) fn begin_anew(table: &mut Table) {
    own();
    let mut files: HashMap<*const DrmFile, Arc<DrmFile>> = HashMap::new();
    for open in table.values_mut() {
        let Device::Render(file) = &open.device else { continue };
        let fresh = files.entry(Arc::as_ptr(file)).or_insert_with(|| DrmFile::new(file.gpu));
        let fresh = Device::Render(fresh.clone());
        std::mem::forget(std::mem::replace(&mut open.device, fresh));
    }
}
