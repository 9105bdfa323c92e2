//! Handle values up to ROCm 7.2: addresses outside of the user address space.

use std::collections::{BTreeMap, BTreeSet, HashMap};

const APERTURE_START: u64 = 0x0002_8000_0000_0000;
/// The size of the unused range after each allocation. Also the alignment of small allocations.
const GUARD_SIZE: u64 = 0x1000;
/// Allocations of at least this size are aligned to it.
const LARGE_SIZE: u64 = 2 << 20;

/// Allocates addresses that are never mapped: the lowest freed address of the same size, or else
/// the address after the last allocation. AMD's runtime instead searches a list of all ranges from
/// its start.
#[derive(Debug)]
pub(super) struct Aperture {
    next: u64,
    /// Freed addresses, by size.
    free: HashMap<u64, BTreeSet<u64>>,
    /// For each allocated address: the start before alignment, and the size.
    allocated: BTreeMap<u64, (u64, u64)>,
}

impl Default for Aperture {
    fn default() -> Self {
        Self { next: APERTURE_START + GUARD_SIZE, free: HashMap::new(), allocated: BTreeMap::new() }
    }
}

impl Aperture {
    pub(super) fn allocate(&mut self, size: u64) -> u64 {
        let freed = self.free.get_mut(&size).and_then(BTreeSet::pop_first);
        let (start, value) = match freed {
            Some(value) => (value, value),
            None => {
                let start = self.next;
                let alignment = if size >= LARGE_SIZE { LARGE_SIZE } else { GUARD_SIZE };
                let value = start.next_multiple_of(alignment);
                self.next = value + size.next_multiple_of(GUARD_SIZE) + GUARD_SIZE;
                (start, value)
            }
        };
        self.allocated.insert(value, (start, size));
        value
    }

    pub(super) fn free(&mut self, value: u64) {
        let Some((start, size)) = self.allocated.remove(&value) else { return };
        if self.allocated.is_empty() {
            *self = Self::default();
        } else if value + size.next_multiple_of(GUARD_SIZE) + GUARD_SIZE == self.next {
            self.next = start;
        } else {
            self.free.entry(size).or_default().insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Aperture, LARGE_SIZE};

    #[test]
    fn addresses_match_amds_runtime() {
        let mut aperture = Aperture::default();
        assert_eq!(aperture.allocate(4096), 0x0002_8000_0000_1000);
        aperture.free(0x0002_8000_0000_1000);
        for value in [0x0002_8000_0020_0000, 0x0002_8000_0080_0000, 0x0002_8000_00e0_0000] {
            assert_eq!(aperture.allocate(2 * LARGE_SIZE), value);
        }
        aperture.free(0x0002_8000_0080_0000);
        let reused = aperture.allocate(2 * LARGE_SIZE);
        assert_eq!(reused, 0x0002_8000_0080_0000, "the lowest freed address is reused first");
    }
}
