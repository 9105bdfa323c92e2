//! What must not change when something fails.

use crate::machine::Library;
use crate::process;
use hsa_vmm::vmm::{MappingInfo, Usage};
use hsa_vmm::{Access, Address, AgentId};

/// What the library believes, and what is so in this process.
#[derive(Debug, PartialEq)]
pub struct Books {
    pub reservations: Vec<(Address, usize)>,
    pub mappings: Vec<MappingInfo>,
    pub usage: Usage,
    pub access: Vec<(Address, AgentId, Access)>,
    /// What this process may do where.
    pub process: Vec<(usize, usize, String)>,
    pub descriptors: usize,
    pub quarantined: usize,
}

impl Books {
    pub fn of(Library { runtime, vmm }: &Library, when: &str) -> Self {
        vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
        let mappings = vmm.mappings();
        let mut rights = Vec::new();
        for mapping in &mappings {
            let here = mapping.address;
            for agent in runtime.agents() {
                rights.push((here, agent.id(), vmm.get_access(agent.id(), here).unwrap()));
            }
        }
        let mut process: Vec<(usize, usize, String)> = Vec::new();
        for (address, size) in vmm.reservations() {
            let pieces = process::permissions(address.get(), size);
            let pieces = pieces.unwrap_or_else(|hole| panic!("{when}: a hole at {hole:#x}"));
            // Whether addresses without access are shared with anybody does not matter.
            for (start, end, what) in pieces {
                match process.last_mut() {
                    Some((_, last, same)) if *last == start && what.starts_with(same.as_str()) => {
                        *last = end;
                    }
                    _ => process.push((start, end, what[..3].to_owned())),
                }
            }
        }
        Self {
            reservations: vmm.reservations(),
            usage: vmm.usage(),
            access: rights,
            process,
            descriptors: process::descriptors(),
            quarantined: vmm.quarantine().len(),
            mappings,
        }
    }

    /// Fails with no more than what is different.
    #[track_caller]
    pub fn assert_same(&self, after: &Self, when: &str) {
        assert_eq!(self.reservations, after.reservations, "{when}");
        assert_eq!(self.mappings, after.mappings, "{when}");
        assert_eq!(self.access, after.access, "{when}");
        assert_eq!(self.process, after.process, "{when}");
        assert_eq!(self, after, "{when}");
    }
}
