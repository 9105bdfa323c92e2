//! `fopen`, which reaches libc's own `open` without passing by the interposed one.

use super::guarded;
use crate::paths;
use crate::real::next;
use libc::{FILE, c_char};

/// Defines `fopen` forms. libhsakmt and libdrm read sysfs so, and no device.
macro_rules! streams {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let other = guarded(|| paths::stand_in(path), None);
            let path = other.as_ref().map_or(path, |other| other.as_ptr());
            next!($text, fn(*const c_char, *const c_char) -> *mut FILE, path, mode)
                .unwrap_or(std::ptr::null_mut())
        }
    )*};
}

streams!(fopen "fopen", fopen64 "fopen64");
