//! Handles from dma-bufs, and dma-bufs from handles.

use super::DrmFile;
use super::abi::Prime;
use crate::driver::Driver;
use crate::errno::{ENOENT, Result};

pub(super) fn import(driver: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    let buffer = driver.buffers.import(prime.fd)?;
    prime.handle = file.state().handle(buffer);
    Ok(())
}

pub(super) fn export(_: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    let buffer = file.state().buffer(prime.handle).cloned().ok_or(ENOENT)?;
    let closes = prime.flags & libc::O_CLOEXEC as u32 != 0;
    prime.fd = buffer.export(closes)?;
    Ok(())
}
