//! What was found, made small and saved.

use super::arguments::Fuzz;
use crate::choice::Choice;
use crate::performer::Performer;
use anyhow::Context;
use hsa_vmm_conformance::fuzz::{Drawing, Found, Kind, Machine, Moment, Sequence, shrink};
use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

/// What was found.
#[derive(Debug)]
pub struct Finding {
    found: Found,
    /// What shows it, performed one after the other in one process; usually it is but one.
    sequences: Vec<Sequence>,
    /// How many operations the sequence had at first.
    length: usize,
    again: Again,
    file: PathBuf,
    command: String,
}

/// How often what was saved has shown it, performed again each time in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Again {
    /// 0: not by what was saved alone; what else it needs is not known.
    seen: u32,
    tries: u32,
}

/// How many sequences of before are performed with it, whatever the time: what is not seen again is worth
/// little.
const AT_LEAST: u64 = 16;
/// How many operations are shown.
const SHOWN: usize = 20;
/// How long an operation may take while a smaller sequence is looked for that hangs.
const SHORT: Duration = Duration::from_secs(2);
/// How often what is saved is performed again, if there is time: where memory lies differs from process to
/// process, and what is found may depend on it.
const TRIES: u32 = 5;
/// How many files of one name are kept.
const MOST_FILES: u32 = 1000;

impl Finding {
    /// Performs a sequence again that has shown something, makes it small and saves it.
    pub fn of(
        verb: &Fuzz,
        drawing: &Drawing,
        step: u64,
        number: u64,
        found: Found,
    ) -> anyhow::Result<Self> {
        let mut performer = Performer::new(&verb.common, verb.time_limit);
        let sequence = drawing.sequence(number);
        let length = sequence.operations.len();
        let until = Instant::now() + verb.shrink;
        let (found, sequences, again) =
            match seen_again(&mut performer, drawing, step, number, until)? {
                None => (found, vec![sequence], Again { seen: 0, tries: 1 }),
                Some((sequences, found)) => smaller(&mut performer, sequences, found, until)?,
            };
        let (file, opened) = match verb.save.clone() {
            Some(file) => (file.clone(), File::create(file)),
            None => create_new(&format!("fuzz-{}-{number}", drawing.seed)),
        };
        let command = command(verb, drawing, &file);
        let mut finding = Self { found, sequences, length, again, file, command };
        finding.save(opened)?;
        Ok(finding)
    }

    fn save(&mut self, file: io::Result<File>) -> anyhow::Result<()> {
        if let Some(last) = self.sequences.last_mut() {
            last.found = Some(self.found.to_string());
        }
        let mut text = Vec::new();
        for sequence in &self.sequences {
            serde_json::to_writer(&mut text, sequence)?;
            text.push(b'\n');
        }
        let written = file.and_then(|mut file| file.write_all(&text));
        written.with_context(|| {
            // What was found is not lost with the file.
            let text = String::from_utf8_lossy(&text);
            format!("{self}\n{text}{} cannot be written", self.file.display())
        })
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": self.found.kind,
            "words": self.found.to_string(),
            "reproduced": self.again.seen > 0,
            "seen": self.again.seen,
            "tries": self.again.tries,
            "sequences": self.sequences,
            "file": self.file,
            "command": self.command,
        })
    }
}

/// Creates `NAME.jsonl`, or `NAME-2.jsonl` and so on. Whatever has the name already is left alone: a
/// file, or a link that others have put there.
fn create_new(name: &str) -> (PathBuf, io::Result<File>) {
    let mut number = 1;
    loop {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = PathBuf::from(format!("{name}{suffix}.jsonl"));
        let file = File::create_new(&path);
        let exists = matches!(&file, Err(error) if error.kind() == io::ErrorKind::AlreadyExists);
        if !exists || number == MOST_FILES {
            return (path, file);
        }
        number += 1;
    }
}

/// The sequence alone, or with those that its process performed before it, if that shows something
/// again.
fn seen_again(
    performer: &mut Performer,
    drawing: &Drawing,
    step: u64,
    number: u64,
    until: Instant,
) -> anyhow::Result<Option<(Vec<Sequence>, Found)>> {
    let as_it_was = drawing.sequence(number);
    let closely = Sequence { every: None, ..as_it_was.clone() };
    for alone in [&closely, &closely, &closely, &as_it_was] {
        if let Some((_, found)) = performer.perform(slice::from_ref(alone))? {
            return Ok(Some((vec![alone.clone()], found)));
        }
    }
    // Simulations share nothing; a library may have kept something from earlier ones.
    let all = if drawing.machine == Machine::Loaded { number / step } else { 0 };
    let mut before = 0;
    while before < all && (before < AT_LEAST || Instant::now() < until) {
        before = (before * 4 + 1).min(all);
        let numbers = (0..=before).rev().map(|back| number - back * step);
        let mut sequences: Vec<_> = numbers.map(|number| drawing.sequence(number)).collect();
        if let Some((at, found)) = performer.perform(&sequences)? {
            sequences.truncate(at + 1);
            return Ok(Some((sequences, found)));
        }
    }
    Ok(None)
}

/// Leaves out what is not needed, and what it shows then, and how often.
fn smaller(
    performer: &mut Performer,
    mut sequences: Vec<Sequence>,
    found: Found,
    until: Instant,
) -> anyhow::Result<(Found, Vec<Sequence>, Again)> {
    let patience = performer.patience;
    // Simulations share nothing, and are the same each time.
    let tries = if sequences.iter().any(|it| it.machine.is_none()) { TRIES } else { 1 };
    if found.kind == Kind::Hang {
        performer.patience = SHORT.min(patience);
    }
    let before = (sequences.clone(), found.clone());
    let mut latest = found;
    let mut failed = None;
    let mut shows_once = |sequences: &[Sequence]| match performer.perform(sequences) {
        Ok(Some((at, found))) if at + 1 == sequences.len() && found.is_like(&latest) => {
            latest = found;
            true
        }
        Ok(_) => false,
        Err(error) => {
            failed.get_or_insert(error);
            false
        }
    };
    // Twice, so that it does not become rarer with each step.
    let mut shows = |sequences: &[Sequence]| (0..tries.min(2)).all(|_| shows_once(sequences));
    // Of those before, from the first on, as few as do.
    let mut at = 0;
    while at + 1 < sequences.len() && Instant::now() < until {
        let mut fewer = sequences.clone();
        fewer.remove(at);
        if shows(&fewer) {
            sequences = fewer;
        } else {
            at += 1;
        }
    }
    if let Some(mut last) = sequences.pop() {
        if let Moment::Operation(at) = before.1.moment {
            last.operations.truncate(at + 1);
        }
        let with = |last: &Sequence| {
            let mut all = sequences.clone();
            all.push(last.clone());
            all
        };
        let small = shrink(last, until, &mut |candidate| shows(&with(candidate)));
        sequences.push(small);
    }
    if let Some(error) = failed {
        return Err(error);
    }
    performer.patience = patience;
    // With all the patience there is, and as it will be done again.
    let mut again = Again { seen: 0, tries: 0 };
    let mut found = None;
    while again.tries == 0 || again.tries < tries && Instant::now() < until {
        let shown = performer.perform(&sequences)?;
        again.tries += 1;
        again.seen += u32::from(shown.is_some());
        found = shown.map(|(_, shown)| shown).or(found);
    }
    Ok(match found {
        Some(found) => (found, sequences, again),
        // That has been seen, before it was made smaller.
        None => (before.1, before.0, Again { seen: 1, tries: 1 }),
    })
}

/// What does it again.
fn command(verb: &Fuzz, drawing: &Drawing, file: &Path) -> String {
    let program = env::args().next().unwrap_or_else(|| "hsa-vmm".to_owned());
    // What `hsa-vmm emulate` or `hsa-vmm rocr run` was asked for.
    let under = env::var(crate::program::UNDER).map(|words| format!("{program} {words} -- "));
    let runtime = match (&drawing.machine, &verb.common.runtime.choice) {
        // The variable says so there, too.
        (Machine::Loaded, Choice::Library(path)) if under.is_err() => {
            format!(" --runtime {}", path.display())
        }
        _ => String::new(),
    };
    format!("{}{program} replay{runtime} {}", under.unwrap_or_default(), file.display())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.sequences.last() else { return Ok(()) };
        let now = last.operations.len();
        let plural = if now == 1 { "" } else { "s" };
        writeln!(f, "FOUND by {now} operation{plural} (of {} at first):", self.length)?;
        writeln!(f, "  {}", self.found)?;
        if let Some(machine) = last.machine.as_ref().filter(|it| !it.is_empty()) {
            writeln!(f, "machine: {machine}")?;
        }
        if let Some(faults) = last.faults.as_ref().filter(|it| !it.is_empty()) {
            writeln!(f, "faults: {faults}")?;
        }
        if self.sequences.len() > 1 {
            writeln!(f, "after {} other sequences in the same process", self.sequences.len() - 1)?;
        }
        for (place, operation) in last.operations.iter().enumerate().take(SHOWN) {
            writeln!(f, "  {}. {operation:?}", place + 1)?;
        }
        if now > SHOWN {
            writeln!(f, "  and {} more", now - SHOWN)?;
        }
        writeln!(f, "saved as {}", self.file.display())?;
        match self.again {
            Again { seen: 0, .. } => {
                writeln!(f, "It was not seen again when the sequence was performed by itself.")?;
            }
            Again { seen, tries } if seen < tries => writeln!(
                f,
                "It was seen {seen} of {tries} times, each in a process of its own; replay tries until it is."
            )?,
            _ => {}
        }
        write!(f, "again: {}", self.command)
    }
}
