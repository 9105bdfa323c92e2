//! Reading, writing, filling and copying memory of areas.
//!
//! Locked memory is read and written by this process as device memory is, with atomic accesses:
//! the caller has lent it, and agents may use it at the same time.

use super::backing::Holding;
use super::error::{Argument, Cause, Problem};
use super::{AreaError, AreaMemory, Operation};
use crate::agent::AgentId;
use crate::native::{Failure, Native, NativeAgent};

/// How much of a copy goes through this process's memory at a time.
const PORTION: usize = 1 << 20;

impl AreaMemory<'_> {
    /// Copies from the memory (`hipMemcpyDtoH`).
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`AreaError::InvalidValue`] if not all of it is inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AreaError> {
        let (operation, size) = (Operation::Read, bytes.len());
        let at = self.part(operation, Argument::Offset, offset, size)?;
        let of_memory = |error| AreaError::of_memory(operation, error, size);
        match &*self.holding {
            Holding::Mapped(_) => self.by_device(operation, size, |native, device| {
                native.read_by_agent(at, bytes, device)
            }),
            Holding::Pool(memory) => memory.read(offset, bytes).map_err(of_memory),
            Holding::Locked(memory) => memory.bytes().read(offset, bytes).map_err(of_memory),
        }
    }

    /// Copies to the memory (`hipMemcpyHtoD`).
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AreaError> {
        let (operation, size) = (Operation::Write, bytes.len());
        let at = self.part(operation, Argument::Offset, offset, size)?;
        let of_memory = |error| AreaError::of_memory(operation, error, size);
        match &*self.holding {
            Holding::Mapped(_) => self.by_device(operation, size, |native, device| {
                native.write_by_agent(at, bytes, device)
            }),
            Holding::Pool(memory) => memory.write(offset, bytes).map_err(of_memory),
            Holding::Locked(memory) => memory.bytes().write(offset, bytes).map_err(of_memory),
        }
    }

    /// Fills a part with a 32-bit value (`hipMemsetD32`). `size` is in bytes.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
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
        match &*self.holding {
            Holding::Mapped(_) => self
                .by_device(operation, size, |native, device| native.fill(at, value, size, device)),
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
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
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
            let copied = self.made.runtime.native().copy(to, from, size, agent);
            copied.map_err(|failure| AreaError::of_call(operation, failure, size))
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
        let owns = |agent| self.made.owner == agent || source.made.owner == agent;
        let may = |agent| self.is_visible_to(agent) && source.is_visible_to(agent);
        let same_runtime = self.made.runtime.is(&source.made.runtime);
        let found =
            [self.made.device, source.made.device].into_iter().find(|&gpu| owns(gpu) && may(gpu));
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

    /// Where a part begins for agents, if it is inside and this process may use it at all.
    fn part(
        &self,
        operation: Operation,
        argument: Argument,
        offset: usize,
        size: usize,
    ) -> Result<usize, AreaError> {
        if self.made.runtime.has_forked() {
            return Err(AreaError::Failure { operation, cause: Cause::Forked });
        }
        let end = offset.checked_add(size).filter(|end| *end <= self.made.size);
        let problem = Problem::Beyond { offset, size, whole: self.made.size };
        end.map(|_| self.device_address().get() + offset)
            .ok_or(AreaError::refused(operation, argument, problem))
    }

    /// Has the device do something with so many bytes of its own memory.
    fn by_device(
        &self,
        operation: Operation,
        size: usize,
        act: impl FnOnce(&Native, NativeAgent) -> Result<(), Failure>,
    ) -> Result<(), AreaError> {
        if size == 0 {
            return Ok(());
        }
        self.lend(operation, self.made.device, |device| {
            let done = act(self.made.runtime.native(), device);
            done.map_err(|failure| AreaError::of_call(operation, failure, size))
        })
    }

    /// Has an agent that may use it do so, while nobody takes it away.
    fn lend<T>(
        &self,
        operation: Operation,
        agent: AgentId,
        act: impl FnOnce(NativeAgent) -> Result<T, AreaError>,
    ) -> Result<T, AreaError> {
        if let Holding::Mapped(memory) = &*self.holding {
            return memory.lend(operation, agent, act);
        }
        let cause = Cause::Unreachable { agent, owner: self.made.owner };
        let found = self.made.runtime.agent(agent).filter(|_| self.is_visible_to(agent));
        act(found.ok_or(AreaError::Failure { operation, cause })?.native)
    }
}
