//! Metadata that user-space drivers attach to a buffer object, for importers.

use crate::errno::{EINVAL, Result};
use crate::memory_file::{Label, MemoryFile};
use crate::{foreign, own_descriptors};
use std::os::unix::fs::FileExt;

pub(crate) const MAX_SIZE: usize = 256;
/// The size of the file that contains the metadata.
const FILE_SIZE: usize = 8 + 8 + 4 + MAX_SIZE;

/// Bytes and two words of flags, which a user-space driver has attached to a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) flags: u64,
    pub(crate) tiling: u64,
    pub(crate) size: u32,
    pub(crate) data: [u8; MAX_SIZE],
}

impl Metadata {
    pub(crate) const NONE: Self = Self { flags: 0, tiling: 0, size: 0, data: [0; MAX_SIZE] };

    /// Stores the metadata in a file that other processes find by the buffer's token.
    pub(crate) fn publish(&self, label: Label) -> Result<MemoryFile> {
        if self.size as usize > MAX_SIZE {
            return Err(EINVAL);
        }
        let mut bytes = [0; FILE_SIZE];
        bytes[..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.tiling.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.size.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.data);
        let file = MemoryFile::plain(&name(label), FILE_SIZE as u64)?;
        file.write(0, &bytes)?;
        Ok(file)
    }

    /// Reads the metadata from the process that created the buffer. Returns [`Self::NONE`] if the creator is this
    /// process, has exited, or has attached no metadata.
    pub(crate) fn from_creator(label: Label) -> Self {
        // This process has published no metadata of the buffer. Skip the slow search through all its open files.
        if label.process == std::process::id() {
            return Self::NONE;
        }
        Self::find(label).unwrap_or(Self::NONE)
    }

    fn find(label: Label) -> Option<Self> {
        let file = foreign::find(label.process, &name(label))?;
        let mut bytes = [0; FILE_SIZE];
        let read = file.read_exact_at(&mut bytes, 0);
        own_descriptors::unmark_file(&file);
        read.ok()?;
        let mut found = Self::NONE;
        found.flags = u64::from_ne_bytes(bytes[..8].try_into().ok()?);
        found.tiling = u64::from_ne_bytes(bytes[8..16].try_into().ok()?);
        found.size = u32::from_ne_bytes(bytes[16..20].try_into().ok()?).min(MAX_SIZE as u32);
        found.data.copy_from_slice(&bytes[20..]);
        Some(found)
    }
}

fn name(label: Label) -> String {
    format!("hsa-kfd metadata:{:016x}", label.token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kfd::abi::flags::VRAM;
    use crate::memory_file::random_token;
    use std::io::{Read, Write};
    use std::time::Duration;

    fn sample() -> Metadata {
        let mut data = [0; MAX_SIZE];
        data[..4].copy_from_slice(b"data");
        Metadata { flags: 3, tiling: 5, size: 4, data }
    }

    #[test]
    fn metadata_is_found_while_its_creator_runs() {
        let token = random_token();
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the child has only this thread, and never leaves the block below.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let label = Label { gpu: 0, flags: VRAM, token, process: std::process::id() };
            let published = sample().publish(label);
            let _ = (&writer).write_all(&[u8::from(published.is_ok())]);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        drop(writer);
        let mut published = [0];
        reader.read_exact(&mut published).unwrap();
        let label = Label { gpu: 0, flags: VRAM, token, process: child as u32 };
        let (found, absent) = (
            Metadata::from_creator(label),
            Metadata::from_creator(Label { token: token ^ 1, ..label }),
        );
        // SAFETY: the test has not waited for the child, so the number still names the child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: the number still names the child. With a null pointer, the kernel writes no
        // status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!(published, [1]);
        assert_eq!((found, absent), (sample(), Metadata::NONE));
        assert_eq!(Metadata::from_creator(label), Metadata::NONE);
    }

    #[test]
    fn oversized_metadata_is_rejected() {
        let label =
            Label { gpu: 0, flags: VRAM, token: random_token(), process: std::process::id() };
        let oversized = Metadata { size: MAX_SIZE as u32 + 1, ..sample() };
        assert_eq!(oversized.publish(label).map(drop), Err(EINVAL));
    }
}
