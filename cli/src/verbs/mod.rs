//! What the command does, a file a verb.

pub mod bench;
pub mod bringup;
pub mod completions;
pub mod conform;
pub mod diff;
pub mod emulate;
pub mod fuzz;
pub mod info;
pub mod man;
pub mod map;
pub mod replay;
pub mod rocr;
pub mod stress;

use anyhow::{Context, bail};
use comfy_table::presets;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};
use hsa_vmm_conformance::Status;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// In the programs that this command starts on another runtime: the words that did it.
pub const UNDER: &str = "HSA_VMM_UNDER";

/// A table without rules, with a bold head; as wide as the terminal, or as its contents need.
fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // Somebody said that colours are not wanted (no-color.org), also on a terminal.
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    let bold = |text: &&str| Cell::new(text).add_attribute(Attribute::Bold);
    table.set_header(head.iter().map(bold).collect::<Vec<_>>());
    table
}

/// How a case ended.
fn status(status: Status) -> Cell {
    let (word, color) = match status {
        Status::Pass => ("pass", Color::Green),
        Status::Fail => ("FAIL", Color::Red),
        Status::Skip => ("skip", Color::Yellow),
        Status::Known => ("known", Color::Yellow),
    };
    let cell = Cell::new(word).fg(color);
    if status == Status::Fail { cell.add_attribute(Attribute::Bold) } else { cell }
}

/// A time that is not zero: `500ms`, `20s`, `10min`, `8h`.
pub fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("it must not be zero".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
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
