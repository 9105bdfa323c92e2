//! `hsa-vmm rocr`: fetches AMD's runtime and runs programs with it.

mod check;

use crate::progress::Steps;
use crate::screen::{Screen, note};
use crate::table::table;
use crate::{BadUsage, Exit};
use anyhow::Context;
use clap::{Args, Subcommand};
use hsa_rocr::{
    FetchedRelease, InvalidRelease, Release, UntrustedFolder, fetch, fetch_from, fetch_hip, folder,
};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

/// The subcommands of `rocr`.
#[derive(Debug, Subcommand)]
pub enum Rocr {
    /// Download releases from this machine's package mirror; installs nothing
    ///
    /// --from stores another release of AMD's runtime that this machine has.
    ///
    /// The releases are stored in the folder that HSA_VMM_ROCR names. Without HSA_VMM_ROCR, they are stored in `rocr`
    /// in cargo's build folder if this program was built there, or else in `hsa-vmm/rocr` in the user's cache. apt-get
    /// downloads the releases from the mirror that the machine uses, or from HSA_VMM_MIRROR, and checks the archive's
    /// signatures.
    Fetch(RocrFetch),
    /// List the fetched releases
    List,
    /// Run a program with a fetched release, its loader and its C library
    ///
    /// The program is an executable of this machine, or `rocminfo` of the release. The program finds the
    /// runtime as libhsa-runtime64.so.1 and through HSA_VMM_RUNTIME.
    Run(RocrRun),
    /// Test a fetched release on the emulated driver, and compare it with another release
    ///
    /// Runs `conform` with this release and with the newest other downloaded release, `info` and `bringup` with this
    /// release, and compares the two reports of `conform` with `diff`. Writes a summary, which names the quirks of the
    /// release. Use this subcommand for a release that `fetch --from` has stored.
    Check(check::RocrCheck),
}

#[derive(Args, Debug)]
pub struct RocrFetch {
    /// The release: 6.1.2, 6.4.3, 7.2.4, the beginning of one (`7`), or all; with --from, the name of the
    /// stored runtime
    #[arg(value_name = "VERSION", default_value = "all")]
    pub version: Releases,
    /// VERSION as an option, which older scripts use
    #[arg(long = "version", value_name = "VERSION", hide = true, conflicts_with = "version")]
    pub version_option: Option<Releases>,
    /// Store the runtime of this folder, .deb, .tar or libhsa-runtime64.so instead of downloading a release
    ///
    /// The other subcommands accept the name of the stored runtime like that of a downloaded release: `emulate --rocr
    /// 7.14.0`. Without VERSION, the name is the version in ROCm's file `.info/version`. Libraries that
    /// the source lacks, and the C library, are taken from release 7.2.4, which is downloaded if needed.
    #[arg(long, value_name = "PATH", conflicts_with = "hip")]
    pub from: Option<PathBuf>,
    /// Fetch HIP, too, for `bench --hip`; available for 6.4.3 and 7.2.4 (0.3 GB each)
    #[arg(long)]
    pub hip: bool,
}

#[derive(Args, Debug)]
pub struct RocrRun {
    /// The release, as `rocr list` shows it; by default the newest that was downloaded
    #[arg(long, value_name = "VERSION", alias = "version", value_parser = parse_release)]
    pub rocr: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// One release, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Releases(pub Vec<Release>);

impl FromStr for Releases {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Release::ALL.to_vec()));
        }
        Ok(Self(vec![parse_release(text)?]))
    }
}

/// Parses a release. Completes the beginning of a known release: `7`, `6.4`. A release is known if it can be downloaded
/// or was fetched. Returns a name that matches no known release unchanged.
pub fn parse_release(text: &str) -> Result<Release, String> {
    let release: Release = text.parse().map_err(|error: InvalidRelease| error.to_string())?;
    let fetched = fetched_releases().unwrap_or_default();
    let fetched = fetched.iter().map(FetchedRelease::release);
    let known: BTreeSet<Release> = Release::ALL.into_iter().chain(fetched).collect();
    complete(release, &known)
}

/// If exactly one known release begins with the components of `release`, returns that known release. Returns `release`
/// unchanged if it is known, or if no known release begins with `release`.
///
/// # Errors
/// Returns a message if several known releases begin with `release`.
fn complete(release: Release, known: &BTreeSet<Release>) -> Result<Release, String> {
    let begins = |known: &&Release| {
        let rest = known.version().strip_prefix(release.version());
        rest.is_some_and(|rest| rest.starts_with(['.', '-', '+', '_']))
    };
    let matching: Vec<Release> = known.iter().filter(begins).copied().collect();
    match matching[..] {
        _ if known.contains(&release) => Ok(release),
        [] => Ok(release),
        [only] => Ok(only),
        _ => {
            let names: Vec<&str> = matching.iter().map(Release::version).collect();
            Err(format!("`{release}` is the beginning of several releases: {}", names.join(", ")))
        }
    }
}

pub fn run(args: &Rocr) -> anyhow::Result<Exit> {
    match args {
        Rocr::Fetch(args) => fetch_releases(args),
        Rocr::List => print_releases(&fetched_releases()?),
        Rocr::Run(args) => run_program(args),
        Rocr::Check(args) => check::run(args),
    }
}

fn fetch_releases(args: &RocrFetch) -> anyhow::Result<Exit> {
    let steps = Steps::new();
    let mut on_step = |step: &str| steps.begin(step);
    let Releases(releases) = args.version_option.as_ref().unwrap_or(&args.version);
    if let Some(source) = &args.from {
        let name = match releases[..] {
            [name] => Some(name),
            _ => None,
        };
        let stored = fetch_from(source, name, &folder()?, &mut on_step)?;
        drop(steps);
        return print_releases(&[stored]);
    }
    let folder = folder()?;
    let is_unknown = |release: &&Release| {
        !release.is_packaged() && FetchedRelease::open(&folder, **release).is_err()
    };
    if let Some(unknown) = releases.iter().find(is_unknown) {
        let message = format!(
            "unknown release `{unknown}`: 6.1.2, 6.4.3 and 7.2.4 can be downloaded; `--from PATH` stores another one"
        );
        return Err(BadUsage(message).into());
    }
    let fetched = fetch(releases, &folder, &mut on_step)?;
    if args.hip {
        for fetched in &fetched {
            fetch_hip(fetched.release(), &folder, &mut on_step)?;
        }
    }
    drop(steps);
    print_releases(&fetched)
}

fn run_program(args: &RocrRun) -> anyhow::Result<Exit> {
    let fetched = match args.rocr {
        Some(release) => FetchedRelease::open(&folder()?, release)?,
        None => match newest_downloaded() {
            Some(newest) => newest,
            None => FetchedRelease::open(&folder()?, Release::R7_2_4)?,
        },
    };
    let (program, arguments) = crate::program::split_command_line(&args.program)?;
    let mut command = command_with_release(&fetched, program);
    command.args(arguments);
    let release = fetched.release().to_string();
    let arguments = ["rocr", "run", "--rocr", &release].map(str::to_owned);
    crate::program::set_outer_command(&mut command, &arguments);
    crate::program::become_program(command, program)
}

/// Returns a command that runs a program with a release. If the program is `hsa-vmm`, it loads that release.
pub fn command_with_release(fetched: &FetchedRelease, program: &OsStr) -> Command {
    let mut command = fetched.command(program);
    command.env("HSA_VMM_RUNTIME", fetched.runtime());
    command
}

/// Returns the fetched releases: downloaded releases, oldest first, then releases stored with `--from`.
fn fetched_releases() -> Result<Vec<FetchedRelease>, UntrustedFolder> {
    Ok(FetchedRelease::all(&folder()?))
}

/// Returns the newest downloaded release. Prints a note if another user can change the folder of the releases.
pub fn newest_downloaded() -> Option<FetchedRelease> {
    let fetched = fetched_releases().inspect_err(|error| note!("{error}"));
    fetched.unwrap_or_default().into_iter().rfind(|fetched| fetched.release().is_packaged())
}

fn print_releases(fetched_releases: &[FetchedRelease]) -> anyhow::Result<Exit> {
    let mut rows = table(&["release", "package", "C library"]);
    let mut files = Vec::new();
    for fetched in fetched_releases {
        let packages = fetched.packages();
        let version = |name: &str| {
            let line = packages.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_default().to_owned()
        };
        rows.add_row(vec![
            fetched.release().to_string(),
            version("libhsa-runtime64-1"),
            version("libc6"),
        ]);
        // Print paths outside of the table, so that their lines are not wrapped.
        files.push(fetched.runtime().display().to_string());
        files.extend(fetched.hip().map(|path| path.display().to_string()));
    }
    let mut out = Screen::stdout();
    out.write_table(&rows).context("cannot write the table")?;
    if !files.is_empty() {
        writeln!(out, "\n{}", files.join("\n")).context("cannot write the files")?;
    }
    if fetched_releases.is_empty() {
        note!("no release was fetched yet; run `hsa-vmm rocr fetch`");
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_is_completed_if_one_release_matches() {
        let release = |text: &str| text.parse::<Release>().unwrap();
        let other = release("7.14.0");
        for (text, known, expected) in [
            ("7", &Release::ALL[..], Ok("7.2.4")),
            ("6.4", &Release::ALL, Ok("6.4.3")),
            ("6.4.3", &Release::ALL, Ok("6.4.3")),
            ("6", &Release::ALL, Err("6.1.2, 6.4.3")),
            ("7", &[Release::R7_2_4, other], Err("7.14.0, 7.2.4")),
            ("7.1", &[Release::R7_2_4, other], Ok("7.1")),
            ("7.14", &[Release::R7_2_4, other], Ok("7.14.0")),
            ("5.0", &Release::ALL, Ok("5.0")),
        ] {
            let found = complete(release(text), &known.iter().copied().collect());
            match expected {
                Ok(version) => assert_eq!(found, Ok(release(version)), "{text}"),
                Err(names) => assert!(found.unwrap_err().ends_with(names), "{text}"),
            }
        }
    }
}
