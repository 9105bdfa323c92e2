//! Calls by address for owners: they act only on the owner's own mappings.

use super::ledger::Range;
use super::mapping::{Expected, Serial};
use super::{
    Access, AccessDescriptor, Address, Argument, Operation, Problem, Refusal, Vmm, VmmError,
};
use crate::agent::AgentId;

/// The calls of a [`Vmm`], limited to mappings that are known by serial. Where others are mapped by
/// now, each call fails with [`Problem::NotMapped`](super::Problem::NotMapped) and changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Only<'a> {
    vmm: &'a Vmm,
    /// Of every mapping that the range of the call touches, by address.
    serials: &'a [Serial],
}

impl Vmm {
    /// Limits calls to these mappings, which are listed by address.
    pub(crate) fn only<'a>(&'a self, serials: &'a [Serial]) -> Only<'a> {
        Only { vmm: self, serials }
    }
}

impl Only<'_> {
    fn expected(&self) -> Expected<'_> {
        Expected::Only(self.serials)
    }

    pub fn read(self, address: Address, bytes: &mut [u8]) -> Result<(), VmmError> {
        self.vmm.shared.read(address, bytes, self.expected())
    }

    pub fn write(self, address: Address, bytes: &[u8]) -> Result<(), VmmError> {
        self.vmm.shared.write(address, bytes, self.expected())
    }

    pub fn fill(self, address: Address, value: u32, size: usize) -> Result<(), VmmError> {
        self.vmm.shared.fill(address, value, size, self.expected())
    }

    pub fn copy_to_host(
        self,
        agent: AgentId,
        bytes: &mut [u8],
        source: Address,
    ) -> Result<(), VmmError> {
        self.vmm.shared.copy_to_host(agent, bytes, source, self.expected())
    }

    pub fn copy_from_host(
        self,
        agent: AgentId,
        destination: Address,
        bytes: &[u8],
    ) -> Result<(), VmmError> {
        self.vmm.shared.copy_from_host(agent, destination, bytes, self.expected())
    }

    pub fn set_access(
        self,
        address: Address,
        size: usize,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        self.vmm.shared.set_access(address, size, descriptors, self.expected())
    }

    pub fn revoke(self, address: Address, size: usize, agents: &[AgentId]) -> Result<(), VmmError> {
        self.vmm.shared.revoke(address, size, agents, self.expected())
    }

    /// Whether they are what is mapped in a range, and nothing else is.
    pub fn check(
        self,
        operation: Operation,
        address: Address,
        size: usize,
    ) -> Result<(), VmmError> {
        let shared = &self.vmm.shared;
        shared.alive(operation)?;
        let range = Range { start: address.get(), size };
        let checked = shared.ledger.at(range.start, |reserved| {
            let found = reserved.mappings();
            self.expected().check(Argument::Address, range.start, found.serials_in(range))
        });
        let not_reserved = Refusal::new(Argument::Address, Problem::NotReserved);
        checked.unwrap_or(Err(not_reserved)).map_err(|refusal| refusal.during(operation))
    }

    /// What an agent may do with the first of them, which holds the address.
    pub fn access(self, agent: AgentId, address: Address) -> Result<Access, VmmError> {
        self.vmm.shared.get_access(agent, address, self.serials.first().copied())
    }

    pub fn unmap(self, address: Address, size: usize) -> Result<(), VmmError> {
        let operation = Operation::Unmap;
        let shared = &self.vmm.shared;
        shared.alive(operation)?;
        let range =
            Range::new(address, size).map_err(|refusal: Refusal| refusal.during(operation))?;
        shared.unmap(operation, range, self.expected())
    }

    /// Exchanges the memory behind these, which begin at `address`, with that behind as many others
    /// of the same `Vmm`.
    pub fn exchange(
        self,
        address: Address,
        (others, there): (&[Serial], Address),
        size: usize,
    ) -> Result<(), VmmError> {
        let operation = Operation::Exchange;
        let shared = &self.vmm.shared;
        shared.alive(operation)?;
        let (to, from) = super::transfer::two_ranges(operation, there, address, size)?;
        shared.exchange(to, from, (Expected::Only(others), self.expected()))
    }
}
