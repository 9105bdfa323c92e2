//! What the processor writes and reads by itself.

use super::{Address, Hsa, Result, hex};

impl Hsa<'_> {
    /// The processor writes words that count from `first`.
    pub fn fill(&self, at: &Address, size: usize, first: u32) {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("fill({}, size, {first:#x});", at.c);
        self.recorder.around("fill", &into, Some(c), || {
            let words = at.value as *mut u32;
            for index in 0..size / 4 {
                // SAFETY: the range is mapped for writing, as far as the runtime told the truth;
                // if it did not, this process ends, which is what it is there for.
                unsafe { words.add(index).write_volatile(first.wrapping_add(index as u32)) };
            }
            ((), None, vec![])
        });
    }

    /// The processor reads them again.
    pub fn compare(&self, at: &Address, size: usize, first: u32) -> Result<()> {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("compare({}, size, {first:#x});", at.c);
        let (_, wrong) = self.recorder.around("compare", &into, Some(c), || {
            let words = at.value as *const u32;
            let differs = (0..size / 4).find_map(|index| {
                let expected = first.wrapping_add(index as u32);
                // SAFETY: as for `fill`.
                let found = unsafe { words.add(index).read_volatile() };
                (found != expected).then_some((index * 4, expected, found))
            });
            (differs, None, vec![])
        });
        match wrong {
            None => Ok(()),
            Some((offset, expected, found)) => Err(self.recorder.wrong(format!(
                "at offset {offset:#x} of {} there is {found:#x}; {expected:#x} was written",
                at.c
            ))),
        }
    }
}
