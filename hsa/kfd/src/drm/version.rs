//! The name and version of the device's driver.

use super::DrmFile;
use super::abi::Version;
use crate::driver::Driver;
use crate::errno::Result;
use crate::user;

const NAME: &[u8] = b"amdgpu";
const DATE: &[u8] = b"20150101";
const DESCRIPTION: &[u8] = b"AMD GPU";

/// Copies as much of a text as fits, and sets `capacity` to the text's full length.
fn write_text(address: u64, capacity: &mut u64, text: &[u8]) -> Result<()> {
    let length = text.len().min(usize::try_from(*capacity).unwrap_or(usize::MAX));
    *capacity = text.len() as u64;
    if address == 0 || length == 0 {
        return Ok(());
    }
    user::write(address, &text[..length])
}

/// Reports the version. A caller first queries the lengths of the texts, then the texts.
pub(super) fn version(_: &Driver, _: &DrmFile, version: &mut Version) -> Result<()> {
    (version.major, version.minor, version.patch) = (3, 61, 0);
    write_text(version.name, &mut version.name_length, NAME)?;
    write_text(version.date, &mut version.date_length, DATE)?;
    write_text(version.description, &mut version.description_length, DESCRIPTION)
}
