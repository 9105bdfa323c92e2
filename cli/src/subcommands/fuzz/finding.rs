//! Shrinks and saves a failing sequence.

use super::arguments::Fuzz;
use crate::choice::RuntimeChoice;
use crate::executor::Executor;
use crate::interrupt::Interrupt;
use crate::program;
use anyhow::Context;
use hsa_vmm_conformance::fuzz::{
    Failure, FailureKind, FailurePoint, Generator, Sequence, SequenceRuntime, shrink,
};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

/// A failure and the sequences that show it.
#[derive(Debug)]
pub struct Finding {
    failure: Failure,
    /// The sequences that show the failure when one process runs them one after another. Usually, there is one.
    sequences: Vec<Sequence>,
    /// The number of operations before shrinking.
    original_length: usize,
    repetitions: Repetitions,
    file: PathBuf,
    /// The reason why the sequences could not be saved.
    save_error: Option<anyhow::Error>,
    command: String,
}

/// The result of repeating the saved sequences. On a loaded library, each try is in a new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repetitions {
    /// The number of tries in which a failure occurred. Zero if the failure never occurred again, for example because
    /// it depends on state that the sequences do not create.
    failures: u32,
    /// The number of tries after shrinking. One if the failure never occurred again. Zero if the run was interrupted
    /// before the failure occurred again.
    tries: u32,
}

/// The minimum number of earlier sequences that are repeated before a failing sequence, even after the time limit. A
/// failure that cannot be repeated is hard to debug.
const MIN_EARLIER: u64 = 16;
/// The maximum number of operations that the report of a finding lists.
const SHOWN_OPERATIONS: usize = 20;
/// The time limit of an operation while a hanging sequence is shrunk.
const SHRINK_TIME_LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of times that sequences are repeated on a loaded library after shrinking. The failure can depend
/// on addresses, which differ from process to process.
const MAX_TRIES: u32 = 5;
/// The maximum number of names that are tried for a new file.
const MAX_NAMES: u32 = 1000;

impl Finding {
    /// Repeats, shrinks and saves a failing sequence. SIGINT or SIGTERM ends the shrinking.
    pub fn shrink_and_save(
        args: &Fuzz,
        generator: &Generator,
        step: u64,
        number: u64,
        failure: Failure,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut executor = Executor::new(&args.common, args.time_limit, interrupt.clone());
        let sequence = generator.sequence(number);
        let original_length = sequence.operations.len();
        let deadline = Instant::now() + args.shrink;
        let (failure, sequences, repetitions) =
            match repeat(&mut executor, generator, step, number, deadline)? {
                None => {
                    let tries = u32::from(!interrupt.arrived());
                    (failure, vec![sequence], Repetitions { failures: 0, tries })
                }
                Some((sequences, failure)) => {
                    shrink_all(&mut executor, sequences, failure, deadline, interrupt)?
                }
            };
        let (file, opened) = match args.save.clone() {
            Some(file) => (file.clone(), File::create(file)),
            None => create_new(&format!("fuzz-{}-{number}", generator.seed)),
        };
        let command = replay_command(args, generator, &file);
        let mut finding = Self {
            failure,
            sequences,
            original_length,
            repetitions,
            file,
            save_error: None,
            command,
        };
        if let Some(last) = finding.sequences.last_mut() {
            last.found = Some(finding.failure.to_string());
        }
        let written = finding.save(opened);
        let cannot_write = || format!("cannot write {}", finding.file.display());
        finding.save_error = written.with_context(cannot_write).err();
        Ok(finding)
    }

    fn save(&self, file: io::Result<File>) -> io::Result<()> {
        let mut file = file?;
        let written = file.write_all(self.lines().as_bytes());
        if written.is_err() && self.file.is_file() {
            // Remove the incomplete file. The error of writing is reported, so ignore further errors.
            let _ = fs::remove_file(&self.file);
        }
        written
    }

    /// Returns the sequences as `replay` reads them.
    fn lines(&self) -> String {
        // Serializing fails only for maps whose keys are no text, which a sequence does not have.
        let line = |sequence| serde_json::to_string(sequence).unwrap_or_default() + "\n";
        self.sequences.iter().map(line).collect()
    }

    /// Returns the reason why the sequences could not be saved. `None` if they are saved.
    pub fn into_save_error(self) -> Option<anyhow::Error> {
        self.save_error
    }

    pub fn to_json(&self) -> serde_json::Value {
        let is_saved = self.save_error.is_none();
        serde_json::json!({
            "kind": self.failure.kind,
            "words": self.failure.to_string(),
            "reproduced": self.repetitions.failures > 0,
            "seen": self.repetitions.failures,
            "tries": self.repetitions.tries,
            "sequences": self.sequences,
            "file": is_saved.then(|| self.file.display().to_string()),
            "command": is_saved.then_some(&self.command),
        })
    }
}

/// Creates `NAME.jsonl`, or `NAME-2.jsonl` and so on if the name exists. Never opens an existing file
/// or link, which can belong to another user.
fn create_new(name: &str) -> (PathBuf, io::Result<File>) {
    let mut number = 1;
    loop {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = PathBuf::from(format!("{name}{suffix}.jsonl"));
        let file = File::create_new(&path);
        let exists = matches!(&file, Err(error) if error.kind() == io::ErrorKind::AlreadyExists);
        if !exists || number == MAX_NAMES {
            return (path, file);
        }
        number += 1;
    }
}

/// Repeats the sequence `number`: first alone, then, on a loaded library, after the sequences that its process ran
/// before. The process ran every `step`-th sequence. If a failure occurs again, returns the sequences and the failure.
fn repeat(
    executor: &mut Executor,
    generator: &Generator,
    step: u64,
    number: u64,
    deadline: Instant,
) -> anyhow::Result<Option<(Vec<Sequence>, Failure)>> {
    let original = generator.sequence(number);
    // Compare the complete state after each operation, to find the operation that causes the failure.
    let always_compared = Sequence { every: None, ..original.clone() };
    // Try several times, because the failure can depend on addresses, which differ from process to process.
    for sequence in [&always_compared, &always_compared, &always_compared, &original] {
        if let Some((_, failure)) = executor.run(slice::from_ref(sequence))? {
            return Ok(Some((vec![sequence.clone()], failure)));
        }
    }
    // Sequences on simulations share no state. On a loaded library, the failure can depend on earlier sequences.
    let earlier = if generator.runtime == SequenceRuntime::Loaded { number / step } else { 0 };
    let mut count = 0;
    while count < earlier && (count < MIN_EARLIER || Instant::now() < deadline) {
        count = (count * 4 + 1).min(earlier);
        let numbers = (0..=count).rev().map(|distance| number - distance * step);
        let mut sequences: Vec<_> = numbers.map(|number| generator.sequence(number)).collect();
        if let Some((index, failure)) = executor.run(&sequences)? {
            sequences.truncate(index + 1);
            return Ok(Some((sequences, failure)));
        }
    }
    Ok(None)
}

/// Removes sequences and operations that the failure does not need. Returns the failure, the remaining
/// sequences, and the result of repeating these sequences.
fn shrink_all(
    executor: &mut Executor,
    mut sequences: Vec<Sequence>,
    failure: Failure,
    deadline: Instant,
    interrupt: &Interrupt,
) -> anyhow::Result<(Failure, Vec<Sequence>, Repetitions)> {
    let time_limit = executor.time_limit;
    // One try is enough for simulations, which share no state and are deterministic.
    let tries =
        if sequences.iter().any(|sequence| sequence.machine.is_none()) { MAX_TRIES } else { 1 };
    if failure.kind == FailureKind::Hang {
        executor.time_limit = SHRINK_TIME_LIMIT.min(time_limit);
    }
    let original = (sequences.clone(), failure.clone());
    let mut latest = failure;
    let mut executor_error = None;
    let mut fails_once = |sequences: &[Sequence]| match executor.run(sequences) {
        Ok(Some((index, failure))) if index + 1 == sequences.len() && failure.is_like(&latest) => {
            latest = failure;
            true
        }
        Ok(_) => false,
        Err(error) => {
            executor_error.get_or_insert(error);
            false
        }
    };
    // Require two failures of a loaded library, so that the failure does not become rarer with each step.
    let mut fails = |sequences: &[Sequence]| (0..tries.min(2)).all(|_| fails_once(sequences));
    // Remove earlier sequences that the failure does not need.
    let mut index = 0;
    while index + 1 < sequences.len() && Instant::now() < deadline {
        let mut fewer = sequences.clone();
        fewer.remove(index);
        if fails(&fewer) {
            sequences = fewer;
        } else {
            index += 1;
        }
    }
    if let Some(mut last) = sequences.pop() {
        match original.1.point {
            FailurePoint::Operation(index) => last.operations.truncate(index + 1),
            FailurePoint::Start => last.operations.clear(),
            FailurePoint::End | FailurePoint::Unknown => {}
        }
        let with_earlier = |last: &Sequence| {
            let mut all = sequences.clone();
            all.push(last.clone());
            all
        };
        let shrunk = shrink(last, deadline, &mut |candidate| fails(&with_earlier(candidate)));
        sequences.push(shrunk);
    }
    if let Some(error) = executor_error {
        return Err(error);
    }
    if interrupt.arrived() {
        // The sequences failed when the shrinking accepted them.
        return Ok((latest, sequences, Repetitions { failures: 1, tries: 1 }));
    }
    executor.time_limit = time_limit;
    // Repeat with the full time limit, as `replay` does.
    let mut repetitions = Repetitions { failures: 0, tries: 0 };
    let mut failure = None;
    while repetitions.tries == 0 || repetitions.tries < tries && Instant::now() < deadline {
        let result = executor.run(&sequences)?;
        repetitions.tries += 1;
        repetitions.failures += u32::from(result.is_some());
        failure = result.map(|(_, failure)| failure).or(failure);
    }
    Ok(match failure {
        Some(failure) => (failure, sequences, repetitions),
        // The shrunk sequences did not fail again. Return the original sequences, which failed when repeated.
        None => (original.1, original.0, Repetitions { failures: 1, tries: 1 }),
    })
}

/// Returns the command that repeats the failure.
fn replay_command(args: &Fuzz, generator: &Generator, file: &Path) -> String {
    let runtime = match &generator.runtime {
        SequenceRuntime::Loaded => args.common.runtime.arguments_to_repeat(),
        // Without the option, a runtime in HSA_VMM_RUNTIME would replace the machine of the sequence.
        _ if args.common.runtime.choice == RuntimeChoice::Simulation => {
            ["--runtime", "sim"].map(str::to_owned).to_vec()
        }
        _ => Vec::new(),
    };
    let words = ["replay".to_owned()].into_iter().chain(runtime);
    program::reproduce_command(words.chain([file.display().to_string()]))
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.sequences.last() else { return Ok(()) };
        let now = last.operations.len();
        let plural = if now == 1 { "" } else { "s" };
        writeln!(
            f,
            "FOUND by {now} operation{plural} (of {} before shrinking):",
            self.original_length
        )?;
        writeln!(f, "  {}", self.failure)?;
        if let Some(machine) = last.machine.as_ref().filter(|text| !text.is_empty()) {
            writeln!(f, "machine: {machine}")?;
        }
        if let Some(faults) = last.faults.as_ref().filter(|text| !text.is_empty()) {
            writeln!(f, "faults: {faults}")?;
        }
        if self.sequences.len() > 1 {
            writeln!(f, "after {} other sequences in the same process", self.sequences.len() - 1)?;
        }
        for (index, operation) in last.operations.iter().enumerate().take(SHOWN_OPERATIONS) {
            writeln!(f, "  {}. {operation}", index + 1)?;
        }
        if now > SHOWN_OPERATIONS {
            writeln!(f, "  and {} more", now - SHOWN_OPERATIONS)?;
        }
        if self.save_error.is_none() {
            writeln!(f, "saved as {}", self.file.display())?;
        }
        match self.repetitions {
            Repetitions { tries: 0, .. } => {
                writeln!(f, "The sequence was not repeated: the run was interrupted.")?;
            }
            Repetitions { failures: 0, .. } => {
                writeln!(f, "The sequence did not fail again when it was repeated.")?;
            }
            Repetitions { failures, tries } if failures < tries => writeln!(
                f,
                "The sequence failed {failures} of {tries} times, each in a new process; replay tries several times."
            )?,
            _ => {}
        }
        if self.save_error.is_none() {
            write!(f, "reproduce: {}", self.command)
        } else {
            write!(
                f,
                "The sequence could not be saved. To repeat it, save these lines for `hsa-vmm replay FILE`:\n{}",
                self.lines().trim_end()
            )
        }
    }
}
