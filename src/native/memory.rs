//! Loads and stores of this process to mapped memory.
//!
//! Device memory is never a slice: other agents and processes may change it at any time. The
//! bytes are copied through volatile accesses, word by word where the address allows it.

use core::ptr;

/// What is read and written at once where the address allows it.
type Word = [u8; 8];
const WORD: usize = size_of::<Word>();

/// How many bytes come before the first whole word.
fn head(address: usize, length: usize) -> usize {
    (address.next_multiple_of(WORD) - address).min(length)
}

/// Copies from mapped memory.
///
/// The caller holds the reservation's gate and has checked in the ledger that all of
/// `[address, address + bytes.len())` is mapped and readable for the CPU.
pub(crate) fn read_memory(address: usize, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(head(address, bytes.len()));
    let mut at = read_bytes(address, head);
    let mut words = rest.chunks_exact_mut(WORD);
    for word in &mut words {
        // SAFETY: eight readable bytes (the caller says), aligned behind the head.
        word.copy_from_slice(&unsafe { ptr::read_volatile(at as *const Word) });
        at += WORD;
    }
    read_bytes(at, words.into_remainder());
}

/// Byte by byte; returns the address behind them.
fn read_bytes(address: usize, bytes: &mut [u8]) -> usize {
    let mut at = address;
    for byte in bytes {
        // SAFETY: one readable byte (the caller of `read_memory` says).
        *byte = unsafe { ptr::read_volatile(at as *const u8) };
        at += 1;
    }
    at
}

/// Copies to mapped memory.
///
/// The caller holds the reservation's gate and has checked in the ledger that all of
/// `[address, address + bytes.len())` is mapped and writable for the CPU.
pub(crate) fn write_memory(address: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(head(address, bytes.len()));
    let mut at = write_bytes(address, head);
    let words = rest.chunks_exact(WORD);
    let tail = words.remainder();
    for word in words {
        let mut value = Word::default();
        value.copy_from_slice(word);
        // SAFETY: eight writable bytes (the caller says), aligned behind the head.
        unsafe { ptr::write_volatile(at as *mut Word, value) };
        at += WORD;
    }
    write_bytes(at, tail);
}

/// Byte by byte; returns the address behind them.
fn write_bytes(address: usize, bytes: &[u8]) -> usize {
    let mut at = address;
    for &byte in bytes {
        // SAFETY: one writable byte (the caller of `write_memory` says).
        unsafe { ptr::write_volatile(at as *mut u8, byte) };
        at += 1;
    }
    at
}

/// Copies from mapped memory to mapped memory, a portion at a time.
///
/// The caller answers for both as for [`read_memory`] and [`write_memory`].
pub(crate) fn copy_memory(to: usize, from: usize, size: usize) {
    /// What is on its way at a time.
    const PORTION: usize = 64 << 10;
    let mut portion = vec![0; size.min(PORTION)];
    for done in (0..size).step_by(PORTION) {
        let part = &mut portion[..PORTION.min(size - done)];
        read_memory(from + done, part);
        write_memory(to + done, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of which no two near each other are the same.
    fn pattern(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn every_byte_goes_where_it_belongs_and_no_other() {
        for size in [0, 1, 7, 8, 9, 23, 64 << 10, (128 << 10) + 13] {
            for (skip, offset) in [(0, 0), (1, 0), (0, 3), (5, 5), (7, 2)] {
                let source = pattern(skip + size);
                let expected = &source[skip..];
                let mut read = vec![0; size];
                read_memory(source.as_ptr() as usize + skip, &mut read);
                assert!(read == expected, "{size} bytes from {skip}: read");
                let mut whole = vec![0xff; offset + size + 9];
                let begin = whole.as_mut_ptr() as usize + offset;
                let inside = |whole: &[u8], what: &str| {
                    let (before, rest) = whole.split_at(offset);
                    let (part, after) = rest.split_at(size);
                    let untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xff);
                    assert!(part == expected, "{size} bytes to {offset}: {what}");
                    assert!(untouched(before) && untouched(after), "{what} beside");
                };
                write_memory(begin, expected);
                inside(&whole, "written");
                whole.fill(0xff);
                copy_memory(
                    whole.as_mut_ptr() as usize + offset,
                    source.as_ptr() as usize + skip,
                    size,
                );
                inside(&whole, "copied");
            }
        }
    }
}
