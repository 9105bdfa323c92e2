//! The layout of live mappings and of the free pages between them.

use crate::runtime::SIZE;

/// The number of free pages for new mappings: large enough that those of a round have left the CPU
/// caches before the next.
const HOLES: usize = 4096;

/// Pages of a reservation: live mappings, and holes evenly between them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub base: usize,
    live: usize,
    holes: usize,
    /// The state of the random numbers.
    seed: u64,
}

impl Layout {
    /// Returns the size of a layout in bytes.
    pub fn size(live: usize) -> usize {
        (live + Self::holes(live)) * SIZE
    }

    fn holes(live: usize) -> usize {
        // At least one round's.
        HOLES.min(live).max(64)
    }

    pub fn new(base: usize, live: usize) -> Self {
        Self { base, live, holes: Self::holes(live), seed: 0x9e37_79b9_7f4a_7c15 }
    }

    fn page(&self, page: usize) -> usize {
        self.base + page * SIZE
    }

    fn pages(&self) -> usize {
        self.live + self.holes
    }

    /// Returns the page of a hole; holes are evenly spaced.
    fn hole_page(&self, hole: usize) -> usize {
        (hole * self.pages()).div_ceil(self.holes).min(self.pages() - 1)
    }

    /// Returns the addresses to map before the measurement.
    pub fn live(&self) -> impl Iterator<Item = usize> {
        let mut hole = 0;
        (0..self.pages()).filter_map(move |page| {
            let is_hole = hole < self.holes && page == self.hole_page(hole);
            hole += usize::from(is_hole);
            (!is_hole).then(|| self.page(page))
        })
    }

    /// Returns a random number below `end`.
    fn draw(&mut self, end: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % end as u64) as usize
    }

    /// Fills `addresses` with distinct, distant holes, starting at a random one.
    pub fn draw_holes(&mut self, addresses: &mut [usize]) {
        let (first, step) = (self.draw(self.holes), self.holes / addresses.len().max(1));
        for (number, address) in addresses.iter_mut().enumerate() {
            *address = self.page(self.hole_page((first + number * step) % self.holes));
        }
    }

    /// Fills `addresses` with random mapped addresses; `mapped` are those in holes.
    pub fn draw_mapped(&mut self, mapped: &[usize], addresses: &mut [usize]) {
        for address in addresses {
            let page = self.draw(self.pages());
            // The hole at or before this page, if it is that page.
            let hole = page * self.holes / self.pages();
            let is_hole =
                (hole..=hole + 1).any(|hole| hole < self.holes && self.hole_page(hole) == page);
            *address = if is_hole { mapped[page % mapped.len()] } else { self.page(page) };
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
            let mapped: BTreeSet<usize> = layout.live().collect();
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
