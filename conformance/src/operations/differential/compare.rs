//! Comparison of the library's visible state with the model.

use super::{Difference, DifferentialTest, expect_equal};
use crate::case::describe_quarantined;
use crate::model::Mapping;
use hsa_vmm::vmm::Usage;
use hsa_vmm::{Access, Address, AgentId};

/// The maximum size in bytes of a mapping that is compared completely. In a larger mapping, a few bytes are compared at
/// the start, in the middle and at the end of each granule.
const MAX_COMPLETE: usize = 64 << 10;
/// The number of bytes that are compared at an edge or in the middle.
const EDGE_BYTES: usize = 64;

/// The agents that have access, and their access.
type AccessList = Vec<(AgentId, Access)>;

impl DifferentialTest {
    /// Compares the complete state with the model.
    pub(super) fn compare(&self) -> Result<(), Difference> {
        self.vmm.check().map_err(|error| Difference::RuleViolation(error.to_string()))?;
        if self.has_quarantine() {
            return Ok(());
        }
        self.compare_counts()?;
        let listed: Vec<_> =
            self.vmm.reservations().iter().map(|(base, size)| (base.get(), *size)).collect();
        expect_equal("reservations", &self.reserved(), &listed)?;
        let expected: Vec<_> =
            self.model.mappings().iter().map(|it| self.expected_entry(it)).collect();
        let listed = self.vmm.mappings().into_iter();
        let listed: Vec<_> = listed.map(|it| (it.address, it.size, it.offset, it.access)).collect();
        expect_equal("mappings", &expected, &listed)?;
        for state in self.model.handles() {
            self.properties(state.handle)?;
        }
        for mapping in self.model.mappings() {
            self.compare_access(mapping)?;
        }
        self.compare_address_space()?;
        self.compare_simulation()?;
        self.compare_page_tables()?;
        self.compare_by_cpu()
    }

    /// Compares only the numbers of objects with the model.
    pub(super) fn compare_counts(&self) -> Result<(), Difference> {
        if self.has_quarantine() {
            return Ok(());
        }
        let quarantine = self.vmm.quarantined_ranges();
        if !quarantine.is_empty() {
            return Err(Difference::RuleViolation(describe_quarantined(&quarantine)));
        }
        let (reservations, handles, mappings) = self.counts();
        expect_equal("usage", &Usage { reservations, handles, mappings }, &self.vmm.usage())
    }

    /// Returns the expected numbers of reservations, handles and mappings.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let model = &self.model;
        (model.reservations().len(), model.handles().len(), model.mappings().len())
    }

    fn expected_entry(&self, mapping: &Mapping) -> (Address, usize, usize, AccessList) {
        let ids = self.model.machine().agents.iter().map(|agent| agent.id);
        let access = ids.zip(mapping.access.iter().copied());
        let access = access.filter(|&(_, access)| access != Access::None).collect();
        (Address::new(mapping.start), mapping.size, mapping.offset, access)
    }

    /// Compares the agents' access at addresses inside and next to a mapping.
    fn compare_access(&self, mapping: &Mapping) -> Result<(), Difference> {
        let (start, end) = (mapping.start, mapping.start + mapping.size);
        for agent in &self.model.machine().agents {
            for address in [start - 1, start, start + mapping.size / 2, end - 1, end] {
                self.get_access(agent.id, address)?;
            }
        }
        Ok(())
    }

    /// Reads every mapping that this process can read, except the window, and compares the contents.
    fn compare_by_cpu(&self) -> Result<(), Difference> {
        for mapping in self.mappings_except_window() {
            if self.model.cpu_access(&mapping) >= Access::Read {
                for (address, size) in self.samples(&mapping) {
                    self.read(address, size)?;
                }
            }
        }
        Ok(())
    }

    /// Reads both edges of each mapping through each GPU with read access. Then writes both edges of each mapping
    /// through each GPU with write access. These accesses are slow: `Some(turn)` selects one read and one write, in
    /// rotation; `None` selects all.
    pub(super) fn compare_by_gpus(&self, turn: Option<usize>) -> Result<(), Difference> {
        if self.has_quarantine() {
            return Ok(());
        }
        for (agent, address) in in_turn(self.edges_with(Access::Read), turn) {
            self.read_by_gpu(agent, address, EDGE_BYTES)?;
        }
        for (agent, address) in in_turn(self.edges_with(Access::ReadWrite), turn) {
            let number = turn.unwrap_or(self.steps);
            self.write_by_gpu(agent, address, (number, EDGE_BYTES))?;
        }
        Ok(())
    }

    /// Returns the GPUs with at least this access to a mapping, and the addresses of the mapping's edges.
    fn edges_with(&self, access: Access) -> Vec<(AgentId, usize)> {
        let machine = self.model.machine();
        let mut edges = Vec::new();
        for mapping in self.mappings_except_window() {
            for gpu in machine.gpus().filter(|&gpu| mapping.access[gpu] >= access) {
                let agent = machine.agents[gpu].id;
                edges.push((agent, mapping.start));
                edges.push((agent, mapping.range().end - EDGE_BYTES));
            }
        }
        edges
    }

    /// Returns the addresses and sizes of the parts of a mapping to compare.
    fn samples(&self, mapping: &Mapping) -> Vec<(usize, usize)> {
        if mapping.size <= MAX_COMPLETE {
            return vec![(mapping.start, mapping.size)];
        }
        let granules = mapping.range().step_by(self.granule());
        let parts = |start: usize| {
            let end = start + self.granule();
            [start, start + self.granule() / 2, end - EDGE_BYTES]
        };
        granules.flat_map(parts).map(|start| (start, EDGE_BYTES)).collect()
    }
}

/// Returns the element that `turn` selects, in rotation; all elements if `turn` is `None`.
fn in_turn<T>(all: Vec<T>, turn: Option<usize>) -> Vec<T> {
    let count = all.len().max(1);
    let selected = |number| turn.is_none_or(|turn| turn % count == number);
    all.into_iter().enumerate().filter(|(number, _)| selected(*number)).map(|(_, it)| it).collect()
}
