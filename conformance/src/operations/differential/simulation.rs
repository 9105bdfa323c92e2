//! Comparison of the model with the simulation's state.

use super::difference::expect_equal;
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
        expect_equal("reservations, handles and mappings in the runtime", &self.counts(), &found)?;
        for mapping in self.model.mappings() {
            for (number, agent) in self.model.machine().gpus().enumerate() {
                for address in [mapping.start, mapping.start + mapping.size - 1] {
                    let page = simulation.page(number, address);
                    let is_granted = mapping.access[agent] != Access::None;
                    let offset = (address - mapping.start) as u64;
                    let has_wrong_offset =
                        page.is_some_and(|page| page.offset / PAGE != offset / PAGE);
                    let is_unexpected =
                        page.is_some() != is_granted && (is_granted || !mapping.granted[agent]);
                    if is_unexpected || has_wrong_offset {
                        return Err(Difference::State {
                            what: format!("page of GPU {number} at {address:#x}"),
                            expected: if is_granted { "mapped" } else { "not mapped" }.to_owned(),
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
pub(super) fn check_nothing_in_use(runtime: &Runtime) -> Result<(), Difference> {
    let Some(simulation) = runtime.simulation() else { return Ok(()) };
    let usage = simulation.usage();
    let found = (usage.reservations, usage.handles, usage.mappings, usage.allocations);
    expect_equal(
        "reservations, handles, mappings and allocations in the runtime",
        &(0, 0, 0, 0),
        &found,
    )
}

/// Checks that the runtime has no objects, video memory or descriptors in use.
pub(super) fn check_empty(runtime: &Runtime) -> Result<(), Difference> {
    check_nothing_in_use(runtime)?;
    let Some(simulation) = runtime.simulation() else { return Ok(()) };
    let usage = simulation.usage();
    let used: u64 = usage.vram_used.iter().sum();
    expect_equal("video memory and descriptors in the runtime", &(0, 0), &(used, usage.descriptors))
}
