//! Comparison of everything visible of the library with the model.

use super::{Difference, DifferentialTest, same};
use crate::case::quarantined;
use crate::model::Mapped;
use hsa_vmm::vmm::Usage;
use hsa_vmm::{Access, Address, AgentId};

/// Memory up to this size is compared completely; larger memory at the edges of its granules.
const COMPARED_WHOLE: usize = 64 << 10;
/// The number of bytes compared at an edge.
const AT_EDGES: usize = 64;

impl DifferentialTest {
    /// Compares everything with the model.
    pub(super) fn compare(&self) -> Result<(), Difference> {
        self.vmm.check().map_err(|broken| Difference::Broken(broken.to_string()))?;
        if self.has_quarantine() {
            return Ok(());
        }
        self.compare_counts()?;
        let listed: Vec<_> =
            self.vmm.reservations().iter().map(|(base, size)| (base.get(), *size)).collect();
        same("reservations", &self.reserved(), &listed)?;
        let expected: Vec<_> = self.model.mappings().iter().map(|it| self.listing(it)).collect();
        let listed = self.vmm.mappings().into_iter();
        let listed: Vec<_> = listed.map(|it| (it.address, it.size, it.access)).collect();
        same("mappings", &expected, &listed)?;
        for held in self.model.handles() {
            self.properties(held.handle)?;
        }
        for mapping in self.model.mappings() {
            self.compare_access(mapping)?;
        }
        self.compare_address_space()?;
        self.compare_simulation()?;
        self.compare_by_cpu()
    }

    /// Compares only the numbers of objects with the model.
    pub(super) fn compare_counts(&self) -> Result<(), Difference> {
        if self.has_quarantine() {
            return Ok(());
        }
        let quarantine = self.vmm.quarantine();
        if !quarantine.is_empty() {
            return Err(Difference::Broken(quarantined(&quarantine)));
        }
        let (reservations, handles, mappings) = self.counts();
        same("usage", &Usage { reservations, handles, mappings }, &self.vmm.usage())
    }

    /// Returns the expected numbers of reservations, handles and mappings.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let model = &self.model;
        (model.reservations().len(), model.handles().len(), model.mappings().len())
    }

    fn listing(&self, mapping: &Mapped) -> (Address, usize, Vec<(AgentId, Access)>) {
        let ids = self.model.world().agents.iter().map(|agent| agent.id);
        let access = ids.zip(mapping.access.iter().copied());
        let access = access.filter(|&(_, access)| access != Access::None).collect();
        (Address::new(mapping.start), mapping.size, access)
    }

    /// Queries access inside a mapping and next to it.
    fn compare_access(&self, mapping: &Mapped) -> Result<(), Difference> {
        let (start, end) = (mapping.start, mapping.start + mapping.size);
        for agent in &self.model.world().agents {
            for address in [start - 1, start, start + mapping.size / 2, end - 1, end] {
                self.get_access(agent.id, address)?;
            }
        }
        Ok(())
    }

    /// Reads every mapping that this process can read.
    fn compare_by_cpu(&self) -> Result<(), Difference> {
        for mapping in self.open_mappings() {
            if self.model.cpu_access(&mapping) >= Access::Read {
                for (address, size) in self.samples(&mapping) {
                    self.read(address, size)?;
                }
            }
        }
        Ok(())
    }

    /// Reads mappings through the GPUs that can read them. Each read is slow: with a turn, makes only one
    /// of them; without, all.
    pub(super) fn compare_by_gpus(&self, turn: Option<usize>) -> Result<(), Difference> {
        let Some(window) = self.window.filter(|_| !self.has_quarantine()) else { return Ok(()) };
        let world = self.model.world();
        let reads: Vec<_> = self
            .open_mappings()
            .iter()
            .flat_map(|mapping| {
                let readers = world.gpus().filter(|&gpu| mapping.access[gpu] >= Access::Read);
                readers
                    .flat_map(|gpu| {
                        let edges = [mapping.start, mapping.range().end - AT_EDGES];
                        edges.map(|address| (world.agents[gpu].id, address))
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        let chosen = turn.map(|turn| turn % reads.len().max(1));
        for (number, (agent, address)) in reads.into_iter().enumerate() {
            if chosen.is_none_or(|chosen| chosen == number) {
                self.read_by_gpu(&window, agent, address, AT_EDGES)?;
            }
        }
        Ok(())
    }

    /// Returns the parts of a mapping to compare.
    fn samples(&self, mapping: &Mapped) -> Vec<(usize, usize)> {
        if mapping.size <= COMPARED_WHOLE {
            return vec![(mapping.start, mapping.size)];
        }
        let granules = mapping.range().step_by(self.granule());
        let ends = |start: usize| {
            let end = start + self.granule();
            [start, start + self.granule() / 2, end - AT_EDGES]
        };
        granules.flat_map(ends).map(|start| (start, AT_EDGES)).collect()
    }
}
