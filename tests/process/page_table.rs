//! Reads the GPUs' page tables from the emulated kernel driver's debugfs.

use std::ops::Range;

/// Returns the address range of each entry in a GPU's page table.
#[track_caller]
pub fn entries(gpu: usize) -> Vec<Range<usize>> {
    lines(gpu).iter().filter_map(|line| entry_range(line)).collect()
}

/// Returns the permissions of the entry that starts at an address, for example `rwx`.
#[allow(dead_code, reason = "each test binary uses a different part")]
pub fn permissions(gpu: usize, address: usize) -> Option<String> {
    let line = lines(gpu)
        .into_iter()
        .find(|line| entry_range(line).is_some_and(|it| it.start == address))?;
    line.split_whitespace().last().map(str::to_owned)
}

#[track_caller]
fn lines(gpu: usize) -> Vec<String> {
    // The folders have the numbers of the render nodes: 128, 129, …
    let path = format!("/sys/kernel/debug/dri/{}/amdgpu_vm_info", 128 + gpu);
    let table = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    table.lines().map(str::to_owned).collect()
}

/// Returns the addresses in a line `  0x… size 0x… buffer …`, or `None` for other lines.
fn entry_range(line: &str) -> Option<Range<usize>> {
    let number = |word: Option<&str>| usize::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
    let mut words = line.split_whitespace();
    let start = number(words.next())?;
    let size = number(words.nth(1))?;
    Some(start..start + size)
}

/// What a GPU's page table says about one page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each test binary uses a different part")]
pub struct Page {
    /// The driver's description of the memory to which the page is mapped.
    pub memory: String,
    /// The offset of the page in the memory, in bytes.
    pub offset: usize,
    /// For example `rwx`.
    pub permissions: String,
}

/// Returns the page at an address, or `None` if no entry of the GPU contains the address.
#[allow(dead_code, reason = "each test binary uses a different part")]
#[track_caller]
pub fn page(gpu: usize, address: usize) -> Option<Page> {
    let lines = lines(gpu);
    let line =
        lines.iter().find(|line| entry_range(line).is_some_and(|it| it.contains(&address)))?;
    let (before, after) = line.split_once(" offset 0x")?;
    let (offset, permissions) = after.split_once(' ')?;
    let offset = usize::from_str_radix(offset, 16).ok()? + address - entry_range(line)?.start;
    let memory = before.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
    Some(Page { memory, offset, permissions: permissions.to_owned() })
}
