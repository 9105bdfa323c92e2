//! The machine's C compiler.

use std::process::Command;

/// Returns `$CC` with its arguments, or `cc`, with messages in English.
pub fn command() -> Command {
    let text = std::env::var("CC").unwrap_or_default();
    let mut words = text.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command.args(words).env("LC_ALL", "C");
    command
}
