//! What all buffers share: granted access, and reading, writing and filling across mappings.

use crate::address::Address;
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::vmm::{Access, AccessDescriptor, AllocationProperties, Mapping, Vmm};
use smallvec::SmallVec;

/// The access that agents have to all of a buffer; agents without any are not listed.
#[derive(Clone, Debug, Default)]
pub(super) struct Grants(Vec<AccessDescriptor>);

impl Grants {
    pub fn list(&self) -> &[AccessDescriptor] {
        &self.0
    }

    pub fn of(&self, agent: AgentId) -> Access {
        let granted = self.0.iter().find(|granted| granted.agent == agent);
        granted.map_or(Access::None, |granted| granted.access)
    }

    /// Changes the access of some agents.
    pub fn set(&mut self, agents: &[AgentId], access: Access) {
        self.0.retain(|granted| !agents.contains(&granted.agent));
        if access != Access::None {
            for &agent in agents {
                if self.of(agent) == Access::None {
                    self.0.push(AccessDescriptor { agent, access });
                }
            }
        }
    }

    /// The same, but no agent may write.
    pub fn for_reading(&self) -> Vec<AccessDescriptor> {
        let limit = |granted: &AccessDescriptor| AccessDescriptor {
            access: granted.access.min(Access::Read),
            ..*granted
        };
        self.0.iter().map(limit).collect()
    }
}

/// Checks access before there is memory that it could be set for.
pub(super) fn check_access(
    vmm: &Vmm,
    properties: &AllocationProperties,
    agents: &[AgentId],
    access: Access,
) -> Result<Vec<AccessDescriptor>, Error> {
    let descriptors = AccessDescriptor::of_each(agents, access);
    vmm.check_access(properties, &descriptors)?;
    Ok(descriptors)
}

/// The access of an agent, if all mappings still are the buffer's.
pub(super) fn access<'a>(
    vmm: &Vmm,
    grants: &Grants,
    agent: AgentId,
    mappings: impl IntoIterator<Item = &'a Mapping>,
) -> Result<Access, Error> {
    let fail = |kind| Error::new(Operation::GetAccess, kind);
    check_alive(vmm).map_err(fail)?;
    if vmm.runtime().agent(agent).is_none() {
        let is_foreign = agent.runtime() != vmm.runtime().host().id().runtime();
        let problem = if is_foreign { Problem::ForeignAgent } else { Problem::UnknownAgent };
        return Err(fail(ErrorKind::invalid(Argument::Agent, agent, problem)));
    }
    for mapping in mappings {
        mapping.access(agent)?;
    }
    Ok(grants.of(agent))
}

/// Fails in a forked child: another thread may have held a lock of the buffer during the fork.
pub(super) fn check_alive(vmm: &Vmm) -> Result<(), ErrorKind> {
    if vmm.runtime().has_forked() { Err(ErrorKind::Forked) } else { Ok(()) }
}

/// Checks that a part of a buffer is inside; returns its end.
pub(super) fn check_bounds(offset: usize, size: usize, end: usize) -> Result<usize, ErrorKind> {
    let last = offset.checked_add(size).filter(|&last| last <= end);
    let problem = Problem::OutOfBounds { size, end };
    last.ok_or(ErrorKind::invalid(Argument::Offset, offset, problem))
}

/// A part of a buffer, and exactly the mappings that contain its bytes.
#[derive(Debug)]
pub(super) struct Span<'a> {
    /// The start of the buffer.
    pub base: Address,
    pub offset: usize,
    pub mappings: SmallVec<[&'a Mapping; 8]>,
}

impl<'a> Span<'a> {
    /// A part of adjacent mappings of one size, of which the first is the start of the buffer.
    pub fn of_steps(
        base: Address,
        mappings: &'a [Mapping],
        step: usize,
        (offset, size): (usize, usize),
    ) -> Self {
        let steps = offset / step..(offset + size).div_ceil(step);
        let mappings = mappings.get(steps).unwrap_or_default().iter().collect();
        Self { base, offset, mappings }
    }

    pub fn read(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let read = Mapping::read_many(&self.mappings, self.address(), bytes);
        read.map_err(|error| self.about_offset(error))
    }

    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let written = Mapping::write_many(&self.mappings, self.address(), bytes);
        written.map_err(|error| self.about_offset(error))
    }

    pub fn fill(&self, value: u32, size: usize) -> Result<(), Error> {
        let filled = Mapping::fill_many(&self.mappings, self.address(), value, size);
        filled.map_err(|error| self.about_offset(error))
    }

    fn address(&self) -> Address {
        Address::new(self.base.get() + self.offset)
    }

    /// Blames the offset in the buffer in place of the address.
    fn about_offset(&self, error: Error) -> Error {
        let operation = error.operation();
        Error::new(operation, error.into_kind().about_offset(self.base))
    }
}
