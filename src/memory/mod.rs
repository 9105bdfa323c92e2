//! Memory of pools: what `hipMalloc` gives, at an address that the runtime chooses.
//!
//! Nothing is reserved and nothing mapped by hand; in return the memory can neither grow nor
//! move. It is what HIP's IPC shares between processes ([`Ipc`](crate::Ipc)).
//!
//! Only its [`PoolMemory`] can free it: no other safe function takes its address to do so. What
//! concurrent reads and writes do is described in the [memory model](crate::vmm#memory-model).
//!
//! | HIP | here | HSA |
//! |---|---|---|
//! | `hipMalloc`, `hipHostMalloc` | [`PoolMemory::allocate`] | `hsa_amd_memory_pool_allocate` |
//! | `hipDeviceEnablePeerAccess` | [`PoolMemory::allow`] | `hsa_amd_agents_allow_access` |
//! | `hipMemcpy` | [`PoolMemory::read`], [`write`](PoolMemory::write), [`copy`](PoolMemory::copy) | `hsa_amd_memory_async_copy` |
//! | `hipMemset` | [`PoolMemory::fill`] | `hsa_amd_memory_async_copy` |
//! | `hipFree` | [`PoolMemory::free`] | `hsa_amd_memory_pool_free` |

mod error;
mod registry;
mod span;

pub use error::{MemoryError, Operation, Problem};
pub(crate) use registry::{Record, Registry, State};
pub(crate) use span::Span;

use crate::Kept;
use crate::agent::{Agent, AgentId, AgentKind};
use crate::ipc::Busy;
use crate::native::{Failure, Status};
use crate::pool::{Pool, PoolFlags, Segment};
use crate::runtime::Runtime;
use crate::vmm::Address;
use std::sync::Arc;

/// When what one agent writes is seen by the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Grain {
    /// When the kernel or copy that wrote it is done: what `hipMalloc` gives.
    Coarse,
    /// At once: what `hipHostMalloc` and `hipExtMallocWithFlags` give. Not every GPU has it.
    Fine,
}

/// Memory of a pool, which is freed when this value goes.
///
/// ```
/// # use hsa_vmm::{PoolMemory, Runtime};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?;
/// let memory = PoolMemory::allocate(&runtime, gpu.id(), 1000)?;
/// memory.write(10, b"hello")?;
/// let mut text = [0; 5];
/// memory.read(10, &mut text)?;
/// assert_eq!(&text, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PoolMemory {
    span: Span,
    grain: Grain,
    allocated: usize,
    record: Arc<Record>,
}

impl PoolMemory {
    /// Allocates memory of an agent: coarse-grained of a GPU, fine-grained of a CPU
    /// (`hipMalloc` and `hipHostMalloc`; `hsa_amd_memory_pool_allocate`).
    ///
    /// The agent may use it at once; others are let in by [`allow`](Self::allow).
    ///
    /// # Errors
    /// [`MemoryError::InvalidArgument`] for a size of zero or an agent that is none of this
    /// runtime's; [`MemoryError::OutOfMemory`].
    pub fn allocate(runtime: &Runtime, agent: AgentId, size: usize) -> Result<Self, MemoryError> {
        let is_cpu = |agent: &Agent| agent.kind() == AgentKind::Cpu;
        let fine = runtime.agent(agent).is_some_and(is_cpu);
        Self::allocate_with(runtime, agent, size, if fine { Grain::Fine } else { Grain::Coarse })
    }

    /// Allocates memory of an agent and of this grain.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate), and if the agent has no pool of this grain.
    pub fn allocate_with(
        runtime: &Runtime,
        agent: AgentId,
        size: usize,
        grain: Grain,
    ) -> Result<Self, MemoryError> {
        let operation = Operation::Allocate;
        let refused = |problem| MemoryError::refused(operation, problem);
        if runtime.has_forked() {
            return Err(MemoryError::Forked { operation });
        }
        if size == 0 {
            return Err(refused(Problem::Zero));
        }
        let owner = runtime.agent(agent).ok_or_else(|| refused(Problem::UnknownAgent(agent)))?;
        let pool = pool_of(owner, grain).ok_or_else(|| refused(Problem::NoPool(agent)))?;
        let start = runtime.native().pool_allocate(pool.native, size).map_err(|failure| {
            let Failure { call, status } = failure;
            match status {
                // What a pool can never hold is refused in this way.
                Status::INVALID_ALLOCATION => {
                    MemoryError::OutOfMemory { operation, call, status, size }
                }
                _ => MemoryError::failure(operation, failure, size),
            }
        })?;
        let on_gpu = owner.kind() == AgentKind::Gpu;
        let record = Record::new(start, size, agent, on_gpu);
        runtime.attachment::<Registry>().insert(&record);
        Ok(Self {
            span: Span { runtime: runtime.clone(), start, size, agent },
            grain,
            // The runtime has done it, so that it does not overflow.
            allocated: size.next_multiple_of(pool.granule().max(1)),
            record,
        })
    }

    /// Names it in [reports](crate::report) and logs. An empty name takes the name away.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        if !self.span.runtime.has_forked() {
            self.record.set_name(name);
        }
        self
    }

    /// Where it begins: the same address for this process and for every agent.
    #[must_use]
    pub fn address(&self) -> Address {
        self.span.address()
    }

    /// The size in bytes, as it was asked for.
    #[must_use]
    pub fn size(&self) -> usize {
        self.span.size
    }

    /// What it takes of the pool: the size in whole granules.
    #[must_use]
    pub fn allocated_size(&self) -> usize {
        self.allocated
    }

    /// Whose memory it is.
    #[must_use]
    pub fn agent(&self) -> AgentId {
        self.span.agent
    }

    /// When agents see what others write.
    #[must_use]
    pub fn grain(&self) -> Grain {
        self.grain
    }

    /// The runtime it was allocated on.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.span.runtime
    }

    /// Says which agents may use the memory besides its own: these, and none that was named
    /// before (`hsa_amd_agents_allow_access`).
    ///
    /// # Errors
    /// [`MemoryError::InvalidArgument`] for an agent that is none of this runtime's, or cannot
    /// reach the memory.
    pub fn allow(&self, agents: &[AgentId]) -> Result<(), MemoryError> {
        let operation = Operation::Allow;
        let Span { runtime, start, agent: owner, .. } = &self.span;
        if runtime.has_forked() {
            return Err(MemoryError::Forked { operation });
        }
        let refused = |problem| MemoryError::refused(operation, problem);
        let mut natives = Vec::with_capacity(1 + agents.len());
        // The owner is always among them: the runtime refuses a list of none.
        for &id in core::iter::once(owner).chain(agents) {
            let agent = runtime.agent(id).ok_or_else(|| refused(Problem::UnknownAgent(id)))?;
            if !agent.reaches(*owner) {
                return Err(refused(Problem::Unreachable { agent: id, owner: *owner }));
            }
            if !natives.contains(&agent.native) {
                natives.push(agent.native);
            }
        }
        let mut allowed = self.record.allowed();
        runtime
            .native()
            .allow_access(*start, &natives)
            .map_err(|failure| MemoryError::failure(operation, failure, self.span.size))?;
        *allowed = agents.to_vec();
        Ok(())
    }

    /// Whether an agent may use the memory. In a [child of a fork](Runtime::has_forked) only the
    /// owner may.
    #[must_use]
    pub fn is_open_to(&self, agent: AgentId) -> bool {
        agent == self.span.agent
            || !self.span.runtime.has_forked() && self.record.allowed().contains(&agent)
    }

    /// Copies from the memory (`hipMemcpyDtoH`).
    ///
    /// The owning GPU copies, so that it does not matter whether a CPU reaches the memory.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`MemoryError::InvalidArgument`] if not all of it is inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.span.read(offset, bytes)
    }

    /// Copies to the memory (`hipMemcpyHtoD`).
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        self.span.write(offset, bytes)
    }

    /// Fills a part with a 32-bit value (`hipMemsetD32`). `size` is in bytes.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`MemoryError::InvalidArgument`] if not all of it is inside, or offset or size is no
    /// multiple of four.
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), MemoryError> {
        self.span.fill(offset, value, size)
    }

    /// Copies from other memory, of which the part does not overlap this one (`hipMemcpyDtoD`).
    ///
    /// The GPU that owns this memory copies; if this is the host's, the GPU that owns the source.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`MemoryError::InvalidArgument`] if not all of both is inside, or that GPU may not use
    /// both ([`allow`](Self::allow)).
    pub fn copy(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        size: usize,
    ) -> Result<(), MemoryError> {
        let may = |agent| self.is_open_to(agent) && source.is_open_to(agent);
        self.span.copy(offset, &source.span, source_offset, size, may)
    }

    /// Frees the memory now, and says whether that worked (`hipFree`,
    /// `hsa_amd_memory_pool_free`).
    ///
    /// Handles that other processes have of it ([`Ipc`](crate::Ipc)) are refused from then on;
    /// what they have opened stays valid. One that is opening the memory this very moment is
    /// waited for, at most 15 seconds.
    ///
    /// # Errors
    /// [`MemoryError::BeingOpened`], [`MemoryError::Runtime`]; the memory comes back with it.
    pub fn free(self) -> Result<(), Kept<Self, MemoryError>> {
        self.give_back().map_err(|error| Kept::new(self, error))
    }

    fn give_back(&self) -> Result<(), MemoryError> {
        let operation = Operation::Free;
        let Span { runtime, start, size, .. } = &self.span;
        if runtime.has_forked() {
            return Err(MemoryError::Forked { operation });
        }
        let mut state = self.record.state();
        let free = || {
            // Before the runtime may hand the address out again.
            runtime.attachment::<Registry>().remove(*start);
            runtime.native().pool_free(*start).map_err(|failure| {
                runtime.attachment::<Registry>().insert(&self.record);
                MemoryError::failure(operation, failure, *size)
            })
        };
        match &*state {
            State::Freed => return Ok(()),
            State::Live(None) => free()?,
            State::Live(Some(export)) => export
                .end(free)
                .map_err(|Busy| MemoryError::BeingOpened { operation })
                .and_then(|freed| freed)?,
        }
        *state = State::Freed;
        Ok(())
    }
}

/// The pool of an agent's own memory that has this grain.
fn pool_of(agent: &Agent, grain: Grain) -> Option<&Pool> {
    let flag = match grain {
        Grain::Coarse => PoolFlags::COARSE_GRAINED,
        Grain::Fine => PoolFlags::FINE_GRAINED,
    };
    let suits = |pool: &&Pool| {
        pool.segment() == Segment::Global && pool.allocatable() && pool.flags().contains(flag)
    };
    let pools = || agent.pools().iter().filter(suits);
    // A CPU has a second fine-grained pool, for kernel arguments.
    let plain = |pool: &&Pool| !pool.flags().contains(PoolFlags::KERNARG);
    pools().find(plain).or_else(|| pools().next())
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if !self.span.runtime.has_forked()
            && let Err(error) = self.give_back()
        {
            // It stays allocated: another process could be about to map it.
            crate::log::warning!(%error, address = %self.address(), "pool memory was not freed");
        }
    }
}
