//! Tables, as all verbs print them. Text is escaped when it becomes a cell.

use comfy_table::presets;
use comfy_table::{Attribute, CellAlignment, Color};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use hsa_vmm_conformance::{Status, printable};

/// What stands on both sides of a cell.
const PADDING: usize = 2;

/// A cell, without characters that a terminal obeys.
pub struct Cell(comfy_table::Cell);

impl Cell {
    /// The same, at the right end of its column.
    pub fn right(self) -> Self {
        Self(self.0.set_alignment(CellAlignment::Right))
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self(comfy_table::Cell::new(printable(text.as_ref())))
    }
}

/// A table whose lines do not end in blanks.
pub struct Rows(Table);

impl Rows {
    /// Adds a row.
    pub fn add_row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.0.add_row(cells.into_iter().map(|cell| cell.into().0).collect::<Vec<_>>());
    }

    /// The table as text, with styles if standard output is a terminal.
    pub fn render(&self) -> String {
        self.0.trim_fmt()
    }

    /// What is in these columns stays in one line, however narrow the terminal: names that people
    /// copy, and addresses.
    pub fn unbroken<const N: usize>(&mut self, columns: [usize; N]) {
        for column in columns {
            if let Some(column) = self.0.column_mut(column) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
    }
}

/// A table without rules, with a bold head; as wide as the terminal, or as its contents need.
pub fn table(head: &[&str]) -> Rows {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // Somebody said that colours are not wanted (no-color.org), also on a terminal.
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    let bold = |text: &&str| comfy_table::Cell::new(text).add_attribute(Attribute::Bold);
    table.set_header(head.iter().map(bold).collect::<Vec<_>>());
    // A narrow terminal does not break the words of the head.
    for (column, text) in table.column_iter_mut().zip(head) {
        let longest = text.split(' ').map(|word| word.chars().count()).max().unwrap_or_default();
        let width = u16::try_from(longest + PADDING).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
    }
    Rows(table)
}

/// How a case ended.
pub fn status(status: Status) -> Cell {
    let (word, color) = match status {
        Status::Pass => ("pass", Color::Green),
        Status::Fail => ("FAIL", Color::Red),
        Status::Skip => ("skip", Color::Yellow),
        Status::Known => ("known", Color::Yellow),
    };
    let cell = comfy_table::Cell::new(word).fg(color);
    Cell(if status == Status::Fail { cell.add_attribute(Attribute::Bold) } else { cell })
}
