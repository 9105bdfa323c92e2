//! Memory of an area, unmapped when dropped.

use super::backing::Holding;
use super::error::Cause;
use super::{AreaError, Backing, Operation};
use crate::Kept;
use crate::agent::AgentId;
use crate::runtime::Runtime;
use crate::vmm::Address;
use core::marker::PhantomData;

/// Memory that [`Area::mmap`](super::Area::mmap) gave; dropping it unmaps it.
///
/// Reading and writing check what may be touched and can therefore not fault. The device does it
/// for memory of its own, whether or not a CPU reaches that, and this process's own loads and
/// stores for memory of the host. For everything else there is [`address`](Self::address);
/// whoever keeps that longer than the memory keeps a dangling pointer, as with any allocation.
#[derive(Debug)]
pub struct AreaMemory<'a> {
    pub(super) made: Made,
    pub(super) holding: Box<Holding>,
    borrowed: PhantomData<&'a mut [u8]>,
}

/// How it was made.
#[derive(Debug)]
pub(super) struct Made {
    pub runtime: Runtime,
    /// As it was asked for.
    pub size: usize,
    /// For whom.
    pub device: AgentId,
    /// Whose memory it is.
    pub owner: AgentId,
    /// Who may use it.
    pub agents: Box<[AgentId]>,
}

impl AreaMemory<'_> {
    pub(super) fn new(made: Made, holding: Holding) -> Self {
        Self { made, holding: Box::new(holding), borrowed: PhantomData }
    }

    /// Where it begins, for whoever may use it; of memory that was there already, for this
    /// process.
    #[must_use]
    pub fn address(&self) -> Address {
        match &*self.holding {
            Holding::Mapped(memory) => memory.address(),
            Holding::Pool(memory) => memory.address(),
            Holding::Locked(memory) => memory.address(),
        }
    }

    /// Where it begins for the device (`hipHostGetDevicePointer`): the same address, except for
    /// memory that was there already.
    #[must_use]
    pub fn device_address(&self) -> Address {
        match &*self.holding {
            Holding::Locked(memory) => memory.device_address(),
            _ => self.address(),
        }
    }

    /// The size in bytes, as it was asked for.
    #[must_use]
    pub fn size(&self) -> usize {
        self.made.size
    }

    /// What it takes: the size in whole granules. Memory that was there already takes no more.
    #[must_use]
    pub fn allocated_size(&self) -> usize {
        match &*self.holding {
            Holding::Mapped(memory) => memory.whole(),
            Holding::Pool(memory) => memory.allocated_size(),
            Holding::Locked(_) => self.made.size,
        }
    }

    /// The GPU that it was made for.
    #[must_use]
    pub fn device(&self) -> AgentId {
        self.made.device
    }

    /// Whose memory it is: the device's or a CPU's.
    #[must_use]
    pub fn owner(&self) -> AgentId {
        self.made.owner
    }

    /// Who may use it; the CPU among them if this process's own loads and stores may.
    #[must_use]
    pub fn agents(&self) -> &[AgentId] {
        &self.made.agents
    }

    /// Whether an agent may use it.
    #[must_use]
    pub fn is_visible_to(&self, agent: AgentId) -> bool {
        self.made.agents.contains(&agent)
    }

    /// What is behind it.
    #[must_use]
    pub fn backing(&self) -> Backing {
        match &*self.holding {
            Holding::Mapped(_) => Backing::Virtual,
            Holding::Pool(_) => Backing::Pool,
            Holding::Locked(_) => Backing::Locked,
        }
    }

    /// Unmaps the memory now, and says whether that worked (`hipFree`, `hipHostFree`,
    /// `hipHostUnregister`). Memory that was there already is the caller's again.
    ///
    /// # Errors
    /// [`AreaError::Failure`]; the memory comes back with it, with all that is in it. Only where
    /// the runtime does not take back what it has unmapped, or a second thing fails, can it not
    /// be used any more ([`Cause::Unmapped`](super::Cause::Unmapped)), but unmapped again.
    /// [`AreaError::Busy`] for pool memory that another process is opening this very moment.
    pub fn munmap(self) -> Result<(), Kept<Self, AreaError>> {
        let operation = Operation::Munmap;
        if self.made.runtime.has_forked() {
            let error = AreaError::Failure { operation, cause: Cause::Forked };
            return Err(Kept::new(self, error));
        }
        let Self { made, holding, borrowed } = self;
        let size = made.size;
        let freed = match *holding {
            Holding::Mapped(memory) => memory.free(&made.agents).map_err(|(memory, error)| {
                (Holding::Mapped(memory), AreaError::of_vmm(operation, error, size))
            }),
            Holding::Pool(memory) => memory.free().map_err(|Kept { value, error }| {
                (Holding::Pool(value), AreaError::of_memory(operation, error, size))
            }),
            Holding::Locked(memory) => memory.free().map_err(|(memory, failure)| {
                (Holding::Locked(memory), AreaError::of_call(operation, failure, size))
            }),
        };
        freed.map_err(|(holding, error)| {
            Kept::new(Self { made, holding: Box::new(holding), borrowed }, error)
        })
    }
}
