//! Reads, writes, fills and copies memory through an agent with access to it.

use crate::address::Address;
use crate::agent::{Agent, AgentId};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::native::{CopyEngine, Failure, Native};
use crate::runtime::Runtime;
use derive_more::Debug;

/// Memory that an agent can access, with methods to read, write and fill it.
///
/// [`PoolMemory`](crate::PoolMemory) and [`OpenedMemory`](crate::ipc::OpenedMemory) dereference to a
/// `Span`. The agent reads and writes the memory. No CPU needs access to the memory: AMD's runtime maps memory of
/// another process only for GPUs. Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
///
/// ```
/// # use hsa_vmm::{PoolMemory, Runtime};
/// use hsa_vmm::memory::Span;
///
/// fn clear(memory: &Span) -> Result<(), hsa_vmm::Error> {
///     memory.fill(0, 0, memory.size())
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let memory = PoolMemory::allocate(&runtime, runtime.host().id(), 4096)?;
/// clear(&memory)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("{size:#x} bytes at {} of {agent}", self.address())]
pub struct Span {
    runtime: Runtime,
    start: usize,
    /// The start address for agents other than the host. It differs from `start` only for host memory that an area has
    /// locked.
    pub(crate) device_start: usize,
    size: usize,
    agent: AgentId,
    /// Whether `ROCR_VISIBLE_DEVICES` hides the owner; see [`CopyEngine::AgentWithCpu`].
    owner_is_hidden: bool,
}

impl Span {
    /// Describes `size` bytes at `start`, which `agent` can read and write.
    ///
    /// # Safety
    /// The agent belongs to this runtime. While [`read`](Self::read), [`write`](Self::write), [`fill`](Self::fill) or
    /// [`copy`](Self::copy) runs, three conditions hold: the memory is allocated, no reference to it is used, and the
    /// agent (for a CPU, this process) can read and write it.
    ///
    /// `device_start` is the address at which agents other than the host access the same memory.
    pub(crate) unsafe fn new(
        runtime: &Runtime,
        agent: &Agent,
        (start, device_start): (usize, usize),
        size: usize,
    ) -> Self {
        let (runtime, agent) = (runtime.clone(), agent.id());
        Self { runtime, start, device_start, size, agent, owner_is_hidden: false }
    }

    /// Describes memory of another process like [`new`](Self::new). The address is the same for all agents.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn opened(
        runtime: &Runtime,
        agent: &Agent,
        start: usize,
        size: usize,
    ) -> Self {
        let owner_is_hidden = runtime.native().is_owner_hidden(start).unwrap_or_default();
        // SAFETY: the caller guarantees the conditions.
        let span = unsafe { Self::new(runtime, agent, (start, start), size) };
        Self { owner_is_hidden, ..span }
    }

    /// Returns the runtime on which the memory was allocated or opened.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the start address for this process. Pool memory and opened memory have the same address for all agents.
    pub fn address(&self) -> Address {
        Address::new(self.start)
    }

    /// Returns the requested size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the agent that owns the memory. For memory of another process, returns the first agent for which the
    /// memory was opened.
    pub fn agent(&self) -> AgentId {
        self.agent
    }

    /// Returns the engine that copies on behalf of an agent of this runtime.
    fn engine_of(&self, agent: AgentId) -> CopyEngine {
        match self.runtime.agent(agent).map_or(CopyEngine::Cpu, Agent::copy_engine) {
            CopyEngine::Agent(agent) if self.owner_is_hidden => {
                CopyEngine::AgentWithCpu(agent, self.runtime.host().native)
            }
            engine => engine,
        }
    }

    /// Copies from the memory (`hipMemcpyDtoH`), `offset` bytes from its start.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.transfer(Operation::Read, offset, bytes.len(), |native, engine, address| {
            // SAFETY: `transfer` has checked the bounds. The caller of `new` guarantees that the memory is allocated
            // and that the agent can access it.
            unsafe { native.read(engine, address, bytes) }
        })
    }

    /// Copies to the memory (`hipMemcpyHtoD`), `offset` bytes from its start.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.transfer(Operation::Write, offset, bytes.len(), |native, engine, address| {
            // SAFETY: as in `read`.
            unsafe { native.write(engine, address, bytes) }
        })
    }

    /// Fills a part with a 32-bit value (`hipMemsetD32`). `offset` and `size` are in bytes.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`Problem::NotMultipleOfFour`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        let arguments = [(Argument::Offset, offset), (Argument::Size, size)];
        let unaligned = arguments.into_iter().find(|(_, number)| !number.is_multiple_of(4));
        Operation::Fill.run(|| {
            self.check_part(Argument::Offset, offset, size)?;
            let Some((argument, number)) = unaligned else { return Ok(()) };
            Err(ErrorKind::invalid(argument, number, Problem::NotMultipleOfFour))
        })?;
        self.transfer(Operation::Fill, offset, size, |native, engine, address| {
            // SAFETY: as in `read`.
            unsafe { native.fill(engine, address, value, size) }
        })
    }

    /// Checks the bounds, and calls `act` with the engine and the start address of the part.
    fn transfer(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
        act: impl FnOnce(&Native, CopyEngine, usize) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        operation.run(|| {
            self.check_part(Argument::Offset, offset, size)?;
            if size == 0 {
                return Ok(());
            }
            let engine = self.engine_of(self.agent);
            act(self.runtime.native(), engine, self.start_for(engine) + offset)
                .map_err(|failure| ErrorKind::of_call(failure, size))
        })
    }

    /// Returns the agent that copies from `source`: a GPU that owns one of the two spans and can access both. If both
    /// spans are on the host, returns a CPU. If no owning GPU can access both, the error is the first owning GPU.
    pub(crate) fn copier(
        &self,
        source: &Self,
        can_access_both: impl Fn(AgentId) -> bool,
    ) -> Result<AgentId, AgentId> {
        let is_gpu = |span: &&Self| span.engine_of(span.agent) != CopyEngine::Cpu;
        let mut gpus = [self, source].into_iter().filter(is_gpu).map(|span| span.agent);
        let Some(first) = gpus.clone().next() else { return Ok(self.agent) };
        gpus.find(|agent| can_access_both(*agent)).ok_or(first)
    }

    /// Copies from another span. `copier` is the result of [`copier`](Self::copier).
    ///
    /// # Safety
    /// The agent in `copier` can access both spans until the copy has ended.
    pub(crate) unsafe fn copy(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        size: usize,
        copier: Result<AgentId, AgentId>,
    ) -> Result<(), Error> {
        Operation::Copy.run(|| {
            let invalid = |problem| ErrorKind::without_value(Argument::Source, problem);
            self.check_copy(offset, source, source_offset, size)?;
            if !self.runtime.is_same(&source.runtime) {
                return Err(invalid(Problem::ForeignMemory));
            }
            if size == 0 {
                return Ok(());
            }
            let copier = copier.map_err(|agent| invalid(Problem::NotAllowed(agent)))?;
            let engine = self.engine_of(copier);
            let destination_start = self.start_for(engine) + offset;
            let source_start = source.start_for(engine) + source_offset;
            // SAFETY: `check_copy` has checked the bounds and that the parts do not overlap. The callers of `new`
            // guarantee that the memory is allocated. The caller of this function guarantees that the agent can access
            // both spans.
            let copied = unsafe {
                self.runtime.native().copy(engine, destination_start, source_start, size)
            };
            copied.map_err(|failure| ErrorKind::of_call(failure, size))
        })
    }

    /// Checks that the destination and source parts are in bounds and do not overlap.
    pub(crate) fn check_copy(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        size: usize,
    ) -> Result<(), ErrorKind> {
        self.check_part(Argument::Offset, offset, size)?;
        source.check_part(Argument::Source, source_offset, size)?;
        let distance = (self.start + offset).abs_diff(source.start + source_offset);
        if self.runtime.is_same(&source.runtime) && distance < size {
            let problem = Problem::Overlapping;
            return Err(ErrorKind::invalid(Argument::Source, source_offset, problem));
        }
        Ok(())
    }

    /// Checks that a part is in bounds, and that this process is not a forked child.
    fn check_part(&self, argument: Argument, offset: usize, size: usize) -> Result<(), ErrorKind> {
        self.runtime.check_not_forked()?;
        argument.check_bounds(offset, size, self.size)
    }

    fn start_for(&self, engine: CopyEngine) -> usize {
        match engine {
            CopyEngine::Cpu => self.start,
            CopyEngine::Agent(_) | CopyEngine::AgentWithCpu(..) => self.device_start,
        }
    }
}
