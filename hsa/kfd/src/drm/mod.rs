//! `/dev/dri/renderD*`: the DRM core and amdgpu.

mod abi;
mod gem;
mod info;
mod prime;
mod version;

use crate::buffer::Buffer;
use crate::driver::Driver;
use crate::errno::{EACCES, EINVAL, Result};
use crate::page_table::PageTable;
use crate::real::{self, Mapping};
use crate::request::Request;
use crate::slots::Slots;
use libc::c_void;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an open of a render node has: handles, and a page table.
#[derive(Debug)]
pub(crate) struct DrmFile {
    pub(crate) gpu: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    handles: Slots<Arc<Buffer>>,
    by_token: HashMap<u64, u32>,
    pub(crate) table: PageTable,
}

impl State {
    /// The handle of a buffer: one for each, however often it was imported.
    fn handle(&mut self, buffer: Arc<Buffer>) -> u32 {
        let (token, handles) = (buffer.label.token, &mut self.handles);
        *self.by_token.entry(token).or_insert_with(|| handles.insert(buffer))
    }

    fn buffer(&self, handle: u32) -> Option<&Arc<Buffer>> {
        self.handles.get(handle)
    }

    fn close(&mut self, handle: u32) -> Option<Arc<Buffer>> {
        let buffer = self.handles.remove(handle)?;
        self.by_token.remove(&buffer.label.token);
        self.table.forget(&buffer);
        Some(buffer)
    }
}

impl DrmFile {
    pub(crate) fn new(gpu: usize) -> Arc<Self> {
        Arc::new(Self { gpu, state: Mutex::default() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers an `ioctl` on a render node.
pub(crate) fn answer(driver: &Driver, file: &DrmFile, request: Request) -> Result<()> {
    if request.family() != b'd' {
        return missing(driver, file, request);
    }
    let device = format!("drm{}", file.gpu);
    /// `call!("NAME", function)`: the struct is the one the function takes.
    macro_rules! call {
        ($name:literal, $function:path) => {
            request.answer(driver, &device, $name, |value| $function(driver, file, value))
        };
    }
    match request.number() {
        0x00 => call!("VERSION", version::version),
        0x09 => call!("GEM_CLOSE", gem::close),
        0x2d => call!("PRIME_HANDLE_TO_FD", prime::export),
        0x2e => call!("PRIME_FD_TO_HANDLE", prime::import),
        0x41 => call!("GEM_MMAP", gem::mmap),
        0x45 => call!("INFO", info::info),
        0x48 => call!("GEM_VA", gem::va),
        _ => missing(driver, file, request),
    }
}

/// DRM answers `EINVAL` to what a driver does not know.
fn missing(driver: &Driver, file: &DrmFile, request: Request) -> Result<()> {
    driver.log.missing(format_args!("drm{} call {:#x}", file.gpu, request.code));
    Err(EINVAL)
}

/// Maps a buffer object for the processor.
///
/// # Safety
///
/// As `mmap`: with `MAP_FIXED` what was at the address is gone.
pub(crate) unsafe fn map(
    driver: &Driver,
    file: &DrmFile,
    mapping: Mapping,
    offset: u64,
) -> Result<*mut c_void> {
    let buffer = driver.buffers.at(offset).ok_or(EINVAL)?;
    let pages = mapping.length.next_multiple_of(4096) as u64;
    let private = mapping.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if pages > buffer.size || private && mapping.protection & libc::PROT_WRITE != 0 {
        return Err(EINVAL);
    }
    let named = file.state().by_token.contains_key(&buffer.label.token);
    if !named && buffer.label.gpu != file.gpu {
        return Err(EACCES);
    }
    // SAFETY: the caller answers for the address.
    unsafe { real::map(mapping, buffer.spot()?) }
}
