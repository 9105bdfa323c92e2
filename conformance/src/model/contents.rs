//! What is in memory, byte by byte, as far as it can be known.

use std::ops::Range;

/// Bytes, of which some are not known: nobody has written them yet, or a copy ran over itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    bytes: Vec<u8>,
    /// Of each whether it is known: bytes too, which are filled at once also where nothing is
    /// optimised. Tests live on this.
    known: Vec<u8>,
}

const KNOWN: u8 = 1;
const UNKNOWN: u8 = 0;

impl Contents {
    /// So many bytes that nobody has written yet.
    #[must_use]
    pub fn unknown(size: usize) -> Self {
        Self { bytes: vec![0; size], known: vec![UNKNOWN; size] }
    }

    /// These bytes.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Self {
        Self { known: vec![KNOWN; bytes.len()], bytes }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// A copy of some of them.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self { bytes: self.bytes[range.clone()].to_vec(), known: self.known[range].to_vec() }
    }

    /// Puts other bytes in the place of those from here on.
    pub fn overwrite(&mut self, from: usize, new: &Self) {
        let place = from..from + new.size();
        self.bytes[place.clone()].copy_from_slice(&new.bytes);
        self.known[place].copy_from_slice(&new.known);
    }

    /// Forgets what is there.
    pub fn forget(&mut self, range: Range<usize>) {
        self.known[range].fill(UNKNOWN);
    }

    /// Adds other bytes at the end.
    pub fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.known.extend_from_slice(&other.known);
    }

    /// The first byte that is known and not what was found: its place, itself, and what was found.
    #[must_use]
    pub fn difference(&self, found: &[u8]) -> Option<(usize, u8, u8)> {
        if self.bytes == found {
            return None;
        }
        let pairs = self.bytes.iter().zip(found).enumerate();
        pairs
            .filter(|&(place, _)| self.known[place] == KNOWN)
            .find(|(_, (expected, found))| expected != found)
            .map(|(place, (&expected, &found))| (place, expected, found))
    }
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.size())
    }
}
