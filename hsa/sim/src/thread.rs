//! Starts threads.

use crate::status::HsaResult;
use core::ptr::null_mut;
use hsa_sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES;

/// Starts a thread. Fails near the kernel's limit of mappings (`vm.max_map_count`), where the standard library would
/// abort the process: each of its threads maps a stack for signal handlers, and aborts if this fails
/// (rust-lang/rust#78497).
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> HsaResult {
    if !has_room() {
        return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    }
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(|_| HSA_STATUS_ERROR_OUT_OF_RESOURCES)
}

/// Returns whether the kernel allows more mappings than a thread needs: its stack, the stack for signal handlers, guard
/// pages and memory for `malloc`. Other threads can reach the limit after this check.
fn has_room() -> bool {
    const MAPPINGS: usize = 16;
    /// A multiple of every page size.
    const SIZE: usize = 64 << 10;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses a free address, so the call replaces no mapping.
    let start = unsafe { libc::mmap(null_mut(), MAPPINGS * SIZE, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return false;
    }
    // The kernel does not merge adjacent mappings with different protection.
    let has_room = (1..MAPPINGS).step_by(2).all(|index| {
        let address = start.wrapping_byte_add(index * SIZE);
        // SAFETY: this part was just mapped, and nothing uses it.
        unsafe { libc::mprotect(address, SIZE, libc::PROT_READ) == 0 }
    });
    // SAFETY: this range was just mapped, and nothing uses it.
    unsafe { libc::munmap(start, MAPPINGS * SIZE) };
    has_room
}
