//! Imports dma-bufs as handles, and exports handles as dma-bufs.

use super::DrmFile;
use super::abi::Prime;
use crate::descriptors;
use crate::driver::Driver;
use crate::errno::{EINVAL, ENOENT, Result};
use hsa_faults::FaultKind;

pub(super) fn import(driver: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    let buffer = driver.buffers.import(prime.fd)?;
    driver.gpus.get(buffer.label.gpu).ok_or(EINVAL)?;
    if driver.config.faults.has_fault(FaultKind::Evict) && buffer.label.gpu != file.gpu {
        // The import moves the buffer to memory that this GPU can access.
        let peers = descriptors::render_files();
        for peer in peers.iter().filter(|peer| peer.gpu != file.gpu) {
            if peer.state().table.invalidate(&buffer) {
                driver.config.faults.record_effect();
            }
        }
    }
    prime.handle = file.state().handle(buffer);
    Ok(())
}

pub(super) fn export(driver: &Driver, file: &DrmFile, prime: &mut Prime) -> Result<()> {
    if prime.flags & !((libc::O_CLOEXEC | libc::O_RDWR) as u32) != 0 {
        return Err(EINVAL);
    }
    let buffer = file.state().buffer(prime.handle).cloned().ok_or(ENOENT)?;
    let close_on_exec = prime.flags & libc::O_CLOEXEC as u32 != 0;
    prime.fd = buffer.export(close_on_exec, &driver.config.faults)?;
    Ok(())
}
