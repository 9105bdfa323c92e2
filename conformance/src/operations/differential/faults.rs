//! Planned faults: valid calls of the runtime that fail.

use super::DifferentialTest;
use hsa_vmm::Error;
use hsa_vmm::simulation::FaultPlan;
use std::cell::Cell;

impl DifferentialTest {
    /// Lets calls of the simulation fail according to a plan, counted from now. Has no effect on other
    /// runtimes.
    ///
    /// The library may then return an error and must change nothing. If its rollback fails, the
    /// [quarantine](hsa_vmm::Vmm::quarantine) lists the range, and the comparison
    /// [ends](Self::has_quarantine).
    pub fn plan_faults(&mut self, plan: FaultPlan) {
        if let Some(simulation) = self.runtime.simulation() {
            simulation.set_faults(plan);
            self.failed = Some(Cell::new(simulation.failed_calls().len()));
        }
    }

    /// Ends the planned faults.
    pub(super) fn end_faults(&mut self) {
        if self.failed.take().is_some()
            && let Some(simulation) = self.runtime.simulation()
        {
            simulation.set_faults(FaultPlan::none());
        }
    }

    /// Returns whether planned faults have caused a quarantine. The documents do not define the state
    /// then.
    #[must_use]
    pub fn has_quarantine(&self) -> bool {
        self.failed.is_some() && !self.vmm.quarantine().is_empty()
    }

    pub(super) fn has_planned_faults(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns the answer to a call, unless it is an error caused by a planned fault.
    pub(super) fn unless_failed<T>(&self, returned: Result<T, Error>) -> Option<Result<T, Error>> {
        let excused = self.has_just_failed() && returned.is_err();
        (!excused).then_some(returned)
    }

    /// Returns whether a planned fault has occurred since the last call of this function.
    fn has_just_failed(&self) -> bool {
        let (Some(failed), Some(simulation)) = (&self.failed, self.runtime.simulation()) else {
            return false;
        };
        let now = simulation.failed_calls().len();
        failed.replace(now) < now
    }
}
