//! The address space of a GPU in ROCr's DRM file, and memory imported into that file.

use super::libdrm::{Libdrm, check};
use super::{DriverError, FailedCall, KernelGpu, open_device};
use crate::native::Failure;
#[cfg(feature = "simulation")]
use crate::native::NativeAgent;
use core::ptr::{NonNull, null_mut};
use hsa_sys::driver as abi;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

bitflags::bitflags! {
    /// The permissions of a page-table entry. An access that the permissions forbid causes a memory fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PagePermissions: u32 {
        const READ = abi::AMDGPU_VM_PAGE_READABLE;
        const WRITE = abi::AMDGPU_VM_PAGE_WRITEABLE;
        const EXECUTE = abi::AMDGPU_VM_PAGE_EXECUTABLE;
    }
}

/// The address space of one GPU in this process.
#[derive(Debug)]
pub(crate) enum AddressSpace {
    /// The address space in ROCr's DRM file.
    Drm(DrmDevice),
    /// The address space of a simulated GPU.
    #[cfg(feature = "simulation")]
    Simulated(Arc<hsa_sim::Simulation>, NativeAgent),
}

/// libdrm's device of a GPU, with a counted reference.
#[derive(Debug)]
pub(crate) struct DrmDevice {
    library: Arc<Libdrm>,
    device: NonNull<abi::amdgpu_device>,
}

// SAFETY: several threads may call libdrm's functions on one device; the functions lock the device themselves.
unsafe impl Send for DrmDevice {}
// SAFETY: as for `Send`.
unsafe impl Sync for DrmDevice {}

impl AddressSpace {
    /// Opens the address space that ROCr uses for a GPU. Fails if this copy of libdrm uses another address space.
    pub fn open(library: Arc<Libdrm>, gpu: KernelGpu) -> Result<Self, DriverError> {
        let path = PathBuf::from(format!("/dev/dri/renderD{}", gpu.render_minor));
        let file = open_device(&path)?;
        let failed = |errno| DriverError::File { path: path.clone(), errno };
        // Sets `O_NONBLOCK` as a mark of the file that this function has opened. Every duplicate of its descriptor has
        // the flag.
        let flags = fcntl_getfl(&file).map_err(failed)?;
        fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(failed)?;
        let (mut major, mut minor, mut device) = (0, 0, null_mut());
        // SAFETY: the descriptor is open and the results are writable.
        check("amdgpu_device_initialize", || unsafe {
            (library.initialize)(file.as_raw_fd(), &raw mut major, &raw mut minor, &raw mut device)
        })?;
        let no_device = || Failure::no_result("amdgpu_device_initialize");
        let device = NonNull::new(device).ok_or_else(no_device)?;
        let drm_device = DrmDevice { library, device };
        // If libdrm already has a device for this GPU, libdrm returns that device, which has ROCr's file. Otherwise
        // libdrm creates a device with the file that this function has marked. SAFETY: libdrm keeps the descriptor
        // open as long as the device, which `drm_device` owns.
        let used_file = unsafe {
            BorrowedFd::borrow_raw((drm_device.library.get_fd)(drm_device.device.as_ptr()))
        };
        let is_own_file = fcntl_getfl(used_file).map_err(failed)?.contains(OFlags::NONBLOCK);
        let device_number = |fd| rustix::fs::fstat(fd).map(|status| status.st_rdev);
        let is_same_gpu = device_number(used_file).map_err(failed)?
            == rustix::fs::fstat(&file).map_err(failed)?.st_rdev;
        if is_own_file || !is_same_gpu {
            return Err(DriverError::NotShared { library: drm_device.library.name, path });
        }
        Ok(Self::Drm(drm_device))
    }

    /// Imports memory. libdrm has one counter for this import and ROCr's import of the same memory.
    pub fn import<'a>(&'a self, memory: BorrowedFd<'a>) -> Result<Buffer<'a>, FailedCall> {
        match self {
            Self::Drm(device) => device.import(memory).map(Buffer::Drm),
            #[cfg(feature = "simulation")]
            Self::Simulated(simulation, gpu) => {
                Ok(Buffer::Simulated { simulation, gpu: *gpu, memory })
            }
        }
    }
}

impl DrmDevice {
    fn import(&self, memory: BorrowedFd<'_>) -> Result<DrmBuffer<'_>, FailedCall> {
        let mut result = abi::amdgpu_bo_import_result { buf_handle: null_mut(), alloc_size: 0 };
        let (kind, number) = (abi::amdgpu_bo_handle_type_dma_buf_fd, memory.as_raw_fd() as u32);
        // SAFETY: the device is alive, the descriptor is open, and the result is writable.
        check("amdgpu_bo_import", || unsafe {
            (self.library.import)(self.device.as_ptr(), kind, number, &raw mut result)
        })?;
        let null_error = FailedCall { call: "amdgpu_bo_import", errno: Errno::FAULT };
        let handle = NonNull::new(result.buf_handle).ok_or(null_error)?;
        Ok(DrmBuffer { device: self, handle, size: result.alloc_size })
    }
}

impl Drop for DrmDevice {
    fn drop(&mut self) {
        // SAFETY: `open` has counted this reference, and nothing uses it afterwards.
        let _ = check("amdgpu_device_deinitialize", || unsafe {
            (self.library.deinitialize)(self.device.as_ptr())
        });
    }
}

/// Memory imported in an address space.
#[derive(Debug)]
pub(crate) enum Buffer<'a> {
    Drm(DrmBuffer<'a>),
    #[cfg(feature = "simulation")]
    Simulated {
        simulation: &'a hsa_sim::Simulation,
        gpu: NativeAgent,
        memory: BorrowedFd<'a>,
    },
}

/// An import of libdrm, which counts its references.
#[derive(Debug)]
pub(crate) struct DrmBuffer<'a> {
    device: &'a DrmDevice,
    handle: NonNull<abi::amdgpu_bo>,
    /// The size of the memory in bytes.
    size: u64,
}

impl Buffer<'_> {
    /// Makes the entries of a range point to the memory from `offset` on, with these permissions. The kernel clears
    /// the old entries before it writes the new entries, so a GPU that uses the range during the call faults.
    ///
    /// # Safety
    /// The range is a mapping, or a part of a mapping, that ROCr has made of this memory for this GPU. If the range is
    /// a part, a later call must replace the whole mapping. Otherwise ROCr's unmap would leave entries through which
    /// the GPU can access freed memory.
    pub unsafe fn write_entries(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        permissions: PagePermissions,
    ) -> Result<(), FailedCall> {
        match self {
            // SAFETY: the caller guarantees the condition of `DrmBuffer::write_entries`, which is the same.
            Self::Drm(buffer) => unsafe {
                buffer.write_entries(address, size, offset, permissions)
            },
            #[cfg(feature = "simulation")]
            Self::Simulated { simulation, gpu, memory } => {
                let call = "hsa_sim_replace_entries";
                let (range, mut bits) = (address..address.saturating_add(size), 0);
                for (permission, bit) in [(PagePermissions::READ, 1), (PagePermissions::WRITE, 2)] {
                    bits |= if permissions.contains(permission) { bit } else { 0 };
                }
                let replaced = simulation.replace_entries(gpu.raw(), *memory, range, offset, bits);
                crate::log::event!(TRACE, call, succeeded = replaced.is_ok());
                replaced.map_err(|_| FailedCall { call, errno: Errno::IO })
            }
        }
    }
}

impl DrmBuffer<'_> {
    /// Implements [`Buffer::write_entries`].
    ///
    /// # Safety
    /// As for [`Buffer::write_entries`].
    unsafe fn write_entries(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        permissions: PagePermissions,
    ) -> Result<(), FailedCall> {
        let (device, handle) = (self.device.device.as_ptr(), self.handle.as_ptr());
        let [address, size, offset] = [address, size, offset].map(|number| number as u64);
        if offset.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(FailedCall { call: "amdgpu_bo_va_op_raw", errno: Errno::INVAL });
        }
        let (flags, replace) = (u64::from(permissions.bits()), abi::AMDGPU_VA_OP_REPLACE);
        // SAFETY: device and buffer are alive, the caller guarantees the range, and the kernel checks the numbers.
        check("amdgpu_bo_va_op_raw", || unsafe {
            (self.device.library.va_op)(device, handle, offset, size, address, flags, replace)
        })
    }
}

impl Drop for DrmBuffer<'_> {
    fn drop(&mut self) {
        let free = self.device.library.free;
        // SAFETY: `import` has counted this reference, and nothing uses it afterwards.
        let _ = check("amdgpu_bo_free", || unsafe { free(self.handle.as_ptr()) });
    }
}
