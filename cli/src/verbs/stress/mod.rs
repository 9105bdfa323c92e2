//! `hsa-vmm stress`: threads and processes near every limit, and whether anything is lost by it.
//!
//! ```text
//!   stress ── a scene ──► several processes ── each: several threads on one Vmm
//!      │                     │  warm up, Measure, the scene, give back, Measure
//!      ▼                     ▼
//!   the machine's counters   messages, a line each
//! ```

mod arguments;
mod crowded;
mod measure;
mod message;
mod mixed;
mod scene;
mod stage;
mod worker;

pub use arguments::{ABOUT, Stress};

use crate::arguments::Format;
use crate::progress::Steps;
use crate::{Ending, verbs};
use anyhow::Context;
use arguments::Part;
use hsa_vmm_conformance::worker::{End, Heard, Prints, Worker, listen};
use measure::{Leak, taken_of_machine};
use message::{Done, Message, Progress};
use scene::Scene;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process may take to give back what it holds, and to count, beyond its time.
const GIVES_BACK: Duration = Duration::from_secs(120);
/// How often it is shown how far they are.
const SHOWS: Duration = Duration::from_millis(100);

pub fn run(verb: &Stress) -> anyhow::Result<Ending> {
    if let Some(part) = &verb.worker {
        worker::run(verb, part)?;
        return Ok(Ending::Well);
    }
    let enough = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        // The second time it ends this process at once, and the others with it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, enough.clone())?;
        signal_hook::flag::register(signal, enough.clone())?;
    }
    let seed = verb.seed.unwrap_or_else(|| fastrand::u64(..));
    anstream::eprintln!("seed: {seed} (--seed {seed} makes the same choices again)");
    let scenes = if verb.scene.is_empty() { Scene::ALL.to_vec() } else { verb.scene.clone() };
    let share = verb.time / u32::try_from(scenes.len()).unwrap_or(u32::MAX);
    let before = taken_of_machine();
    let mut report = Report { seed, interrupted: false, scenes: Vec::new(), leaks: Vec::new() };
    for scene in scenes {
        if enough.load(Ordering::Relaxed) {
            break;
        }
        let played = play(verb, scene, seed, share, &enough)?;
        if let Some(error) = &played.no_runtime {
            anyhow::bail!(NoRuntime(error.clone()));
        }
        anstream::eprintln!("{}: {}", scene.name(), played.summary());
        report.scenes.push(played);
    }
    report.interrupted = enough.load(Ordering::Relaxed);
    report.leaks.extend(of_machine(before));
    let mut out = anstream::stdout().lock();
    match verb.format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        Format::Table => report.table(&mut out)?,
    }
    Ok(if report.is_well() { Ending::Well } else { Ending::Failed })
}

/// What a process said that found no runtime; it is told as it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoRuntime(String);

/// What all programs together hold of the GPUs' memory more than before, after a while.
fn of_machine(before: Option<i64>) -> Option<Leak> {
    let before = before?;
    let began = Instant::now();
    loop {
        let after = taken_of_machine()?;
        if after <= before {
            return None;
        }
        if began.elapsed() > Duration::from_secs(3) {
            let what = "memory of all GPUs (driver, mem_info_vram_used; also other programs')";
            return Some(Leak { what: what.to_owned(), before, after });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One of a scene's processes, as seen from here.
struct Process {
    worker: Worker,
    progress: Progress,
    done: Option<Done>,
    ended: bool,
}

fn play(
    verb: &Stress,
    scene: Scene,
    seed: u64,
    time: Duration,
    enough: &AtomicBool,
) -> anyhow::Result<Played> {
    let mut processes = Vec::new();
    for number in 1..=verb.processes {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let part = serde_json::to_string(&Part { number, scene, milliseconds, seed })?;
        let arguments = std::env::args_os().skip(1).chain(["--worker".into(), part.into()]);
        let worker = hsa_rocr::again().and_then(|mut command| {
            command.args(arguments);
            Worker::start(command, Prints::Kept)
        });
        let worker = worker.context("cannot start this program again")?;
        let progress = Progress::default();
        processes.push(Process { worker, progress, done: None, ended: false });
    }
    let began = Instant::now();
    let mut played = Played::new(scene);
    let steps = Bar::new(scene, time);
    while processes.iter().any(|process| !process.ended) {
        if enough.load(Ordering::Relaxed) {
            processes.iter().for_each(|process| process.worker.enough());
        }
        let working = processes.iter().filter(|process| !process.ended);
        listen(working.map(|process| &process.worker), SHOWS);
        let late = began.elapsed() > time + GIVES_BACK;
        for (process, number) in processes.iter_mut().zip(1..) {
            if !process.ended {
                process.hear(&mut played, number, late);
            }
        }
        steps.show(began.elapsed(), &processes);
    }
    processes.into_iter().filter_map(|process| process.done).for_each(|done| played.add(done));
    Ok(played)
}

impl Process {
    /// Hears what it has said since; one that is late is ended.
    fn hear(&mut self, played: &mut Played, number: u32, late: bool) {
        loop {
            match self.worker.hear(Duration::ZERO) {
                Heard::Answer(Message::Started) => {}
                Heard::Answer(Message::NoRuntime(error)) => played.no_runtime = Some(error),
                Heard::Answer(Message::Progress(progress) | Message::GivesBack(progress)) => {
                    self.progress = progress;
                }
                Heard::Answer(Message::Done(done)) => self.done = Some(*done),
                Heard::Garbage(line) => played.wrong(format!("process {number} said `{line}`")),
                Heard::Late if late => {
                    self.worker.stop();
                    self.ended = true;
                    played.wrong(format!("process {number} hangs; it was ended"));
                    return;
                }
                Heard::Late => return,
                Heard::Ended(end) => {
                    self.ended = true;
                    let has_told = self.done.is_some() || played.no_runtime.is_some();
                    if end != End::Exited(0) || !has_told {
                        // A line that says what it died of is worth more than its number.
                        let printed = self.worker.printed();
                        let last = printed.trim().lines().last().unwrap_or("it said nothing");
                        played.wrong(format!("process {number}: {end}; {last}"));
                    }
                    return;
                }
            }
        }
    }
}

/// What came of a scene.
#[derive(Debug, Serialize)]
struct Played {
    scene: Scene,
    operations: u64,
    /// A second, of all processes together.
    rate: u64,
    /// The most that any process held at once of what the scene is about, in percent of its limit.
    fullest: Option<f64>,
    most: u64,
    expected: BTreeMap<String, u64>,
    unexpected: BTreeMap<String, u64>,
    leaks: Vec<Leak>,
    skipped: Option<String>,
    #[serde(skip)]
    no_runtime: Option<String>,
}

impl Played {
    fn new(scene: Scene) -> Self {
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

    fn wrong(&mut self, what: String) {
        *self.unexpected.entry(what).or_default() += 1;
    }

    fn add(&mut self, done: Done) {
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

    fn is_well(&self) -> bool {
        self.unexpected.is_empty() && self.leaks.is_empty()
    }

    fn summary(&self) -> String {
        match &self.skipped {
            Some(why) => format!("skipped: {why}"),
            None => format!("{} operations, {} a second", self.operations, self.rate),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    interrupted: bool,
    scenes: Vec<Played>,
    /// Of the machine, when all processes had ended.
    leaks: Vec<Leak>,
}

impl Report {
    fn is_well(&self) -> bool {
        self.leaks.is_empty() && self.scenes.iter().all(Played::is_well)
    }

    fn table(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let head = ["scene", "operations", "a second", "fullest", "expected errors", "result"];
        let mut table = verbs::table(&head);
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
        writeln!(out, "{table}")?;
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

/// What is going on: a line that changes, on a terminal.
struct Bar {
    steps: Option<Steps>,
    scene: String,
    time: Duration,
}

impl Bar {
    fn new(scene: Scene, time: Duration) -> Self {
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        Self { steps: terminal.then(Steps::new), scene: scene.name(), time }
    }

    fn show(&self, elapsed: Duration, processes: &[Process]) {
        let Some(steps) = &self.steps else { return };
        let operations: u64 = processes.iter().map(|process| process.progress.operations).sum();
        let rate = operations as f64 / elapsed.as_secs_f64().max(0.001);
        let full = processes.iter().map(|process| process.progress);
        let full = full.filter(|progress| progress.limit > 0);
        let full = full.map(|progress| 100.0 * progress.held as f64 / progress.limit as f64);
        let full = full.fold(None, |most: Option<f64>, one| Some(most.unwrap_or(0.0).max(one)));
        let full = full.map_or(String::new(), |full| format!(", {full:.0} % full"));
        steps.next(&format!(
            "{:12} {:.0} of {:.0} s, {operations} operations, {rate:.0} a second{full}",
            self.scene,
            elapsed.as_secs_f64(),
            self.time.as_secs_f64()
        ));
    }
}
