//! What can become of a call, and its words.

use std::fmt;
use std::time::Duration;

/// What becomes of a call; `C` is what it answers when it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect<C> {
    /// It answers this and is not performed.
    Answers(C),
    /// It lasts so much longer.
    Takes(Duration),
    /// It answers success and does something else.
    Goes(Wrong),
}

/// How a call that answers success goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wrong {
    /// Performed so much after it has answered.
    Late(Duration),
    /// Not performed.
    Lost,
    /// Never returns.
    Hang,
    /// Ends the process.
    Crash,
    /// Allows reading and writing, whatever was asked for.
    Wide,
    /// Allows reading alone.
    Narrow,
    /// Shows the memory from its second page on.
    Shifted,
    /// Shows or hands out other memory than was named.
    Other,
    /// What it gives back or hands out stays taken.
    Leak,
    /// A bit of the contents is wrong.
    Garbled,
    /// Half the size.
    Half,
    /// Twice the size.
    Double,
}

const WORDS: [(&str, Wrong); 11] = [
    ("lost", Wrong::Lost),
    ("hang", Wrong::Hang),
    ("crash", Wrong::Crash),
    ("wide", Wrong::Wide),
    ("narrow", Wrong::Narrow),
    ("shifted", Wrong::Shifted),
    ("other", Wrong::Other),
    ("leak", Wrong::Leak),
    ("garbled", Wrong::Garbled),
    ("half", Wrong::Half),
    ("double", Wrong::Double),
];

impl Wrong {
    /// The fault of this word.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        if let Some(delay) = word.strip_prefix("late:") {
            return time(delay).map(Self::Late);
        }
        WORDS.iter().find(|known| known.0 == word).map(|known| known.1)
    }

    /// Its word, without what a `late` has behind it.
    #[must_use]
    pub fn word(self) -> &'static str {
        WORDS.iter().find(|known| known.1 == self).map_or("late", |known| known.0)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())?;
        match self {
            Self::Late(delay) => write!(formatter, ":{}us", delay.as_micros()),
            _ => Ok(()),
        }
    }
}

impl<C: fmt::Display> fmt::Display for Effect<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answers(code) => code.fmt(formatter),
            Self::Takes(time) => write!(formatter, "{}us", time.as_micros()),
            Self::Goes(wrong) => wrong.fmt(formatter),
        }
    }
}

/// A time such as `20us`, `5ms` or `1s`.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}
