//! `fopen`, which calls libc's `open` directly and bypasses the interposed one.

use super::guarded;
use crate::paths::{self, DriverPath};
use crate::real::{self, next};
use crate::{driver, memory_file};
use libc::{FILE, c_char, c_int};
use std::ffi::CString;

/// Returns the path to open instead, if any. For a counter the path names a new descriptor, which the
/// caller closes once the stream is open.
fn source(path: *const c_char) -> (Option<CString>, Option<c_int>) {
    match paths::resolve(path) {
        Some(DriverPath::Counter(counter)) => {
            let text = counter.text(driver::get());
            let Ok(descriptor) = memory_file::with_text("counter", &text, true) else {
                return (None, None);
            };
            (CString::new(format!("/proc/self/fd/{descriptor}")).ok(), Some(descriptor))
        }
        driver_path => (driver_path.and_then(paths::tree_path), None),
    }
}

/// Defines `fopen` variants. libhsakmt and libdrm use them for sysfs, never for devices.
macro_rules! streams {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let (redirected, descriptor) = guarded(|| source(path), (None, None));
            let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
            let stream = next!($text, fn(*const c_char, *const c_char) -> *mut FILE, path, mode)
                .unwrap_or(std::ptr::null_mut());
            descriptor.into_iter().for_each(real::close);
            stream
        }
    )*};
}

streams!(fopen "fopen", fopen64 "fopen64");
