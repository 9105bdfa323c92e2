//! Programs that replace this process.

use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variable that tells a program which `hsa-vmm` subcommand and options started it.
pub const UNDER: &str = "HSA_VMM_UNDER";

/// Splits a command line into the program and its arguments.
pub fn split(line: &[OsString]) -> anyhow::Result<(&OsStr, &[OsString])> {
    match line.split_first() {
        Some((program, arguments)) => Ok((program, arguments)),
        None => bail!("no program is given"),
    }
}

/// Replaces this process by a program, which then receives its signals and determines its exit status.
/// Returns only on failure.
pub fn become_program(mut command: Command, program: &OsStr) -> anyhow::Result<crate::Exit> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
