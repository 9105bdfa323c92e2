//! Access of agents: entries of GPU page tables, and real mappings for the CPU.

use crate::address_space::{self, PAGE, Protection};
use crate::agents::Agent;
use crate::config::GpuPermissions;
use crate::generation::UnnamedAgents;
use crate::instance::{Instance, State};
use crate::mapping::{Grant, Mapping};
use crate::physical::{Memory, has_spare_descriptor};
use crate::status::{HsaResult, file_error_status, non_null};
use core::ffi::c_void;
use hsa_faults::FaultKind;
use hsa_sys::*;
use std::os::fd::AsFd;
use std::sync::Arc;

pub(crate) type AccessRequest = (Agent, hsa_access_permission_t);

/// `hsa_amd_vmem_set_access`
///
/// # Safety
/// `descriptors` must be null or point at `count` descriptors.
pub(crate) unsafe fn set(
    instance: &Instance,
    address: *mut c_void,
    size: usize,
    descriptors: *const hsa_amd_memory_access_desc_t,
    count: usize,
) -> HsaResult {
    let behaviour = instance.behaviour;
    let rejects_empty = size == 0 && !behaviour.set_access_accepts_empty_range();
    if address.is_null() || rejects_empty || descriptors.is_null() || count == 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let request = |index| {
        // SAFETY: the caller promises `count` descriptors; `read_unaligned` needs no alignment.
        let request = unsafe { descriptors.add(index).read_unaligned() };
        Ok((instance.agent(request.agent_handle)?, request.permissions))
    };
    let requests = (0..count).map(request).collect::<HsaResult<Vec<AccessRequest>>>()?;
    let address = address.addr();
    let mut state = instance.lock();
    let end = address.wrapping_add(size);
    if behaviour.set_access_checks_range() {
        let is_known = |(_, permission): &AccessRequest| *permission <= HSA_ACCESS_PERMISSION_RW;
        if !requests.iter().all(is_known) || end < address {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
    } else {
        let reservation = state.reservation_around(behaviour, address, size);
        reservation.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    }
    // In ROCr, the range can end inside a mapping. The call then changes the whole mapping.
    let (starts, last_end) = state.adjacent(address, end)?;
    if behaviour.set_access_checks_range() && last_end != end {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    if starts.len() > 1 && !behaviour.set_access_accepts_several_mappings() {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    let set = |start| instance.set_access(&mut state, start, size, &requests);
    starts.into_iter().try_for_each(set)
}

impl Instance {
    /// Applies the requests to one mapping, in order. Changes before a failure remain.
    /// `call_size` is the size that the caller passed.
    pub(crate) fn set_access(
        &self,
        state: &mut State,
        start: usize,
        call_size: usize,
        requests: &[AccessRequest],
    ) -> HsaResult {
        let unnamed = self.behaviour.unnamed_agents();
        for &(agent, permission) in requests {
            let mapping = mapping_mut(state, start)?;
            let before = mapping.grant(agent);
            if before.is_some_and(|before| before.permission == permission) {
                continue;
            }
            let covers_mapping = !self.behaviour.limits_cpu_access_to_first_range();
            let extent = if covers_mapping { mapping.size } else { call_size.min(mapping.size) };
            let mut grant = Grant { agent, permission, extent };
            if let Some(before) = before {
                grant.extent = before.extent;
                mapping.grants.retain(|other| other.agent != agent);
                self.revoke_access(state, start, agent, before.permission)?;
            }
            if permission == HSA_ACCESS_PERMISSION_NONE && self.behaviour.permissions_are_exact() {
                continue;
            }
            self.grant_access(state, start, grant, before.is_some())?;
            mapping_mut(state, start)?.grants.push(grant);
            if before.is_some() && unnamed == UnnamedAgents::RevokedOnChange {
                self.revoke_unnamed(state, start, requests)?;
            }
        }
        if unnamed == UnnamedAgents::Revoked {
            self.revoke_unnamed(state, start, requests)?;
        }
        Ok(())
    }

    /// Revokes the access of agents that the requests do not name.
    fn revoke_unnamed(
        &self,
        state: &mut State,
        start: usize,
        requests: &[AccessRequest],
    ) -> HsaResult {
        let named = |agent| requests.iter().any(|(named, _)| *named == agent);
        let grants = &mut mapping_mut(state, start)?.grants;
        let (kept, dropped) = grants.drain(..).partition(|grant| named(grant.agent));
        *grants = kept;
        let dropped: Vec<Grant> = dropped;
        self.revoke_grants(state, start, dropped)
    }

    /// Revokes the access of agents whose grants were removed from a mapping's `grants`. After a failure, adds
    /// the grant to `grants` again and continues.
    pub(crate) fn revoke_grants(
        &self,
        state: &mut State,
        start: usize,
        grants: Vec<Grant>,
    ) -> HsaResult {
        let mut result = Ok(());
        for grant in grants {
            let removed = self.revoke_access(state, start, grant.agent, grant.permission);
            if removed.is_err() {
                mapping_mut(state, start)?.grants.push(grant);
            }
            result = result.and(removed);
        }
        result
    }

    /// Grants an agent access to a mapping. `replaces_grant`: whether the agent had another
    /// permission before.
    fn grant_access(
        &self,
        state: &mut State,
        start: usize,
        Grant { agent, permission, extent }: Grant,
        replaces_grant: bool,
    ) -> HsaResult {
        // Resolves a lazy import.
        let handle = mapping_mut(state, start)?.handle;
        let memory = self.resolve(state, handle).ok_or(HSA_STATUS_ERROR)?;
        let mapping = mapping_mut(state, start)?;
        let Mapping { size, offset, reservation, .. } = *mapping;
        if !start.is_multiple_of(PAGE) || (offset + size) as u64 > memory.size {
            return Err(self.behaviour.not_mappable_status());
        }
        let size = self.affected_size(size.next_multiple_of(PAGE));
        let memory = self.visible_memory(memory);
        let shift = if self.change_call(FaultKind::Shifted) { PAGE } else { 0 };
        match agent {
            Agent::Gpu(gpu) => {
                let peer = memory.owner != agent;
                let owner_was_first = mapping.permission(memory.owner).is_some();
                if peer && !replaces_grant && owner_was_first && self.behaviour.owner_must_be_last()
                {
                    return Err(HSA_STATUS_ERROR);
                }
                if !self.gpu_can_access(gpu, memory.owner) {
                    return Err(HSA_STATUS_ERROR);
                }
                if !replaces_grant
                    && self.behaviour.grant_needs_descriptor()
                    && !has_spare_descriptor()
                {
                    if self.behaviour.grant_without_descriptor_aborts() {
                        eprintln!(
                            "hsa-sim: cannot grant a GPU access: no free file descriptor; AMD's runtime aborts, too"
                        );
                        std::process::abort();
                    }
                    return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
                }
                let permissions = self.gpu_permissions(self.applied_permission(permission));
                let entry = (memory, handle);
                let inserted = state.page_tables[gpu].insert(start, size, entry, permissions);
                inserted.map_err(|_| HSA_STATUS_ERROR)?;
                if offset + shift > 0 {
                    state.page_tables[gpu].set_offset(start, (offset + shift) as u64);
                }
                Ok(())
            }
            Agent::Cpu(_) => {
                let extent = extent.next_multiple_of(PAGE);
                let permission = self.applied_permission(permission);
                let location = (&memory, offset + shift);
                self.map_for_cpu(start, self.affected_size(extent), permission, location)?;
                if let Some(reservation) = state.reservations.get_mut(&reservation) {
                    reservation.holes.remove(start..start + extent);
                }
                Ok(())
            }
        }
    }

    /// Returns the (read, write) permissions of a GPU's page-table entry.
    fn gpu_permissions(&self, permission: hsa_access_permission_t) -> (bool, bool) {
        let mode = match self.behaviour.permissions_are_exact() {
            true => GpuPermissions::Enforced,
            false => self.config.gpu_permissions,
        };
        match (mode, permission) {
            _ if self.change_call(FaultKind::Narrow) => (true, false),
            (GpuPermissions::Recorded, _) | (_, HSA_ACCESS_PERMISSION_RW) => (true, true),
            (_, HSA_ACCESS_PERMISSION_RO) => (true, false),
            (_, HSA_ACCESS_PERMISSION_WO) => (false, true),
            _ => (false, false),
        }
    }

    fn map_for_cpu(
        &self,
        start: usize,
        size: usize,
        permission: hsa_access_permission_t,
        (memory, offset): (&Arc<Memory>, usize),
    ) -> HsaResult {
        let protection = match permission {
            // The CPU cannot reach this memory (no large BAR), so each access must fault.
            _ if !self.cpu_can_access(memory.owner) => Protection::None,
            HSA_ACCESS_PERMISSION_RO => Protection::Read,
            HSA_ACCESS_PERMISSION_WO => Protection::Write,
            HSA_ACCESS_PERMISSION_RW => Protection::ReadWrite,
            _ => Protection::None,
        };
        let file = memory.file().map_err(|error| file_error_status(&error))?;
        // SAFETY: the range is a mapping in a reservation, and the instance owns reserved addresses.
        let mapped =
            unsafe { address_space::map_file(start, size, protection, file.as_fd(), offset) };
        mapped.map_err(|_| HSA_STATUS_ERROR)
    }

    /// Revokes an agent's access to a mapping. The caller updates the mapping's `grants`.
    pub(crate) fn revoke_access(
        &self,
        state: &mut State,
        start: usize,
        agent: Agent,
        permission: hsa_access_permission_t,
    ) -> HsaResult {
        let mapping = mapping_mut(state, start)?;
        let (size, reservation) = (mapping.size.next_multiple_of(PAGE), mapping.reservation);
        let handle = mapping.handle;
        match agent {
            Agent::Gpu(gpu) => state.page_tables[gpu].remove(start),
            Agent::Cpu(_) if self.behaviour.cpu_revocation_leaves_hole() => {
                // SAFETY: the instance owns the range of its mapping. The hole is the simulated defect.
                unsafe { address_space::release(start, size) };
                if let Some(reservation) = state.reservations.get_mut(&reservation) {
                    reservation.holes.insert(start..start + size, ());
                }
            }
            Agent::Cpu(_) if permission != HSA_ACCESS_PERMISSION_NONE => {
                let memory = state.handles.get(handle).and_then(|entry| entry.memory());
                let memory = memory.filter(|_| self.behaviour.cpu_revocation_keeps_memory());
                let file = memory.and_then(|memory| memory.existing_file());
                // SAFETY: the range is a mapping in a reservation, and the instance owns reserved addresses.
                let blocked = unsafe {
                    match file {
                        Some(file) => {
                            address_space::map_file(start, size, Protection::None, file.as_fd(), 0)
                        }
                        None => address_space::map_none(start, size),
                    }
                };
                blocked.map_err(|_| HSA_STATUS_ERROR)?;
            }
            Agent::Cpu(_) => {}
        }
        Ok(())
    }
}

fn mapping_mut(state: &mut State, start: usize) -> HsaResult<&mut Mapping> {
    state.mappings.get_mut(&start).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)
}

/// `hsa_amd_vmem_get_access`
///
/// # Safety
/// `permissions` must be null or writable.
pub(crate) unsafe fn get(
    instance: &Instance,
    address: *mut c_void,
    permissions: *mut hsa_access_permission_t,
    agent: hsa_agent_t,
) -> HsaResult {
    let address = non_null(address)?.addr().get();
    let permissions = non_null(permissions)?;
    let behaviour = instance.behaviour;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { permissions.write(HSA_ACCESS_PERMISSION_NONE) };
    let state = instance.lock();
    // In most generations, the address after a mapping counts as part of the mapping.
    let ending_at_address = || {
        let before = state.mapping_at(address.checked_sub(1)?)?;
        behaviour.get_access_includes_end().then_some(before)
    };
    let found = state.mapping_at(address).or_else(ending_at_address);
    let (_, mapping) = found.ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    let agent = instance.agent(agent)?;
    if matches!(agent, Agent::Cpu(_)) && !behaviour.get_access_supports_cpus() {
        return Err(HSA_STATUS_ERROR_INVALID_AGENT);
    }
    match mapping.permission(agent) {
        // SAFETY: not null, therefore writable (`# Safety`).
        Some(permission) => unsafe { permissions.write(permission) },
        None if behaviour.get_access_rejects_unset_agents() => {
            return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
        }
        None => {}
    }
    Ok(())
}
