//! Defines [`Screen`], which writes all output of this command and escapes control characters.
//!
//! Text from files, runtimes, the kernel's log or the environment can contain control characters that
//! a terminal would execute. Only the methods for styles and tables write escape sequences. These methods
//! escape the control characters of their text.

use crate::provenance::Privacy;
use crate::standard_output::StandardOutput;
use crate::table::TextTable;
use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use hsa_vmm_conformance::printable;
use std::fmt;
use std::io::{self, LineWriter, Write};
use std::sync::OnceLock;

/// Removes private data from the text on standard error. Not set if nothing is removed.
static PRIVACY_OF_STDERR: OnceLock<Privacy> = OnceLock::new();

/// Removes private data from all later text on standard error.
pub fn clean_stderr_with(privacy: &Privacy) {
    let _ = PRIVACY_OF_STDERR.set(privacy.clone());
}

/// Writes text with control characters escaped, and styles if they are enabled.
pub struct Screen<'a> {
    writer: Box<dyn Write + 'a>,
    writes_styles: bool,
    /// Whether the signs of [`SIGNS`] are replaced.
    replaces_signs: bool,
    /// Removes private data from the text of each write.
    privacy: Option<Privacy>,
}

impl Screen<'static> {
    /// Creates a screen that writes to standard output, with styles on a terminal.
    pub fn stdout() -> Self {
        let writes_styles = is_styled(AutoStream::choice(&io::stdout()));
        Self {
            writer: Box::new(LineWriter::new(StandardOutput)),
            writes_styles,
            replaces_signs: !locale_is_utf8(),
            privacy: None,
        }
    }

    /// Creates a screen that writes to standard error, with styles on a terminal.
    pub fn stderr() -> Self {
        let writes_styles = is_styled(AutoStream::choice(&io::stderr()));
        Self {
            writer: Box::new(io::stderr()),
            writes_styles,
            replaces_signs: !locale_is_utf8(),
            privacy: PRIVACY_OF_STDERR.get().cloned(),
        }
    }
}

/// Returns whether the locale's character encoding is UTF-8.
pub fn locale_is_utf8() -> bool {
    let non_empty = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    is_utf8(["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(non_empty).as_deref())
}

/// Returns whether a locale such as `de_DE.UTF-8` has the encoding UTF-8. The default locale is `C`.
fn is_utf8(locale: Option<&str>) -> bool {
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The non-ASCII signs that this command prints, and their replacements for locales without UTF-8.
const SIGNS: [(char, &str); 14] = [
    ('✓', "+"),
    ('✗', "x"),
    ('–', "-"),
    ('·', "."),
    ('…', "..."),
    ('→', "->"),
    ('×', "x"),
    ('µ', "u"),
    ('±', "+-"),
    ('−', "-"),
    ('─', "-"),
    ('│', "|"),
    ('►', ">"),
    ('▼', "v"),
];

/// Replaces the signs of [`SIGNS`]. Keeps other characters, such as letters in file names.
fn replace_signs(text: &str) -> String {
    SIGNS.iter().fold(text.to_owned(), |text, (sign, ascii)| text.replace(*sign, ascii))
}

fn is_styled(choice: ColorChoice) -> bool {
    choice != ColorChoice::Never
}

impl<'a> Screen<'a> {
    /// Creates a screen that writes to a file or to memory, without styles.
    pub fn plain(writer: impl Write + 'a) -> Self {
        Self {
            writer: Box::new(writer),
            writes_styles: false,
            replaces_signs: false,
            privacy: None,
        }
    }

    /// Stops replacing signs. Call this before writing a format for programs, which read UTF-8 in any locale.
    pub fn keep_utf8(&mut self) {
        self.replaces_signs = false;
    }

    /// Removes private data from the text of each later write, except from tables ([`write_table`](Self::write_table)).
    /// `write!` writes each of its arguments separately, so a path must not be split between arguments.
    pub fn clean_with(&mut self, privacy: &Privacy) {
        self.privacy = Some(privacy.clone());
    }

    /// Writes text in a style.
    pub fn write_styled(&mut self, style: Style, text: impl fmt::Display) -> io::Result<()> {
        if !self.writes_styles {
            return write!(self, "{text}");
        }
        write!(self.writer, "{style}")?;
        write!(self, "{text}")?;
        write!(self.writer, "{style:#}")
    }

    /// Writes a table and a line break. Cells were escaped when they were added.
    pub fn write_table(&mut self, table: &TextTable) -> io::Result<()> {
        let text = table.render();
        let text = if self.replaces_signs { replace_signs(&text) } else { text };
        if self.writes_styles {
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
        let mut text = String::from_utf8_lossy(bytes);
        if let Some(privacy) = &self.privacy {
            text = privacy.clean_text(&text).into();
        }
        let text = printable(&text);
        match self.replaces_signs {
            true => self.writer.write_all(replace_signs(&text).as_bytes()),
            false => self.writer.write_all(text.as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Writes a line to standard error. Ignores errors.
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

    const UNESCAPED: &str = "a\u{1b}]0;b\u{7}\u{9b}31m\u{202e}\r\u{7f}c";
    const ESCAPED: &str = "a\\u001b]0;b\\u0007\\u009b31m\\u202e\\u000d\\u007fc";

    fn screen_text(styled: bool) -> String {
        let mut bytes = Vec::new();
        {
            let mut screen = Screen {
                writer: Box::new(&mut bytes),
                writes_styles: styled,
                replaces_signs: false,
                privacy: None,
            };
            writeln!(screen, "{UNESCAPED}").unwrap();
            screen.write_styled(Style::new().bold(), UNESCAPED).unwrap();
            let mut rows = table(&["head"]);
            rows.add_row([UNESCAPED]);
            rows.no_wrap([0]);
            screen.write_table(&rows).unwrap();
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn printable_keeps_values_of_json() {
        let value = serde_json::json!({ "name": UNESCAPED });
        let text = serde_json::to_string(&value).unwrap();
        let shown = printable(&text);
        assert_ne!(text, shown);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn signs_are_replaced_unless_locale_is_utf8() {
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
        let mut screen = Screen {
            writer: Box::new(&mut bytes),
            writes_styles: false,
            replaces_signs: true,
            privacy: None,
        };
        writeln!(screen, "✓ 2 × 4 µs ± 1 … Ä").unwrap();
        let mut rows = table(&["head"]);
        rows.add_row(["– → ·"]);
        screen.write_table(&rows).unwrap();
        screen.keep_utf8();
        writeln!(screen, "✓").unwrap();
        drop(screen);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("+ 2 x 4 us +- 1 ... Ä\n") && text.ends_with("\n✓\n"), "{text}");
        assert!(text.contains("- -> ."), "{text}");
    }

    #[test]
    fn screen_escapes_lines_styles_and_tables() {
        for styled in [false, true] {
            let text = screen_text(styled);
            assert_eq!(text.matches(ESCAPED).count(), 3, "{text:?}");
            let without_styles = text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
            let is_unescaped =
                |letter: char| letter.is_control() && letter != '\n' || letter == '\u{202e}';
            assert!(!without_styles.contains(is_unescaped), "{text:?}");
            assert_eq!(without_styles.len() < text.len(), styled, "{text:?}");
        }
    }
}
