//! The functions of libc that the interposed functions replace.
//!
//! The emulation's own operations on descriptors call the kernel directly ([`close`], [`map`],
//! [`duplicate`]), so that they never reach an interposed function.

use crate::errno::{Errno, Result};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next object in the search order, looked up on its first call.
#[derive(Debug)]
pub(crate) struct NextFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the address, or null if libc has no such function.
    pub(crate) fn address(&self) -> *mut c_void {
        let cached = self.found.load(Ordering::Acquire);
        if !cached.is_null() {
            return cached;
        }
        // SAFETY: the name ends with a zero; the lookup reads only the loader's tables.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Calls libc's function of the given name and type: `next!("close", fn(c_int) -> c_int,
/// descriptor)`. Evaluates to `None` if libc has no such function.
macro_rules! next {
    ($name:literal, fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static NEXT: $crate::real::NextFunction = {
            // SAFETY: the name is a literal without zeros; `concat!` adds the final zero.
            let name = unsafe {
                std::ffi::CStr::from_bytes_with_nul_unchecked(concat!($name, "\0").as_bytes())
            };
            $crate::real::NextFunction::new(name)
        };
        let address = NEXT.address();
        // SAFETY: `Option` of a function has null for `None`; the type is the one libc documents.
        let function = unsafe {
            std::mem::transmute::<
                *mut libc::c_void,
                Option<unsafe extern "C" fn($($kind),*) -> $result>,
            >(address)
        };
        // SAFETY: the caller keeps the function's contract; the arguments are unchanged.
        function.map(|function| unsafe { function($($argument),*) })
    }};
}
pub(crate) use next;

/// Closes one of the emulation's own descriptors.
pub(crate) fn close(descriptor: c_int) {
    // SAFETY: the emulation owns the descriptor and does not use it again.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

pub(crate) fn duplicate(descriptor: c_int, close_on_exec: bool) -> Result<c_int> {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: the call accesses no memory.
    let copy = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, command, 0) };
    if copy < 0 { Err(Errno::last()) } else { Ok(copy as c_int) }
}

/// Sets whether a descriptor is closed on `exec`.
pub(crate) fn set_close_on_exec(descriptor: c_int, closes: bool) {
    let flags = if closes { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: the call accesses no memory.
    unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_SETFD, flags) };
}

/// Returns the seals of a memory file.
pub(crate) fn seals(descriptor: c_int) -> Result<c_int> {
    // SAFETY: the call accesses no memory.
    let seals = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_GET_SEALS) };
    if seals < 0 { Err(Errno::last()) } else { Ok(seals as c_int) }
}

/// The arguments of `mmap`, except for the file and its offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) protection: c_int,
    pub(crate) flags: c_int,
}

/// Maps a file from an offset.
///
/// # Safety
///
/// With `MAP_FIXED`, the caller must own the replaced range.
pub(crate) unsafe fn map(mapping: Mapping, descriptor: c_int, offset: u64) -> Result<*mut c_void> {
    let Mapping { address, length, protection, flags } = mapping;
    // On x86-64, `syscall` reads its last argument from the stack, as 64 bits. `offset` therefore has this width.
    // SAFETY: with `MAP_FIXED`, the caller owns the replaced range.
    let mapped = unsafe {
        libc::syscall(libc::SYS_mmap, address, length, protection, flags, descriptor, offset)
    };
    if mapped == -1 { Err(Errno::last()) } else { Ok(mapped as *mut c_void) }
}
