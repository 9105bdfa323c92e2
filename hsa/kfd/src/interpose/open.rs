//! `open` and its variants.

use super::catch_panic;
use crate::descriptors::{self, Device};
use crate::drm::DrmFile;
use crate::errno::{EACCES, Errno};
use crate::paths::{self, DriverPath};
use crate::real::next;
use crate::{driver, memory_file};
use hsa_faults::FaultKind;
use libc::{c_char, c_int, mode_t};

/// The flags that open a file for writing, create it or empty it.
const WRITING: c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;

/// Opens a path. Calls `open` for files of the tree and for files that are not the driver's.
fn open_at(
    driver_path: Option<DriverPath>,
    path: *const c_char,
    flags: c_int,
    open: impl Fn(*const c_char) -> c_int,
) -> c_int {
    match driver_path {
        None => open(path),
        Some(DriverPath::Tree(path)) if flags & WRITING != 0 && paths::is_in_sysfs(&path) => {
            EACCES.set_errno()
        }
        Some(DriverPath::Tree(path)) => open(path.as_ptr()),
        Some(DriverPath::Kfd) => {
            catch_panic(|| open_device(Device::Kfd(descriptors::process_id()), flags), -1)
        }
        Some(DriverPath::Render(gpu)) => {
            let file = || DrmFile::new(gpu, driver::get().config.updates);
            catch_panic(|| open_device(Device::Render(file()), flags), -1)
        }
        Some(DriverPath::Generated(_)) if flags & libc::O_ACCMODE != libc::O_RDONLY => {
            EACCES.set_errno()
        }
        Some(DriverPath::Generated(generated)) => catch_panic(
            || {
                let text = generated.text(driver::get());
                let close_on_exec = flags & libc::O_CLOEXEC != 0;
                memory_file::create_text("generated", &text, close_on_exec)
                    .unwrap_or_else(Errno::set_errno)
            },
            -1,
        ),
    }
}

/// Opens a path, absolute or relative to the current folder.
fn open_path(path: *const c_char, flags: c_int, open: impl Fn(*const c_char) -> c_int) -> c_int {
    open_at(catch_panic(|| paths::resolve(path), None), path, flags, open)
}

/// Creates a descriptor that represents a device, and registers the descriptor. With the planned fault `lost`,
/// the descriptor is not registered, so that calls on it fail.
fn open_device(device: Device, flags: c_int) -> c_int {
    let log = &driver::get().log;
    let log_unfinished =
        |reason: &str| log.unfinished(format_args!("{device}"), format_args!("OPEN"), reason);
    let fault = match driver::get().config.faults.begin("OPEN", log_unfinished) {
        Ok(fault) => fault,
        Err(error) => {
            log.line(format_args!("{device} OPEN = {error}"));
            return error.set_errno();
        }
    };
    match memory_file::create_device(&format!("hsa-kfd {device}"), flags & libc::O_CLOEXEC != 0) {
        Ok(descriptor) => {
            log.line(format_args!("{device} OPEN descriptor={descriptor}"));
            if fault != Some(FaultKind::Lost) {
                descriptors::insert(descriptor, device);
            }
            descriptor
        }
        Err(error) => error.set_errno(),
    }
}

/// Defines `open` variants whose first parameter is the path.
macro_rules! define_open {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            open_path(path, flags, |path| {
                next!($text, fn(*const c_char, c_int, mode_t) -> c_int, path, flags, mode)
                    .unwrap_or(-1)
            })
        }
    )*};
}

define_open!(open "open", open64 "open64");

/// Defines the variants of `_FORTIFY_SOURCE`, which take no mode.
macro_rules! define_open_2 {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            open_path(path, flags, |path| {
                next!($text, fn(*const c_char, c_int) -> c_int, path, flags).unwrap_or(-1)
            })
        }
    )*};
}

define_open_2!(__open_2 "__open_2", __open64_2 "__open64_2");

/// Defines `openat` variants.
macro_rules! define_openat {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            open_at(catch_panic(|| paths::resolve_at(folder, path), None), path, flags, |path| {
                next!(
                    $text, fn(c_int, *const c_char, c_int, mode_t) -> c_int,
                    folder, path, flags, mode
                )
                .unwrap_or(-1)
            })
        }
    )*};
}

define_openat!(openat "openat", openat64 "openat64");

/// Defines the variants of `_FORTIFY_SOURCE`, which take no mode.
macro_rules! define_openat_2 {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
            open_at(catch_panic(|| paths::resolve_at(folder, path), None), path, flags, |path| {
                next!($text, fn(c_int, *const c_char, c_int) -> c_int, folder, path, flags)
                    .unwrap_or(-1)
            })
        }
    )*};
}

define_openat_2!(__openat_2 "__openat_2", __openat64_2 "__openat64_2");
