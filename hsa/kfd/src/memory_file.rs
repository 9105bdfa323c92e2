//! Memory files (memfd), which represent dma-bufs, devices and generated files, and contain the memory of
//! buffer objects.

use crate::errno::{EBADF, EINVAL, EIO, Errno, Result};
use crate::own_descriptors;
use crate::real;
use libc::c_int;
use std::ffi::CString;

/// The properties in the name of a dma-buf's file, by which other processes identify the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The GPU that owns the memory, counted from 0.
    pub(crate) gpu: usize,
    pub(crate) flags: u32,
    /// Identifies the memory in all processes.
    pub(crate) token: u64,
    /// The process that allocated the memory.
    pub(crate) process: u32,
}

/// The start of the names of the files that contain buffer objects.
const PREFIX: &str = "hsa-kfd:";
/// The seals of a file that contains a buffer object: its size never changes, and no seal can be
/// added.
const SEALS: c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

impl Label {
    fn text(self) -> String {
        let Self { gpu, flags, token, process } = self;
        format!("{PREFIX}{gpu}:{flags:08x}:{token:016x}:{process:08x}")
    }

    /// Parses the name of a file. Ignores the suffix ` (deleted)`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix(PREFIX)?.splitn(4, ':');
        let gpu = fields.next()?.parse().ok()?;
        let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
        let token = u64::from_str_radix(fields.next()?, 16).ok()?;
        let process = u32::from_str_radix(fields.next()?.get(..8)?, 16).ok()?;
        Some(Self { gpu, flags, token, process })
    }
}

/// A memory file (memfd), closed when dropped.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    descriptor: c_int,
}

impl MemoryFile {
    /// Creates a sealed file of zeros that [`recognise`] accepts as a buffer object.
    pub(crate) fn labelled(label: Label, size: u64) -> Result<Self> {
        let file = Self::plain(&label.text(), size)?;
        seal(file.descriptor, SEALS)?;
        Ok(file)
    }

    /// Creates a file of zeros that is not a buffer object.
    pub(crate) fn plain(name: &str, size: u64) -> Result<Self> {
        let size = libc::off_t::try_from(size).map_err(|_| EINVAL)?;
        let descriptor = own_descriptors::with_raised_limit(|floor| {
            let descriptor = create(name)?;
            Ok(own_descriptors::move_above_floor(descriptor, floor))
        })?;
        let file = Self { descriptor };
        // SAFETY: the call accesses no memory.
        if unsafe { libc::ftruncate(descriptor, size) } < 0 {
            return Err(Errno::last());
        }
        Ok(file)
    }

    /// Duplicates the descriptor of a memory file.
    pub(crate) fn duplicate(descriptor: c_int) -> Result<Self> {
        let descriptor = own_descriptors::with_raised_limit(|floor| {
            let copy = real::duplicate(descriptor, true)?;
            Ok(own_descriptors::move_above_floor(copy, floor))
        })?;
        Ok(Self { descriptor })
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.descriptor
    }

    /// Reads all of the bytes, or fails.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (start, length, offset) = (bytes.as_mut_ptr(), bytes.len(), offset as libc::off_t);
        // SAFETY: the kernel writes at most `length` bytes, into the slice.
        let transferred = unsafe { libc::pread(self.descriptor, start.cast(), length, offset) };
        check_complete(transferred, length)
    }

    /// Writes all of the bytes, or fails.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (start, length, offset) = (bytes.as_ptr(), bytes.len(), offset as libc::off_t);
        // SAFETY: the kernel reads at most `length` bytes of the slice.
        let transferred = unsafe { libc::pwrite(self.descriptor, start.cast(), length, offset) };
        check_complete(transferred, length)
    }
}

/// Creates an empty memory file; its descriptor is the lowest free number.
fn create(name: &str) -> Result<c_int> {
    let name = CString::new(name).map_err(|_| EINVAL)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is zero-terminated and lives until the call returns.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if descriptor < 0 { Err(Errno::last()) } else { Ok(descriptor) }
}

fn seal(descriptor: c_int, seals: c_int) -> Result<()> {
    // SAFETY: sealing restricts operations on the file and accesses no memory.
    let sealed = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_ADD_SEALS, seals) };
    if sealed < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Creates an empty, read-only memory file that represents a device; its descriptor is the lowest
/// free number.
pub(crate) fn create_device(name: &str, close_on_exec: bool) -> Result<c_int> {
    let descriptor = create(name)?;
    if let Err(error) = seal(descriptor, SEALS | libc::F_SEAL_WRITE) {
        real::close(descriptor);
        return Err(error);
    }
    real::set_close_on_exec(descriptor, close_on_exec);
    Ok(descriptor)
}

/// Creates a memory file with a text for the program to read; its descriptor is the lowest free
/// number.
pub(crate) fn create_text(name: &str, text: &str, close_on_exec: bool) -> Result<c_int> {
    let descriptor = create(name)?;
    // SAFETY: the kernel only reads the text.
    let transferred = unsafe { libc::pwrite(descriptor, text.as_ptr().cast(), text.len(), 0) };
    if let Err(error) = check_complete(transferred, text.len()) {
        real::close(descriptor);
        return Err(error);
    }
    real::set_close_on_exec(descriptor, close_on_exec);
    Ok(descriptor)
}

/// Returns the device and inode numbers of a descriptor's file.
pub(crate) fn identity(descriptor: c_int) -> Result<(u64, u64)> {
    status(descriptor).map(|status| (status.st_dev, status.st_ino))
}

fn status(descriptor: c_int) -> Result<libc::stat> {
    // SAFETY: all zeros is a valid `stat`, which is plain numbers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only fills the struct.
    if unsafe { libc::syscall(libc::SYS_fstat, descriptor, &raw mut status) } < 0 {
        return Err(Errno::last());
    }
    Ok(status)
}

fn check_complete(transferred: isize, length: usize) -> Result<()> {
    match transferred {
        ..0 => Err(Errno::last()),
        transferred if transferred as usize == length => Ok(()),
        _ => Err(EIO),
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        own_descriptors::mark(self.descriptor, false);
        real::close(self.descriptor);
    }
}

/// Returns the label and size of a buffer object's dma-buf, or `EINVAL` for other files.
pub(crate) fn recognise(descriptor: c_int) -> Result<(Label, u64)> {
    let seals = real::seals(descriptor).map_err(|error| match error {
        EBADF => error,
        _ => EINVAL,
    })?;
    if seals & SEALS != SEALS {
        return Err(EINVAL);
    }
    let label = label_of(descriptor).ok_or(EINVAL)?;
    let size = status(descriptor)?.st_size as u64;
    Ok((label, size))
}

fn label_of(descriptor: c_int) -> Option<Label> {
    Label::parse(&link_target(descriptor, "/memfd:")?)
}

/// Returns the target of a descriptor's link in `/proc`, without a prefix, or `None` if the target
/// lacks the prefix.
pub(crate) fn link_target(descriptor: c_int, prefix: &str) -> Option<String> {
    let path = CString::new(format!("/proc/self/fd/{descriptor}")).ok()?;
    let mut target = [0u8; 512];
    // SAFETY: the path ends with a zero and the kernel writes at most the array's length.
    let length = unsafe {
        libc::syscall(libc::SYS_readlink, path.as_ptr(), target.as_mut_ptr(), target.len())
    };
    let target = target.get(..usize::try_from(length).ok()?)?;
    Some(std::str::from_utf8(target).ok()?.strip_prefix(prefix)?.to_owned())
}

/// Returns 64 unpredictable bits, never zero.
pub(crate) fn random_token() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most the eight bytes of the array.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_objects_differ_from_plain_memory_files() {
        let label = Label { gpu: 3, flags: 0xb000_0001, token: random_token(), process: 7 };
        let file = MemoryFile::labelled(label, 8192).unwrap();
        assert_eq!(recognise(file.descriptor()), Ok((label, 8192)));
        let plain = MemoryFile::plain(&label.text(), 8192).unwrap();
        assert_eq!(recognise(plain.descriptor()), Err(EINVAL));
        assert_eq!(recognise(-1), Err(EBADF));
    }
}
