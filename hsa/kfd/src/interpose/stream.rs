//! `fopen`, which calls libc's `open` directly and bypasses the interposed `open`.

use super::catch_panic;
use crate::paths::{self, DriverPath};
use crate::real::{self, next};
use crate::{driver, memory_file};
use libc::{FILE, c_char, c_int};
use std::ffi::CString;

/// Returns the path that replaces a driver path, or `None` for other paths. For a generated file,
/// the path names a new descriptor, which the caller closes once the stream is open.
fn redirected_path(path: *const c_char) -> (Option<CString>, Option<c_int>) {
    match paths::resolve(path) {
        Some(DriverPath::Generated(file)) => {
            let text = file.text(driver::get());
            let Ok(descriptor) = memory_file::create_text("generated", &text, true) else {
                return (None, None);
            };
            (CString::new(format!("/proc/self/fd/{descriptor}")).ok(), Some(descriptor))
        }
        driver_path => (driver_path.and_then(paths::tree_path), None),
    }
}

/// Defines variants of `fopen`, which libhsakmt and libdrm use for sysfs, never for devices.
macro_rules! define_fopen {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let (redirected, descriptor) = catch_panic(|| redirected_path(path), (None, None));
            let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
            let stream = next!($text, fn(*const c_char, *const c_char) -> *mut FILE, path, mode)
                .unwrap_or(std::ptr::null_mut());
            descriptor.into_iter().for_each(real::close);
            stream
        }
    )*};
}

define_fopen!(fopen "fopen", fopen64 "fopen64");
