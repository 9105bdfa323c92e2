//! Comparison of the model with this process's address space.

use super::describe::Describe;
use super::{Difference, DifferentialTest, expect_equal};
use hsa_vmm::Access;
use std::fs::read_to_string;
use std::ops::Range;

/// A line of `/proc/self/maps`.
struct Line {
    range: Range<usize>,
    /// The permissions, such as `rw-p`.
    permissions: [u8; 4],
}

/// Returns the lines of `/proc/self/maps`; no lines if the file cannot be read.
fn lines() -> Vec<Line> {
    let text = read_to_string("/proc/self/maps").unwrap_or_default();
    let line = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let permissions = *rest.as_bytes().first_chunk()?;
        Some(Line { range: number(start)?..number(end)?, permissions })
    };
    text.lines().filter_map(line).collect()
}

/// Returns the number of bytes in shared mappings. The number of mappings would not show a leak, because the kernel
/// merges adjacent mappings.
pub(super) fn shared_bytes() -> usize {
    let lines = lines();
    let shared = lines.iter().filter(|line| line.permissions[3] == b's');
    shared.map(|line| line.range.len()).sum()
}

/// Returns whether a range overlaps an inaccessible private mapping, such as the mapping of a reservation.
pub(super) fn is_reserved(range: &Range<usize>) -> bool {
    lines().iter().any(|line| overlaps(&line.range, range) && &line.permissions == b"---p")
}

/// Returns whether nothing is mapped in a range.
pub(super) fn is_free(range: &Range<usize>) -> bool {
    let lines = lines();
    !lines.is_empty() && !lines.iter().any(|line| overlaps(&line.range, range))
}

impl DifferentialTest {
    /// Compares the protection of every reserved address with the model.
    pub(super) fn compare_address_space(&self) -> Result<(), Difference> {
        let lines = lines();
        if lines.is_empty() {
            return Ok(());
        }
        for reservation in self.model.reservations() {
            let reserved = reservation.range();
            let mut position = reserved.start;
            let mappings =
                self.model.mappings().iter().filter(|it| overlaps(&it.range(), &reserved));
            for mapping in mappings {
                check_protection(&lines, position..mapping.start, Access::None)?;
                check_protection(&lines, mapping.range(), self.model.cpu_access(mapping))?;
                position = mapping.range().end;
            }
            check_protection(&lines, position..reserved.end, Access::None)?;
        }
        Ok(())
    }
}

/// Checks that a range is completely mapped with the protection for `access`.
fn check_protection(lines: &[Line], range: Range<usize>, access: Access) -> Result<(), Difference> {
    // Between adjacent mappings, the range is empty, so no protection is expected. But `overlaps` is true for an empty
    // range in the middle of a line.
    if range.is_empty() {
        return Ok(());
    }
    let expected = match access {
        Access::None => "---",
        Access::Read => "r--",
        Access::ReadWrite => "rw-",
    };
    let mut covered = 0;
    for line in lines.iter().filter(|line| overlaps(&line.range, &range)) {
        covered += line.range.end.min(range.end) - line.range.start.max(range.start);
        let found = &line.permissions[..3];
        if found != expected.as_bytes() {
            let found = String::from_utf8_lossy(found);
            return Err(Difference::State {
                what: format!("protection of {}", range.describe()),
                expected: expected.to_owned(),
                found: found.into_owned(),
            });
        }
    }
    if covered != range.len() {
        expect_equal(
            format_args!("mapped or reserved bytes of {}", range.describe()),
            &range.len(),
            &covered,
        )?;
    }
    Ok(())
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
