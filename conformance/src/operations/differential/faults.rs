//! Calls of the runtime that fail although nothing is wrong with them.

use super::DifferentialTest;
use hsa_vmm::Error;
use hsa_vmm::simulation::FaultPlan;
use std::cell::Cell;

impl DifferentialTest {
    /// Has calls of the runtime fail from now on, counted from now, where it is the simulation;
    /// elsewhere nothing is planned.
    ///
    /// The library may answer an error then, and nothing may have changed. If it could not undo
    /// what it had begun, the [quarantine](hsa_vmm::Vmm::quarantine) says so, and
    /// [nothing else](Self::has_quarantine) is expected of it.
    pub fn plan_faults(&mut self, plan: FaultPlan) {
        if let Some(simulation) = self.runtime.simulation() {
            simulation.set_faults(plan);
            self.failed = Some(Cell::new(simulation.failed_calls().len()));
        }
    }

    /// No call fails any more.
    pub(super) fn end_faults(&mut self) {
        if self.failed.take().is_some()
            && let Some(simulation) = self.runtime.simulation()
        {
            simulation.set_faults(FaultPlan::none());
        }
    }

    /// Whether planned faults have left something in the quarantine: what there is now is no longer
    /// what the documents say.
    #[must_use]
    pub fn has_quarantine(&self) -> bool {
        self.failed.is_some() && !self.vmm.quarantine().is_empty()
    }

    pub(super) fn has_planned_faults(&self) -> bool {
        self.failed.is_some()
    }

    /// The answer to a call, unless it is an error that a planned fault excuses.
    pub(super) fn unless_failed<T>(&self, answered: Result<T, Error>) -> Option<Result<T, Error>> {
        let excused = self.has_just_failed() && answered.is_err();
        (!excused).then_some(answered)
    }

    /// Whether a planned fault was met since this was asked last.
    fn has_just_failed(&self) -> bool {
        let (Some(failed), Some(simulation)) = (&self.failed, self.runtime.simulation()) else {
            return false;
        };
        let now = simulation.failed_calls().len();
        failed.replace(now) < now
    }
}
