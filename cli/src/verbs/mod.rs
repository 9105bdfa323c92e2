//! What the command does, a file a verb.

pub mod bench;
pub mod conform;
pub mod emulate;
pub mod info;
pub mod map;
pub mod replay;
pub mod rocr;

use anyhow::{Context, bail};
use comfy_table::presets;
use comfy_table::{Cell, ContentArrangement, Table};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A table without rules, with a bold head; as wide as the terminal, or as its contents need.
fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // Somebody said that colours are not wanted (no-color.org), also on a terminal.
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    let bold = |text: &&str| Cell::new(text).add_attribute(comfy_table::Attribute::Bold);
    table.set_header(head.iter().map(bold).collect::<Vec<_>>());
    table
}

/// A size in the largest unit in which it is a whole number: `2 MiB`, `192 GiB`, `4 KiB`.
fn size(bytes: u64) -> String {
    let mut value = bytes;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value == 0 || !value.is_multiple_of(1024) {
            break;
        }
        value /= 1024;
        unit = larger;
    }
    format!("{value} {unit}")
}

/// The program and its arguments.
fn split(line: &[OsString]) -> anyhow::Result<(&OsStr, &[OsString])> {
    match line.split_first() {
        Some((program, arguments)) => Ok((program, arguments)),
        None => bail!("no program is named"),
    }
}

/// Replaces this process by a program, so that its signals and its status are its own. Returns
/// only if that fails.
fn become_program(mut command: Command, program: &OsStr) -> anyhow::Result<crate::Ending> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_whole_numbers_of_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (2 << 20, "2 MiB"),
            (192 << 30, "192 GiB"),
            ((2 << 20) + 4096, "2052 KiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
