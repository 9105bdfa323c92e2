//! Writes and reads of the CPU.

use super::{Address, Hsa, Result, hex};

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
        self.difference(at, size, first, 1).map_or(Ok(()), |what| Err(self.recorder.wrong(what)))
    }

    /// Reads numbers from `first` on, each `step` more than the one before; describes the first
    /// difference.
    pub fn difference(&self, at: &Address, size: usize, first: u32, step: u32) -> Option<String> {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("compare({}, size, {first:#x}, {step});", at.c);
        let (_, wrong) = self.recorder.around("compare", &into, Some(c), || {
            let words = at.value as *const u32;
            let differs = (0..size / 4).find_map(|index| {
                let expected = first.wrapping_add((index as u32).wrapping_mul(step));
                // SAFETY: as for `fill`.
                let found = unsafe { words.add(index).read_volatile() };
                (found != expected).then_some((index * 4, expected, found))
            });
            (differs, None, vec![])
        });
        wrong.map(|(offset, expected, found)| {
            let xor = expected ^ found;
            format!(
                "at offset {offset:#x} of {}: expected {expected:#x}, found {found:#x} (XOR {xor:#x})",
                at.c
            )
        })
    }
}
