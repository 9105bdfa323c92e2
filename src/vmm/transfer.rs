//! Reads, writes, copies and fills mapped memory, by this process's loads and stores or by agents.
//!
//! Each call first locks the reservation and checks the ledger. Therefore an invalid address causes an error, and never
//! a fault.

use super::ledger::{AddressRange, MappedRange, ReservationGuard, locked_containing};
use super::{Access, Address, ExpectedMappings, Shared, Vmm};
use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Value};
use crate::native::{CopyEngine, Failure};
use smallvec::SmallVec;

impl Vmm {
    /// Copies from mapped memory, by this process's own loads.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not completely mapped in one reservation, or no CPU has
    /// read access.
    pub fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Error> {
        self.run(Operation::Read, |shared| shared.read(None, address, bytes, ExpectedMappings::Any))
    }

    /// Copies to mapped memory, by this process's own stores.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not completely mapped in one reservation, or no CPU has
    /// write access.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Error> {
        self.run(Operation::Write, |shared| {
            shared.write(None, address, bytes, ExpectedMappings::Any)
        })
    }

    /// Copies between two mapped ranges, by an agent, and waits for the end of the copy (`hsa_amd_memory_async_copy`).
    /// A CPU copies by this process's own loads and stores. If the ranges overlap, or map the same bytes of memory
    /// twice, the contents of the destination are undefined.
    ///
    /// Without [`VmmOptions::with_barrier`](crate::vmm::VmmOptions::with_barrier), a copy by a GPU directly after a call
    /// that maps memory or grants access can fault, which ends the process.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size of zero, for a range that is not completely mapped in one reservation,
    /// and if the agent lacks read access to the source or write access to the destination.
    pub fn copy(
        &self,
        agent: AgentId,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), Error> {
        self.run(Operation::Copy, |shared| {
            let copier = shared.agent(agent, Argument::Agent)?;
            let (to, from) = two_ranges(destination, source, size)?;
            let act = |guards: &[ReservationGuard<'_>]| {
                shared
                    .check_granted(
                        guards,
                        to,
                        ExpectedMappings::Any,
                        Some(agent),
                        Access::ReadWrite,
                    )
                    .map_err(|kind| kind.for_argument(Argument::Destination))?;
                shared
                    .check_granted(guards, from, ExpectedMappings::Any, Some(agent), Access::Read)
                    .map_err(|kind| kind.for_argument(Argument::Source))?;
                let engine = copier.copy_engine();
                // SAFETY: both reservations are locked. The checks above ensure that both ranges are mapped,
                // and that the agent may read the source and write the destination.
                let copied = unsafe { shared.native().copy(engine, to.start, from.start, size) };
                copied.map_err(|failure| ErrorKind::of_call(failure, size))
            };
            shared.with_locked(&[to, from], act).map_err(|kind| for_operand(kind, to))
        })
    }

    /// Copies mapped memory to this process's own memory, by an agent, and waits for the end of the copy
    /// (`hipMemcpyDtoH`, `hsa_amd_memory_async_copy`). No CPU needs access to the memory. As in HIP, the
    /// destination is before the source.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not completely mapped in one reservation, or the agent
    /// has no read access.
    pub fn copy_to_host(
        &self,
        agent: AgentId,
        bytes: &mut [u8],
        source: Address,
    ) -> Result<(), Error> {
        self.run(Operation::CopyToHost, |shared| {
            shared
                .read(Some(agent), source, bytes, ExpectedMappings::Any)
                .map_err(|kind| kind.for_argument(Argument::Source))
        })
    }

    /// Copies this process's own memory to mapped memory, by an agent, and waits for the end of the copy
    /// (`hipMemcpyHtoD`, `hsa_amd_memory_async_copy`). No CPU needs access to the memory. As in HIP, the
    /// destination is before the source.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not completely mapped in one reservation, or the agent
    /// has no write access.
    pub fn copy_from_host(
        &self,
        agent: AgentId,
        destination: Address,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.run(Operation::CopyFromHost, |shared| {
            shared
                .write(Some(agent), destination, bytes, ExpectedMappings::Any)
                .map_err(|kind| kind.for_argument(Argument::Destination))
        })
    }

    /// Fills a mapped range with a 32-bit value, by the agent that owns the memory, and waits for the end. `size` is in
    /// bytes, a multiple of four.
    ///
    /// If the owner is unknown, or if it is a CPU without write access, the first GPU with write access fills the
    /// memory. A GPU fills the memory by copies, because `hsa_amd_memory_fill` rejects virtual memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is empty or not completely mapped in one reservation, no such agent
    /// has write access, or the address or the size is not a multiple of four.
    pub fn fill(&self, address: Address, value: u32, size: usize) -> Result<(), Error> {
        self.run(Operation::Fill, |shared| shared.fill(address, value, size, ExpectedMappings::Any))
    }
}

impl Shared {
    /// Copies from mapped memory, by an agent. If `agent` is `None`, copies by this process's own loads.
    pub(super) fn read(
        &self,
        agent: Option<AgentId>,
        address: Address,
        bytes: &mut [u8],
        expected: ExpectedMappings<'_>,
    ) -> Result<(), ErrorKind> {
        let range = (address, bytes.len());
        self.with_access(agent, range, (Access::Read, expected), |engine, start| {
            // SAFETY: the reservation is locked, and the engine may read the range.
            unsafe { self.native().read(engine, start, bytes) }
        })
    }

    /// Copies to mapped memory, by an agent. If `agent` is `None`, copies by this process's own stores.
    pub(super) fn write(
        &self,
        agent: Option<AgentId>,
        address: Address,
        bytes: &[u8],
        expected: ExpectedMappings<'_>,
    ) -> Result<(), ErrorKind> {
        let range = (address, bytes.len());
        self.with_access(agent, range, (Access::ReadWrite, expected), |engine, start| {
            // SAFETY: the reservation is locked, and the engine may write the range.
            unsafe { self.native().write(engine, start, bytes) }
        })
    }

    pub(super) fn fill(
        &self,
        address: Address,
        value: u32,
        size: usize,
        expected: ExpectedMappings<'_>,
    ) -> Result<(), ErrorKind> {
        let range = AddressRange::new(address, size)?;
        if range.start % 4 != 0 {
            return Err(ErrorKind::invalid(Argument::Address, address, Problem::NotMultipleOfFour));
        }
        check_fill_size(size)?;
        self.with_locked(&[range], |guards| {
            let mappings = locked_containing(guards, range)?.mappings();
            expected.check(range, mappings.overlapping(range))?;
            let part = |it: MappedRange| {
                let start = it.start.max(range.start);
                let part = AddressRange { start, size: it.range().end().min(range.end()) - start };
                Ok((part, self.filler(&it, part)?))
            };
            let parts = mappings.covering(range)?.map(part);
            let parts = parts.collect::<Result<SmallVec<[_; 1]>, ErrorKind>>()?;
            drop(mappings);
            for (part, engine) in parts {
                // SAFETY: the reservation is locked, the part is inside one mapping, and `filler` has
                // checked that the agent may write it.
                let filled = unsafe { self.native().fill(engine, part.start, value, part.size) };
                filled.map_err(|failure| ErrorKind::of_call(failure, size))?;
            }
            Ok(())
        })
        .map_err(|error| expected.as_not_mapped(&[range], error))
    }

    /// Returns the agent that fills a part of a mapping: the memory's owner. If the owner is unknown, or a CPU without
    /// write access, returns the first GPU with write access. A CPU fills only its own memory.
    fn filler(&self, mapping: &MappedRange, part: AddressRange) -> Result<CopyEngine, ErrorKind> {
        let mut error = ErrorKind::without_value(Argument::Agent, Problem::NotAGpu);
        let owner = mapping.owner.map(usize::from);
        let is_owner = |agent: &&Agent| owner == Some(agent.id().index());
        let agents = self.runtime.agents().iter();
        let owner_is_gpu =
            agents.clone().find(is_owner).is_some_and(|it| it.kind() == AgentKind::Gpu);
        let others = agents.clone().filter(|it| !owner_is_gpu && it.kind() == AgentKind::Gpu);
        for candidate in agents.filter(is_owner).chain(others) {
            let (at, agent, access) = (part.address(), candidate.id(), Access::ReadWrite);
            if mapping.access.requested.get(agent.index()) == access {
                return Ok(candidate.copy_engine());
            }
            error = part.invalid(self.not_granted(mapping, at, agent, access));
        }
        Err(error)
    }

    /// Calls `act` with the agent's engine and the address of a range while its reservation is locked. Fails if the
    /// expected mappings do not cover the range, or if the agent lacks the access. If `agent` is `None`, uses the CPU,
    /// and checks the access of this process instead. Does nothing if the size is 0.
    fn with_access(
        &self,
        agent: Option<AgentId>,
        (address, size): (Address, usize),
        (needed, expected): (Access, ExpectedMappings<'_>),
        act: impl FnOnce(CopyEngine, usize) -> Result<(), Failure>,
    ) -> Result<(), ErrorKind> {
        let engine = match agent {
            Some(agent) => self.agent(agent, Argument::Agent)?.copy_engine(),
            None => CopyEngine::Cpu,
        };
        if size == 0 {
            return Ok(());
        }
        let range = AddressRange::new(address, size)?;
        self.with_locked(&[range], |guards| {
            self.check_granted(guards, range, expected, agent, needed)?;
            act(engine, range.start).map_err(|failure| ErrorKind::of_call(failure, size))
        })
        .map_err(|error| expected.as_not_mapped(&[range], error))
    }
}

/// Rejects the size of a fill if it is not a multiple of four.
pub(super) fn check_fill_size(size: usize) -> Result<(), ErrorKind> {
    match size.is_multiple_of(4) {
        true => Ok(()),
        false => Err(ErrorKind::invalid(Argument::Size, size, Problem::NotMultipleOfFour)),
    }
}

/// Names the argument in an error about an address: the destination if the error is about the range `to`, otherwise the
/// source.
pub(super) fn for_operand(kind: ErrorKind, to: AddressRange) -> ErrorKind {
    let argument = match &kind {
        ErrorKind::InvalidArgument { value, .. }
            if *value == Value::Range(to.address(), to.size) =>
        {
            Argument::Destination
        }
        _ => Argument::Source,
    };
    kind.for_argument(argument)
}

/// Returns the ranges of the destination and the source, each `size` bytes long.
pub(super) fn two_ranges(
    destination: Address,
    source: Address,
    size: usize,
) -> Result<(AddressRange, AddressRange), ErrorKind> {
    let range = |address, argument| {
        AddressRange::new(address, size).map_err(|kind: ErrorKind| kind.for_argument(argument))
    };
    Ok((range(destination, Argument::Destination)?, range(source, Argument::Source)?))
}
