//! Access to the machine's package mirror through `apt-get`, with separate state.
//!
//! `apt-get` knows the mirror, the proxy and the archive's keys, and checks signatures and
//! checksums. Here, `apt-get` keeps all of its state in a separate folder, and runs no hooks of the
//! machine. The separate state lists no installed package, so that `apt-get` downloads all
//! dependencies, including the C library.

use crate::timeout;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// The suites to search.
const SUITES: [&str; 4] = ["trixie", "forky", "sid", "experimental"];
/// The archive's keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The timeout of one tool: `apt-get` can block forever on an unresponsive mirror or a full disk.
const TIMEOUT: Duration = Duration::from_secs(5 * 60);
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
    /// The configured mirror is not one word.
    #[error("HSA_VMM_MIRROR is invalid: {0:?} contains white space; set it to one address")]
    InvalidMirror(String),
    /// The archive's keys are missing.
    #[error("{KEYS} not found; install the package debian-archive-keyring")]
    NoKeys,
    /// No list of packages could be downloaded.
    #[error(
        "cannot download the lists of packages from {mirror}{}\nCheck the network and the proxy, or set \
         HSA_VMM_MIRROR to another Debian mirror",
        last_lines(stderr)
    )]
    NoLists {
        /// The mirror.
        mirror: String,
        /// The output of `apt-get update` to standard error.
        stderr: String,
    },
    /// A tool could not be run, or its output could not be stored.
    #[error("cannot run `{command}`: {cause}")]
    NotRun {
        /// The command line of the tool.
        command: String,
        /// The system's error.
        cause: io::Error,
    },
    /// A tool failed.
    #[error("`{command}` failed ({status}){}", last_lines(stderr))]
    Failed {
        /// The command line of the tool.
        command: String,
        /// The exit status.
        status: String,
        /// The output to standard error.
        stderr: String,
    },
    /// A tool timed out.
    #[error("`{command}` did not end within {timeout:?}; is the mirror reachable?")]
    TimedOut {
        /// The command line of the tool.
        command: String,
        /// The timeout.
        timeout: Duration,
    },
    /// No suite has that version.
    #[error("no suite has {package} {version}; available: {available}")]
    NoVersion {
        /// The package.
        package: String,
        /// The requested version.
        version: String,
        /// The available versions.
        available: String,
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
fn last_lines(output: &str) -> String {
    let lines: Vec<_> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(6)..].join("\n  ");
    if last.is_empty() { String::new() } else { format!(":\n  {last}") }
}

/// A version of a package, and the suite that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackageVersion {
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
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |cause| AptError::File { path, cause }
        };
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(file_error(&part))?;
        }
        let mirror = mirror()?;
        let path_of = |name: &str| folder.join(name).display().to_string();
        // Download only the lists of packages, without translations or icons.
        let source =
            |suite| format!("deb [signed-by={KEYS} target=Packages] {mirror} {suite} main\n");
        let sources: String = SUITES.into_iter().map(source).collect();
        let mut configuration = connection_settings()?;
        for (option, value) in [
            // Ignore the machine's configuration, except for the connection settings above.
            ("Dir::Etc::Main", "/dev/null".to_owned()),
            ("Dir::Etc::Parts", "/dev/null".to_owned()),
            ("Dir::Etc::PreferencesParts", "/dev/null".to_owned()),
            ("Dir::Etc::SourceList", path_of("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
            ("Dir::State::Lists", path_of("lists")),
            ("Dir::State::status", path_of("status")),
            ("Dir::Cache", path_of("cache")),
            // The sandbox user of apt cannot write to a folder of root.
            ("APT::Sandbox::User", String::new()),
            // Accept lists of a suite that is no longer updated. `apt-get` still checks the
            // signature.
            ("Acquire::Check-Valid-Until", "false".to_owned()),
            ("Acquire::Retries", "3".to_owned()),
        ] {
            configuration += &format!("{option} \"{value}\";\n");
        }
        let files = [("sources.list", sources), ("status", String::new()), (CONF, configuration)];
        for (name, contents) in files {
            let path = folder.join(name);
            fs::write(&path, contents).map_err(file_error(&path))?;
        }
        let output = archive.run("apt-get", ["-qq", "update"])?;
        // `apt-get` succeeds even if it cannot connect to the mirror.
        if !archive.has_lists().map_err(file_error(folder))? {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(AptError::NoLists { mirror, stderr });
        }
        Ok(archive)
    }

    /// Returns whether any list of packages was downloaded.
    fn has_lists(&self) -> io::Result<bool> {
        let mut files = fs::read_dir(self.folder.join("lists"))?;
        files.try_fold(false, |found, file| {
            Ok(found || file?.file_name().to_string_lossy().contains("_Packages"))
        })
    }

    /// Returns the versions of a package in the suites.
    pub fn versions(&self, package: &str) -> Result<Vec<PackageVersion>, AptError> {
        let output = self.run("apt-cache", ["madison", package])?;
        Ok(versions(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Downloads a version of a package with its dependencies. Also downloads the packages `others`
    /// of that suite, without their dependencies. Returns the folder of the files.
    pub fn download(
        &self,
        package: &str,
        chosen: &PackageVersion,
        others: &[&str],
    ) -> Result<PathBuf, AptError> {
        let archives = self.folder.join("cache/archives");
        let request = format!("{package}={}", chosen.version);
        let arguments = ["-qq", "--yes", "--no-install-recommends", "--download-only"];
        let arguments = arguments.into_iter().chain(["-t", &chosen.suite, "install", &request]);
        self.run("apt-get", arguments)?;
        if others.is_empty() {
            Ok(archives)
        } else {
            self.download_without_dependencies(&chosen.suite, others)
        }
    }

    /// Downloads packages of a suite without their dependencies. Returns the folder of the files.
    pub fn download_without_dependencies(
        &self,
        suite: &str,
        packages: &[&str],
    ) -> Result<PathBuf, AptError> {
        let archives = self.folder.join("cache/archives");
        let mut command = self.command("apt-get");
        command.args(["-qq", "-t", suite, "download"]).args(packages).current_dir(&archives);
        run(&format!("apt-get download {}", packages.join(" ")), "apt-get", command)?;
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

pub(crate) fn unpack(package: &Path, folder: &Path) -> Result<(), AptError> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(folder);
    run(&format!("dpkg-deb --extract {}", package.display()), "dpkg-deb", command).map(drop)
}

/// Runs a tool with a timeout. `line` is the tool's command line in errors.
pub(crate) fn run(
    line: &str,
    program: &'static str,
    mut command: Command,
) -> Result<Output, AptError> {
    // Fix the language of the output, because callers parse the output. Disable questions, which would
    // block without a terminal.
    command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(std::process::Stdio::null());
    // The tools must not load an emulated driver.
    command.env_remove("LD_PRELOAD");
    let output = output_with_timeout(TIMEOUT, command).map_err(|error| match error {
        RunError::Start(cause) if cause.kind() == io::ErrorKind::NotFound => {
            AptError::NoTool { program, cause }
        }
        RunError::Start(cause) | RunError::Other(cause) => {
            AptError::NotRun { command: line.to_owned(), cause }
        }
    })?;
    let Some(output) = output else {
        return Err(AptError::TimedOut { command: line.to_owned(), timeout: TIMEOUT });
    };
    if !output.status.success() {
        return Err(AptError::Failed {
            command: line.to_owned(),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(output)
}

/// The error of a command's start, or of its files and its end.
#[derive(Debug)]
enum RunError {
    Start(io::Error),
    Other(io::Error),
}

impl From<io::Error> for RunError {
    fn from(cause: io::Error) -> Self {
        Self::Other(cause)
    }
}

/// Runs a command. After the timeout, kills its process group and returns `None`.
fn output_with_timeout(
    timeout: Duration,
    mut command: Command,
) -> Result<Option<Output>, RunError> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let mut child = command.spawn().map_err(RunError::Start)?;
    let Some(status) = timeout::wait(&mut child, timeout)? else {
        // Ignore errors: the process may have ended meanwhile.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        child.wait()?;
        return Ok(None);
    };
    let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
    for (file, bytes) in [(&mut stdout, &mut output.stdout), (&mut stderr, &mut output.stderr)] {
        file.rewind()?;
        file.read_to_end(bytes)?;
    }
    Ok(Some(output))
}

/// Returns the machine's settings for connections to mirrors: proxies, certificates, timeouts.
fn connection_settings() -> Result<String, AptError> {
    let mut command = Command::new("apt-config");
    command.arg("dump");
    let output = run("apt-config dump", "apt-config", command)?;
    let all = String::from_utf8_lossy(&output.stdout);
    let lines = all.lines().filter(|line| line.starts_with("Acquire::"));
    Ok(lines.map(|line| line.to_owned() + "\n").collect())
}

/// Returns `HSA_VMM_MIRROR`, or the Debian mirror that this machine uses.
fn mirror() -> Result<String, AptError> {
    if let Ok(mirror) = std::env::var("HSA_VMM_MIRROR")
        && !mirror.is_empty()
    {
        return checked_mirror(mirror);
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"]);
    let output = run("apt-get indextargets", "apt-get", command)?;
    let sites = String::from_utf8_lossy(&output.stdout);
    debian_mirror(&sites).map(str::to_owned).ok_or(AptError::NoMirror)
}

/// Rejects a mirror with white space. In the list of package sources, a line break would end the line that names the
/// archive's keys. The next line could then trust unsigned packages.
fn checked_mirror(mirror: String) -> Result<String, AptError> {
    let is_invalid = mirror.contains(|letter: char| letter.is_whitespace() || letter.is_control());
    if is_invalid { Err(AptError::InvalidMirror(mirror)) } else { Ok(mirror) }
}

/// Returns the first site with Debian's archive. Skips sites with Debian's security updates.
fn debian_mirror(sites: &str) -> Option<&str> {
    sites.lines().map(str::trim).find(|site| site.trim_end_matches('/').ends_with("/debian"))
}

/// Parses the output of `apt-cache madison`, one line per version:
/// `package | version | site suite/component architecture Packages`.
fn versions(table: &str) -> Vec<PackageVersion> {
    let parse_line = |line: &str| {
        let mut columns = line.split('|').map(str::trim);
        let (_, version, site) = (columns.next()?, columns.next()?, columns.next()?);
        let suite = site.split_whitespace().nth(1)?.split('/').next()?;
        Some(PackageVersion { version: version.to_owned(), suite: suite.to_owned() })
    };
    table.lines().filter_map(parse_line).collect()
}

/// Selects the first of `versions` whose upstream version is `version`: `6.4.3` matches
/// `6.4.3+dfsg-5`, but not `6.4.30-1`.
pub(crate) fn choose(
    package: &str,
    version: &str,
    versions: &[PackageVersion],
) -> Result<PackageVersion, AptError> {
    let matches = |candidate: &&PackageVersion| {
        let full = candidate.version.as_str();
        let upstream = full.split_once(':').map_or(full, |(_, upstream)| upstream);
        let rest = upstream.strip_prefix(version);
        rest.is_some_and(|rest| {
            !rest.starts_with(|next: char| next.is_ascii_digit() || next == '.')
        })
    };
    versions.iter().find(matches).cloned().ok_or_else(|| {
        let available: Vec<_> =
            versions.iter().map(|found| format!("{} in {}", found.version, found.suite)).collect();
        AptError::NoVersion {
            package: package.to_owned(),
            version: version.to_owned(),
            available: if available.is_empty() { "none".to_owned() } else { available.join(", ") },
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
    use super::{
        AptError, checked_mirror, choose, debian_mirror, name_and_version, output_with_timeout,
        run, versions,
    };
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn endless_commands_are_killed() {
        let start = Instant::now();
        let mut endless = Command::new("sh");
        endless.args(["-c", "sleep 60 & sleep 60"]);
        assert!(output_with_timeout(Duration::from_millis(50), endless).unwrap().is_none());
        assert!(start.elapsed() < Duration::from_secs(30));
        let mut finite = Command::new("sh");
        finite.args(["-c", "echo output; echo errors >&2"]);
        let output = output_with_timeout(Duration::from_secs(30), finite).unwrap().unwrap();
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"output\n"[..], &b"errors\n"[..]));
    }

    #[test]
    fn only_an_absent_program_is_a_missing_tool() {
        let error = |program| run("tool --option", program, Command::new(program)).unwrap_err();
        assert!(matches!(error("hsa-vmm-absent-program"), AptError::NoTool { .. }));
        // A folder cannot be executed.
        let text = error("/").to_string();
        assert_eq!(text, "cannot run `tool --option`: Permission denied (os error 13)");
    }

    const TABLE: &str = "\
        libhsa-runtime64-1 | 7.2.4+dfsg-1~exp1 | https://mirror/debian experimental/main amd64 Packages\n\
        libhsa-runtime64-1 | 6.4.3+dfsg-5 | https://mirror/debian forky/main amd64 Packages\n\
        libhsa-runtime64-1 |    6.1.2-3 | https://mirror/debian trixie/main amd64 Packages\n";

    #[test]
    fn version_is_found_in_its_suite() {
        let versions = versions(TABLE);
        let suite = |version| choose("package", version, &versions).map(|chosen| chosen.suite).ok();
        assert_eq!(suite("6.1.2").as_deref(), Some("trixie"));
        assert_eq!(suite("6.4.3").as_deref(), Some("forky"));
        assert_eq!(suite("7.2.4").as_deref(), Some("experimental"));
        assert_eq!(suite("7.2"), None, "7.2 does not match 7.2.4");
    }

    #[test]
    fn missing_version_error_lists_available() {
        let error = choose("package", "9.9", &versions(TABLE)).unwrap_err();
        assert!(matches!(error, AptError::NoVersion { .. }));
        assert!(error.to_string().contains("6.1.2-3 in trixie"), "{error}");
        assert!(choose("package", "9.9", &[]).unwrap_err().to_string().ends_with("none"));
    }

    #[test]
    fn mirror_is_distinguished_from_other_sites() {
        let sites = "https://other/apt\nhttps://mirror/debian-security\nhttps://mirror/debian/\n";
        assert_eq!(debian_mirror(sites), Some("https://mirror/debian/"));
        assert_eq!(debian_mirror("https://mirror/ubuntu"), None);
    }

    #[test]
    fn mirror_cannot_add_a_package_source() {
        checked_mirror("https://mirror/debian".to_owned()).unwrap();
        for added in ["\ndeb [trusted=yes] file:/repo ./\n", " trixie", "\r", "\u{b}"] {
            checked_mirror(format!("https://mirror/debian{added}")).unwrap_err();
        }
    }

    #[test]
    fn file_name_contains_package_and_version() {
        let name = |file: &str| name_and_version(file.as_ref());
        assert_eq!(name("zlib1g_1%3a1.3-3_amd64.deb").as_deref(), Some("zlib1g 1:1.3-3"));
        assert_eq!(name("lock"), None);
    }
}
