//! The releases of AMD's runtime that are available as packages.

use core::fmt;
use core::str::FromStr;

/// A release of ROCm whose runtime Debian packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Release {
    /// 6.1.2: the first release with the virtual memory calls that HIP 6 uses.
    R6_1_2,
    /// 6.4.3.
    R6_4_3,
    /// 7.2.4: maps memory in another way than 6.x.
    R7_2_4,
}

impl Release {
    /// All releases, oldest first.
    pub const ALL: [Self; 3] = [Self::R6_1_2, Self::R6_4_3, Self::R7_2_4];

    /// Returns the version, such as `6.4.3`.
    #[must_use]
    pub const fn version(self) -> &'static str {
        match self {
            Self::R6_1_2 => "6.1.2",
            Self::R6_4_3 => "6.4.3",
            Self::R7_2_4 => "7.2.4",
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.version())
    }
}

/// A text that is not a known release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown release `{0}`: available are 6.1.2, 6.4.3 and 7.2.4")]
pub struct UnknownRelease(String);

impl FromStr for Release {
    type Err = UnknownRelease;

    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        let release = Self::ALL.into_iter().find(|release| release.version() == text);
        release.ok_or_else(|| UnknownRelease(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::Release;

    #[test]
    fn release_round_trips_through_text() {
        for release in Release::ALL {
            assert_eq!(release.to_string().parse(), Ok(release));
        }
        assert!("6.4".parse::<Release>().is_err());
    }
}
