//! The runtime's calls of virtual memory (`hsa_amd_vmem_*`): one function for each call.

use super::{Failure, Native, NativeAgent, NativePool, Status, call_vmem, duplicate, hex, logged};
use crate::log::with_expected_failures;
use core::ffi::c_void;
use core::ptr::null_mut;
use hsa_sys as sys;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The runtime's own handle of physical memory. Not in the public API, because the runtime reuses the value as soon
/// as the memory is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativeHandle(pub sys::hsa_amd_vmem_alloc_handle_t);

/// An agent and the number of its access (0, 1 or 3, in HIP and in HSA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct NativeAccess(sys::hsa_amd_memory_access_desc_t);

impl NativeAccess {
    pub fn new(agent: NativeAgent, permissions: u32) -> Self {
        Self(sys::hsa_amd_memory_access_desc_t { permissions, agent_handle: agent.raw() })
    }

    pub fn agent(self) -> NativeAgent {
        NativeAgent(self.0.agent_handle)
    }

    pub fn permissions(self) -> u32 {
        self.0.permissions
    }
}

impl Native {
    /// Reserves addresses. Ignores the alignment if the runtime cannot align reservations
    /// ([`reserves_aligned`](Self::reserves_aligned)).
    pub fn address_reserve(
        &self,
        size: usize,
        hint: usize,
        alignment: usize,
    ) -> Result<usize, Failure> {
        let (mut address, hint, alignment) = (null_mut(), hint as u64, alignment as u64);
        let aligned = self.vmem().ok().and_then(|table| table.hsa_amd_vmem_address_reserve_align);
        // SAFETY: `address` is writable; everything else is a number.
        unsafe {
            match aligned {
                Some(reserve) => logged!(
                    reserve,
                    hsa_amd_vmem_address_reserve_align(&mut address, size, hint, alignment, 0),
                    { size, hint = %hex(hint), alignment, flags = 0 },
                    { address = %hex(address as usize) }
                ),
                None => call_vmem!(
                    self.hsa_amd_vmem_address_reserve(&mut address, size, hint, 0),
                    { size, hint = %hex(hint), flags = 0 },
                    { address = %hex(address as usize) }
                ),
            }
        }?;
        Failure::check_result(self.reserve_function(), address as usize)
    }

    /// Returns the name of the function that reserves addresses.
    pub fn reserve_function(&self) -> &'static str {
        match self.reserves_aligned() {
            true => "hsa_amd_vmem_address_reserve_align",
            false => "hsa_amd_vmem_address_reserve",
        }
    }

    /// Returns whether the runtime can align reservations.
    pub fn reserves_aligned(&self) -> bool {
        self.vmem().is_ok_and(|table| table.hsa_amd_vmem_address_reserve_align.is_some())
    }

    /// Frees addresses.
    ///
    /// # Safety
    /// Exactly this range is reserved, and nothing is mapped in it or uses it.
    pub unsafe fn address_free(&self, address: usize, size: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that exactly this range is reserved, and not in use.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_address_free(address as *mut c_void, size),
                { address = %hex(address), size }
            )
        }
    }

    /// Allocates physical memory of a pool.
    pub fn handle_create(
        &self,
        pool: NativePool,
        size: usize,
        kind: sys::hsa_amd_memory_type_t,
        flags: u64,
    ) -> Result<NativeHandle, Failure> {
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let (pool, new) = (pool.raw(), &mut handle);
        // SAFETY: the pool comes from the runtime, `handle` is writable.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_handle_create(pool, size, kind, flags, &raw mut *new),
                { pool = %hex(pool.handle), size, kind, flags = %hex(flags) },
                { handle = %hex(new.handle) }
            )
        }?;
        if handle.handle == 0 {
            // ROCm 6.1 returns success and the handle 0 if no memory is left, and adds the handle to its list.
            // SAFETY: the runtime looks the handle up in its list, and nothing else uses this handle.
            let _ = unsafe { call_vmem!(self.hsa_amd_vmem_handle_release(handle), { handle = 0 }) };
            return Err(Failure::no_result("hsa_amd_vmem_handle_create"));
        }
        Ok(NativeHandle(handle))
    }

    /// Drops a reference to physical memory.
    ///
    /// # Safety
    /// The handle is alive, and nothing uses it afterwards.
    pub unsafe fn handle_release(&self, handle: NativeHandle) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the handle is alive, and not used afterwards.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_handle_release(handle.0),
                { handle = %hex(handle.0.handle) }
            )
        }
    }

    /// Maps the first `size` bytes of a handle's memory.
    ///
    /// # Safety
    /// The range is reserved and nothing is mapped in it. The handle's memory is at least as large as the range, and
    /// alive until the range is unmapped.
    pub unsafe fn map(
        &self,
        address: usize,
        size: usize,
        handle: NativeHandle,
    ) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the range is reserved and empty, and that the handle is large enough and
        // alive.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_map(address as *mut c_void, size, 0, handle.0, 0),
                { address = %hex(address), size, offset = 0, handle = %hex(handle.0.handle), flags = 0 }
            )
        }
    }

    /// Unmaps adjacent whole mappings.
    ///
    /// # Safety
    /// The range consists of whole mappings, and no code of this process accesses it any more.
    pub unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the range consists of whole mappings, and that this process does not
        // access it.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_unmap(address as *mut c_void, size),
                { address = %hex(address), size }
            )
        }
    }

    /// Returns the access of a GPU to the mapping at an address, as the number in [`NativeAccess`].
    pub fn access_of(&self, address: usize, agent: NativeAgent) -> Result<u32, Failure> {
        let (pointer, mut access) = (address as *mut c_void, sys::HSA_ACCESS_PERMISSION_NONE);
        // SAFETY: the address is only looked up; `access` is writable.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_get_access(pointer, &raw mut access, agent.raw()),
                { address = %hex(address), agent = %self.show_agent(agent) },
                { access }
            )
        }?;
        Ok(access)
    }

    /// Returns whether anything is mapped at an address. The call queries the access of `agent`, a GPU.
    pub fn is_mapped(&self, address: usize, agent: NativeAgent) -> Result<bool, Failure> {
        match with_expected_failures(|| self.access_of(address, agent)) {
            Ok(_) => Ok(true),
            Err(failure) if failure.status == Status::INVALID_ALLOCATION => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Sets access to adjacent whole mappings.
    ///
    /// # Safety
    /// The range consists of whole mappings.
    pub unsafe fn set_access(
        &self,
        address: usize,
        size: usize,
        access: &[NativeAccess],
    ) -> Result<(), Failure> {
        let (pointer, count, list) = (address as *mut c_void, access.len(), access.as_ptr().cast());
        // SAFETY: the caller guarantees that the range consists of whole mappings. The agents come from the runtime,
        // and pointer and count are those of one slice of descriptors.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_set_access(pointer, size, list, count),
                { address = %hex(address), size, access = %self.show_access(access) }
            )
        }
    }

    /// Exports a handle, and returns the number of the descriptor.
    ///
    /// # Safety
    /// The handle is alive.
    unsafe fn export_number(&self, handle: NativeHandle, flags: u64) -> Result<RawFd, Failure> {
        let (mut number, handle) = (-1, handle.0);
        // SAFETY: the caller guarantees that the handle is alive; `number` is writable.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_export_shareable_handle(&mut number, handle, flags),
                { handle = %hex(handle.handle), flags },
                { descriptor = number }
            )
        }?;
        if number < 0 {
            return Err(Failure::no_result("hsa_amd_vmem_export_shareable_handle"));
        }
        Ok(number)
    }

    /// Exports a handle as a descriptor of this process. Close-on-exec is set only if the runtime sets it. An inner
    /// error means that copying the descriptor failed.
    ///
    /// `runtime_keeps` says that the runtime continues to use the descriptor that it returns, as ROCm 7.14 does. In
    /// this case, the result is a copy. `flags` is the mapping type.
    ///
    /// # Safety
    /// The handle is alive.
    pub unsafe fn export(
        &self,
        handle: NativeHandle,
        flags: u64,
        runtime_keeps: bool,
    ) -> Result<Result<OwnedFd, Errno>, Failure> {
        // SAFETY: the caller guarantees that the handle is alive.
        let number = unsafe { self.export_number(handle, flags) }?;
        if runtime_keeps {
            // SAFETY: the runtime keeps the descriptor open as long as the handle lives.
            let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
            return Ok(duplicate(borrowed));
        }
        // SAFETY: the runtime opened the descriptor for the caller, which has to close it (hsa_ext_amd.h).
        Ok(Ok(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Exports a handle twice. Returns a descriptor, and whether the runtime returned one descriptor twice and keeps
    /// it. An inner error means that copying the descriptor failed. If only the first export succeeds, its
    /// descriptor stays open, because the runtime may still use it.
    ///
    /// # Safety
    /// The handle is alive.
    pub unsafe fn export_twice(
        &self,
        handle: NativeHandle,
    ) -> Result<Result<(OwnedFd, bool), Errno>, Failure> {
        // SAFETY: the caller guarantees that the handle is alive.
        let (first, second) =
            unsafe { (self.export_number(handle, 0)?, self.export_number(handle, 0)?) };
        if first == second {
            // SAFETY: the runtime keeps the descriptor open as long as the handle lives.
            let borrowed = unsafe { BorrowedFd::borrow_raw(first) };
            return Ok(duplicate(borrowed).map(|copy| (copy, true)));
        }
        // SAFETY: the runtime opened both descriptors for the caller, which has to close them (hsa_ext_amd.h).
        let [first, _second] =
            [first, second].map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        Ok(Ok((first, false)))
    }

    /// Returns the name of a function of fabric handles that the library does not export. Returns `None` if the library
    /// exports both functions.
    pub fn missing_fabric_function(&self) -> Option<&'static str> {
        let table = self.vmem().ok();
        if table.is_none_or(|it| it.hsa_amd_vmem_export_fabric_handle.is_none()) {
            return Some("hsa_amd_vmem_export_fabric_handle");
        }
        let is_missing = table.is_none_or(|it| it.hsa_amd_vmem_import_fabric_handle.is_none());
        is_missing.then_some("hsa_amd_vmem_import_fabric_handle")
    }

    /// Exports a handle as a fabric handle.
    ///
    /// # Safety
    /// The handle is alive.
    pub unsafe fn export_fabric(&self, handle: NativeHandle) -> Result<[u8; 16], Failure> {
        let (mut fabric, handle) = (sys::hsa_fabric_handle_t { handle: [0; 16] }, handle.0);
        // SAFETY: the caller guarantees that the handle is alive; `fabric` is writable.
        unsafe {
            call_vmem!(
                optional self.hsa_amd_vmem_export_fabric_handle(&raw mut fabric, handle, 0),
                { handle = %hex(handle.handle), flags = 0 },
                { fabric = ?fabric.handle }
            )
        }?;
        Failure::check_result("hsa_amd_vmem_export_fabric_handle", fabric.handle)
    }

    /// Imports a fabric handle.
    pub fn import_fabric(&self, fabric: [u8; 16]) -> Result<NativeHandle, Failure> {
        let fabric = sys::hsa_fabric_handle_t { handle: fabric };
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        // SAFETY: `handle` is writable, and the runtime checks the bytes of `fabric`.
        unsafe {
            call_vmem!(
                optional self.hsa_amd_vmem_import_fabric_handle(fabric, &raw mut handle),
                { fabric = ?fabric.handle },
                { handle = %hex(handle.handle) }
            )
        }?;
        Failure::check_result("hsa_amd_vmem_import_fabric_handle", handle.handle)?;
        Ok(NativeHandle(handle))
    }

    /// Imports a dma-buf.
    pub fn import(&self, descriptor: BorrowedFd<'_>) -> Result<NativeHandle, Failure> {
        let number = descriptor.as_raw_fd();
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        // SAFETY: the descriptor is open while borrowed, `handle` is writable.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_import_shareable_handle(number, &mut handle),
                { descriptor = number },
                { handle = %hex(handle.handle) }
            )
        }?;
        Failure::check_result("hsa_amd_vmem_import_shareable_handle", handle.handle)?;
        Ok(NativeHandle(handle))
    }

    /// Returns the pool of a handle's memory.
    ///
    /// # Safety
    /// The handle is alive.
    pub unsafe fn pool_of(&self, handle: NativeHandle) -> Result<NativePool, Failure> {
        let mut pool = sys::hsa_amd_memory_pool_t { handle: 0 };
        let (handle, mut kind) = (handle.0, sys::MEMORY_TYPE_NONE);
        let (pool_pointer, kind_pointer) = (&raw mut pool, &raw mut kind);
        // SAFETY: the caller guarantees that the handle is alive; both results are writable.
        unsafe {
            call_vmem!(
                self.hsa_amd_vmem_get_alloc_properties_from_handle(handle, pool_pointer, kind_pointer),
                { handle = %hex(handle.handle) },
                { pool = %hex(pool.handle), kind }
            )
        }?;
        Ok(NativePool(pool))
    }
}
