//! Reads signals of the caller.

use super::Native;
use hsa_sys as sys;

impl Native {
    /// Returns whether the library exports the function that reads a signal.
    pub fn can_load_signals(&self) -> bool {
        self.table.core.hsa_signal_load_scacquire.is_some()
    }

    /// Returns the value of a signal; `None` if the library cannot read signals. The call is not logged,
    /// because it is made again and again.
    ///
    /// # Safety
    /// The signal must be one of this runtime, and must not have been destroyed.
    pub unsafe fn load_signal(&self, signal: sys::hsa_signal_t) -> Option<i64> {
        let load = self.table.core.hsa_signal_load_scacquire?;
        // SAFETY: the caller guarantees that the signal exists.
        Some(unsafe { load(signal) })
    }
}
