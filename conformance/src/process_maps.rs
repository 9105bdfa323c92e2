//! Reads `/proc/self/maps`: the permissions and the mapped files of this process's address ranges.

use std::ops::Range;

/// An address range and its permissions, such as `rw-s`.
pub(crate) type Line = (Range<usize>, String);

/// Returns the address ranges that intersect `range`, clipped to `range`, with their permissions. Returns `None` if the
/// file cannot be read.
pub(crate) fn lines_within(range: &Range<usize>) -> Option<Vec<Line>> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    Some(clip(&text, range))
}

/// Returns the inode of the file that is mapped at an address; `None` if no file is mapped there.
pub(crate) fn inode_at(address: usize) -> Option<u64> {
    inode(&std::fs::read_to_string("/proc/self/maps").ok()?, address)
}

fn inode(text: &str, address: usize) -> Option<u64> {
    let line = text.lines().find(|line| !clip(line, &(address..address + 1)).is_empty())?;
    line.split_whitespace().nth(4)?.parse().ok().filter(|&inode| inode != 0)
}

fn clip(text: &str, range: &Range<usize>) -> Vec<Line> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        let clipped = number(start)?.max(range.start)..number(end)?.min(range.end);
        (clipped.start < clipped.end).then_some((clipped, words.next()?.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_are_clipped_to_the_range() {
        let text = "1000-3000 r--p 00000000 00:00 0\n3000-4000 rw-s 00000000 00:01 7 /memfd:x (deleted)\n\
                    9000-a000 r-xp 00000000 00:00 0 [vdso]\n";
        assert_eq!(super::inode(text, 0x3000), Some(7));
        assert_eq!(super::inode(text, 0x2fff), None, "no file");
        assert_eq!(super::inode(text, 0x4000), None, "not mapped");
        let found = super::clip(text, &(0x2000..0x9000));
        assert_eq!(
            found,
            [(0x2000..0x3000, "r--p".to_owned()), (0x3000..0x4000, "rw-s".to_owned())]
        );
    }
}
