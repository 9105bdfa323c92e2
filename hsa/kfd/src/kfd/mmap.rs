//! `mmap` of `/dev/kfd`: doorbells, registers and the event page.

use super::events::EVENT_PAGE_SIZE;
use super::windows::{self, DOORBELLS_SIZE};
use crate::descriptors;
use crate::driver::Driver;
use crate::errno::{EFAULT, EINVAL, ENODEV, Result};
use crate::page_table::PAGE;
use crate::real::{self, Mapping};
use libc::c_void;

/// The first bit of the window in an offset (`KFD_MMAP_TYPE_SHIFT`).
const WINDOW_SHIFT: u32 = 62;
/// The first bit of the GPU's identifier in an offset (`KFD_MMAP_GPU_ID_SHIFT`). The identifier has 16 bits.
const GPU_ID_SHIFT: u32 = 46;

/// The parts of `/dev/kfd` that can be mapped, by the two uppermost bits of an offset (`KFD_MMAP_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Registers = 0,
    Events = 2,
    Doorbells = 3,
}

impl Window {
    const ALL: [Self; 3] = [Self::Registers, Self::Events, Self::Doorbells];

    /// Finds the window of an offset.
    fn of(offset: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|window| *window as u64 == offset >> WINDOW_SHIFT)
    }
}

pub(crate) fn offset(window: Window, gpu_id: u32) -> u64 {
    (window as u64) << WINDOW_SHIFT | u64::from(gpu_id) << GPU_ID_SHIFT
}

/// Maps a window. A forked child does not inherit the mapping.
///
/// # Safety
///
/// With `MAP_FIXED`, the caller must own the replaced range.
pub(crate) unsafe fn map(
    driver: &Driver,
    opener: libc::pid_t,
    mapping: Mapping,
    offset: u64,
) -> Result<*mut c_void> {
    if opener != descriptors::process_id() {
        return Err(EINVAL);
    }
    let gpu = || driver.gpu((offset >> GPU_ID_SHIFT) as u32 & 0xffff).map_err(|_| ENODEV);
    let length = mapping.length as u64;
    let (offset, is_valid_length) = match Window::of(offset) {
        Some(Window::Doorbells) => (windows::doorbells_offset(gpu()?), length == DOORBELLS_SIZE),
        Some(Window::Registers) => (windows::registers_offset(gpu()?), length == PAGE),
        Some(Window::Events) => (windows::events_offset(), (1..=EVENT_PAGE_SIZE).contains(&length)),
        None => {
            driver.log.unsupported(format_args!("mmap of /dev/kfd at {offset:#x} = EFAULT"));
            return Err(EFAULT);
        }
    };
    if !is_valid_length {
        return Err(EINVAL);
    }
    let file = driver.device_file.file()?;
    // SAFETY: with `MAP_FIXED`, the caller owns the range. Nothing else uses the new mapping yet.
    unsafe {
        let mapped = real::map(mapping, file.descriptor(), offset)?;
        libc::madvise(mapped, mapping.length, libc::MADV_DONTFORK);
        Ok(mapped)
    }
}
