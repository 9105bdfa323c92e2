//! Checked access to C's pointers.

use crate::errors;
use crate::status::Failure;
use core::ffi::{CStr, c_char, c_int, c_void};
use hsa_vmm::Address;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

/// Writes a result through a pointer.
///
/// # Safety
/// `pointer` is null or writable.
pub unsafe fn write_out<T>(argument: &str, pointer: *mut T, value: T) -> Result<(), Failure> {
    not_null(argument, pointer)?;
    // SAFETY: not null, so the caller guarantees that the pointer is writable. It may be misaligned.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Writes a result through a pointer, unless the pointer is null.
///
/// # Safety
/// `pointer` is null or writable.
pub unsafe fn write_unless_null<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not null, so the caller guarantees that the pointer is writable. It may be misaligned.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// Reads an argument through a pointer.
///
/// # Safety
/// `pointer` is null or readable.
pub unsafe fn read<T: Copy>(argument: &str, pointer: *const T) -> Result<T, Failure> {
    not_null(argument, pointer)?;
    // SAFETY: not null, so the caller guarantees that the pointer is readable.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Reads a number like [`try_read_bytes`].
pub fn try_read(pointer: *const c_int) -> Result<Option<c_int>, Failure> {
    Ok(try_read_bytes(pointer.cast())?.map(c_int::from_ne_bytes))
}

/// Reads bytes through a pointer that can be invalid. Returns `None` if the address is not mapped or not readable. The
/// kernel copies the bytes, so that no access of this process faults.
///
/// `process_vm_readv` would need no pipe, but sandboxes forbid it, and it cannot read the memory of a GPU.
pub fn try_read_bytes<const SIZE: usize>(
    pointer: *const c_void,
) -> Result<Option<[u8; SIZE]>, Failure> {
    const { assert!(SIZE <= libc::PIPE_BUF) };
    let failed = |error| {
        Failure::new(
            errors::OPERATING_SYSTEM,
            format!("cannot read {pointer:p} by a pipe: {error}"),
        )
    };
    let (mut reader, writer) = io::pipe().map_err(failed)?;
    // SAFETY: the kernel checks the address, and only reads.
    let written = unsafe { libc::write(writer.as_raw_fd(), pointer, SIZE) };
    if written < 0 {
        let error = io::Error::last_os_error();
        let is_bad_address = error.raw_os_error() == Some(libc::EFAULT);
        return if is_bad_address { Ok(None) } else { Err(failed(error)) };
    }
    let mut value = [0; SIZE];
    let is_complete = usize::try_from(written) == Ok(SIZE);
    is_complete.then(|| reader.read_exact(&mut value).map(|()| value).map_err(failed)).transpose()
}

/// Reads an array. Rejects counts above 65,536: HIP's arrays are shorter, so a larger count is a mistake.
///
/// # Safety
/// `pointer` is null or points to `count` readable values.
pub unsafe fn read_each<T: Copy>(
    argument: &str,
    pointer: *const T,
    count: usize,
) -> Result<Vec<T>, Failure> {
    not_null(argument, pointer)?;
    if count > 1 << 16 {
        let problem = format!("has {count} elements, which is more than 65536");
        return Err(Failure::invalid_argument(argument, problem));
    }
    // SAFETY: not null, so the caller guarantees that all `count` values are readable.
    Ok((0..count).map(|index| unsafe { pointer.add(index).read_unaligned() }).collect())
}

pub fn not_null<T>(argument: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() { Err(Failure::invalid_argument(argument, "is null")) } else { Ok(()) }
}

/// Reads a C string.
///
/// # Safety
/// `text` is null or ends in a zero byte.
pub unsafe fn read_text<'a>(argument: &str, text: *const c_char) -> Result<&'a str, Failure> {
    not_null(argument, text)?;
    // SAFETY: not null, so the caller guarantees that the text ends in a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid_argument(argument, "is not UTF-8"))
}

/// Truncates a text to `room` bytes, at a character boundary.
fn truncate(text: &str, room: usize) -> &str {
    let end = (0..=text.len().min(room)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Copies a text into an array that ends in a zero byte. Truncates the text if needed, and pads the array with zeros.
pub fn to_char_array<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    let mut room = [0; ROOM];
    for (element, byte) in room.iter_mut().zip(truncate(text, ROOM.saturating_sub(1)).bytes()) {
        *element = byte as c_char;
    }
    room
}

/// Writes a zero-terminated text into `length` bytes. Truncates the text if needed.
///
/// # Safety
/// `pointer` is null or has room for `length` bytes.
pub unsafe fn write_text(
    argument: &str,
    pointer: *mut c_char,
    length: i32,
    text: &str,
) -> Result<(), Failure> {
    not_null(argument, pointer)?;
    let Some(room) = usize::try_from(length).ok().and_then(|length| length.checked_sub(1)) else {
        return Err(Failure::invalid_argument("length", "leaves no room for a text"));
    };
    let bytes = truncate(text, room).as_bytes();
    // SAFETY: the caller guarantees room for `length` bytes, which is at least one more than `bytes.len()`.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), pointer, bytes.len());
        pointer.add(bytes.len()).write(0);
    }
    Ok(())
}

pub fn address(pointer: *const c_void) -> Address {
    Address::new(pointer as usize)
}

#[cfg(test)]
mod tests {
    use super::{c_char, to_char_array, try_read};

    #[test]
    fn unmapped_address_is_not_read() {
        let number = 42;
        assert_eq!(try_read(&number).unwrap(), Some(42));
        assert_eq!(try_read(0x1_0000 as *const _).unwrap(), None);
        assert_eq!(try_read((usize::MAX - 1) as *const _).unwrap(), None);
    }

    #[test]
    fn text_is_truncated_between_characters() {
        let bytes = |room: &[c_char]| room.iter().map(|&byte| byte as u8).collect::<Vec<_>>();
        assert_eq!(bytes(&to_char_array::<4>("abc")), b"abc\0");
        assert_eq!(bytes(&to_char_array::<4>("abcd")), b"abc\0");
        assert_eq!(bytes(&to_char_array::<4>("ab\u{e9}")), b"ab\0\0");
        assert_eq!(bytes(&to_char_array::<5>("ab\u{e9}")), "ab\u{e9}\0".as_bytes());
        assert_eq!(bytes(&to_char_array::<6>("a")), b"a\0\0\0\0\0");
    }
}
