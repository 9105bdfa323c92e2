//! Host memory of the caller, locked for access by agents.

use crate::agent::Agent;
use crate::error::{Argument, Busy, ErrorKind, Problem};
use crate::native::Failure;
use crate::runtime::Runtime;
use crate::vmm::Address;
use std::collections::BTreeMap;
// Not crate::sync's, which model checkers replace: this one is a static of the whole process.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The start and end of each locked range.
type Locked = BTreeMap<usize, usize>;

/// What areas of this process have locked, on any runtime: a library that is opened twice is one
/// runtime. AMD's runtime identifies what is locked by its start alone: of two sizes at one address it
/// unlocks neither, and 7.2 ends the process when asked to.
static LOCKED: Mutex<Locked> = Mutex::new(Locked::new());

fn locked() -> MutexGuard<'static, Locked> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Host memory that is unlocked when dropped.
pub(super) struct LockedMemory {
    runtime: Runtime,
    start: usize,
    is_locked: bool,
}

impl LockedMemory {
    /// Locks memory for GPUs, and returns it with the address at which they access it.
    ///
    /// # Safety
    /// The memory stays allocated and writable until the new value has been freed or dropped.
    pub unsafe fn new(
        runtime: &Runtime,
        start: usize,
        size: usize,
        gpus: &[&Agent],
    ) -> Result<(Self, usize), ErrorKind> {
        let overflow = ErrorKind::invalid(Argument::Host, Address::new(start), Problem::Overflow);
        let end = start.checked_add(size).ok_or(overflow)?;
        let mut locked = locked();
        let before = locked.range(..end).next_back();
        if let Some((&at, _)) = before.filter(|&(_, &other)| other > start) {
            return Err(ErrorKind::Busy(Busy::HostMemoryMapped { at: Address::new(at) }));
        }
        let natives: Vec<_> = gpus.iter().map(|gpu| gpu.native).collect();
        // SAFETY: the caller vouches for the memory, and no locked range overlaps it.
        let device_address = unsafe { runtime.native().lock(start, size, &natives) };
        let device_address = device_address.map_err(|failure| ErrorKind::of_call(failure, size))?;
        locked.insert(start, end);
        Ok((Self { runtime: runtime.clone(), start, is_locked: true }, device_address))
    }

    /// Unlocks it, or leaves it unchanged.
    pub fn free(&mut self) -> Result<(), ErrorKind> {
        self.unlock()?;
        self.is_locked = false;
        Ok(())
    }

    fn unlock(&self) -> Result<(), Failure> {
        let mut locked = locked();
        // SAFETY: `new` locked it. This value is consumed or dropped, so its area copies nothing.
        unsafe { self.runtime.native().unlock(self.start) }?;
        locked.remove(&self.start);
        Ok(())
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        if !self.is_locked || self.runtime.has_forked() {
            return;
        }
        if let Err(failure) = self.unlock() {
            let address = Address::new(self.start);
            crate::log::warning!(?failure, %address, "memory stays locked");
            // The runtime decides whether it can be locked again.
            locked().remove(&self.start);
        }
    }
}
