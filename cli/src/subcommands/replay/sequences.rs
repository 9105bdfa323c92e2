//! Repeats failing sequences that `hsa-vmm fuzz` has saved.

use super::Replay;
use crate::arguments::Format;
use crate::choice::{RuntimeChoice, note_dimmed};
use crate::executor::Executor;
use crate::interrupt::Interrupt;
use crate::{BadUsage, Exit};
use hsa_vmm_conformance::fuzz::Sequence;
use std::io::Write;
use std::time::Duration;

/// The time limit of an operation. An operation that exceeds the limit counts as hung.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The maximum number of tries to repeat a failure on a loaded library. The failure can depend on addresses,
/// which differ from process to process.
const MAX_TRIES: u32 = 16;

/// Runs sequences one after another in a worker process. If a recorded failure does not occur on a loaded library,
/// tries again in new processes.
pub fn run(args: &Replay, mut sequences: Vec<Sequence>) -> anyhow::Result<Exit> {
    for sequence in &mut sequences {
        args.common.runtime.override_machine(sequence);
        sequence.check().map_err(|cause| BadUsage(cause.to_string()))?;
    }
    let mut executor = Executor::new(&args.common, TIME_LIMIT, Interrupt::default());
    // One try is enough for simulations, which are deterministic.
    let options = &args.common.runtime;
    let can_be_library =
        options.choice != RuntimeChoice::Simulation && options.config_text().is_none();
    let has_recorded_failure =
        |sequence: &Sequence| sequence.machine.is_none() && sequence.found.is_some();
    let can_vary = can_be_library && sequences.iter().any(has_recorded_failure);
    let max_tries = if can_vary { MAX_TRIES } else { 1 };
    let (mut tries, mut found) = (0, None);
    while found.is_none() && tries < max_tries {
        found = executor.run(&sequences)?;
        tries += 1;
    }
    if let Some(runtime) = &executor.runtime_description {
        match sequences.first().and_then(|sequence| sequence.machine.as_ref()) {
            Some(machine) if machine.is_empty() => note_dimmed("runtime: simulation"),
            Some(machine) => note_dimmed(&format!("runtime: simulation of {machine}")),
            None => note_dimmed(&format!("runtime: {}", runtime)),
        }
    }
    let operations: usize = sequences.iter().map(|sequence| sequence.operations.len()).sum();
    args.output.write(|out| match args.format {
        Format::Json => {
            out.keep_utf8();
            let result = serde_json::json!({
                "sequences": sequences.len(),
                "operations": operations,
                "tries": tries,
                "found": found.as_ref().map(|(index, found)| serde_json::json!({
                    "sequence": index,
                    "kind": found.kind,
                    "words": found.to_string(),
                    "recorded": sequences[*index].found,
                })),
            });
            serde_json::to_writer_pretty(&mut *out, &result)?;
            Ok(writeln!(out)?)
        }
        Format::Table => {
            let plural = |count| if count == 1 { "" } else { "s" };
            let (count, sequence_suffix) = (sequences.len(), plural(sequences.len()));
            match &found {
                None => {
                    let operation_suffix = plural(operations);
                    writeln!(
                        out,
                        "{count} sequence{sequence_suffix}, {operations} operation{operation_suffix}: every result agrees \
                         with the documents"
                    )?;
                    for recorded in sequences.iter().filter_map(|sequence| sequence.found.as_ref())
                    {
                        let times =
                            if tries > 1 { format!(", {tries} times") } else { String::new() };
                        writeln!(
                            out,
                            "did not fail again{times}; the recorded failure was: {recorded}"
                        )?;
                    }
                }
                Some((index, found)) => {
                    if tries > 1 {
                        writeln!(out, "failed at try {tries}, not before:")?;
                    }
                    if count > 1 {
                        writeln!(out, "sequence {} of {count}:", index + 1)?;
                    }
                    writeln!(out, "{found}")?;
                    match &sequences[*index].found {
                        Some(recorded) if *recorded != found.to_string() => {
                            writeln!(out, "recorded: {recorded}")?;
                        }
                        _ => {}
                    }
                }
            }
            Ok(())
        }
    })?;
    Ok(if found.is_none() { Exit::Success } else { Exit::Failure })
}
