//! Stores the results of a run in a file, so that `--resume` can continue an interrupted run.
//!
//! With `--output FILE`, each result is appended to `FILE.partial` and written to the disk before the next
//! case begins. When FILE is complete, `FILE.partial` is removed.

use super::Conform;
use crate::output::{self, Output};
use crate::{BadUsage, provenance};
use anyhow::{Context, bail};
use hsa_vmm_conformance::describe::Description;
use hsa_vmm_conformance::{Case, CaseReport, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// If the run has ended this number of times during the same case, the case counts as failed.
const ATTEMPTS: usize = 2;

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first line: the cases of the run.
    Selected(Vec<String>),
    /// The second line: the options of the runtime and of the cases, and the environment variables that select or
    /// change the runtime.
    Settings(Vec<String>),
    /// The runtime has started: facts that identify the runtime and its agents.
    Started(Vec<String>),
    /// A case is about to run.
    Begin(String),
    /// A case has ended.
    Ended(Box<CaseReport>),
    /// The user has ended the run while this case ran.
    Interrupted(String),
}

/// The file with the results of an unfinished run.
pub struct PartialFile {
    path: PathBuf,
    file: File,
    /// The facts about the runtime of the interrupted run, if recorded.
    started: Option<Vec<String>>,
    /// The case that runs.
    running: Option<String>,
}

impl PartialFile {
    /// Creates the file, or opens the file of an interrupted run. Returns the file and the results that it
    /// contains. `None` if the results go to standard output, a device or a pipe.
    pub fn open(
        output: &Output,
        resume: bool,
        cases: &[&'static Case],
        settings: Vec<String>,
    ) -> anyhow::Result<Option<(Self, Vec<CaseReport>)>> {
        let Some(path) = output.partial_path() else { return Ok(None) };
        let failed = |cause| output::record_failure(path.display(), &cause);
        // A missing file is not an error, so that scripts can always pass --resume. The file is empty if the run ended
        // before it wrote the first line.
        let existing = if resume { open_existing(&path).map_err(failed)? } else { None };
        let existing = existing.filter(|file| file.metadata().map_or(true, |it| it.len() > 0));
        let is_resumed = existing.is_some();
        let (file, earlier) = match existing {
            Some(file) => {
                let earlier = read_results(&path, &file, cases, &settings)?;
                // Remove an incomplete last line.
                file.set_len(earlier.length).map_err(failed)?;
                (file, earlier)
            }
            None => (replace(&path).map_err(failed)?, Earlier::default()),
        };
        let Earlier { finished, started, .. } = earlier;
        let partial = Self { path, file, started, running: None };
        if !is_resumed {
            let names = cases.iter().map(|case| case.name.to_owned()).collect();
            partial.append(&Line::Selected(names))?;
            partial.append(&Line::Settings(settings))?;
        }
        Ok(Some((partial, finished)))
    }

    /// Records the runtime and its agents. Fails if the interrupted run had others.
    pub fn start(&self, description: &Description) -> anyhow::Result<()> {
        let facts = runtime_facts(description);
        match &self.started {
            Some(earlier) => check_settings(&self.path, earlier, &facts),
            None => self.append(&Line::Started(facts)),
        }
    }

    /// Records that a case is about to run.
    pub fn begin(&mut self, case: &str) -> anyhow::Result<()> {
        self.running = Some(case.to_owned());
        self.append(&Line::Begin(case.to_owned()))
    }

    /// Records that the user has ended the run. The case that was running then does not count as one that ended the
    /// run.
    pub fn interrupt(&mut self) -> anyhow::Result<()> {
        self.running.take().map_or(Ok(()), |case| self.append(&Line::Interrupted(case)))
    }

    /// Writes the result of a case to the disk.
    pub fn end(&mut self, case: &CaseReport) -> anyhow::Result<()> {
        self.running = None;
        self.append(&Line::Ended(Box::new(case.clone())))
    }

    /// Removes the file. Call this after the complete results are written.
    pub fn remove(self) {
        // Ignore errors: the next run replaces the file.
        let _ = fs::remove_file(self.path);
    }

    fn append(&self, line: &Line) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let written = (&self.file).write_all(&text).and_then(|()| self.file.sync_data());
        Ok(written.map_err(|cause| output::record_failure(self.path.display(), &cause))?)
    }
}

/// Returns the settings that the runs of `--resume` must share: options, variables that select or change the runtime,
/// the options of `emulate` or `vm`, and the kernel.
pub fn settings(args: &Conform) -> Vec<String> {
    let variables = provenance::runtime_variables().chain(provenance::outer_command());
    let variables = variables.map(|(name, value)| format!("{name}={value}"));
    let kernel = format!("kernel {}", provenance::kernel());
    args.arguments_to_repeat().into_iter().chain(variables).chain([kernel]).collect()
}

/// Returns the facts about the runtime that the runs of `--resume` must share.
fn runtime_facts(Description { runtime, agents }: &Description) -> Vec<String> {
    let path = runtime.path.as_ref().map(|path| path.display().to_string());
    let build = runtime.build.as_deref().unwrap_or("unknown");
    let agents: Vec<_> = agents.iter().map(|agent| agent.name.as_str()).collect();
    vec![
        format!("runtime {}", path.as_ref().unwrap_or(&runtime.name)),
        format!("extension {}", runtime.extension),
        format!("build {build}"),
        format!("agents {}", agents.join(", ")),
    ]
}

/// Opens the file of an interrupted run. Returns `None` if the file does not exist. Rejects links, FIFOs and files of
/// other users, because another user can have created these.
fn open_existing(path: &Path) -> io::Result<Option<File>> {
    match hsa_sys::open_regular(path, File::options().read(true).append(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Creates the file. Removes an existing file or link first, and never opens it.
fn replace(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

/// The contents of an interrupted run's file.
#[derive(Default)]
struct Earlier {
    finished: Vec<CaseReport>,
    started: Option<Vec<String>>,
    /// The length of the complete lines in bytes: if the computer stopped, the last line can be incomplete.
    length: u64,
}

/// Reads the results of an interrupted run.
fn read_results(
    path: &Path,
    mut file: &File,
    cases: &[&'static Case],
    settings: &[String],
) -> anyhow::Result<Earlier> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    let mut length = 0;
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n').map_while(|line| {
        let parsed = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        length += line.len() as u64;
        Some(parsed)
    });
    let Some(Line::Selected(names)) = lines.next() else {
        let path = path.display();
        bail!(BadUsage(format!("{path} is not a file that `hsa-vmm conform --output` wrote")));
    };
    if !names.iter().eq(cases.iter().map(|case| case.name)) {
        bail!(BadUsage(format!(
            "{} has the results of other cases; give the same --filter and --shard as before",
            path.display()
        )));
    }
    let mut begun = BTreeMap::<_, usize>::new();
    let (mut finished, mut started) = (Vec::new(), None);
    for line in lines {
        match line {
            Line::Selected(_) => {}
            Line::Settings(earlier) => check_settings(path, &earlier, settings)?,
            Line::Started(facts) => started = Some(facts),
            Line::Interrupted(name) => {
                begun.entry(name).and_modify(|times| *times = times.saturating_sub(1));
            }
            Line::Begin(name) => *begun.entry(name).or_default() += 1,
            Line::Ended(report) => {
                begun.remove(&report.name);
                finished.push(*report);
            }
        }
    }
    let lost = begun.into_iter().filter(|(_, times)| *times >= ATTEMPTS);
    let lost = lost
        .filter_map(|(name, times)| Some((cases.iter().find(|case| case.name == name)?, times)));
    finished.extend(lost.map(|(case, times)| {
        let detail = format!("the run ended {times} times while this case ran");
        CaseReport { detail, ..CaseReport::new(case.name, case.source, Status::Fail) }
    }));
    Ok(Earlier { finished, started, length })
}

/// Fails if a run had other settings than this run. The error contains the settings that only one of the runs has.
fn check_settings(path: &Path, earlier: &[String], now: &[String]) -> anyhow::Result<()> {
    if earlier == now {
        return Ok(());
    }
    let only_in = |these: &[String], others: &[String]| {
        let only: Vec<_> = these.iter().filter(|it| !others.contains(it)).collect();
        only.iter().map(|setting| format!(" `{setting}`")).collect::<String>()
    };
    let sides = [
        ("only that run had", only_in(earlier, now)),
        ("only this run has", only_in(now, earlier)),
    ];
    let sides = sides.iter().filter(|(_, only)| !only.is_empty());
    let sides: Vec<_> = sides.map(|(side, only)| format!("{side}{only}")).collect();
    bail!(BadUsage(format!(
        "{} has the results of a run with other settings: {}; give the same options and variables, or run without \
         --resume",
        path.display(),
        sides.join(", "),
    )))
}
