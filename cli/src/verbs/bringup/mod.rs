//! `hsa-vmm bringup`: from "the library loads" to "under load", and where it stops.
//!
//! ```text
//!   bringup ── a level ──► ascent ──────── a worker ───────► climb ── hsa ──► the runtime
//!                            │  records, before and after each call
//!                            ▼
//!                failure: the call, interface, logs, machine ──► show, JSON, reproduce
//! ```

mod arguments;
mod ascent;
mod climb;
mod failure;
mod hsa;
mod interface;
mod kernel_log;
mod level;
mod machine;
mod other_process;
mod record;
mod recorder;
mod reproduce;
mod show;

pub use arguments::{ABOUT, Bringup};

use crate::arguments::Format;
use crate::screen::Screen;
use crate::{Ending, output};
use anyhow::Context;
use ascent::{Ascent, Outcome, ascend};
use failure::Failure;
use hsa_vmm_conformance::worker::begin;
use kernel_log::KernelLog;
use level::Level;
use recorder::Recorder;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;

pub fn run(verb: &Bringup) -> anyhow::Result<Ending> {
    if let Some(level) = verb.climb {
        return inside(verb, level);
    }
    // What is not understood is said before anything is tried.
    verb.simulation()?;
    verb.program.as_deref().map_or(Ok(()), output::check)?;
    let mut log = verb.log.as_deref().map(create).transpose()?;
    let mut kernel = KernelLog::from_now();
    let mut out = Screen::stdout();
    let table = verb.format == Format::Table;
    let mut ascents: Vec<Ascent> = Vec::new();
    let mut log_written = Ok(());
    for level in Level::ALL.into_iter().filter(|level| *level <= verb.until) {
        let ascent = ascend(verb, level)?;
        if let Some(log) = &mut log {
            let written = write_log(log, &ascent).context("cannot write the log (--log)");
            // What was found out is told all the same.
            log_written = log_written.and(written);
        }
        if table {
            if ascents.is_empty() {
                name_runtime(&mut out, &ascent)?;
            }
            show::rung(&mut out, &ascent)?;
        }
        let failed = matches!(ascent.outcome, Outcome::Failed(_));
        ascents.push(ascent);
        if failed {
            break;
        }
    }
    let failed = ascents.last().filter(|ascent| matches!(ascent.outcome, Outcome::Failed(_)));
    let failure = failed.and_then(|ascent| Failure::of(ascent, &mut kernel));
    if table {
        if let (Some(ascent), Some(failure)) = (failed, &failure) {
            show::above(&mut out, ascent.level, verb.until)?;
            show::failure(&mut out, ascent.level, failure)?;
            match &verb.program {
                Some(path) => writeln!(out, "\nThe calls as a program in C: {}", path.display())?,
                None => writeln!(out, "\n--program FILE writes the calls as a program in C.")?,
            }
        }
    } else {
        serde_json::to_writer_pretty(&mut out, &report(&ascents, failure.as_ref(), verb.until))?;
        writeln!(out)?;
    }
    out.flush()?;
    if let (Some(ascent), Some(path)) = (failed, &verb.program) {
        output::keep(path, reproduce::program(ascent).as_bytes())?;
    }
    log_written?;
    Ok(match failed.map(|ascent| ascent.level) {
        None => Ending::Well,
        Some(Level::Library | Level::Runtime) => Ending::NoRuntime,
        Some(_) => Ending::Failed,
    })
}

/// In the process of a level.
fn inside(verb: &Bringup, level: Level) -> anyhow::Result<Ending> {
    let (orders, answers) = begin()?;
    let recorder = Recorder::new(answers, u8::from(verb.other_process));
    if verb.other_process {
        return climb::be_other_process(verb, &recorder, &orders);
    }
    climb::climb(verb, level, &recorder)?;
    Ok(Ending::Well)
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn name_runtime(out: &mut Screen<'_>, ascent: &Ascent) -> std::io::Result<()> {
    match &ascent.runtime {
        Some(Some(path)) => writeln!(out, "runtime: {path}\n"),
        Some(None) => writeln!(out, "runtime: simulation\n"),
        None => Ok(()),
    }
}

/// All calls, and below each what driver and runtime said during it.
fn write_log(log: &mut File, ascent: &Ascent) -> std::io::Result<()> {
    let mut text = Vec::new();
    writeln!(text, "== {} ({:?})", ascent.level.title(), ascent.took)?;
    for call in &ascent.calls {
        let (process, number) = (call.begin.number.0, call.begin.number.1);
        let took =
            call.end.as_ref().map_or(String::new(), |end| format!(" ({} us)", end.microseconds));
        writeln!(text, "{process}.{} {number:4} {}{took}", call.begin.thread, call.line())?;
        for line in ascent.driver_during(call) {
            writeln!(text, "          driver  {line}")?;
        }
        // Several threads' words cannot be told apart.
        if call.begin.thread == 0 {
            for line in ascent.said_during(call).lines() {
                writeln!(text, "          runtime {line}")?;
            }
        }
    }
    log.write_all(&text)
}

#[derive(Serialize)]
struct Report<'a> {
    /// The library's file; `null` for the simulation, or if there is none.
    runtime: Option<&'a str>,
    simulation: bool,
    levels: Vec<Rung<'a>>,
    failure: Option<&'a Failure>,
}

#[derive(Serialize)]
struct Rung<'a> {
    level: Level,
    /// `reached`, `skipped`, `failed` or `not_tried`.
    status: &'a str,
    detail: String,
    calls: usize,
    duration_us: u64,
    /// What the emulated driver was asked that the table of interfaces does not have.
    asked_besides: Vec<String>,
}

fn report<'a>(ascents: &'a [Ascent], failure: Option<&'a Failure>, until: Level) -> Report<'a> {
    let runtime = ascents.iter().find_map(|ascent| ascent.runtime.as_ref());
    let mut levels: Vec<_> = ascents.iter().map(Rung::of).collect();
    let above = Level::ALL.into_iter().filter(|level| *level <= until).skip(levels.len());
    levels.extend(above.map(|level| Rung {
        level,
        status: "not_tried",
        detail: String::new(),
        calls: 0,
        duration_us: 0,
        asked_besides: Vec::new(),
    }));
    Report {
        runtime: runtime.and_then(|path| path.as_deref()),
        simulation: runtime == Some(&None),
        levels,
        failure,
    }
}

impl Rung<'_> {
    fn of(ascent: &Ascent) -> Self {
        let (status, detail) = match &ascent.outcome {
            Outcome::Reached => ("reached", ascent.facts.last().cloned().unwrap_or_default()),
            Outcome::Skipped(why) => ("skipped", why.clone()),
            Outcome::Failed(cause) => ("failed", cause.describe(&ascent.calls)),
        };
        Self {
            level: ascent.level,
            status,
            detail,
            calls: ascent.calls.len(),
            duration_us: u64::try_from(ascent.took.as_micros()).unwrap_or(u64::MAX),
            asked_besides: asked_besides(ascent),
        }
    }
}

fn asked_besides(ascent: &Ascent) -> Vec<String> {
    let mut besides = std::collections::BTreeSet::new();
    for call in &ascent.calls {
        let table = interface::rests_on(&call.begin.call);
        for line in ascent.driver_during(call) {
            let Some(asked) = interface::asked(line) else { continue };
            if !table.iter().any(|interface| interface.logged == asked) {
                besides.insert(format!("{}: {asked}", call.begin.call));
            }
        }
    }
    besides.into_iter().collect()
}
