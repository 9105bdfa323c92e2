//! The process that runs sequences. If AMD's runtime crashes the process, the parent finds the
//! sequence in the trace.

use crate::comparison::Comparison;
use crate::trace::Trace;
use crate::{calls, generator};
use hsa_rocr::test::Fixture;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

// The environment variables with which the parent describes the work.
const WORK: &str = "HSA_SIM_WORK";
const RELEASE: &str = "HSA_SIM_WORK_RELEASE";
const RUNTIME: &str = "HSA_SIM_WORK_RUNTIME";
const TRACE: &str = "HSA_SIM_WORK_TRAIL";

/// The prefix of the line in which a worker reports its counts of calls.
const COUNTS_PREFIX: &str = "calls: ";

/// The work of a worker process.
#[derive(Clone, Debug)]
pub enum Work {
    /// `count` sequences of a seed, from `first` on.
    Sequences { seed: u64, first: u64, count: u64 },
    /// The sequence in a file.
    File(PathBuf),
}

impl Work {
    /// Runs the work in a worker process. Returns its output and exit status.
    pub fn run_in_worker(&self, fixture: &Fixture, trace: &Path) -> Output {
        let mut command = fixture.restart_command();
        self.prepare(fixture, trace, &mut command);
        command.output().expect("a process")
    }

    fn prepare(&self, fixture: &Fixture, trace: &Path, command: &mut Command) {
        command.args(["worker_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(
            WORK,
            match self {
                Self::Sequences { seed, first, count } => format!("{seed} {first} {count}"),
                Self::File(path) => path.display().to_string(),
            },
        );
        command.env(RELEASE, fixture.release().version());
        command.env(RUNTIME, fixture.runtime());
        command.env(TRACE, trace);
        command.env("RUST_BACKTRACE", "0");
    }

    fn parse(text: &str) -> Self {
        let numbers: Option<Vec<u64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([seed, first, count]) => {
                Self::Sequences { seed: *seed, first: *first, count: *count }
            }
            _ => Self::File(text.into()),
        }
    }
}

/// Parses the counts of calls that a worker reports.
pub fn counts(output: &Output) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().find_map(|line| line.strip_prefix(COUNTS_PREFIX)).expect("a line with counts");
    serde_json::from_str(line).expect("numbers")
}

/// Performs the work that the environment variables specify. Does nothing if they are not set.
pub fn run() {
    let Ok(work) = std::env::var(WORK) else { return };
    let variable = |name| std::env::var(name).expect("set by the parent");
    let release = variable(RELEASE).parse().expect("a release");
    let mut comparison = Comparison::start(release, Path::new(&variable(RUNTIME)));
    let mut trace = Trace::new(Path::new(&variable(TRACE)));
    let mut run = |comparison: &mut Comparison, title: &str, calls: &[calls::Call]| {
        trace.begin_sequence(title, calls);
        if let Some(difference) = comparison.run(calls, |call| trace.begin_call(call)) {
            print!("\n{difference}");
            // Do not shut the runtime down: `hsa_shut_down` could fail because of leaked objects.
            std::process::exit(1);
        }
    };
    match Work::parse(&work) {
        Work::File(path) => {
            let text = std::fs::read_to_string(&path).expect("a sequence");
            run(&mut comparison, &path.display().to_string(), &calls::from_text(&text));
        }
        Work::Sequences { seed, first, count } => {
            for number in first..first + count {
                let title = format!("sequence {number} of seed {seed} on {release}");
                run(&mut comparison, &title, &generator::sequence(seed, number));
            }
        }
    }
    let counts = serde_json::to_string(&comparison.counts).expect("numbers");
    println!("\n{COUNTS_PREFIX}{counts}");
    comparison.restart();
}
