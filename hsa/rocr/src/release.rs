//! The releases of AMD's runtime: those available as packages, and others that the user provides.

use core::fmt;
use core::str::FromStr;

/// The length of the longest name.
const MAX_LENGTH: usize = 31;

/// A release of AMD's runtime: a release that Debian has as a package, or one that
/// [`fetch_from`](crate::fetch_from) has stored under this name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// The name, then zeros.
    name: [u8; MAX_LENGTH],
}

impl Release {
    /// 6.1.2: the first release with the virtual memory calls that HIP 6 uses.
    pub const R6_1_2: Self = Self::named("6.1.2");
    /// 6.4.3.
    pub const R6_4_3: Self = Self::named("6.4.3");
    /// 7.2.4: maps memory differently from 6.x.
    pub const R7_2_4: Self = Self::named("7.2.4");

    /// All releases that Debian has as packages, oldest first.
    pub const ALL: [Self; 3] = [Self::R6_1_2, Self::R6_4_3, Self::R7_2_4];

    const fn named(name: &str) -> Self {
        let (name, mut bytes, mut index) = (name.as_bytes(), [0; MAX_LENGTH], 0);
        while index < name.len() {
            bytes[index] = name[index];
            index += 1;
        }
        Self { name: bytes }
    }

    /// Returns the version, such as `6.4.3`: the name of the folder.
    #[must_use]
    pub fn version(&self) -> &str {
        let length = self.name.iter().position(|&byte| byte == 0).unwrap_or(MAX_LENGTH);
        // Names are ASCII.
        core::str::from_utf8(&self.name[..length]).unwrap_or_default()
    }

    /// Returns whether Debian has a package of the release.
    #[must_use]
    pub fn is_packaged(self) -> bool {
        Self::ALL.contains(&self)
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Release({})", self.version())
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.version())
    }
}

/// A text that cannot be the name of a release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid release `{0}`: 6.1.2, 6.4.3, 7.2.4, or the name of a fetched one: up to {MAX_LENGTH} letters, digits \
     and `.+_-`, the first a letter or digit"
)]
pub struct InvalidRelease(String);

impl FromStr for Release {
    type Err = InvalidRelease;

    fn from_str(text: &str) -> Result<Self, InvalidRelease> {
        // The text becomes the name of a folder. In command lines `all` means all releases. The folder of releases also
        // has a file `lock`.
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".+_-".contains(&byte);
        let has_valid_start =
            text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        let is_reserved = ["all", "lock"].contains(&text);
        if !has_valid_start || is_reserved || text.len() > MAX_LENGTH || !text.bytes().all(is_valid)
        {
            return Err(InvalidRelease(text.to_owned()));
        }
        Ok(Self::named(text))
    }
}

#[cfg(test)]
mod tests {
    use super::Release;

    #[test]
    fn release_round_trips_through_text() {
        for release in Release::ALL {
            assert_eq!(release.to_string().parse(), Ok(release));
            assert!(release.is_packaged());
        }
        let other: Release = "7.14.0-rc1+local".parse().unwrap();
        assert_eq!(other.version(), "7.14.0-rc1+local");
        assert!(!other.is_packaged());
        assert!(Release::ALL.is_sorted());
    }

    #[test]
    fn parse_accepts_only_folder_names() {
        let longest = "7".repeat(super::MAX_LENGTH);
        assert_eq!(longest.parse::<Release>().unwrap().version(), longest);
        for name in
            ["", ".", "..", "a/b", "-x", "all", "lock", ".fetch-1", "ä", "a b", &(longest + "7")]
        {
            assert!(name.parse::<Release>().is_err(), "{name}");
        }
    }
}
