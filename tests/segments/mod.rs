//! Reads exported segments in another process.

#![allow(dead_code, reason = "each test binary uses a different part")]

use crate::process::handover::{receive, send};
use crate::process::{Child, End};
use hsa_vmm::vmm::ExportedSegment;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

/// A process that maps dma-bufs and sends their bytes back.
pub struct Reader {
    socket: UnixStream,
    child: Child,
}

impl Reader {
    /// Starts the process as a forked child. The caller must not have started a runtime yet.
    pub fn start() -> Self {
        let (socket, other_end) = UnixStream::pair().unwrap();
        let mut ends = Some((socket, other_end));
        let child = Child::start(|| {
            let (socket, other_end) = ends.take().unwrap();
            drop(socket);
            serve(&other_end);
            0
        });
        let (socket, _) = ends.take().unwrap();
        Self { socket, child }
    }

    /// Returns the bytes of a segment as the other process reads them.
    pub fn read(&mut self, segment: &ExportedSegment) -> Vec<u8> {
        self.socket.write_all(&(segment.offset as u64).to_ne_bytes()).unwrap();
        self.socket.write_all(&(segment.length as u64).to_ne_bytes()).unwrap();
        send(&self.socket, &segment.descriptor);
        let mut bytes = vec![0; segment.length];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns the bytes of all segments, one after the other.
    pub fn read_all(&mut self, segments: &[ExportedSegment]) -> Vec<u8> {
        segments.iter().flat_map(|segment| self.read(segment)).collect()
    }

    /// Ends the process, and fails unless it succeeded.
    pub fn finish(self) {
        drop(self.socket);
        assert_eq!(self.child.wait(), End::Success);
    }
}

fn serve(mut socket: &UnixStream) {
    let mut numbers = [0; 16];
    while socket.read_exact(&mut numbers).is_ok() {
        let number = |index: usize| {
            usize::try_from(u64::from_ne_bytes(numbers[index..index + 8].try_into().unwrap()))
                .unwrap()
        };
        let bytes = bytes_of(&receive(socket), number(0), number(8));
        socket.write_all(&bytes).unwrap();
    }
}

/// Maps a dma-buf, and copies bytes from it.
fn bytes_of(descriptor: &OwnedFd, offset: usize, length: usize) -> Vec<u8> {
    let (file, end) = (descriptor.as_raw_fd(), offset + length);
    // SAFETY: the kernel chooses a free address, so it replaces no mapping.
    let start = unsafe { libc::mmap(null_mut(), end, libc::PROT_READ, libc::MAP_SHARED, file, 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    let bytes = (offset..end).map(|index| {
        // SAFETY: the byte is inside the mapping, which has `end` bytes.
        unsafe { start.cast::<u8>().add(index).read_volatile() }
    });
    let bytes = bytes.collect();
    // SAFETY: the bytes were copied, and nothing uses the mapping any more.
    assert_eq!(unsafe { libc::munmap(start, end) }, 0);
    bytes
}

/// Returns bytes that depend on the offset and the seed.
pub fn pattern(seed: usize, size: usize) -> Vec<u8> {
    let word = |index: usize| (seed << 48 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    (0..size).map(|index| word(index) as u8).collect()
}
