//! Areas (`hsavmm_area_…`).

use crate::devices::current_device;
use crate::endpoint::check_program_memory;
use crate::errors;
use crate::objects::{Object, OpenArea, invalid_number};
use crate::pointers::{address, not_null, write_out};
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::hipError_t;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::NonNull;
use hsa_vmm::Area;
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::error::Rejected;
use std::sync::Arc;

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_area_create(
    area: *mut *mut c_void,
    device: c_int,
    flags: c_uint,
) -> hipError_t {
    run("hsavmm_area_create", || {
        not_null("area", area)?;
        let process = process()?;
        let agent = process.devices.agent(if device < 0 { current_device() } else { device })?;
        let flags = AreaFlags::from_bits_retain(flags);
        let new_area = match process.vmm() {
            Ok(vmm) => Area::new(vmm, agent, flags),
            Err(_) => Area::without_vmm(&process.runtime, agent, flags),
        }?;
        let object = Object::Area(Arc::new(OpenArea::new(new_area)));
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("area", area, process.objects.insert(object)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_area_mmap(
    area: *mut c_void,
    ptr: *mut *mut c_void,
    size: usize,
    host: *mut c_void,
) -> hipError_t {
    run("hsavmm_area_mmap", || {
        not_null("ptr", ptr)?;
        let process = process()?;
        let open_area = process.objects.area(area)?;
        let mut options = MmapOptions::new();
        if let Some(host) = NonNull::new(host.cast::<u8>()) {
            let start = host.as_ptr() as usize;
            if open_area.area.flags().maps_existing_memory()
                && let Some(end) = start.checked_add(size)
            {
                check_program_memory(&process, "host", &(start..end))?;
            }
            // SAFETY: the header requires `size` bytes that stay allocated until munmap.
            options = unsafe { options.with_host_pointer(host) };
        }
        let memory = open_area.area.mmap(size, options)?;
        let at = memory.address();
        let mut mapped = open_area.mapped_mut();
        if mapped.destroyed {
            return Err(invalid_number());
        }
        mapped.memory.insert(at.get(), memory);
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("ptr", ptr, at.as_ptr()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_area_device_pointer(
    area: *mut c_void,
    device_ptr: *mut *mut c_void,
    ptr: *mut c_void,
) -> hipError_t {
    run("hsavmm_area_device_pointer", || {
        let open_area = process()?.objects.area(area)?;
        let mapped = open_area.mapped();
        let memory = mapped.memory.get(&address(ptr).get()).ok_or_else(not_in_area)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("device_ptr", device_ptr, memory.device_address().as_ptr()) }
    })
}

fn not_in_area() -> Failure {
    Failure::invalid_argument("ptr", "is not the start of memory of this area")
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_area_munmap(area: *mut c_void, ptr: *mut c_void) -> hipError_t {
    run("hsavmm_area_munmap", || {
        let open_area = process()?.objects.area(area)?;
        let at = address(ptr).get();
        let mut mapped = open_area.mapped_mut();
        let memory = mapped.memory.remove(&at).ok_or_else(not_in_area)?;
        memory.munmap().map_err(|Rejected { value: memory, error }| {
            mapped.memory.insert(at, memory);
            Failure::from(error)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_area_destroy(area: *mut c_void) -> hipError_t {
    run("hsavmm_area_destroy", || {
        let process = process()?;
        let open_area = process.objects.area(area)?;
        // Locked until the area is removed, so that no other thread maps memory of the area meanwhile.
        let mut mapped = open_area.mapped_mut();
        let count = mapped.memory.len();
        if count > 0 {
            let message = format!("{count} allocations of the area are still mapped");
            return Err(Failure::new(errors::ILLEGAL_STATE, message));
        }
        process.objects.remove(area)?;
        mapped.destroyed = true;
        Ok(())
    })
}
