//! Comparison with the simulation's state.

use super::difference::same;
use super::{Difference, DifferentialTest};
use hsa_vmm::{Access, Runtime};

/// The size of a page.
const PAGE: u64 = 4096;

impl DifferentialTest {
    /// Compares the simulation's usage and its GPUs' page tables with the model.
    pub(super) fn compare_simulation(&self) -> Result<(), Difference> {
        let Some(simulation) = self.runtime.simulation() else { return Ok(()) };
        let usage = simulation.usage();
        let found = (usage.reservations, usage.handles, usage.mappings);
        same("reservations, handles and mappings in the runtime", &self.counts(), &found)?;
        for mapping in self.model.mappings() {
            for (number, agent) in self.model.world().gpus().enumerate() {
                for address in [mapping.start, mapping.start + mapping.size - 1] {
                    let page = simulation.page(number, address);
                    let must = mapping.access[agent] != Access::None;
                    let offset = (address - mapping.start) as u64;
                    let shifted = page.is_some_and(|page| page.offset / PAGE != offset / PAGE);
                    let missing = page.is_some() != must && (must || !mapping.granted[agent]);
                    if missing || shifted {
                        return Err(Difference::State {
                            what: format!("page of GPU {number} at {address:#x}"),
                            expected: if must { "mapped" } else { "not mapped" }.to_owned(),
                            found: format!("{page:?}"),
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Checks that nothing is reserved, mapped or allocated.
pub(super) fn has_nothing_in_use(runtime: &Runtime) -> Result<(), Difference> {
    let Some(simulation) = runtime.simulation() else { return Ok(()) };
    let usage = simulation.usage();
    let found = (usage.reservations, usage.handles, usage.mappings, usage.allocations);
    same("in use in the runtime", &(0, 0, 0, 0), &found)
}

/// Checks that nothing is left in the runtime, video memory included.
pub(super) fn is_empty(runtime: &Runtime) -> Result<(), Difference> {
    has_nothing_in_use(runtime)?;
    let Some(simulation) = runtime.simulation() else { return Ok(()) };
    let usage = simulation.usage();
    let used: u64 = usage.vram_used.iter().sum();
    same("video memory and descriptors in the runtime", &(0, 0), &(used, usage.descriptors))
}
