//! dma-bufs: descriptors that share memory with another device or process.

use super::abi::{DmabufInfo, ExportDmabuf, ImportDmabuf, flags};
use super::memory::{insert_memory, split_handle};
use super::process::KfdMemory;
use crate::driver::Driver;
use crate::errno::{EINVAL, Result};
use crate::memory_file;
use crate::metadata::Metadata;
use crate::user;
use hsa_faults::FaultKind;

pub(crate) fn info(driver: &Driver, info: &mut DmabufInfo) -> Result<()> {
    let (label, size) = memory_file::recognise(info.fd as i32)?;
    let gpu = driver.gpus.get(label.gpu).ok_or(EINVAL)?;
    let metadata = driver
        .buffers
        .find(label)
        .map_or_else(|| Metadata::from_creator(label), |buffer| buffer.metadata());
    if info.metadata != 0 && info.metadata_size != 0 {
        if info.metadata_size < metadata.size {
            return Err(EINVAL);
        }
        user::write(info.metadata, &metadata.data[..metadata.size as usize])?;
    }
    info.size = driver.config.faults.reported_size(size);
    info.gpu_id = gpu.id;
    info.metadata_size = metadata.size;
    info.flags = label.flags & (flags::VRAM | flags::GTT | flags::PUBLIC);
    Ok(())
}

pub(crate) fn import(driver: &Driver, import: &mut ImportDmabuf) -> Result<()> {
    let gpu = driver.gpu(import.gpu_id)?;
    let buffer = match driver.config.faults.has_fault(FaultKind::WrongMemory) {
        true => driver.buffers.import_wrong_memory(import.fd as i32)?,
        false => driver.buffers.import(import.fd as i32)?,
    };
    let mut state = driver.process.state();
    state.drm_file(gpu)?;
    if buffer.label.gpu >= driver.gpus.len() {
        return Err(EINVAL);
    }
    let flags = buffer.label.flags | flags::WRITABLE | flags::EXECUTABLE;
    let memory = KfdMemory::imported(buffer, import.address, flags, gpu);
    import.handle = insert_memory(driver, &mut state, memory);
    Ok(())
}

pub(crate) fn export(driver: &Driver, export: &mut ExportDmabuf) -> Result<()> {
    let (gpu, number) = split_handle(driver, export.handle)?;
    let buffer = driver.process.state().memory(gpu, number)?.buffer.clone().ok_or(EINVAL)?;
    // Stricter than amdkfd, which does not check the flags. AMD's runtime uses no other flags.
    let supported = (libc::O_CLOEXEC | libc::O_RDWR) as u32;
    if export.flags & !supported != 0 {
        let flags = export.flags;
        driver.log.unsupported(format_args!("EXPORT_DMABUF with flags {flags:#x} = EINVAL"));
        return Err(EINVAL);
    }
    let close_on_exec = export.flags & libc::O_CLOEXEC as u32 != 0;
    let descriptor = buffer.export(close_on_exec, &driver.config.faults)?;
    export.fd = descriptor as u32;
    Ok(())
}
