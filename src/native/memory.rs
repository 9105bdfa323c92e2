//! Loads and stores of this process to memory that agents and other threads use too.
//!
//! Every byte is one relaxed atomic access, so that a race with another access of this module is
//! never undefined behaviour: the bytes of the two are mixed. The public documentation is the
//! section "Memory model" of [`crate::vmm`].
//!
//! Where the address is aligned, one instruction accesses eight bytes, because reads over PCIe cost
//! a round trip each. It is inline assembly and no `AtomicU64`: Rust forbids races between atomic
//! accesses of different sizes, and callers choose the offsets.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// What one instruction reads or writes where the address allows it.
type Word = [u8; 8];
const WORD: usize = size_of::<Word>();

/// The number of bytes before the first whole word.
fn head(address: usize, length: usize) -> usize {
    (address.next_multiple_of(WORD) - address).min(length)
}

/// The byte at an address.
///
/// # Safety
/// The address is mapped for as long as the reference lives, and this process accesses the byte
/// only atomically meanwhile.
unsafe fn byte_at<'a>(address: usize) -> &'a AtomicU8 {
    // SAFETY: the caller's promise; a byte is always aligned.
    unsafe { AtomicU8::from_ptr(address as *mut u8) }
}

/// Reads eight bytes.
///
/// # Safety
/// As for [`byte_at`], of eight bytes; the address is a multiple of eight.
unsafe fn read_word(address: usize) -> Word {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word: u64;
        // SAFETY: reads what the caller vouches for and nothing else. To Rust it is eight relaxed
        // loads of a byte.
        unsafe {
            core::arch::asm!(
                "mov {word}, qword ptr [{address}]",
                word = out(reg) word,
                address = in(reg) address,
                options(nostack, preserves_flags, readonly),
            );
        }
        word.to_ne_bytes()
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: the caller's promise.
        core::array::from_fn(|at| unsafe { byte_at(address + at) }.load(Relaxed))
    }
}

/// Writes eight bytes.
///
/// # Safety
/// As for [`read_word`].
unsafe fn write_word(address: usize, word: Word) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word = u64::from_ne_bytes(word);
        // SAFETY: writes what the caller vouches for and nothing else. To Rust it is eight relaxed
        // stores of a byte.
        unsafe {
            core::arch::asm!(
                "mov qword ptr [{address}], {word}",
                word = in(reg) word,
                address = in(reg) address,
                options(nostack, preserves_flags),
            );
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, byte) in word.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { byte_at(address + at) }.store(byte, Relaxed);
    }
}

/// Copies from mapped memory.
///
/// The caller keeps all of `[address, address + bytes.len())` mapped and readable for the CPU: it
/// holds the reservation's gate and has checked the ledger, or owns the memory.
pub(crate) fn read_memory(address: usize, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(head(address, bytes.len()));
    let mut at = read_bytes(address, head);
    let mut words = rest.chunks_exact_mut(WORD);
    for word in &mut words {
        // SAFETY: eight readable bytes (the caller says), aligned behind the head.
        word.copy_from_slice(&unsafe { read_word(at) });
        at += WORD;
    }
    read_bytes(at, words.into_remainder());
}

/// Byte by byte; returns the address behind them.
fn read_bytes(address: usize, bytes: &mut [u8]) -> usize {
    let mut at = address;
    for byte in bytes {
        // SAFETY: one readable byte (the caller of `read_memory` says).
        *byte = unsafe { byte_at(at) }.load(Relaxed);
        at += 1;
    }
    at
}

/// Copies to mapped memory.
///
/// The caller answers for the memory as for [`read_memory`]; it is writable for the CPU.
pub(crate) fn write_memory(address: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(head(address, bytes.len()));
    let mut at = write_bytes(address, head);
    let words = rest.chunks_exact(WORD);
    let tail = words.remainder();
    for word in words {
        let mut value = Word::default();
        value.copy_from_slice(word);
        // SAFETY: eight writable bytes (the caller says), aligned behind the head.
        unsafe { write_word(at, value) };
        at += WORD;
    }
    write_bytes(at, tail);
}

/// Byte by byte; returns the address behind them.
fn write_bytes(address: usize, bytes: &[u8]) -> usize {
    let mut at = address;
    for &byte in bytes {
        // SAFETY: one writable byte (the caller of `write_memory` says).
        unsafe { byte_at(at) }.store(byte, Relaxed);
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

    /// Miri and the thread sanitizer judge it; the offsets make accesses of all sizes overlap.
    #[test]
    fn racing_accesses_mix_bytes() {
        let memory: Vec<AtomicU8> = (0..64).map(|_| AtomicU8::new(0)).collect();
        let start = memory.as_ptr().expose_provenance();
        std::thread::scope(|scope| {
            for writer in 0..3_usize {
                scope.spawn(move || write_memory(start + writer, &[writer as u8 + 1; 61]));
                scope.spawn(move || {
                    let mut bytes = [0; 61];
                    read_memory(start + writer * 3 % 4, &mut bytes);
                    assert!(bytes.iter().all(|&byte| byte <= 3), "{bytes:?}");
                });
            }
        });
        assert!(memory[..63].iter().all(|byte| (1..=3).contains(&byte.load(Relaxed))));
    }
}
