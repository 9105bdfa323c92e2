//! The contents of memory, of which some bytes can be unknown.

use std::ops::Range;

/// Bytes of memory. A byte is unknown if it was not written yet, or if the result of the last write is undefined. The
/// result is undefined if the write failed half-way, if it wrote the byte several times, or if it was a copy whose
/// source and destination overlap.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    bytes: Vec<u8>,
    /// [`KNOWN`] or [`UNKNOWN`] for each byte. A list of bits would be smaller, but tests without compiler optimisation
    /// fill bytes faster.
    known: Vec<u8>,
}

const KNOWN: u8 = 1;
const UNKNOWN: u8 = 0;

impl Contents {
    /// Creates memory that has not been written.
    #[must_use]
    pub fn unknown(size: usize) -> Self {
        Self { bytes: vec![0; size], known: vec![UNKNOWN; size] }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Writes bytes from an offset on.
    pub fn write(&mut self, offset: usize, new: &[u8]) {
        let range = offset..offset + new.len();
        self.bytes[range.clone()].copy_from_slice(new);
        self.known[range].fill(KNOWN);
    }

    /// Fills a range with a repeated pattern.
    pub fn fill(&mut self, range: Range<usize>, pattern: [u8; 4]) {
        // Copy large blocks, which is faster than four bytes at a time.
        let block = pattern.repeat(256);
        for part in self.bytes[range.clone()].chunks_mut(block.len()) {
            part.copy_from_slice(&block[..part.len()]);
        }
        self.known[range].fill(KNOWN);
    }

    /// Overwrites bytes from an offset on with a part of other contents.
    pub fn overwrite(&mut self, offset: usize, other: &Self, part: Range<usize>) {
        let range = offset..offset + part.len();
        self.bytes[range.clone()].copy_from_slice(&other.bytes[part.clone()]);
        self.known[range].copy_from_slice(&other.known[part]);
    }

    /// Marks a range as unknown.
    pub fn forget(&mut self, range: Range<usize>) {
        self.known[range].fill(UNKNOWN);
    }

    /// Appends a part of other contents.
    pub fn append(&mut self, other: &Self, part: Range<usize>) {
        self.bytes.extend_from_slice(&other.bytes[part.clone()]);
        self.known.extend_from_slice(&other.known[part]);
    }

    /// Returns the first known byte that differs from the found byte: the offset, the expected value and the found
    /// value.
    #[must_use]
    pub fn difference(&self, found: &[u8]) -> Option<(usize, u8, u8)> {
        if self.bytes == found {
            return None;
        }
        let pairs = self.bytes.iter().zip(found).enumerate();
        pairs
            .filter(|&(offset, _)| self.known[offset] == KNOWN)
            .find(|(_, (expected, found))| expected != found)
            .map(|(offset, (&expected, &found))| (offset, expected, found))
    }
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.size())
    }
}
