//! Performs the operations of a trace and compares their results.

use super::Rule;
use crate::trace::{Call, Operation, SUCCESS, Trace};
use hsa_vmm::agent::Enforcement;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::{MappingInfo, VmmOptions};
use hsa_vmm::{
    Access, AccessDescriptor, Address, Agent, AgentId, AllocationProperties, Error, Handle,
    Runtime, Vmm,
};
use std::collections::HashMap;

const INVALID_VALUE: &str = "INVALID_VALUE";
const NOT_SUPPORTED: &str = "NOT_SUPPORTED";

/// How the result of a replayed operation compares with the recorded result.
pub(super) enum ReplayOutcome {
    /// The result is the recorded result.
    Agreed,
    /// A rule permits the difference.
    Excused(Rule),
    /// The result differs, and no rule permits the difference.
    Divergent { got: String, why: String },
}

/// The result of a library call: the result's name in traces, and the error's message.
struct LibraryResult {
    name: &'static str,
    message: String,
}

/// The state of a replayed trace: the library, and the objects in the trace's slots.
pub(super) struct State {
    vmm: Vmm,
    gpus: Vec<AgentId>,
    recorded_granule: usize,
    /// The granule of this runtime.
    granule: usize,
    /// The address and size of the reservation in each slot.
    reservations: HashMap<u32, (Address, usize)>,
    handles: HashMap<u32, Handle>,
}

impl State {
    pub fn open(runtime: &Runtime, options: VmmOptions, trace: &Trace) -> Result<Self, Error> {
        // The recorded driver has a separate error for invalid devices, like HIP 7.
        let options = options.with_profile(HipProfile::Hip7);
        let pools = runtime.gpus().filter_map(Agent::vmem_pool);
        Ok(Self {
            vmm: Vmm::open_with(runtime, options)?,
            gpus: runtime
                .gpus()
                .filter(|agent| agent.vmem_pool().is_some())
                .map(Agent::id)
                .collect(),
            recorded_granule: trace.granule,
            granule: pools.map(|pool| pool.granule).max().unwrap_or_default(),
            reservations: HashMap::new(),
            handles: HashMap::new(),
        })
    }

    /// Returns the `Vmm` that has performed the operations.
    pub fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    /// Names a created object after its slot, such as `r1`.
    pub fn name_object(&self, call: &Call) -> Result<(), Error> {
        match *call {
            Call::Reserve { r, .. } => self.reservations.get(&r).map_or(Ok(()), |&(address, _)| {
                self.vmm.name_reservation(address, &format!("r{r}"))
            }),
            Call::Create { h, .. } => self
                .handles
                .get(&h)
                .map_or(Ok(()), |&handle| self.vmm.name_handle(handle, &format!("h{h}"))),
            _ => Ok(()),
        }
    }

    /// Performs an operation and compares its result.
    pub fn perform(&mut self, operation: &Operation) -> ReplayOutcome {
        let expected = operation.result.as_str();
        if let Some(rule) = self.skip_rule(&operation.call, expected) {
            return ReplayOutcome::Excused(rule);
        }
        match operation.call {
            Call::GetAccess { r, offset, device, flags } => {
                let access = self.vmm.get_access(self.agent(device), self.address(r, offset));
                let found = access.as_ref().ok().copied().map(Access::to_bits);
                let outcome = compare(expected, &call_result(access));
                match (outcome, found) {
                    (ReplayOutcome::Agreed, Some(found)) if found != flags => {
                        ReplayOutcome::Divergent {
                            got: SUCCESS.to_owned(),
                            why: format!("the access is {found} and was recorded as {flags}"),
                        }
                    }
                    (outcome, _) => outcome,
                }
            }
            Call::Retain { r, offset, h, same_as } => self.retain(expected, r, offset, h, same_as),
            Call::Unmap { r, offset, size } => {
                let unmapped = call_result(self.vmm.unmap(self.address(r, offset), size));
                if expected == SUCCESS && unmapped.name == INVALID_VALUE {
                    return self.unmap_over_holes(r, offset, size, unmapped);
                }
                compare(expected, &unmapped)
            }
            Call::Map { r, offset, size, h, handle_offset } => {
                let (at, handle) = (self.address(r, offset), self.handle(h));
                let mapped = call_result(self.vmm.map(at, size, handle_offset, handle));
                let is_part = !self.is_whole_handle(h, handle_offset, size);
                if expected == NOT_SUPPORTED && is_part && mapped.name == INVALID_VALUE {
                    return ReplayOutcome::Excused(Rule::PartOfAHandle);
                }
                compare(expected, &mapped)
            }
            Call::Reserve { r, size } => {
                let reserved = self.vmm.address_reserve(size, 0, None);
                if let Ok(address) = reserved {
                    self.reservations.insert(r, (address, size));
                }
                compare(expected, &call_result(reserved))
            }
            Call::Create { h, size, device } => {
                let properties = AllocationProperties::on(self.agent(device));
                let created = self.vmm.create(size, &properties);
                if let Ok(handle) = created {
                    self.handles.insert(h, handle);
                }
                compare(expected, &call_result(created))
            }
            Call::SetAccess { r, offset, size, ref descs } => {
                compare(expected, &self.set_access(self.address(r, offset), size, descs))
            }
            Call::Release { h } => {
                let released = self.vmm.release(self.handle(h));
                if released.is_ok() {
                    self.handles.remove(&h);
                }
                compare(expected, &call_result(released))
            }
            Call::Free { r, size } => {
                let freed = self.vmm.address_free(self.address(r, 0), size);
                if freed.is_ok() {
                    self.reservations.remove(&r);
                }
                compare(expected, &call_result(freed))
            }
        }
    }

    /// Returns whether a mapping can start at an offset in the memory. This is possible if the library controls all
    /// GPUs' page tables.
    fn maps_offsets(&self) -> bool {
        let mut gpus = self.gpus.iter();
        gpus.all(|gpu| self.vmm.enforcement(*gpu) == Some(Enforcement::Enforced))
    }

    /// Returns the rule for which the replay skips an operation; `None` if the replay performs the operation. The
    /// recorded driver rejected a skipped operation, but this runtime would accept it.
    fn skip_rule(&self, call: &Call, expected: &str) -> Option<Rule> {
        // Multiples of this runtime's granule, but not of the recorded granule.
        let is_off_recorded_granule = |numbers: &[usize]| {
            numbers.iter().all(|number| number % self.granule == 0)
                && numbers.iter().any(|number| number % self.recorded_granule != 0)
        };
        let has_finer_granule = expected == INVALID_VALUE && self.granule < self.recorded_granule;
        match *call {
            Call::Map { size, h, handle_offset, .. }
                if expected == NOT_SUPPORTED
                    && (handle_offset == 0 || self.maps_offsets())
                    && self.handle_size(h).is_some_and(|handle_size| {
                        size < handle_size && handle_offset <= handle_size - size
                    }) =>
            {
                Some(Rule::PartOfAHandle)
            }
            Call::Map { offset, size, .. }
                if has_finer_granule && is_off_recorded_granule(&[offset, size]) =>
            {
                Some(Rule::Granule)
            }
            Call::Reserve { size, .. } | Call::Create { size, .. }
                if has_finer_granule && is_off_recorded_granule(&[size]) =>
            {
                Some(Rule::Granule)
            }
            _ => None,
        }
    }

    fn retain(
        &mut self,
        expected: &str,
        r: u32,
        offset: usize,
        h: u32,
        same_as: i64,
    ) -> ReplayOutcome {
        let retained = self.vmm.retain_allocation_handle(self.address(r, offset));
        let found = retained.as_ref().ok().copied();
        let outcome = compare(expected, &call_result(retained));
        let (ReplayOutcome::Agreed, Some(found)) = (&outcome, found) else { return outcome };
        let recorded =
            u32::try_from(same_as).ok().and_then(|slot| self.handles.get(&slot).copied());
        let is_recorded = match recorded {
            Some(handle) => handle == found,
            // The handle must be in no other slot.
            None => same_as < 0 && !self.handles.values().any(|handle| *handle == found),
        };
        self.handles.insert(h, found);
        if is_recorded {
            return outcome;
        }
        let why = format!("the handle {found} differs from the recorded one (slot {same_as})");
        ReplayOutcome::Divergent { got: SUCCESS.to_owned(), why }
    }

    /// Unmaps the mappings in a range with holes. A range that splits a mapping is a divergence.
    fn unmap_over_holes(
        &self,
        r: u32,
        offset: usize,
        size: usize,
        result: LibraryResult,
    ) -> ReplayOutcome {
        let (start, Some(end)) =
            (self.address(r, offset).get(), self.address(r, offset).get().checked_add(size))
        else {
            return divergence(result);
        };
        let reservation = self.reservations.get(&r);
        let is_inside = reservation.is_some_and(|&(base, size)| end <= base.get() + size);
        let bounds =
            |mapping: &MappingInfo| (mapping.address.get(), mapping.address.get() + mapping.size);
        let overlapping: Vec<_> = self
            .vmm
            .mappings()
            .iter()
            .map(bounds)
            .filter(|&(mapping_start, mapping_end)| mapping_start < end && start < mapping_end)
            .collect();
        let is_split = |&(mapping_start, mapping_end): &(usize, usize)| {
            mapping_start < start || end < mapping_end
        };
        if !is_inside || size == 0 || overlapping.iter().any(is_split) {
            return divergence(result);
        }
        for (mapping_start, mapping_end) in overlapping {
            if let Err(error) =
                self.vmm.unmap(Address::new(mapping_start), mapping_end - mapping_start)
            {
                return divergence(call_result::<()>(Err(error)));
            }
        }
        ReplayOutcome::Excused(Rule::UnmapOverHoles)
    }

    fn set_access(&self, at: Address, size: usize, descs: &[(i64, u32)]) -> LibraryResult {
        let mut descriptors = Vec::with_capacity(descs.len());
        for &(device, flags) in descs {
            // The library's type cannot represent an invalid access.
            let Some(access) = Access::from_bits(flags) else {
                let message = format!("{flags} is not a valid access");
                return LibraryResult { name: INVALID_VALUE, message };
            };
            descriptors.push(AccessDescriptor { agent: self.agent(device), access });
        }
        call_result(self.vmm.set_access(at, size, &descriptors))
    }

    /// Returns the GPU with this number, or an identifier that no agent has.
    fn agent(&self, device: i64) -> AgentId {
        let gpu = usize::try_from(device).ok().and_then(|index| self.gpus.get(index).copied());
        gpu.unwrap_or_else(|| {
            let runtime_bits = self.vmm.runtime().host().id().to_bits() >> 32;
            AgentId::from_bits(runtime_bits << 32 | 0x8000_0000 | (device as u64 & 0x7fff_ffff))
        })
    }

    /// Returns an address in a reservation; null for an empty slot.
    fn address(&self, r: u32, offset: usize) -> Address {
        let base = self.reservations.get(&r).map(|(address, _)| *address);
        base.and_then(|base| base.checked_add(offset)).unwrap_or(Address::NULL)
    }

    /// Returns the handle of a slot; the invalid handle 0 for an empty slot.
    fn handle(&self, h: u32) -> Handle {
        self.handles.get(&h).copied().unwrap_or(Handle::from_bits(0))
    }

    fn handle_size(&self, h: u32) -> Option<usize> {
        self.handles.get(&h).and_then(|&handle| self.vmm.allocation_size(handle).ok())
    }

    /// Returns whether a range is the whole handle. An invalid handle counts as whole.
    fn is_whole_handle(&self, h: u32, handle_offset: usize, size: usize) -> bool {
        handle_offset == 0 && self.handle_size(h).is_none_or(|handle_size| handle_size == size)
    }
}

/// Returns the name of a result in traces, and its message.
fn call_result<T>(result: Result<T, Error>) -> LibraryResult {
    match result {
        Ok(_) => LibraryResult { name: SUCCESS, message: "success".to_owned() },
        Err(error) => LibraryResult {
            name: recorded_name(error.hip(HipProfile::Hip7)),
            message: error.to_string(),
        },
    }
}

/// Returns an error's name in traces.
fn recorded_name(error: HipError) -> &'static str {
    match error {
        HipError::InvalidValue => INVALID_VALUE,
        HipError::OutOfMemory => "OUT_OF_MEMORY",
        HipError::NotInitialized => "NOT_INITIALIZED",
        HipError::InvalidDevice => "INVALID_DEVICE",
        HipError::OperatingSystem => "OPERATING_SYSTEM",
        HipError::NotSupported => NOT_SUPPORTED,
        _ => "UNKNOWN",
    }
}

fn compare(expected: &str, result: &LibraryResult) -> ReplayOutcome {
    if result.name == expected {
        return ReplayOutcome::Agreed;
    }
    ReplayOutcome::Divergent { got: result.name.to_owned(), why: result.message.clone() }
}

fn divergence(result: LibraryResult) -> ReplayOutcome {
    ReplayOutcome::Divergent { got: result.name.to_owned(), why: result.message }
}
