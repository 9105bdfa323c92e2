//! The results of the scenarios, as a table and as JSON.

use super::measure::Leak;
use super::message::ProcessResult;
use super::scenario::Scenario;
use crate::screen::Screen;
use hsa_vmm_conformance::Status;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Debug, Serialize)]
pub struct ScenarioResult {
    #[serde(rename = "scene")]
    pub scenario: Scenario,
    pub operations: u64,
    /// Operations per second of all processes together.
    pub rate: u64,
    /// The largest amount of the scenario's resource that one process held at a time, in percent of the limit.
    pub fullest: Option<f64>,
    /// The largest amount of the scenario's resource that one process held at a time.
    pub most: u64,
    pub expected: BTreeMap<String, u64>,
    pub unexpected: BTreeMap<String, u64>,
    pub leaks: Vec<Leak>,
    pub skipped: Option<String>,
    /// Whether the runtime is a simulation, once it has started.
    #[serde(skip)]
    pub simulation: Option<bool>,
    #[serde(skip)]
    pub no_runtime: Option<String>,
}

impl ScenarioResult {
    pub fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            operations: 0,
            rate: 0,
            fullest: None,
            most: 0,
            expected: BTreeMap::new(),
            unexpected: BTreeMap::new(),
            leaks: Vec::new(),
            skipped: None,
            simulation: None,
            no_runtime: None,
        }
    }

    pub fn add_error(&mut self, what: String) {
        *self.unexpected.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, result: ProcessResult) {
        self.operations += result.operations;
        let seconds = result.microseconds as f64 / 1e6;
        if seconds > 0.0 {
            self.rate += (result.operations as f64 / seconds) as u64;
        }
        self.most = self.most.max(result.most);
        if result.limit > 0 {
            let full = 100.0 * result.most as f64 / result.limit as f64;
            self.fullest = Some(self.fullest.unwrap_or_default().max(full));
        }
        for (to, from) in
            [(&mut self.expected, result.expected), (&mut self.unexpected, result.unexpected)]
        {
            for (error, count) in from {
                *to.entry(error).or_default() += count;
            }
        }
        self.leaks.extend(result.leaks);
        self.skipped = self.skipped.take().or(result.skipped);
    }

    pub fn has_passed(&self) -> bool {
        self.unexpected.is_empty() && self.leaks.is_empty()
    }

    /// Writes a line for each unexpected error and each leak.
    fn write_failures(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let scenario = self.scenario.name();
        for (error, count) in &self.unexpected {
            writeln!(out, "{scenario}: unexpected, {count} times: {error}")?;
        }
        self.leaks.iter().try_for_each(|leak| leak.write(out, &scenario))
    }

    /// Returns the scenario's test status, with the reason if the scenario failed or was skipped.
    pub fn test_status(&self) -> anyhow::Result<(Status, String)> {
        let mut text = Vec::new();
        self.write_failures(&mut text)?;
        Ok(match (&self.skipped, self.has_passed()) {
            (_, false) => (Status::Fail, String::from_utf8_lossy(&text).into_owned()),
            (Some(why), true) => (Status::Skip, why.clone()),
            (None, true) => (Status::Pass, String::new()),
        })
    }

    pub fn summary(&self) -> String {
        match &self.skipped {
            Some(why) => format!("skipped: {why}"),
            None => format!("{} operations, {} a second", self.operations, self.rate),
        }
    }
}

/// The report of all scenarios.
#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub interrupted: bool,
    #[serde(rename = "scenes")]
    pub scenarios: Vec<ScenarioResult>,
    /// Leaks on the machine after all processes have ended.
    pub leaks: Vec<Leak>,
    /// The command that repeats the run with the same random choices.
    #[serde(skip)]
    pub command: String,
    /// The command to try next after a failure.
    #[serde(skip)]
    pub bringup: String,
}

impl Report {
    pub fn has_passed(&self) -> bool {
        self.leaks.is_empty() && self.scenarios.iter().all(ScenarioResult::has_passed)
    }

    pub fn write_table(&self, out: &mut Screen<'_>) -> anyhow::Result<()> {
        let head = ["scenario", "operations", "a second", "fullest", "expected errors", "result"];
        let mut table = crate::table::table(&head);
        for result in &self.scenarios {
            let fullest = result.fullest.map_or(String::new(), |full| format!("{full:.0} %"));
            let expected: u64 = result.expected.values().sum();
            let outcome = match (&result.skipped, result.has_passed()) {
                (_, false) => "failed".to_owned(),
                (Some(why), true) => format!("skipped: {why}"),
                (None, true) => "ok".to_owned(),
            };
            table.add_row(vec![
                result.scenario.name(),
                result.operations.to_string(),
                result.rate.to_string(),
                fullest,
                expected.to_string(),
                outcome,
            ]);
        }
        out.write_table(&table)?;
        for result in &self.scenarios {
            result.write_failures(out)?;
        }
        self.leaks.iter().try_for_each(|leak| leak.write(out, "after all scenarios"))?;
        if !self.has_passed() {
            writeln!(out, "reproduce: {}", self.command)?;
            writeln!(out, "To find the first HSA call that fails: {}", self.bringup)?;
        }
        if self.interrupted {
            let released =
                if self.has_passed() { "; all resources were released and counted" } else { "" };
            writeln!(out, "interrupted{released}")?;
        }
        Ok(())
    }
}

/// Returns a line for each leak. `prefix` is the start of each line.
pub fn leaks_text(leaks: &[Leak], prefix: &str) -> anyhow::Result<String> {
    let mut text = Vec::new();
    leaks.iter().try_for_each(|leak| leak.write(&mut text, prefix))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl Leak {
    fn write(&self, out: &mut impl Write, prefix: &str) -> anyhow::Result<()> {
        let Self { what, before, after } = self;
        Ok(writeln!(out, "{prefix}: leaked: {what}: {before} before, {after} after")?)
    }
}
