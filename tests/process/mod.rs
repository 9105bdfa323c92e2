//! This process's address space and descriptors, and child processes.

#![allow(dead_code, reason = "each test binary uses a different part")]

pub mod handover;
pub mod limit;
pub mod namespaces;
pub mod page_table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

/// One line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: usize,
    pub end: usize,
    /// For example `rw-s`.
    pub permissions: String,
    pub name: String,
}

/// Returns the lines of `/proc/self/maps`.
pub fn regions() -> Vec<Region> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    // One space separates words, and several precede a name.
    let region = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?.to_owned();
        Some(Region {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            permissions,
            name: words.nth(3).unwrap_or_default().trim_start_matches(' ').to_owned(),
        })
    };
    text.lines().map(|line| region(line).expect("a line of /proc/self/maps")).collect()
}

/// Splits a range into parts with equal permissions. Returns start, end and permissions of each part.
///
/// # Errors
/// Returns the first address that is not mapped.
pub fn permissions(start: usize, size: usize) -> Result<Vec<(usize, usize, String)>, usize> {
    let mut parts: Vec<(usize, usize, String)> = Vec::new();
    let mut next = start;
    for region in regions() {
        if region.end <= next || next >= start + size {
            continue;
        }
        if region.start > next {
            return Err(next);
        }
        let end = region.end.min(start + size);
        match parts.last_mut() {
            Some(last) if last.2 == region.permissions => last.1 = end,
            _ => parts.push((next, end, region.permissions)),
        }
        next = end;
    }
    if next < start + size { Err(next) } else { Ok(parts) }
}

/// Splits ranges into parts with equal read, write and execute permissions. `ranges` contains starts and sizes. Returns
/// start, end and permissions of each part. A part may contain shared and private mappings.
///
/// # Errors
/// Returns the first address that is not mapped.
pub fn merged_permissions(
    ranges: impl IntoIterator<Item = (usize, usize)>,
) -> Result<Vec<(usize, usize, String)>, usize> {
    let mut parts: Vec<(usize, usize, String)> = Vec::new();
    for (start, size) in ranges {
        for (start, end, flags) in permissions(start, size)? {
            match parts.last_mut() {
                Some((_, last_end, last_flags))
                    if *last_end == start && flags.starts_with(last_flags.as_str()) =>
                {
                    *last_end = end;
                }
                _ => parts.push((start, end, flags[..3].to_owned())),
            }
        }
    }
    Ok(parts)
}

/// Fails if an address of the range is not mapped.
#[track_caller]
pub fn assert_mapped(start: usize, size: usize, context: &str) {
    if let Err(hole) = permissions(start, size) {
        panic!("{context}: {hole:#x} in {start:#x} + {size:#x} is not mapped");
    }
}

/// Fails unless the range is mapped without permissions, so that every access faults.
#[track_caller]
pub fn assert_inaccessible(start: usize, size: usize, context: &str) {
    let parts = permissions(start, size);
    let has_no_access =
        |(_, _, permissions): &(usize, usize, String)| permissions.starts_with("---");
    let is_inaccessible = parts.as_ref().is_ok_and(|parts| parts.iter().all(has_no_access));
    assert!(is_inaccessible, "{context}: expected no permissions, found {parts:x?}");
}

/// Returns the number of open file descriptors, without the descriptor that this function opens to count them.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count() - 1
}

/// Calls `function` while the process can open only `free_descriptors` further descriptors.
pub fn with_free_descriptors<T>(free_descriptors: usize, function: impl FnOnce() -> T) -> T {
    // The standard library duplicates descriptors to the number 3 or above. With a limit of 3, the call fails with
    // EINVAL instead of EMFILE. An open descriptor 3 makes the limit at least 4.
    let _third = std::fs::File::open("/dev/null").expect("a descriptor");
    // SAFETY: F_GETFD only reads flags, and any number is a valid argument.
    let is_free = |number: &libc::c_int| unsafe { libc::fcntl(*number, libc::F_GETFD) } == -1;
    // A new descriptor gets the lowest free number, which must be below the limit.
    let end = (0..).filter(is_free).nth(free_descriptors).expect("an endless sequence") as u64;
    with_limit(libc::RLIMIT_NOFILE, end, function)
}

/// Calls `function` while a soft limit of this process has another value.
pub fn with_limit<T>(
    resource: libc::__rlimit_resource_t,
    value: libc::rlim_t,
    function: impl FnOnce() -> T,
) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes only to `before`.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut before) }, 0);
    let limit = libc::rlimit { rlim_cur: value, ..before };
    // SAFETY: the kernel only reads `limit`.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
    let result = function();
    // SAFETY: the kernel only reads `before`.
    assert_eq!(unsafe { libc::setrlimit(resource, &before) }, 0);
    result
}

/// Starts this program again to run only the calling test, and returns `true` when the test has passed. In the new
/// process, returns `false`.
///
/// In the new process, no other test opens descriptors, or takes addresses that a runtime frees for a moment.
#[must_use = "the test must return if this is true"]
#[track_caller]
pub fn rerun_in_own_process() -> bool {
    const VARIABLE: &str = "HSA_VMM_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return false;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("the thread of a test has its name");
    let output = Command::new(std::env::current_exe().expect("the path of this program"))
        .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "yes")
        .output()
        .expect("this program starts again");
    let [text, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // The run would also succeed if no test had this name.
    assert!(output.status.success() && text.contains("1 passed"), "{test}:\n{text}\n{errors}");
    print!("{text}");
    true
}

/// The default time limit of a child, which suffices on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// The limits of the pause between two checks whether a child has ended.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With success.
    Success,
    /// With this status; 101 after a panic.
    Failure(i32),
    /// By a signal.
    Signal(i32),
    /// Killed after the time limit.
    TimedOut,
}

/// Runs a function in a forked child.
pub fn in_child(function: impl FnOnce()) -> End {
    in_child_with_status(|| {
        function();
        0
    })
}

/// Runs a function in a forked child that ends with the returned status.
pub fn in_child_with_status(function: impl FnOnce() -> i32) -> End {
    Child::start(function).wait()
}

/// A forked child.
#[derive(Debug)]
pub struct Child(libc::pid_t);

impl Child {
    /// Forks a child that runs a function and ends with the returned status.
    pub fn start(function: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child runs Rust code of this thread only; glibc makes its allocator usable
        // after a fork, and the child leaves by _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            let no_core_files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the kernel only reads the limit, which prevents core files.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core_files) };
            let outcome = catch_unwind(AssertUnwindSafe(function));
            // SAFETY: `_exit` runs no exit handlers, which belong to the parent.
            unsafe { libc::_exit(outcome.unwrap_or(101)) };
        }
        Self(child)
    }

    /// Waits until the child ends, with the default time limit.
    pub fn wait(self) -> End {
        self.wait_for(TIME_LIMIT)
    }

    /// Waits until the child ends. Kills it after the time limit.
    pub fn wait_for(self, time_limit: Duration) -> End {
        let begun = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: the process is a child that was not reaped yet, and the kernel writes only to `status`.
            match unsafe { libc::waitpid(self.0, &mut status, libc::WNOHANG) } {
                0 if begun.elapsed() > time_limit => {
                    // SAFETY: the child was not reaped yet, so its ID belongs to no other process.
                    unsafe { libc::kill(self.0, libc::SIGKILL) };
                    // SAFETY: the process is a child that was not reaped yet, and the kernel writes only to `status`.
                    unsafe { libc::waitpid(self.0, &mut status, 0) };
                    return End::TimedOut;
                }
                // Checks rarely while a long-running child needs the processor.
                0 => std::thread::sleep((begun.elapsed() / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)),
                ended if ended == self.0 && libc::WIFSIGNALED(status) => {
                    return End::Signal(libc::WTERMSIG(status));
                }
                ended if ended == self.0 => {
                    return match libc::WEXITSTATUS(status) {
                        0 => End::Success,
                        code => End::Failure(code),
                    };
                }
                _ => panic!("waitpid: {}", std::io::Error::last_os_error()),
            }
        }
    }
}

/// The byte that [`store_in_child`] stores.
pub const STORED_BYTE: u8 = 0x5a;

/// Stores [`STORED_BYTE`] at an address in a forked child, and returns how the child ends.
pub fn store_in_child(address: usize) -> End {
    in_child(|| {
        // SAFETY: the caller passes an address of its own memory, or one that is not writable. A store to an address
        // that is not writable ends only this child, by SIGSEGV.
        unsafe { (address as *mut u8).write_volatile(STORED_BYTE) };
    })
}

/// Loads a byte from an address in a forked child, and returns how the child ends.
pub fn load_in_child(address: usize) -> End {
    in_child(|| {
        // SAFETY: a load changes nothing. If the address is not readable, SIGSEGV ends only this child.
        unsafe { (address as *const u8).read_volatile() };
    })
}

/// The end of a child that accesses memory without permission.
pub const FAULT: End = End::Signal(libc::SIGSEGV);

/// Runs a function in a thread, and fails if the function does not return in time.
#[track_caller]
pub fn within(time_limit: Duration, function: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(function);
    let begun = Instant::now();
    while !thread.is_finished() {
        assert!(begun.elapsed() < time_limit, "not finished within {time_limit:?}: a deadlock?");
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
