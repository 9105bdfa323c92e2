//! This program once more.

use crate::folder::program;
use std::io;
use std::process::Command;

/// A command that starts this very program again, under the loader and libraries that it was started
/// with ([`Installation::command`](crate::Installation::command)). The environment is inherited,
/// and the emulated driver with it.
///
/// # Errors
/// What the system answers to the question which program this is.
pub fn again() -> io::Result<Command> {
    let file = std::env::current_exe().map_err(|error| {
        let words =
            format!("cannot find this program to start it again as a worker: {error}; mount /proc");
        io::Error::new(error.kind(), words)
    })?;
    let program = program().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    if program == file {
        // Not by its name: another may be there by now, if it is being built meanwhile.
        return Ok(Command::new("/proc/self/exe"));
    }
    // A loader of its own lies among the libraries that belong to it.
    let mut command = Command::new(&file);
    if let Some(libraries) = file.parent() {
        command.arg("--library-path").arg(libraries);
    }
    command.arg(program);
    Ok(command)
}

#[cfg(test)]
mod tests {
    #[test]
    fn program_can_restart_itself() {
        let output = super::again().unwrap().arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("--include-ignored"), "what every test program says: {text}");
    }
}
