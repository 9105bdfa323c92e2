//! `hsa-vmm rocr`: AMD's own runtime.

use super::table;
use crate::Ending;
use crate::arguments::{Rocr, RocrFetch, RocrRun};
use crate::progress::Steps;
use anyhow::Context;
use hsa_rocr::{Installation, Release, fetch, fetch_hip, folder};
use std::ffi::OsStr;
use std::io::Write;
use std::process::Command;

pub fn run(verb: &Rocr) -> anyhow::Result<Ending> {
    match verb {
        Rocr::Fetch(verb) => get(verb),
        Rocr::List => show(&all()),
        Rocr::Run(verb) => start(verb),
    }
}

fn get(verb: &RocrFetch) -> anyhow::Result<Ending> {
    let steps = Steps::new();
    let mut told = |step: &str| steps.next(step);
    let fetched = fetch(&verb.version.0, &folder(), &mut told)?;
    if verb.hip {
        for installation in &fetched {
            fetch_hip(installation.release(), &folder(), &mut told)?;
        }
    }
    drop(steps);
    show(&fetched)
}

fn start(verb: &RocrRun) -> anyhow::Result<Ending> {
    let installation = match verb.version {
        Some(release) => Installation::open(&folder(), release)?,
        None => newest().map_or_else(|| Installation::open(&folder(), Release::R7_2_4), Ok)?,
    };
    let (program, arguments) = super::split(&verb.program)?;
    let mut command = self::command(&installation, program);
    command.args(arguments);
    super::become_program(command, program)
}

/// A command that starts a program with a release, which is also what this command uses if it is
/// the program.
pub fn command(installation: &Installation, program: &OsStr) -> Command {
    let mut command = installation.command(program);
    command.env("HSA_VMM_RUNTIME", installation.runtime());
    command
}

/// The releases that were fetched, oldest first.
fn all() -> Vec<Installation> {
    let folder = folder();
    Release::ALL
        .into_iter()
        .filter_map(|release| Installation::open(&folder, release).ok())
        .collect()
}

/// The newest release that was fetched.
pub fn newest() -> Option<Installation> {
    all().pop()
}

fn show(installations: &[Installation]) -> anyhow::Result<Ending> {
    let mut rows = table(&["release", "package", "C library", "runtime", "HIP"]);
    for installation in installations {
        let packages = installation.packages();
        let version = |name: &str| {
            let line = packages.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_default().to_owned()
        };
        rows.add_row(vec![
            installation.release().to_string(),
            version("libhsa-runtime64-1"),
            version("libc6"),
            installation.runtime().display().to_string(),
            installation.hip().map(|path| path.display().to_string()).unwrap_or_default(),
        ]);
    }
    writeln!(anstream::stdout().lock(), "{rows}").context("cannot write the table")?;
    if installations.is_empty() {
        anstream::eprintln!("nothing was fetched yet: `hsa-vmm rocr fetch` does it");
    }
    Ok(Ending::Well)
}
