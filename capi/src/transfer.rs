//! Synchronous copies and fills.

use crate::errors;
use crate::memory::{Allocation, Kind};
use crate::objects::{AreaPosition, OpenArea};
use crate::pointers::{address, not_null};
use crate::process::{Process, process};
use crate::status::{Failure, run};
use crate::types::{hipError_t, memcpy_kind};
use core::ffi::{c_int, c_uchar, c_ushort, c_void};
use core::ops::Range;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::area::AreaMemory;
use hsa_vmm::ipc::OpenedMemory;
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Address, AgentId, Error, Vmm};
use std::sync::Arc;

/// The size of the intermediate buffer of a copy.
const BUFFER_SIZE: usize = 4 << 20;

/// Returns whether a copy of a kind ([`memcpy_kind`]) has device memory as its destination and as its source. `None`
/// for `hipMemcpyDefault`.
fn direction(kind: c_int) -> Result<Option<(bool, bool)>, Failure> {
    match kind {
        memcpy_kind::HOST_TO_HOST => Ok(Some((false, false))),
        memcpy_kind::HOST_TO_DEVICE => Ok(Some((true, false))),
        memcpy_kind::DEVICE_TO_HOST => Ok(Some((false, true))),
        memcpy_kind::DEVICE_TO_DEVICE | memcpy_kind::DEVICE_TO_DEVICE_NO_CU => {
            Ok(Some((true, true)))
        }
        memcpy_kind::DEFAULT => Ok(None),
        other => {
            let message = format!("`kind` ({other}) is invalid");
            Err(Failure::new(errors::INVALID_MEMCPY_DIRECTION, message))
        }
    }
}

/// The source or the destination of a copy.
enum Endpoint {
    /// Memory of an area: the start of the memory, and an offset in it.
    Area(Arc<OpenArea>, usize, usize),
    /// Allocated memory, and an offset in it.
    Allocation(Arc<Allocation>, usize),
    /// Opened memory of another process, and an offset in it.
    Opened(Arc<OpenedMemory>, usize),
    /// Addresses in a reservation.
    Mapped(Address),
    /// The program's own memory: its address.
    Program(usize),
}

impl Endpoint {
    /// Finds the memory that contains a range. Fails if the memory contains only a part of the range.
    fn of(process: &Process, argument: &str, at: Address, size: usize) -> Result<Self, Failure> {
        let exceeds_memory =
            || Failure::invalid_argument(argument, "points to fewer bytes of memory than the size");
        let offset_in = |start: Address, total: usize| {
            let offset = at.get() - start.get();
            if total - offset >= size { Ok(offset) } else { Err(exceeds_memory()) }
        };
        let end = at.get().checked_add(size).ok_or_else(exceeds_memory)?;
        if let Some(AreaPosition { area, start, offset, size: total, is_program_memory }) =
            process.objects.area_at(at)
        {
            // The offset may be past the size: memory is mapped in whole granules.
            if total.checked_sub(offset).is_some_and(|rest| rest >= size) {
                return Ok(Self::Area(area, start, offset));
            }
            return if is_program_memory {
                Ok(Self::Program(at.get()))
            } else {
                Err(exceeds_memory())
            };
        }
        if let Some(allocation) = process.allocations.at(at) {
            let offset = offset_in(allocation.memory.address(), allocation.memory.size())?;
            return Ok(Self::Allocation(allocation, offset));
        }
        if let Some((_, opened)) = process.allocations.opened_at(at) {
            let offset = offset_in(opened.address(), opened.size())?;
            return Ok(Self::Opened(opened, offset));
        }
        // Any address in a reservation counts as mapped: the copy itself reports unmapped parts.
        let is_reserved = |at| process.vmm().ok().and_then(|vmm| vmm.reservation_at(at)).is_some();
        let last = Address::new(end - 1);
        if is_reserved(at) {
            return Ok(Self::Mapped(at));
        }
        let allocations = &process.allocations;
        let in_area = process.objects.area_at(last).is_some_and(|found| !found.is_program_memory);
        if in_area
            || is_reserved(last)
            || allocations.at(last).is_some()
            || allocations.opened_at(last).is_some()
        {
            return Err(exceeds_memory());
        }
        Ok(Self::Program(at.get()))
    }

    /// Returns whether a copy's kind may declare this memory as device memory (`as_device`) or as host
    /// memory. Memory that both the host and a device can access may be declared as either.
    fn may_be_declared(&self, as_device: bool) -> bool {
        match self {
            Self::Area(area, ..) => area.is_shared_with_host() || as_device,
            Self::Allocation(allocation, _) => allocation.kind != Kind::Device || as_device,
            Self::Opened(..) | Self::Mapped(_) => as_device,
            Self::Program(_) => !as_device,
        }
    }

    /// Rejects memory that a copy's kind may not declare as device memory (`as_device`) or as host memory.
    fn check_declared(&self, argument: &str, as_device: bool) -> Result<(), Failure> {
        if self.may_be_declared(as_device) {
            return Ok(());
        }
        Err(match self {
            // Freed memory is unknown to the library, like memory of the program.
            Self::Program(_) => Failure::invalid_argument(
                argument,
                "contradicts `kind`: it is not device memory (not allocated, or freed already)",
            ),
            _ => Failure::invalid_argument(argument, "contradicts `kind` (device or host memory)"),
        })
    }

    /// Returns an address for comparisons of two ranges of the same memory. Memory of an area may have different
    /// addresses for the host and the device. This function returns the same address for both.
    fn comparison_address(&self, at: usize) -> usize {
        match self {
            Self::Area(_, start, offset) => start + offset,
            _ => at,
        }
    }

    /// Copies from this memory, from `offset` on.
    ///
    /// # Safety
    /// Memory of the program itself must be readable: `bytes.len()` bytes from `offset` on.
    unsafe fn read(
        &self,
        process: &Process,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Failure> {
        match self {
            Self::Area(area, start, within) => {
                with_area_memory(area, *start, |memory| memory.read(within + offset, bytes))
            }
            Self::Allocation(allocation, start) => {
                Ok(allocation.memory.read(start + offset, bytes)?)
            }
            Self::Opened(opened, start) => Ok(opened.read(start + offset, bytes)?),
            Self::Mapped(start) => {
                let range = (Address::new(start.get() + offset), bytes.len());
                let copy_part = |vmm: &Vmm, agent: Option<AgentId>, at, part: Range<usize>| {
                    let bytes = &mut bytes[part];
                    match agent {
                        Some(agent) => vmm.copy_to_host(agent, bytes, at),
                        None => vmm.read(at, bytes),
                    }
                };
                for_each_mapping(process.vmm()?, Access::Read, range, copy_part)
            }
            Self::Program(start) => {
                let source = (start + offset) as *const u8;
                // SAFETY: the caller guarantees that the memory is readable. `bytes` is this library's buffer, so the
                // ranges do not overlap.
                unsafe { core::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
                Ok(())
            }
        }
    }

    /// Copies to this memory, from `offset` on.
    ///
    /// # Safety
    /// Memory of the program itself must be writable: `bytes.len()` bytes from `offset` on.
    unsafe fn write(&self, process: &Process, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Area(area, start, within) => {
                with_area_memory(area, *start, |memory| memory.write(within + offset, bytes))
            }
            Self::Allocation(allocation, start) => {
                Ok(allocation.memory.write(start + offset, bytes)?)
            }
            Self::Opened(opened, start) => Ok(opened.write(start + offset, bytes)?),
            Self::Mapped(start) => {
                let range = (Address::new(start.get() + offset), bytes.len());
                let copy_part = |vmm: &Vmm, agent: Option<AgentId>, at, part: Range<usize>| {
                    let bytes = &bytes[part];
                    match agent {
                        Some(agent) => vmm.copy_from_host(agent, at, bytes),
                        None => vmm.write(at, bytes),
                    }
                };
                for_each_mapping(process.vmm()?, Access::ReadWrite, range, copy_part)
            }
            Self::Program(start) => {
                let destination = (start + offset) as *mut u8;
                // SAFETY: the caller guarantees that the memory is writable. `bytes` is this library's buffer, so the
                // ranges do not overlap.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), destination, bytes.len()) };
                Ok(())
            }
        }
    }
}

/// Runs a function on memory of an area. No other thread can unmap the memory during the call.
fn with_area_memory(
    area: &OpenArea,
    start: usize,
    act: impl FnOnce(&AreaMemory<'static>) -> Result<(), Error>,
) -> Result<(), Failure> {
    let mapped = area.mapped();
    let Some(memory) = mapped.memory.get(&start) else {
        let message = format!("{} was unmapped by another thread", Address::new(start));
        return Err(Failure::invalid_argument("address", message));
    };
    Ok(act(memory)?)
}

/// Runs a function for each mapping in a range. The function gets the agent that must copy: the owner of the memory if
/// the owner has the needed access, else another GPU with this access. If no agent has this access, the function gets
/// `None`, and the CPU must copy.
///
/// One copy may span mappings of several devices, each accessible to its own device only.
fn for_each_mapping(
    vmm: &Vmm,
    needed: Access,
    (start, size): (Address, usize),
    mut act: impl FnMut(&Vmm, Option<AgentId>, Address, Range<usize>) -> Result<(), Error>,
) -> Result<(), Failure> {
    let mut done = 0;
    while done < size {
        let at = Address::new(start.get() + done);
        let Some(mapping) = vmm.mapping_at(at) else {
            return Err(Failure::invalid_argument("address", format_args!("{at} is not mapped")));
        };
        let rest = mapping.address.get() + mapping.size - at.get();
        let part = done..size.min(done + rest);
        let is_gpu = |agent: AgentId| {
            vmm.runtime().agent(agent).is_some_and(|agent| agent.kind() == AgentKind::Gpu)
        };
        let owner = match vmm.location_at(at) {
            Some(Location::Agent(agent)) => Some(agent),
            _ => None,
        };
        let permitted: Vec<AgentId> = mapping
            .access
            .iter()
            .filter(|(_, access)| *access >= needed)
            .map(|(agent, _)| *agent)
            .collect();
        let agent = owner
            .filter(|owner| permitted.contains(owner))
            .or_else(|| permitted.iter().copied().find(|agent| is_gpu(*agent)));
        done = part.end;
        act(vmm, agent, at, part)?;
    }
    Ok(())
}

/// Copies memory of any kind.
///
/// # Safety
/// Memory of the program itself must be valid for `size` bytes: readable as the source, writable as the destination.
pub unsafe fn copy(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
    kind: c_int,
) -> Result<(), Failure> {
    let process = process()?;
    process.devices.require()?;
    let direction = direction(kind)?;
    if size == 0 {
        return Ok(());
    }
    not_null("destination", destination)?;
    not_null("source", source)?;
    let to = Endpoint::of(&process, "destination", address(destination), size)?;
    let from = Endpoint::of(&process, "source", address(source), size)?;
    if let Some((to_device, from_device)) = direction {
        to.check_declared("destination", to_device)?;
        from.check_declared("source", from_device)?;
    }
    // If the ranges overlap, the order of the parts ensures that each part is read before it is overwritten.
    let (to_address, from_address) =
        (to.comparison_address(destination as usize), from.comparison_address(source as usize));
    let backwards = to_address > from_address && to_address - from_address < size;
    let mut bytes = vec![0; size.min(BUFFER_SIZE)];
    let count = size.div_ceil(BUFFER_SIZE);
    for index in 0..count {
        let offset = BUFFER_SIZE * if backwards { count - 1 - index } else { index };
        let part = BUFFER_SIZE.min(size - offset);
        // SAFETY: the caller guarantees that the program's own memory is valid.
        unsafe {
            from.read(&process, offset, &mut bytes[..part])?;
            to.write(&process, offset, &bytes[..part])?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpy(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
    kind: c_int,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpy", || unsafe { copy(destination, source, size, kind) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyHtoD(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpyHtoD", || unsafe { copy(destination, source, size, memcpy_kind::HOST_TO_DEVICE) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyDtoH(
    destination: *mut c_void,
    source: *mut c_void,
    size: usize,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpyDtoH", || unsafe { copy(destination, source, size, memcpy_kind::DEVICE_TO_HOST) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyDtoD(
    destination: *mut c_void,
    source: *mut c_void,
    size: usize,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpyDtoD", || unsafe {
        copy(destination, source, size, memcpy_kind::DEVICE_TO_DEVICE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyPeer(
    destination: *mut c_void,
    destination_device: c_int,
    source: *const c_void,
    source_device: c_int,
    size: usize,
) -> hipError_t {
    run("hipMemcpyPeer", || {
        let process = process()?;
        process.devices.agent(destination_device)?;
        process.devices.agent(source_device)?;
        // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
        unsafe { copy(destination, source, size, memcpy_kind::DEVICE_TO_DEVICE) }
    })
}

/// Fills memory with `count` copies of a pattern.
///
/// # Safety
/// If the destination is the program's own memory, it must be writable for `count * pattern.len()` bytes.
pub unsafe fn fill(destination: *mut c_void, pattern: &[u8], count: usize) -> Result<(), Failure> {
    let process = process()?;
    process.devices.require()?;
    if count == 0 {
        return Ok(());
    }
    not_null("destination", destination)?;
    if !(destination as usize).is_multiple_of(pattern.len()) {
        return Err(Failure::invalid_argument(
            "destination",
            "is not aligned to the size of the value",
        ));
    }
    let overflow = || Failure::invalid_argument("count", "exceeds the address space");
    let size = count.checked_mul(pattern.len()).ok_or_else(overflow)?;
    let target = Endpoint::of(&process, "destination", address(destination), size)?;
    if !target.may_be_declared(true) {
        let problem = "is not memory of this library: not allocated, or freed already";
        return Err(Failure::invalid_argument("destination", problem));
    }
    let bytes = pattern.repeat(count.min(BUFFER_SIZE / pattern.len()));
    for offset in (0..size).step_by(bytes.len()) {
        let part = bytes.len().min(size - offset);
        // SAFETY: the caller guarantees that the program's own memory is writable.
        unsafe { target.write(&process, offset, &bytes[..part]) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemset(destination: *mut c_void, value: c_int, size: usize) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `size` bytes (lib.rs).
    run("hipMemset", || unsafe { fill(destination, &[value as u8], size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetD8(
    destination: *mut c_void,
    value: c_uchar,
    count: usize,
) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
    run("hipMemsetD8", || unsafe { fill(destination, &[value], count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetD16(
    destination: *mut c_void,
    value: c_ushort,
    count: usize,
) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
    run("hipMemsetD16", || unsafe { fill(destination, &value.to_ne_bytes(), count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetD32(
    destination: *mut c_void,
    value: c_int,
    count: usize,
) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
    run("hipMemsetD32", || unsafe { fill(destination, &value.to_ne_bytes(), count) })
}
