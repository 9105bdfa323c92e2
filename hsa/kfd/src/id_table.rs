//! A table that identifies values by small numbers. Like the kernel's IDR, it assigns the lowest free number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A table whose numbers start at 1.
#[derive(Debug)]
pub(crate) struct IdTable<T> {
    slots: Vec<Option<T>>,
    free: BinaryHeap<Reverse<usize>>,
}

impl<T> Default for IdTable<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: BinaryHeap::new() }
    }
}

impl<T> IdTable<T> {
    /// Inserts a value. Returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let index = match self.free.pop() {
            Some(Reverse(index)) => index,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[index] = Some(value);
        index as u32 + 1
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number.checked_sub(1)? as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number.checked_sub(1)? as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = number.checked_sub(1)? as usize;
        let removed = self.slots.get_mut(index)?.take()?;
        self.free.push(Reverse(index));
        Some(removed)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_reuses_lowest_free_number() {
        let mut table = IdTable::default();
        assert_eq!([table.insert('a'), table.insert('b'), table.insert('c')], [1, 2, 3]);
        assert_eq!(table.remove(2), Some('b'));
        assert_eq!(table.remove(1), Some('a'));
        assert_eq!((table.remove(1), table.get(0), table.get(4)), (None, None, None));
        assert_eq!(table.len(), 1);
        assert_eq!([table.insert('d'), table.insert('e'), table.insert('f')], [1, 2, 4]);
        assert_eq!(table.len(), 4);
    }
}
