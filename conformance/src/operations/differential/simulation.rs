//! Comparison of the model with the simulation's usage.

use super::difference::expect_equal;
use super::{Difference, DifferentialTest};
use hsa_vmm::Runtime;

impl DifferentialTest {
    /// Compares the simulation's usage with the model.
    pub(super) fn compare_simulation(&self) -> Result<(), Difference> {
        let Some(simulation) = self.runtime.simulation() else { return Ok(()) };
        let usage = simulation.usage();
        let found = (usage.reservations, usage.handles, usage.mappings);
        expect_equal("reservations, handles and mappings in the runtime", &self.counts(), &found)
    }
}

/// Checks that nothing is reserved, mapped or allocated in the simulation.
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

/// Checks that the simulation has no objects, video memory or descriptors in use.
pub(super) fn check_empty(runtime: &Runtime) -> Result<(), Difference> {
    check_nothing_in_use(runtime)?;
    let Some(simulation) = runtime.simulation() else { return Ok(()) };
    let usage = simulation.usage();
    let used: u64 = usage.vram_used.iter().sum();
    expect_equal("video memory and descriptors in the runtime", &(0, 0), &(used, usage.descriptors))
}
