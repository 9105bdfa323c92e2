//! Logs the calls on the machine's own driver, which performs them (`HSA_KFD=real`). In this mode, nothing is emulated.

use crate::log::{self, Log};
use crate::request::Request;
use crate::{drm, environment, kfd, vm_info};
use libc::c_int;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The log of calls, and the file that gets the page tables at exit.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) log: Log,
    page_tables: Option<PathBuf>,
}

/// `None` if the driver is emulated. Empty until the process first uses a path of the driver.
static OBSERVER: OnceLock<Option<Observer>> = OnceLock::new();

/// Returns the lock that a thread holds while it creates the observer.
pub(crate) fn start_lock() -> MutexGuard<'static, ()> {
    static START: Mutex<()> = Mutex::new(());
    START.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the observer if this process has created it.
pub(crate) fn existing() -> Option<&'static Observer> {
    OBSERVER.get()?.as_ref()
}

/// Returns the observer, or `None` if the driver is emulated. An invalid variable ends the process.
pub(crate) fn current() -> Option<&'static Observer> {
    if let Some(observer) = OBSERVER.get() {
        return observer.as_ref();
    }
    let start = || {
        if environment::variable("HSA_KFD")? != "real" {
            return None;
        }
        let observer = Log::from_environment()
            .and_then(|log| Ok(Observer { log, page_tables: environment::page_tables_file()? }));
        Some(observer.unwrap_or_else(|error| {
            log::print_error(format_args!("{error}"));
            // SAFETY: the call ends the process without running destructors.
            unsafe { libc::_exit(2) }
        }))
    };
    // A fork waits for this lock. In the child, no other thread would end the initialisation of `OBSERVER`.
    let _start = start_lock();
    OBSERVER.get_or_init(start).as_ref()
}

/// Passes an `ioctl` to the kernel, and logs the calls of AMD's driver.
pub(crate) fn ioctl(
    observer: &Observer,
    descriptor: c_int,
    request: Request,
    perform: impl FnOnce() -> c_int,
) -> c_int {
    match (request.family(), request.has_argument()) {
        (b'K', true) => kfd::observe(observer, request, perform),
        (b'd', true) => drm::observe(observer, descriptor, request, perform),
        _ => perform(),
    }
}

/// The folder in debugfs that has a folder for each device of DRM, named by its minor number.
const DEBUGFS_FOLDER: &str = "/sys/kernel/debug/dri";

/// Appends the GPUs' page tables, as the kernel reports them, to the file that `HSA_KFD_PAGE_TABLES` names.
pub(crate) fn write_page_tables(observer: &Observer) {
    let Some(path) = &observer.page_tables else { return };
    if let Err(error) = append_page_tables(path) {
        vm_info::print_write_error(path, &error);
    }
}

fn append_page_tables(path: &Path) -> std::io::Result<()> {
    let mut text = format!("process {}\n", std::process::id());
    let mut minors: Vec<u32> = std::fs::read_dir(DEBUGFS_FOLDER)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|minor| *minor >= crate::driver::FIRST_RENDER_MINOR as u32)
        .collect();
    minors.sort_unstable();
    for minor in minors {
        let file = format!("{DEBUGFS_FOLDER}/{minor}/amdgpu_vm_info");
        text.push_str(&std::fs::read_to_string(file)?);
    }
    File::options().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
