//! `hsa-vmm stress`: runs threads and processes near the limits of memory, descriptors
//! and mappings, and looks for leaks.
//!
//! ```text
//!   stress ── a scenario ────► several processes ── each: several threads on one Vmm
//!     │ ◄─ messages (JSON) ─── warm up, measure, run, release, measure
//!     ▼
//!   reads the GPUs' memory counters before and after
//! ```

mod arguments;
mod limits;
mod measure;
mod message;
mod mixed;
mod progress_line;
mod report;
mod scenario;
mod shared_state;
mod worker;

pub use arguments::{ABOUT, Stress};

use crate::arguments::RunFormat;
use crate::bail_out::bail_out;
use crate::choice::RuntimeChoice;
use crate::interrupt::Interrupt;
use crate::screen::{Screen, note};
use crate::{Exit, planned_faults, program, provenance};
use anyhow::Context;
use arguments::WorkerTask;
use hsa_vmm_conformance::worker::{End, Output, Received, Worker, wait_for_any};
use hsa_vmm_conformance::{Ktap, KtapTest, Status};
use measure::{Leak, memory_in_use};
use message::{Message, ProcessResult, Progress};
use progress_line::ProgressLine;
use report::{Report, ScenarioResult, leaks_text};
use scenario::Scenario;
use std::time::{Duration, Instant};

const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub fn run(args: &Stress) -> anyhow::Result<Exit> {
    if let Some(task) = &args.worker {
        worker::run(args, task)?;
        return Ok(Exit::Success);
    }
    args.output.check_writable()?;
    let interrupt = Interrupt::new()?;
    interrupt.add(signal_hook::consts::SIGHUP)?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    note!("seed: {seed} (--seed {seed} repeats the same random choices)");
    let scenarios =
        if args.scenario.is_empty() { Scenario::ALL.to_vec() } else { args.scenario.clone() };
    let time = args.time / u32::try_from(scenarios.len()).unwrap_or(u32::MAX);
    let before = memory_in_use();
    let mut report = Report {
        seed,
        interrupted: false,
        scenarios: Vec::new(),
        leaks: Vec::new(),
        command: reproduce_command(args, seed),
        bringup: String::new(),
    };
    // The document has a result for each scenario, and a last result for the memory of all GPUs.
    let begin = || {
        Ok::<_, anyhow::Error>(Ktap::begin(
            args.output.private_stream(&args.privacy)?,
            scenarios.len() + 1,
        )?)
    };
    let mut ktap = (args.format == RunFormat::Ktap).then(begin).transpose()?;
    for &scenario in &scenarios {
        if interrupt.arrived() {
            break;
        }
        let result = run_scenario(args, scenario, seed, time, &interrupt)?;
        if let Some(error) = &result.no_runtime {
            if let Some(mut ktap) = ktap.take() {
                if report.scenarios.is_empty() {
                    write_notes(&mut ktap, args, result.simulation)?;
                }
                bail_out(ktap, error)?;
            }
            anyhow::bail!(NoRuntime(error.clone()));
        }
        note!("{}: {}", scenario.name(), result.summary());
        if let Some(ktap) = &mut ktap {
            if report.scenarios.is_empty() {
                write_notes(ktap, args, result.simulation)?;
            }
            let (status, detail) = result.test_status()?;
            ktap.write_result(&KtapTest { name: &scenario.name(), status, detail: &detail })?;
        }
        report.scenarios.push(result);
    }
    report.interrupted = interrupt.arrived();
    report.leaks.extend(machine_leak(before));
    let simulation = report.scenarios.iter().find_map(|result| result.simulation);
    let options = &args.common.runtime;
    report.bringup = options.bringup_command(simulation == Some(true));
    let config = options.config_text();
    let faults = planned_faults::planned(config.as_deref());
    if let Some(ktap) = &mut ktap {
        if report.interrupted {
            ktap.write_note("interrupted")?;
        }
        for scenario in scenarios.iter().skip(report.scenarios.len()) {
            let (status, detail) = (Status::Skip, "interrupted");
            ktap.write_result(&KtapTest { name: &scenario.name(), status, detail })?;
        }
        let status = if report.leaks.is_empty() { Status::Pass } else { Status::Fail };
        let detail = leaks_text(&report.leaks, "after all scenarios")?;
        ktap.write_result(&KtapTest { name: "memory", status, detail: &detail })?;
        planned_faults::describe_not_happened(&faults)
            .try_for_each(|line| ktap.write_note(&line))?;
    }
    match args.format {
        RunFormat::Json => {
            let driver = simulation.map(provenance::driver);
            let provenance =
                provenance::describe_run(driver, config.as_deref(), report.command.clone());
            args.output
                .write(|out| provenance::write_json(out, &report, provenance, &args.privacy))?;
        }
        RunFormat::Table => {
            args.output.write(|out| {
                if args.privacy.is_redacting() {
                    out.clean_with(&args.privacy);
                }
                provenance::print_banner(out, &faults)?;
                report.write_table(out)
            })?;
        }
        RunFormat::Ktap => {}
    }
    planned_faults::note_not_happened(&faults);
    Ok(if report.has_passed() { Exit::Success } else { Exit::Failure })
}

/// Writes a description of the runtime and of the run.
fn write_notes(
    ktap: &mut Ktap<Screen<'_>>,
    args: &Stress,
    is_simulation: Option<bool>,
) -> std::io::Result<()> {
    let options = &args.common.runtime;
    let runtime = match (&options.choice, is_simulation) {
        (RuntimeChoice::Library(path), _) => path.display().to_string(),
        (_, Some(true)) => "simulation".to_owned(),
        _ => "the machine's runtime".to_owned(),
    };
    let driver = is_simulation.map(provenance::driver);
    let provenance =
        provenance::describe_run(driver, options.config_text().as_deref(), String::new());
    let notes = provenance::ktap_notes(&format!("runtime: {runtime}"), provenance, &args.privacy);
    notes.iter().try_for_each(|line| ktap.write_note(line))
}

/// Returns the command that repeats the run with the same random choices.
fn reproduce_command(args: &Stress, seed: u64) -> String {
    let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let seed = args.seed.is_none().then(|| ["--seed".to_owned(), seed.to_string()]);
    program::reproduce_command(arguments.chain(seed.into_iter().flatten()))
}

/// The error of a worker process that found no runtime.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoRuntime(String);

/// Waits until all processes together use no more GPU memory than before. After three seconds, returns a leak.
fn machine_leak(before: Option<i64>) -> Option<Leak> {
    let before = before?;
    let began = Instant::now();
    loop {
        let after = memory_in_use()?;
        if after <= before {
            return None;
        }
        if began.elapsed() > Duration::from_secs(3) {
            let what = "memory of all GPUs (driver, mem_info_vram_used; includes other programs)";
            return Some(Leak { what: what.to_owned(), before, after });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A worker process.
struct Process {
    worker: Worker,
    progress: Progress,
    /// The time of the last message that reported more operations than before.
    last_advance: Instant,
    result: Option<ProcessResult>,
    ended: bool,
}

fn run_scenario(
    args: &Stress,
    scenario: Scenario,
    seed: u64,
    time: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<ScenarioResult> {
    let mut processes = Vec::new();
    for number in 1..=args.processes {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let task = serde_json::to_string(&WorkerTask { number, scenario, milliseconds, seed })?;
        let arguments = std::env::args_os().skip(1).chain(["--worker".into(), task.into()]);
        let worker = crate::program::worker_command().and_then(|mut command| {
            command.args(arguments);
            Worker::start(command, Output::Capture)
        });
        let worker = worker.context("cannot start this program again")?;
        let progress = Progress::default();
        let last_advance = Instant::now();
        processes.push(Process { worker, progress, last_advance, result: None, ended: false });
    }
    let began = Instant::now();
    let mut result = ScenarioResult::new(scenario);
    let progress_line = ProgressLine::new(scenario, time);
    while processes.iter().any(|process| !process.ended) {
        if interrupt.arrived() {
            processes.iter().for_each(|process| process.worker.close_requests());
        }
        let running = processes.iter().filter(|process| !process.ended);
        wait_for_any(running.map(|process| &process.worker), PROGRESS_INTERVAL);
        for (process, number) in processes.iter_mut().zip(1..) {
            if !process.ended {
                process.handle_messages(&mut result, number, args.time_limit);
            }
        }
        let progress: Vec<_> = processes.iter().map(|process| process.progress).collect();
        progress_line.show(began.elapsed(), &progress);
    }
    processes.into_iter().filter_map(|process| process.result).for_each(|other| result.add(other));
    Ok(result)
}

impl Process {
    /// Handles all messages that have arrived. Kills the process if no operation has ended within
    /// the time limit.
    fn handle_messages(&mut self, result: &mut ScenarioResult, number: u32, limit: Duration) {
        loop {
            match self.worker.receive(Duration::ZERO) {
                Received::Message(Message::Started { simulation }) => {
                    result.simulation = Some(simulation);
                }
                Received::Message(Message::NoRuntime(error)) => result.no_runtime = Some(error),
                Received::Message(Message::Progress(progress) | Message::Releasing(progress)) => {
                    if progress.operations != self.progress.operations {
                        self.last_advance = Instant::now();
                    }
                    self.progress = progress;
                }
                Received::Message(Message::Done(done)) => self.result = Some(*done),
                Received::Invalid(line) => {
                    result.add_error(format!("process {number} sent an invalid message: `{line}`"))
                }
                Received::Timeout if self.last_advance.elapsed() > limit => {
                    // Several threads call the runtime, so the last call is not always the call that hangs.
                    let call = self.worker.last_call().unwrap_or_else(|| "none".to_owned());
                    self.worker.kill();
                    self.ended = true;
                    result.add_error(format!(
                        "process {number} hangs: no operation ended in {limit:?}; it was killed \
                         (--time-limit); its last call: {call}"
                    ));
                    return;
                }
                Received::Timeout => return,
                Received::Exited(end) => {
                    self.ended = true;
                    let has_reported = self.result.is_some() || result.no_runtime.is_some();
                    if end != End::Exited(0) || !has_reported {
                        // The last line of output usually names the cause.
                        let printed = self.worker.captured_output();
                        let last = printed.trim().lines().last().unwrap_or("it printed nothing");
                        result.add_error(format!("process {number}: {end}; {last}"));
                    }
                    return;
                }
            }
        }
    }
}
