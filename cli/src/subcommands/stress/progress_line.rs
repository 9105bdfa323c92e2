//! The progress line on a terminal.

use super::message::Progress;
use super::scenario::Scenario;
use crate::progress::Steps;
use std::time::Duration;

/// Shows the progress of a scenario in one line. The line is visible only if standard error is a terminal.
pub struct ProgressLine {
    steps: Option<Steps>,
    scenario: String,
    time: Duration,
}

impl ProgressLine {
    pub fn new(scenario: Scenario, time: Duration) -> Self {
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        Self { steps: terminal.then(Steps::new), scenario: scenario.name(), time }
    }

    pub fn show(&self, elapsed: Duration, processes: &[Progress]) {
        let Some(steps) = &self.steps else { return };
        let operations: u64 = processes.iter().map(|progress| progress.operations).sum();
        let rate = operations as f64 / elapsed.as_secs_f64().max(0.001);
        let limited = processes.iter().filter(|progress| progress.limit > 0);
        let percents = limited.map(|progress| 100.0 * progress.held as f64 / progress.limit as f64);
        let fullest =
            percents.fold(None, |max: Option<f64>, percent| Some(max.unwrap_or(0.0).max(percent)));
        let suffix = fullest.map_or(String::new(), |full| format!(", {full:.0} % full"));
        steps.begin(&format!(
            "{:12} {:.0} of {:.0} s, {operations} operations, {rate:.0} a second{suffix}",
            self.scenario,
            elapsed.as_secs_f64(),
            self.time.as_secs_f64()
        ));
    }
}
