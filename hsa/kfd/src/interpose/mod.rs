//! Interposed functions of libc for the driver's devices and paths.
//!
//! Each function passes all other descriptors and paths on to libc without taking a lock, and catches
//! panics.

mod close;
mod control;
mod directory;
mod duplicate;
pub(crate) mod lists;
mod memory;
mod open;
mod status;
mod stream;

use crate::errno::EIO;
use crate::paths;
use libc::c_char;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a function. If it panics, sets `errno` to `EIO` and returns `failed`.
fn guarded<T>(run: impl FnOnce() -> T, failed: T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        EIO.set_errno();
        failed
    })
}

/// Returns the file in the tree for a driver path, also for devices.
fn tree_path(path: *const c_char) -> Option<CString> {
    guarded(|| paths::resolve(path).and_then(paths::tree_path), None)
}
