//! Pool memory, as `hipMalloc` allocates it, at an address that the runtime chooses.
//!
//! Pool memory needs no reservation and no mapping, but can neither grow nor move. HIP's IPC shares it
//! between processes ([`Ipc`](crate::Ipc)).
//!
//! Only the owning [`PoolMemory`] value frees the memory: no safe function frees memory by its address. Concurrent
//! reads and writes are described in the [memory model](crate::vmm#memory-model).
//!
//! | HIP | hsa-vmm | HSA |
//! |---|---|---|
//! | `hipMalloc`, `hipHostMalloc` | [`PoolMemory::allocate`] | `hsa_amd_memory_pool_allocate` |
//! | `hipDeviceEnablePeerAccess` | [`PoolMemory::allow`] | `hsa_amd_agents_allow_access` |
//! | `hipMemcpy` | [`PoolMemory::read`](Span::read), [`write`](Span::write), [`copy`](PoolMemory::copy) | `hsa_amd_memory_async_copy` |
//! | `hipMemset` | [`PoolMemory::fill`](Span::fill) | `hsa_amd_memory_async_copy` |
//! | `hipFree` | [`PoolMemory::free`] | `hsa_amd_memory_pool_free` |

mod registry;
mod span;

pub use registry::PoolMemoryInfo;
pub(crate) use registry::{Exported, Record, Registry, State};
pub use span::Span;

use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::native::{Status, out_of_descriptors};
use crate::pool::{Pool, PoolFlags, Segment};
use crate::runtime::Runtime;
use crate::sync::{Mutex, lock, read, write};
use core::ops::Deref;
use derive_more::Debug;
use std::sync::Arc;

/// Memory of a pool. Dropping the value frees the memory. Dereferences to a [`Span`], whose methods read and write the
/// memory.
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
#[debug("PoolMemory({span:?})")]
pub struct PoolMemory {
    span: Span,
    pub(crate) record: Arc<Record>,
}

impl PoolMemory {
    /// Allocates memory of an agent: coarse-grained for a GPU, fine-grained for a CPU (`hipMalloc` and
    /// `hipHostMalloc`; `hsa_amd_memory_pool_allocate`). `size` is in bytes.
    ///
    /// The agent can access the memory immediately; [`allow`](Self::allow) grants access to other agents.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size of zero or an agent of another runtime;
    /// [`ErrorKind::OutOfMemory`]; on the simulation, [`ErrorKind::OutOfDescriptors`].
    pub fn allocate(runtime: &Runtime, agent: AgentId, size: usize) -> Result<Self, Error> {
        let is_cpu = |agent: &Agent| agent.kind() == AgentKind::Cpu;
        let flags = match runtime.agent(agent).is_some_and(is_cpu) {
            true => PoolFlags::FINE_GRAINED,
            false => PoolFlags::COARSE_GRAINED,
        };
        Self::allocate_with(runtime, agent, size, flags)
    }

    /// Allocates memory of an agent from a pool with these flags.
    ///
    /// In coarse-grained memory (`hipMalloc`), a store becomes visible to other agents when the kernel or copy that
    /// made the store has ended. In fine-grained memory (`hipHostMalloc`, `hipExtMallocWithFlags`), a store is visible
    /// immediately. Not every GPU has fine-grained memory.
    ///
    /// ```
    /// # use hsa_vmm::{PoolMemory, Runtime};
    /// use hsa_vmm::pool::PoolFlags;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// let (host, flags) = (runtime.host().id(), PoolFlags::FINE_GRAINED);
    /// let memory = PoolMemory::allocate_with(&runtime, host, 4096, flags)?;
    /// assert!(memory.flags().contains(flags));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate); [`Problem::NoPool`] if the agent has no such memory.
    pub fn allocate_with(
        runtime: &Runtime,
        agent: AgentId,
        size: usize,
        flags: PoolFlags,
    ) -> Result<Self, Error> {
        let allocated = Operation::Allocate.run(|| {
            runtime.check_not_forked()?;
            Argument::Size.check_not_zero(size)?;
            let invalid = |problem| ErrorKind::invalid(Argument::Agent, agent, problem);
            let owner = runtime.agent(agent).ok_or(invalid(Problem::UnknownAgent))?;
            let pool = pool_of(owner, flags).ok_or(invalid(Problem::NoPool))?;
            let native = runtime.native();
            let start = native.pool_allocate(pool.native, size).map_err(|failure| {
                // The simulation and the emulated driver open a file for each allocation.
                let is_out = failure.status == Status::OUT_OF_RESOURCES && out_of_descriptors();
                if is_out { ErrorKind::OutOfDescriptors } else { ErrorKind::of_call(failure, size) }
            })?;
            let record = Arc::new(Record {
                start,
                size,
                agent,
                on_gpu: owner.kind() == AgentKind::Gpu,
                flags: pool.flags,
                // Cannot overflow, because the runtime has allocated the memory.
                allocated_size: size.next_multiple_of(pool.granule.max(1)),
                name: Mutex::default(),
                allowed: Mutex::default(),
                state: Mutex::new(State::Allocated(None)),
            });
            runtime.attachment::<Registry>().records().insert(start, record.clone());
            // SAFETY: the runtime has just allocated the memory for its owner. Only the new value frees the memory,
            // when the value is consumed or dropped.
            let span = unsafe { Span::new(runtime, owner, (start, start), size) };
            Ok(Self { span, record })
        });
        allocated.map_err(|error| error.of_agent(agent))
    }

    /// Names the memory in [reports](crate::report) and logs. An empty name removes the name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        if !self.runtime().has_forked() {
            *lock(&self.record.name) = (!name.is_empty()).then(|| name.into());
        }
        self
    }

    /// Returns the size in bytes, rounded up to whole granules of the pool.
    pub fn allocated_size(&self) -> usize {
        self.record.allocated_size
    }

    /// Returns the flags of the memory's pool. They determine when a store becomes visible to other agents.
    pub fn flags(&self) -> PoolFlags {
        self.record.flags
    }

    /// Sets the agents that can access the memory in addition to its owner (`hsa_amd_agents_allow_access`). Agents that
    /// an earlier call has set, and that are not in `agents`, lose their access.
    ///
    /// If the size of a GPU's memory is no multiple of 2 MiB, AMD's runtime allocates the memory in a block, together
    /// with other memory. An agent that was allowed to access the block keeps its access, also to memory that is
    /// allocated in the block later (`docs/defects.md`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an agent of another runtime, or an agent that cannot access the owner's
    /// memory. If the runtime fails, the earlier access is restored. If that fails, too, only the owner can access the
    /// memory for this library: other agents may have lost their access.
    pub fn allow(&self, agents: &[AgentId]) -> Result<(), Error> {
        Operation::Allow.run(|| {
            let (runtime, owner) = (self.runtime(), self.agent());
            runtime.check_not_forked()?;
            let native_list = |agents: &[AgentId]| {
                let mut list = Vec::with_capacity(1 + agents.len());
                // The owner is always in the list, because the runtime rejects an empty list.
                for &id in core::iter::once(&owner).chain(agents) {
                    let invalid = |problem| ErrorKind::invalid(Argument::Agent, id, problem);
                    let agent = runtime.agent(id).ok_or(invalid(Problem::UnknownAgent))?;
                    if !agent.can_access(owner) {
                        return Err(invalid(Problem::NoPeerAccess(owner)));
                    }
                    if !list.contains(&agent.native) {
                        list.push(agent.native);
                    }
                }
                Ok(list)
            };
            let new_list = native_list(agents)?;
            let registry = runtime.attachment::<Registry>();
            // Waits for copies of agents that may lose access, and for other calls of `allow`.
            let _no_copy = write(&registry.access);
            let old_list = native_list(&lock(&self.record.allowed).clone())?;
            // SAFETY: the memory is allocated as long as `self` exists.
            let allow =
                |list: &[_]| unsafe { runtime.native().allow_access(self.record.start, list) };
            let result = allow(&new_list);
            let allowed = match &result {
                Ok(()) => agents.to_vec(),
                // The runtime revokes access first, and may have failed afterwards.
                Err(_) => match allow(&old_list) {
                    Ok(()) => return Ok(result?),
                    Err(error) => {
                        crate::log::event!(
                            WARN,
                            ?error,
                            "the access to memory could not be restored"
                        );
                        Vec::new()
                    }
                },
            };
            // Locks `allowed` only after the calls, because a log subscriber can read the list during them.
            *lock(&self.record.allowed) = allowed;
            Ok(result?)
        })
    }

    /// Returns whether an agent can access the memory. In a [forked child](Runtime::has_forked), returns `true` only
    /// for the owner.
    pub fn is_accessible_by(&self, agent: AgentId) -> bool {
        agent == self.agent()
            || !self.runtime().has_forked() && lock(&self.record.allowed).contains(&agent)
    }

    /// Copies from other memory (`hipMemcpyDtoD`). Offsets and size are in bytes.
    ///
    /// A GPU that owns one of the two memories and can access the other makes the copy, preferably the owner of this
    /// memory. If both memories are on the host, this process makes the copy.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`Problem::Overlapping`]; [`Problem::NotAllowed`] if no owning GPU can access the
    /// other memory ([`allow`](Self::allow)); [`Problem::ForeignMemory`].
    pub fn copy(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        size: usize,
    ) -> Result<(), Error> {
        // In a forked child, a thread of the parent may hold the locks.
        Operation::Copy.run(|| self.runtime().check_not_forked())?;
        let registry = self.runtime().attachment::<Registry>();
        let _no_change = read(&registry.access);
        let can_access = |agent| self.is_accessible_by(agent) && source.is_accessible_by(agent);
        let copier = self.span.copier(&source.span, can_access);
        // SAFETY: `registry.access` is locked, so the agent keeps its access.
        unsafe { self.span.copy(offset, &source.span, source_offset, size, copier) }
    }

    /// Frees the memory now, and returns an error if that fails (`hipFree`, `hsa_amd_memory_pool_free`). Dropping the
    /// value also frees the memory, but only logs an error.
    ///
    /// The IPC handles of the memory ([`Ipc`](crate::Ipc)) become invalid; memory that other processes have opened
    /// stays valid. Waits at most 15 seconds for a process that is opening the memory.
    ///
    /// # Errors
    /// [`ErrorKind::BeingOpened`], [`ErrorKind::Runtime`], [`ErrorKind::System`]; the error contains the memory. Keep
    /// the memory to free it later: dropping it waits again, and then leaves the memory allocated.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the memory; freeing is not frequent"
    )]
    pub fn free(self) -> Result<(), Rejected<Self>> {
        // SAFETY: this value is being consumed. If the call fails, the memory stays allocated.
        let freed = Operation::Free.run(|| unsafe { self.release() });
        freed.map_err(|error| Rejected { value: self, error })
    }

    /// Frees the memory. Does nothing if it was already freed.
    ///
    /// # Safety
    /// After a success, nothing accesses the memory through this value any more.
    pub(crate) unsafe fn release(&self) -> Result<(), ErrorKind> {
        let (runtime, start) = (self.runtime(), self.record.start);
        runtime.check_not_forked()?;
        let mut state = lock(&self.record.state);
        let mut free = || {
            let registry = runtime.attachment::<Registry>();
            // Removes the record before the runtime can allocate the address again.
            registry.records().remove(&start);
            // SAFETY: `allocate_with` allocated the memory, and `state` shows that it was not freed. The caller
            // guarantees that nothing accesses the memory any more.
            unsafe { runtime.native().pool_free(start) }.map_err(|failure| {
                registry.records().insert(start, self.record.clone());
                ErrorKind::of_call(failure, self.size())
            })
        };
        match &*state {
            State::Freed => return Ok(()),
            State::Allocated(None) => free(),
            State::Allocated(Some(export)) => export.end(&mut free),
        }?;
        *state = State::Freed;
        Ok(())
    }
}

/// Returns the agent's allocatable global pool with these flags. Prefers a pool that is not for kernel arguments.
fn pool_of(agent: &Agent, flags: PoolFlags) -> Option<&Pool> {
    let matches = |pool: &&Pool| {
        pool.segment == Segment::Global && pool.allocatable && pool.flags.contains(flags)
    };
    let pools = || agent.pools.iter().filter(matches);
    // A CPU has a second fine-grained pool, for kernel arguments.
    let is_general = |pool: &&Pool| !pool.flags.contains(PoolFlags::KERNARG);
    pools().find(is_general).or_else(|| pools().next())
}

impl Deref for PoolMemory {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.span
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if !self.runtime().has_forked()
            // SAFETY: this value is being dropped.
            && let Err(error) = Operation::Free.run(|| unsafe { self.release() })
        {
            // The memory stays allocated: another process may be about to map it.
            crate::log::event!(WARN, %error, address = %self.address(), "pool memory was not freed");
        }
    }
}
