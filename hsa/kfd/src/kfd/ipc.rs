//! IPC handles, as in AMD's own driver package. The upstream kernel's amdkfd lacks these calls.
//! With that kernel, the runtime can share memory only by dma-buf.

use super::abi::{IpcExport, IpcImport};
use super::memory::{insert_memory, split_handle};
use super::process::KfdMemory;
use crate::driver::Driver;
use crate::errno::{EINVAL, Result};
use crate::memory_file::Label;
use crate::{foreign, own_descriptors};
use std::os::fd::AsRawFd;

/// Writes a handle of four words: process, descriptor, the low half of the token, and the flags for
/// the importer.
pub(crate) fn export(driver: &Driver, export: &mut IpcExport) -> Result<()> {
    let (gpu, number) = split_handle(driver, export.handle)?;
    let buffer = driver.process.state().memory(gpu, number)?.buffer.clone().ok_or(EINVAL)?;
    let (process, token) = (std::process::id(), buffer.label.token as u32);
    export.share_handle = [process, buffer.file()?.descriptor() as u32, token, export.flags];
    Ok(())
}

/// Opens the memory of a handle. Fails if the exporter has exited. After the import, the memory
/// stays allocated while the exporter or the importer holds it.
pub(crate) fn import(driver: &Driver, import: &mut IpcImport) -> Result<()> {
    let gpu = driver.gpu(import.gpu_id)?;
    let [process, descriptor, token, flags] = import.share_handle;
    let matches = |name: &str| Label::parse(name).is_some_and(|label| label.token as u32 == token);
    let file = foreign::open(process, descriptor, matches).ok_or(EINVAL)?;
    let imported = driver.buffers.import(file.as_raw_fd());
    own_descriptors::unmark_file(&file);
    let buffer = imported?;
    if buffer.label.gpu != gpu {
        return Err(EINVAL);
    }
    let mut state = driver.process.state();
    state.drm_file(gpu)?;
    import.mmap_offset = buffer.offset;
    import.flags = flags;
    let flags = buffer.label.flags;
    let memory = KfdMemory::imported(buffer, import.address, flags, gpu);
    import.handle = insert_memory(driver, &mut state, memory);
    Ok(())
}
