//! The state that must not change when an operation fails.

use crate::machine::Library;
use crate::process;
use hsa_vmm::vmm::{MappingInfo, Usage};
use hsa_vmm::{Access, Address, AgentId};

/// The ledger's state, and the state of this process.
#[derive(Debug, PartialEq)]
pub struct StateSnapshot {
    pub reservations: Vec<(Address, usize)>,
    pub mappings: Vec<MappingInfo>,
    pub usage: Usage,
    pub access: Vec<(Address, AgentId, Access)>,
    /// This process's permissions for the reservations: start, end and permissions.
    pub process: Vec<(usize, usize, String)>,
    pub descriptors: usize,
    pub quarantined: usize,
}

impl StateSnapshot {
    /// Takes a snapshot. Fails if the ledger is inconsistent, or if a reservation has a hole.
    pub fn of(Library { runtime, vmm }: &Library, context: &str) -> Self {
        vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
        let mappings = vmm.mappings();
        let mut access = Vec::new();
        for mapping in &mappings {
            let address = mapping.address;
            for agent in runtime.agents() {
                access.push((address, agent.id(), vmm.get_access(agent.id(), address).unwrap()));
            }
        }
        let reservations = vmm.reservations();
        let process = process::merged_permissions(
            reservations.iter().map(|&(start, size)| (start.get(), size)),
        );
        let process = process.unwrap_or_else(|hole| panic!("{context}: a hole at {hole:#x}"));
        Self {
            reservations,
            usage: vmm.usage(),
            access,
            process,
            descriptors: process::descriptors(),
            quarantined: vmm.quarantined_ranges().len(),
            mappings,
        }
    }

    /// Fails unless the states are equal. Compares the long lists separately first, so that the message shows only the
    /// list that differs.
    #[track_caller]
    pub fn assert_unchanged(&self, after: &Self, context: &str) {
        assert_eq!(self.reservations, after.reservations, "{context}");
        assert_eq!(self.mappings, after.mappings, "{context}");
        assert_eq!(self.access, after.access, "{context}");
        assert_eq!(self.process, after.process, "{context}");
        assert_eq!(self, after, "{context}");
    }
}
