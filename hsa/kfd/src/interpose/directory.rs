//! `opendir`: a folder of the driver is one of the tree.

use super::guarded;
use crate::paths;
use crate::real::next;
use libc::{DIR, c_char};

#[unsafe(no_mangle)]
extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let other = guarded(|| paths::stand_in(path), None);
    let path = other.as_ref().map_or(path, |other| other.as_ptr());
    next!("opendir", fn(*const c_char) -> *mut DIR, path).unwrap_or(std::ptr::null_mut())
}
