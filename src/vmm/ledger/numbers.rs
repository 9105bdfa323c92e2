//! Numbers of handles, each given once in a process.

use crate::handle::Handle;
use core::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first number that no ledger of this process has taken.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The most numbers that a ledger takes at a time.
const LARGEST_BLOCK: u64 = 4096;

/// The numbers of one ledger's handles.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Blocks that are used up, in order.
    used: Vec<Range<u64>>,
    /// The block in use: numbers from its start to `next` are given.
    current: Range<u64>,
    next: u64,
}

impl Numbers {
    /// Gives the next number; `None` after 2^40 in this process.
    pub fn give(&mut self) -> Option<u64> {
        if self.next == self.current.end {
            // Small at first, so that many short-lived ledgers use up few numbers.
            let size = (2 * (self.current.end - self.current.start)).clamp(16, LARGEST_BLOCK);
            let fits = |next: u64| (next + size <= Handle::NUMBERS).then_some(next + size);
            let start = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
            let full = core::mem::replace(&mut self.current, start..start + size);
            match self.used.last_mut() {
                Some(last) if last.end == full.start => last.end = full.end,
                _ if full.is_empty() => {}
                _ => self.used.push(full),
            }
            self.next = start;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Whether a number was given by this ledger.
    pub fn contain(&self, number: u64) -> bool {
        let block = self.used.partition_point(|block| block.end <= number);
        (self.current.start..self.next).contains(&number)
            || self.used.get(block).is_some_and(|block| block.contains(&number))
    }

    /// Whether another ledger of this process has taken a number, to give it now or later.
    pub fn is_foreign(&self, number: u64) -> bool {
        let is_own = self.contain(number) || self.current.contains(&number);
        !is_own && (1..NEXT.load(Ordering::Relaxed)).contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_given_once() {
        let mut ledgers: [Numbers; 3] = Default::default();
        let mut all = HashSet::new();
        let mut given: [Vec<u64>; 3] = Default::default();
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        for round in 0..rounds {
            let number = ledgers[round % 3].give().unwrap();
            assert!(number != 0 && all.insert(number), "{number}");
            given[round % 3].push(number);
        }
        for (ledger, given) in ledgers.iter().zip(&given) {
            let own: HashSet<_> = given.iter().copied().collect();
            assert!(all.iter().all(|number| ledger.contain(*number) == own.contains(number)));
            assert!(all.iter().all(|number| ledger.is_foreign(*number) != own.contains(number)));
            let next = given.last().unwrap() + 3;
            assert!(!ledger.is_foreign(next) && !ledger.contain(next), "given later");
            assert!(ledger.used.len() < 20, "{:?}", ledger.used);
        }
        assert!(!Numbers::default().is_foreign(0) && !Numbers::default().is_foreign(u64::MAX));
    }
}
