//! Using mapped memory: by this process's own loads and stores, and by agents.
//!
//! Everything is checked in the ledger first, and the reservation is kept from changing
//! meanwhile, so that a wrong address is an error and never a fault.

use super::ledger::{Entered, Range};
use super::mapping::{Expected, Piece, Run};
use super::{
    Access, Address, Argument, Operation, Problem, Refusal, Shared, Vmm, VmmError, not_open,
};
use crate::agent::{AgentId, AgentKind, Mover};
use crate::native::{Failure, Native, NativeAgent, copy_memory, read_memory, write_memory};

impl Vmm {
    /// Copies from mapped memory, by this process's own loads.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if not all of it is mapped in one reservation, or no CPU may
    /// read it.
    pub fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), VmmError> {
        self.shared.read(address, bytes, Expected::Any)
    }

    /// Copies to mapped memory, by this process's own stores.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if not all of it is mapped in one reservation, or no CPU may
    /// write it.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<(), VmmError> {
        self.shared.write(address, bytes, Expected::Any)
    }

    /// Has an agent that may read and write all of a range use it, which cannot change meanwhile.
    pub(super) fn lend<T>(
        &self,
        operation: Operation,
        range: Range,
        agent: AgentId,
        expected: Expected<'_>,
        act: impl FnOnce(NativeAgent) -> T,
    ) -> Result<T, VmmError> {
        let shared = &*self.shared;
        let refused = |refusal: Refusal| refusal.during(operation);
        shared.alive(operation)?;
        let (index, found) = shared.agent(agent, Argument::Agent).map_err(refused)?;
        shared.at_gate(operation, range, |entered| {
            let (argument, needed) = (Argument::Address, Access::ReadWrite);
            expected.check_range(argument, &entered, range).map_err(refused)?;
            shared
                .check_granted(argument, &entered, range, (index, agent), needed)
                .map_err(refused)?;
            Ok(act(found.native))
        })
    }

    /// Has an agent copy between two mapped ranges that do not overlap, and waits for it
    /// (`hsa_amd_memory_async_copy`). For a CPU it is this process's own loads and stores.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if not all of both is mapped, each in one reservation, the size
    /// is zero, or the agent has not been granted to read the one and write the other.
    pub fn copy(
        &self,
        agent: AgentId,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), VmmError> {
        let operation = Operation::Copy;
        let shared = &*self.shared;
        let refused = |refusal: Refusal| refusal.during(operation);
        shared.alive(operation)?;
        let (index, found) = shared.agent(agent, Argument::Agent).map_err(refused)?;
        let (to, from) = two_ranges(operation, destination, source, size)?;
        let act = |entered: Entered<'_>| {
            let agent = (index, agent);
            shared
                .check_granted(Argument::Destination, &entered, to, agent, Access::ReadWrite)
                .and_then(|()| {
                    shared.check_granted(Argument::Source, &entered, from, agent, Access::Read)
                })
                .map_err(refused)?;
            let copied = match found.mover() {
                Mover::Processor => {
                    copy_memory(to.start, from.start, size);
                    Ok(())
                }
                Mover::Agent(agent) => {
                    shared.call(|native| native.copy(to.start, from.start, size, agent))
                }
            };
            copied.map_err(|failure| shared.failure(operation, failure, size))
        };
        shared.at_both_gates(operation, to, from, act)
    }

    /// Has an agent copy mapped memory to this process's own, and waits for it (`hipMemcpyDtoH`,
    /// `hsa_amd_memory_async_copy`). No CPU need reach the memory.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if not all of it is mapped in one reservation, or the agent has
    /// not been granted to read it.
    pub fn copy_to_host(
        &self,
        agent: AgentId,
        bytes: &mut [u8],
        source: Address,
    ) -> Result<(), VmmError> {
        self.shared.copy_to_host(agent, bytes, source, Expected::Any)
    }

    /// Has an agent copy this process's own memory to mapped memory, and waits for it
    /// (`hipMemcpyHtoD`, `hsa_amd_memory_async_copy`). No CPU need reach the memory.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if not all of it is mapped in one reservation, or the agent has
    /// not been granted to write it.
    pub fn copy_from_host(
        &self,
        agent: AgentId,
        destination: Address,
        bytes: &[u8],
    ) -> Result<(), VmmError> {
        self.shared.copy_from_host(agent, destination, bytes, Expected::Any)
    }

    /// Has the GPU that owns the memory fill a mapped range with a 32-bit value, and waits for it.
    /// `size` is in bytes, a multiple of four.
    ///
    /// Of imported memory whose owner is not known, any GPU that has been granted to write it. Done
    /// by copies (`hsa_amd_memory_lock`, `hsa_amd_memory_async_copy`): `hsa_amd_memory_fill` was
    /// seen to refuse such addresses in ROCm 6.4 and to crash on them in 6.1.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if not all of it is mapped in one reservation, the size is zero,
    /// address or size are no multiples of four, or the owner has not been granted to write it.
    pub fn fill(&self, address: Address, value: u32, size: usize) -> Result<(), VmmError> {
        self.shared.fill(address, value, size, Expected::Any)
    }
}

impl Shared {
    /// Copies from mapped memory, if it is that of the expected mappings.
    pub(super) fn read(
        &self,
        address: Address,
        bytes: &mut [u8],
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let needed = (Access::Read, expected);
        self.by_cpu(Operation::Read, address, bytes.len(), needed, |at| read_memory(at, bytes))
    }

    /// Copies to mapped memory, if it is that of the expected mappings.
    pub(super) fn write(
        &self,
        address: Address,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let needed = (Access::ReadWrite, expected);
        self.by_cpu(Operation::Write, address, bytes.len(), needed, |at| write_memory(at, bytes))
    }

    /// Has an agent copy from mapped memory, if it is that of the expected mappings.
    pub(super) fn copy_to_host(
        &self,
        agent: AgentId,
        bytes: &mut [u8],
        source: Address,
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let (operation, size) = (Operation::CopyToHost, bytes.len());
        let needed = (Argument::Source, Access::Read);
        self.by_agent(operation, agent, source, size, (needed, expected), |native, at, mover| {
            match mover {
                Mover::Processor => {
                    read_memory(at, bytes);
                    Ok(())
                }
                Mover::Agent(agent) => native.read_by_agent(at, bytes, agent),
            }
        })
    }

    /// Has an agent copy to mapped memory, if it is that of the expected mappings.
    pub(super) fn copy_from_host(
        &self,
        agent: AgentId,
        destination: Address,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let (operation, size) = (Operation::CopyFromHost, bytes.len());
        let needed = (Argument::Destination, Access::ReadWrite);
        self.by_agent(
            operation,
            agent,
            destination,
            size,
            (needed, expected),
            |native, at, mover| match mover {
                Mover::Processor => {
                    write_memory(at, bytes);
                    Ok(())
                }
                Mover::Agent(agent) => native.write_by_agent(at, bytes, agent),
            },
        )
    }

    /// Fills mapped memory, if it is that of the expected mappings.
    pub(super) fn fill(
        &self,
        address: Address,
        value: u32,
        size: usize,
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let operation = Operation::Fill;
        let refused = |refusal: Refusal| refusal.during(operation);
        self.alive(operation)?;
        let range = Range::new(address, size).map_err(refused)?;
        for (argument, number) in [(Argument::Address, range.start), (Argument::Size, size)] {
            if number % 4 != 0 {
                return Err(refused(Refusal::new(argument, Problem::NotWords)));
            }
        }
        self.at_gate(operation, range, |entered| {
            expected.check_range(Argument::Address, &entered, range).map_err(refused)?;
            let mut parts = Vec::new();
            for piece in self.covering(operation, &entered, range)? {
                let start = piece.start.max(range.start);
                let end = (piece.start + piece.record.size).min(range.end());
                let part = Range { start, size: end - start };
                parts.push((part, self.filler(operation, &entered, piece.owner, part)?));
            }
            for (part, agent) in parts {
                self.call(|native| native.fill(part.start, value, part.size, agent))
                    .map_err(|failure| self.failure(operation, failure, size))?;
            }
            Ok(())
        })
    }

    /// The GPU that fills a part of a mapping: the memory's owner, or if that is not known the
    /// first that may write it.
    fn filler(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        owner: Option<usize>,
        part: Range,
    ) -> Result<NativeAgent, VmmError> {
        let mut refusal = Refusal::new(Argument::Agent, Problem::NotAGpu);
        let agents = self.runtime.agents().iter().enumerate();
        let candidates = agents.filter(|&(index, agent)| match owner {
            Some(owner) => index == owner,
            None => agent.kind() == AgentKind::Gpu,
        });
        for (index, agent) in candidates {
            let id = (index, agent.id());
            match self.check_granted(Argument::Address, entered, part, id, Access::ReadWrite) {
                Ok(()) => return Ok(agent.native),
                Err(reason) => refusal = reason,
            }
        }
        Err(refusal.during(operation))
    }

    fn by_cpu(
        &self,
        operation: Operation,
        address: Address,
        size: usize,
        (needed, expected): (Access, Expected<'_>),
        act: impl FnOnce(usize),
    ) -> Result<(), VmmError> {
        self.alive(operation)?;
        if size == 0 {
            return Ok(());
        }
        let refused = |refusal: Refusal| refusal.during(operation);
        let range = Range::new(address, size).map_err(refused)?;
        self.at_gate(operation, range, |entered| {
            let host = self.runtime.host().id();
            let pieces = self.covering(operation, &entered, range)?;
            let found = pieces.iter().map(|piece| piece.record.serial);
            expected.check(Argument::Address, range.start, found).map_err(refused)?;
            for piece in pieces {
                if self.cpu_access_of(&piece.record.access) < needed {
                    let at = Address::new(piece.start.max(range.start));
                    let verb = if needed == Access::Read { "read" } else { "write" };
                    let problem = Problem::NotGranted { at, agent: host, verb };
                    return Err(refused(Refusal::new(Argument::Address, problem)));
                }
            }
            act(range.start);
            Ok(())
        })
    }

    /// Has an agent do something to mapped memory that it may use.
    fn by_agent(
        &self,
        operation: Operation,
        agent: AgentId,
        address: Address,
        size: usize,
        ((argument, needed), expected): ((Argument, Access), Expected<'_>),
        act: impl FnOnce(&Native, usize, Mover) -> Result<(), Failure>,
    ) -> Result<(), VmmError> {
        self.alive(operation)?;
        let refused = |refusal: Refusal| refusal.during(operation);
        let (index, found) = self.agent(agent, Argument::Agent).map_err(refused)?;
        if size == 0 {
            return Ok(());
        }
        let about = |error: VmmError| error.about(argument);
        let range = Range::new(address, size).map_err(refused).map_err(about)?;
        self.at_gate(operation, range, |entered| {
            expected.check_range(argument, &entered, range).map_err(refused)?;
            self.check_granted(argument, &entered, range, (index, agent), needed)
                .map_err(refused)?;
            self.call(|native| act(native, range.start, found.mover()))
                .map_err(|failure| self.failure(operation, failure, size))
        })
        .map_err(about)
    }

    /// The mappings that a range touches, all of which must be mapped.
    fn covering(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        range: Range,
    ) -> Result<Run<Piece>, VmmError> {
        let whole = {
            let inside = entered.around(range).map_err(|refusal| refusal.during(operation))?;
            let mappings = inside.mappings();
            mappings.check_mapped(range).map_err(|refusal| refusal.during(operation))?;
            let start = mappings.at(range.start).map_or(range.start, |(start, _)| start);
            let last = mappings.at(range.end() - 1);
            let end = last.map_or(range.end(), |(start, record)| start + record.size);
            Range { start, size: end - start }
        };
        self.run(operation, entered, whole)
    }

    /// Does something while neither range can change.
    pub(super) fn at_both_gates<T>(
        &self,
        operation: Operation,
        to: Range,
        from: Range,
        act: impl FnOnce(Entered<'_>) -> Result<T, VmmError>,
    ) -> Result<T, VmmError> {
        let open = |range, argument| {
            let refused = |refusal: Refusal| refusal.during(operation);
            let found = self.ledger.around(range).map_err(refused);
            let found = found.map_err(|error| error.about(argument))?;
            not_open(operation, &found).map_err(|error| error.about(argument))?;
            Ok::<_, VmmError>(found)
        };
        loop {
            let destination = open(to, Argument::Destination)?;
            let source = open(from, Argument::Source)?;
            let mut both = vec![&*destination, &*source];
            both.sort_by_key(|reserved| reserved.base);
            both.dedup_by_key(|reserved| reserved.base);
            // Either may have been freed, and its addresses reserved anew, meanwhile.
            if let Some(entered) = Entered::all(both) {
                return act(entered);
            }
        }
    }
}

/// Two ranges of the same size, by what they are called.
pub(super) fn two_ranges(
    operation: Operation,
    destination: Address,
    source: Address,
    size: usize,
) -> Result<(Range, Range), VmmError> {
    let range = |address, argument| {
        let range = Range::new(address, size).map_err(|refusal| refusal.during(operation));
        range.map_err(|error| error.about(argument))
    };
    Ok((range(destination, Argument::Destination)?, range(source, Argument::Source)?))
}
