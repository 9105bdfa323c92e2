//! `hipHostRegister`: memory of the program that devices can access.

use crate::allocations::{Kind, next_buffer_id};
use crate::devices::current_device;
use crate::endpoint::{MUST_BE_PROGRAM_MEMORY, check_program_memory};
use crate::errors;
use crate::objects::{Object, OpenArea, lock};
use crate::pointers::{address, not_null, write_out};
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::hipError_t;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::NonNull;
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::error::Rejected;
use hsa_vmm::{Address, Area, Error};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Registered memory. Its area is listed in `process.objects`, where `hipMemcpy` and similar functions look up
/// addresses.
#[derive(Clone, Debug)]
struct Entry {
    area: Arc<OpenArea>,
    /// The number of the area in `process.objects`.
    number: usize,
    size: usize,
    device_address: Address,
    device: c_int,
    flags: c_uint,
    buffer_id: u32,
}

/// The registered memory that contains an address.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredMemory {
    pub start: Address,
    pub size: usize,
    /// The pointer by which devices access the address.
    pub device_pointer: *mut c_void,
    pub device: c_int,
    pub flags: c_uint,
    pub buffer_id: u32,
}

/// All registered memory, by address.
#[derive(Debug, Default)]
pub struct Registered(Mutex<BTreeMap<usize, Entry>>);

impl Registered {
    /// Finds the registered memory that contains an address.
    pub fn at(&self, at: Address) -> Option<RegisteredMemory> {
        let map = lock(&self.0);
        let (&start, entry) = map.range(..=at.get()).next_back()?;
        let offset = at.get() - start;
        (offset < entry.size).then(|| RegisteredMemory {
            start: Address::new(start),
            size: entry.size,
            device_pointer: entry.device_address.as_ptr().wrapping_byte_add(offset),
            device: entry.device,
            flags: entry.flags,
            buffer_id: entry.buffer_id,
        })
    }
}

const IO_MEMORY: c_uint = 0x4;
const UNCACHED: c_uint = 0x8000_0000;
/// The valid flags: portable, mapped, I/O memory, read-only or coarse-grained, uncached.
const FLAGS: c_uint = 0xf | UNCACHED;

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostRegister(ptr: *mut c_void, size: usize, flags: c_uint) -> hipError_t {
    run("hipHostRegister", || {
        let process = process()?;
        let device = current_device();
        let agent = process.devices.agent(device)?;
        let host = NonNull::new(ptr.cast());
        let host = host.ok_or_else(|| Failure::invalid_argument("ptr", "is null"))?;
        let start = ptr as usize;
        let end = start.checked_add(size).filter(|_| size > 0);
        let end = end.ok_or_else(|| {
            Failure::invalid_argument("size", "is 0, or exceeds the address space")
        })?;
        if flags & !FLAGS != 0 {
            return Err(Failure::invalid_argument(
                "flags",
                format_args!("({flags:#x}) are invalid"),
            ));
        }
        if flags & IO_MEMORY != 0 {
            return Err(Failure::not_supported("registering I/O memory"));
        }
        if flags & UNCACHED != 0 {
            return Err(Failure::not_supported("registering memory as uncached"));
        }
        check_program_memory(&process, "ptr", &(start..end))?;
        // Locked until the memory is recorded, so that no other thread registers the same memory meanwhile.
        let mut map = lock(&process.registered.0);
        let before = map.range(..end).next_back();
        if before.is_some_and(|(&other, entry)| other + entry.size > start) {
            let message = "`ptr` is in memory that is registered already";
            return Err(Failure::new(errors::HOST_MEMORY_ALREADY_REGISTERED, message));
        }
        // As in HIP, all devices get access even without `hipHostRegisterPortable`.
        let area_flags = AreaFlags::MAPPED | AreaFlags::GLOBAL;
        let area = match process.vmm() {
            Ok(vmm) => Area::new(vmm, agent, area_flags),
            Err(_) => Area::without_vmm(&process.runtime, agent, area_flags),
        }?;
        // SAFETY: the header requires `size` bytes that stay allocated until they are unregistered.
        let options = unsafe { MmapOptions::new().with_host_pointer(host) };
        let memory = area.mmap(size, options).map_err(register_failure)?;
        let device_address = memory.device_address();
        let area = Arc::new(OpenArea::new(area));
        area.mapped_mut().memory.insert(memory.address().get(), memory);
        let number = process.objects.insert(Object::Registered(area.clone())) as usize;
        let buffer_id = next_buffer_id();
        map.insert(start, Entry { area, number, size, device_address, device, flags, buffer_id });
        Ok(())
    })
}

/// Converts the error of registering memory. As in HIP, a range that the runtime cannot lock is an invalid argument.
fn register_failure(error: Error) -> Failure {
    let failure = Failure::from(error);
    if failure.code != errors::UNKNOWN {
        return failure;
    }
    let message = format!("the range {MUST_BE_PROGRAM_MEMORY}: {}", failure.message);
    Failure::new(errors::INVALID_VALUE, message)
}

#[unsafe(no_mangle)]
extern "C" fn hipHostUnregister(ptr: *mut c_void) -> hipError_t {
    run("hipHostUnregister", || {
        let process = process()?;
        process.devices.require()?;
        not_null("ptr", ptr)?;
        let at = address(ptr).get();
        let mut map = lock(&process.registered.0);
        let not_registered = || {
            let message = "`ptr` is not the start of registered memory";
            Failure::new(errors::HOST_MEMORY_NOT_REGISTERED, message)
        };
        let entry = map.get(&at).cloned().ok_or_else(not_registered)?;
        let mut mapped = entry.area.mapped_mut();
        let memory = mapped.memory.remove(&at).ok_or_else(not_registered)?;
        memory.munmap().map_err(|Rejected { value: memory, error }| {
            mapped.memory.insert(at, memory);
            Failure::from(error)
        })?;
        map.remove(&at);
        // Cannot fail: no other thread can remove the area while `mapped` is locked.
        let _ = process.objects.remove(entry.number as *mut c_void);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostGetDevicePointer(
    device_ptr: *mut *mut c_void,
    host_ptr: *mut c_void,
    flags: c_uint,
) -> hipError_t {
    run("hipHostGetDevicePointer", || {
        let process = process()?;
        process.devices.require()?;
        if flags != 0 {
            return Err(Failure::invalid_argument("flags", "must be 0"));
        }
        // As in HIP, memory of a device has a device pointer, too.
        let found = process.device_pointer(host_ptr);
        let found = found.ok_or_else(|| process.unknown_memory("host_ptr", address(host_ptr)))?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("device_ptr", device_ptr, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostGetFlags(flags: *mut c_uint, ptr: *mut c_void) -> hipError_t {
    run("hipHostGetFlags", || {
        let process = process()?;
        process.devices.require()?;
        // As in HIP, registered memory is an error.
        let found = process.allocations.at(address(ptr)).filter(|found| found.kind != Kind::Device);
        let found = found.ok_or_else(|| {
            Failure::invalid_argument("ptr", "is not memory from hipHostMalloc or hipMallocManaged")
        })?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("flags", flags, found.flags) }
    })
}
