//! Interposed functions of libc for the driver's devices and paths.
//!
//! Each function catches panics, and passes all other descriptors and paths on to libc, usually without
//! taking a lock.

mod close;
mod control;
pub(crate) mod descriptor_streams;
mod directory;
mod duplicate;
mod memory;
mod open;
mod status;
mod stream;

use crate::errno::EIO;
use crate::paths;
use libc::c_char;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a function. If it panics, sets `errno` to `EIO` and returns `on_panic`.
fn catch_panic<T>(run: impl FnOnce() -> T, on_panic: T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        EIO.set_errno();
        on_panic
    })
}

/// Returns the file in the tree for a driver path, also for devices.
fn tree_path(path: *const c_char) -> Option<CString> {
    catch_panic(|| paths::resolve(path).and_then(paths::tree_path), None)
}
