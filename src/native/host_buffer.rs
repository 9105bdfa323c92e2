//! Memory of the host that the driver of a GPU allocates (GTT), as a dma-buf.

use super::page_table::{DriverError, KernelGpu, ioctl, open_device};
use super::{Failure, Native};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// `union drm_amdgpu_gem_create`. The kernel overwrites the size with the handle.
#[repr(C)]
struct GemCreate {
    size_or_handle: u64,
    alignment: u64,
    domains: u64,
    flags: u64,
}

/// `struct drm_prime_handle`.
#[repr(C)]
struct PrimeHandle {
    handle: u32,
    flags: u32,
    descriptor: i32,
}

/// `struct drm_gem_close`.
#[repr(C)]
struct GemClose {
    handle: u32,
    pad: u32,
}

const _: () = assert!(size_of::<GemCreate>() == 32 && size_of::<PrimeHandle>() == 12);

/// System memory that GPUs can access (`AMDGPU_GEM_DOMAIN_GTT`).
const GTT: u64 = 2;
const ALIGNMENT: u64 = 4096;

/// The errors after which a call of DRM is repeated: a signal interrupted it, or the kernel asks to try again.
const RETRIED: &[Errno] = &[Errno::INTR, Errno::AGAIN];

/// Allocates memory through a DRM file that only this function uses, and exports the memory as a dma-buf. The memory
/// contains zeros. It is freed when the last descriptor of the dma-buf is closed and nothing else uses it.
fn gtt_buffer(gpu: KernelGpu, size: usize) -> Result<OwnedFd, DriverError> {
    use rustix::ioctl::opcode::{read_write, write};
    let path = PathBuf::from(format!("/dev/dri/renderD{}", gpu.render_minor));
    let drm = open_device(&path)?;
    let mut create =
        GemCreate { size_or_handle: size as u64, alignment: ALIGNMENT, domains: GTT, flags: 0 };
    // SAFETY: this is the argument of AMDGPU_GEM_CREATE.
    unsafe {
        ioctl(&drm, "GEM_CREATE", read_write::<GemCreate>(b'd', 0x40), &mut create, RETRIED)
    }?;
    let handle = create.size_or_handle as u32;
    let flags = (libc::O_CLOEXEC | libc::O_RDWR) as u32;
    let mut prime = PrimeHandle { handle, flags, descriptor: -1 };
    // SAFETY: this is the argument of PRIME_HANDLE_TO_FD.
    let exported = unsafe {
        let opcode = read_write::<PrimeHandle>(b'd', 0x2d);
        ioctl(&drm, "PRIME_HANDLE_TO_FD", opcode, &mut prime, RETRIED)
    };
    // If this fails, closing the DRM file at the end of this function closes the handle.
    // SAFETY: this is the argument of GEM_CLOSE.
    let _ = unsafe {
        let argument = &mut GemClose { handle, pad: 0 };
        ioctl(&drm, "GEM_CLOSE", write::<GemClose>(b'd', 0x09), argument, RETRIED)
    };
    exported?;
    if prime.descriptor < 0 {
        return Err(Failure::no_result("PRIME_HANDLE_TO_FD").into());
    }
    // SAFETY: the driver has just opened the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(prime.descriptor) })
}

impl Native {
    /// Allocates memory of the host with the driver of a GPU. `node` is the GPU's node in the driver's topology.
    /// Returns a dma-buf.
    pub fn host_buffer(&self, node: u32, size: usize) -> Result<OwnedFd, DriverError> {
        #[cfg(feature = "simulation")]
        if let Some(simulation) = self.simulation() {
            let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::OPNOTSUPP);
            let failed = |error| super::FailedCall { call: "GEM_CREATE", errno: errno(error) };
            return Ok(simulation.host_buffer(size as u64).map_err(failed)?);
        }
        let created = KernelGpu::of_node(node).and_then(|gpu| gtt_buffer(gpu, size));
        match &created {
            Ok(buffer) => {
                let descriptor = buffer.as_raw_fd();
                crate::log::event!(TRACE, call = "GEM_CREATE", node, size, descriptor);
            }
            Err(error) => crate::log::event!(TRACE, call = "GEM_CREATE", node, size, %error),
        }
        created
    }
}
