//! Which driver serves the device.

use super::DrmFile;
use super::abi::Version;
use crate::driver::Driver;
use crate::errno::Result;

const NAME: &[u8] = b"amdgpu";
const DATE: &[u8] = b"20150101";
const DESCRIPTION: &[u8] = b"AMD GPU";

/// Copies as much of a text as there is room for, and tells its whole length.
fn give(address: u64, room: &mut u64, text: &[u8]) {
    let length = text.len().min(*room as usize);
    if address != 0 {
        // SAFETY: the caller says that it has `room` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), address as *mut u8, length) };
    }
    *room = text.len() as u64;
}

/// Asked twice: for the lengths, then for the texts.
pub(super) fn version(_: &Driver, _: &DrmFile, version: &mut Version) -> Result<()> {
    (version.major, version.minor, version.patch) = (3, 61, 0);
    give(version.name, &mut version.name_length, NAME);
    give(version.date, &mut version.date_length, DATE);
    give(version.description, &mut version.description_length, DESCRIPTION);
    Ok(())
}
