//! Reads the permissions of this process's address ranges from `/proc/self/maps`.

use std::ops::Range;

/// An address range and its permissions, such as `rw-s`.
pub(crate) type Line = (Range<usize>, String);

/// Returns the lines that intersect a range, clipped to the range. Returns `None` if the file cannot be
/// read.
pub(crate) fn within(range: &Range<usize>) -> Option<Vec<Line>> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    Some(clip(&text, range))
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
        let found = super::clip(text, &(0x2000..0x9000));
        assert_eq!(
            found,
            [(0x2000..0x3000, "r--p".to_owned()), (0x3000..0x4000, "rw-s".to_owned())]
        );
    }
}
