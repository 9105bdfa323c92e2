//! Runs tests on AMD's own runtime.
//!
//! ```no_run
//! # use hsa_rocr::{Emulation, test};
//! #[test]
//! fn reserves_a_page() {
//!     test::run_on_releases("reserves_a_page", &Emulation::with_gpus(2), |fixture| {
//!         // Runs in a process with AMD's runtime and two GPUs, once for each selected release.
//!         assert!(fixture.runtime().exists());
//!     });
//! }
//! ```
//!
//! The test restarts its own program with only that test, under the loader and libraries of a release and on the
//! emulated driver. If the release cannot be fetched, the test is skipped, and prints the reason to standard error. The
//! test fails instead if `HSA_VMM_REQUIRE` contains `rocr`, as in continuous integration.
//!
//! By default, a test runs on one of its releases. The test's name selects the release, so that
//! each release gets a part of the tests. With `HSA_VMM_LONG=1`, as in `.ci/run --long`, a
//! test runs on all of its releases at the same time. [`count_to_run`] returns the number of
//! rounds, cases or sequences that a long test performs.
//!
//! `HSA_VMM_TEST_DRIVER=own` runs tests on this machine's own kernel driver instead of the emulated
//! driver, for example in a virtual machine of `hsa-vmm vm`.

use crate::{
    Emulation, FetchError, FetchedRelease, Release, fetch, folder, folder::program, timeout,
};
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// The environment variable that names the release in a process that a test has started.
const RELEASE_VARIABLE: &str = "HSA_ROCR_TEST_INSIDE";
/// The prefix of reports from a process that a test has started.
const REPORT_PREFIX: &str = "REPORT ";
/// The time limit of a test on one release.
const TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The fixture of a test: a release of AMD's runtime.
#[derive(Clone, Debug)]
pub struct Fixture {
    fetched: FetchedRelease,
}

impl Fixture {
    /// Returns the release of AMD's runtime.
    #[must_use]
    pub fn release(&self) -> Release {
        self.fetched.release()
    }

    /// Returns the file of the runtime.
    #[must_use]
    pub fn runtime(&self) -> PathBuf {
        self.fetched.runtime()
    }

    /// Returns the fetched release, to start other programs with it.
    #[must_use]
    pub fn fetched_release(&self) -> &FetchedRelease {
        &self.fetched
    }

    /// Returns a command that starts the current program again with the same release. The
    /// environment is inherited. The arguments and the environment that the caller sets determine
    /// what the new process does.
    #[must_use]
    pub fn restart_command(&self) -> Command {
        let program = program().expect("the path of the program");
        let mut command = self.fetched.command(program);
        // With this variable, the new process would call the test's body directly.
        command.env_remove(RELEASE_VARIABLE);
        command
    }
}

/// Returns whether tests run on this machine's own kernel driver, as `HSA_VMM_TEST_DRIVER=own` requests.
#[must_use]
pub fn uses_machine_driver() -> bool {
    env::var_os("HSA_VMM_TEST_DRIVER").is_some_and(|value| value == "own")
}

/// Returns whether `HSA_VMM_LONG` is set. If so, long tests run in full.
#[must_use]
pub fn is_long() -> bool {
    env::var_os("HSA_VMM_LONG").is_some_and(|value| !value.is_empty())
}

/// Returns whether a long test runs ([`is_long`]). If not, reports that the test is skipped.
#[must_use]
pub fn runs_long_test(name: &str) -> bool {
    if !is_long() {
        report(&format!("SKIPPED {name}: takes long; HSA_VMM_LONG=1 runs it"));
    }
    is_long()
}

/// Returns how many of its `all` rounds, cases or sequences a long test runs: a tenth by default,
/// or all of them if [`is_long`].
#[must_use]
pub fn count_to_run(all: usize) -> usize {
    if is_long() { all } else { all.div_ceil(10) }
}

/// Returns the folder of the fetched releases.
fn release_folder() -> PathBuf {
    folder().expect("a folder that only this user can change")
}

/// Returns the releases on which the test `name` runs: one of `releases`, or all of them if
/// [`is_long`].
fn select<'a>(releases: &'a [Release], name: &str) -> &'a [Release] {
    static REPORT_ONCE: Once = Once::new();
    if is_long() || releases.len() < 2 {
        return releases;
    }
    REPORT_ONCE.call_once(|| {
        report("each test of AMD's runtime runs on one release; HSA_VMM_LONG=1 runs it on all");
    });
    let chosen = name.bytes().map(usize::from).sum::<usize>() % releases.len();
    &releases[chosen..=chosen]
}

/// Runs a test on one of the releases, or on each of them if [`is_long`]. `name` is the test's full
/// name, as `cargo test` prints it.
#[track_caller]
pub fn run_on_releases(name: &str, emulation: &Emulation, body: impl Fn(&Fixture)) {
    run_on(&Release::ALL, name, emulation, body);
}

/// Runs a test on one of `releases`, or on each of them if [`is_long`].
#[track_caller]
pub fn run_on(releases: &[Release], name: &str, emulation: &Emulation, body: impl Fn(&Fixture)) {
    run_on_with_timeout(releases, name, emulation, TIME_LIMIT, body);
}

/// Runs a test on one of `releases`, or on each of them if [`is_long`], with a timeout for each.
#[track_caller]
pub fn run_on_with_timeout(
    releases: &[Release],
    name: &str,
    emulation: &Emulation,
    timeout: Duration,
    body: impl Fn(&Fixture),
) {
    if let Ok(release) = env::var(RELEASE_VARIABLE) {
        let release = release.parse().expect("a release");
        let fetched = FetchedRelease::open(&release_folder(), release)
            .expect("the release that the parent process has opened");
        body(&Fixture { fetched });
        return;
    }
    let Some(fetched_releases) = fetch_releases(name) else { return };
    let releases = select(releases, name);
    let is_selected = |fetched: &&FetchedRelease| releases.contains(&fetched.release());
    let selected: Vec<_> = fetched_releases.iter().filter(is_selected).collect();
    assert_eq!(selected.len(), releases.len(), "{name}: a release is not fetched");
    let runs: Vec<_> = thread::scope(|scope| {
        let start = |fetched| {
            scope.spawn(move || {
                let _permit = Permit::acquire();
                restart_on(fetched, name, emulation, timeout)
            })
        };
        let threads: Vec<_> = selected.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a started process")).collect()
    });
    for (release, status, output) in runs {
        let passed = status.is_some_and(|status| status.success());
        let outcome = status.map_or("did not end".to_owned(), |status| status.to_string());
        assert!(passed, "{name} on {release} ({outcome}):\n{output}");
        assert!(output.contains("1 passed"), "{name} is not this test's name:\n{output}");
        // A report can follow the test's name, which the harness prints without a newline.
        let reports = output.lines().filter_map(|line| line.split_once(REPORT_PREFIX));
        reports.for_each(|(_, line)| report(line));
    }
}

/// Starts the current program again under a release, with one test. Returns the release, the status
/// (`None` after the timeout) and the output.
fn restart_on(
    fetched: &FetchedRelease,
    name: &str,
    emulation: &Emulation,
    timeout: Duration,
) -> (Release, Option<ExitStatus>, String) {
    let program = program().expect("the path of the program");
    let mut command = fetched.command(program);
    command.args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env(RELEASE_VARIABLE, fetched.release().version());
    // The process must open the same folder of releases.
    command.env("HSA_VMM_ROCR", release_folder());
    if !uses_machine_driver() {
        emulation.apply(&mut command).expect("the emulated driver was built");
    }
    let (status, output) = run_with_timeout(&mut command, timeout);
    (fetched.release(), status, output)
}

/// A permit to run the process of a test on a release. There is one permit more than processors, because
/// processes also wait. On this machine's own driver, there is only one permit.
struct Permit;

/// The number of permits in use, and the condition variable that signals a returned permit.
static PERMITS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Permit {
    fn acquire() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let limit = if uses_machine_driver() { 1 } else { processors + 1 };
        let (used, returned) = &PERMITS;
        let used = used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used = returned
            .wait_while(used, |used| *used >= limit)
            .unwrap_or_else(PoisonError::into_inner);
        *used += 1;
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (used, returned) = &PERMITS;
        *used.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        returned.notify_one();
    }
}

/// Prints a line to standard error, even if the test passes. In a process that a test has started,
/// marks the line with a prefix. The process of the test then prints the line.
pub fn report(line: &str) {
    let prefix = if env::var_os(RELEASE_VARIABLE).is_some() { REPORT_PREFIX } else { "" };
    // The test harness captures the output of `eprintln!`. A single write keeps the line together, because tests run in
    // parallel.
    let _ = std::io::stderr().write_all(format!("{prefix}{line}\n").as_bytes());
}

/// Fetches all releases. If this fails, reports that the test `name` is skipped, and returns
/// `None`. Panics instead if `HSA_VMM_REQUIRE` contains `rocr`.
#[track_caller]
#[must_use]
pub fn fetch_releases(name: &str) -> Option<&'static [FetchedRelease]> {
    static FETCHED: OnceLock<Result<Vec<FetchedRelease>, FetchError>> = OnceLock::new();
    let fetched = FETCHED.get_or_init(|| fetch(&Release::ALL, &release_folder(), &mut |_| ()));
    match fetched {
        Ok(fetched_releases) => Some(fetched_releases),
        Err(error) => {
            assert!(!is_required("rocr"), "HSA_VMM_REQUIRE requires AMD's runtime: {error}");
            report(&format!("SKIPPED {name}: {error}"));
            None
        }
    }
}

/// Fetches all releases. Returns the releases on which the test `name` runs: one of them, or all of
/// them if [`is_long`]. If fetching fails, reports that the test is skipped, and returns an empty
/// list.
#[track_caller]
#[must_use]
pub fn fetch_selected_releases(name: &str) -> Vec<&'static FetchedRelease> {
    let selected = select(&Release::ALL, name);
    let all = fetch_releases(name).unwrap_or_default().iter();
    all.filter(|fetched| selected.contains(&fetched.release())).collect()
}

/// Returns whether `HSA_VMM_REQUIRE` contains a word. If so, a test fails instead of being skipped.
pub fn is_required(word: &str) -> bool {
    let required = env::var("HSA_VMM_REQUIRE").unwrap_or_default();
    required.split_whitespace().any(|required| required == word)
}

/// Runs a command. Returns its status, or `None` if it was killed after the timeout, and its
/// output.
#[must_use]
pub fn run_with_timeout(command: &mut Command, timeout: Duration) -> (Option<ExitStatus>, String) {
    let mut output = tempfile::tempfile().expect("a temporary file");
    let duplicate = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
    command.stdin(Stdio::null()).stdout(duplicate(&output)).stderr(duplicate(&output));
    let name = OsStr::to_owned(command.get_program());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", name.display()));
    let status = timeout::wait(&mut child, timeout).expect("a child to wait for");
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut text = Vec::new();
    output.rewind().expect("a file to read");
    output.read_to_end(&mut text).expect("a file to read");
    (status, String::from_utf8_lossy(&text).into_owned())
}
