//! Forges handles, as any process that knows their layout can.
//!
//! This module implements the documented layout of [`IpcHandle`] independently of the library. Tests fail if the
//! library does not follow its documentation.

use hsa_vmm::ipc::IpcHandle;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

// The positions of the fields of a handle.

/// AMD's own handle of the memory.
pub const RUNTIME: std::ops::Range<usize> = 0..32;
pub const SIZE: std::ops::Range<usize> = 32..40;
pub const OFFSET: std::ops::Range<usize> = 40..48;
pub const PROCESS: std::ops::Range<usize> = 48..52;
/// The slot in the exporter's table.
pub const SLOT: std::ops::Range<usize> = 56..58;
pub const NAMESPACE: std::ops::Range<usize> = 58..60;
/// The check value.
const CHECK: std::ops::Range<usize> = 60..62;
pub const FORMAT: std::ops::Range<usize> = 62..64;

/// The size of an entry of a table, and of the table's header.
pub const ENTRY_SIZE: u64 = 64;
/// The offsets of two fields in an entry.
const SIZE_OFFSET: u64 = 8;
const RUNTIME_HANDLE_OFFSET: u64 = 16;

/// Returns the CRC-32 of bytes, as zlib computes it.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, add)
}

/// Returns the handle with the correct check value. `generation` is the number of the export, which the exporter's
/// table contains.
pub fn with_valid_check(mut bytes: [u8; IpcHandle::SIZE], generation: u64) -> IpcHandle {
    bytes[CHECK].fill(0);
    let check = crc32(&bytes) as u16 ^ generation as u16;
    bytes[CHECK].copy_from_slice(&check.to_le_bytes());
    IpcHandle::from_bytes(&bytes)
}

pub fn slot(handle: &IpcHandle) -> u16 {
    let bytes = handle.to_bytes();
    u16::from_le_bytes([bytes[SLOT.start], bytes[SLOT.start + 1]])
}

/// Opens the table of a process that has one table.
pub fn open_table(process: i32) -> File {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).expect("a process");
    let paths = descriptors.map(|descriptor| descriptor.expect("a descriptor").path());
    let is_table = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|name| name.starts_with("/memfd:hsa-vmm:ipc (deleted)"))
    };
    let path = paths.into_iter().find(is_table).expect("a table");
    OpenOptions::new().read(true).write(true).open(path).expect("a table")
}

/// The entry of a handle in its exporter's table.
pub struct Entry {
    table: File,
    position: u64,
}

impl Entry {
    pub fn of(handle: &IpcHandle) -> Self {
        let table = open_table(handle.process);
        let slot = u64::from(slot(handle));
        Self { table, position: ENTRY_SIZE * (1 + slot) }
    }

    pub fn generation(&self) -> u64 {
        let mut bytes = [0; 8];
        self.table.read_exact_at(&mut bytes, self.position).expect("an entry");
        u64::from_le_bytes(bytes)
    }

    /// Changes the runtime's handle in the exporter's entry.
    pub fn set_runtime_handle(&self, handle: &[u8]) {
        self.table.write_all_at(handle, self.position + RUNTIME_HANDLE_OFFSET).expect("an entry");
    }

    pub fn set_size(&self, size: u64) {
        self.table
            .write_all_at(&size.to_le_bytes(), self.position + SIZE_OFFSET)
            .expect("an entry");
    }
}
