//! Escapes text from files, runtimes and the environment for terminals and XML.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes control characters, line and paragraph separators, characters that change the direction of text, and
/// characters that XML forbids. `\n` and `\t` stay.
///
/// Each such character becomes an escape such as `\u001b`, as in JSON, so that printed JSON stays
/// valid and keeps its meaning.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unprintable(character) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

fn is_unprintable(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        // Arabic letter mark, left-to-right and right-to-left marks, embeddings, overrides,
        // isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        // Line and paragraph separators; noncharacters that XML forbids.
        '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}' => true,
        // The control characters: C0, DEL and C1.
        other => other.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_control_characters() {
        for (text, expected) in [
            ("plain, ünïcode\n\tand 中文 🙂", "plain, ünïcode\n\tand 中文 🙂"),
            ("\u{1b}]0;title\u{7}", "\\u001b]0;title\\u0007"),
            ("\r\u{8}\0\u{7f}", "\\u000d\\u0008\\u0000\\u007f"),
            ("\u{9b}2J\u{85}", "\\u009b2J\\u0085"),
            ("\u{202e}txt\u{2066}\u{200f}\u{61c}", "\\u202etxt\\u2066\\u200f\\u061c"),
            ("\u{2028}\u{fffe}\u{ffff}", "\\u2028\\ufffe\\uffff"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
