//! The caller's own memory, locked so that agents reach it.

use super::error::{Argument, Cause, Problem};
use super::{AreaError, Operation};
use crate::memory::Span;
use crate::native::{Failure, NativeAgent};
use crate::runtime::Runtime;
use crate::vmm::Address;
use std::collections::BTreeMap;
// The standard library's also where orders of threads are tried: one of these is the whole process's.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where what is locked begins, and where it ends.
type Locked = BTreeMap<usize, usize>;

/// What areas of this process have locked, on whatever runtime: a library that is opened twice is
/// one runtime. AMD's knows what is locked by where it begins alone: of two of different sizes it
/// unlocks neither, and 7.2 ends the process when asked to.
static LOCKED: Mutex<Locked> = Mutex::new(Locked::new());

fn locked() -> MutexGuard<'static, Locked> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of the caller. Whoever makes one sees to it that the memory outlives it, and that nothing
/// but [`bytes`](Self::bytes) and agents access it meanwhile.
#[derive(Debug)]
pub(super) struct LockedMemory {
    bytes: Span,
    start: usize,
    /// Where agents find it: not where this process does.
    device_address: usize,
    held: bool,
}

impl LockedMemory {
    pub fn new(
        runtime: &Runtime,
        start: usize,
        size: usize,
        agents: &[NativeAgent],
    ) -> Result<Self, AreaError> {
        let operation = Operation::Mmap;
        let problem = Problem::Overflow(Address::new(start));
        let refused = AreaError::refused(operation, Argument::Host, problem);
        let end = start.checked_add(size).ok_or(refused)?;
        let mut locked = locked();
        let before = locked.range(..end).next_back();
        if let Some((&at, _)) = before.filter(|&(_, &other)| other > start) {
            let cause = Cause::AlreadyMapped { at: Address::new(at) };
            return Err(AreaError::Busy { operation, cause });
        }
        let device_address = runtime
            .native()
            .lock(start, size, agents)
            .map_err(|failure| AreaError::of_call(operation, failure, size))?;
        locked.insert(start, end);
        let agent = runtime.host().id();
        let bytes = Span { runtime: runtime.clone(), start, size, agent };
        Ok(Self { bytes, start, device_address, held: true })
    }

    /// The memory, for this process's loads and stores, which are atomic: agents and other threads
    /// may use it at the same time.
    pub fn bytes(&self) -> &Span {
        &self.bytes
    }

    pub fn address(&self) -> Address {
        Address::new(self.start)
    }

    pub fn device_address(&self) -> Address {
        Address::new(self.device_address)
    }

    /// Unlocks it, or leaves it as it was.
    pub fn free(mut self) -> Result<(), (Self, Failure)> {
        let unlocked = self.unlock();
        self.held = unlocked.is_err();
        unlocked.map_err(|failure| (self, failure))
    }

    fn unlock(&self) -> Result<(), Failure> {
        let mut locked = locked();
        self.bytes.runtime.native().unlock(self.start)?;
        locked.remove(&self.start);
        Ok(())
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        if !self.held || self.bytes.runtime.has_forked() {
            return;
        }
        if let Err(failure) = self.unlock() {
            crate::log::warning!(?failure, address = %self.address(), "memory stays locked");
            // Whether it can be locked again is for the runtime to say.
            locked().remove(&self.start);
        }
    }
}
