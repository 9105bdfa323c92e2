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

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Writes bytes from here on.
    pub fn write(&mut self, from: usize, new: &[u8]) {
        let place = from..from + new.len();
        self.bytes[place.clone()].copy_from_slice(new);
        self.known[place].fill(KNOWN);
    }

    /// Writes these few bytes again and again.
    pub fn fill(&mut self, place: Range<usize>, pattern: [u8; 4]) {
        // In pieces that the processor copies at once.
        let piece = pattern.repeat(256);
        for part in self.bytes[place.clone()].chunks_mut(piece.len()) {
            part.copy_from_slice(&piece[..part.len()]);
        }
        self.known[place].fill(KNOWN);
    }

    /// Puts some of other bytes in the place of those from here on.
    pub fn overwrite(&mut self, from: usize, other: &Self, part: Range<usize>) {
        let place = from..from + part.len();
        self.bytes[place.clone()].copy_from_slice(&other.bytes[part.clone()]);
        self.known[place].copy_from_slice(&other.known[part]);
    }

    /// Forgets what is there.
    pub fn forget(&mut self, range: Range<usize>) {
        self.known[range].fill(UNKNOWN);
    }

    /// Adds some of other bytes at the end.
    pub fn append(&mut self, other: &Self, part: Range<usize>) {
        self.bytes.extend_from_slice(&other.bytes[part.clone()]);
        self.known.extend_from_slice(&other.known[part]);
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
