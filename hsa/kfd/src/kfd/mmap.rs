//! What `mmap` of `/dev/kfd` maps: doorbells, registers and the page of events.

use super::events::PAGE_SIZE;
use super::memory::DOORBELLS;
use crate::driver::Driver;
use crate::errno::{EINVAL, Result};
use crate::real::{self, Mapping};
use libc::c_void;

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

/// Maps a window.
///
/// # Safety
///
/// As `mmap`: with `MAP_FIXED` what was at the address is gone.
pub(crate) unsafe fn map(driver: &Driver, mapping: Mapping, offset: u64) -> Result<*mut c_void> {
    let gpu = || driver.gpu((offset >> 46) as u32 & 0xffff);
    let length = mapping.length as u64;
    let spot = match offset >> 62 {
        3 if length == DOORBELLS => driver.arena.doorbells(gpu()?)?,
        0 if length == 4096 => driver.arena.registers(gpu()?)?,
        2 if length <= PAGE_SIZE => driver.arena.events()?,
        _ => {
            driver.log.missing(format_args!("mmap of /dev/kfd at {offset:#x}, {length} bytes"));
            return Err(EINVAL);
        }
    };
    // SAFETY: the caller answers for the address.
    unsafe { real::map(mapping, spot) }
}
