//! Queries of pointers.

use crate::allocations::{Allocation, Kind, OpenedEntry};
use crate::contexts::context;
use crate::errors;
use crate::objects::AreaPosition;
use crate::pointers::{address, not_null, read, write_out, write_unless_null};
use crate::process::{Process, process, profile};
use crate::registered::RegisteredMemory;
use crate::status::{Failure, run};
use crate::types::{
    MEMORY_DEVICE, MEMORY_HOST, MEMORY_MANAGED, MEMORY_UNREGISTERED, hipError_t,
    hipPointerAttribute_t, pointer_attribute,
};
use core::ffi::{c_int, c_uint, c_void};
use hsa_vmm::Address;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::ipc::OpenedMemory;
use hsa_vmm::vmm::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The memory at an address.
enum MemoryAtAddress {
    Allocation(Arc<Allocation>),
    Opened(OpenedEntry, Arc<OpenedMemory>),
    Registered(RegisteredMemory),
    /// A mapping: start, size, device.
    Mapped(Address, usize, c_int),
    Area(AreaRange),
}

/// Memory of an area that is not a mapping of the `Vmm`.
struct AreaRange {
    /// The start by which the caller knows the memory: an address of the host or of the device.
    start: Address,
    size: usize,
    host_start: Address,
    device_start: Address,
    device: c_int,
    is_on_host: bool,
    /// The flags of registered memory; otherwise 0.
    flags: c_uint,
    /// The number of registered memory; otherwise `None`.
    buffer_id: Option<u32>,
}

impl Process {
    /// Returns the address at which devices access memory that HIP's functions have created.
    pub fn device_pointer(&self, host_ptr: *mut c_void) -> Option<*mut c_void> {
        match self.find(address(host_ptr))? {
            MemoryAtAddress::Registered(found) => Some(found.device_pointer),
            MemoryAtAddress::Area(_) => None,
            _ => Some(host_ptr),
        }
    }

    fn find(&self, at: Address) -> Option<MemoryAtAddress> {
        if let Some(allocation) = self.allocations.at(at) {
            return Some(MemoryAtAddress::Allocation(allocation));
        }
        if let Some((entry, opened)) = self.allocations.opened_at(at) {
            return Some(MemoryAtAddress::Opened(entry, opened));
        }
        if let Some(found) = self.registered.at(at) {
            return Some(MemoryAtAddress::Registered(found));
        }
        self.find_mapping(at).or_else(|| self.find_in_area(at).map(MemoryAtAddress::Area))
    }

    /// Returns whether an address is in a reservation.
    pub fn is_reserved(&self, at: Address) -> bool {
        self.vmm().is_ok_and(|vmm| vmm.reservation_at(at).is_some())
    }

    /// Describes why no allocation starts at an address.
    pub fn why_not_freeable(&self, at: Address) -> String {
        let problem = match self.find(at) {
            Some(MemoryAtAddress::Allocation(allocation)) => {
                let start = allocation.memory.address();
                return format!("is inside the allocation at {start}; pass the start");
            }
            Some(MemoryAtAddress::Opened(..)) => {
                "belongs to another process: close it (hipIpcCloseMemHandle)"
            }
            Some(
                MemoryAtAddress::Registered(_)
                | MemoryAtAddress::Area(AreaRange { buffer_id: Some(_), .. }),
            ) => "is memory of hipHostRegister: unregister it (hipHostUnregister)",
            _ if self.objects.area_at(at).is_some() => {
                "is memory of an area: unmap it (hsavmm_area_munmap)"
            }
            _ if self.is_reserved(at) => {
                "is virtual memory: unmap it (hipMemUnmap), and free its addresses (hipMemAddressFree); if it belongs to \
                 a buffer, destroy the buffer (such as hsavmm_paged_destroy)"
            }
            _ => "is not the start of an allocation: not allocated, or freed already",
        };
        problem.to_owned()
    }

    /// Describes an address at which this library has no memory, or only memory of an area.
    pub fn unknown_memory(&self, argument: &str, at: Address) -> Failure {
        let problem = match self.is_reserved(at) {
            true => {
                "is reserved, but not mapped: map memory first (hipMemMap), or, in a buffer, by the buffer's own function \
                 (such as hsavmm_paged_map)"
            }
            false => "is not memory of this library: not allocated, or freed already",
        };
        Failure::invalid_argument(argument, problem)
    }

    fn find_mapping(&self, at: Address) -> Option<MemoryAtAddress> {
        let vmm = self.vmm().ok()?;
        let (start, size) = vmm.mapped_range_at(at)?;
        let device = match vmm.location_at(at) {
            Some(Location::Agent(agent)) => self.devices.number(agent),
            // HIP reports the number in the location that the program passed, usually 0.
            Some(Location::Host | Location::HostNuma(_)) => 0,
            _ => -1,
        };
        Some(MemoryAtAddress::Mapped(start, size, device))
    }

    fn find_in_area(&self, at: Address) -> Option<AreaRange> {
        let AreaPosition { area, start, offset, size, .. } = self.objects.area_at(at)?;
        let range = {
            let mapped = area.mapped();
            // `None` if another thread has unmapped the memory.
            let memory = mapped.memory.get(&start).filter(|_| offset < size)?;
            let owner = self.runtime.agent(memory.owner());
            AreaRange {
                start: Address::new(at.get() - offset),
                size,
                host_start: memory.address(),
                device_start: memory.device_address(),
                device: self.devices.number(memory.device()),
                is_on_host: owner.is_some_and(|agent| agent.kind() == AgentKind::Cpu),
                flags: 0,
                buffer_id: None,
            }
        };
        // `mapped` is unlocked before the list of registered memory is locked, because `hipHostUnregister` locks the
        // list first.
        let registered = self.registered.at(range.host_start);
        Some(AreaRange {
            flags: registered.map_or(0, |found| found.flags),
            buffer_id: registered.map(|found| found.buffer_id),
            ..range
        })
    }

    /// Returns the number that identifies the memory at an address. Mappings of the same handle have the same number.
    fn buffer_id(&self, found: &MemoryAtAddress, at: Address) -> Result<u32, Failure> {
        match found {
            MemoryAtAddress::Allocation(allocation) => Ok(allocation.buffer_id),
            MemoryAtAddress::Opened(entry, _) => Ok(entry.buffer_id),
            MemoryAtAddress::Registered(found) => Ok(found.buffer_id),
            MemoryAtAddress::Mapped(..) => {
                let vmm = self.vmm()?;
                let handle = vmm.retain_allocation_handle(at)?;
                vmm.release(handle)?;
                Ok(self.allocations.buffer_id_of(handle))
            }
            MemoryAtAddress::Area(found) => {
                found.buffer_id.ok_or_else(|| Failure::not_supported("the buffer ID of an area"))
            }
        }
    }
}

impl MemoryAtAddress {
    /// Returns the start and the size of the memory.
    fn range(&self) -> (Address, usize) {
        match self {
            Self::Allocation(allocation) => (allocation.memory.address(), allocation.memory.size()),
            Self::Opened(_, opened) => (opened.address(), opened.size()),
            Self::Registered(found) => (found.start, found.size),
            Self::Mapped(start, size, _) => (*start, *size),
            Self::Area(found) => (found.start, found.size),
        }
    }

    /// Returns the start of the memory: the host's address, if the host and the device have different addresses.
    fn start_for_host(&self) -> Address {
        match self {
            Self::Area(found) if found.is_on_host => found.host_start,
            _ => self.range().0,
        }
    }

    fn attributes(&self, ptr: *const c_void) -> hipPointerAttribute_t {
        let pointer = ptr.cast_mut();
        let on_device = |device| hipPointerAttribute_t {
            kind: MEMORY_DEVICE,
            device,
            device_pointer: pointer,
            ..UNREGISTERED
        };
        let on_host = |kind, device| hipPointerAttribute_t {
            kind,
            host_pointer: pointer,
            ..on_device(device)
        };
        match self {
            Self::Mapped(_, _, device) => on_device(*device),
            Self::Opened(entry, _) => on_device(entry.device),
            Self::Area(found) if found.is_on_host => {
                let offset = pointer as usize - found.start.get();
                let pointer_at = |start: Address| start.as_ptr().wrapping_byte_add(offset);
                hipPointerAttribute_t {
                    device_pointer: pointer_at(found.device_start),
                    host_pointer: pointer_at(found.host_start),
                    allocation_flags: found.flags,
                    ..on_host(MEMORY_HOST, found.device)
                }
            }
            Self::Area(found) => on_device(found.device),
            Self::Registered(found) => hipPointerAttribute_t {
                device_pointer: found.device_pointer,
                allocation_flags: found.flags,
                ..on_host(MEMORY_HOST, found.device)
            },
            Self::Allocation(allocation) => {
                let attributes = match allocation.kind {
                    Kind::Device => on_device(allocation.device),
                    Kind::Host => on_host(MEMORY_HOST, allocation.device),
                    Kind::Managed => hipPointerAttribute_t {
                        is_managed: 1,
                        ..on_host(MEMORY_MANAGED, allocation.device)
                    },
                };
                hipPointerAttribute_t { allocation_flags: allocation.flags, ..attributes }
            }
        }
    }
}

/// The attributes of memory that does not belong to this library.
const UNREGISTERED: hipPointerAttribute_t = hipPointerAttribute_t {
    kind: MEMORY_UNREGISTERED,
    // hipInvalidDeviceId.
    device: -2,
    device_pointer: core::ptr::null_mut(),
    host_pointer: core::ptr::null_mut(),
    is_managed: 0,
    allocation_flags: 0,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerGetAttributes(
    attributes: *mut hipPointerAttribute_t,
    ptr: *const c_void,
) -> hipError_t {
    run("hipPointerGetAttributes", || {
        let process = process()?;
        process.devices.require()?;
        // In HIP 6, null is an error, but any other unknown memory is not. In HIP 7, null is not an error either.
        if profile() == HipProfile::Hip6 {
            not_null("ptr", ptr)?;
        }
        let found = process.find(address(ptr));
        let result = found.map_or(UNREGISTERED, |found| found.attributes(ptr));
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("attributes", attributes, result) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerGetAttribute(
    data: *mut c_void,
    attribute: c_uint,
    ptr: *mut c_void,
) -> hipError_t {
    run("hipPointerGetAttribute", || {
        let process = process()?;
        process.devices.require()?;
        not_null("ptr", ptr)?;
        not_null("data", data)?;
        // As in HIP, the call writes a value even if the memory is unknown.
        let found = process.find(address(ptr));
        let result = found.as_ref().map_or(UNREGISTERED, |found| found.attributes(ptr));
        let size = found.as_ref().map_or(0, |found| found.range().1);
        // SAFETY: the C caller passes null or a writable pointer to the type that HIP writes (lib.rs).
        unsafe {
            match attribute {
                // Only the last release of HIP 6, 6.4.2, has CONTEXT. No release of HIP 6 has the other attribute.
                pointer_attribute::CONTEXT | pointer_attribute::IS_LEGACY_HIP_IPC_CAPABLE
                    if profile() == HipProfile::Hip6 =>
                {
                    let what = format!("attribute {attribute} in the profile hip6");
                    Err(Failure::not_supported(what))
                }
                // As in HIP, host memory is an error. Nothing is written then.
                pointer_attribute::CONTEXT
                    if result.kind == MEMORY_DEVICE && result.device >= 0 =>
                {
                    write_out("data", data.cast(), context(result.device))
                }
                pointer_attribute::CONTEXT => {
                    Err(Failure::invalid_argument("ptr", "is not memory of a device"))
                }
                pointer_attribute::BUFFER_ID => {
                    let id = found.as_ref().map(|found| process.buffer_id(found, address(ptr)));
                    write_out("data", data.cast(), id.transpose()?.unwrap_or(0))
                }
                // As in HIP, the flags of the allocation. Unknown memory is not an error.
                pointer_attribute::ACCESS_FLAGS => {
                    return write_out("data", data.cast(), result.allocation_flags);
                }
                // As in HIP, only `hipPointerGetAttributes` distinguishes managed memory.
                pointer_attribute::MEMORY_TYPE if result.kind == MEMORY_MANAGED => {
                    write_out("data", data.cast(), MEMORY_HOST)
                }
                pointer_attribute::MEMORY_TYPE => write_out("data", data.cast(), result.kind),
                pointer_attribute::DEVICE_POINTER => {
                    write_out("data", data.cast(), result.device_pointer)
                }
                pointer_attribute::HOST_POINTER => {
                    write_out("data", data.cast(), result.host_pointer)?;
                    match result.host_pointer.is_null() {
                        true => Err(Failure::invalid_argument("ptr", "is not memory of the host")),
                        false => Ok(()),
                    }
                }
                pointer_attribute::SYNC_MEMOPS => {
                    let sync_memops = matches!(&found, Some(MemoryAtAddress::Allocation(found))
                        if found.sync_memops.load(Ordering::Relaxed));
                    write_out("data", data.cast(), sync_memops)
                }
                pointer_attribute::IS_MANAGED => {
                    write_out("data", data.cast::<bool>(), result.is_managed != 0)
                }
                pointer_attribute::DEVICE_ORDINAL => write_out("data", data.cast(), result.device),
                // Whether `hipIpcGetMemHandle` accepts the memory.
                pointer_attribute::IS_LEGACY_HIP_IPC_CAPABLE => {
                    let is_capable = result.kind == MEMORY_DEVICE
                        && !matches!(
                            found,
                            Some(MemoryAtAddress::Mapped(..) | MemoryAtAddress::Opened(..))
                        );
                    write_out("data", data.cast(), c_int::from(is_capable))
                }
                pointer_attribute::RANGE_START_ADDR => {
                    let start =
                        found.as_ref().map_or(Address::NULL, MemoryAtAddress::start_for_host);
                    write_out::<*mut c_void>("data", data.cast(), start.as_ptr())
                }
                // HIP writes the low 32 bits, and programs provide no more space.
                pointer_attribute::RANGE_SIZE => write_out("data", data.cast(), size as u32),
                pointer_attribute::MAPPED => write_out("data", data.cast(), found.is_some()),
                // HIP's other attributes.
                5 | 14 | 15 | 17 => {
                    Err(Failure::not_supported(format_args!("attribute {attribute}")))
                }
                other => Err(Failure::invalid_argument(
                    "attribute",
                    format_args!("({other}) is invalid"),
                )),
            }
        }?;
        found.map(drop).ok_or_else(|| process.unknown_memory("ptr", address(ptr)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerSetAttribute(
    value: *const c_void,
    attribute: c_uint,
    ptr: *mut c_void,
) -> hipError_t {
    run("hipPointerSetAttribute", || {
        let process = process()?;
        process.devices.require()?;
        not_null("ptr", ptr)?;
        not_null("value", value)?;
        if attribute != pointer_attribute::SYNC_MEMOPS {
            let problem = format!("({attribute}) cannot be set");
            return Err(Failure::invalid_argument("attribute", problem));
        }
        // SAFETY: the C caller passes null or a readable pointer to an `unsigned int` (lib.rs).
        let value = unsafe { read("value", value.cast::<c_uint>()) }?;
        if value > 1 {
            let problem = format!("({value}) is neither 0 nor 1");
            return Err(Failure::invalid_argument("value", problem));
        }
        let found = process.find(address(ptr));
        let found = found.ok_or_else(|| Failure {
            code: errors::INVALID_DEVICE_POINTER,
            ..process.unknown_memory("ptr", address(ptr))
        })?;
        if let MemoryAtAddress::Allocation(allocation) = found {
            allocation.sync_memops.store(value == 1, Ordering::Relaxed);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAddressRange(
    base: *mut *mut c_void,
    size: *mut usize,
    ptr: *mut c_void,
) -> hipError_t {
    run("hipMemGetAddressRange", || {
        let process = process()?;
        process.devices.require()?;
        let Some(found) = process.find(address(ptr)) else {
            let unknown = process.unknown_memory("ptr", address(ptr));
            return Err(Failure { code: errors::NOT_FOUND, ..unknown });
        };
        let (start, bytes) = found.range();
        // Either result pointer may be null, as in HIP.
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe {
            write_unless_null(base, start.as_ptr());
            write_unless_null(size, bytes);
        }
        Ok(())
    })
}
