//! The source and the destination of copies and fills.

use crate::allocations::{Allocation, Kind};
use crate::objects::{AreaPosition, OpenArea};
use crate::process::Process;
use crate::status::Failure;
use core::ops::Range;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::area::AreaMemory;
use hsa_vmm::ipc::OpenedMemory;
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Address, AgentId, Error, Vmm};
use std::sync::Arc;

/// The source or the destination of a copy.
pub enum Endpoint {
    /// Memory of an area: the start of the memory, and an offset in it.
    Area(Arc<OpenArea>, usize, usize),
    /// Allocated memory, and an offset in it.
    Allocation(Arc<Allocation>, usize),
    /// Opened memory of another process, and an offset in it.
    Opened(Arc<OpenedMemory>, usize),
    /// Mapped memory.
    Mapped(Vec<Part>),
    /// The program's own memory: its address.
    Program(usize),
}

/// The part of a source or a destination in one mapping.
pub struct Part {
    /// The agent that copies. If `None`, the CPU copies.
    agent: Option<AgentId>,
    address: Address,
    /// The position of the part in the source or the destination.
    range: Range<usize>,
    /// Whether the memory is memory of the host.
    is_on_host: bool,
}

impl Endpoint {
    /// Finds the memory that contains a range. Fails if the memory contains only a part of the range, or if a part
    /// of the range lacks the needed access.
    pub fn of(
        process: &Process,
        argument: &str,
        (at, size): (Address, usize),
        needed: Access,
    ) -> Result<Self, Failure> {
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
            // The offset can be past the size: memory is mapped in whole granules.
            if total.checked_sub(offset).is_some_and(|rest| rest >= size) {
                return Ok(Self::Area(area, start, offset));
            }
            // Memory of the program that an area maps can continue behind the mapping. A range that begins in
            // registered memory must end there, as in HIP.
            if !is_program_memory || process.registered.at(at).is_some() {
                return Err(exceeds_memory());
            }
        }
        if let Some(allocation) = process.allocations.at(at) {
            let offset = offset_in(allocation.memory.address(), allocation.memory.size())?;
            return Ok(Self::Allocation(allocation, offset));
        }
        if let Some((_, opened)) = process.allocations.opened_at(at) {
            let offset = offset_in(opened.address(), opened.size())?;
            return Ok(Self::Opened(opened, offset));
        }
        if process.is_reserved(at) {
            return Ok(Self::Mapped(mapped_parts(process.vmm()?, argument, (at, size), needed)?));
        }
        if is_library_memory(process, Address::new(end - 1)) {
            return Err(exceeds_memory());
        }
        Ok(Self::Program(at.get()))
    }

    /// Returns whether a copy's kind may declare this memory as device memory (`as_device`) or as host
    /// memory. Memory that both the host and a device can access may be declared as either.
    pub fn may_be_declared(&self, as_device: bool) -> bool {
        match self {
            Self::Area(area, ..) => area.is_shared_with_host() || as_device,
            Self::Allocation(allocation, _) => allocation.kind != Kind::Device || as_device,
            Self::Mapped(parts) => as_device || parts.iter().all(|part| part.is_on_host),
            Self::Opened(..) => as_device,
            Self::Program(_) => !as_device,
        }
    }

    /// Rejects memory that a copy's kind may not declare as device memory (`as_device`) or as host memory.
    pub fn check_declared(&self, argument: &str, as_device: bool) -> Result<(), Failure> {
        if self.may_be_declared(as_device) {
            return Ok(());
        }
        Err(match self {
            // Freed memory is unknown to the library, like memory of the program.
            Self::Program(_) => Failure::invalid_argument(
                argument,
                "contradicts `kind`: it is not device memory (not allocated, or freed already)",
            ),
            _ => Failure::invalid_argument(argument, "contradicts `kind`: it is device memory"),
        })
    }

    /// Returns an address for comparisons of two ranges of the same memory. A byte of an area can have one address for
    /// the host and another for the device. This function returns the same address for both.
    pub fn comparison_address(&self, at: usize) -> usize {
        match self {
            Self::Area(_, start, offset) => start + offset,
            _ => at,
        }
    }

    /// Copies `bytes.len()` bytes of this memory, from `offset` on, to `bytes`.
    ///
    /// # Safety
    /// If this is the program's own memory, these bytes must be readable.
    pub unsafe fn read(
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
            Self::Mapped(parts) => {
                let vmm = process.vmm()?;
                for (agent, at, range) in parts_in(parts, offset..offset + bytes.len()) {
                    match agent {
                        Some(agent) => vmm.copy_to_host(agent, &mut bytes[range], at),
                        None => vmm.read(at, &mut bytes[range]),
                    }?;
                }
                Ok(())
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

    /// Copies `bytes` to this memory, from `offset` on.
    ///
    /// # Safety
    /// If this is the program's own memory, `bytes.len()` bytes from `offset` on must be writable.
    pub unsafe fn write(
        &self,
        process: &Process,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        match self {
            Self::Area(area, start, within) => {
                with_area_memory(area, *start, |memory| memory.write(within + offset, bytes))
            }
            Self::Allocation(allocation, start) => {
                Ok(allocation.memory.write(start + offset, bytes)?)
            }
            Self::Opened(opened, start) => Ok(opened.write(start + offset, bytes)?),
            Self::Mapped(parts) => {
                let vmm = process.vmm()?;
                for (agent, at, range) in parts_in(parts, offset..offset + bytes.len()) {
                    match agent {
                        Some(agent) => vmm.copy_from_host(agent, at, &bytes[range]),
                        None => vmm.write(at, &bytes[range]),
                    }?;
                }
                Ok(())
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

/// Returns whether an address belongs to this library: allocated, opened or reserved, or memory of an area that does
/// not map memory of the program.
fn is_library_memory(process: &Process, at: Address) -> bool {
    process.objects.area_at(at).is_some_and(|found| !found.is_program_memory)
        || process.is_reserved(at)
        || process.allocations.at(at).is_some()
        || process.allocations.opened_at(at).is_some()
}

/// Fails if a range overlaps memory of this library, except memory of the program that an area maps. AMD's runtime
/// would lock such memory if the range does not begin at the start of an allocation.
pub fn check_program_memory(
    process: &Process,
    argument: &str,
    range: &Range<usize>,
) -> Result<(), Failure> {
    let overlaps_reservation = || {
        let reservations = process.vmm().map(Vmm::reservations).unwrap_or_default();
        reservations
            .iter()
            .any(|(start, size)| start.get() < range.end && range.start < start.get() + size)
    };
    if process.allocations.overlap(range)
        || process.objects.overlap_area(range)
        || overlaps_reservation()
    {
        return Err(Failure::invalid_argument(argument, MUST_BE_PROGRAM_MEMORY));
    }
    Ok(())
}

pub const MUST_BE_PROGRAM_MEMORY: &str =
    "must be writable memory of the program, and not of hipMalloc, hipHostMalloc or hipMemMap";

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

/// Divides a range into parts, each in one mapping. The agent of a part is the owner of the memory if the owner has the
/// needed access, else another GPU with this access. If only the CPU has this access, the part has no agent.
///
/// One copy may span mappings of several devices, each accessible only to its own device.
fn mapped_parts(
    vmm: &Vmm,
    argument: &str,
    (start, size): (Address, usize),
    needed: Access,
) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    let mut done = 0;
    while done < size {
        let address = Address::new(start.get() + done);
        let Some(mapping) = vmm.mapping_at(address) else {
            let problem = format!("is not mapped at {address}");
            return Err(Failure::invalid_argument(argument, problem));
        };
        let permitted: Vec<AgentId> = mapping
            .access
            .iter()
            .filter(|(_, access)| *access >= needed)
            .map(|(agent, _)| *agent)
            .collect();
        if permitted.is_empty() {
            let (verb, access) = match needed {
                Access::ReadWrite => ("written", "read and write"),
                _ => ("read", "read"),
            };
            // Pages without memory map the zero page, which can only be read.
            let is_readable = mapping.access.iter().any(|(_, access)| *access >= Access::Read);
            let advice = if is_readable {
                "; if it is a page of an HSAVMM_PAGED_ZERO buffer without memory, map it instead \
                 (hsavmm_paged_map)"
            } else {
                ""
            };
            let problem = format!(
                "cannot be {verb} at {address}: neither a GPU nor the host has {access} access; grant it first \
                 (hipMemSetAccess, or the grant function of a buffer){advice}"
            );
            return Err(Failure::invalid_argument(argument, problem));
        }
        let is_gpu = |agent: AgentId| {
            vmm.runtime().agent(agent).is_some_and(|agent| agent.kind() == AgentKind::Gpu)
        };
        let location = vmm.location_at(address);
        let is_on_host = matches!(location, Some(Location::Host | Location::HostNuma(_)));
        let owner = match location {
            Some(Location::Agent(agent)) => Some(agent),
            _ => None,
        };
        let agent = owner
            .filter(|owner| permitted.contains(owner))
            .or_else(|| permitted.iter().copied().find(|agent| is_gpu(*agent)));
        let rest = mapping.address.get() + mapping.size - address.get();
        let range = done..size.min(done + rest);
        done = range.end;
        parts.push(Part { agent, address, range, is_on_host });
    }
    Ok(parts)
}

/// Intersects parts with a range. Returns the agent, the address and the position in `range` of each intersection.
fn parts_in(
    parts: &[Part],
    range: Range<usize>,
) -> impl Iterator<Item = (Option<AgentId>, Address, Range<usize>)> {
    let first = parts.partition_point(|part| part.range.end <= range.start);
    parts[first..].iter().take_while(move |part| part.range.start < range.end).map(move |part| {
        let (start, end) = (part.range.start.max(range.start), part.range.end.min(range.end));
        let address = Address::new(part.address.get() + (start - part.range.start));
        (part.agent, address, start - range.start..end - range.start)
    })
}
