//! One line for each call on a device.

use crate::errno::Result;
use std::fmt::{Arguments, Debug};
use std::fs::File;
use std::io::Write;

/// The file named by `HSA_KFD_LOG`, or nothing.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<File>,
}

impl Log {
    pub(crate) fn from_environment() -> Self {
        let file = std::env::var_os("HSA_KFD_LOG").and_then(|path| {
            let opened = File::options().create(true).append(true).open(&path);
            if let Err(error) = &opened {
                eprintln!("hsa-kfd: HSA_KFD_LOG: {}: {error}", path.to_string_lossy());
            }
            opened.ok()
        });
        Self { file }
    }

    pub(crate) fn wanted(&self) -> bool {
        self.file.is_some()
    }

    /// A call, its arguments before and after, and its result.
    pub(crate) fn call(
        &self,
        device: &str,
        name: &str,
        before: &dyn Debug,
        after: &dyn Debug,
        result: Result<()>,
    ) {
        match result {
            Ok(()) => self.line(format_args!("{device} {name} {before:?} -> {after:?}")),
            Err(error) => self.line(format_args!("{device} {name} {before:?} = {error}")),
        }
    }

    /// Something that is not emulated.
    pub(crate) fn missing(&self, what: Arguments<'_>) {
        self.line(format_args!("NOT EMULATED: {what}"));
    }

    /// One line, written at once so that lines of several threads do not mix.
    pub(crate) fn line(&self, text: Arguments<'_>) {
        let Some(mut file) = self.file.as_ref() else { return };
        // SAFETY: asks for numbers and touches no memory.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        let line = format!("{process}:{thread} {text}\n");
        // A log that cannot be written must not fail the call it tells of.
        let _ = file.write_all(line.as_bytes());
    }
}
