//! Tests that run on AMD's own runtime.
//!
//! ```no_run
//! # use hsa_rocr::{Emulation, test};
//! #[test]
//! fn reserves_a_page() {
//!     test::on_each_release("reserves_a_page", &Emulation::gpus(2), |fixture| {
//!         // Runs once for each release, in a process with AMD's runtime and two GPUs.
//!         assert!(fixture.runtime().exists());
//!     });
//! }
//! ```
//!
//! The test restarts its own program with only that test, under the loader and libraries of a
//! release and on the emulated driver. If the release cannot be fetched, the test prints to
//! standard error that it is skipped and why; if `HSA_VMM_REQUIRE` contains `rocr`, as in
//! continuous integration, it fails.
//!
//! By default a test runs on one of its releases, chosen by its name, so that each release runs a share
//! of the tests. `HSA_VMM_LONG=1`, as in continuous integration, runs it on all of them. Long searches
//! ask for their share with [`share`].
//!
//! `HSA_VMM_TEST_DRIVER=own` runs tests on this machine's own kernel driver instead of the emulated
//! one, as in `hsa-vmm vm`.

use crate::{
    Emulation, FetchError, Installation, Release, fetch, folder, folder::program, patience,
};
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// Set to the release in the processes that tests start.
const INSIDE: &str = "HSA_ROCR_TEST_INSIDE";
/// The prefix of reports of such a process.
const REPORTED: &str = "REPORT ";
/// How long one test may take on one release.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The fixture of a test: a release of AMD's runtime.
#[derive(Clone, Debug)]
pub struct Fixture {
    installation: Installation,
}

impl Fixture {
    /// Returns the release of AMD's runtime.
    #[must_use]
    pub fn release(&self) -> Release {
        self.installation.release()
    }

    /// Returns the file of the runtime.
    #[must_use]
    pub fn runtime(&self) -> PathBuf {
        self.installation.runtime()
    }

    /// Returns the installation, to start other programs with it.
    #[must_use]
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// A command that starts this very program again with the same release; the environment is
    /// inherited. What it does there is up to its arguments and environment.
    #[must_use]
    pub fn this_program(&self) -> Command {
        let program = program().expect("a test knows its own file");
        let mut command = self.installation.command(program);
        // The new process must not run this test.
        command.env_remove(INSIDE);
        command
    }
}

/// Returns whether tests run on this machine's own kernel driver, as `HSA_VMM_TEST_DRIVER=own` asks.
#[must_use]
pub fn uses_own_driver() -> bool {
    env::var_os("HSA_VMM_TEST_DRIVER").is_some_and(|value| value == "own")
}

/// Returns whether `HSA_VMM_LONG` is set: then long tests run in full.
#[must_use]
pub fn is_long() -> bool {
    env::var_os("HSA_VMM_LONG").is_some_and(|value| !value.is_empty())
}

/// Returns how many of `all` rounds, cases or sequences a long test runs: a tenth by default, all of
/// them if [`is_long`].
#[must_use]
pub fn share(all: usize) -> usize {
    if is_long() { all } else { all.div_ceil(10) }
}

/// Returns the releases on which a test runs now.
fn share_of<'a>(releases: &'a [Release], name: &str) -> &'a [Release] {
    static SAID: Once = Once::new();
    if is_long() || releases.len() < 2 {
        return releases;
    }
    SAID.call_once(|| {
        report("each test of AMD's runtime runs on one release; HSA_VMM_LONG=1 runs it on all");
    });
    let chosen = name.bytes().map(usize::from).sum::<usize>() % releases.len();
    &releases[chosen..=chosen]
}

/// Runs a test once on each release, or on its share of them. `name` is the test's full name, as `cargo test` prints it.
#[track_caller]
pub fn on_each_release(name: &str, emulation: &Emulation, body: impl Fn(&Fixture)) {
    on(&Release::ALL, name, emulation, body);
}

/// Runs a test once on each of some releases, or on its share of them.
#[track_caller]
pub fn on(releases: &[Release], name: &str, emulation: &Emulation, body: impl Fn(&Fixture)) {
    on_within(releases, name, emulation, PATIENCE, body);
}

/// Runs a test once on each of some releases, or on its share of them, each with a timeout.
#[track_caller]
pub fn on_within(
    releases: &[Release],
    name: &str,
    emulation: &Emulation,
    patience: Duration,
    body: impl Fn(&Fixture),
) {
    if let Ok(inside) = env::var(INSIDE) {
        let release = inside.parse().expect("a release");
        let installation = Installation::open(&folder(), release).expect("it was there");
        body(&Fixture { installation });
        return;
    }
    let Some(installations) = installations(name) else { return };
    let releases = share_of(releases, name);
    let wanted = |installation: &&Installation| releases.contains(&installation.release());
    let mut ran = 0;
    for installation in installations.iter().filter(wanted) {
        let program = program().expect("a test knows its own file");
        let mut command = installation.command(program);
        command.args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(INSIDE, installation.release().version());
        // Under the loader the program cannot find cargo's build folder.
        command.env("HSA_VMM_ROCR", folder());
        if !uses_own_driver() {
            emulation.apply(&mut command).expect("the emulated driver was built");
        }
        let (status, output) = finish(&mut command, patience);
        let passed = status.is_some_and(|status| status.success());
        let ended = status.map_or("did not end".to_owned(), |status| status.to_string());
        let release = installation.release();
        assert!(passed, "{name} on {release} ({ended}):\n{output}");
        assert!(output.contains("1 passed"), "{name} is not this test's name:\n{output}");
        // A report can follow the test's name, which the harness prints without a newline.
        let reported = output.lines().filter_map(|line| line.split_once(REPORTED));
        reported.for_each(|(_, line)| report(line));
        ran += 1;
    }
    assert_eq!(ran, releases.len(), "{name}: not on every release");
}

/// Prints a line to standard error, also from a passing test and from one on a release.
pub fn report(line: &str) {
    let reported = if env::var_os(INSIDE).is_some() { REPORTED } else { "" };
    // Not eprintln, whose output the test harness captures. One write, because tests run in
    // parallel.
    let _ = std::io::stderr().write_all(format!("{reported}{line}\n").as_bytes());
}

/// Returns all releases, or `None` after reporting that the test is skipped.
#[track_caller]
#[must_use]
pub fn installations(name: &str) -> Option<&'static [Installation]> {
    static FETCHED: OnceLock<Result<Vec<Installation>, FetchError>> = OnceLock::new();
    let fetched = FETCHED.get_or_init(|| fetch(&Release::ALL, &folder(), &mut |_| ()));
    match fetched {
        Ok(installations) => Some(installations),
        Err(error) => {
            assert!(!is_required("rocr"), "HSA_VMM_REQUIRE asks for AMD's runtime: {error}");
            report(&format!("SKIPPED {name}: {error}"));
            None
        }
    }
}

/// Returns the releases on which a test runs now: all of them, or its share. None after reporting that
/// it is skipped.
#[track_caller]
#[must_use]
pub fn share_of_installations(name: &str) -> Vec<&'static Installation> {
    let share = share_of(&Release::ALL, name);
    let all = installations(name).unwrap_or_default().iter();
    all.filter(|installation| share.contains(&installation.release())).collect()
}

/// Returns whether `HSA_VMM_REQUIRE` contains a word: then a test fails instead of being skipped.
pub fn is_required(word: &str) -> bool {
    let required = env::var("HSA_VMM_REQUIRE").unwrap_or_default();
    required.split_whitespace().any(|it| it == word)
}

/// Runs a command; returns its status (`None` if it timed out and was killed) and its output.
fn finish(command: &mut Command, patience: Duration) -> (Option<ExitStatus>, String) {
    let mut output = tempfile::tempfile().expect("a temporary file");
    let also = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
    command.stdin(Stdio::null()).stdout(also(&output)).stderr(also(&output));
    let shown = OsStr::to_owned(command.get_program());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", shown.display()));
    let status = patience::wait(&mut child, patience).expect("a child to wait for");
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut text = Vec::new();
    output.rewind().expect("a file to read");
    output.read_to_end(&mut text).expect("a file to read");
    (status, String::from_utf8_lossy(&text).into_owned())
}
