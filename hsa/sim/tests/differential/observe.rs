//! The state that a program can observe besides the results of calls: its mappings and their
//! contents.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

const PAGE: u64 = 4096;
/// The number of pages to read from the start of a range. If a range is longer, [`words`] also
/// reads its last page.
const PAGES_READ: u64 = 32;

/// A mapped range with the same access everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct MappedRange {
    pub start: u64,
    pub end: u64,
    /// The permissions, as in `/proc/self/maps`.
    pub access: String,
}

/// Returns the mappings in a range, relative to its start. The function merges adjacent ranges with
/// equal access, because the kernel can split them differently for each runtime.
pub fn ranges(start: u64, end: u64) -> Vec<MappedRange> {
    let mut ranges: Vec<MappedRange> = Vec::new();
    for line in lines_until(end).lines() {
        let mut words = line.split([' ', '-']);
        let mut number = || words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let (Some(from), Some(to)) = (number(), number()) else { continue };
        if to <= start || from >= end {
            continue;
        }
        let access = line.split(' ').nth(1).unwrap_or("").to_owned();
        let (from, to) = (from.max(start) - start, to.min(end) - start);
        match ranges.last_mut() {
            Some(last) if last.end == from && last.access == access => last.end = to,
            _ => ranges.push(MappedRange { start: from, end: to, access }),
        }
    }
    ranges
}

/// Returns the lines of `/proc/self/maps` at least up to an address. The lines are sorted by
/// address.
fn lines_until(end: u64) -> String {
    let mut file = File::open("/proc/self/maps").expect("/proc/self/maps");
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = file.read(&mut buffer).expect("/proc/self/maps");
        text.extend_from_slice(&buffer[..length]);
        let last = text.rsplit(|byte| *byte == b'\n').nth(1).unwrap_or_default();
        let start = std::str::from_utf8(last).ok().and_then(|line| line.split('-').next());
        let last_start = start.and_then(|word| u64::from_str_radix(word, 16).ok());
        if length == 0 || last_start.is_some_and(|start| start >= end) {
            return String::from_utf8(text).expect("text");
        }
    }
}

/// Returns two words of each readable page, with their offsets in the area. Reads only some pages
/// of a long range (see [`PAGES_READ`]).
pub fn words(area: u64, ranges: &[MappedRange]) -> Vec<(u64, Option<u64>)> {
    let readable = ranges.iter().filter(|range| range.access.starts_with('r'));
    let mut words = Vec::new();
    for range in readable {
        let pages = (range.end - range.start) / PAGE;
        let last = pages.checked_sub(1).filter(|last| *last >= PAGES_READ);
        for page in (0..pages.min(PAGES_READ)).chain(last) {
            let offset = range.start + page * PAGE;
            words.extend([offset, offset + PAGE / 2].map(|offset| (offset, read(area + offset))));
        }
    }
    words
}

/// Returns the word at an address, or `None` if the address is not readable.
fn read(address: u64) -> Option<u64> {
    let file = word_file();
    let mut bytes = [0; 8];
    let from = core::ptr::without_provenance(address as usize);
    // SAFETY: the kernel reads the address, and checks it.
    let copied = unsafe { libc::pwrite(file.as_raw_fd(), from, bytes.len(), 0) };
    (copied == 8).then(|| {
        file.read_exact_at(&mut bytes, 0).expect("the word in the file");
        u64::from_ne_bytes(bytes)
    })
}

/// Writes a word with the CPU. Returns `false` if the address is not writable.
pub fn write(address: u64, word: u64) -> bool {
    let file = word_file();
    file.write_all_at(&word.to_ne_bytes(), 0).expect("the word in the file");
    let to = core::ptr::without_provenance_mut(address as usize);
    // SAFETY: the kernel checks the address, which is in an area of the test's own.
    let copied = unsafe { libc::pread(file.as_raw_fd(), to, 8, 0) };
    copied == 8
}

/// Returns a file of one word. `read` and `write` copy through this file, because a system call fails where an access
/// would end the process. Unlike `process_vm_readv`, `pread` and `pwrite` can access the memory of a device.
fn word_file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| {
        // SAFETY: the name is a string that ends in NUL.
        let descriptor = unsafe { libc::memfd_create(c"word".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(descriptor >= 0, "memfd_create");
        // SAFETY: the descriptor is open, and only the returned file owns it.
        unsafe { File::from_raw_fd(descriptor) }
    })
}

/// Unmaps everything in a range.
pub fn clear(start: u64, end: u64) {
    let address = core::ptr::without_provenance_mut(start as usize);
    // SAFETY: the area belongs to this test, and its runtime no longer uses the area.
    unsafe { libc::munmap(address, (end - start) as usize) };
}
