//! Writes and reads of the CPU.

use super::{Address, Hsa, Result, hex};
use std::fmt;

/// How numbers in memory differ from the expected ones.
#[derive(Debug)]
pub struct Difference {
    /// The number of 32-bit words that differ.
    words: usize,
    /// The first difference.
    first: String,
}

impl Difference {
    /// Returns whether half a page differs or more, as if a GPU had used other memory. A copy that fails
    /// changes single words.
    pub fn is_of_pages(&self) -> bool {
        self.words * 4 >= 2048
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.first)
    }
}

impl Hsa<'_> {
    /// Writes consecutive numbers from `first` on.
    pub fn fill(&self, at: &Address, size: usize, first: u32) {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("fill({}, size, {first:#x});", at.c);
        self.recorder.around("fill", &into, Some(c), || {
            let words = at.value as *mut u32;
            for index in 0..size / 4 {
                // SAFETY: the runtime reported the range as mapped and writable. If it is not, this
                // worker process crashes, and the parent reports that.
                unsafe { words.add(index).write_volatile(first.wrapping_add(index as u32)) };
            }
            ((), None, vec![])
        });
    }

    /// Reads them again and compares.
    pub fn compare(&self, at: &Address, size: usize, first: u32) -> Result<()> {
        match self.difference(at, size, first, 1) {
            None => Ok(()),
            Some(what) => Err(self.recorder.wrong(what.to_string())),
        }
    }

    /// Reads numbers from `first` on, each `step` more than the one before, and compares.
    pub fn difference(
        &self,
        at: &Address,
        size: usize,
        first: u32,
        step: u32,
    ) -> Option<Difference> {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("compare({}, size, {first:#x}, {step});", at.c);
        let (_, wrong) = self.recorder.around("compare", &into, Some(c), || {
            let words = at.value as *const u32;
            let mut differing = (0..size / 4).filter_map(|index| {
                let expected = first.wrapping_add((index as u32).wrapping_mul(step));
                // SAFETY: as for `fill`.
                let found = unsafe { words.add(index).read_volatile() };
                (found != expected).then_some((index * 4, expected, found))
            });
            let first = differing.next();
            ((first, 1 + differing.count()), None, vec![])
        });
        let (Some((offset, expected, found)), words) = wrong else { return None };
        let xor = expected ^ found;
        let first = format!(
            "at offset {offset:#x} of {}: expected {expected:#x}, found {found:#x} (XOR {xor:#x})",
            at.c
        );
        Some(Difference { words, first })
    }
}
