//! The functions of libc that are answered here for the driver's devices and paths.
//!
//! Each hands on to libc's own what is not the driver's. None takes a lock for that, and none
//! lets a panic out.

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

/// Runs; a panic, which would be a defect of the emulation, becomes `EIO`.
fn guarded<T>(run: impl FnOnce() -> T, failed: T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        EIO.leave();
        failed
    })
}

/// The path of a file that stands for a path of the driver; a device has one in the tree too.
fn stand_in(path: *const c_char) -> Option<CString> {
    guarded(|| paths::resolve(path).and_then(paths::stand_in), None)
}
