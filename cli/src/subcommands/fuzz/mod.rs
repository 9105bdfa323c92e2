//! `hsa-vmm fuzz`: runs random sequences of operations and compares the results with those of the reference model.

pub mod arguments;
mod finding;
mod progress;
mod workers;

use crate::arguments::RunFormat;
use crate::bail_out::bail_out;
use crate::choice::{RuntimeChoice, SelectedRuntime, note_dimmed};
use crate::executor::check_start;
use crate::interrupt::Interrupt;
use crate::screen::{Screen, note};
use crate::{BadUsage, Exit, output, planned_faults, program, provenance};
use anyhow::bail;
use arguments::Fuzz;
use finding::Finding;
use hsa_vmm_conformance::describe::Driver;
use hsa_vmm_conformance::fuzz::{Generator, SequenceRuntime};
use hsa_vmm_conformance::{Ktap, KtapTest, Status};
use progress::Progress;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::thread::available_parallelism;
use workers::{Outcome, Workers};

/// The number of operations between two complete comparisons. A complete comparison takes much longer than an
/// operation.
const COMPARE_EVERY: usize = 16;
/// The maximum number of operations in a sequence.
const MAX_OPERATIONS: usize = 64;

pub fn run(args: &Fuzz) -> anyhow::Result<Exit> {
    let mut ktap = None;
    let result = run_sequences(args, &mut ktap);
    if let Err(error) = &result
        && args.format == RunFormat::Ktap
        && crate::is_no_runtime(error)
    {
        let ktap = match ktap {
            Some(ktap) => ktap,
            None => begin_ktap(args, "runtime: not loaded", None, None, &[])?,
        };
        bail_out(ktap, &crate::error_message(error))?;
    }
    result
}

/// Begins the KTAP document with the notes and a description of the run.
fn begin_ktap(
    args: &Fuzz,
    runtime: &str,
    driver: Option<Driver>,
    config: Option<&str>,
    notes: &[String],
) -> anyhow::Result<Ktap<Screen<'static>>> {
    let mut ktap = Ktap::begin(args.output.private_stream(&args.privacy)?, 1)?;
    let provenance = provenance::describe_run(driver, config, String::new());
    let description = provenance::ktap_notes(runtime, provenance, &args.privacy);
    notes.iter().chain(&description).try_for_each(|line| ktap.write_note(line))?;
    Ok(ktap)
}

/// Runs the sequences. Stores the KTAP document in `ktap` as soon as the document has begun.
fn run_sequences(args: &Fuzz, ktap: &mut Option<Ktap<Screen<'static>>>) -> anyhow::Result<Exit> {
    output::check_different(&[("--save", args.save.as_deref()), ("--output", args.output.path())])?;
    args.save.as_deref().map_or(Ok(()), output::check_writable)?;
    if args.common.runtime.choice != RuntimeChoice::Simulation {
        check_start(&args.common, args.time_limit)?;
    }
    let selected = args.common.runtime.select()?;
    let runtime_note = format!("runtime: {selected}");
    let runtime = match selected {
        SelectedRuntime::Simulation(simulated) => {
            let runtime =
                simulated.config.clone().map_or(SequenceRuntime::Any, SequenceRuntime::Simulated);
            // Start the simulation once to check its configuration.
            match &runtime {
                SequenceRuntime::Any => note_dimmed(&format!(
                    "runtime: simulations of every ROCm generation and many machines{}",
                    simulated.reason_suffix()
                )),
                _ => drop(simulated.start()?),
            }
            runtime
        }
        SelectedRuntime::Library(_) if args.faults => bail!(BadUsage(
            "--faults is for the simulation only; for faults of the emulated driver use \
             `hsa-vmm emulate --fault PLAN -- hsa-vmm fuzz`"
                .to_owned()
        )),
        SelectedRuntime::Library(_) => SequenceRuntime::Loaded,
    };
    if let SequenceRuntime::Simulated(text) = &runtime
        && args.faults
        && text.contains("faults=")
    {
        bail!(BadUsage(format!(
            "--faults generates the faults, but the simulation `{text}` has faults, too; remove one"
        )));
    }
    args.output.check_writable()?;
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let (faults, every) = (args.faults, Some(COMPARE_EVERY));
    let generator = Generator { seed, max_operations: MAX_OPERATIONS, runtime, faults, every };
    let interrupt = Interrupt::new()?;
    let processes =
        args.processes.map_or_else(|| available_parallelism().map_or(1, usize::from), usize::from);
    let plural = if processes == 1 { "" } else { "es" };
    note!("seed {seed}, {processes} process{plural}, {:?}", args.time);
    let mut progress = Progress::new(args.time, args.sequences);
    if args.format == RunFormat::Ktap {
        // Write the seed before the first sequence runs: the machine can hang.
        let seed_note = format!("seed {seed}, {processes} process{plural}, {:?}", args.time);
        let driver = provenance::driver(generator.runtime != SequenceRuntime::Loaded);
        let config = simulation_config(&generator.runtime);
        *ktap = Some(begin_ktap(args, &runtime_note, Some(driver), config, &[seed_note])?);
    }
    let mut workers = Workers::start(args, &generator, processes)?;
    let outcome = workers.watch(&mut progress, &interrupt)?;
    drop(workers);
    progress.finish();
    let finding = match outcome {
        Outcome::NoFailure => None,
        Outcome::Failed(number, failure) => {
            note!("sequence {number} has failed; shrinking it");
            let step = processes as u64;
            Some(Finding::shrink_and_save(args, &generator, step, number, failure, &interrupt)?)
        }
    };
    if interrupt.arrived() {
        note!("interrupted");
    }
    let planned = planned_faults::planned(simulation_config(&generator.runtime));
    match args.format {
        RunFormat::Json => {
            let summary = serde_json::json!({
                "seed": seed,
                "sequences": progress.sequences,
                "operations": progress.operations,
                "refused": progress.rejected,
                "seconds": progress.seconds(),
                "interrupted": interrupt.arrived(),
                "finding": finding.as_ref().map(Finding::to_json),
            });
            let driver = provenance::driver(generator.runtime != SequenceRuntime::Loaded);
            let arguments =
                ["fuzz".to_owned()].into_iter().chain(args.common.runtime.arguments_to_repeat());
            let faults_option = args.faults.then(|| "--faults".to_owned());
            let arguments =
                arguments.chain(["--seed".to_owned(), seed.to_string()]).chain(faults_option);
            let config = simulation_config(&generator.runtime);
            let provenance = provenance::describe_run(
                Some(driver),
                config,
                program::reproduce_command(arguments),
            );
            let privacy = &args.privacy;
            args.output.write(|out| provenance::write_json(out, &summary, provenance, privacy))?;
        }
        RunFormat::Ktap => {
            let status = if finding.is_none() { Status::Pass } else { Status::Fail };
            let detail = finding.as_ref().map(Finding::to_string).unwrap_or_default();
            // The seed is in a note, because the name must be the same in each run.
            let test = KtapTest { name: "fuzz", status, detail: &detail };
            if let Some(ktap) = ktap {
                if interrupt.arrived() {
                    ktap.write_note("interrupted")?;
                }
                ktap.write_result(&test)?;
                planned_faults::describe_not_happened(&planned)
                    .try_for_each(|line| ktap.write_note(&line))?;
            }
        }
        RunFormat::Table => args.output.write(|out| {
            if args.privacy.is_redacting() {
                out.clean_with(&args.privacy);
            }
            provenance::print_banner(out, &planned)?;
            if let Some(finding) = &finding {
                writeln!(out, "{finding}")?;
                if generator.runtime == SequenceRuntime::Loaded {
                    let bringup = args.common.runtime.bringup_command(false);
                    writeln!(out, "To find the first HSA call that fails: {bringup}")?;
                }
            }
            Ok(writeln!(out, "seed {seed}: {progress}")?)
        })?,
    }
    planned_faults::note_not_happened(&planned);
    match finding.map(Finding::into_save_error) {
        None => Ok(Exit::Success),
        Some(None) => Ok(Exit::Failure),
        Some(Some(error)) => Err(error),
    }
}

/// Returns the simulation's configuration. Returns `None` if sequences run on various simulations or on a library.
fn simulation_config(runtime: &SequenceRuntime) -> Option<&str> {
    match runtime {
        SequenceRuntime::Simulated(text) => Some(text),
        _ => None,
    }
}
