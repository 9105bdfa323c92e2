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
    /// Takes effect this long after it has returned; until then, accesses reach no memory and do not fault.
    Unseen(Duration),
    /// What it removes can still be used for this long.
    Stale(Duration),
    /// Moves the memory; mappings of other devices lead to other memory until they are validated.
    Evict,
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

const NAMES: [(&str, FaultKind); 12] = [
    ("evict", FaultKind::Evict),
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
    /// Every kind, with an example of its time.
    pub const ALL: [Self; 15] = [
        Self::Late(Duration::from_millis(5)),
        Self::Unseen(Duration::from_millis(50)),
        Self::Stale(Duration::from_millis(50)),
        Self::Evict,
        Self::Lost,
        Self::Hang,
        Self::Crash,
        Self::Wide,
        Self::Narrow,
        Self::Shifted,
        Self::Other,
        Self::Leak,
        Self::Garbled,
        Self::Half,
        Self::Double,
    ];

    /// Returns the fault of this name.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        if let Some((name, duration)) = word.split_once(':') {
            let kind = match name {
                "late" => Self::Late,
                "unseen" => Self::Unseen,
                "stale" => Self::Stale,
                _ => return None,
            };
            return time(duration).map(kind);
        }
        NAMES.iter().find(|known| known.0 == word).map(|known| known.1)
    }

    /// Returns the name, without a time.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Late(_) => "late",
            Self::Unseen(_) => "unseen",
            Self::Stale(_) => "stale",
            _ => NAMES.iter().find(|known| known.1 == self).map_or("", |known| known.0),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())?;
        match self {
            Self::Late(time) | Self::Unseen(time) | Self::Stale(time) => {
                write!(formatter, ":{}us", time.as_micros())
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contains_every_name() {
        let names = NAMES.iter().map(|known| known.0).chain([
            "late:5000us",
            "unseen:50000us",
            "stale:50000us",
        ]);
        for name in names {
            let kind = FaultKind::from_name(name).unwrap();
            assert!(FaultKind::ALL.contains(&kind), "{name}");
            assert_eq!(FaultKind::from_name(&kind.to_string()), Some(kind));
        }
        assert_eq!(FaultKind::ALL.len(), NAMES.len() + 3);
    }
}
