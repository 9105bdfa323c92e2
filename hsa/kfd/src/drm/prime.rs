//! Handles from dma-bufs, and dma-bufs from handles.

use super::DrmFile;
use super::abi::Prime;
use crate::driver::Driver;
use crate::errno::{EINVAL, ENOENT, Result};

pub(super) fn import(driver: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    let buffer = driver.buffers.import(prime.fd)?;
    driver.gpus.get(buffer.label.gpu).ok_or(EINVAL)?;
    prime.handle = file.state().handle(buffer);
    Ok(())
}

pub(super) fn export(driver: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    if prime.flags & !((libc::O_CLOEXEC | libc::O_RDWR) as u32) != 0 {
        return Err(EINVAL);
    }
    let buffer = file.state().buffer(prime.handle).cloned().ok_or(ENOENT)?;
    let closes = prime.flags & libc::O_CLOEXEC as u32 != 0;
    prime.fd = buffer.export(closes, &driver.config.faults)?;
    Ok(())
}
