//! The virtual memory functions: `hsa_amd_vmem_*`. A parameter `c_variable` is the name of a variable in the C program
//! that `bringup --program` writes.

use super::{
    Address, Agent, AlreadyReported, Handle, Hsa, MISSING, Named, Pool, Record, Result, hex, output,
};
use core::ffi::c_void;
use core::ptr::null_mut;
use hsa_sys as sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The function that frees reserved addresses.
pub const FREE: &str = "hsa_amd_vmem_address_free";
/// The function that releases a handle.
pub const RELEASE: &str = "hsa_amd_vmem_handle_release";

impl Hsa<'_> {
    /// Reserves addresses. `c_variable` is the variable that holds the first address in the C program.
    pub fn reserve(&self, size: usize, c_variable: &str) -> Result<Address> {
        let mut address = null_mut();
        let variable = format!("&{c_variable}");
        let arguments = [
            (variable.as_str(), "out".to_owned()),
            ("size", hex(size)),
            ("0", "hint".into()),
            ("0", "flags".into()),
        ];
        self.vmem("hsa_amd_vmem_address_reserve", &arguments, |vmem| {
            // SAFETY: `address` is writable.
            let status = unsafe { (vmem.hsa_amd_vmem_address_reserve)(&mut address, size, 0, 0) };
            (status, output(c_variable, hex(address as usize)))
        })?;
        Ok(Named::new(c_variable, address as usize))
    }

    pub fn free(&self, va: &Address, size: usize) -> Result<()> {
        let arguments = [(va.c_expression.as_str(), hex(va.value)), ("size", hex(size))];
        self.vmem(FREE, &arguments, |vmem| {
            // SAFETY: the range was reserved, and nothing uses it any more.
            (unsafe { (vmem.hsa_amd_vmem_address_free)(va.value as *mut c_void, size) }, vec![])
        })
    }

    /// Frees addresses that were freed before. Returns whether this succeeds: the first call then had no effect. The C
    /// program does not contain this call.
    pub fn free_again(&self, va: &Address, size: usize) -> bool {
        let arguments = [(va.c_expression.as_str(), hex(va.value)), ("size", hex(size))];
        let (_, status) = self.recorder.record(FREE, &arguments, None, || {
            let status = self.vmem.as_ref().map_or(MISSING, |vmem| {
                // SAFETY: nothing uses the range. The runtime rejects a range that it has not reserved.
                unsafe { (vmem.hsa_amd_vmem_address_free)(va.value as *mut c_void, size) }
            });
            (status, Some(status), vec![])
        });
        status == sys::HSA_STATUS_SUCCESS
    }

    /// Allocates physical memory. `c_variable` is the variable that holds the handle in the C program.
    pub fn create(&self, pool: &Pool, size: usize, c_variable: &str) -> Result<Handle> {
        let variable = format!("&{c_variable}");
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let arguments = [
            (pool.c_expression.as_str(), hex(pool.value.handle)),
            ("size", hex(size)),
            ("MEMORY_TYPE_NONE", "0".to_owned()),
            ("0", "flags".into()),
            (variable.as_str(), "out".into()),
        ];
        self.vmem("hsa_amd_vmem_handle_create", &arguments, |vmem| {
            // SAFETY: the runtime returned the pool; `handle` is writable.
            let status = unsafe {
                let create = vmem.hsa_amd_vmem_handle_create;
                create(pool.value, size, sys::MEMORY_TYPE_NONE, 0, &mut handle)
            };
            (status, output(c_variable, hex(handle.handle)))
        })?;
        Ok(Named::new(c_variable, handle))
    }

    /// Allocates physical memory. Returns `None` if no memory is left. All these handles share the
    /// name `memory3`: no C program is written for the levels that use them.
    pub fn try_create(&self, pool: &Pool, size: &Named<usize>) -> Result<Option<Handle>> {
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let name = "hsa_amd_vmem_handle_create";
        let arguments = [
            (pool.c_expression.as_str(), hex(pool.value.handle)),
            (size.c_expression.as_str(), hex(size.value)),
            ("MEMORY_TYPE_NONE", "0".to_owned()),
            ("0", "flags".into()),
            ("&memory3", "out".into()),
        ];
        let (id, status) = self.recorder.record(name, &arguments, None, || {
            let status = self.vmem.as_ref().map_or(MISSING, |vmem| {
                let create = vmem.hsa_amd_vmem_handle_create;
                // SAFETY: the runtime returned the pool; `handle` is writable.
                unsafe { create(pool.value, size.value, sys::MEMORY_TYPE_NONE, 0, &mut handle) }
            });
            (status, Some(status), output("memory3", hex(handle.handle)))
        });
        match status {
            // If no memory is left, ROCm 6.1 can return success and no handle.
            sys::HSA_STATUS_SUCCESS if handle.handle == 0 => Ok(None),
            sys::HSA_STATUS_SUCCESS => Ok(Some(Named::new("memory3", handle))),
            sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES => Ok(None),
            _ => {
                self.recorder.send(&Record::Failed(id));
                Err(AlreadyReported)
            }
        }
    }

    pub fn release(&self, memory: &Handle) -> Result<()> {
        let arguments = [(memory.c_expression.as_str(), hex(memory.value.handle))];
        self.vmem(RELEASE, &arguments, |vmem| {
            // SAFETY: the runtime returned the handle, which is not used any more.
            (unsafe { (vmem.hsa_amd_vmem_handle_release)(memory.value) }, vec![])
        })
    }

    pub fn map(&self, va: &Address, size: usize, memory: &Handle) -> Result<()> {
        let arguments = [
            (va.c_expression.as_str(), hex(va.value)),
            ("size", hex(size)),
            ("0", "offset".to_owned()),
            (memory.c_expression.as_str(), hex(memory.value.handle)),
            ("0", "flags".into()),
        ];
        self.vmem("hsa_amd_vmem_map", &arguments, |vmem| {
            // SAFETY: the range was reserved and the runtime returned the handle.
            let status = unsafe {
                (vmem.hsa_amd_vmem_map)(va.value as *mut c_void, size, 0, memory.value, 0)
            };
            (status, vec![])
        })
    }

    pub fn unmap(&self, va: &Address, size: usize) -> Result<()> {
        let arguments = [(va.c_expression.as_str(), hex(va.value)), ("size", hex(size))];
        self.vmem("hsa_amd_vmem_unmap", &arguments, |vmem| {
            // SAFETY: the range was mapped as a whole, and nothing uses it any more.
            (unsafe { (vmem.hsa_amd_vmem_unmap)(va.value as *mut c_void, size) }, vec![])
        })
    }

    /// Grants agents read and write access.
    pub fn grant(&self, va: &Address, size: usize, agents: &[&Agent]) -> Result<()> {
        let descriptors: Vec<_> = agents
            .iter()
            .map(|agent| sys::hsa_amd_memory_access_desc_t {
                permissions: sys::HSA_ACCESS_PERMISSION_RW,
                agent_handle: agent.value,
            })
            .collect();
        let descriptor =
            |agent: &&Agent| format!("{{HSA_ACCESS_PERMISSION_RW, {}}}", agent.c_expression);
        let list: Vec<_> = agents.iter().map(descriptor).collect();
        let list = format!("(hsa_amd_memory_access_desc_t[]){{{}}}", list.join(", "));
        let shown: Vec<_> = agents
            .iter()
            .map(|agent| format!("{}={:#x}", agent.c_expression, agent.value.handle))
            .collect();
        let count = agents.len().to_string();
        let arguments = [
            (va.c_expression.as_str(), hex(va.value)),
            ("size", hex(size)),
            (list.as_str(), format!("RW for {}", shown.join(", "))),
            (count.as_str(), "descriptors".into()),
        ];
        self.vmem("hsa_amd_vmem_set_access", &arguments, |vmem| {
            // SAFETY: the range was mapped as a whole; the runtime returned the agents.
            let status = unsafe {
                let set_access = vmem.hsa_amd_vmem_set_access;
                set_access(va.value as *mut c_void, size, descriptors.as_ptr(), descriptors.len())
            };
            (status, vec![])
        })
    }

    pub fn export(&self, memory: &Handle) -> Result<OwnedFd> {
        let mut dmabuf = -1;
        let arguments = [
            ("&dmabuf", "out".to_owned()),
            (memory.c_expression.as_str(), hex(memory.value.handle)),
            ("0", "flags".into()),
        ];
        self.vmem("hsa_amd_vmem_export_shareable_handle", &arguments, |vmem| {
            // SAFETY: the runtime returned the handle; `dmabuf` is writable.
            let status = unsafe {
                (vmem.hsa_amd_vmem_export_shareable_handle)(&mut dmabuf, memory.value, 0)
            };
            (status, output("dmabuf", dmabuf.to_string()))
        })?;
        if dmabuf < 0 {
            return Err(self.recorder.fail(format!("the exported descriptor is {dmabuf}")));
        }
        // SAFETY: the runtime has just opened the descriptor and transfers its ownership.
        Ok(unsafe { OwnedFd::from_raw_fd(dmabuf) })
    }

    pub fn import(&self, dmabuf: &OwnedFd) -> Result<Handle> {
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let number = dmabuf.as_raw_fd();
        let arguments = [("dmabuf", number.to_string()), ("&memory", "out".into())];
        self.vmem("hsa_amd_vmem_import_shareable_handle", &arguments, |vmem| {
            // SAFETY: the descriptor is open; `handle` is writable.
            let status =
                unsafe { (vmem.hsa_amd_vmem_import_shareable_handle)(number, &mut handle) };
            (status, output("memory", hex(handle.handle)))
        })?;
        Ok(Named::new("memory", handle))
    }
}
