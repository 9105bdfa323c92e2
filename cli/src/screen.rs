//! Defines [`Screen`], which writes all output of this command and escapes control characters.
//!
//! Text from files, runtimes, the kernel's log or the environment may contain control characters that
//! a terminal would execute. Only the methods for styles and tables write escape sequences, and they
//! escape their text.

use crate::table::Rows;
use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use hsa_vmm_conformance::printable;
use std::fmt;
use std::io::{self, Write};

/// Writes text with control characters escaped, and styles if they are enabled.
pub struct Screen<'a> {
    writer: Box<dyn Write + 'a>,
    styled: bool,
    /// Whether signs that are not ASCII are replaced.
    ascii: bool,
}

impl Screen<'static> {
    /// Writes to standard output, with styles on a terminal.
    pub fn stdout() -> Self {
        let styled = is_styled(AutoStream::choice(&io::stdout()));
        Self { writer: Box::new(io::stdout().lock()), styled, ascii: !locale_is_utf8() }
    }

    /// Writes to standard error, with styles on a terminal.
    pub fn stderr() -> Self {
        let styled = is_styled(AutoStream::choice(&io::stderr()));
        Self { writer: Box::new(io::stderr()), styled, ascii: !locale_is_utf8() }
    }
}

/// Returns whether the locale's character encoding is UTF-8.
pub fn locale_is_utf8() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    is_utf8(["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).as_deref())
}

/// Returns whether a locale such as `de_DE.UTF-8` has the encoding UTF-8. The default locale is `C`.
fn is_utf8(locale: Option<&str>) -> bool {
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The non-ASCII signs that this command prints, and their replacements for locales without UTF-8.
const SIGNS: [(char, &str); 13] = [
    ('✓', "+"),
    ('✗', "x"),
    ('–', "-"),
    ('·', "."),
    ('…', "..."),
    ('→', "->"),
    ('×', "x"),
    ('µ', "u"),
    ('−', "-"),
    ('─', "-"),
    ('│', "|"),
    ('►', ">"),
    ('▼', "v"),
];

/// Replaces the signs of [`SIGNS`]. Other characters, such as letters in file names, stay.
fn to_ascii(text: &str) -> String {
    SIGNS.iter().fold(text.to_owned(), |text, (sign, ascii)| text.replace(*sign, ascii))
}

fn is_styled(choice: ColorChoice) -> bool {
    choice != ColorChoice::Never
}

impl<'a> Screen<'a> {
    /// Writes to a file or to memory, without styles.
    pub fn plain(writer: impl Write + 'a) -> Self {
        Self { writer: Box::new(writer), styled: false, ascii: false }
    }

    /// Stops replacing signs: programs read UTF-8 in any locale.
    pub fn keep_utf8(&mut self) {
        self.ascii = false;
    }

    /// Writes text in a style.
    pub fn styled(&mut self, style: Style, text: impl fmt::Display) -> io::Result<()> {
        if !self.styled {
            return write!(self, "{text}");
        }
        write!(self.writer, "{style}")?;
        write!(self, "{text}")?;
        write!(self.writer, "{style:#}")
    }

    /// Writes a table and a line break. Cells were escaped when they were added.
    pub fn table(&mut self, rows: &Rows) -> io::Result<()> {
        let text = rows.render();
        let text = if self.ascii { to_ascii(&text) } else { text };
        if self.styled {
            writeln!(self.writer, "{text}")
        } else {
            writeln!(self.writer, "{}", anstream::adapter::strip_str(&text))
        }
    }
}

impl Write for Screen<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        let text = printable(&text);
        match self.ascii {
            true => self.writer.write_all(to_ascii(&text).as_bytes()),
            false => self.writer.write_all(text.as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Writes a line to standard error; ignores errors.
pub fn write_note(line: fmt::Arguments<'_>) {
    let _ = Screen::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes a formatted line to standard error.
macro_rules! note {
    ($($argument:tt)*) => { $crate::screen::write_note(format_args!($($argument)*)) };
}
pub(crate) use note;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::table;

    const EVIL: &str = "a\u{1b}]0;b\u{7}\u{9b}31m\u{202e}\r\u{7f}c";
    const SHOWN: &str = "a\\u001b]0;b\\u0007\\u009b31m\\u202e\\u000d\\u007fc";

    fn written(styled: bool) -> String {
        let mut bytes = Vec::new();
        {
            let mut screen = Screen { writer: Box::new(&mut bytes), styled, ascii: false };
            writeln!(screen, "{EVIL}").unwrap();
            screen.styled(Style::new().bold(), EVIL).unwrap();
            let mut rows = table(&["head"]);
            rows.add_row([EVIL]);
            rows.no_wrap([0]);
            screen.table(&rows).unwrap();
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn printable_keeps_json() {
        let value = serde_json::json!({ "name": EVIL });
        let text = serde_json::to_string(&value).unwrap();
        let shown = printable(&text);
        assert_ne!(text, shown);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn signs_are_ascii_where_the_locale_is_not_utf8() {
        for (locale, expected) in [
            (None, false),
            (Some("C"), false),
            (Some("de_DE"), false),
            (Some("C.UTF-8"), true),
            (Some("en_US.utf8"), true),
        ] {
            assert_eq!(is_utf8(locale), expected, "{locale:?}");
        }
        let mut bytes = Vec::new();
        let mut screen = Screen { writer: Box::new(&mut bytes), styled: false, ascii: true };
        writeln!(screen, "✓ 2 × 4 µs … Ä").unwrap();
        let mut rows = table(&["head"]);
        rows.add_row(["– → ·"]);
        screen.table(&rows).unwrap();
        screen.keep_utf8();
        writeln!(screen, "✓").unwrap();
        drop(screen);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("+ 2 x 4 us ... Ä\n") && text.ends_with("\n✓\n"), "{text}");
        assert!(text.contains("- -> ."), "{text}");
    }

    #[test]
    fn screen_escapes_lines_styles_and_tables() {
        for styled in [false, true] {
            let text = written(styled);
            assert_eq!(text.matches(SHOWN).count(), 3, "{text:?}");
            let own = text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
            let is_unescaped = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
            assert!(!own.contains(is_unescaped), "{text:?}");
            assert_eq!(own.len() < text.len(), styled, "{text:?}");
        }
    }
}
