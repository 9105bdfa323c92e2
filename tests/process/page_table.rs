//! Reads the GPUs' page tables from the emulated kernel driver's debugfs.

use std::ops::Range;

/// Returns the address ranges in a GPU's page table.
#[track_caller]
pub fn entries(gpu: usize) -> Vec<Range<usize>> {
    // The folders have the numbers of the render nodes: 128, 129, …
    let path = format!("/sys/kernel/debug/dri/{}/amdgpu_vm_info", 128 + gpu);
    let table = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    table.lines().filter_map(entry).collect()
}

/// Returns the addresses in a line `  0x… size 0x… buffer …`, or `None` for other lines.
fn entry(line: &str) -> Option<Range<usize>> {
    let number = |word: Option<&str>| usize::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
    let mut words = line.split_whitespace();
    let start = number(words.next())?;
    let size = number(words.nth(1))?;
    Some(start..start + size)
}
