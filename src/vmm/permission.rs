//! Sets, gets and revokes access to mapped memory.

use super::access_change::AccessChange;
use super::ledger::{AddressRange, MappedRange, ReservationGuard, locked_containing, not_mapped};
use super::{AllocationProperties, ExpectedMappings, Shared, Vmm};
use crate::access::{Access, AccessDescriptor};
use crate::address::Address;
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use smallvec::SmallVec;

impl Vmm {
    /// Sets the access of agents to adjacent whole mappings (`hipMemSetAccess`,
    /// `hsa_amd_vmem_set_access`).
    ///
    /// Other agents keep their access. For an agent that is listed twice, the last descriptor counts. The call checks
    /// all arguments before the first change. If the runtime fails, the call rolls back all changes. From ROCm 6.4 on,
    /// one call of the runtime sets the GPUs' access to adjacent mappings that need equal requests
    /// ([`Quirks::set_access_of_several_fails`](crate::vmm::Quirks)). The CPU's access is set for each mapping.
    ///
    /// `mprotect` enforces a CPU's permission; of several CPU agents, each has the highest access of any. A GPU's page
    /// table enforces the GPU's permission if the library
    /// [controls the table](crate::vmm::VmmOptions::with_page_tables). Otherwise only the first grant to a GPU has an
    /// effect: AMD's driver maps the memory readable and writable, whatever was requested. The GPU keeps full access
    /// until [`revoke`](Vmm::revoke) or [`unmap`](Vmm::unmap).
    ///
    /// Agents and threads may use the memory during the call. However, a call that grants a GPU its first access to a
    /// mapping can unmap the memory and map it again, which keeps the contents. An access in between faults, and a GPU's
    /// fault ends the process. This happens in two cases:
    ///
    /// * A step fails, and the call rolls back. Only unmapping revokes a GPU's access. The rollback unmaps each
    ///   mapping of the call to which it has granted, or tried to grant, a GPU its first access.
    /// * The runtime has the quirk [`peer_after_owner_fails`](crate::vmm::Quirks) (ROCm 7.14), and the GPU that owns the
    ///   memory already has access. If the owner is unknown, any GPU may be the owner.
    ///
    /// To avoid both cases, grant all GPUs access in one call, before an agent uses the memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range does not consist of whole mappings, the list is empty, or
    /// an agent is unknown, or is to get access and is neither a CPU nor a GPU, or cannot access the memory;
    /// [`ErrorKind::NotSupported`] for a CPU if the GPU has no large BAR.
    pub fn set_access(
        &self,
        address: Address,
        size: usize,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared| {
            let range = AddressRange::new(address, size)?;
            shared.set_access(&[(range, shared.access_change(descriptors)?)], ExpectedMappings::Any)
        })
    }

    /// Sets the access of agents to many ranges of whole mappings, with separate descriptors for each range, all or
    /// nothing (`hipMemSetAccess`, `hsa_amd_vmem_set_access`).
    ///
    /// Each change is an address, a size and descriptors, and must meet the conditions of
    /// [`set_access`](Self::set_access). Other threads observe a single step. As for `set_access`, the call can unmap
    /// memory and map it again; a rollback can do so with all ranges of the call.
    ///
    /// # Errors
    /// As for `set_access`; [`ErrorKind::InvalidArgument`] also for an empty list, and for ranges that
    /// overlap.
    pub fn set_access_many(
        &self,
        changes: &[(Address, usize, &[AccessDescriptor])],
    ) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared| {
            let change = |&(address, size, descriptors): &(_, _, &[_])| {
                Ok((AddressRange::new(address, size)?, shared.access_change(descriptors)?))
            };
            let mut changes = changes.iter().map(change).collect::<Result<Vec<_>, ErrorKind>>()?;
            changes.sort_by_key(|(range, _)| range.start);
            shared.set_access(&changes, ExpectedMappings::Any)
        })
    }

    /// Returns the access of an agent at an address (`hipMemGetAccess`).
    ///
    /// Any address inside a mapping is accepted. An agent that was never granted access has [`Access::None`].
    /// The access comes from the ledger. AMD's runtime also returns an access for the address at the end of a mapping,
    /// and does not return the access of CPUs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if nothing is mapped at the address or the agent is unknown.
    pub fn get_access(&self, agent: AgentId, address: Address) -> Result<Access, Error> {
        self.run(Operation::GetAccess, |shared| shared.get_access(agent, address, None))
    }

    /// Revokes all access of agents, including GPUs, to adjacent whole mappings. HIP has no such call.
    ///
    /// In HIP, `hipMemAccessFlagsProtNone` does not remove a GPU's mapping. If the access of every named agent
    /// is [enforced](Vmm::enforcement), this method does the same as [`set_access`](Self::set_access) with
    /// [`Access::None`]. Otherwise this method unmaps the memory, maps it again, and grants all other agents their
    /// previous access again. The contents stay. No agent may use the memory during the call.
    ///
    /// # Errors
    /// As for [`set_access`](Vmm::set_access).
    pub fn revoke(&self, address: Address, size: usize, agents: &[AgentId]) -> Result<(), Error> {
        self.run(Operation::Revoke, |shared| {
            shared.revoke(&[AddressRange::new(address, size)?], agents, ExpectedMappings::Any)
        })
    }

    /// Checks whether the access in `descriptors` could be set to memory with these properties, before such memory
    /// exists.
    ///
    /// # Errors
    /// As for [`set_access`](Vmm::set_access), except for errors about the range.
    pub fn check_access(
        &self,
        properties: &AllocationProperties,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared| {
            let change = shared.access_change(descriptors)?;
            shared.check_peers(shared.owner_of(properties)?, &change)
        })
    }
}

impl Shared {
    /// Applies the change of each range. The ranges are sorted by address. Fails if they do not consist of the
    /// expected whole mappings.
    pub(super) fn set_access(
        &self,
        changes: &[(AddressRange, AccessChange)],
        expected: ExpectedMappings<'_>,
    ) -> Result<(), ErrorKind> {
        let ranges: SmallVec<[AddressRange; 1]> = changes.iter().map(|it| it.0).collect();
        self.transact(Operation::SetAccess, &ranges, |journal| {
            for (range, change) in changes {
                journal.add_targets(*range, change)?;
            }
            expected.check_targets(journal, 0)?;
            check_disjoint(&ranges)?;
            for target in &journal.targets {
                self.check_peers(target.now().owner, target.change)?;
            }
            journal.change_access(0..journal.targets.len())
        })
        .map_err(|error| expected.as_not_mapped(&ranges, error))
    }

    /// Revokes all access of agents to ranges. Fails if the ranges do not consist of the expected whole mappings.
    pub(super) fn revoke(
        &self,
        ranges: &[AddressRange],
        agents: &[AgentId],
        expected: ExpectedMappings<'_>,
    ) -> Result<(), ErrorKind> {
        let revoked = self.access_change(&AccessDescriptor::of_each(agents, Access::None))?;
        self.transact(Operation::Revoke, ranges, |journal| {
            for &range in ranges {
                journal.add_targets(range, &revoked)?;
            }
            expected.check_targets(journal, 0)?;
            check_disjoint(ranges)?;
            let enforced = self.cpus.union(self.controlled());
            if revoked.agents.difference(enforced).is_empty() {
                return journal.change_access(0..journal.targets.len());
            }
            // Mapping the memory again needs descriptors.
            self.check_descriptor()?;
            for target in &journal.targets {
                self.check_remap(target.now())?;
            }
            (0..journal.targets.len()).try_for_each(|index| journal.remap_with_access(index))
        })
        .map_err(|error| expected.as_not_mapped(ranges, error))
    }

    /// Returns the access of an agent at an address. With a serial, the mapping must have this serial.
    pub(super) fn get_access(
        &self,
        agent: AgentId,
        address: Address,
        serial: Option<u64>,
    ) -> Result<Access, ErrorKind> {
        if address == Address::NULL {
            return Err(ErrorKind::invalid(Argument::Address, address, Problem::Null));
        }
        let index = self.agent(agent, Argument::Agent)?.id().index();
        let found = self.ledger.reservations.at(address.get(), |reservation| {
            reservation.mappings().access_at(address.get(), index, serial)
        });
        found.flatten().ok_or_else(|| not_mapped(address.get()))
    }

    /// Returns the change that descriptors describe.
    pub(super) fn access_change(
        &self,
        descriptors: &[AccessDescriptor],
    ) -> Result<AccessChange, ErrorKind> {
        if descriptors.is_empty() {
            return Err(ErrorKind::without_value(Argument::Descriptors, Problem::Empty));
        }
        let change = |it: &AccessDescriptor| {
            let agent = self.agent(it.agent, Argument::Agent)?;
            Ok((agent.id().index(), it.access))
        };
        descriptors.iter().map(change).collect()
    }

    /// Checks that the expected mappings cover a range, and that an agent has at least this access to all of the
    /// range. If `agent` is `None`, checks the access of this process's loads and stores.
    pub(super) fn check_granted(
        &self,
        guards: &[ReservationGuard<'_>],
        range: AddressRange,
        expected: ExpectedMappings<'_>,
        agent: Option<AgentId>,
        access: Access,
    ) -> Result<(), ErrorKind> {
        let mappings = locked_containing(guards, range)?.mappings();
        expected.check(range, mappings.overlapping(range))?;
        let granted = |it: &MappedRange| match agent {
            Some(agent) => it.access.requested.get(agent.index()),
            None => self.process_access(&it.access),
        };
        let Some(it) = mappings.covering(range)?.find(|it| granted(it) < access) else {
            return Ok(());
        };
        let at = Address::new(it.start.max(range.start));
        let agent = agent.unwrap_or_else(|| self.runtime.host().id());
        Err(range.invalid(self.not_granted(&it, at, agent, access)))
    }

    /// Returns the problem of an agent that lacks this access to a mapping. `at` is an address in the mapping.
    pub(super) fn not_granted(
        &self,
        mapping: &MappedRange,
        at: Address,
        agent: AgentId,
        access: Access,
    ) -> Problem {
        let is_zero_page = || self.ledger.handles.with_live(mapping.handle, |it| it.is_zero_page);
        match access {
            Access::ReadWrite if is_zero_page() == Some(true) => Problem::ZeroPage(at),
            _ => Problem::NotGranted { at, agent, access },
        }
    }
}

/// Rejects overlapping ranges in a list that is sorted by address. Operations on owned mappings first check that the
/// mappings exist: the range of a mapping that was unmapped by address can overlap the range of a new mapping.
pub(super) fn check_disjoint(ranges: &[AddressRange]) -> Result<(), ErrorKind> {
    match ranges.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        Some(pair) => Err(ErrorKind::invalid(Argument::List, pair[1], Problem::Overlapping)),
        None => Ok(()),
    }
}
