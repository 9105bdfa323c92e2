//! The layout of live mappings and of the free pages between them.

use crate::runtime::SIZE;

/// The maximum number of holes. With so many holes, the ledger's data about a hole has left the CPU caches before a
/// later round uses the hole again.
const MAX_HOLES: usize = 4096;

/// The pages of a reservation: live mappings, and holes that are evenly distributed between them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub base: usize,
    live: usize,
    holes: usize,
    /// The state of the random number generator.
    seed: u64,
}

impl Layout {
    /// Returns the size of a layout in bytes.
    pub fn size(live: usize) -> usize {
        (live + Self::holes(live)) * SIZE
    }

    fn holes(live: usize) -> usize {
        // A round uses up to 64 holes.
        MAX_HOLES.min(live).max(64)
    }

    pub fn new(base: usize, live: usize) -> Self {
        Self { base, live, holes: Self::holes(live), seed: 0x9e37_79b9_7f4a_7c15 }
    }

    fn address(&self, page: usize) -> usize {
        self.base + page * SIZE
    }

    fn pages(&self) -> usize {
        self.live + self.holes
    }

    /// Returns the page of a hole.
    fn hole_page(&self, hole: usize) -> usize {
        (hole * self.pages()).div_ceil(self.holes).min(self.pages() - 1)
    }

    /// Returns the addresses of the live mappings.
    pub fn live_addresses(&self) -> impl Iterator<Item = usize> {
        let mut hole = 0;
        (0..self.pages()).filter_map(move |page| {
            let is_hole = hole < self.holes && page == self.hole_page(hole);
            hole += usize::from(is_hole);
            (!is_hole).then(|| self.address(page))
        })
    }

    /// Returns a random number below `end`.
    fn draw(&mut self, end: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % end as u64) as usize
    }

    /// Fills `addresses` with distinct holes that are far apart, starting at a random hole.
    pub fn draw_holes(&mut self, addresses: &mut [usize]) {
        let (first, step) = (self.draw(self.holes), self.holes / addresses.len().max(1));
        for (number, address) in addresses.iter_mut().enumerate() {
            *address = self.address(self.hole_page((first + number * step) % self.holes));
        }
    }

    /// Fills `addresses` with random mapped addresses. `filled` are the holes at which the round maps memory before it
    /// uses `addresses`; they count as mapped, too.
    pub fn draw_mapped(&mut self, filled: &[usize], addresses: &mut [usize]) {
        for address in addresses {
            let page = self.draw(self.pages());
            // Only the hole `hole` or the next hole can be at this page.
            let hole = page * self.holes / self.pages();
            let is_hole =
                (hole..=hole + 1).any(|hole| hole < self.holes && self.hole_page(hole) == page);
            *address = if is_hole { filled[page % filled.len()] } else { self.address(page) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, SIZE};
    use std::collections::BTreeSet;

    #[test]
    fn live_mappings_and_holes_cover_the_range() {
        for live in [1, 2, 63, 64, 65, 1000, 4097, 100_000] {
            let mut layout = Layout::new(SIZE, live);
            let mapped: BTreeSet<usize> = layout.live_addresses().collect();
            assert_eq!(mapped.len(), live);
            assert!(mapped.iter().all(|at| at % SIZE == 0));
            assert!(mapped.last().unwrap() + SIZE <= layout.base + Layout::size(live));
            let mut holes = [0; 64];
            let mut drawn = [0; 64];
            for _ in 0..100 {
                layout.draw_holes(&mut holes);
                assert!(holes.iter().all(|hole| !mapped.contains(hole)), "{live}");
                assert_eq!(BTreeSet::from(holes).len(), holes.len(), "{live}");
                layout.draw_mapped(&holes, &mut drawn);
                assert!(drawn.iter().all(|at| mapped.contains(at) || holes.contains(at)), "{live}");
            }
        }
    }
}
