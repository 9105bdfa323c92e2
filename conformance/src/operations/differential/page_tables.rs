//! Comparison of the model with GPUs' page tables.

use super::describe::Describe;
use super::{Difference, DifferentialTest};
use crate::model::Mapping;
use crate::page_table::{PageTable, PageTableEntry};
use hsa_vmm::Access;

const PAGE_BYTES: u64 = 4096;

impl DifferentialTest {
    /// Compares each GPU's page table with the model. Compares the entries of the first and the last byte of each
    /// mapping, and of the first byte of each unmapped granule. Skips a page table that cannot be read.
    pub(super) fn compare_page_tables(&self) -> Result<(), Difference> {
        for (gpu, agent) in self.model.machine().gpus().enumerate() {
            let Some(table) = PageTable::read(&self.runtime, gpu) else { continue };
            for mapping in self.model.mappings() {
                for address in [mapping.start, mapping.start + mapping.size - 1] {
                    let entry = table.entry(address);
                    if !self.is_expected(mapping, agent, address, entry) {
                        let requested = mapping.access[agent].describe();
                        let offset = mapping.offset + (address - mapping.start);
                        let expected = format!("{requested}, offset {offset:#x}");
                        return Err(unexpected_entry(gpu, address, expected, entry));
                    }
                }
            }
            for address in self.unmapped() {
                if let Some(entry) = table.entry(address) {
                    return Err(unexpected_entry(gpu, address, "no entry".to_owned(), Some(entry)));
                }
            }
        }
        Ok(())
    }

    /// Returns whether `entry` is the expected entry of an agent for an address of a mapping.
    fn is_expected(
        &self,
        mapping: &Mapping,
        agent: usize,
        address: usize,
        entry: Option<PageTableEntry>,
    ) -> bool {
        let (access, offset) = (mapping.access[agent], mapping.offset + (address - mapping.start));
        let offset_matches =
            entry.is_none_or(|entry| entry.offset / PAGE_BYTES == offset as u64 / PAGE_BYTES);
        if self.model.machine().agents[agent].enforced {
            let found = entry.map_or((false, false), |entry| (entry.readable, entry.writable));
            let expected = (access >= Access::Read, access == Access::ReadWrite);
            return found == expected && (access == Access::None || offset_matches);
        }
        // If permissions are not enforced, the page table keeps the entry when the GPU's access is set to none.
        let is_granted = access != Access::None;
        let may_exist = is_granted || mapping.granted[agent];
        offset_matches && if entry.is_some() { may_exist } else { !is_granted }
    }

    /// Returns the first address of each unmapped granule of the reservations.
    fn unmapped(&self) -> Vec<usize> {
        let mappings = self.model.mappings();
        let is_mapped = |address: &usize| mappings.iter().any(|it| it.range().contains(address));
        let reservations = self.model.reservations().iter();
        let granules = reservations.flat_map(|it| it.range().step_by(self.granule()));
        granules.filter(|address| !is_mapped(address)).collect()
    }
}

fn unexpected_entry(
    gpu: usize,
    address: usize,
    expected: String,
    found: Option<PageTableEntry>,
) -> Difference {
    let what = format!("page-table entry of GPU {gpu} at {address:#x}");
    Difference::State { what, expected, found: found.describe() }
}
