//! Programs that this command becomes.

use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// In the programs that this command starts on another runtime: the words that did it.
pub const UNDER: &str = "HSA_VMM_UNDER";

/// The program and its arguments.
pub fn split(line: &[OsString]) -> anyhow::Result<(&OsStr, &[OsString])> {
    match line.split_first() {
        Some((program, arguments)) => Ok((program, arguments)),
        None => bail!("no program is named"),
    }
}

/// Replaces this process by a program, so that its signals and its status are its own. Returns
/// only if that fails.
pub fn become_program(mut command: Command, program: &OsStr) -> anyhow::Result<crate::Ending> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
