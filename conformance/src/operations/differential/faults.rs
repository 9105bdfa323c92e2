//! Planned faults: valid calls of the runtime that fail.

use super::DifferentialTest;
use hsa_vmm::Error;
use hsa_vmm::simulation::FaultPlan;
use std::cell::Cell;

impl DifferentialTest {
    /// Makes calls of the simulation fail according to a plan, which counts calls from now on. Has no
    /// effect on other runtimes.
    ///
    /// If a planned fault makes a call of the library fail, the call must have changed nothing. If the library's
    /// rollback fails, too, the [quarantine](hsa_vmm::Vmm::quarantined_ranges) lists the range, and the comparison
    /// [ends](Self::has_quarantine).
    pub fn plan_faults(&mut self, plan: FaultPlan) {
        if let Some(simulation) = self.runtime.simulation() {
            simulation.set_faults(plan);
            self.faults_seen = Some(Cell::new(simulation.failed_calls().len()));
        }
    }

    pub(super) fn end_faults(&mut self) {
        if self.faults_seen.take().is_some()
            && let Some(simulation) = self.runtime.simulation()
        {
            simulation.set_faults(FaultPlan::none());
        }
    }

    /// Returns whether planned faults have caused a quarantine. The documents do not define the state after a
    /// quarantine.
    #[must_use]
    pub fn has_quarantine(&self) -> bool {
        self.faults_seen.is_some() && !self.vmm.quarantined_ranges().is_empty()
    }

    pub(super) fn has_planned_faults(&self) -> bool {
        self.faults_seen.is_some()
    }

    /// Returns the result of a call; `None` if a planned fault made the call fail.
    pub(super) fn unless_planned_fault<T>(
        &self,
        returned: Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        let is_planned = self.take_new_fault() && returned.is_err();
        (!is_planned).then_some(returned)
    }

    /// Returns whether a planned fault has occurred since the last call of this function.
    fn take_new_fault(&self) -> bool {
        let (Some(seen), Some(simulation)) = (&self.faults_seen, self.runtime.simulation()) else {
            return false;
        };
        let now = simulation.failed_calls().len();
        seen.replace(now) < now
    }
}
