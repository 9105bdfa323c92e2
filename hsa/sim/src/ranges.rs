//! A map from address ranges to values, which splits ranges where needed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges, each with a value.
#[derive(Debug)]
pub(crate) struct Ranges<T> {
    /// The end and value of each range, by its start.
    ranges: BTreeMap<usize, (usize, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T: Clone> Ranges<T> {
    /// Sets the value of a range, replacing previous values.
    pub(crate) fn insert(&mut self, range: Range<usize>, value: T) {
        self.remove(range.clone());
        self.ranges.insert(range.start, (range.end, value));
    }

    /// Removes the values of a range. Values outside of the range stay.
    pub(crate) fn remove(&mut self, range: Range<usize>) {
        let previous = self.ranges.range(..range.start).next_back();
        if let Some((&start, &(end, ref value))) = previous
            && end > range.start
        {
            let value = value.clone();
            self.ranges.insert(start, (range.start, value.clone()));
            self.ranges.insert(range.start, (end, value));
        }
        while let Some((&start, &(end, _))) = self.ranges.range(range.clone()).next() {
            let Some((_, value)) = self.ranges.remove(&start) else { break };
            if end > range.end {
                self.ranges.insert(range.end, (end, value));
            }
        }
    }

    /// Removes the ranges for which `is_kept` returns `false`.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(Range<usize>) -> bool) {
        self.ranges.retain(|&start, &mut (end, _)| is_kept(start..end));
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.ranges.values().map(|(_, value)| value)
    }

    /// Returns the parts of `range` that have no value. No range in the map may extend across the start of `range`.
    pub(crate) fn gaps(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (&start, &(end, _)) in self.ranges.range(range.clone()) {
            if start > at {
                gaps.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn remove_keeps_parts_outside() {
        let mut ranges = Ranges::default();
        ranges.insert(0..10, 'a');
        ranges.insert(4..6, 'b');
        assert_eq!(ranges.gaps(0..12), vec![10..12]);
        ranges.remove(2..5);
        assert_eq!(ranges.gaps(0..12), [2..5, 10..12]);
        ranges.remove(0..100);
        assert_eq!(ranges.gaps(0..12), vec![0..12]);
    }
}
