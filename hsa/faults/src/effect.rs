//! What can become of a call, and its words.

use std::fmt;
use std::time::Duration;

/// What becomes of a call; `C` is what it answers when it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect<C> {
    /// It answers this and is not performed.
    Fail(C),
    /// It lasts so much longer.
    Delay(Duration),
    /// It answers success and does something else.
    Misbehave(FaultKind),
}

/// How a call that answers success goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
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

const NAMES: [(&str, FaultKind); 11] = [
    ("lost", FaultKind::Lost),
    ("hang", FaultKind::Hang),
    ("crash", FaultKind::Crash),
    ("wide", FaultKind::Wide),
    ("narrow", FaultKind::Narrow),
    ("shifted", FaultKind::Shifted),
    ("other", FaultKind::Other),
    ("leak", FaultKind::Leak),
    ("garbled", FaultKind::Garbled),
    ("half", FaultKind::Half),
    ("double", FaultKind::Double),
];

impl FaultKind {
    /// The fault of this word.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        if let Some(delay) = word.strip_prefix("late:") {
            return time(delay).map(Self::Late);
        }
        NAMES.iter().find(|known| known.0 == word).map(|known| known.1)
    }

    /// Its word, without what a `late` has behind it.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|known| known.1 == self).map_or("late", |known| known.0)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())?;
        match self {
            Self::Late(delay) => write!(formatter, ":{}us", delay.as_micros()),
            _ => Ok(()),
        }
    }
}

impl<C: fmt::Display> fmt::Display for Effect<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail(code) => code.fmt(formatter),
            Self::Delay(time) => write!(formatter, "{}us", time.as_micros()),
            Self::Misbehave(wrong) => wrong.fmt(formatter),
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
