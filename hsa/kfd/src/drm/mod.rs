//! `/dev/dri/renderD*`: the DRM core and amdgpu.

mod abi;
mod gem;
mod info;
mod prime;
mod version;

pub(crate) use abi::VA_OPERATIONS;

use crate::buffer::Buffer;
use crate::driver::{DRM_MAJOR, Driver, FIRST_RENDER_MINOR};
use crate::errno::{EACCES, EINVAL, Result};
use crate::hardware::Updates;
use crate::id_table::IdTable;
use crate::observe::Observer;
use crate::page_table::{PAGE, PageTable};
use crate::real::{self, Mapping};
use crate::request::Request;
use hsa_faults::FaultKind;
use libc::{c_int, c_void};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open render node: its handles and page table.
#[derive(Debug)]
pub(crate) struct DrmFile {
    pub(crate) gpu: usize,
    pub(crate) updates: Updates,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    handles: IdTable<Arc<Buffer>>,
    /// The handle of each buffer, by the token of the buffer.
    handles_by_token: HashMap<u64, u32>,
    /// The number of amdkfd's handles that have mapped a buffer in this page table, by the token of
    /// the buffer. While such a handle exists, closing the DRM handle keeps the buffer's entries.
    attached: HashMap<u64, usize>,
    pub(crate) table: PageTable,
}

impl State {
    /// Returns the handle of a buffer. Creates the handle if the buffer has none. Each import of a buffer returns the
    /// same handle.
    fn handle(&mut self, buffer: Arc<Buffer>) -> u32 {
        let (token, handles) = (buffer.label.token, &mut self.handles);
        *self.handles_by_token.entry(token).or_insert_with(|| handles.insert(buffer))
    }

    fn buffer(&self, handle: u32) -> Option<&Arc<Buffer>> {
        self.handles.get(handle)
    }

    fn close(&mut self, handle: u32) -> Option<Arc<Buffer>> {
        let buffer = self.handles.remove(handle)?;
        self.handles_by_token.remove(&buffer.label.token);
        if !self.attached.contains_key(&buffer.label.token) {
            self.table.unmap_buffer(&buffer);
        }
        Some(buffer)
    }

    /// Records that a handle of amdkfd has mapped a buffer in this page table for the first time.
    pub(crate) fn attach(&mut self, buffer: &Buffer) {
        *self.attached.entry(buffer.label.token).or_default() += 1;
    }

    /// Records that amdkfd has freed a handle that [`Self::attach`] counted. Removes the buffer's entries if no other
    /// handle of amdkfd or DRM uses the buffer.
    pub(crate) fn detach(&mut self, buffer: &Arc<Buffer>) {
        let token = buffer.label.token;
        let Some(count) = self.attached.get_mut(&token) else { return };
        *count -= 1;
        if *count == 0 {
            self.attached.remove(&token);
            if !self.handles_by_token.contains_key(&token) {
                self.table.unmap_buffer(buffer);
            }
        }
    }
}

impl DrmFile {
    pub(crate) fn new(gpu: usize, updates: Updates) -> Arc<Self> {
        let state = State { table: PageTable::new(updates), ..State::default() };
        Arc::new(Self { gpu, updates, state: Mutex::new(state) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Defines the table of calls and their functions.
macro_rules! calls {
    ($($number:literal $name:literal $function:path,)*) => {
        /// The emulated calls.
        pub(crate) const NAMES: &[&str] = &[$($name),*];

        fn run(driver: &'static Driver, file: &Arc<DrmFile>, request: Request) -> Result<()> {
            match request.number() {
                $($number => {
                    request.execute(driver, format_args!("drm{}", file.gpu), $name, file, |file, value| {
                        $function(driver, file, value)
                    })
                })*
                number => reject(driver, file, request, number),
            }
        }

        /// Passes a call to the machine's own driver, and logs the call if the descriptor is a render node.
        pub(crate) fn observe(
            observer: &Observer,
            descriptor: c_int,
            request: Request,
            perform: impl FnOnce() -> c_int,
        ) -> c_int {
            /// Returns the type of a function's argument.
            fn argument<T>(_: impl Fn(&'static Driver, &Arc<DrmFile>, &mut T) -> Result<()>) -> PhantomData<T> {
                PhantomData
            }
            let Some(gpu) = gpu_of(descriptor) else { return perform() };
            let log = &observer.log;
            match request.number() {
                $($number => {
                    request.observe(log, format_args!("drm{gpu}"), ($name, argument(|driver, file, value| $function(driver, file, value))), perform)
                })*
                number => {
                    request.observe_unknown(log, format_args!("drm{gpu}"), unemulated_name(number), perform)
                }
            }
        }
    };
}

/// Returns the number of the GPU of a render node's descriptor, or `None` for other files.
fn gpu_of(descriptor: c_int) -> Option<usize> {
    // SAFETY: all zeros is a valid `stat`, and the call only fills the struct.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &raw mut status) == 0).then_some(status)
    }?;
    let minor = libc::minor(status.st_rdev) as usize;
    let is_drm =
        status.st_mode & libc::S_IFMT == libc::S_IFCHR && libc::major(status.st_rdev) == DRM_MAJOR;
    minor.checked_sub(FIRST_RENDER_MINOR).filter(|_| is_drm)
}

calls! {
    0x00 "VERSION" version::version,
    0x09 "GEM_CLOSE" gem::close,
    0x2d "PRIME_HANDLE_TO_FD" prime::export,
    0x2e "PRIME_FD_TO_HANDLE" prime::import,
    0x40 "GEM_CREATE" gem::create,
    0x41 "GEM_MMAP" gem::mmap,
    0x45 "INFO" info::info,
    0x46 "GEM_METADATA" gem::metadata,
    0x48 "GEM_VA" gem::va,
    0x50 "GEM_OP" gem::operation,
}

/// The calls of DRM and amdgpu that are not emulated, for the log.
const NOT_EMULATED: [(u8, &str); 27] = [
    (0x01, "GET_UNIQUE"),
    (0x02, "GET_MAGIC"),
    (0x07, "SET_VERSION"),
    (0x0a, "GEM_FLINK"),
    (0x0b, "GEM_OPEN"),
    (0x0c, "GET_CAP"),
    (0x0d, "SET_CLIENT_CAP"),
    (0x42, "CTX"),
    (0x43, "BO_LIST"),
    (0x44, "CS"),
    (0x47, "GEM_WAIT_IDLE"),
    (0x49, "WAIT_CS"),
    (0x51, "GEM_USERPTR"),
    (0x52, "WAIT_FENCES"),
    (0x53, "VM"),
    (0x54, "FENCE_TO_HANDLE"),
    (0x55, "SCHED"),
    (0xbf, "SYNCOBJ_CREATE"),
    (0xc0, "SYNCOBJ_DESTROY"),
    (0xc1, "SYNCOBJ_HANDLE_TO_FD"),
    (0xc2, "SYNCOBJ_FD_TO_HANDLE"),
    (0xc3, "SYNCOBJ_WAIT"),
    (0xc4, "SYNCOBJ_RESET"),
    (0xc5, "SYNCOBJ_SIGNAL"),
    (0xca, "SYNCOBJ_TIMELINE_WAIT"),
    (0xcb, "SYNCOBJ_QUERY"),
    (0xcd, "SYNCOBJ_TIMELINE_SIGNAL"),
];

/// Executes an `ioctl` on a render node.
pub(crate) fn ioctl(driver: &'static Driver, file: &Arc<DrmFile>, request: Request) -> Result<()> {
    if request.family() != b'd' {
        return reject(driver, file, request, request.number());
    }
    run(driver, file, request)
}

/// Returns the name of a call that is not emulated; empty if the number is unknown.
fn unemulated_name(number: u8) -> &'static str {
    NOT_EMULATED.iter().find(|call| call.0 == number).map_or("", |call| call.1)
}

/// Rejects a call that is not emulated: DRM returns `EINVAL` for unknown calls.
fn reject(driver: &Driver, file: &DrmFile, request: Request, number: u8) -> Result<()> {
    let name = if request.family() == b'd' { unemulated_name(number) } else { "" };
    driver
        .log
        .unsupported(format_args!("drm{} call {:#x} {name} = EINVAL", file.gpu, request.code));
    Err(EINVAL)
}

/// Maps a buffer object for the CPU.
///
/// # Safety
///
/// With `MAP_FIXED`, the caller must own the replaced range.
pub(crate) unsafe fn map(
    driver: &Driver,
    file: &DrmFile,
    mapping: Mapping,
    offset: u64,
) -> Result<*mut c_void> {
    let buffer = driver.buffers.at(offset).ok_or(EINVAL)?;
    let private = mapping.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let fits = mapping.length > 0 && mapping.length as u64 <= buffer.size;
    if !fits || private && mapping.protection & libc::PROT_WRITE != 0 {
        return Err(EINVAL);
    }
    let has_handle = file.state().handles_by_token.contains_key(&buffer.label.token);
    if !has_handle && buffer.label.gpu != file.gpu {
        return Err(EACCES);
    }
    let faults = &driver.config.faults;
    let mapping = Mapping { protection: faults.protection(mapping.protection), ..mapping };
    let offset = if faults.change_call(FaultKind::Shifted) { PAGE } else { 0 };
    // SAFETY: with `MAP_FIXED`, the caller owns the replaced range.
    unsafe { real::map(mapping, buffer.file()?.descriptor(), offset) }
}
