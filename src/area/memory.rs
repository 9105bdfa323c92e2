//! Memory of an area, unmapped when dropped.

use super::backing::Holding;
use super::error::{Argument, Cause, Problem};
use super::{AreaError, Backing, Operation};
use crate::agent::AgentId;
use crate::native::NativeAgent;
use crate::runtime::Runtime;
use crate::vmm::Address;
use core::marker::PhantomData;

/// How much of a copy goes through this process's memory at a time.
const PORTION: usize = 1 << 20;

/// Memory that [`Area::mmap`](super::Area::mmap) gave; dropping it unmaps it.
///
/// Reading and writing check what may be touched and can therefore not fault. The device does it
/// for memory of its own, whether or not a CPU reaches that, and this process's own loads and
/// stores for memory of the host. For everything else there is [`address`](Self::address);
/// whoever keeps that longer than the memory keeps a dangling pointer, as with any allocation.
#[derive(Debug)]
pub struct AreaMemory<'a> {
    pub(super) runtime: Runtime,
    pub(super) size: usize,
    /// For whom it was made.
    pub(super) device: AgentId,
    /// Whose memory it is.
    pub(super) owner: AgentId,
    /// Who may use it.
    pub(super) agents: Box<[AgentId]>,
    pub(super) holding: Holding,
    pub(super) borrowed: PhantomData<&'a mut [u8]>,
}

impl AreaMemory<'_> {
    /// Where it begins, for whoever may use it; of memory that was there already, for this
    /// process.
    #[must_use]
    pub fn address(&self) -> Address {
        match &self.holding {
            Holding::Mapped(memory) => memory.address(),
            Holding::Pool(memory) => memory.address(),
            Holding::Locked(memory) => memory.address(),
        }
    }

    /// Where it begins for the device (`hipHostGetDevicePointer`): the same address, except for
    /// memory that was there already.
    #[must_use]
    pub fn device_address(&self) -> Address {
        match &self.holding {
            Holding::Locked(memory) => memory.device_address(),
            _ => self.address(),
        }
    }

    /// The size in bytes, as it was asked for.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// What it takes: the size in whole granules. Memory that was there already takes no more.
    #[must_use]
    pub fn allocated_size(&self) -> usize {
        match &self.holding {
            Holding::Mapped(memory) => memory.whole(),
            Holding::Pool(memory) => memory.allocated_size(),
            Holding::Locked(_) => self.size,
        }
    }

    /// The GPU that it was made for.
    #[must_use]
    pub fn device(&self) -> AgentId {
        self.device
    }

    /// Whose memory it is: the device's or a CPU's.
    #[must_use]
    pub fn owner(&self) -> AgentId {
        self.owner
    }

    /// Who may use it; the CPU among them if this process's own loads and stores may.
    #[must_use]
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }

    /// Whether an agent may use it.
    #[must_use]
    pub fn is_visible_to(&self, agent: AgentId) -> bool {
        self.agents.contains(&agent)
    }

    /// What is behind it.
    #[must_use]
    pub fn backing(&self) -> Backing {
        match &self.holding {
            Holding::Mapped(_) => Backing::Virtual,
            Holding::Pool(_) => Backing::Pool,
            Holding::Locked(_) => Backing::Locked,
        }
    }

    /// Copies from the memory (`hipMemcpyDtoH`).
    ///
    /// # Errors
    /// [`AreaError::InvalidValue`] if not all of it is inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AreaError> {
        let (operation, size) = (Operation::Read, bytes.len());
        let at = self.part(operation, Argument::Offset, offset, size)?;
        let of_memory = |error| AreaError::of_memory(operation, error, size);
        match &self.holding {
            Holding::Mapped(_) if size == 0 => Ok(()),
            Holding::Mapped(_) => self.lend(operation, self.device, |agent| {
                self.runtime
                    .native()
                    .read_by_agent(at, bytes, agent)
                    .map_err(|failure| AreaError::of_call(operation, failure, size))
            }),
            Holding::Pool(memory) => memory.read(offset, bytes).map_err(of_memory),
            Holding::Locked(memory) => memory.bytes().read(offset, bytes).map_err(of_memory),
        }
    }

    /// Copies to the memory (`hipMemcpyHtoD`).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AreaError> {
        let (operation, size) = (Operation::Write, bytes.len());
        let at = self.part(operation, Argument::Offset, offset, size)?;
        let of_memory = |error| AreaError::of_memory(operation, error, size);
        match &self.holding {
            Holding::Mapped(_) if size == 0 => Ok(()),
            Holding::Mapped(_) => self.lend(operation, self.device, |agent| {
                self.runtime
                    .native()
                    .write_by_agent(at, bytes, agent)
                    .map_err(|failure| AreaError::of_call(operation, failure, size))
            }),
            Holding::Pool(memory) => memory.write(offset, bytes).map_err(of_memory),
            Holding::Locked(memory) => memory.bytes().write(offset, bytes).map_err(of_memory),
        }
    }

    /// Fills a part with a 32-bit value (`hipMemsetD32`). `size` is in bytes.
    ///
    /// # Errors
    /// [`AreaError::InvalidValue`] if not all of it is inside, or offset or size is no multiple of
    /// four.
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), AreaError> {
        let operation = Operation::Fill;
        let at = self.part(operation, Argument::Offset, offset, size)?;
        for (argument, number) in [(Argument::Offset, offset), (Argument::Size, size)] {
            if !number.is_multiple_of(4) {
                return Err(AreaError::refused(operation, argument, Problem::NotWords));
            }
        }
        let of_memory = |error| AreaError::of_memory(operation, error, size);
        match &self.holding {
            Holding::Mapped(_) if size == 0 => Ok(()),
            Holding::Mapped(_) => self.lend(operation, self.device, |agent| {
                self.runtime
                    .native()
                    .fill(at, value, size, agent)
                    .map_err(|failure| AreaError::of_call(operation, failure, size))
            }),
            Holding::Pool(memory) => memory.fill(offset, value, size).map_err(of_memory),
            Holding::Locked(memory) => memory.bytes().fill(offset, value, size).map_err(of_memory),
        }
    }

    /// Copies from other memory of an area (`hipMemcpyDtoD`).
    ///
    /// A GPU does it that owns one of the two and may use both. Where there is none, as between
    /// memory of two GPUs that neither shows the other, it goes through this process's memory,
    /// and what was copied when it fails stays.
    ///
    /// # Errors
    /// [`AreaError::InvalidValue`] if not all of both is inside, or they overlap.
    pub fn copy(
        &self,
        offset: usize,
        source: &AreaMemory<'_>,
        source_offset: usize,
        size: usize,
    ) -> Result<(), AreaError> {
        let operation = Operation::Copy;
        let to = self.part(operation, Argument::Offset, offset, size)?;
        let from = source.part(operation, Argument::Source, source_offset, size)?;
        let same = core::ptr::eq(core::ptr::from_ref(self).cast(), core::ptr::from_ref(source));
        if same && offset.abs_diff(source_offset) < size {
            return Err(AreaError::refused(operation, Argument::Source, Problem::Overlaps));
        }
        if size == 0 {
            return Ok(());
        }
        let Some(agent) = self.mover(source) else {
            return self.copy_in_portions(offset, source, source_offset, size);
        };
        let copy = |agent| {
            self.runtime
                .native()
                .copy(to, from, size, agent)
                .map_err(|failure| AreaError::of_call(operation, failure, size))
        };
        if same {
            return self.lend(operation, agent, copy);
        }
        // The lower first, whoever asks, so that two copies cannot wait for each other.
        let both: [&AreaMemory<'_>; 2] =
            if self.address() < source.address() { [self, source] } else { [source, self] };
        both[0].lend(operation, agent, |_| both[1].lend(operation, agent, copy))
    }

    /// The GPU that copies: the one whose memory this is, or else the source.
    fn mover(&self, source: &AreaMemory<'_>) -> Option<AgentId> {
        let owns = |agent| self.owner == agent || source.owner == agent;
        let may = |agent| self.is_visible_to(agent) && source.is_visible_to(agent);
        let same_runtime = self.runtime.is(&source.runtime);
        let found = [self.device, source.device].into_iter().find(|&gpu| owns(gpu) && may(gpu));
        found.filter(|_| same_runtime)
    }

    fn copy_in_portions(
        &self,
        offset: usize,
        source: &AreaMemory<'_>,
        source_offset: usize,
        size: usize,
    ) -> Result<(), AreaError> {
        let mut portion = vec![0; size.min(PORTION)];
        for done in (0..size).step_by(PORTION) {
            let part = &mut portion[..PORTION.min(size - done)];
            source.read(source_offset + done, part)?;
            self.write(offset + done, part)?;
        }
        Ok(())
    }

    /// Unmaps the memory now, and says whether that worked (`hipFree`, `hipHostFree`,
    /// `hipHostUnregister`). Memory that was there already is the caller's again.
    ///
    /// # Errors
    /// [`AreaError::Failure`]; the memory comes back with it, with all that is in it.
    /// [`AreaError::Busy`] for pool memory that another process is opening this very moment.
    pub fn munmap(self) -> Result<(), (Self, AreaError)> {
        let operation = Operation::Munmap;
        if self.runtime.has_forked() {
            return Err((self, AreaError::Failure { operation, cause: Cause::Forked }));
        }
        let Self { runtime, size, device, owner, agents, holding, borrowed } = self;
        let freed = match holding {
            Holding::Mapped(memory) => memory.free().map_err(|(memory, error)| {
                (Holding::Mapped(memory), AreaError::of_vmm(operation, error, size))
            }),
            Holding::Pool(memory) => memory.free().map_err(|(memory, error)| {
                (Holding::Pool(memory), AreaError::of_memory(operation, error, size))
            }),
            Holding::Locked(memory) => memory.free().map_err(|(memory, failure)| {
                (Holding::Locked(memory), AreaError::of_call(operation, failure, size))
            }),
        };
        freed.map_err(|(holding, error)| {
            (Self { runtime, size, device, owner, agents, holding, borrowed }, error)
        })
    }

    /// Where a part begins for agents, if it is inside and this process may use it at all.
    fn part(
        &self,
        operation: Operation,
        argument: Argument,
        offset: usize,
        size: usize,
    ) -> Result<usize, AreaError> {
        if self.runtime.has_forked() {
            return Err(AreaError::Failure { operation, cause: Cause::Forked });
        }
        let end = offset.checked_add(size).filter(|end| *end <= self.size);
        let problem = Problem::Beyond { offset, size, whole: self.size };
        end.map(|_| self.device_address().get() + offset)
            .ok_or(AreaError::refused(operation, argument, problem))
    }

    /// Has an agent that may use it do so, while nobody takes it away.
    fn lend<T>(
        &self,
        operation: Operation,
        agent: AgentId,
        act: impl FnOnce(NativeAgent) -> Result<T, AreaError>,
    ) -> Result<T, AreaError> {
        if let Holding::Mapped(memory) = &self.holding {
            return memory.lend(operation, agent, act);
        }
        let cause = Cause::Unreachable { agent, owner: self.owner };
        let found = self.runtime.agent(agent).filter(|_| self.is_visible_to(agent));
        act(found.ok_or(AreaError::Failure { operation, cause })?.native)
    }
}
