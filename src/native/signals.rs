//! The signal mask of the calling thread.

use core::mem::MaybeUninit;

/// Calls a function with `SIGPIPE` blocked. Threads that it starts inherit that and keep it.
pub(crate) fn without_sigpipe<T>(act: impl FnOnce() -> T) -> T {
    let mut pipe = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set that the others use, and none fails for a signal that
    // exists; `before` is writable.
    let blocked = unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr())
    };
    let done = act();
    if blocked == 0 {
        // SAFETY: the call above has written `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    }
    done
}
