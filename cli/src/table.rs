//! Formats the tables of all subcommands. Cells escape control characters.

use comfy_table::presets;
use comfy_table::{Attribute, CellAlignment, Color};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use hsa_vmm_conformance::{Status, printable};

/// The total width of a cell's padding: one column on each side.
const PADDING: usize = 2;

/// A cell with control characters escaped.
pub struct Cell(comfy_table::Cell);

impl Cell {
    pub fn align_right(self) -> Self {
        Self(self.0.set_alignment(CellAlignment::Right))
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self(comfy_table::Cell::new(printable(text.as_ref())))
    }
}

/// A table. Its lines have no trailing spaces.
pub struct TextTable(Table);

impl TextTable {
    pub fn add_row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.0.add_row(cells.into_iter().map(|cell| cell.into().0).collect::<Vec<_>>());
    }

    /// Returns the table as text, with styles if standard output is a terminal and `NO_COLOR` is not set.
    pub fn render(&self) -> String {
        self.0.trim_fmt()
    }

    /// Does not wrap the cells of these columns, even on narrow terminals, so that names and addresses can be copied.
    pub fn no_wrap<const N: usize>(&mut self, columns: [usize; N]) {
        for column in columns {
            if let Some(column) = self.0.column_mut(column) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
    }
}

/// Creates a table without borders, with a bold head. The text of cells is wrapped if the terminal is too narrow.
pub fn table(head: &[&str]) -> TextTable {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // `NO_COLOR` disables styles (no-color.org).
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    let bold = |text: &&str| comfy_table::Cell::new(text).add_attribute(Attribute::Bold);
    table.set_header(head.iter().map(bold).collect::<Vec<_>>());
    // Do not break words of the head on narrow terminals.
    for (column, text) in table.column_iter_mut().zip(head) {
        let longest = text.split(' ').map(|word| word.chars().count()).max().unwrap_or_default();
        let width = u16::try_from(longest + PADDING).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
    }
    TextTable(table)
}

pub fn status_cell(status: Status) -> Cell {
    let (word, color) = match status {
        Status::Pass => ("pass", Color::Green),
        Status::Fail => ("FAIL", Color::Red),
        Status::Skip => ("skip", Color::Yellow),
        Status::Known => ("known", Color::Yellow),
    };
    let cell = comfy_table::Cell::new(word).fg(color);
    Cell(if status == Status::Fail { cell.add_attribute(Attribute::Bold) } else { cell })
}
