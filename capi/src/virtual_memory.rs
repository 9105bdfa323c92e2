//! HIP's calls of virtual memory management, except exports and imports (`shareable.rs`, `ranges.rs`).

use crate::devices::device_error;
use crate::errors;
use crate::pointers::{address, not_null, read, read_each, write_out};
use crate::process::{Process, process};
use crate::status::{Failure, run};
use crate::types::{
    ALLOCATION_PINNED, ALLOCATION_UNCACHED, LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA,
    LOCATION_INVALID, hipError_t, hipMemAccessDesc, hipMemAllocationProp,
    hipMemGenericAllocationHandle_t, hipMemLocation, hipStream_t,
};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use hsa_vmm::agent::AgentKind;
use hsa_vmm::error::{ErrorKind, Operation, Problem};
use hsa_vmm::hip::HipProfile;
use hsa_vmm::vmm::{AllocationKind, Granularity, Location};
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Handle, HandleType, Vmm,
};

pub fn handle(value: hipMemGenericAllocationHandle_t) -> Handle {
    Handle::from_bits(value as u64)
}

pub fn to_raw(handle: Handle) -> hipMemGenericAllocationHandle_t {
    handle.to_bits() as hipMemGenericAllocationHandle_t
}

/// Converts C's properties. Rejects what the profile's release of HIP does not support. `hsa_vmm` makes all other
/// checks.
fn properties(
    process: &Process,
    vmm: &Vmm,
    prop: hipMemAllocationProp,
    device_error: hipError_t,
) -> Result<AllocationProperties, Failure> {
    let kind = match prop.kind {
        ALLOCATION_PINNED => AllocationKind::Pinned,
        ALLOCATION_UNCACHED if vmm.profile() != HipProfile::Hip6 => AllocationKind::Uncached,
        other => {
            return Err(Failure::invalid_argument(
                "prop.type",
                format_args!("({other}) is not supported"),
            ));
        }
    };
    if vmm.profile() == HipProfile::Hip6 && prop.location.kind != LOCATION_DEVICE {
        return Err(Failure::invalid_argument(
            "prop.location.type",
            "must be hipMemLocationTypeDevice",
        ));
    }
    let agent = process.devices.agent_at(&process.runtime, prop.location, device_error)?;
    let location = match prop.location.kind {
        LOCATION_DEVICE => Location::Agent(agent),
        LOCATION_HOST_NUMA => Location::HostNuma(prop.location.id.unsigned_abs()),
        _ => Location::Host,
    };
    let mut properties = AllocationProperties::at(location).of_kind(kind);
    properties.handle_types = HandleType::from_bits_retain(prop.requested_handle_types);
    properties.gpu_direct_rdma = prop.rdma != 0;
    Ok(properties)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemAddressReserve(
    ptr: *mut *mut c_void,
    size: usize,
    alignment: usize,
    near: *mut c_void,
    flags: c_ulonglong,
) -> hipError_t {
    run("hipMemAddressReserve", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("ptr", ptr)?;
        let near = (!near.is_null()).then(|| address(near));
        Operation::AddressReserve.check_flags(flags)?;
        let reserved = vmm.address_reserve(size, alignment, near);
        let is_invalid = reserved.as_ref().is_err_and(|error| error.problem().is_some());
        if !is_invalid {
            let start = reserved.as_ref().map_or(core::ptr::null_mut(), |start| start.as_ptr());
            // As in HIP, writes null if the reservation fails although the arguments are valid.
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_out("ptr", ptr, start) }?;
        }
        Ok(reserved.map(drop)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemAddressFree(ptr: *mut c_void, size: usize) -> hipError_t {
    run("hipMemAddressFree", || Ok(process()?.vmm()?.address_free(address(ptr), size)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemCreate(
    result: *mut hipMemGenericAllocationHandle_t,
    size: usize,
    prop: *const hipMemAllocationProp,
    flags: c_ulonglong,
) -> hipError_t {
    run("hipMemCreate", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("handle", result)?;
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let prop = unsafe { read("prop", prop) }?;
        // As in HIP, checked before the properties, because an invalid device is another error.
        Operation::Create.check_flags(flags)?;
        if size == 0 {
            return Err(Failure::invalid_argument("size", Problem::Zero));
        }
        let mut properties = properties(&process, vmm, prop, device_error(vmm))?;
        let created = vmm.create(size, &properties).or_else(|error| match error.kind() {
            // As in HIP, the flag has no effect where the runtime or the memory does not support it.
            ErrorKind::NotSupported(_) if properties.gpu_direct_rdma => {
                properties.gpu_direct_rdma = false;
                vmm.create(size, &properties)
            }
            _ => Err(error),
        });
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("handle", result, to_raw(created?)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemRelease(raw: hipMemGenericAllocationHandle_t) -> hipError_t {
    run("hipMemRelease", || Ok(process()?.vmm()?.release(handle(raw))?))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemMap(
    ptr: *mut c_void,
    size: usize,
    offset: usize,
    raw: hipMemGenericAllocationHandle_t,
    flags: c_ulonglong,
) -> hipError_t {
    run("hipMemMap", || {
        let process = process()?;
        let vmm = process.vmm()?;
        Operation::Map.check_flags(flags)?;
        Ok(vmm.map(address(ptr), size, offset, handle(raw))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemUnmap(ptr: *mut c_void, size: usize) -> hipError_t {
    run("hipMemUnmap", || Ok(process()?.vmm()?.unmap(address(ptr), size)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemSetAccess(
    ptr: *mut c_void,
    size: usize,
    desc: *const hipMemAccessDesc,
    count: usize,
) -> hipError_t {
    run("hipMemSetAccess", || {
        let process = process()?;
        let vmm = process.vmm()?;
        // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
        let list = unsafe { access_list(&process, desc, count) }?;
        let start = address(ptr);
        // No other hipMemSetAccess for this reservation changes access between reading the host's access and the
        // change.
        let locked = vmm.reservation_at(start).map(|it| (it, process.access_locks.lock(it.0)));
        let settings = locked.as_ref().and_then(|((reservation, reserved), _)| {
            with_host_access(&process, vmm, (start, size), reservation.get() + reserved, &list)
        });
        let Some(settings) = settings else {
            return Ok(vmm.set_access(start, size, &list)?);
        };
        let changes: Vec<_> = settings.iter().map(|it| (it.0, it.1, &it.2[..])).collect();
        Ok(vmm.set_access_many(&changes)?)
    })
}

/// Reads the requested access of each agent.
///
/// # Safety
/// `desc` is null or points to `count` readable descriptors.
pub unsafe fn access_list(
    process: &Process,
    desc: *const hipMemAccessDesc,
    count: usize,
) -> Result<Vec<AccessDescriptor>, Failure> {
    // SAFETY: the caller guarantees `count` descriptors.
    let descriptors = unsafe { read_each("desc", desc, count) }?;
    let mut list = Vec::with_capacity(descriptors.len());
    for descriptor in descriptors {
        let agent = process.devices.agent_at(
            &process.runtime,
            descriptor.location,
            errors::INVALID_VALUE,
        )?;
        let access = Access::from_bits(descriptor.flags).ok_or_else(|| {
            Failure::invalid_argument(
                "desc.flags",
                format_args!("({}) are invalid", descriptor.flags),
            )
        })?;
        list.push(AccessDescriptor { agent, access });
    }
    Ok(list)
}

/// A range, and the access to set in this range.
type AccessSetting = (Address, usize, Vec<AccessDescriptor>);

/// Divides a range of mappings into parts, so that the host gets the same access to all mappings of a part. Returns for
/// each part the access in `list` and, if the host's access changes, the host's new access.
///
/// `reservation_end` is the end of the reservation that contains the start of the range.
///
/// If the caller does not name the host, the host gets the highest access of the devices. In HIP, the host can access
/// devices' memory through the PCI BAR, and programs rely on this access. There is one exception: if the host's access
/// to a mapping differed from the devices' highest access before the call, an earlier call has set it by naming the
/// host. The host then keeps this access.
///
/// Returns `None` if the host keeps its access to the whole range, or if the range is invalid. For an invalid range,
/// `Vmm::set_access` then returns the error.
fn with_host_access(
    process: &Process,
    vmm: &Vmm,
    (start, size): (Address, usize),
    reservation_end: usize,
    list: &[AccessDescriptor],
) -> Option<Vec<AccessSetting>> {
    let runtime = &process.runtime;
    let is_cpu = |agent| runtime.agent(agent).is_some_and(|agent| agent.kind() == AgentKind::Cpu);
    let names_host = list.iter().any(|descriptor| is_cpu(descriptor.agent));
    if list.is_empty() || names_host || !runtime.gpus().all(|gpu| gpu.large_bar) {
        return None;
    }
    let host = runtime.host().id();
    let end = start.get().checked_add(size)?;
    let mut parts: Vec<(Address, usize, Option<Access>)> = Vec::new();
    let mut at = start.get();
    while at < end {
        let mapping = vmm.mapping_at(Address::new(at)).filter(|it| it.address.get() == at)?;
        at += mapping.size;
        let current_access = |agent| {
            let entry = mapping.access.iter().find(|(other, _)| *other == agent);
            entry.map_or(Access::None, |(_, access)| *access)
        };
        let new_access = |agent| {
            let last = list.iter().rev().find(|descriptor| descriptor.agent == agent);
            last.map_or_else(|| current_access(agent), |descriptor| descriptor.access)
        };
        let max_of_gpus = |access: &dyn Fn(AgentId) -> Access| {
            runtime.gpus().map(|gpu| access(gpu.id())).max().unwrap_or(Access::None)
        };
        let old = current_access(host);
        let new = max_of_gpus(&new_access);
        let changed = (old == max_of_gpus(&current_access) && new != old).then_some(new);
        match parts.last_mut() {
            Some((_, part_size, host_access)) if *host_access == changed => {
                *part_size += mapping.size;
            }
            _ => parts.push((mapping.address, mapping.size, changed)),
        }
    }
    let is_whole = at == end && end <= reservation_end;
    let changes_host = parts.iter().any(|(.., changed)| changed.is_some());
    (is_whole && changes_host).then(|| {
        let with_host = |changed: Option<Access>| {
            let of_host = changed.map(|access| AccessDescriptor { agent: host, access });
            list.iter().copied().chain(of_host).collect()
        };
        parts.into_iter().map(|(at, size, changed)| (at, size, with_host(changed))).collect()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const hipMemLocation,
    ptr: *mut c_void,
) -> hipError_t {
    run("hipMemGetAccess", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("flags", flags)?;
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let location = unsafe { read("location", location) }?;
        if location.kind != LOCATION_DEVICE && vmm.profile() == HipProfile::Hip6 {
            return Err(Failure::invalid_argument(
                "location.type",
                "must be hipMemLocationTypeDevice",
            ));
        }
        let agent = process.devices.agent_at(&process.runtime, location, errors::INVALID_VALUE)?;
        let access = vmm.get_access(agent, address(ptr))?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("flags", flags, c_ulonglong::from(access.to_bits())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const hipMemAllocationProp,
    option: c_uint,
) -> hipError_t {
    run("hipMemGetAllocationGranularity", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("granularity", granularity)?;
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let prop = unsafe { read("prop", prop) }?;
        let option = match option {
            0 => Granularity::Minimum,
            1 => Granularity::Recommended,
            other => {
                return Err(Failure::invalid_argument(
                    "option",
                    format_args!("({other}) is invalid"),
                ));
            }
        };
        let properties = properties(&process, vmm, prop, errors::INVALID_VALUE)?;
        let granule = vmm.allocation_granularity(&properties, option)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("granularity", granularity, granule) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAllocationPropertiesFromHandle(
    prop: *mut hipMemAllocationProp,
    raw: hipMemGenericAllocationHandle_t,
) -> hipError_t {
    run("hipMemGetAllocationPropertiesFromHandle", || {
        let process = process()?;
        not_null("prop", prop)?;
        let properties = process.vmm()?.allocation_properties(handle(raw))?;
        let location = match properties.location {
            Location::Agent(agent) => {
                hipMemLocation { kind: LOCATION_DEVICE, id: process.devices.number(agent) }
            }
            Location::Host => hipMemLocation { kind: LOCATION_HOST, id: 0 },
            Location::HostNuma(node) => {
                hipMemLocation { kind: LOCATION_HOST_NUMA, id: c_int::try_from(node).unwrap_or(-1) }
            }
            // The owner of imported memory can be unknown. HIP reports a wrong owner then.
            _ => hipMemLocation { kind: LOCATION_INVALID, id: -1 },
        };
        let result = hipMemAllocationProp {
            kind: match properties.kind {
                AllocationKind::Uncached => ALLOCATION_UNCACHED,
                _ => ALLOCATION_PINNED,
            },
            requested_handle_types: properties.handle_types.bits(),
            location,
            win32_metadata: core::ptr::null_mut(),
            compression: 0,
            rdma: properties.gpu_direct_rdma.into(),
            usage: 0,
        };
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("prop", prop, result) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemRetainAllocationHandle(
    result: *mut hipMemGenericAllocationHandle_t,
    at: *mut c_void,
) -> hipError_t {
    run("hipMemRetainAllocationHandle", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("handle", result)?;
        let found = vmm.retain_allocation_handle(address(at))?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("handle", result, to_raw(found)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemMapArrayAsync(
    list: *mut c_void,
    count: c_uint,
    _stream: hipStream_t,
) -> hipError_t {
    run("hipMemMapArrayAsync", || {
        not_null("list", list)?;
        process()?.vmm()?;
        if count == 0 {
            return Err(Failure::invalid_argument("count", Problem::Zero));
        }
        Err(Failure::not_supported("mapping sparse arrays"))
    })
}
