//! Changes entries of GPUs' page tables, and waits until changes have taken effect.
//!
//! ROCr passes permissions to libdrm's `amdgpu_bo_va_op`, which ignores them. The kernel supports permissions and
//! offsets. Therefore this module calls other functions of the copy of libdrm that ROCr has loaded ([`Libdrm`]). For
//! each GPU, that copy has one DRM file, with the GPU's address space ([`AddressSpace`]). For each imported memory,
//! it has one counter for the imports of ROCr and of this library ([`Buffer`]). This module does not call
//! `PRIME_FD_TO_HANDLE` itself: the kernel does not count these calls, and closing the handle would also close ROCr's
//! handle.
//!
//! Two facts about the kernel determine when a change has taken effect:
//!
//! * If the CPU can access all memory of a GPU, the kernel writes the entries before `GEM_VA` returns, but does not
//!   flush the GPU's TLB.
//! * If the CPU cannot access all memory of a GPU, the GPU's SDMA engine writes the entries after `GEM_VA` has
//!   returned.
//!
//! Mapping or unmapping a page through `/dev/kfd` waits for all earlier changes of the address space and
//! flushes the TLB ([`KfdPage`]). Without `/dev/kfd`, the runtime locks and unlocks a page ([`PinnedPage`]).

mod address_space;
mod barrier;
mod libdrm;
#[cfg(all(test, not(feature = "interleavings")))]
mod tests;

pub(crate) use address_space::{AddressSpace, Buffer, PagePermissions};
pub(crate) use barrier::{Barrier, KfdPage, PinnedPage};
pub(crate) use libdrm::Libdrm;

use super::Failure;
use rustix::io::Errno;
use rustix::ioctl::Opcode;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Why page tables cannot be changed, or changes cannot be waited for: a failure of the driver, of libdrm or of the
/// runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("the runtime has not loaded libdrm_amdgpu")]
    NoLibrary,
    #[error("{library} does not export {function}")]
    NoFunction { library: &'static str, function: &'static str },
    #[error("cannot use {}: {errno}", path.display())]
    File { path: PathBuf, errno: Errno },
    #[error("{} does not contain {key}", path.display())]
    NoProperty { path: PathBuf, key: &'static str },
    #[error(transparent)]
    Call(#[from] FailedCall),
    #[error("{library} does not share the runtime's file of {}", path.display())]
    NotShared { library: &'static str, path: PathBuf },
    #[error("{} returned {}", .0.call, .0.status)]
    Runtime(Failure),
}

/// A call of the driver or of libdrm that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {errno}")]
pub(crate) struct FailedCall {
    pub call: &'static str,
    pub errno: Errno,
}

/// Opens a file of the driver for reading and writing.
pub(in crate::native) fn open_device(path: &Path) -> Result<File, DriverError> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|error| DriverError::file(path.to_owned(), &error))
}

/// Calls `ioctl`. Repeats the call after each error in `retried`. Logs before and after each call, as
/// [`logged`](super::logged) does.
///
/// # Safety
/// `T` is the structure that the `ioctl` with this opcode reads and writes. Its pointers are valid until the call
/// returns.
pub(in crate::native) unsafe fn ioctl<T>(
    file: &File,
    call: &'static str,
    opcode: Opcode,
    argument: &mut T,
    retried: &[Errno],
) -> Result<(), FailedCall> {
    loop {
        crate::log::event!(TRACE, calling = call);
        // SAFETY: the caller guarantees that `argument` is what the opcode reads and writes. Calls libc, because the
        // emulated driver cannot intercept rustix's `ioctl`.
        let result =
            unsafe { libc::ioctl(file.as_raw_fd(), opcode as libc::Ioctl, &raw mut *argument) };
        if result >= 0 {
            crate::log::event!(TRACE, call, result);
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        crate::log::event!(TRACE, call, %errno);
        if !retried.contains(&errno) {
            return Err(FailedCall { call, errno });
        }
    }
}

impl From<Failure> for DriverError {
    fn from(failure: Failure) -> Self {
        Self::Runtime(failure)
    }
}

impl DriverError {
    pub(super) fn file(path: PathBuf, error: &std::io::Error) -> Self {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Self::File { path, errno }
    }
}

/// The kernel's identifiers of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelGpu {
    /// The identifier in calls on `/dev/kfd`.
    pub id: u32,
    /// The minor number of the render node.
    pub render_minor: u32,
}

impl KernelGpu {
    /// Reads the identifiers of a node of the driver's topology.
    pub fn of_node(node: u32) -> Result<Self, DriverError> {
        let folder = PathBuf::from(format!("/sys/class/kfd/kfd/topology/nodes/{node}"));
        let read = |name| {
            let path = folder.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => Ok((path, text)),
                Err(error) => Err(DriverError::file(path, &error)),
            }
        };
        let (path, text) = read("gpu_id")?;
        let id =
            text.trim().parse().map_err(|_| DriverError::NoProperty { path, key: "a number" })?;
        let (path, text) = read("properties")?;
        let key = "drm_render_minor";
        let value = text.lines().find_map(|line| line.strip_prefix(key));
        let render_minor = value.and_then(|value| value.trim().parse().ok());
        let render_minor = render_minor.ok_or(DriverError::NoProperty { path, key })?;
        Ok(Self { id, render_minor })
    }
}
