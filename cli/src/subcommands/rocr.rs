//! `hsa-vmm rocr`: fetches AMD's runtime and runs programs with it.

use crate::Exit;
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

/// The subcommands of `rocr`.
#[derive(Debug, Subcommand)]
pub enum Rocr {
    /// Download releases from this machine's package mirror; installs nothing
    ///
    /// The releases are stored in `rocr` in cargo's build folder, in the user's cache, or in HSA_VMM_ROCR.
    /// apt-get downloads them from the mirror that the machine uses, or from HSA_VMM_MIRROR, and
    /// checks the archive's signatures.
    Fetch(RocrFetch),
    /// List the fetched releases
    List,
    /// Run a program with a fetched release, its loader and its C library
    ///
    /// The program is an executable of this machine, or `rocminfo` of the release. It finds the
    /// runtime as libhsa-runtime64.so.1 and through HSA_VMM_RUNTIME.
    Run(RocrRun),
}

#[derive(Args, Debug)]
pub struct RocrFetch {
    /// The release: 6.1.2, 6.4.3, 7.2.4 or all
    #[arg(long, value_name = "VERSION", default_value = "all")]
    pub version: Releases,
    /// Fetch HIP, too, for `bench --hip`; available for 6.4.3 and 7.2.4 (0.3 GB each)
    #[arg(long)]
    pub hip: bool,
}

#[derive(Args, Debug)]
pub struct RocrRun {
    /// The release: 6.1.2, 6.4.3 or 7.2.4; by default the newest that was fetched
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

pub fn run(args: &Rocr) -> anyhow::Result<Exit> {
    match args {
        Rocr::Fetch(args) => fetch_releases(args),
        Rocr::List => show(&fetched_releases()),
        Rocr::Run(args) => start(args),
    }
}

fn fetch_releases(args: &RocrFetch) -> anyhow::Result<Exit> {
    let steps = Steps::new();
    let mut on_step = |step: &str| steps.begin(step);
    let fetched = fetch(&args.version.0, &folder(), &mut on_step)?;
    if args.hip {
        for installation in &fetched {
            fetch_hip(installation.release(), &folder(), &mut on_step)?;
        }
    }
    drop(steps);
    show(&fetched)
}

fn start(args: &RocrRun) -> anyhow::Result<Exit> {
    let installation = match args.version {
        Some(release) => Installation::open(&folder(), release)?,
        None => newest().map_or_else(|| Installation::open(&folder(), Release::R7_2_4), Ok)?,
    };
    let (program, arguments) = crate::program::split(&args.program)?;
    let mut command = self::command(&installation, program);
    command.args(arguments);
    let release = installation.release().to_string();
    let arguments = ["rocr", "run", "--version", &release].map(str::to_owned);
    crate::program::set_outer_command(&mut command, &arguments);
    crate::program::become_program(command, program)
}

/// Returns a command that runs a program with a release. `hsa-vmm` as the program uses that release, too.
pub fn command(installation: &Installation, program: &OsStr) -> Command {
    let mut command = installation.command(program);
    command.env("HSA_VMM_RUNTIME", installation.runtime());
    command
}

/// Returns the fetched releases, oldest first.
fn fetched_releases() -> Vec<Installation> {
    let folder = folder();
    Release::ALL
        .into_iter()
        .filter_map(|release| Installation::open(&folder, release).ok())
        .collect()
}

/// Returns the newest fetched release.
pub fn newest() -> Option<Installation> {
    fetched_releases().pop()
}

fn show(installations: &[Installation]) -> anyhow::Result<Exit> {
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
        // Print paths outside of the table, so that their lines are not wrapped.
        files.push(installation.runtime().display().to_string());
        files.extend(installation.hip().map(|path| path.display().to_string()));
    }
    let mut out = Screen::stdout();
    out.table(&rows).context("cannot write the table")?;
    if !files.is_empty() {
        writeln!(out, "\n{}", files.join("\n")).context("cannot write the files")?;
    }
    if installations.is_empty() {
        note!("no release was fetched yet; run `hsa-vmm rocr fetch`");
    }
    Ok(Exit::Success)
}
