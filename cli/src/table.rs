//! Tables, as all verbs print them.

use comfy_table::presets;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};
use hsa_vmm_conformance::Status;

/// A table without rules, with a bold head; as wide as the terminal, or as its contents need.
pub fn table(head: &[&str]) -> Table {
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
pub fn status(status: Status) -> Cell {
    let (word, color) = match status {
        Status::Pass => ("pass", Color::Green),
        Status::Fail => ("FAIL", Color::Red),
        Status::Skip => ("skip", Color::Yellow),
        Status::Known => ("known", Color::Yellow),
    };
    let cell = Cell::new(word).fg(color);
    if status == Status::Fail { cell.add_attribute(Attribute::Bold) } else { cell }
}
