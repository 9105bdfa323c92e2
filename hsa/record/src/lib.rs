//! A tool library for AMD's HSA runtime that records virtual memory calls.
//!
//! `HSA_TOOLS_LIB` names this shared object. The runtime loads it in `hsa_init` and calls [`OnLoad`], which
//! replaces the pointers of the recorded functions (`wrappers`) in the runtime's tables. Each wrapper calls the
//! runtime's function and appends one line of JSON to the file in `HSA_VMM_RECORD` (`recording`).
//! `hsa_vmm_conformance::hsa_trace` describes the format.
//!
//! The library must not disturb the program. It records a call without a lock of its own. If it cannot write, for
//! example on a full disk, the recording stops and the program continues.

// AMD's runtime needs glibc. With another C library, such as musl in a static `hsa-vmm`, the crate is empty.
#![cfg(target_env = "gnu")]

mod header;
mod line;
mod recording;
mod stack;
mod wrappers;

use core::ffi::c_char;
use hsa_sys::tools::{AMD_EXT_MAJOR, API_TABLE_MAJOR, ApiTable, CORE_MAJOR};
use std::panic::catch_unwind;

/// Starts the recording. Returns whether the library stays loaded.
///
/// # Safety
/// Only the runtime may call this function, with its tables.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime looks up this name")]
pub unsafe extern "C" fn OnLoad(
    table: *mut ApiTable,
    _runtime_version: u64,
    _failed_tool_count: u64,
    _failed_tool_names: *const *const c_char,
) -> bool {
    // SAFETY: the runtime passes its tables.
    catch_unwind(|| unsafe { start(table) }).unwrap_or(false)
}

/// Ends the recording. The runtime calls this function when its last user calls `hsa_shut_down`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime looks up this name")]
pub extern "C" fn OnUnload() {
    let _ = catch_unwind(recording::end);
}

/// # Safety
/// As for [`OnLoad`].
unsafe fn start(table: *mut ApiTable) -> bool {
    if table.is_null() {
        return false;
    }
    // SAFETY: not null, and the caller promises the runtime's tables.
    let table = unsafe { *table };
    if table.version.major != API_TABLE_MAJOR || table.core.is_null() || table.amd_ext.is_null() {
        recording::print_error(format_args!(
            "not recording: this runtime's tables have version {} instead of {API_TABLE_MAJOR}, or are missing",
            table.version.major
        ));
        return false;
    }
    // SAFETY: not null, and each table begins with its version.
    let majors = unsafe { [(*table.core).version.major, (*table.amd_ext).version.major] };
    if majors != [CORE_MAJOR, AMD_EXT_MAJOR] {
        recording::print_error(format_args!(
            "not recording: this runtime's tables have the versions {majors:?} instead of {:?}",
            [CORE_MAJOR, AMD_EXT_MAJOR]
        ));
        return false;
    }
    // SAFETY: the versions of the tables are checked above.
    let header = unsafe { header::header(&table) };
    if !recording::begin(header) {
        return false;
    }
    // SAFETY: the versions of the tables are checked above.
    unsafe { wrappers::install(&table) };
    true
}
