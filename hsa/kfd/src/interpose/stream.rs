//! `fopen`, which calls libc's `open` directly and bypasses the interposed `open`.

use super::catch_panic;
use crate::errno::{EACCES, Result};
use crate::paths::{self, DriverPath};
use crate::real::{self, next};
use crate::{driver, memory_file};
use libc::{FILE, c_char, c_int};
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

/// Returns the path that replaces a driver path, or `None` for other paths. For a generated file,
/// the path names a new descriptor, which the caller closes once the stream is open.
fn redirected_path(
    path: *const c_char,
    mode: *const c_char,
) -> Result<(Option<CString>, Option<c_int>)> {
    match paths::resolve(path) {
        Some(DriverPath::Generated(_)) if opens_for_writing(mode) => Err(EACCES),
        Some(DriverPath::Tree(path)) if opens_for_writing(mode) && paths::is_in_sysfs(&path) => {
            Err(EACCES)
        }
        Some(DriverPath::Generated(file)) => {
            let text = file.text(driver::get());
            let descriptor = memory_file::create_text("generated", &text, true)?;
            Ok((CString::new(format!("/proc/self/fd/{descriptor}")).ok(), Some(descriptor)))
        }
        driver_path => Ok((driver_path.and_then(paths::tree_path), None)),
    }
}

/// Returns whether a mode of `fopen` opens the file for writing: every mode except `r` without `+`.
fn opens_for_writing(mode: *const c_char) -> bool {
    // SAFETY: a caller of libc passes a mode that ends with a zero and lives during the call.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    !mode.starts_with(b"r") || mode.contains(&b'+')
}

/// Defines variants of `fopen`, which libhsakmt and libdrm use for sysfs, never for devices.
macro_rules! define_fopen {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let (redirected, descriptor) =
                match catch_panic(|| redirected_path(path, mode), Ok((None, None))) {
                    Ok(redirected) => redirected,
                    Err(error) => {
                        error.set_errno();
                        return null_mut();
                    }
                };
            let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
            let stream = next!($text, fn(*const c_char, *const c_char) -> *mut FILE, path, mode)
                .unwrap_or(null_mut());
            descriptor.into_iter().for_each(real::close);
            stream
        }
    )*};
}

define_fopen!(fopen "fopen", fopen64 "fopen64");
