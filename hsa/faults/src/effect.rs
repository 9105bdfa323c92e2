//! The effects of faults, and their names in a plan.

use std::fmt;
use std::time::Duration;

/// The effect of a rule on a call. `C` is the type of error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect<C> {
    /// The call returns this error and is not performed.
    Fail(C),
    /// The call takes this much longer.
    Delay(Duration),
    /// The call misbehaves without returning an error.
    Misbehave(FaultKind),
}

/// The misbehaviour of a call that returns no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The call is performed this long after it has returned.
    Late(Duration),
    /// The call is performed at once, but devices see its effect only this long after it has returned. Until then,
    /// their reads return zeros and their writes are lost, without a fault.
    Unseen(Duration),
    /// The mapping that the call removes stays accessible for this long.
    Stale(Duration),
    /// The call moves the memory. Until the page tables of other devices are updated, reads by these devices
    /// return zeros and their writes are lost, without a fault.
    Evict,
    /// The call is not performed.
    Lost,
    /// The call never returns.
    Hang,
    /// The call aborts the process.
    Crash,
    /// The call allows reading and writing, whatever the caller requested.
    Wide,
    /// The call allows only reading.
    Narrow,
    /// The call maps the memory from its second page on.
    Shifted,
    /// The call maps or exports other memory than requested.
    WrongMemory,
    /// A call that frees a resource does not free it. A call that returns a resource creates a second one, and leaks
    /// it.
    Leak,
    /// The call flips a bit of the contents.
    Garbled,
    /// The call reports half of the size, or acts on half of the range.
    Half,
    /// The call reports twice the size.
    Double,
}

/// The names of the faults without a time.
const NAMES: [(&str, FaultKind); 12] = [
    ("evict", FaultKind::Evict),
    ("lost", FaultKind::Lost),
    ("hang", FaultKind::Hang),
    ("crash", FaultKind::Crash),
    ("wide", FaultKind::Wide),
    ("narrow", FaultKind::Narrow),
    ("shifted", FaultKind::Shifted),
    ("other", FaultKind::WrongMemory),
    ("leak", FaultKind::Leak),
    ("garbled", FaultKind::Garbled),
    ("half", FaultKind::Half),
    ("double", FaultKind::Double),
];

impl FaultKind {
    /// All kinds. The kinds with a time have example times.
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
        Self::WrongMemory,
        Self::Leak,
        Self::Garbled,
        Self::Half,
        Self::Double,
    ];

    /// Returns whether the fault changes only some calls. For example, [`Wide`](Self::Wide) changes only calls that
    /// request less than reading and writing. The code that implements such a fault reports each change
    /// ([`Injector::report_effect`](crate::Injector::report_effect)).
    #[must_use]
    pub fn is_conditional(self) -> bool {
        matches!(
            self,
            Self::Unseen(_)
                | Self::Stale(_)
                | Self::Evict
                | Self::Wide
                | Self::Narrow
                | Self::Shifted
                | Self::Half
                | Self::Double
        )
    }

    /// Parses the name of a fault, such as `lost` or `late:5ms`.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        if let Some((name, duration)) = word.split_once(':') {
            let kind = match name {
                "late" => Self::Late,
                "unseen" => Self::Unseen,
                "stale" => Self::Stale,
                _ => return None,
            };
            return parse_time(duration).map(kind);
        }
        NAMES.iter().find(|entry| entry.0 == word).map(|entry| entry.1)
    }

    /// Returns the name without a time.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Late(_) => "late",
            Self::Unseen(_) => "unseen",
            Self::Stale(_) => "stale",
            _ => NAMES.iter().find(|entry| entry.1 == self).map_or("", |entry| entry.0),
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
            Self::Misbehave(fault) => fault.fmt(formatter),
        }
    }
}

/// Parses a time such as `20us`, `5ms` or `1s`.
#[must_use]
pub fn parse_time(text: &str) -> Option<Duration> {
    let unit_start = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_start);
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
        let names = NAMES.iter().map(|entry| entry.0).chain([
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
