//! `hsa-vmm rocr`: AMD's own runtime.

use crate::Ending;
use crate::progress::Steps;
use crate::screen::{Screen, note};
use crate::table::table;
use anyhow::Context;
use clap::{Args, Subcommand};
use hsa_rocr::{Installation, Release, UnknownRelease, fetch, fetch_hip, folder};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::Command;
use std::str::FromStr;

/// What to do with AMD's runtime.
#[derive(Debug, Subcommand)]
pub enum Rocr {
    /// Get releases from this machine's package mirror; nothing is installed
    ///
    /// They go to `rocr` in cargo's build folder, or to the user's cache, or to HSA_VMM_ROCR.
    /// apt-get gets them from the mirror that the machine already uses, or from HSA_VMM_MIRROR,
    /// and checks the archive's signatures.
    Fetch(RocrFetch),
    /// Show what was fetched
    List,
    /// Run a program with a fetched release, its loader and its C library
    ///
    /// The program is an executable of the machine, or `rocminfo` of the release. It finds the
    /// runtime as libhsa-runtime64.so.1, and in HSA_VMM_RUNTIME.
    Run(RocrRun),
}

#[derive(Args, Debug)]
pub struct RocrFetch {
    /// Which release: 6.1.2, 6.4.3, 7.2.4 or all
    #[arg(long, value_name = "VERSION", default_value = "all")]
    pub version: Releases,
    /// HIP, too, to be measured with `bench --hip`; there is one for 6.4.3 and 7.2.4 (0.3 GB each)
    #[arg(long)]
    pub hip: bool,
}

#[derive(Args, Debug)]
pub struct RocrRun {
    /// Which release: 6.1.2, 6.4.3 or 7.2.4; the newest of those that were fetched, if none is said
    #[arg(long, value_name = "VERSION")]
    pub version: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// One release, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Releases(pub Vec<Release>);

impl FromStr for Releases {
    type Err = UnknownRelease;

    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        if text == "all" {
            return Ok(Self(Release::ALL.to_vec()));
        }
        Ok(Self(vec![text.parse()?]))
    }
}

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
    let (program, arguments) = crate::program::split(&verb.program)?;
    let mut command = self::command(&installation, program);
    command.args(arguments);
    crate::program::become_program(command, program)
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
    let mut rows = table(&["release", "package", "C library"]);
    let mut files = Vec::new();
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
        ]);
        // Not in the table: a path in two lines can be neither read nor copied.
        files.push(installation.runtime().display().to_string());
        files.extend(installation.hip().map(|path| path.display().to_string()));
    }
    let mut out = Screen::stdout();
    out.table(&rows).context("cannot write the table")?;
    if !files.is_empty() {
        writeln!(out, "\n{}", files.join("\n")).context("cannot write the files")?;
    }
    if installations.is_empty() {
        note!("nothing was fetched yet: `hsa-vmm rocr fetch` does it");
    }
    Ok(Ending::Well)
}
