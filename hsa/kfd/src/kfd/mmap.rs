//! What `mmap` of `/dev/kfd` maps: doorbells, registers and the page of events.

use super::events::PAGE_SIZE;
use super::memory::DOORBELLS;
use crate::driver::Driver;
use crate::errno::{EINVAL, Result};
use crate::memory_file::MemoryFile;
use crate::real::{self, Mapping};
use libc::c_void;
use std::sync::OnceLock;

/// What there is to map, by the two uppermost bits of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Registers = 0,
    Events = 2,
    Doorbells = 3,
}

/// The offset of a window of a GPU.
pub(crate) fn offset(window: Window, gpu_id: u32) -> u64 {
    (window as u64) << 62 | u64::from(gpu_id) << 46
}

/// One window's memory, made when it is first mapped.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    file: OnceLock<MemoryFile>,
}

impl Pages {
    pub(crate) fn file(&self, name: &str, size: u64) -> Result<&MemoryFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let made = MemoryFile::plain(name, size)?;
        Ok(self.file.get_or_init(|| made))
    }
}

/// Maps a window.
///
/// # Safety
///
/// As `mmap`: with `MAP_FIXED` what was at the address is gone.
pub(crate) unsafe fn map(driver: &Driver, mapping: Mapping, offset: u64) -> Result<*mut c_void> {
    let gpu = || driver.gpu((offset >> 46) as u32 & 0xffff);
    let length = mapping.length as u64;
    let file = match offset >> 62 {
        3 if length == DOORBELLS => driver.process.queues.doorbells(gpu()?)?,
        0 if length == 4096 => driver.process.queues.registers(gpu()?)?,
        2 if length <= PAGE_SIZE => driver.process.events.page()?,
        _ => {
            driver.log.missing(format_args!("mmap of /dev/kfd at {offset:#x}, {length} bytes"));
            return Err(EINVAL);
        }
    };
    // SAFETY: the caller answers for the address.
    unsafe { real::map(mapping, file.descriptor()) }
}
