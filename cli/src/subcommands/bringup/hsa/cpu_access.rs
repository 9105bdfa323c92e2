//! Writes and reads memory with the CPU.

use super::{Address, Hsa, Named, Result, hex};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;

/// The difference between the numbers in memory and the expected numbers. Counts 32-bit words instead of bytes, because
/// different words often have some equal bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The number of 32-bit words in the compared memory.
    compared: usize,
    /// The number of 32-bit words that differ.
    differing: usize,
    /// The range from the first to the last word that differs: the offsets of the range's first and last byte.
    range: (usize, usize),
    /// The first word that differs: its offset, the expected and the found number.
    first: (usize, u32, u32),
    /// The first of the consecutive numbers that the memory contained before a GPU copied to it. `None` if no copy
    /// wrote the memory, or its earlier contents are not known.
    before_copy: Option<u32>,
}

/// How messages say that a copy has not written its destination. The source and its mapping are then not the cause.
pub const NOT_WRITTEN: &str = "the copy had not written this word";
/// How messages say that a copy has written other contents to its destination. The copy can then be right.
pub const OTHER_CONTENTS: &str = "the copy has read other contents";

impl Difference {
    /// Compares consecutive 32-bit words with numbers that begin with `first` and increase by `step`.
    fn of(found: impl ExactSizeIterator<Item = u32>, first: u32, step: u32) -> Option<Self> {
        let compared = found.len();
        let mut difference: Option<Self> = None;
        for (index, found) in found.enumerate() {
            let expected = first.wrapping_add((index as u32).wrapping_mul(step));
            if expected == found {
                continue;
            }
            let offset = index * 4;
            let difference = difference.get_or_insert(Self {
                compared,
                differing: 0,
                range: (offset, offset),
                first: (offset, expected, found),
                before_copy: None,
            });
            difference.differing += 1;
            difference.range.1 = offset + 3;
        }
        difference
    }

    /// Returns whether at least half a page differs. If so, the GPU has probably accessed the wrong pages. A copy with
    /// single errors changes only a few words.
    pub fn affects_half_a_page(&self) -> bool {
        self.differing * 4 >= 2048
    }

    /// Notes that a GPU copied to the compared memory, which contained consecutive numbers from `first` before.
    pub fn after_copy_to(self, first: u32) -> Self {
        Self { before_copy: Some(first), ..self }
    }

    /// Returns whether the copy has not written the first word that differs.
    fn is_not_written(&self) -> bool {
        self.before_copy.is_some_and(|first| self.begins_with(first))
    }

    /// Returns whether the difference can be the contents that the source of the copy had: at least half a page
    /// differs, and the copy has written it. A copy with an error leaves the numbers from before the copy, or changes only a few
    /// words.
    pub fn is_of_other_contents(&self) -> bool {
        self.affects_half_a_page() && self.before_copy.is_some() && !self.is_not_written()
    }

    /// Returns whether two copies of different parts have copied the same wrong contents of their source. If the copies
    /// have errors, they leave the numbers from before the copy, or change different words.
    pub fn shows_same_contents(&self, second: &Self) -> bool {
        self.is_of_other_contents() && second.is_of_other_contents()
            || self == second && !self.is_not_written()
    }

    /// Returns whether the difference begins and ends at the boundaries of pages. A late mapping changes whole pages.
    pub fn covers_whole_pages(&self) -> bool {
        const PAGE: usize = 4096;
        let (first, last) = self.range;
        first % PAGE == 0 && (last + 1) % PAGE == 0
    }

    /// Returns whether the first and the last word of the memory differ.
    pub fn covers_both_ends(&self) -> bool {
        self.range == (0, self.compared * 4 - 1)
    }

    /// Returns whether the first word that differs is the word at this offset of consecutive numbers from `first`.
    fn begins_with(&self, first: u32) -> bool {
        let (offset, _, found) = self.first;
        found == first.wrapping_add((offset / 4) as u32)
    }

    /// Returns whether the first word that differs is a word of memory of the same size that contains consecutive
    /// numbers from `first`.
    pub fn is_word_of(&self, first: u32) -> bool {
        (self.first.2.wrapping_sub(first) as usize) < self.compared
    }

    /// Returns the offset of the first word that differs.
    pub fn offset(&self) -> usize {
        self.first.0
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { compared, differing, .. }, (start, end)) = (self, self.range);
        let (offset, expected, found) = self.first;
        let (differ, xor) = (if *differing == 1 { "differs" } else { "differ" }, expected ^ found);
        write!(
            formatter,
            "{differing} of {compared} 32-bit words {differ}, from offset {start:#x} to {end:#x}; at \
             {offset:#x}: expected {expected:#x}, found {found:#x} (XOR {xor:#x})"
        )?;
        match self.is_of_other_contents() {
            true => write!(formatter, "; {OTHER_CONTENTS}"),
            false if self.is_not_written() => write!(formatter, "; {NOT_WRITTEN}"),
            false => Ok(()),
        }
    }
}

/// Describes wrong data: what happened, who wrote and read the data, and which words are wrong.
pub fn wrong_data(
    what: impl fmt::Display,
    writer: impl fmt::Display,
    reader: impl fmt::Display,
    difference: &Difference,
) -> String {
    format!("{what} (written by {writer}, read by {reader}): {difference}")
}

impl Hsa<'_> {
    /// Maps a dma-buf for the CPU, without the runtime, and compares its memory with consecutive numbers from `first`.
    /// Returns the difference, if there is one.
    ///
    /// # Errors
    /// Returns the error of `mmap`.
    pub fn difference_in_dmabuf(
        &self,
        dmabuf: &OwnedFd,
        size: usize,
        first: u32,
    ) -> std::io::Result<Option<Difference>> {
        let arguments = [
            ("dmabuf", dmabuf.as_raw_fd().to_string()),
            ("size", hex(size)),
            ("first", hex(first)),
        ];
        let (_, difference) = self.recorder.record("mmap", &arguments, None, || {
            // SAFETY: the kernel chooses the address, and only this function uses the mapping.
            let mapped =
                unsafe { mmap(null_mut(), size, ProtFlags::READ, MapFlags::SHARED, dmabuf, 0) };
            let difference = mapped.map(|mapped| {
                let words = mapped.cast::<u32>();
                // SAFETY: the mapping has `size` bytes. If the memory is not accessible, this worker process
                // crashes, and the parent reports the crash.
                let found = (0..size / 4).map(|index| unsafe { words.add(index).read_volatile() });
                let difference = Difference::of(found, first, 1);
                // SAFETY: the range was mapped above and is no longer used.
                let _ = unsafe { munmap(mapped, size) };
                difference
            });
            (difference, None, vec![])
        });
        Ok(difference?)
    }

    /// Writes consecutive numbers from `first`.
    pub fn fill(&self, address: &Address, size: usize, first: u32) {
        let arguments = [
            (address.c_expression.as_str(), hex(address.value)),
            ("size", hex(size)),
            ("first", hex(first)),
        ];
        let c_statement = format!("fill({}, size, {first:#x});", address.c_expression);
        self.recorder.record("fill", &arguments, Some(c_statement), || {
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
        match self.difference(address, &Named::new("size", size), first, 1) {
            None => Ok(()),
            Some(difference) => {
                let message = wrong_data("wrong data", "the CPU", "the CPU", &difference);
                Err(self.recorder.fail(message))
            }
        }
    }

    /// Compares memory with numbers that begin with `first` and increase by `step`. Returns the difference, if
    /// there is one.
    pub fn difference(
        &self,
        address: &Address,
        size: &Named<usize>,
        first: u32,
        step: u32,
    ) -> Option<Difference> {
        let (address_in_c, size_in_c) = (&address.c_expression, &size.c_expression);
        let arguments = [
            (address_in_c.as_str(), hex(address.value)),
            (size_in_c.as_str(), hex(size.value)),
            ("first", hex(first)),
        ];
        let c_statement = format!("compare({address_in_c}, {size_in_c}, {first:#x}, {step});");
        let (_, difference) =
            self.recorder.record("compare", &arguments, Some(c_statement), || {
                let words = address.value as *const u32;
                // SAFETY: the runtime reported the range as mapped and readable. If the report is wrong, this worker
                // process crashes, and the parent reports the crash.
                let words =
                    (0..size.value / 4).map(|index| unsafe { words.add(index).read_volatile() });
                (Difference::of(words, first, step), None, vec![])
            });
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_counts_words_and_names_their_range() {
        assert!(Difference::of([7, 8, 9].into_iter(), 7, 1).is_none());
        // Change the second byte of the second word, and the last two bytes of the third word.
        let found = [7, 8 ^ 0x0100, 9 ^ 0xff01_0000, 10];
        let difference = Difference::of(found.into_iter(), 7, 1).unwrap();
        let text = "2 of 4 32-bit words differ, from offset 0x4 to 0xb; at 0x4: expected 0x8, found 0x108 (XOR 0x100)";
        assert_eq!(difference.to_string(), text);
        let one = Difference::of([7, 9, 9].into_iter(), 7, 1).unwrap().to_string();
        assert!(one.starts_with("1 of 3 32-bit words differs, from offset 0x4 to 0x7"), "{one}");
        assert!(!difference.affects_half_a_page());
        let half_copied = Difference::of([7, 8, 0x102, 0x103].into_iter(), 7, 1).unwrap();
        assert!(half_copied.begins_with(0x100) && !difference.begins_with(0x100));
        let zeros = Difference::of(std::iter::repeat_n(0, 1024), 0x100, 0).unwrap();
        assert!(zeros.affects_half_a_page() && zeros.covers_whole_pages());
        assert!(zeros.covers_both_ends());
        let message = wrong_data("wrong data", "gpu[0] (SDMA)", "the CPU", &zeros);
        let start = "wrong data (written by gpu[0] (SDMA), read by the CPU): 1024 of 1024 32-bit words differ, from";
        assert!(message.starts_with(start), "{message}");
    }

    /// After a copy, the words that differ show whether the copy or its source is wrong.
    #[test]
    fn difference_shows_what_a_copy_has_written() {
        let (expected, before) = (0x4e05_0001, 0xc09e_0001);
        let copied = |found: &dyn Fn(u32) -> u32| {
            let difference = Difference::of((0..1024).map(found), expected, 1).unwrap();
            difference.after_copy_to(before)
        };
        let lost = copied(&|index| before + index);
        let half = copied(&|index| if index < 512 { expected + index } else { before + index });
        let zeros = copied(&|_| 0);
        let other = copied(&|index| 0x4e06_0001 + index);
        let garbled = copied(&|index| (expected + index) ^ u32::from(index == 7));
        for (difference, text, is_stable) in [
            (lost, NOT_WRITTEN, false),
            (half, NOT_WRITTEN, false),
            (zeros, OTHER_CONTENTS, true),
            (other, OTHER_CONTENTS, true),
            (garbled, "(XOR 0x1)", true),
        ] {
            assert!(difference.to_string().ends_with(text), "{difference}");
            assert_eq!(difference.shows_same_contents(&difference), is_stable, "{difference}");
            assert_eq!(difference.is_of_other_contents(), text == OTHER_CONTENTS, "{difference}");
        }
        // A second copy, of other parts, has other garbled words.
        let parts = copied(&|index| (expected + index) ^ u32::from(index % 256 == 7));
        assert!(!garbled.shows_same_contents(&parts) && !garbled.shows_same_contents(&lost));
        assert!(zeros.shows_same_contents(&other));
        assert!(other.is_word_of(0x4e06_0001) && !zeros.is_word_of(0x4e06_0001));
    }

    /// The second half contains zeros, or numbers of another writer. Many bytes of these numbers are equal to bytes of
    /// the expected numbers.
    #[test]
    fn difference_counts_words_with_equal_bytes() {
        for old in [None, Some(0xda7b_0001)] {
            let half = |index: u32| match index {
                0..512 => 0xda7a_0001 + index,
                _ => old.map_or(0, |old| old + index),
            };
            let difference = Difference::of((0..1024).map(half), 0xda7a_0001, 1).unwrap();
            assert!(difference.affects_half_a_page() && !difference.covers_whole_pages());
            assert!(!difference.covers_both_ends());
            let text = difference.to_string();
            let start = "512 of 1024 32-bit words differ, from offset 0x800 to 0xfff; at 0x800: ";
            assert!(text.starts_with(start), "{text}");
        }
    }
}
