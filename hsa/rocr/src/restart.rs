//! Creates commands that start the running program again.

use crate::folder::program;
use std::io;
use std::process::Command;

/// Returns a command that starts the running program again, under the same loader and libraries
/// ([`FetchedRelease::command`](crate::FetchedRelease::command)). The environment, including the
/// emulated driver, is inherited.
///
/// # Errors
/// The path of the running program cannot be determined.
pub fn restart_command() -> io::Result<Command> {
    let file = std::env::current_exe().map_err(|error| {
        let text =
            format!("cannot find this program to start it again as a worker: {error}; mount /proc");
        io::Error::new(error.kind(), text)
    })?;
    let program = program().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    if program == file {
        // A build may have replaced the file at this path.
        return Ok(Command::new("/proc/self/exe"));
    }
    // The program was started as an argument of a loader. `file` is this loader, and its folder contains the libraries.
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
        let output = super::restart_command().unwrap().arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("--include-ignored"), "every test program prints this: {text}");
    }
}
