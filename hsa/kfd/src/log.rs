//! The log, with one line for each call on a device.

use crate::abi::{Pod, format_bits};
use crate::errno::Result;
use crate::real::Mapping;
use crate::{environment, own_descriptors};
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::fmt::{self, Arguments, Write as _};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The log, which is disabled without the variable `HSA_KFD_LOG`.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<File>,
    /// Whether a line could not be written. Only the first failure is reported.
    has_failed: AtomicBool,
    began: Instant,
    mapped: Mutex<Mapped>,
}

/// The mappings of devices: the end and the device of each, by its start.
type Mapped = BTreeMap<u64, (u64, String)>;

const PROTECTIONS: [(u32, &str); 3] = [(1, "R"), (2, "W"), (4, "X")];
const FLAGS: [(u32, &str); 4] = [
    (libc::MAP_SHARED as u32, "SHARED"),
    (libc::MAP_PRIVATE as u32, "PRIVATE"),
    (libc::MAP_FIXED as u32, "FIXED"),
    (libc::MAP_NORESERVE as u32, "NORESERVE"),
];

/// Prints an error to standard error, by one system call, so that other threads and processes do not print in between.
/// Ignores failures.
pub(crate) fn print_error(message: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("hsa-kfd: {message}\n").as_bytes());
}

/// A call's name and its arguments.
struct Call<'a, T>(&'a str, &'a T);

impl<T: Pod> fmt::Display for Call<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        let mut written = Ok(());
        self.1.fields(&mut |field, value| {
            if field != "pad" && written.is_ok() {
                written = write!(f, " {field}={value}");
            }
        });
        written
    }
}

impl Log {
    /// Opens the file that `HSA_KFD_LOG` names. An error contains the file's path and the variable.
    pub(crate) fn from_environment() -> std::result::Result<Self, String> {
        let file = match environment::variable("HSA_KFD_LOG") {
            Some(path) => {
                let opened = File::options().create(true).append(true).open(&path);
                let file = opened.map(own_descriptors::move_file_above_floor);
                Some(file.map_err(|error| {
                    let path = path.to_string_lossy();
                    format!("cannot open the log {path} (HSA_KFD_LOG): {error}")
                })?)
            }
            None => None,
        };
        let (began, mapped) = (Instant::now(), Mutex::default());
        Ok(Self { file, has_failed: AtomicBool::new(false), began, mapped })
    }

    /// Returns the descriptor of the log's file.
    pub(crate) fn descriptor(&self) -> Option<c_int> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.file.is_some()
    }

    /// Logs a call that does not return, or is delayed, as `strace` does.
    pub(crate) fn unfinished(&self, device: Arguments<'_>, call: Arguments<'_>, reason: &str) {
        self.line(format_args!("{device} {call} = ? ({reason})"));
    }

    /// Logs a call that does not return, or is delayed, with its arguments.
    pub(crate) fn unfinished_call<T: Pod>(
        &self,
        device: Arguments<'_>,
        name: &str,
        argument: &T,
        reason: &str,
    ) {
        self.unfinished(device, format_args!("{}", Call(name, argument)), reason);
    }

    /// Logs a call: its arguments, its error (if any), the changed arguments, and its duration.
    pub(crate) fn call<T: Pod>(
        &self,
        device: Arguments<'_>,
        name: &str,
        before: &T,
        after: &T,
        result: Result<()>,
        began: Instant,
    ) {
        if !self.is_enabled() {
            return;
        }
        let microseconds = began.elapsed().as_nanos() as f64 / 1000.0;
        let mut text = format!("{device} {}", Call(name, before));
        let mut values = Vec::new();
        before.fields(&mut |_, value| values.push(value));
        let mut values = values.into_iter();
        match result {
            Ok(()) => text.push_str(" ->"),
            Err(error) => drop(write!(text, " = {error}")),
        }
        after.fields(&mut |field, value| {
            if values.next().as_ref() != Some(&value) {
                let _ = write!(text, " {field}={value}");
            }
        });
        if text.ends_with("->") {
            text.push_str(" ok");
        }
        self.line(format_args!("{text} ({microseconds:.1} us)"));
    }

    /// Logs a mapping of a device's file.
    pub(crate) fn map(
        &self,
        device: Arguments<'_>,
        mapping: Mapping,
        offset: u64,
        result: Result<*mut c_void>,
        began: Instant,
    ) {
        if !self.is_enabled() {
            return;
        }
        let microseconds = began.elapsed().as_nanos() as f64 / 1000.0;
        let Mapping { address, length, protection, flags } = mapping;
        let call = format!(
            "{device} MMAP address={address:?} length={length:#x} protection={} flags={} \
             offset={offset:#x}",
            format_bits(protection as u32, &PROTECTIONS),
            format_bits(flags as u32, &FLAGS),
        );
        match result {
            Ok(mapped) => {
                let (start, length) = (mapped as u64, length as u64);
                self.mapped().insert(start, (start.saturating_add(length), device.to_string()));
                self.line(format_args!("{call} -> {start:#x} ({microseconds:.1} us)"));
            }
            Err(error) => self.line(format_args!("{call} = {error} ({microseconds:.1} us)")),
        }
    }

    /// Logs the unmapping of each device mapping that overlaps a range, and forgets the mapping.
    pub(crate) fn unmap(&self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        let mut mapped = self.mapped();
        let overlapping = mapped.range(..end).rev().take_while(|(_, (end, _))| *end > address);
        let overlapping: Vec<(u64, String)> =
            overlapping.map(|(start, (_, device))| (*start, device.clone())).collect();
        for (start, device) in overlapping {
            mapped.remove(&start);
            self.line(format_args!("{device} MUNMAP address={address:#x} length={length:#x}"));
        }
    }

    fn mapped(&self) -> MutexGuard<'_, Mapped> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a request that is not emulated.
    pub(crate) fn unsupported(&self, request: Arguments<'_>) {
        self.line(format_args!("NOT EMULATED: {request}"));
    }

    /// Writes one line, in a single write so that lines of several threads do not mix.
    pub(crate) fn line(&self, text: Arguments<'_>) {
        let Some(mut file) = self.file.as_ref() else { return };
        // SAFETY: the call accesses no memory.
        let (process, thread) = (std::process::id(), unsafe { libc::gettid() });
        let time = self.began.elapsed().as_secs_f64();
        let line = format!("{process}:{thread} {time:.6} {text}\n");
        // The logged call must not fail because of the log.
        if let Err(error) = file.write_all(line.as_bytes())
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            let path = environment::variable("HSA_KFD_LOG").unwrap_or_default();
            print_error(format_args!(
                "cannot write the log {}: {error}; the log is incomplete",
                path.display()
            ));
        }
    }
}
