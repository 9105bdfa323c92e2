//! Queries of pointers.

use crate::answer::{Refusal, answer};
use crate::errors;
use crate::memory::{Held, Kind};
use crate::pointers::{address, not_null, take, write_out};
use crate::process::{Process, process};
use crate::registered;
use crate::types::{
    MEMORY_DEVICE, MEMORY_HOST, MEMORY_MANAGED, MEMORY_UNREGISTERED, hipError_t,
    hipPointerAttribute_t, pointer_attribute,
};
use core::ffi::{c_int, c_uint, c_void};
use hsa_vmm::Address;
use hsa_vmm::ipc::OpenedMemory;
use hsa_vmm::vmm::Location;
use std::sync::Arc;

/// The kind of memory at an address.
enum Found {
    Held(Arc<Held>),
    Opened(c_int, Arc<OpenedMemory>),
    Registered(registered::Found),
    /// A mapping: start, size, device.
    Mapped(Address, usize, c_int),
}

impl Process {
    fn find(&self, at: Address) -> Option<Found> {
        if let Some(held) = self.allocations.at(at) {
            return Some(Found::Held(held));
        }
        if let Some((device, opened)) = self.allocations.opened_at(at) {
            return Some(Found::Opened(device, opened));
        }
        if let Some(found) = self.registered.at(at) {
            return Some(Found::Registered(found));
        }
        let vmm = self.vmm().ok()?;
        let (start, size) = vmm.mapped_range_at(at)?;
        let device = match vmm.location_at(at) {
            Some(Location::Agent(agent)) => self.devices.number(agent),
            _ => -1,
        };
        Some(Found::Mapped(start, size, device))
    }
}

impl Found {
    /// Returns the start and the size of the memory.
    fn range(&self) -> (Address, usize) {
        match self {
            Self::Held(held) => (held.memory.address(), held.memory.size()),
            Self::Opened(_, opened) => (opened.address(), opened.size()),
            Self::Registered(found) => (found.start, found.size),
            Self::Mapped(start, size, _) => (*start, *size),
        }
    }

    fn attributes(&self, ptr: *const c_void) -> hipPointerAttribute_t {
        let pointer = ptr.cast_mut();
        let on_device = |device| hipPointerAttribute_t {
            kind: MEMORY_DEVICE,
            device,
            device_pointer: pointer,
            ..NOTHING
        };
        let on_host = |kind, device| hipPointerAttribute_t {
            kind,
            host_pointer: pointer,
            ..on_device(device)
        };
        match self {
            Self::Mapped(_, _, device) | Self::Opened(device, _) => on_device(*device),
            Self::Registered(found) => hipPointerAttribute_t {
                device_pointer: found.device_pointer,
                allocation_flags: found.flags,
                ..on_host(MEMORY_HOST, found.device)
            },
            Self::Held(held) => {
                let answer = match held.kind {
                    Kind::Device => on_device(held.device),
                    Kind::Host => on_host(MEMORY_HOST, held.device),
                    Kind::Managed => hipPointerAttribute_t {
                        is_managed: 1,
                        ..on_host(MEMORY_MANAGED, held.device)
                    },
                };
                hipPointerAttribute_t { allocation_flags: held.flags, ..answer }
            }
        }
    }
}

/// The attributes of memory that is not this library's.
const NOTHING: hipPointerAttribute_t = hipPointerAttribute_t {
    kind: MEMORY_UNREGISTERED,
    device: -2,
    device_pointer: core::ptr::null_mut(),
    host_pointer: core::ptr::null_mut(),
    is_managed: 0,
    allocation_flags: 0,
};

fn not_of_this_library() -> Refusal {
    Refusal::value("ptr", "is not memory of this library")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerGetAttributes(
    attributes: *mut hipPointerAttribute_t,
    ptr: *const c_void,
) -> hipError_t {
    answer("hipPointerGetAttributes", || {
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("attributes", attributes, NOTHING) }?;
        let process = process()?;
        process.devices.any()?;
        let found = process.find(address(ptr)).ok_or_else(not_of_this_library)?;
        // SAFETY: as before.
        unsafe { write_out("attributes", attributes, found.attributes(ptr)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerGetAttribute(
    data: *mut c_void,
    attribute: c_uint,
    ptr: *mut c_void,
) -> hipError_t {
    answer("hipPointerGetAttribute", || {
        not_null("data", data)?;
        let process = process()?;
        process.devices.any()?;
        let found = process.find(address(ptr)).ok_or_else(not_of_this_library)?;
        let all = found.attributes(ptr);
        let (start, size) = found.range();
        // SAFETY: as lib.rs says of pointers for results; the types are those that HIP documents.
        unsafe {
            match attribute {
                pointer_attribute::MEMORY_TYPE => write_out("data", data.cast(), all.kind),
                pointer_attribute::DEVICE_POINTER => {
                    write_out("data", data.cast(), all.device_pointer)
                }
                pointer_attribute::HOST_POINTER => {
                    if all.host_pointer.is_null() {
                        return Err(Refusal::value("ptr", "is not memory of the host"));
                    }
                    write_out("data", data.cast(), all.host_pointer)
                }
                // Every copy is synchronous.
                pointer_attribute::SYNC_MEMOPS => write_out::<c_int>("data", data.cast(), 1),
                pointer_attribute::IS_MANAGED => {
                    write_out("data", data.cast::<bool>(), all.is_managed != 0)
                }
                pointer_attribute::DEVICE_ORDINAL => write_out("data", data.cast(), all.device),
                pointer_attribute::RANGE_START_ADDR => {
                    write_out::<*mut c_void>("data", data.cast(), start.as_ptr())
                }
                pointer_attribute::RANGE_SIZE => write_out("data", data.cast(), size),
                pointer_attribute::MAPPED => write_out("data", data.cast::<bool>(), true),
                1..=17 => Err(Refusal::not_supported(format_args!("attribute {attribute}"))),
                other => Err(Refusal::value("attribute", format_args!("({other}) is invalid"))),
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerSetAttribute(
    value: *const c_void,
    attribute: c_uint,
    ptr: *mut c_void,
) -> hipError_t {
    answer("hipPointerSetAttribute", || {
        let process = process()?;
        process.devices.any()?;
        process.find(address(ptr)).ok_or_else(not_of_this_library)?;
        if attribute != pointer_attribute::SYNC_MEMOPS {
            let problem = format!("({attribute}) cannot be set");
            return Err(Refusal::value("attribute", problem));
        }
        // SAFETY: as lib.rs says of pointers; HIP's value is an `int`.
        match unsafe { take("value", value.cast::<c_int>()) }? {
            0 => Err(Refusal::not_supported("copies that are not synchronous")),
            _ => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAddressRange(
    base: *mut *mut c_void,
    size: *mut usize,
    ptr: *mut c_void,
) -> hipError_t {
    answer("hipMemGetAddressRange", || {
        let process = process()?;
        process.devices.any()?;
        let Some(found) = process.find(address(ptr)) else {
            let words = "`ptr` is not memory of this library";
            return Err(Refusal::new(errors::NOT_FOUND, words));
        };
        let (start, bytes) = found.range();
        // Either result pointer may be null, as in HIP.
        // SAFETY: as lib.rs says of pointers for results.
        unsafe {
            if !base.is_null() {
                write_out("base", base, start.as_ptr())?;
            }
            if size.is_null() { Ok(()) } else { write_out("size", size, bytes) }
        }
    })
}
