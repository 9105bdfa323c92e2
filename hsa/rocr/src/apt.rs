//! Access to the machine's package mirror through `apt-get`, with separate state.
//!
//! `apt-get` knows the mirror, the proxy and the archive's keys, and checks signatures and
//! checksums. Here it keeps all of its state in a separate folder, runs no hooks of the machine,
//! and treats every package as not installed, so that it downloads all dependencies, including the
//! C library.

use crate::patience;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// The suites that are searched.
const SUITES: [&str; 4] = ["trixie", "forky", "sid", "experimental"];
/// The archive's keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The timeout of one tool: `apt-get` can block forever on an unresponsive mirror or a full disk.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// The configuration file that replaces the machine's.
const CONF: &str = "apt.conf";

/// Why a package could not be downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AptError {
    /// Debian's package tools are missing.
    #[error("cannot start `{program}`: {cause}; fetching needs Debian's package tools")]
    NoTool {
        /// The program.
        program: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The machine's package sources contain no mirror of Debian.
    #[error(
        "no Debian mirror found in the package sources of this machine; set HSA_VMM_MIRROR to one"
    )]
    NoMirror,
    /// The archive's keys are missing.
    #[error("{KEYS} not found; install the package debian-archive-keyring")]
    NoKeys,
    /// A tool failed.
    #[error("`{what}` failed ({status}){}", last_words(said))]
    Failed {
        /// The tool and what it was to do.
        what: String,
        /// Its status.
        status: String,
        /// What it wrote to standard error.
        said: String,
    },
    /// A tool timed out.
    #[error("`{what}` did not end within {patience:?}; is the mirror reachable?")]
    NoEnd {
        /// The tool and what it was to do.
        what: String,
        /// The timeout.
        patience: Duration,
    },
    /// No suite has that version.
    #[error("no suite has {package} {version}; available: {there}")]
    NoVersion {
        /// The package.
        package: String,
        /// The requested version.
        version: String,
        /// The available versions.
        there: String,
    },
    /// A file could not be created.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// Returns the last lines of a tool's output, which describe the failure.
fn last_words(said: &str) -> String {
    let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(6)..].join("\n  ");
    if last.is_empty() { String::new() } else { format!(":\n  {last}") }
}

/// A version of a package, and the suite that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub version: String,
    pub suite: String,
}

/// The archive of one mirror, with its lists in a separate folder.
#[derive(Debug)]
pub(crate) struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Downloads the lists of packages into an empty folder.
    pub fn open(folder: &Path) -> Result<Self, AptError> {
        if !Path::new(KEYS).exists() {
            return Err(AptError::NoKeys);
        }
        let archive = Self { folder: folder.to_owned() };
        let file = |path: &Path| {
            let path = path.to_owned();
            move |cause| AptError::File { path, cause }
        };
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(file(&part))?;
        }
        let mirror = mirror()?;
        let ours = |name: &str| folder.join(name).display().to_string();
        // Only the lists of packages: no translations, icons, or whatever else is configured.
        let line =
            |suite| format!("deb [signed-by={KEYS} target=Packages] {mirror} {suite} main\n");
        let sources: String = SUITES.into_iter().map(line).collect();
        let mut configuration = how_to_reach_mirrors()?;
        for (option, value) in [
            // Ignore the machine's configuration; the needed part is copied above.
            ("Dir::Etc::Main", "/dev/null".to_owned()),
            ("Dir::Etc::Parts", "/dev/null".to_owned()),
            ("Dir::Etc::PreferencesParts", "/dev/null".to_owned()),
            ("Dir::Etc::SourceList", ours("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
            ("Dir::State::Lists", ours("lists")),
            ("Dir::State::status", ours("status")),
            ("Dir::Cache", ours("cache")),
            // The sandbox user of apt cannot write to a folder of root.
            ("APT::Sandbox::User", String::new()),
            // Accept lists of a suite that is no longer updated; the signature is still checked.
            ("Acquire::Check-Valid-Until", "false".to_owned()),
            ("Acquire::Retries", "3".to_owned()),
        ] {
            configuration += &format!("{option} \"{value}\";\n");
        }
        let files = [("sources.list", sources), ("status", String::new()), (CONF, configuration)];
        for (name, contents) in files {
            let path = folder.join(name);
            fs::write(&path, contents).map_err(file(&path))?;
        }
        archive.run("apt-get", ["-qq", "update"])?;
        Ok(archive)
    }

    /// Returns the versions of a package in the suites.
    pub fn offers(&self, package: &str) -> Result<Vec<Offer>, AptError> {
        let output = self.run("apt-cache", ["madison", package])?;
        Ok(offers(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Downloads a version of a package with its dependencies, and other packages of that suite
    /// without theirs. Returns the folder of the files.
    pub fn download(
        &self,
        package: &str,
        offer: &Offer,
        alone: &[&str],
    ) -> Result<PathBuf, AptError> {
        let archives = self.folder.join("cache/archives");
        let exactly = format!("{package}={}", offer.version);
        let wanted = ["-qq", "--yes", "--no-install-recommends", "--download-only"];
        let wanted = wanted.into_iter().chain(["-t", &offer.suite, "install", &exactly]);
        self.run("apt-get", wanted)?;
        if !alone.is_empty() {
            let wanted = ["-qq", "-t", &offer.suite, "download"];
            let mut command = self.command("apt-get");
            command.args(wanted).args(alone).current_dir(&archives);
            run("apt-get download", "apt-get", command)?;
        }
        Ok(archives)
    }

    fn run<'a>(
        &self,
        program: &'static str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<Output, AptError> {
        let mut command = self.command(program);
        let arguments: Vec<_> = arguments.into_iter().collect();
        command.args(&arguments);
        run(&format!("{program} {}", arguments.join(" ")), program, command)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join(CONF));
        command
    }
}

/// Unpacks a package into a folder.
pub(crate) fn unpack(package: &Path, folder: &Path) -> Result<(), AptError> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(folder);
    run(&format!("dpkg-deb --extract {}", package.display()), "dpkg-deb", command).map(drop)
}

fn run(what: &str, program: &'static str, mut command: Command) -> Result<Output, AptError> {
    // The output is parsed, so its language is fixed. Questions would block: there is no terminal.
    command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(std::process::Stdio::null());
    // The tools must not load an emulated driver.
    command.env_remove("LD_PRELOAD");
    let output = output_within(PATIENCE, command);
    let output = output.map_err(|cause| AptError::NoTool { program, cause })?;
    let Some(output) = output else {
        return Err(AptError::NoEnd { what: what.to_owned(), patience: PATIENCE });
    };
    if !output.status.success() {
        return Err(AptError::Failed {
            what: what.to_owned(),
            status: output.status.to_string(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(output)
}

/// Runs a command; on a timeout kills its process group.
fn output_within(patience: Duration, mut command: Command) -> io::Result<Option<Output>> {
    let (mut said, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdout(said.try_clone()?).stderr(errors.try_clone()?).process_group(0);
    let mut child = command.spawn()?;
    let Some(status) = patience::wait(&mut child, patience)? else {
        // It may just have ended.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        child.wait()?;
        return Ok(None);
    };
    let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
    for (file, bytes) in [(&mut said, &mut output.stdout), (&mut errors, &mut output.stderr)] {
        file.rewind()?;
        file.read_to_end(bytes)?;
    }
    Ok(Some(output))
}

/// Returns the machine's settings for connections to mirrors: proxies, certificates, timeouts.
fn how_to_reach_mirrors() -> Result<String, AptError> {
    let mut command = Command::new("apt-config");
    command.arg("dump");
    let output = run("apt-config dump", "apt-config", command)?;
    let all = String::from_utf8_lossy(&output.stdout);
    let lines = all.lines().filter(|line| line.starts_with("Acquire::"));
    Ok(lines.map(|line| line.to_owned() + "\n").collect())
}

/// Returns `HSA_VMM_MIRROR`, or the Debian mirror that this machine uses.
fn mirror() -> Result<String, AptError> {
    if let Ok(named) = std::env::var("HSA_VMM_MIRROR")
        && !named.is_empty()
    {
        return Ok(named);
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"]);
    let output = run("apt-get indextargets", "apt-get", command)?;
    debian(&String::from_utf8_lossy(&output.stdout)).map(str::to_owned).ok_or(AptError::NoMirror)
}

/// Returns the first site that is the archive itself, not its security updates.
fn debian(sites: &str) -> Option<&str> {
    sites.lines().map(str::trim).find(|site| site.trim_end_matches('/').ends_with("/debian"))
}

/// Reads the table of `apt-cache madison`: `package | version | site suite/component architecture Packages`.
fn offers(table: &str) -> Vec<Offer> {
    let offer = |line: &str| {
        let mut columns = line.split('|').map(str::trim);
        let (_, version, place) = (columns.next()?, columns.next()?, columns.next()?);
        let suite = place.split_whitespace().nth(1)?.split('/').next()?;
        Some(Offer { version: version.to_owned(), suite: suite.to_owned() })
    };
    table.lines().filter_map(offer).collect()
}

/// Finds an upstream version: `6.4.3` matches `6.4.3+dfsg-5`, but not `6.4.30-1`.
pub(crate) fn choose(package: &str, version: &str, offers: &[Offer]) -> Result<Offer, AptError> {
    let is_it = |offer: &&Offer| {
        let upstream = offer.version.split_once(':').map_or(offer.version.as_str(), |(_, v)| v);
        let rest = upstream.strip_prefix(version);
        rest.is_some_and(|rest| {
            !rest.starts_with(|next: char| next.is_ascii_digit() || next == '.')
        })
    };
    offers.iter().find(is_it).cloned().ok_or_else(|| {
        let there: Vec<_> =
            offers.iter().map(|offer| format!("{} in {}", offer.version, offer.suite)).collect();
        AptError::NoVersion {
            package: package.to_owned(),
            version: version.to_owned(),
            there: if there.is_empty() { "none".to_owned() } else { there.join(", ") },
        }
    })
}

/// Returns a package's name and version from its file name.
pub(crate) fn name_and_version(file: &OsStr) -> Option<String> {
    let mut parts = file.to_str()?.strip_suffix(".deb")?.split('_');
    let (name, version) = (parts.next()?, parts.next()?);
    Some(format!("{name} {}", version.replace("%3a", ":")))
}

#[cfg(test)]
mod tests {
    use super::{AptError, choose, debian, name_and_version, offers, output_within};
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn endless_commands_are_killed() {
        let begun = Instant::now();
        let mut endless = Command::new("sh");
        endless.args(["-c", "sleep 60 & sleep 60"]);
        assert!(output_within(Duration::from_millis(50), endless).unwrap().is_none());
        assert!(begun.elapsed() < Duration::from_secs(30));
        let mut both = Command::new("sh");
        both.args(["-c", "echo said; echo errors >&2"]);
        let output = output_within(Duration::from_secs(30), both).unwrap().unwrap();
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"said\n"[..], &b"errors\n"[..]));
    }

    const TABLE: &str = "\
        libhsa-runtime64-1 | 7.2.4+dfsg-1~exp1 | https://mirror/debian experimental/main amd64 Packages\n\
        libhsa-runtime64-1 | 6.4.3+dfsg-5 | https://mirror/debian forky/main amd64 Packages\n\
        libhsa-runtime64-1 |    6.1.2-3 | https://mirror/debian trixie/main amd64 Packages\n";

    #[test]
    fn version_is_found_in_its_suite() {
        let offers = offers(TABLE);
        let suite = |version| choose("package", version, &offers).map(|offer| offer.suite).ok();
        assert_eq!(suite("6.1.2").as_deref(), Some("trixie"));
        assert_eq!(suite("6.4.3").as_deref(), Some("forky"));
        assert_eq!(suite("7.2.4").as_deref(), Some("experimental"));
        assert_eq!(suite("7.2"), None, "7.2.4 is another version than 7.2");
    }

    #[test]
    fn missing_version_error_lists_offers() {
        let error = choose("package", "9.9", &offers(TABLE)).unwrap_err();
        assert!(matches!(error, AptError::NoVersion { .. }));
        assert!(error.to_string().contains("6.1.2-3 in trixie"), "{error}");
        assert!(choose("package", "9.9", &[]).unwrap_err().to_string().ends_with("none"));
    }

    #[test]
    fn archive_differs_from_other_sites() {
        let sites = "https://other/apt\nhttps://mirror/debian-security\nhttps://mirror/debian/\n";
        assert_eq!(debian(sites), Some("https://mirror/debian/"));
        assert_eq!(debian("https://mirror/ubuntu"), None);
    }

    #[test]
    fn file_name_gives_package_and_version() {
        let name = |file: &str| name_and_version(file.as_ref());
        assert_eq!(name("zlib1g_1%3a1.3-3_amd64.deb").as_deref(), Some("zlib1g 1:1.3-3"));
        assert_eq!(name("lock"), None);
    }
}
