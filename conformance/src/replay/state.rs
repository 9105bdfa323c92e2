//! Performs the operations of a trace and compares the verdicts.

use super::Rule;
use crate::trace::{Call, Operation, SUCCESS, Trace};
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::{MappingInfo, VmmOptions};
use hsa_vmm::{
    Access, AccessDescriptor, Address, Agent, AgentId, AllocationProperties, Error, Handle,
    Runtime, Vmm,
};
use std::collections::HashMap;

const INVALID_VALUE: &str = "INVALID_VALUE";
const NOT_SUPPORTED: &str = "NOT_SUPPORTED";

/// The outcome of an operation.
pub(super) enum Outcome {
    Agreed,
    Excused(Rule),
    Divergent { got: String, why: String },
}

/// A verdict of the library and its message.
struct Answer {
    name: &'static str,
    message: String,
}

/// The state of a replayed trace: its slots.
pub(super) struct State {
    vmm: Vmm,
    gpus: Vec<AgentId>,
    recorded_granule: usize,
    granule: usize,
    reservations: HashMap<u32, (Address, usize)>,
    handles: HashMap<u32, Handle>,
}

impl State {
    pub fn open(runtime: &Runtime, trace: &Trace) -> Result<Self, Error> {
        // The recorded driver has a separate error for invalid devices, like HIP 7.
        let options = VmmOptions::new().with_profile(HipProfile::Hip7);
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

    /// Returns the library with all objects.
    pub fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    /// Names the object that an operation has created after its slot.
    pub fn name(&self, call: &Call) -> Result<(), Error> {
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

    /// Performs an operation and compares its verdict.
    pub fn perform(&mut self, operation: &Operation) -> Outcome {
        let expected = operation.result.as_str();
        if let Some(rule) = self.not_performed(&operation.call, expected) {
            return Outcome::Excused(rule);
        }
        match operation.call {
            Call::GetAccess { r, offset, device, flags } => {
                let asked = self.vmm.get_access(self.device(device), self.at(r, offset));
                let found = asked.as_ref().ok().copied().map(Access::to_bits);
                let outcome = agreement(expected, &answer(asked));
                match (outcome, found) {
                    (Outcome::Agreed, Some(found)) if found != flags => Outcome::Divergent {
                        got: SUCCESS.to_owned(),
                        why: format!("the access is {found} and was recorded as {flags}"),
                    },
                    (outcome, _) => outcome,
                }
            }
            Call::Retain { r, offset, h, same_as } => self.retain(expected, r, offset, h, same_as),
            Call::Unmap { r, offset, size } => {
                let unmapped = answer(self.vmm.unmap(self.at(r, offset), size));
                if expected == SUCCESS && unmapped.name == INVALID_VALUE {
                    return self.unmap_over_holes(r, offset, size, unmapped);
                }
                agreement(expected, &unmapped)
            }
            Call::Map { r, offset, size, h, handle_offset } => {
                let (at, handle) = (self.at(r, offset), self.handle(h));
                let mapped = answer(self.vmm.map(at, size, handle_offset, handle));
                let is_part = !self.is_whole(h, handle_offset, size);
                if expected == NOT_SUPPORTED && is_part && mapped.name == INVALID_VALUE {
                    return Outcome::Excused(Rule::PartOfAHandle);
                }
                agreement(expected, &mapped)
            }
            Call::Reserve { r, size } => {
                let reserved = self.vmm.address_reserve(size, 0, None);
                if let Ok(address) = reserved {
                    self.reservations.insert(r, (address, size));
                }
                agreement(expected, &answer(reserved))
            }
            Call::Create { h, size, device } => {
                let properties = AllocationProperties::on(self.device(device));
                let created = self.vmm.create(size, &properties);
                if let Ok(handle) = created {
                    self.handles.insert(h, handle);
                }
                agreement(expected, &answer(created))
            }
            Call::SetAccess { r, offset, size, ref descs } => {
                agreement(expected, &self.set_access(self.at(r, offset), size, descs))
            }
            Call::Release { h } => {
                let released = self.vmm.release(self.handle(h));
                if released.is_ok() {
                    self.handles.remove(&h);
                }
                agreement(expected, &answer(released))
            }
            Call::Free { r, size } => {
                let freed = self.vmm.address_free(self.at(r, 0), size);
                if freed.is_ok() {
                    self.reservations.remove(&r);
                }
                agreement(expected, &answer(freed))
            }
        }
    }

    /// Returns the rule under which an operation is not performed: it would succeed here, but was rejected
    /// when recorded.
    fn not_performed(&self, call: &Call, expected: &str) -> Option<Rule> {
        // Multiples of this runtime's granule, but not of the recorded one.
        let off_granule = |numbers: &[usize]| {
            numbers.iter().all(|number| number % self.granule == 0)
                && numbers.iter().any(|number| number % self.recorded_granule != 0)
        };
        let granule = expected == INVALID_VALUE && self.granule < self.recorded_granule;
        match *call {
            Call::Map { size, h, handle_offset: 0, .. }
                if expected == NOT_SUPPORTED
                    && self.handle_size(h).is_some_and(|all| size < all) =>
            {
                Some(Rule::PartOfAHandle)
            }
            Call::Map { offset, size, .. } if granule && off_granule(&[offset, size]) => {
                Some(Rule::Granule)
            }
            Call::Reserve { size, .. } | Call::Create { size, .. }
                if granule && off_granule(&[size]) =>
            {
                Some(Rule::Granule)
            }
            _ => None,
        }
    }

    fn retain(&mut self, expected: &str, r: u32, offset: usize, h: u32, same_as: i64) -> Outcome {
        let retained = self.vmm.retain_allocation_handle(self.at(r, offset));
        let found = retained.as_ref().ok().copied();
        let outcome = agreement(expected, &answer(retained));
        let (Outcome::Agreed, Some(found)) = (&outcome, found) else { return outcome };
        let named = u32::try_from(same_as).ok().and_then(|slot| self.handles.get(&slot).copied());
        let same = match named {
            Some(handle) => handle == found,
            // The handle must be a new one.
            None => same_as < 0 && !self.handles.values().any(|handle| *handle == found),
        };
        self.handles.insert(h, found);
        if same {
            return outcome;
        }
        let why = format!("the handle {found} is not the same as slot {same_as} says");
        Outcome::Divergent { got: SUCCESS.to_owned(), why }
    }

    /// Unmaps the mappings in a range with holes, unless the range splits one.
    fn unmap_over_holes(&self, r: u32, offset: usize, size: usize, refused: Answer) -> Outcome {
        let (start, Some(end)) =
            (self.at(r, offset).get(), self.at(r, offset).get().checked_add(size))
        else {
            return divergence(refused);
        };
        let reservation = self.reservations.get(&r);
        let inside = reservation.is_some_and(|&(base, whole)| end <= base.get() + whole);
        let bounds =
            |mapping: &MappingInfo| (mapping.address.get(), mapping.address.get() + mapping.size);
        let touched: Vec<_> = self
            .vmm
            .mappings()
            .iter()
            .map(bounds)
            .filter(|&(first, last)| first < end && start < last)
            .collect();
        if !inside || size == 0 || touched.iter().any(|&(first, last)| first < start || end < last)
        {
            return divergence(refused);
        }
        for (first, last) in touched {
            if let Err(error) = self.vmm.unmap(Address::new(first), last - first) {
                return divergence(answer::<()>(Err(error)));
            }
        }
        Outcome::Excused(Rule::UnmapOverHoles)
    }

    fn set_access(&self, at: Address, size: usize, descs: &[(i64, u32)]) -> Answer {
        let mut descriptors = Vec::with_capacity(descs.len());
        for &(device, flags) in descs {
            // The library's type cannot represent an invalid access.
            let Some(access) = Access::from_bits(flags) else {
                let message = format!("{flags} is not a valid access");
                return Answer { name: INVALID_VALUE, message };
            };
            descriptors.push(AccessDescriptor { agent: self.device(device), access });
        }
        answer(self.vmm.set_access(at, size, &descriptors))
    }

    /// Returns the GPU with this number, or an identifier that no agent has.
    fn device(&self, device: i64) -> AgentId {
        let known = usize::try_from(device).ok().and_then(|index| self.gpus.get(index).copied());
        known.unwrap_or_else(|| {
            let runtime = self.vmm.runtime().host().id().to_bits() >> 32;
            AgentId::from_bits(runtime << 32 | 0x8000_0000 | (device as u64 & 0x7fff_ffff))
        })
    }

    /// Returns an address in a reservation; null for an empty slot.
    fn at(&self, r: u32, offset: usize) -> Address {
        let base = self.reservations.get(&r).map(|(address, _)| *address);
        base.and_then(|base| base.checked_add(offset)).unwrap_or(Address::NULL)
    }

    /// Returns the handle of a slot; an invalid one for an empty slot.
    fn handle(&self, h: u32) -> Handle {
        self.handles.get(&h).copied().unwrap_or(Handle::from_bits(0))
    }

    fn handle_size(&self, h: u32) -> Option<usize> {
        self.handles.get(&h).and_then(|&handle| self.vmm.allocation_size(handle).ok())
    }

    fn is_whole(&self, h: u32, handle_offset: usize, size: usize) -> bool {
        handle_offset == 0 && self.handle_size(h).is_none_or(|all| all == size)
    }
}

fn answer<T>(result: Result<T, Error>) -> Answer {
    match result {
        Ok(_) => Answer { name: SUCCESS, message: "success".to_owned() },
        Err(error) => {
            Answer { name: recorded_name(error.hip(HipProfile::Hip7)), message: error.to_string() }
        }
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

fn agreement(expected: &str, answer: &Answer) -> Outcome {
    if answer.name == expected {
        return Outcome::Agreed;
    }
    Outcome::Divergent { got: answer.name.to_owned(), why: answer.message.clone() }
}

fn divergence(answer: Answer) -> Outcome {
    Outcome::Divergent { got: answer.name.to_owned(), why: answer.message }
}
