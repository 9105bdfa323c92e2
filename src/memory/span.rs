//! Memory that one agent can certainly access: reading, writing, filling and copying it.
//!
//! Shared by pool memory, memory of other processes and areas. That agent copies, whether or not a CPU
//! can access the memory: AMD's runtime maps what it opens from another process for GPUs only.

use crate::address::Address;
use crate::agent::{Agent, AgentId};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::native::{CopyEngine, Failure, Native};
use crate::runtime::Runtime;
use core::fmt;

/// Memory that stays allocated for as long as the value's owner exists.
pub(crate) struct Span {
    runtime: Runtime,
    start: usize,
    /// The address for agents that are not the host; another one only for locked memory.
    device_start: usize,
    size: usize,
    agent: AgentId,
}

/// What copies between two spans: the agent, and how it copies.
pub(crate) type Copier = (AgentId, CopyEngine);

impl Span {
    /// Describes `size` bytes at an address, which `agent` can read and write.
    ///
    /// # Safety
    /// The agent is one of this runtime. While [`read`](Self::read), [`write`](Self::write),
    /// [`fill`](Self::fill) or [`copy`](Self::copy) run, the memory is allocated for the owner of this
    /// value, the agent (this process, for a CPU) can read and write it, and no reference to it is used.
    pub unsafe fn new(runtime: &Runtime, agent: &Agent, start: usize, size: usize) -> Self {
        Self { runtime: runtime.clone(), start, device_start: start, size, agent: agent.id() }
    }

    /// Sets the address at which agents other than the host access the memory.
    ///
    /// # Safety
    /// As for [`new`](Self::new), of the memory at this address; it is the same memory.
    pub unsafe fn at_device_address(mut self, start: usize) -> Self {
        self.device_start = start;
        self
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub fn address(&self) -> Address {
        Address::new(self.start)
    }

    pub fn device_address(&self) -> Address {
        Address::new(self.device_start)
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// The agent that owns the memory, or that it was opened for.
    pub fn agent(&self) -> AgentId {
        self.agent
    }

    /// What copies on behalf of the agent, which `new` was given, so that it exists.
    fn engine(&self) -> CopyEngine {
        self.runtime.agent(self.agent).map_or(CopyEngine::Cpu, Agent::copy_engine)
    }

    /// Copies from the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.transfer(Operation::Read, offset, bytes.len(), |native, engine, at| {
            // SAFETY: `transfer` checks that it is inside; the caller of `new` vouches for the memory.
            unsafe { native.read(engine, at, bytes) }
        })
    }

    /// Copies to the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.transfer(Operation::Write, offset, bytes.len(), |native, engine, at| {
            // SAFETY: as in `read`.
            unsafe { native.write(engine, at, bytes) }
        })
    }

    /// Fills a part with a 32-bit value. `size` is in bytes.
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        let arguments = [(Argument::Offset, offset), (Argument::Size, size)];
        let uneven = arguments.into_iter().find(|(_, number)| !number.is_multiple_of(4));
        if let Some((argument, number)) = uneven {
            let uneven = ErrorKind::invalid(argument, number, Problem::NotMultipleOfFour);
            let kind = self.check(Argument::Offset, offset, size).err().unwrap_or(uneven);
            return Err(Error::new(Operation::Fill, kind));
        }
        self.transfer(Operation::Fill, offset, size, |native, engine, at| {
            // SAFETY: as in `read`.
            unsafe { native.fill(engine, at, value, size) }
        })
    }

    fn transfer(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
        act: impl FnOnce(&Native, CopyEngine, usize) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        let engine = self.engine();
        let done = self.check(Argument::Offset, offset, size).and_then(|()| match size {
            0 => Ok(()),
            _ => act(self.runtime.native(), engine, self.start_for(engine) + offset)
                .map_err(|failure| ErrorKind::of_call(failure, size)),
        });
        done.map_err(|kind| Error::new(operation, kind))
    }

    /// Returns what copies from `source`: the GPU that owns one of the two and `may` access both, or
    /// this process if both are memory of the host. The error is the first GPU that may not.
    pub fn copier(&self, source: &Self, may: impl Fn(AgentId) -> bool) -> Result<Copier, AgentId> {
        let all = [self, source].map(|span| (span.agent, span.engine()));
        let mut gpus = all.into_iter().filter(|(_, engine)| *engine != CopyEngine::Cpu);
        let Some(first) = gpus.clone().next() else { return Ok(all[0]) };
        gpus.find(|(agent, _)| may(*agent)).ok_or(first.0)
    }

    /// Copies from another span, by what [`copier`](Self::copier) returned.
    pub fn copy(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        size: usize,
        copier: Result<Copier, AgentId>,
    ) -> Result<(), Error> {
        let copy = |(_, engine)| {
            let to = self.start_for(engine) + offset;
            let from = source.start_for(engine) + source_offset;
            // SAFETY: both parts are inside and do not overlap, as checked before; the callers of `new`
            // vouch for the memory, and the caller of `copier` for the agent's access to both.
            let copied = unsafe { self.runtime.native().copy(engine, to, from, size) };
            copied.map_err(|failure| ErrorKind::of_call(failure, size))
        };
        let refused = |problem| ErrorKind::invalid_list(Argument::Source, problem);
        self.check_copy(offset, source, source_offset, size)
            .and_then(|()| match copier {
                _ if !self.runtime.is(&source.runtime) => Err(refused(Problem::ForeignMemory)),
                _ if size == 0 => Ok(()),
                Ok(copier) => copy(copier),
                Err(agent) => Err(refused(Problem::NotAllowed(agent))),
            })
            .map_err(|kind| Error::new(Operation::Copy, kind))
    }

    /// Checks that both parts are inside, and that they do not overlap.
    pub fn check_copy(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        size: usize,
    ) -> Result<(), ErrorKind> {
        self.check(Argument::Offset, offset, size)?;
        source.check(Argument::Source, source_offset, size)?;
        let (to, from) = (self.start + offset, source.start + source_offset);
        if self.runtime.is(&source.runtime) && to.abs_diff(from) < size {
            let problem = Problem::Overlapping;
            return Err(ErrorKind::invalid(Argument::Source, source_offset, problem));
        }
        Ok(())
    }

    /// Checks that a part is inside, and that this process did not fork.
    fn check(&self, argument: Argument, offset: usize, size: usize) -> Result<(), ErrorKind> {
        self.runtime.check_not_forked()?;
        if offset.checked_add(size).is_some_and(|end| end <= self.size) {
            return Ok(());
        }
        let problem = Problem::OutOfBounds { size, end: self.size };
        Err(ErrorKind::invalid(argument, offset, problem))
    }

    fn start_for(&self, engine: CopyEngine) -> usize {
        match engine {
            CopyEngine::Cpu => self.start,
            CopyEngine::Agent(_) => self.device_start,
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} bytes at {} of {}", self.size, self.address(), self.agent)
    }
}
