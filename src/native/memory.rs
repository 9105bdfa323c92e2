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
/// # Safety
/// Until it returns, `bytes.len()` bytes at `address` are mapped and readable for the CPU, and this
/// process accesses them only atomically.
pub(crate) unsafe fn read_memory(address: usize, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(head(address, bytes.len()));
    // SAFETY: the caller's promise.
    let mut at = unsafe { read_bytes(address, head) };
    let mut words = rest.chunks_exact_mut(WORD);
    for word in &mut words {
        // SAFETY: eight readable bytes (the caller's promise), aligned behind the head.
        word.copy_from_slice(&unsafe { read_word(at) });
        at += WORD;
    }
    // SAFETY: the caller's promise.
    unsafe { read_bytes(at, words.into_remainder()) };
}

/// Copies byte by byte; returns the address behind them.
///
/// # Safety
/// As for [`read_memory`].
unsafe fn read_bytes(address: usize, bytes: &mut [u8]) -> usize {
    let mut at = address;
    for byte in bytes {
        // SAFETY: one readable byte (the caller's promise).
        *byte = unsafe { byte_at(at) }.load(Relaxed);
        at += 1;
    }
    at
}

/// Copies to mapped memory.
///
/// # Safety
/// As for [`read_memory`], of memory that is writable for the CPU.
pub(crate) unsafe fn write_memory(address: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(head(address, bytes.len()));
    // SAFETY: the caller's promise.
    let mut at = unsafe { write_bytes(address, head) };
    let words = rest.chunks_exact(WORD);
    let tail = words.remainder();
    for word in words {
        let mut value = Word::default();
        value.copy_from_slice(word);
        // SAFETY: eight writable bytes (the caller's promise), aligned behind the head.
        unsafe { write_word(at, value) };
        at += WORD;
    }
    // SAFETY: the caller's promise.
    unsafe { write_bytes(at, tail) };
}

/// Copies byte by byte; returns the address behind them.
///
/// # Safety
/// As for [`write_memory`].
unsafe fn write_bytes(address: usize, bytes: &[u8]) -> usize {
    let mut at = address;
    for &byte in bytes {
        // SAFETY: one writable byte (the caller's promise).
        unsafe { byte_at(at) }.store(byte, Relaxed);
        at += 1;
    }
    at
}

/// The bytes that are copied or filled at a time.
const PORTION: usize = 64 << 10;

/// Copies from mapped memory to mapped memory, a portion at a time.
///
/// # Safety
/// As for [`read_memory`] of the source and [`write_memory`] of the destination.
pub(super) unsafe fn copy_memory(to: usize, from: usize, size: usize) {
    let mut portion = vec![0; size.min(PORTION)];
    for done in (0..size).step_by(PORTION) {
        let part = &mut portion[..PORTION.min(size - done)];
        // SAFETY: the caller's promise.
        unsafe {
            read_memory(from + done, part);
            write_memory(to + done, part);
        }
    }
}

/// Fills mapped memory with a 32-bit value. `size` is in bytes.
///
/// # Safety
/// As for [`write_memory`].
pub(super) unsafe fn fill_memory(address: usize, value: u32, size: usize) {
    let pattern = value.to_ne_bytes().repeat(size.min(PORTION).div_ceil(4));
    for done in (0..size).step_by(PORTION) {
        // SAFETY: the caller's promise.
        unsafe { write_memory(address + done, &pattern[..PORTION.min(size - done)]) };
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
                // SAFETY: bytes of the test's own.
                unsafe { read_memory(source.as_ptr() as usize + skip, &mut read) };
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
                // SAFETY: bytes of the test's own.
                unsafe { write_memory(begin, expected) };
                inside(&whole, "written");
                whole.fill(0xff);
                let (to, from) =
                    (whole.as_mut_ptr() as usize + offset, source.as_ptr() as usize + skip);
                // SAFETY: bytes of the test's own.
                unsafe { copy_memory(to, from, size) };
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
                // SAFETY: 61 of the 64 atomic bytes above.
                scope.spawn(move || unsafe {
                    write_memory(start + writer, &[writer as u8 + 1; 61]);
                });
                scope.spawn(move || {
                    let mut bytes = [0; 61];
                    // SAFETY: as above.
                    unsafe { read_memory(start + writer * 3 % 4, &mut bytes) };
                    assert!(bytes.iter().all(|&byte| byte <= 3), "{bytes:?}");
                });
            }
        });
        assert!(memory[..63].iter().all(|byte| (1..=3).contains(&byte.load(Relaxed))));
    }
}
