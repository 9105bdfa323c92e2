//! Numbers that are never given twice, unlike addresses.

use crate::sync::atomic::{AtomicU64, Ordering};
use core::ops::Range;

/// How many a reservation takes for its mappings at a time, so that threads hardly ever meet here.
const BLOCK: u64 = 1024;

/// Gives numbers out.
#[derive(Debug)]
pub(crate) struct Serials {
    next: AtomicU64,
}

impl Default for Serials {
    fn default() -> Self {
        Self { next: AtomicU64::new(1) }
    }
}

impl Serials {
    pub fn one(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The next of a block, or of a new one if that is used up.
    pub fn next_of(&self, block: &mut Range<u64>) -> u64 {
        if let Some(serial) = block.next() {
            return serial;
        }
        let start = self.next.fetch_add(BLOCK, Ordering::Relaxed);
        *block = start + 1..start + BLOCK;
        start
    }

    /// Whether a number was given out already.
    pub fn were_given(&self, serial: u64) -> bool {
        serial < self.next.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_once_and_it_is_known_which_were() {
        let serials = Serials::default();
        let one = serials.one();
        assert!(serials.were_given(one) && !serials.were_given(one + 1));
        let (mut block, mut other) = (0..0, 0..0);
        let mut given: Vec<u64> = (0..BLOCK + 1).map(|_| serials.next_of(&mut block)).collect();
        given.extend([serials.next_of(&mut other), serials.one()]);
        assert!(given.iter().all(|&serial| serials.were_given(serial) && serial != one));
        given.sort_unstable();
        assert!(given.windows(2).all(|two| two[0] != two[1]), "{given:?}");
    }
}
