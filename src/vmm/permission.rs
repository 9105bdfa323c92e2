//! Setting, getting and revoking access to mapped memory.

use super::access_change::AccessChange;
use super::ledger::{MappedRange, Range, ReservationGuard, locked_around, not_mapped};
use super::{AllocationProperties, Expected, Shared, Vmm};
use crate::access::{Access, AccessDescriptor};
use crate::address::Address;
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use smallvec::SmallVec;

impl Vmm {
    /// Sets what agents may do with a run of whole mappings (`hipMemSetAccess`,
    /// `hsa_amd_vmem_set_access`).
    ///
    /// Agents that are not named keep what they have; one that is named twice gets the last. All of it
    /// is checked before the first takes effect, and rolled back if the runtime fails. One call of the
    /// runtime sets all neighbouring mappings to which the same is new, from ROCm 6.4 on
    /// ([`Quirks::set_access_of_several_fails`](crate::vmm::Quirks)).
    ///
    /// For CPUs a permission is enforced by the memory's protection (`mprotect`). For GPUs only the first
    /// grant has an effect: AMD's driver then maps the memory readable and writable, whatever was asked
    /// for, until [`revoke`](Vmm::revoke) or [`unmap`](Vmm::unmap).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not exactly a run of whole mappings, the list is
    /// empty, an agent unknown or out of reach; [`ErrorKind::NotSupported`] for the CPU where the GPU has
    /// no large BAR.
    pub fn set_access(
        &self,
        address: Address,
        size: usize,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared| {
            let range = Range::new(address, size)?;
            shared.set_access(&[(range, descriptors)], Expected::Any)
        })
    }

    /// Sets what agents may do with many runs of whole mappings at once, all or nothing
    /// (`hipMemSetAccess`, `hsa_amd_vmem_set_access`).
    ///
    /// Each run is an address and a size; otherwise as [`set_access`](Self::set_access). To other
    /// threads it is a single step.
    ///
    /// # Errors
    /// As for `set_access`; [`ErrorKind::InvalidArgument`] also for an empty list, and for runs that
    /// share bytes.
    pub fn set_access_many(
        &self,
        runs: &[(Address, usize)],
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared| {
            let ranges = sorted_ranges(runs)?;
            let all: Vec<_> = ranges.iter().map(|&range| (range, descriptors)).collect();
            shared.set_access(&all, Expected::Any)
        })
    }

    /// Returns what an agent may do at an address (`hipMemGetAccess`).
    ///
    /// Any address inside a mapping is accepted. An agent that was never granted anything has
    /// [`Access::None`]. The answer is this library's own: AMD's runtime answers for the address behind a
    /// mapping, too, and not for CPUs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if nothing is mapped there or the agent is unknown.
    pub fn get_access(&self, agent: AgentId, address: Address) -> Result<Access, Error> {
        self.run(Operation::GetAccess, |shared| shared.get_access(agent, address, None))
    }

    /// Takes a run of whole mappings away from agents, GPUs included. HIP has no such call.
    ///
    /// In HIP, `hipMemAccessFlagsProtNone` leaves a GPU's mapping in place. Here the memory is unmapped,
    /// mapped again and granted to all others again; for that moment they cannot access it, so that
    /// none may be using it. The contents stay.
    ///
    /// # Errors
    /// As for [`set_access`](Vmm::set_access).
    pub fn revoke(&self, address: Address, size: usize, agents: &[AgentId]) -> Result<(), Error> {
        self.run(Operation::Revoke, |shared| {
            shared.revoke(&[Range::new(address, size)?], agents, Expected::Any)
        })
    }

    /// Checks access that is to be set once there is memory with these properties.
    ///
    /// # Errors
    /// As for [`set_access`](Vmm::set_access), as far as they do not concern the range.
    pub fn check_access(
        &self,
        properties: &AllocationProperties,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared| {
            let change = shared.access_change(descriptors)?;
            shared.pool(properties)?;
            shared.check_reach(properties.owner(), &change)
        })
    }
}

impl Shared {
    /// Sets access to runs of whole mappings, each its own, if they are the expected ones. They are
    /// sorted by address.
    pub(super) fn set_access(
        &self,
        runs: &[(Range, &[AccessDescriptor])],
        expected: Expected<'_>,
    ) -> Result<(), ErrorKind> {
        let ranges: SmallVec<[Range; 1]> = runs.iter().map(|&(range, _)| range).collect();
        check_disjoint(&ranges)?;
        let mut changes: SmallVec<[AccessChange; 1]> = SmallVec::new();
        for &(_, descriptors) in runs {
            changes.push(self.access_change(descriptors)?);
        }
        self.transact(Operation::SetAccess, &ranges, |journal| {
            for (&range, &change) in ranges.iter().zip(&changes) {
                journal.add_run(range, change)?;
            }
            expected.check_targets(journal, 0)?;
            for target in &journal.targets {
                self.check_reach(target.now.owner, &target.change)?;
            }
            journal.change_access(0..journal.targets.len())
        })
    }

    /// Takes runs of whole mappings away from agents, if they are the expected ones.
    pub(super) fn revoke(
        &self,
        ranges: &[Range],
        agents: &[AgentId],
        expected: Expected<'_>,
    ) -> Result<(), ErrorKind> {
        check_disjoint(ranges)?;
        let none = |&agent: &AgentId| AccessDescriptor { agent, access: Access::None };
        let revoked = self.access_change(&agents.iter().map(none).collect::<Vec<_>>())?;
        self.transact(Operation::Revoke, ranges, |journal| {
            for &range in ranges {
                journal.add_run(range, revoked)?;
            }
            expected.check_targets(journal, 0)?;
            // Without a descriptor, what is unmapped could not be mapped again.
            self.check_descriptor()?;
            for target in &journal.targets {
                self.check_remap(&target.now.access)?;
            }
            (0..journal.targets.len()).try_for_each(|index| journal.remap_with_access(index))
        })
    }

    /// Returns what an agent may do at an address; with a serial only if that mapping is there.
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
            return Err(ErrorKind::invalid_list(Argument::Descriptors, Problem::Empty));
        }
        let change = |it: &AccessDescriptor| {
            let agent = self.agent(it.agent, Argument::Agent)?;
            Ok((agent.id().index(), it.access))
        };
        descriptors.iter().map(change).collect()
    }

    /// Checks that an agent has been granted access everywhere in a range, all of which must be mapped by
    /// the expected mappings.
    pub(super) fn check_granted(
        &self,
        guards: &[ReservationGuard<'_>],
        range: Range,
        expected: Expected<'_>,
        agent: AgentId,
        needed: Access,
    ) -> Result<(), ErrorKind> {
        let mappings = locked_around(guards, range)?.mappings();
        expected.check(range, mappings.touching(range))?;
        let lacks = |it: &MappedRange| it.access.requested.get(agent.index()) < needed;
        match mappings.covering(range)?.find(lacks) {
            None => Ok(()),
            Some(it) => {
                let at = Address::new(it.start.max(range.start));
                Err(range.invalid(Problem::NotGranted { at, agent, access: needed }))
            }
        }
    }
}

/// Returns the ranges of a list by address.
pub(super) fn sorted_ranges(runs: &[(Address, usize)]) -> Result<SmallVec<[Range; 1]>, ErrorKind> {
    let range = |&(address, size): &_| Range::new(address, size);
    let mut ranges: SmallVec<[Range; 1]> = runs.iter().map(range).collect::<Result<_, _>>()?;
    ranges.sort_by_key(|range| range.start);
    Ok(ranges)
}

/// Refuses ranges that share bytes. They are sorted by address.
pub(super) fn check_disjoint(ranges: &[Range]) -> Result<(), ErrorKind> {
    match ranges.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        Some(pair) => Err(ErrorKind::invalid(Argument::List, pair[1], Problem::Overlapping)),
        None => Ok(()),
    }
}
