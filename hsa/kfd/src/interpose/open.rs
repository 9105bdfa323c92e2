//! `open` and its forms.

use super::guarded;
use crate::descriptors::{self, Device};
use crate::drm::DrmFile;
use crate::errno::{EACCES, Errno};
use crate::paths::{self, DriverPath};
use crate::real::next;
use crate::{driver, memory_file};
use libc::{c_char, c_int, mode_t};

/// Opens a driver path; `plain` opens other files and files of the tree.
fn open_at(
    driver_path: Option<DriverPath>,
    path: *const c_char,
    flags: c_int,
    plain: impl Fn(*const c_char) -> c_int,
) -> c_int {
    match driver_path {
        None => plain(path),
        Some(DriverPath::Tree(path)) => plain(path.as_ptr()),
        Some(DriverPath::Kfd) => {
            guarded(|| device(Device::Kfd(descriptors::this_process()), flags), -1)
        }
        Some(DriverPath::Render(gpu)) => {
            guarded(|| device(Device::Render(DrmFile::new(gpu)), flags), -1)
        }
        Some(DriverPath::Counter(_)) if flags & libc::O_ACCMODE != libc::O_RDONLY => EACCES.leave(),
        Some(DriverPath::Counter(counter)) => guarded(
            || {
                let text = counter.text(driver::get());
                let closes = flags & libc::O_CLOEXEC != 0;
                memory_file::readable("counter", &text, closes).unwrap_or_else(Errno::leave)
            },
            -1,
        ),
    }
}

fn redirect(path: *const c_char, flags: c_int, plain: impl Fn(*const c_char) -> c_int) -> c_int {
    open_at(guarded(|| paths::resolve(path), None), path, flags, plain)
}

/// Creates a descriptor that represents a device.
fn device(device: Device, flags: c_int) -> c_int {
    match memory_file::device(&format!("hsa-kfd {device}"), flags & libc::O_CLOEXEC != 0) {
        Ok(descriptor) => {
            let log = &driver::get().log;
            log.line(format_args!("{device} OPEN descriptor={descriptor}"));
            descriptors::insert(descriptor, device);
            descriptor
        }
        Err(error) => error.leave(),
    }
}

/// Defines `open` variants that take a path first.
macro_rules! opens {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            redirect(path, flags, |path| {
                next!($text, fn(*const c_char, c_int, mode_t) -> c_int, path, flags, mode)
                    .unwrap_or(-1)
            })
        }
    )*};
}

opens!(open "open", open64 "open64");

/// Defines the checked forms, which take no mode.
macro_rules! checked_opens {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            redirect(path, flags, |path| {
                next!($text, fn(*const c_char, c_int) -> c_int, path, flags).unwrap_or(-1)
            })
        }
    )*};
}

checked_opens!(__open_2 "__open_2", __open64_2 "__open64_2");

/// Defines `openat` variants.
macro_rules! openats {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            open_at(guarded(|| paths::resolve_at(folder, path), None), path, flags, |path| {
                next!(
                    $text, fn(c_int, *const c_char, c_int, mode_t) -> c_int,
                    folder, path, flags, mode
                )
                .unwrap_or(-1)
            })
        }
    )*};
}

openats!(openat "openat", openat64 "openat64");

/// Defines the checked forms, which take no mode.
macro_rules! checked_openats {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
            open_at(guarded(|| paths::resolve_at(folder, path), None), path, flags, |path| {
                next!($text, fn(c_int, *const c_char, c_int) -> c_int, folder, path, flags)
                    .unwrap_or(-1)
            })
        }
    )*};
}

checked_openats!(__openat_2 "__openat_2", __openat64_2 "__openat64_2");
