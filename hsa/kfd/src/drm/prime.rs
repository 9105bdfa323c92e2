//! Handles from dma-bufs, and dma-bufs from handles.

use super::DrmFile;
use super::abi::Prime;
use crate::driver::Driver;
use crate::errno::{ENOENT, Result};
use std::sync::Arc;

pub(super) fn import(driver: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    let buffer = driver.buffers.import(prime.fd)?;
    let mut state = file.state();
    let known = state.handles.iter().find(|(_, known)| Arc::ptr_eq(known, &buffer));
    let known = known.map(|(handle, _)| handle);
    prime.handle = known.unwrap_or_else(|| state.handles.insert(buffer));
    Ok(())
}

pub(super) fn export(_: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    let buffer = file.state().handles.get(prime.handle).cloned().ok_or(ENOENT)?;
    let closes = prime.flags & libc::O_CLOEXEC as u32 != 0;
    prime.fd = buffer.export(closes)?;
    Ok(())
}
