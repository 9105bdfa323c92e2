//! Bytes of memory that one agent is sure to reach: reading, writing, filling and copying them.
//!
//! The agent does it, whether or not a CPU reaches the memory: what AMD's runtime opens from
//! another process is mapped for GPUs only. Memory of the host is read and written by this
//! process's own loads and stores.

use super::error::{MemoryError, Operation, Problem};
use crate::agent::{AgentId, Mover};
use crate::native::{copy_memory, read_memory, write_memory};
use crate::runtime::Runtime;
use crate::vmm::Address;

/// Memory that is there as long as this value's owner is.
#[derive(Debug)]
pub(crate) struct Span {
    pub runtime: Runtime,
    pub start: usize,
    pub size: usize,
    /// Who copies.
    pub agent: AgentId,
}

impl Span {
    pub fn address(&self) -> Address {
        Address::new(self.start)
    }

    /// Where a part begins, if it is inside and this process may use it at all.
    fn part(&self, operation: Operation, offset: usize, size: usize) -> Result<usize, MemoryError> {
        if self.runtime.has_forked() {
            return Err(MemoryError::Forked { operation });
        }
        let end = offset.checked_add(size).filter(|end| *end <= self.size);
        let problem = Problem::Beyond { offset, size, whole: self.size };
        end.map(|_| self.start + offset).ok_or(MemoryError::refused(operation, problem))
    }

    fn mover(&self, operation: Operation) -> Result<Mover, MemoryError> {
        let agent = self
            .runtime
            .agent(self.agent)
            .ok_or_else(|| MemoryError::refused(operation, Problem::UnknownAgent(self.agent)))?;
        Ok(agent.mover())
    }

    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let operation = Operation::Read;
        let (at, size) = (self.part(operation, offset, bytes.len())?, bytes.len());
        match self.mover(operation)? {
            _ if size == 0 => Ok(()),
            Mover::Processor => {
                read_memory(at, bytes);
                Ok(())
            }
            Mover::Agent(agent) => self
                .runtime
                .native()
                .read_by_agent(at, bytes, agent)
                .map_err(|failure| MemoryError::failure(operation, failure, size)),
        }
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let operation = Operation::Write;
        let (at, size) = (self.part(operation, offset, bytes.len())?, bytes.len());
        match self.mover(operation)? {
            _ if size == 0 => Ok(()),
            Mover::Processor => {
                write_memory(at, bytes);
                Ok(())
            }
            Mover::Agent(agent) => self
                .runtime
                .native()
                .write_by_agent(at, bytes, agent)
                .map_err(|failure| MemoryError::failure(operation, failure, size)),
        }
    }

    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), MemoryError> {
        let operation = Operation::Fill;
        let at = self.part(operation, offset, size)?;
        if !offset.is_multiple_of(4) || !size.is_multiple_of(4) {
            return Err(MemoryError::refused(operation, Problem::NotWords));
        }
        match self.mover(operation)? {
            _ if size == 0 => Ok(()),
            Mover::Processor => {
                let pattern = value.to_ne_bytes().repeat(1 << 10);
                for done in (0..size).step_by(pattern.len()) {
                    write_memory(at + done, &pattern[..pattern.len().min(size - done)]);
                }
                Ok(())
            }
            Mover::Agent(agent) => self
                .runtime
                .native()
                .fill(at, value, size, agent)
                .map_err(|failure| MemoryError::failure(operation, failure, size)),
        }
    }

    /// Copies from another span, by the agent that `may` be asked whether it reaches both.
    pub fn copy(
        &self,
        offset: usize,
        source: &Span,
        source_offset: usize,
        size: usize,
        may: impl Fn(AgentId) -> bool,
    ) -> Result<(), MemoryError> {
        let operation = Operation::Copy;
        let to = self.part(operation, offset, size)?;
        let from = source.part(operation, source_offset, size)?;
        if !self.runtime.is(&source.runtime) {
            return Err(MemoryError::refused(operation, Problem::ForeignMemory));
        }
        // A GPU rather than the processor, and the destination's rather than the source's.
        let (mover, agent) = match (self.mover(operation)?, source.mover(operation)?) {
            (Mover::Processor, by_source) => (by_source, source.agent),
            (by_destination, _) => (by_destination, self.agent),
        };
        match mover {
            _ if size == 0 => Ok(()),
            Mover::Processor => {
                copy_memory(to, from, size);
                Ok(())
            }
            Mover::Agent(_) if !may(agent) => {
                Err(MemoryError::refused(operation, Problem::NotAllowed(agent)))
            }
            Mover::Agent(native) => self
                .runtime
                .native()
                .copy(to, from, size, native)
                .map_err(|failure| MemoryError::failure(operation, failure, size)),
        }
    }
}
