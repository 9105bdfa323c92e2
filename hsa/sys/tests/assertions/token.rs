//! Splits Rust or C source text into words, numbers, strings and punctuation.

/// A token, as written. A string includes its quotes.
pub type Token<'a> = &'a str;

pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').expect("a string ends") + 2,
            _ if is_word_character(first) => {
                rest.find(|c| !is_word_character(c)).unwrap_or(rest.len())
            }
            _ if rest.starts_with("::") || rest.starts_with("->") => 2,
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        found.push(token);
        rest = after.trim_start();
    }
    found
}

pub fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
