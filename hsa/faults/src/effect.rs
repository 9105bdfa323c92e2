//! The effects of faults, and their names in a plan.

use std::fmt;
use std::time::Duration;

/// The effect of a rule on a call; `C` is the type of error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect<C> {
    /// The call returns this error and is not performed.
    Fail(C),
    /// The call takes this much longer.
    Delay(Duration),
    /// The call returns success and misbehaves.
    Misbehave(FaultKind),
}

/// How a call that returns success misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Performed this long after it has returned.
    Late(Duration),
    /// Not performed.
    Lost,
    /// Never returns.
    Hang,
    /// Ends the process.
    Crash,
    /// Allows reading and writing, whatever was asked for.
    Wide,
    /// Allows only reading.
    Narrow,
    /// Shows the memory from its second page on.
    Shifted,
    /// Shows or exports other memory than requested.
    Other,
    /// Leaks the resource that it frees or returns.
    Leak,
    /// Flips a bit of the contents.
    Garbled,
    /// Halves the size.
    Half,
    /// Doubles the size.
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
    /// Every kind; `late` with an example of its delay.
    pub(crate) const ALL: [Self; 1 + NAMES.len()] = {
        let mut all = [Self::Late(Duration::from_millis(5)); 1 + NAMES.len()];
        let mut index = 0;
        while index < NAMES.len() {
            all[1 + index] = NAMES[index].1;
            index += 1;
        }
        all
    };

    /// Returns the fault of this name.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        if let Some(delay) = word.strip_prefix("late:") {
            return time(delay).map(Self::Late);
        }
        NAMES.iter().find(|known| known.0 == word).map(|known| known.1)
    }

    /// Returns the name, without the delay of `late`.
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

/// Parses a time such as `20us`, `5ms` or `1s`.
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
