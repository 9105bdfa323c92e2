//! Recorded calls with numbers in place of addresses, handles and descriptors, so that another process can repeat them.
//!
//! Each address, handle or descriptor that a call returns gets a number. If several calls have returned the same value,
//! a later argument with this value stands for the newest of these results. A runtime can return the same value again
//! after the object was freed.

use super::{AgentKind, Call, Header, Record, Recording};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The calls of a recording, in a form that another process can repeat.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// The calls, in the order of the recording.
    pub steps: Vec<Step>,
    /// The number of blocks of addresses. A block is a reservation or an allocation from a pool.
    pub block_count: usize,
    /// The number of handles of memory.
    pub handle_count: usize,
    /// The number of descriptors.
    pub descriptor_count: usize,
}

/// A recorded call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The line number in the recording.
    pub line: u64,
    /// The name of the function.
    pub name: String,
    /// The recorded status.
    pub status: u32,
    /// The call, or why it cannot be repeated.
    pub action: Result<Action, Skipped>,
}

/// Why a call is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Skipped {
    /// The call uses memory or an IPC handle of another process, or imports exported pool memory.
    #[error("uses memory of another process, or imports exported pool memory")]
    OtherProcess,
    /// The call exports pool memory as a dma-buf (`hsa_amd_portable_export_dmabuf`), or closes the dma-buf.
    #[error("exports pool memory as a dma-buf, or closes the dma-buf")]
    Dmabuf,
    /// The program crashed in the call, or ended before the call returned.
    #[error("has not returned")]
    NotReturned,
    /// The call copies or fills memory. Recordings do not contain the contents of memory.
    #[error("copies or fills memory")]
    MovesData,
    /// The call failed to import a descriptor. The recording does not show whether the program had closed the exported
    /// descriptor with this number, and opened another file.
    #[error("failed to import a descriptor, which may be another file")]
    FailedImport,
    /// The call uses an address that no recorded call has returned.
    #[error("uses an address that no recorded call has returned")]
    UnknownAddress,
}

/// An address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say all")]
pub enum AddressRef {
    /// An offset in a block.
    Block { block: usize, offset: u64 },
    /// The recorded address, which is in no block.
    Fixed(u64),
}

/// A handle of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRef {
    /// The handle with this number.
    Numbered(usize),
    /// The recorded value, which no call has returned.
    Fixed(u64),
}

/// An agent, identified by its kind and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say all")]
pub enum AgentRef {
    /// The agent with this number among the agents of its kind.
    Numbered { kind: AgentKind, number: usize },
    /// A recorded value that was no agent, or an agent that is neither CPU nor GPU. The repeated call passes null
    /// instead: AMD's runtime reads memory at any other value, and the author of a recording could choose the value.
    Invalid,
}

/// A pool of an agent, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say all")]
pub enum PoolRef {
    /// The pool with this number among the pools of an agent.
    Numbered { agent: AgentRef, number: usize },
    /// A recorded value that was no pool. The repeated call passes null instead, as for [`AgentRef::Invalid`].
    Invalid,
}

/// A call to repeat. A result is `None` if the recorded call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the parameters of the functions")]
pub enum Action {
    Reserve { block: Option<usize>, size: u64, hint: u64, alignment: Option<u64>, flags: u64 },
    Free { at: AddressRef, size: u64 },
    Create { memory: Option<usize>, pool: PoolRef, size: u64, kind: u32, flags: u64 },
    Release { memory: MemoryRef },
    Map { at: AddressRef, size: u64, offset: u64, memory: MemoryRef, flags: u64 },
    Unmap { at: AddressRef, size: u64 },
    SetAccess { at: AddressRef, size: u64, access: Vec<(AgentRef, u32)> },
    GetAccess { at: AddressRef, agent: AgentRef, permissions: Option<u32> },
    Export { descriptor: Option<usize>, memory: MemoryRef, flags: u64 },
    Import { memory: Option<usize>, descriptor: usize },
    Retain { memory: Option<usize>, at: AddressRef },
    Properties { memory: MemoryRef },
    Allocate { block: Option<usize>, pool: PoolRef, size: u64, flags: u32 },
    FreeMemory { at: AddressRef },
    AllowAccess { at: AddressRef, agents: Vec<AgentRef> },
    IpcCreate { at: AddressRef, size: u64 },
}

/// Converts the calls of a recording to steps.
#[must_use]
pub fn plan(recording: &Recording) -> Plan {
    let mut values = Values::new(&recording.header);
    let mut plan = Plan::default();
    for record in &recording.calls {
        let action = if record.pending { Err(Skipped::NotReturned) } else { values.action(record) };
        plan.steps.push(Step {
            line: record.line,
            name: record.name.clone(),
            status: record.status,
            action,
        });
    }
    plan.block_count = values.block_count;
    plan.handle_count = values.handle_count;
    plan.descriptor_count = values.descriptor_count;
    plan
}

impl Plan {
    /// Returns how many agents of a kind a machine needs: the highest number in the calls, plus one.
    #[must_use]
    pub fn agents_needed(&self, kind: AgentKind) -> usize {
        let count = |agent: &AgentRef| match *agent {
            AgentRef::Numbered { kind: agent_kind, number } if agent_kind == kind => number + 1,
            _ => 0,
        };
        let of_pool = |pool: &PoolRef| match pool {
            PoolRef::Numbered { agent, .. } => count(agent),
            PoolRef::Invalid => 0,
        };
        let needed = |step: &Step| match &step.action {
            Ok(Action::Create { pool, .. } | Action::Allocate { pool, .. }) => of_pool(pool),
            Ok(Action::SetAccess { access, .. }) => {
                access.iter().map(|(agent, _)| count(agent)).max().unwrap_or(0)
            }
            Ok(Action::AllowAccess { agents, .. }) => agents.iter().map(count).max().unwrap_or(0),
            Ok(Action::GetAccess { agent, .. }) => count(agent),
            _ => 0,
        };
        self.steps.iter().map(needed).max().unwrap_or(0)
    }
}

/// The recorded values and their numbers.
struct Values<'a> {
    header: &'a Header,
    block_count: usize,
    handle_count: usize,
    descriptor_count: usize,
    /// Blocks by their address: the size and the number.
    block_at: BTreeMap<u64, (u64, usize)>,
    memory_of: HashMap<u64, usize>,
    descriptor_of: HashMap<i64, usize>,
    /// Handles of memory of other processes.
    other_process_handles: HashSet<u64>,
    /// The ranges to which memory of other processes is mapped.
    other_process_ranges: Vec<Range<u64>>,
}

impl<'a> Values<'a> {
    fn new(header: &'a Header) -> Self {
        Self {
            header,
            block_count: 0,
            handle_count: 0,
            descriptor_count: 0,
            block_at: BTreeMap::new(),
            memory_of: HashMap::new(),
            descriptor_of: HashMap::new(),
            other_process_handles: HashSet::new(),
            other_process_ranges: Vec::new(),
        }
    }

    fn agent(&self, handle: u64) -> AgentRef {
        let Some(index) = self.header.agent(handle) else { return AgentRef::Invalid };
        let kind = self.header.agents[index].kind;
        if kind == AgentKind::Other {
            return AgentRef::Invalid;
        }
        let before = &self.header.agents[..index];
        AgentRef::Numbered {
            kind,
            number: before.iter().filter(|agent| agent.kind == kind).count(),
        }
    }

    fn pool(&self, handle: u64) -> PoolRef {
        let Some((agent, number)) = self.header.pool(handle) else { return PoolRef::Invalid };
        match self.agent(self.header.agents[agent].agent) {
            AgentRef::Invalid => PoolRef::Invalid,
            agent => PoolRef::Numbered { agent, number },
        }
    }

    /// Converts an address. A successful call must use an address that a call has returned.
    fn address_ref(&self, address: u64, record: &Record) -> Result<AddressRef, Skipped> {
        if self.other_process_ranges.iter().any(|range| range.contains(&address)) {
            return Err(Skipped::OtherProcess);
        }
        match self.block_at.range(..=address).next_back() {
            Some((start, (size, block))) if address - start < *size => {
                Ok(AddressRef::Block { block: *block, offset: address - start })
            }
            _ if record.succeeded() && address != 0 => Err(Skipped::UnknownAddress),
            _ => Ok(AddressRef::Fixed(address)),
        }
    }

    fn memory(&self, handle: u64) -> Result<MemoryRef, Skipped> {
        if self.other_process_handles.contains(&handle) {
            return Err(Skipped::OtherProcess);
        }
        Ok(self
            .memory_of
            .get(&handle)
            .map_or(MemoryRef::Fixed(handle), |&at| MemoryRef::Numbered(at)))
    }

    fn new_block(&mut self, address: Option<u64>, size: u64) -> Option<usize> {
        let address = address?;
        self.block_at.insert(address, (size, self.block_count));
        self.block_count += 1;
        Some(self.block_count - 1)
    }

    fn new_memory(&mut self, handle: Option<u64>) -> Option<usize> {
        let handle = handle?;
        self.other_process_handles.remove(&handle);
        self.memory_of.insert(handle, self.handle_count);
        self.handle_count += 1;
        Some(self.handle_count - 1)
    }

    fn new_descriptor(&mut self, fd: Option<i64>) -> Option<usize> {
        self.descriptor_of.insert(fd?, self.descriptor_count);
        self.descriptor_count += 1;
        Some(self.descriptor_count - 1)
    }

    fn action(&mut self, record: &Record) -> Result<Action, Skipped> {
        Ok(match record.call {
            Call::Reserve { size, hint, alignment, flags, address } => Action::Reserve {
                block: self.new_block(address, size),
                size,
                hint,
                alignment,
                flags,
            },
            Call::Free { address, size } => {
                let at = self.address_ref(address, record)?;
                if record.succeeded() {
                    self.block_at.remove(&address);
                }
                Action::Free { at, size }
            }
            Call::Create { pool, size, kind, flags, handle } => {
                let pool = self.pool(pool);
                Action::Create { memory: self.new_memory(handle), pool, size, kind, flags }
            }
            Call::Release { handle } => Action::Release { memory: self.memory(handle)? },
            Call::Map { address, size, offset, handle, flags } => {
                let memory = self.memory(handle).inspect_err(|_| {
                    if record.succeeded() {
                        let end = address.saturating_add(size);
                        self.other_process_ranges.push(address..end);
                    }
                })?;
                Action::Map { at: self.address_ref(address, record)?, size, offset, memory, flags }
            }
            Call::Unmap { address, size } => {
                let at = self.address_ref(address, record);
                if at == Err(Skipped::OtherProcess) && record.succeeded() {
                    let end = address.saturating_add(size);
                    self.other_process_ranges
                        .retain(|range| range.end <= address || end <= range.start);
                }
                Action::Unmap { at: at?, size }
            }
            Call::SetAccess { address, size, ref access, .. } => {
                let at = self.address_ref(address, record)?;
                let access = access.iter();
                let access = access.map(|it| (self.agent(it.agent), it.permissions)).collect();
                Action::SetAccess { at, size, access }
            }
            Call::GetAccess { address, agent, permissions } => {
                let agent = self.agent(agent);
                Action::GetAccess { at: self.address_ref(address, record)?, agent, permissions }
            }
            Call::Export { handle, flags, fd } => {
                let memory = self.memory(handle)?;
                Action::Export { descriptor: self.new_descriptor(fd), memory, flags }
            }
            Call::Import { fd, handle } => match self.descriptor_of.get(&fd) {
                Some(_) if !record.succeeded() => return Err(Skipped::FailedImport),
                Some(&descriptor) => Action::Import { memory: self.new_memory(handle), descriptor },
                None => {
                    self.other_process_handles.extend(handle);
                    return Err(Skipped::OtherProcess);
                }
            },
            Call::Retain { address, handle } => {
                let at = self.address_ref(address, record)?;
                Action::Retain { memory: self.new_memory(handle), at }
            }
            Call::Properties { handle, .. } => Action::Properties { memory: self.memory(handle)? },
            Call::Allocate { pool, size, flags, address } => {
                let pool = self.pool(pool);
                Action::Allocate { block: self.new_block(address, size), pool, size, flags }
            }
            Call::FreeMemory { address } => {
                let at = self.address_ref(address, record)?;
                if record.succeeded() {
                    self.block_at.remove(&address);
                }
                Action::FreeMemory { at }
            }
            Call::AllowAccess { address, ref agents } => {
                let agents = agents.iter().map(|&agent| self.agent(agent)).collect();
                Action::AllowAccess { at: self.address_ref(address, record)?, agents }
            }
            Call::IpcCreate { address, size } => {
                Action::IpcCreate { at: self.address_ref(address, record)?, size }
            }
            Call::IpcAttach { .. } | Call::IpcDetach { .. } => return Err(Skipped::OtherProcess),
            Call::ExportMemory { address, fd, .. } => {
                // An earlier descriptor with this number was closed.
                if let Some(fd) = fd {
                    self.descriptor_of.remove(&fd);
                }
                self.address_ref(address, record)?;
                return Err(Skipped::Dmabuf);
            }
            Call::CloseDmabuf { .. } => return Err(Skipped::Dmabuf),
            Call::Copy { .. } | Call::Fill { .. } | Call::End => return Err(Skipped::MovesData),
        })
    }
}
