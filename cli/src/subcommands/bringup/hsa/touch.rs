//! Writes and reads memory with the CPU.

use super::{Address, Hsa, Result, hex};
use std::fmt;

/// The difference between the numbers in memory and the expected numbers.
#[derive(Debug)]
pub struct Difference {
    /// The number of 32-bit words that differ.
    words: usize,
    /// Describes the first word that differs.
    description: String,
}

impl Difference {
    /// Returns whether at least half a page differs. Then a GPU has probably used other memory: a wrong copy
    /// changes only single words.
    pub fn affects_pages(&self) -> bool {
        self.words * 4 >= 2048
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.description)
    }
}

impl Hsa<'_> {
    /// Writes consecutive numbers from `first`.
    pub fn fill(&self, address: &Address, size: usize, first: u32) {
        let arguments =
            [(address.c.as_str(), hex(address.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("fill({}, size, {first:#x});", address.c);
        self.recorder.record("fill", &arguments, Some(c), || {
            let words = address.value as *mut u32;
            for index in 0..size / 4 {
                // SAFETY: the runtime reported the range as mapped and writable. If the report is
                // wrong, this worker process crashes, and the parent reports the crash.
                unsafe { words.add(index).write_volatile(first.wrapping_add(index as u32)) };
            }
            ((), None, vec![])
        });
    }

    /// Checks that memory contains consecutive numbers from `first`.
    pub fn compare(&self, address: &Address, size: usize, first: u32) -> Result<()> {
        match self.difference(address, size, first, 1) {
            None => Ok(()),
            Some(difference) => Err(self.recorder.fail(difference.to_string())),
        }
    }

    /// Compares memory with numbers that begin with `first` and increase by `step`. Returns the difference, if
    /// there is one.
    pub fn difference(
        &self,
        address: &Address,
        size: usize,
        first: u32,
        step: u32,
    ) -> Option<Difference> {
        let arguments =
            [(address.c.as_str(), hex(address.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("compare({}, size, {first:#x}, {step});", address.c);
        let (_, differences) = self.recorder.record("compare", &arguments, Some(c), || {
            let words = address.value as *const u32;
            let mut differing = (0..size / 4).filter_map(|index| {
                let expected = first.wrapping_add((index as u32).wrapping_mul(step));
                // SAFETY: as for `fill`.
                let found = unsafe { words.add(index).read_volatile() };
                (found != expected).then_some((index * 4, expected, found))
            });
            let first = differing.next();
            ((first, 1 + differing.count()), None, vec![])
        });
        let (Some((offset, expected, found)), words) = differences else { return None };
        let xor = expected ^ found;
        let description = format!(
            "at offset {offset:#x} of {}: expected {expected:#x}, found {found:#x} (XOR {xor:#x})",
            address.c
        );
        Some(Difference { words, description })
    }
}
