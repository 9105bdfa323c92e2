//! Compares the simulation with AMD's own runtime. Both run in one process with the emulated driver, and receive the
//! same random calls. The test compares their states after each call.
//!
//! `HSA_SIM_SEQUENCES` sets the number of sequences per release. `HSA_SIM_SEED` sets the seed: a
//! number, or `fresh` for a new seed. The default seed is fixed. (`stress` accepts only a
//! number, and has a new seed by default.) The test prints each difference with a shrunk sequence. If
//! a sequence is saved as a file in `regressions`, `regressions_agree` repeats it.

#[path = "../setup/mod.rs"]
mod setup;

mod attributes;
mod calls;
mod comparison;
mod crashes;
mod exclusions;
mod generator;
mod objects;
mod observe;
mod shrink;
mod stress;
mod tested_runtime;
mod trace;
mod worker;

use hsa_rocr::test::{self, Fixture};
use hsa_rocr::{Emulation, Release};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};
use worker::Work;

/// The number of sequences per release with `HSA_VMM_LONG=1`.
const LONG_SEQUENCE_COUNT: usize = 1000;
const DEFAULT_SEED: u64 = 0x6873_6173_696d;
/// The number of sequences per process. The end of the process frees what AMD's runtime has leaked.
const BATCH_SIZE: u64 = 100;
/// The number of differences after which the test stops.
const MAX_DIFFERENCES: usize = 5;

fn emulation() -> Emulation {
    Emulation::with_gpus(2).with_vram("1GiB")
}

/// Returns the number in an environment variable, if set.
fn environment_number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

#[test]
fn agrees_with_6_1_2() {
    check_release(Release::R6_1_2, "agrees_with_6_1_2");
}

#[test]
fn agrees_with_6_4_3() {
    check_release(Release::R6_4_3, "agrees_with_6_4_3");
}

#[test]
fn agrees_with_7_2_4() {
    check_release(Release::R7_2_4, "agrees_with_7_2_4");
}

/// Compares the simulation with one release, in the test `name`.
fn check_release(release: Release, name: &str) {
    let time_limit = Duration::from_secs(600 + sequence_count());
    test::run_on_with_timeout(&[release], name, &emulation(), time_limit, check_agreement);
}

fn sequence_count() -> u64 {
    environment_number("HSA_SIM_SEQUENCES")
        .unwrap_or(test::count_to_run(LONG_SEQUENCE_COUNT) as u64)
}

fn check_agreement(fixture: &Fixture) {
    let seed = match std::env::var("HSA_SIM_SEED") {
        Ok(seed) if seed == "fresh" => {
            UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64)
        }
        Ok(seed) => seed.parse().expect("HSA_SIM_SEED is a number, or `fresh`"),
        Err(_) => DEFAULT_SEED,
    };
    let sequences = sequence_count();
    let start_time = Instant::now();
    let release = fixture.release();
    println!("\n{release}: {sequences} sequences of seed {seed}");
    let trace = temporary_path(&format!("differential-{release}.txt"));
    let (mut first, mut differences) = (0, Vec::new());
    let mut counts = BTreeMap::<String, u64>::new();
    while first < sequences && differences.len() < MAX_DIFFERENCES {
        let work = Work::Sequences { seed, first, count: BATCH_SIZE.min(sequences - first) };
        let output = work.run_in_worker(fixture, &trace);
        if output.status.success() {
            for (kind, count) in worker::counts(&output) {
                *counts.entry(kind).or_default() += count;
            }
            first += BATCH_SIZE;
            continue;
        }
        let (Some(number), calls) = trace::read_last(&trace) else {
            panic!("no sequence was started: {output:?}");
        };
        let shrunk = shrink::shrink(calls.clone(), |calls| !replay(fixture, calls).0);
        let (agreed, text) = replay(fixture, &shrunk);
        let title = format!("# sequence {number} of seed {seed} on {release}");
        differences.push(if agreed {
            let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let text = format!("{}: {}", output.status, text.concat());
            format!("{title}: agrees when run alone\n{text}{}", calls::to_text(&calls))
        } else {
            format!("{title}\n{}{text}", calls::to_text(&shrunk))
        });
        first = number + 1;
    }
    println!("{release}: took {:?}, {counts:#?}", start_time.elapsed());
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

/// Runs one sequence. Returns whether the runtimes agreed, and the output.
fn replay(fixture: &Fixture, calls: &[calls::Call]) -> (bool, String) {
    let path = temporary_path(&format!("differential-{}-shrunk.txt", fixture.release()));
    std::fs::write(&path, calls::to_text(calls)).expect("a file to write");
    let trace = path.with_extension("trace");
    replay_file(fixture, path, &trace)
}

fn replay_file(fixture: &Fixture, path: PathBuf, trace: &Path) -> (bool, String) {
    let output = Work::File(path).run_in_worker(fixture, trace);
    let text = String::from_utf8_lossy(&output.stdout);
    // Remove the output of the test harness.
    let text = text.split_once("test worker_process ...").map_or("", |(_, text)| text);
    let text = text.split_once("FAILED").map_or(text, |(text, _)| text).to_owned();
    if output.status.code().is_some() && !text.trim().is_empty() {
        return (output.status.success(), text);
    }
    let trace = std::fs::read_to_string(trace).unwrap_or_default();
    // The first line contains the number of the last call that began.
    let last_call = trace.lines().next().unwrap_or_default().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), format!("{}: {last_call}\n{errors}", output.status))
}

/// Returns the path of a file in the build directory. Adds the process id to the name.
fn temporary_path(name: &str) -> PathBuf {
    let name = format!("{}-{name}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs every saved sequence in `regressions`, on one release, or with `HSA_VMM_LONG=1` on all.
#[test]
fn regressions_agree() {
    test::run_on_releases("regressions_agree", &emulation(), |fixture| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/regressions");
        let entries = std::fs::read_dir(folder).expect("the folder");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        assert!(!files.is_empty());
        let trace = temporary_path(&format!("regressions-{}.txt", fixture.release()));
        for path in files {
            let (agreed, text) = replay_file(fixture, path.clone(), &trace);
            assert!(agreed, "{} on {}: {text}", path.display(), fixture.release());
        }
    });
}

#[test]
fn known_crashes_happen() {
    test::run_on_releases("known_crashes_happen", &emulation(), crashes::check_all);
}

#[test]
fn four_threads_leak_nothing() {
    let releases = [Release::R6_4_3, Release::R7_2_4];
    test::run_on(&releases, "four_threads_leak_nothing", &emulation(), stress::check_for_leaks);
}

#[test]
#[ignore = "not a test: the worker process of the other tests"]
fn worker_process() {
    worker::run();
}
