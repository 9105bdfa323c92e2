//! This program once more.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// A command that starts this program as it was started itself, without its arguments.
///
/// If a dynamic loader of its own was given to it (`hsa-vmm rocr run`), so is it there again: the
/// kernel's list of arguments then has the loader and the loader's arguments in front.
pub fn this_program() -> io::Result<Command> {
    let all = fs::read("/proc/self/cmdline")?;
    let all: Vec<_> = all.strip_suffix(b"\0").unwrap_or(&all).split(|&byte| byte == 0).collect();
    let before = all.len().saturating_sub(env::args_os().count());
    if before == 0 {
        return Ok(Command::new(env::current_exe()?));
    }
    // With the program itself, which is the loader's last.
    let words: Vec<_> = all[..=before].iter().map(|word| OsStr::from_bytes(word)).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    Ok(command)
}
