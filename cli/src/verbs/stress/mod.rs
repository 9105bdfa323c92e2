//! `hsa-vmm stress`: threads and processes near every limit, and whether anything is lost by it.
//!
//! ```text
//!   stress ── a scene ──► several processes ── each: several threads on one Vmm
//!      │                     │  warm up, Measure, the scene, give back, Measure
//!      ▼                     ▼
//!   the machine's counters   messages, a line each
//! ```

mod arguments;
mod bar;
mod crowded;
mod measure;
mod message;
mod mixed;
mod report;
mod scene;
mod stage;
mod worker;

pub use arguments::{ABOUT, Stress};

use crate::Ending;
use crate::arguments::Format;
use crate::screen::{Screen, note};
use anyhow::Context;
use arguments::Part;
use bar::Bar;
use hsa_vmm_conformance::worker::{End, Heard, Prints, Worker, listen};
use measure::{Leak, taken_of_machine};
use message::{Done, Message, Progress};
use report::{Played, Report};
use scene::Scene;
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
    note!("seed: {seed} (--seed {seed} makes the same choices again)");
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
        note!("{}: {}", scene.name(), played.summary());
        report.scenes.push(played);
    }
    report.interrupted = enough.load(Ordering::Relaxed);
    report.leaks.extend(of_machine(before));
    let mut out = Screen::stdout();
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
    let bar = Bar::new(scene, time);
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
        let so_far: Vec<_> = processes.iter().map(|process| process.progress).collect();
        bar.show(began.elapsed(), &so_far);
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
