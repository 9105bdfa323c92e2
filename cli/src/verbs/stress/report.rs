//! What came of it all, as it is printed.

use super::measure::Leak;
use super::message::Done;
use super::scene::Scene;
use crate::screen::Screen;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// What came of a scene.
#[derive(Debug, Serialize)]
pub struct Played {
    pub scene: Scene,
    pub operations: u64,
    /// A second, of all processes together.
    pub rate: u64,
    /// The most that any process held at once of what the scene is about, in percent of its limit.
    pub fullest: Option<f64>,
    pub most: u64,
    pub expected: BTreeMap<String, u64>,
    pub unexpected: BTreeMap<String, u64>,
    pub leaks: Vec<Leak>,
    pub skipped: Option<String>,
    #[serde(skip)]
    pub no_runtime: Option<String>,
}

impl Played {
    pub fn new(scene: Scene) -> Self {
        Self {
            scene,
            operations: 0,
            rate: 0,
            fullest: None,
            most: 0,
            expected: BTreeMap::new(),
            unexpected: BTreeMap::new(),
            leaks: Vec::new(),
            skipped: None,
            no_runtime: None,
        }
    }

    pub fn wrong(&mut self, what: String) {
        *self.unexpected.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, done: Done) {
        self.operations += done.operations;
        let seconds = done.microseconds as f64 / 1e6;
        if seconds > 0.0 {
            self.rate += (done.operations as f64 / seconds) as u64;
        }
        self.most = self.most.max(done.most);
        if done.limit > 0 {
            let full = 100.0 * done.most as f64 / done.limit as f64;
            self.fullest = Some(self.fullest.unwrap_or_default().max(full));
        }
        for (to, from) in
            [(&mut self.expected, done.expected), (&mut self.unexpected, done.unexpected)]
        {
            for (error, count) in from {
                *to.entry(error).or_default() += count;
            }
        }
        self.leaks.extend(done.leaks);
        self.skipped = self.skipped.take().or(done.skipped);
    }

    pub fn is_well(&self) -> bool {
        self.unexpected.is_empty() && self.leaks.is_empty()
    }

    pub fn summary(&self) -> String {
        match &self.skipped {
            Some(why) => format!("skipped: {why}"),
            None => format!("{} operations, {} a second", self.operations, self.rate),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub interrupted: bool,
    pub scenes: Vec<Played>,
    /// Of the machine, when all processes had ended.
    pub leaks: Vec<Leak>,
}

impl Report {
    pub fn is_well(&self) -> bool {
        self.leaks.is_empty() && self.scenes.iter().all(Played::is_well)
    }

    pub fn table(&self, out: &mut Screen<'_>) -> anyhow::Result<()> {
        let head = ["scene", "operations", "a second", "fullest", "expected errors", "result"];
        let mut table = crate::table::table(&head);
        for played in &self.scenes {
            let fullest = played.fullest.map_or(String::new(), |full| format!("{full:.0} %"));
            let expected: u64 = played.expected.values().sum();
            let result = match (&played.skipped, played.is_well()) {
                (_, false) => "failed".to_owned(),
                (Some(why), true) => format!("skipped: {why}"),
                (None, true) => "well".to_owned(),
            };
            table.add_row(vec![
                played.scene.name(),
                played.operations.to_string(),
                played.rate.to_string(),
                fullest,
                expected.to_string(),
                result,
            ]);
        }
        out.table(&table)?;
        for played in &self.scenes {
            let scene = played.scene.name();
            for (error, count) in &played.unexpected {
                writeln!(out, "{scene}: unexpected, {count} times: {error}")?;
            }
            played.leaks.iter().try_for_each(|leak| leak.write(out, &scene))?;
        }
        self.leaks.iter().try_for_each(|leak| leak.write(out, "after all"))?;
        if self.interrupted {
            writeln!(out, "interrupted; what was begun has been given back and counted")?;
        }
        Ok(())
    }
}

impl Leak {
    fn write(&self, out: &mut impl Write, scene: &str) -> anyhow::Result<()> {
        let Self { what, before, after } = self;
        Ok(writeln!(out, "{scene}: leaked: {what}: {before} before, {after} after")?)
    }
}
