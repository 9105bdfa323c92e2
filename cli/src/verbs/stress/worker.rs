//! A process of a scene: it warms up, counts, does what the scene asks for, gives everything back,
//! and counts again. If more is there than before it does the same once more: only what grows again is a
//! leak.

use super::arguments::{Part, Stress};
use super::measure::Measure;
use super::message::{Done, Message, Progress};
use super::scene::Scene;
use super::stage::Stage;
use super::{crowded, mixed};
use fastrand::Rng;
use hsa_vmm::{Runtime, Vmm};
use hsa_vmm_conformance::worker::{Answers, begin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many descriptors a process may open in the scene that is about them: few enough to come near.
const DESCRIPTORS: u64 = 256;
/// How often it is told how far it is.
const TELLS: Duration = Duration::from_millis(250);

static STOP: AtomicBool = AtomicBool::new(false);
static NEVER: AtomicBool = AtomicBool::new(false);

/// Runs the scene in this process.
pub fn run(verb: &Stress, part: &Part) -> anyhow::Result<()> {
    let (mut orders, answers) = begin()?;
    let scene = part.scene;
    // There are no orders; when there will be none any more, it is enough.
    thread::spawn(move || {
        while let Ok(Some(serde::de::IgnoredAny)) = orders.hear() {}
        // It stays open: a descriptor less would hide one that is lost.
        std::mem::forget(orders);
        STOP.store(true, Ordering::Relaxed);
    });
    if scene == Scene::Descriptors {
        let few = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let few = rustix::process::Rlimit { current: Some(DESCRIPTORS), ..few };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few)?;
    }
    let runtime = match verb.common.runtime.open() {
        Ok(runtime) => runtime,
        Err(error) => return Ok(answers.tell(&Message::NoRuntime(format!("{error:#}")))?),
    };
    answers.tell(&Message::Started)?;
    let vmm = Vmm::open(&runtime)?;
    let done = match skipped(&runtime, scene) {
        Some(why) => Done { skipped: Some(why), ..Done::default() },
        None => perform(verb, part, &runtime, &vmm, &answers)?,
    };
    Ok(answers.tell(&Message::Done(Box::new(done)))?)
}

fn skipped(runtime: &Runtime, scene: Scene) -> Option<String> {
    if runtime.gpus().next().is_none() {
        return Some("there is no GPU".to_owned());
    }
    let large = runtime.gpus().all(|gpu| gpu.large_bar);
    (scene == Scene::Mappings && !large)
        .then(|| "no large BAR: the CPU does not map the GPUs' memory".to_owned())
}

fn perform(
    verb: &Stress,
    part: &Part,
    runtime: &Runtime,
    vmm: &Vmm,
    answers: &Answers,
) -> anyhow::Result<Done> {
    let (scene, time) = (part.scene, Duration::from_millis(part.milliseconds));
    let seed = part.seed ^ u64::from(part.number) << 48;
    // What a runtime makes once and keeps is made now, also what it makes for each thread.
    let warm = (time / 10).min(Duration::from_secs(2));
    let stage = Stage::new(runtime, vmm, scene, &STOP, warm);
    play(verb, &stage, seed ^ 0x5eed, false, answers)?;
    let (_, unexpected) = stage.errors();
    let before = Measure::now(runtime, vmm);

    let stage = Stage::new(runtime, vmm, scene, &STOP, time.saturating_sub(warm));
    let began = Instant::now();
    play(verb, &stage, seed, true, answers)?;
    let took = began.elapsed();
    let mut done = Done {
        operations: stage.operations.load(Ordering::Relaxed),
        microseconds: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        most: stage.most.load(Ordering::Relaxed),
        limit: stage.limit.load(Ordering::Relaxed),
        unexpected,
        ..Done::default()
    };
    done.add_errors(stage);
    done.leaks = before.leaks(|| Measure::now(runtime, vmm));
    // What a runtime makes late and keeps does not come again; what is lost does.
    if !done.leaks.is_empty() {
        let before = Measure::now(runtime, vmm);
        let mut again = |stop, time| -> anyhow::Result<()> {
            let stage = Stage::new(runtime, vmm, scene, stop, time);
            play(verb, &stage, seed, true, answers)?;
            done.add_errors(stage);
            Ok(())
        };
        again(&STOP, time.saturating_sub(warm))?;
        // Who wants an end has it soon, and the truth all the same.
        if STOP.load(Ordering::Relaxed) {
            again(&NEVER, warm)?;
        }
        let again = before.leaks(|| Measure::now(runtime, vmm));
        done.leaks.retain(|leak| again.iter().any(|other| other.what == leak.what));
    }
    if let Err(error) = vmm.check() {
        done.unexpected.insert(format!("the library's own books: {error}"), 1);
    }
    Ok(done)
}

impl Done {
    /// What went wrong on a stage, too.
    fn add_errors(&mut self, stage: Stage<'_>) {
        let (expected, unexpected) = stage.errors();
        for (errors, more) in [(&mut self.expected, expected), (&mut self.unexpected, unexpected)] {
            for (error, count) in more {
                *errors.entry(error).or_default() += count;
            }
        }
    }
}

/// All threads do what the scene asks for, until it is enough.
fn play(
    verb: &Stress,
    stage: &Stage<'_>,
    seed: u64,
    in_earnest: bool,
    answers: &Answers,
) -> anyhow::Result<()> {
    let threads = verb.threads;
    let plant = verb.plant.filter(|_| in_earnest);
    thread::scope(|scope| {
        let work = |number: u32| {
            let rng = Rng::with_seed(seed ^ u64::from(number) << 32);
            match stage.scene {
                Scene::Mixed => mixed::work(stage, rng, plant),
                Scene::Vram => {
                    crowded::vram(stage, rng, (threads * verb.processes) as usize);
                }
                Scene::Descriptors => crowded::descriptors(stage, rng),
                Scene::Mappings => crowded::mappings(stage, rng),
            }
        };
        // For whoever looks at the process from outside.
        let name = if in_earnest { stage.scene.name() } else { "warm up".to_owned() };
        let spawn = |number: u32| {
            let thread = thread::Builder::new().name(name.clone());
            thread.spawn_scoped(scope, move || work(number))
        };
        let playing: Vec<_> = (1..=threads).map(spawn).collect::<Result<_, _>>()?;
        let mut told = Instant::now();
        let mut gives_back = false;
        while playing.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(5));
            if told.elapsed() > TELLS || (!gives_back && !stage.goes_on()) {
                told = Instant::now();
                gives_back = !stage.goes_on();
                let progress = Progress {
                    operations: stage.operations.load(Ordering::Relaxed),
                    held: stage.held.load(Ordering::Relaxed),
                    limit: stage.limit.load(Ordering::Relaxed),
                };
                answers.tell(&match gives_back {
                    true => Message::GivesBack(progress),
                    false => Message::Progress(progress),
                })?;
            }
        }
        let died = playing.into_iter().any(|thread| thread.join().is_err());
        if died {
            stage.wrong("a thread panicked");
        }
        Ok(())
    })
}
