//! What fuzzing has found, once more.

use super::Replay;
use crate::Ending;
use crate::arguments::Format;
use crate::choice::{Choice, say};
use crate::performer::Performer;
use crate::screen::Screen;
use hsa_vmm_conformance::fuzz::Sequence;
use std::io::Write;
use std::time::Duration;

/// How long an operation may take before it is taken for one that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often what was found on a loaded library is looked for: where memory lies differs from process to
/// process, and what is found may depend on it.
const TRIES: u32 = 16;

/// Performs sequences one after the other in a process of their own, and where they have shown something
/// before, in several if they do not at once.
pub fn run(verb: &Replay, mut sequences: Vec<Sequence>) -> anyhow::Result<Ending> {
    for sequence in &mut sequences {
        verb.common.runtime.choose_for(sequence);
        sequence.check()?;
    }
    let mut performer = Performer::new(&verb.common, PATIENCE);
    // A simulation is the same each time, also one that was asked for instead of the sequence's own.
    let asked = &verb.common.runtime;
    let is_loaded = asked.choice != Choice::Simulation && asked.simulation().is_none();
    let was_found = |it: &Sequence| it.machine.is_none() && it.found.is_some();
    let may_differ = is_loaded && sequences.iter().any(was_found);
    let most = if may_differ { TRIES } else { 1 };
    let (mut tries, mut found) = (0, None);
    while found.is_none() && tries < most {
        found = performer.perform(&sequences)?;
        tries += 1;
    }
    if let Some(runtime) = &performer.runtime {
        match sequences.first().and_then(|it| it.machine.as_ref()) {
            Some(machine) if machine.is_empty() => say("runtime: simulation"),
            Some(machine) => say(&format!("runtime: simulation of {machine}")),
            None => say(&format!("runtime: {}", runtime)),
        }
    }
    let mut out = Screen::stdout();
    let operations: usize = sequences.iter().map(|it| it.operations.len()).sum();
    match verb.format {
        Format::Json => {
            let result = serde_json::json!({
                "sequences": sequences.len(),
                "operations": operations,
                "tries": tries,
                "found": found.as_ref().map(|(at, found)| serde_json::json!({
                    "sequence": at,
                    "kind": found.kind,
                    "words": found.to_string(),
                    "recorded": sequences[*at].found,
                })),
            });
            serde_json::to_writer_pretty(&mut out, &result)?;
            writeln!(out)?;
        }
        Format::Table => {
            let plural = |count| if count == 1 { "" } else { "s" };
            let (count, s) = (sequences.len(), plural(sequences.len()));
            match &found {
                None => {
                    let of = plural(operations);
                    writeln!(
                        out,
                        "{count} sequence{s}, {operations} operation{of}: all as the documents say"
                    )?;
                    for recorded in sequences.iter().filter_map(|it| it.found.as_ref()) {
                        let times =
                            if tries > 1 { format!(", {tries} times") } else { String::new() };
                        writeln!(out, "not seen any more{times}: {recorded}")?;
                    }
                }
                Some((at, found)) => {
                    if tries > 1 {
                        writeln!(out, "seen at try {tries}, not before:")?;
                    }
                    if count > 1 {
                        writeln!(out, "sequence {} of {count}:", at + 1)?;
                    }
                    writeln!(out, "{found}")?;
                    match &sequences[*at].found {
                        Some(recorded) if *recorded != found.to_string() => {
                            writeln!(out, "recorded was: {recorded}")?;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    out.flush()?;
    Ok(if found.is_none() { Ending::Well } else { Ending::Failed })
}
