//! `hsa_amd_vmem_*`, one function a call.

use super::{Failure, Native, NativeAgent, NativePool, Status, call, call_optional};
use core::ffi::c_void;
use hsa_sys as sys;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The runtime's own name for physical memory. Never leaves this library: the runtime reuses
/// the value as soon as the memory is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativeHandle(sys::hsa_amd_vmem_alloc_handle_t);

/// An agent and HIP's number for what it may do (0, 1 or 3; the same in HSA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct NativeAccess(sys::hsa_amd_memory_access_desc_t);

impl NativeAccess {
    pub fn new(agent: NativeAgent, permissions: u32) -> Self {
        Self(sys::hsa_amd_memory_access_desc_t { permissions, agent_handle: agent.raw() })
    }

    /// Whether it is this agent that may do something.
    pub fn is_of(self, agent: NativeAgent) -> bool {
        self.0.agent_handle.handle == agent.raw().handle
    }
}

/// Why a handle could not be exported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExportFailure {
    Runtime(Failure),
    Descriptor(Errno),
}

impl From<Failure> for ExportFailure {
    fn from(failure: Failure) -> Self {
        Self::Runtime(failure)
    }
}

impl From<Errno> for ExportFailure {
    fn from(errno: Errno) -> Self {
        Self::Descriptor(errno)
    }
}

impl Native {
    fn vmem_for(&self, call: &'static str) -> Result<&sys::Vmem, Failure> {
        self.vmem().map_err(|_| Failure { call, status: Status::NOT_SUPPORTED })
    }

    /// Reserves addresses; with the alignment if the runtime has a call for that.
    pub fn address_reserve(
        &self,
        size: usize,
        hint: usize,
        alignment: usize,
    ) -> Result<usize, Failure> {
        let table = self.vmem_for("hsa_amd_vmem_address_reserve")?;
        let mut address: *mut c_void = core::ptr::null_mut();
        if table.hsa_amd_vmem_address_reserve_align.is_some() {
            // SAFETY: `address` is writable; everything else is a number.
            unsafe {
                call_optional!(
                    table,
                    hsa_amd_vmem_address_reserve_align(
                        &mut address,
                        size,
                        hint as u64,
                        alignment as u64,
                        0
                    )
                )
            }?;
        } else {
            // SAFETY: as above.
            unsafe {
                call!(table, hsa_amd_vmem_address_reserve(&mut address, size, hint as u64, 0))
            }?;
        }
        Ok(address as usize)
    }

    /// Whether reservations can be asked to be aligned.
    pub fn reserves_aligned(&self) -> bool {
        self.vmem().is_ok_and(|table| table.hsa_amd_vmem_address_reserve_align.is_some())
    }

    /// Frees addresses.
    ///
    /// # Safety
    /// Exactly this range is reserved, and nothing is mapped in it or uses it.
    pub unsafe fn address_free(&self, address: usize, size: usize) -> Result<(), Failure> {
        let table = self.vmem_for("hsa_amd_vmem_address_free")?;
        // SAFETY: the caller's promise.
        unsafe { call!(table, hsa_amd_vmem_address_free(address as *mut c_void, size)) }
    }

    /// Allocates physical memory.
    pub fn handle_create(
        &self,
        pool: NativePool,
        size: usize,
        flags: u64,
    ) -> Result<NativeHandle, Failure> {
        let table = self.vmem_for("hsa_amd_vmem_handle_create")?;
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        // SAFETY: the pool is one the runtime told us of, `handle` is writable.
        unsafe {
            call!(
                table,
                hsa_amd_vmem_handle_create(
                    pool.raw(),
                    size,
                    sys::MEMORY_TYPE_PINNED,
                    flags,
                    &mut handle
                )
            )
        }?;
        if handle.handle == 0 {
            // No memory was left: ROCm 6.1 does not look, and names nothing by 0 from then on.
            // SAFETY: nobody else is ever given this handle.
            let _ = unsafe { call!(table, hsa_amd_vmem_handle_release(handle)) };
            let status = Status::OUT_OF_RESOURCES;
            return Err(Failure { call: "hsa_amd_vmem_handle_create", status });
        }
        Ok(NativeHandle(handle))
    }

    /// Drops a reference to physical memory.
    ///
    /// # Safety
    /// The handle is alive, and nothing uses it afterwards.
    pub unsafe fn handle_release(&self, handle: NativeHandle) -> Result<(), Failure> {
        let table = self.vmem_for("hsa_amd_vmem_handle_release")?;
        // SAFETY: the caller's promise.
        unsafe { call!(table, hsa_amd_vmem_handle_release(handle.0)) }
    }

    /// Maps the start of a handle.
    ///
    /// # Safety
    /// The range is reserved and nothing is mapped in it; the handle is alive until it is unmapped, and is
    /// at least as large.
    pub unsafe fn map(
        &self,
        address: usize,
        size: usize,
        handle: NativeHandle,
    ) -> Result<(), Failure> {
        let table = self.vmem_for("hsa_amd_vmem_map")?;
        // SAFETY: the caller's promise.
        unsafe { call!(table, hsa_amd_vmem_map(address as *mut c_void, size, 0, handle.0, 0)) }
    }

    /// Unmaps a run of whole mappings.
    ///
    /// # Safety
    /// The range is exactly a run of mappings, and no code of this process accesses it any more.
    pub unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), Failure> {
        let table = self.vmem_for("hsa_amd_vmem_unmap")?;
        // SAFETY: the caller's promise.
        unsafe { call!(table, hsa_amd_vmem_unmap(address as *mut c_void, size)) }
    }

    /// Whether anything is mapped here. `agent` is a GPU, of which it is asked what it may do.
    pub fn is_mapped(&self, address: usize, agent: NativeAgent) -> Result<bool, Failure> {
        let table = self.vmem_for("hsa_amd_vmem_get_access")?;
        let mut access = sys::HSA_ACCESS_PERMISSION_NONE;
        // SAFETY: the address is only looked up; `access` is writable.
        let found = unsafe {
            call!(
                table,
                hsa_amd_vmem_get_access(address as *mut c_void, &raw mut access, agent.raw())
            )
        };
        match found {
            Ok(()) => Ok(true),
            Err(failure) if failure.status == Status::INVALID_ALLOCATION => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Sets access to a run of whole mappings.
    ///
    /// # Safety
    /// The range is exactly a run of mappings.
    pub unsafe fn set_access(
        &self,
        address: usize,
        size: usize,
        access: &[NativeAccess],
    ) -> Result<(), Failure> {
        let table = self.vmem_for("hsa_amd_vmem_set_access")?;
        // SAFETY: the caller's promise; the agents come from the runtime, and pointer and count are those
        // of one slice, of nothing but descriptors.
        unsafe {
            call!(
                table,
                hsa_amd_vmem_set_access(
                    address as *mut c_void,
                    size,
                    access.as_ptr().cast(),
                    access.len()
                )
            )
        }
    }

    /// Exports a handle as a descriptor of our own, closed on exec if the runtime marks it so.
    ///
    /// `kept` says that the runtime goes on using the descriptor it hands out (ROCm 7.14 does):
    /// then ours is a copy, else it is the very one.
    ///
    /// # Safety
    /// The handle is alive.
    pub unsafe fn export(
        &self,
        handle: NativeHandle,
        kept: bool,
    ) -> Result<OwnedFd, ExportFailure> {
        let table = self.vmem_for("hsa_amd_vmem_export_shareable_handle")?;
        let mut number = -1;
        // SAFETY: the caller's promise; `number` is writable.
        unsafe { call!(table, hsa_amd_vmem_export_shareable_handle(&mut number, handle.0, 0)) }?;
        if number < 0 {
            return Err(ExportFailure::Descriptor(Errno::BADF));
        }
        if kept {
            // SAFETY: the runtime keeps it open as long as the handle lives.
            let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
            return Ok(fcntl_dupfd_cloexec(borrowed, 0)?);
        }
        // SAFETY: the runtime opened it for us and forgets it (hsa_ext_amd.h: the caller closes).
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Makes a handle of a dma-buf.
    pub fn import(&self, descriptor: BorrowedFd<'_>) -> Result<NativeHandle, Failure> {
        let table = self.vmem_for("hsa_amd_vmem_import_shareable_handle")?;
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        // SAFETY: the descriptor is open while borrowed, `handle` is writable.
        unsafe {
            call!(table, hsa_amd_vmem_import_shareable_handle(descriptor.as_raw_fd(), &mut handle))
        }?;
        Ok(NativeHandle(handle))
    }

    /// The pool a handle came from, as far as the runtime tells.
    ///
    /// # Safety
    /// The handle is alive.
    pub unsafe fn pool_of(&self, handle: NativeHandle) -> Result<NativePool, Failure> {
        let table = self.vmem_for("hsa_amd_vmem_get_alloc_properties_from_handle")?;
        let mut pool = sys::hsa_amd_memory_pool_t { handle: 0 };
        let mut kind = sys::MEMORY_TYPE_NONE;
        // SAFETY: the caller's promise; both results are writable.
        unsafe {
            call!(
                table,
                hsa_amd_vmem_get_alloc_properties_from_handle(handle.0, &mut pool, &mut kind)
            )
        }?;
        Ok(NativePool::from_raw(pool))
    }
}
