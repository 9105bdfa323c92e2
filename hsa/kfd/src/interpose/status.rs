//! `stat`, `access`, `readlink` and their variants. `stat` reports devices as character devices.

use super::{catch_panic, tree_path};
use crate::descriptors::{self, Device};
use crate::driver::{DRM_MAJOR, FIRST_RENDER_MINOR, KFD_MAJOR};
use crate::errno::{EFAULT, Errno};
use crate::paths::{self, DriverPath};
use crate::real::next;
use crate::user;
use libc::{c_char, c_int, c_uint, size_t, ssize_t, stat as Status, statx as ExtendedStatus};

/// A device number: major and minor.
type DeviceNumber = (u32, u32);

fn device_of_path(driver_path: &DriverPath) -> Option<DeviceNumber> {
    match driver_path {
        DriverPath::Kfd => Some((KFD_MAJOR, 0)),
        DriverPath::Render(gpu) => Some((DRM_MAJOR, (FIRST_RENDER_MINOR + gpu) as u32)),
        DriverPath::Tree(_) | DriverPath::Generated(_) => None,
    }
}

fn device_of_descriptor(descriptor: c_int) -> Option<DeviceNumber> {
    match descriptors::get(descriptor)? {
        Device::Kfd(_) => Some((KFD_MAJOR, 0)),
        Device::Render(file) => Some((DRM_MAJOR, (FIRST_RENDER_MINOR + file.gpu) as u32)),
    }
}

/// Writes the status of a character device to the caller's struct.
fn fill(status: *mut Status, (major, minor): DeviceNumber) -> c_int {
    if status.is_null() {
        return EFAULT.set_errno();
    }
    // SAFETY: the caller passes a struct to write to; all zeros is a valid value of the struct.
    unsafe {
        status.write_bytes(0, 1);
        (*status).st_mode = libc::S_IFCHR | 0o666;
        (*status).st_rdev = libc::makedev(major, minor);
        (*status).st_ino = (*status).st_rdev;
        (*status).st_nlink = 1;
        (*status).st_blksize = 4096;
    }
    0
}

/// Reports the status of a path. `device_status` reports devices. `libc_status` reports files of the
/// tree and all other files.
fn report(
    driver_path: Option<DriverPath>,
    path: *const c_char,
    device_status: impl Fn(DeviceNumber) -> c_int,
    libc_status: impl Fn(*const c_char) -> c_int,
) -> c_int {
    let Some(driver_path) = driver_path else { return libc_status(path) };
    match device_of_path(&driver_path) {
        Some(number) => device_status(number),
        None => match catch_panic(|| paths::tree_path(driver_path), None) {
            Some(redirected) => libc_status(redirected.as_ptr()),
            None => libc_status(path),
        },
    }
}

fn driver_path(path: *const c_char) -> Option<DriverPath> {
    catch_panic(|| paths::resolve(path), None)
}

fn driver_path_at(folder: c_int, path: *const c_char) -> Option<DriverPath> {
    catch_panic(|| paths::resolve_at(folder, path), None)
}

/// Defines the variants of `stat` and `lstat`.
macro_rules! define_stat {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, status: *mut Status) -> c_int {
            report(driver_path(path), path, |number| fill(status, number), |path| {
                next!($text, fn(*const c_char, *mut Status) -> c_int, path, status).unwrap_or(-1)
            })
        }
    )*};
}

define_stat!(stat "stat", stat64 "stat64", lstat "lstat", lstat64 "lstat64");

/// Defines `fstat` variants.
macro_rules! define_fstat {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(descriptor: c_int, status: *mut Status) -> c_int {
            match catch_panic(|| device_of_descriptor(descriptor), None) {
                Some(number) => fill(status, number),
                None => {
                    next!($text, fn(c_int, *mut Status) -> c_int, descriptor, status).unwrap_or(-1)
                }
            }
        }
    )*};
}

define_fstat!(fstat "fstat", fstat64 "fstat64");

/// Defines the `stat` variants before glibc 2.33, whose first parameter is the version of the struct.
macro_rules! define_xstat {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(version: c_int, path: *const c_char, status: *mut Status) -> c_int {
            report(driver_path(path), path, |number| fill(status, number), |path| {
                next!(
                    $text, fn(c_int, *const c_char, *mut Status) -> c_int, version, path, status
                )
                .unwrap_or(-1)
            })
        }
    )*};
}

define_xstat!(
    __xstat "__xstat", __xstat64 "__xstat64", __lxstat "__lxstat", __lxstat64 "__lxstat64"
);

/// Defines the `fstat` variants before glibc 2.33.
macro_rules! define_fxstat {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(version: c_int, descriptor: c_int, status: *mut Status) -> c_int {
            match catch_panic(|| device_of_descriptor(descriptor), None) {
                Some(number) => fill(status, number),
                None => next!(
                    $text, fn(c_int, c_int, *mut Status) -> c_int, version, descriptor, status
                )
                .unwrap_or(-1),
            }
        }
    )*};
}

define_fxstat!(__fxstat "__fxstat", __fxstat64 "__fxstat64");

/// Returns whether a path is empty. With `AT_EMPTY_PATH`, an empty path means the descriptor itself. From Linux 6.11
/// on, a null pointer is an empty path.
fn is_empty(path: *const c_char) -> bool {
    let mut first = [0];
    path.is_null() || user::read_own(path as u64, &mut first).is_ok() && first == [0]
}

/// Defines `fstatat` variants.
macro_rules! define_fstatat {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            status: *mut Status,
            flags: c_int,
        ) -> c_int {
            if flags & libc::AT_EMPTY_PATH != 0
                && is_empty(path)
                && let Some(number) = catch_panic(|| device_of_descriptor(folder), None)
            {
                return fill(status, number);
            }
            report(driver_path_at(folder, path), path, |number| fill(status, number), |path| {
                next!(
                    $text, fn(c_int, *const c_char, *mut Status, c_int) -> c_int,
                    folder, path, status, flags
                )
                .unwrap_or(-1)
            })
        }
    )*};
}

define_fstatat!(fstatat "fstatat", fstatat64 "fstatat64");

fn fill_extended(status: *mut ExtendedStatus, (major, minor): DeviceNumber) -> c_int {
    if status.is_null() {
        return EFAULT.set_errno();
    }
    // SAFETY: the caller passes a struct to write to; all zeros is a valid value of the struct.
    unsafe {
        status.write_bytes(0, 1);
        (*status).stx_mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_INO;
        (*status).stx_ino = libc::makedev(major, minor);
        (*status).stx_mode = (libc::S_IFCHR | 0o666) as u16;
        (*status).stx_rdev_major = major;
        (*status).stx_rdev_minor = minor;
        (*status).stx_nlink = 1;
        (*status).stx_blksize = 4096;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut ExtendedStatus,
) -> c_int {
    let libc_status = |path| {
        next!(
            "statx",
            fn(c_int, *const c_char, c_int, c_uint, *mut ExtendedStatus) -> c_int,
            folder,
            path,
            flags,
            mask,
            status
        )
        .unwrap_or_else(|| Errno(libc::ENOSYS).set_errno())
    };
    if flags & libc::AT_EMPTY_PATH != 0
        && is_empty(path)
        && let Some(number) = catch_panic(|| device_of_descriptor(folder), None)
    {
        return fill_extended(status, number);
    }
    report(driver_path_at(folder, path), path, |number| fill_extended(status, number), libc_status)
}

/// Defines `access` variants.
macro_rules! define_access {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: c_int) -> c_int {
            let redirected = tree_path(path);
            let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
            next!($text, fn(*const c_char, c_int) -> c_int, path, mode).unwrap_or(-1)
        }
    )*};
}

define_access!(access "access", eaccess "eaccess", euidaccess "euidaccess");

#[unsafe(no_mangle)]
extern "C" fn faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let redirected =
        catch_panic(|| paths::resolve_at(folder, path).and_then(paths::tree_path), None);
    let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
    next!("faccessat", fn(c_int, *const c_char, c_int, c_int) -> c_int, folder, path, mode, flags)
        .unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn readlink(path: *const c_char, target: *mut c_char, capacity: size_t) -> ssize_t {
    let redirected = tree_path(path);
    let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
    next!("readlink", fn(*const c_char, *mut c_char, size_t) -> ssize_t, path, target, capacity)
        .unwrap_or(-1)
}
