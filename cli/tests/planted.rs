//! Faults that are planted below the tool, in the simulation and in the emulated driver, and found.
//!
//! Each fault of the table is found within two minutes, and what it does is named. A few are drawn
//! each time, by a seed that is printed: `HSA_VMM_PLANTED=all` takes all of them and prints how long
//! each took, `HSA_VMM_PLANTED=SEED` those of a seed, and `HSA_VMM_PLANTED=NAME` those whose name or
//! plan contains it.

mod hsa_vmm;
#[path = "planted/table.rs"]
mod table;

use hsa_rocr::test;
use hsa_vmm::{HSA_VMM, command};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use table::{Finder, Ground, PLANTED, Planted};

/// In so long a fault must be found.
const LIMIT: Duration = Duration::from_secs(120);
/// How many are drawn.
const SHARE: usize = 6;

/// What a run of the command came to.
struct Ran {
    status: ExitStatus,
    took: Duration,
    out: String,
    err: String,
}

/// Runs `hsa-vmm ARGUMENTS` on a ground with a plan, and ends it after the limit.
fn run(ground: Ground, plan: &str, arguments: &[&str]) -> Result<Ran, String> {
    let simulation;
    let words: Vec<&str> = match ground {
        Ground::Simulation(config) => {
            simulation = format!("{config},faults={plan}");
            let options = ["--runtime", "sim", "--gpus", "2", "--sim", &simulation];
            arguments.iter().copied().chain(options).collect()
        }
        Ground::Release(release) => {
            let mut words = vec!["emulate", "--rocr", release, "--gpus", "2"];
            if !plan.is_empty() {
                words.extend(["--fault", plan]);
            }
            words.extend(["--", HSA_VMM]);
            words.extend(arguments);
            words
        }
    };
    let files = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
    let to = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
    let mut command = command(&words);
    command.stdin(Stdio::null()).stdout(to(&files[0])).stderr(to(&files[1]));
    let began = Instant::now();
    let mut child = command.spawn().expect("the command");
    let status = loop {
        match child.try_wait().expect("a child to wait for") {
            Some(status) => break status,
            None if began.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("not within {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let took = began.elapsed();
    let [out, err] = files.map(|mut file| {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("text");
        text
    });
    Ok(Ran { status, took, out, err })
}

/// Whether a report of `conform` has a case that failed for a reason.
fn names(report: &str, case: &str, words: &str) -> Result<(), String> {
    let report: Value = serde_json::from_str(report).map_err(|error| error.to_string())?;
    let failed: Vec<_> = report["cases"].as_array().into_iter().flatten()
        .filter(|it| it["status"] == "fail")
        .map(|it| (it["name"].as_str().unwrap_or(""), it["detail"].as_str().unwrap_or("")))
        .collect();
    match failed.iter().find(|(name, _)| *name == case) {
        Some((_, detail)) if detail.contains(words) => Ok(()),
        Some((_, detail)) => Err(format!("{case} failed, but: {detail}")),
        None => Err(format!("{case} did not fail; did: {:?}", &failed[..failed.len().min(5)])),
    }
}

/// How long it took to find a fault, or why it was not found. `whole`: by all that the tool has,
/// and not only by what is expected to find it.
fn find(planted: &Planted, whole: bool) -> Result<Duration, String> {
    let (case, words, more) = match planted.finder {
        Finder::Conform(case, words) => (case, words, None),
        Finder::ConformAtOnce(case, words) => (case, words, Some("--fail-fast")),
        Finder::Fuzz(_) => return Err("fuzz".to_owned()),
    };
    let mut arguments = vec!["conform", "--format", "json"];
    arguments.extend(more);
    // Numbers of calls are counted from the beginning of a whole run.
    if !whole && !planted.plan.contains('#') {
        arguments.extend(["--filter", case]);
    }
    let ran = run(planted.ground, planted.plan, &arguments)?;
    names(&ran.out, case, words).map_err(|why| format!("{why}\n{}", ran.err))?;
    match ran.status.code() {
        Some(1) => Ok(ran.took),
        _ => Err(format!("ended with {}", ran.status)),
    }
}
