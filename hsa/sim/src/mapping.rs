//! Mappings of handles at addresses.

use crate::address_space::{self, PAGE};
use crate::agents::Agent;
use crate::instance::{Instance, State};
use crate::physical::has_spare_descriptor;
use crate::status::HsaResult;
use core::ffi::c_void;
use hsa_faults::FaultKind;
use hsa_sys::*;

/// A mapped handle. Its address is the key in [`State::mappings`].
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) size: usize,
    pub(crate) handle: u64,
    /// The offset of the mapping in the memory. 0 if the runtime does not map from an offset.
    pub(crate) offset: usize,
    /// The base of the reservation that contains the mapping.
    pub(crate) reservation: usize,
    /// The agents whose access was set, usually few.
    pub(crate) grants: Vec<Grant>,
}

/// The access of one agent to a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) agent: Agent,
    pub(crate) permission: hsa_access_permission_t,
    /// The number of bytes that a CPU can access. It is less than the mapping's size only because of a defect of 6.1.2.
    pub(crate) extent: usize,
}

impl Mapping {
    pub(crate) fn permission(&self, agent: Agent) -> Option<hsa_access_permission_t> {
        self.grant(agent).map(|grant| grant.permission)
    }

    pub(crate) fn grant(&self, agent: Agent) -> Option<Grant> {
        self.grants.iter().find(|grant| grant.agent == agent).copied()
    }
}

impl State {
    /// Finds the mapping that contains an address. Returns its start and the mapping.
    pub(crate) fn mapping_at(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some((*start, mapping))
    }

    /// Returns the starts of the adjacent mappings from `address` up to at least `end`, and the end
    /// of the last mapping. Fails if no mapping starts at `address`, or if there is a gap.
    pub(crate) fn adjacent(&self, address: usize, end: usize) -> HsaResult<(Vec<usize>, usize)> {
        let mut at = address;
        let mut starts = Vec::new();
        while at < end {
            let mapping = self.mappings.get(&at).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
            starts.push(at);
            at = at.saturating_add(mapping.size);
        }
        Ok((starts, at))
    }
}

/// `hsa_amd_vmem_map`
pub(crate) fn map(
    instance: &Instance,
    address: *mut c_void,
    size: usize,
    offset: usize,
    handle: hsa_amd_vmem_alloc_handle_t,
    flags: u64,
) -> HsaResult {
    const INVALID: hsa_status_t = HSA_STATUS_ERROR_INVALID_ARGUMENT;
    if address.is_null() || size == 0 {
        return Err(INVALID);
    }
    let (behaviour, address) = (instance.behaviour, address.addr());
    if behaviour.rejects_unknown_flags() && flags != 0 {
        return Err(INVALID);
    }
    let offset = if behaviour.maps_from_offset() { offset } else { 0 };
    if behaviour.maps_from_offset() && !(size.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE)) {
        return Err(INVALID);
    }
    let mut state = instance.lock();
    let base = state.reservation_around(behaviour, address, size).ok_or(INVALID)?;
    if state.mapping_at(address).is_some() {
        return Err(INVALID);
    }
    // If the end wraps around, this check passes. If the simulated runtime checks the size, the
    // size check below rejects the range.
    let end = address.wrapping_add(size);
    let next = state.mappings.range(address..).next();
    if next.is_some_and(|(start, _)| end > *start) {
        return Err(INVALID);
    }
    let entry = state.handles.get(handle.handle).ok_or(INVALID)?;
    let memory = entry.memory().cloned();
    let end_in_memory = (offset as u64).checked_add(size as u64);
    let fits = entry.size().is_some_and(|size| end_in_memory.is_some_and(|end| end <= size));
    if !fits && behaviour.map_checks_size() {
        return Err(if behaviour.map_too_large_is_invalid_argument() {
            INVALID
        } else {
            HSA_STATUS_ERROR_OUT_OF_RESOURCES
        });
    }
    if behaviour.map_checks_alignment(entry.imported) && !address.is_multiple_of(PAGE) {
        if behaviour.failed_map_keeps_memory() {
            state.leaked_memory.extend(memory);
        }
        return Err(HSA_STATUS_ERROR);
    }
    if behaviour.map_needs_descriptor() && !has_spare_descriptor() {
        return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    }
    let mut grants = Vec::new();
    let reservation = state.reservations.get_mut(&base).ok_or(INVALID)?;
    if behaviour.map_creates_cpu_mapping()
        && let Some(memory) = memory
    {
        // AMD's runtime maps the buffer object without access. In the simulation, registered
        // reservations are already inaccessible.
        if !reservation.is_registered() {
            // SAFETY: the range is in a reservation of this instance, and nothing is mapped there.
            unsafe { address_space::map_none(address, size) }.map_err(|_| HSA_STATUS_ERROR)?;
        }
        let (agent, permission) = (nearest_cpu(instance, memory.owner), HSA_ACCESS_PERMISSION_NONE);
        grants.push(Grant { agent, permission, extent: size });
        // The new mapping replaces the mapping that the last `unmap` left in place.
        reservation.lingering.remove(address..end.next_multiple_of(PAGE));
    }
    reservation.mapping_count += 1;
    let mapping = Mapping { size, handle: handle.handle, offset, reservation: base, grants };
    state.mappings.insert(address, mapping);
    if let Some(handle) = state.handles.get_mut(handle.handle) {
        handle.mapping_count += 1;
    }
    Ok(())
}

fn nearest_cpu(instance: &Instance, owner: Agent) -> Agent {
    match owner {
        Agent::Cpu(_) => owner,
        Agent::Gpu(number) => Agent::Cpu(instance.config.gpus[number].nearest_cpu),
    }
}

/// `hsa_amd_vmem_unmap`
pub(crate) fn unmap(instance: &Instance, address: *mut c_void, size: usize) -> HsaResult {
    if address.is_null() || size == 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let address = address.addr();
    let mut state = instance.lock();
    if instance.behaviour.map_creates_cpu_mapping() {
        state.drop_replaced_memory_sometimes();
    }
    let starts = if instance.behaviour.unmap_accepts_several_mappings() {
        let end = address.checked_add(size).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
        let (starts, last_end) = state.adjacent(address, end)?;
        if last_end != end {
            return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
        }
        starts
    } else {
        let mapping = state.mappings.get(&address).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
        if mapping.size != size {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        vec![address]
    };
    starts.into_iter().try_for_each(|start| unmap_one(instance, &mut state, start))?;
    if instance.behaviour.map_creates_cpu_mapping() {
        // AMD's runtime leaves its mapping of each buffer object in place. The simulation creates one shared mapping
        // only now, so that more mappings can be live than the kernel allows a process to have. If this fails, the
        // memory is freed at once.
        // SAFETY: the range consists of former mappings in a reservation of this instance.
        let _ = unsafe { address_space::map_none_shared(address, size) };
    }
    Ok(())
}

fn unmap_one(instance: &Instance, state: &mut State, start: usize) -> HsaResult {
    let Some(mapping) = state.mappings.get_mut(&start) else { return Ok(()) };
    let mut grants = core::mem::take(&mut mapping.grants);
    if instance.change_call(FaultKind::Half) {
        mapping.grants = grants.split_off(grants.len().div_ceil(2));
        instance.revoke_grants(state, start, grants)?;
        return Err(HSA_STATUS_ERROR);
    }
    instance.revoke_grants(state, start, grants)?;
    let Some(mapping) = state.mappings.remove(&start) else { return Ok(()) };
    let memory = state.handles.get(mapping.handle).and_then(|handle| handle.memory()).cloned();
    if let Some(reservation) = state.reservations.get_mut(&mapping.reservation) {
        if let Some(memory) = memory.filter(|_| instance.behaviour.map_creates_cpu_mapping()) {
            let end = (start + mapping.size).next_multiple_of(PAGE);
            reservation.lingering.insert(start..end, memory);
        }
        // If a hole at the start of a reservation was reserved again, the table contains only the new reservation,
        // which does not count the mappings of the previous one.
        reservation.mapping_count = reservation.mapping_count.saturating_sub(1);
    }
    if let Some(handle) = state.handles.get_mut(mapping.handle) {
        handle.mapping_count -= 1;
        let leaked = handle.memory().filter(|_| instance.has_fault(FaultKind::Leak)).cloned();
        state.leaked_memory.extend(leaked);
    }
    state.remove_if_unused(mapping.handle);
    Ok(())
}
