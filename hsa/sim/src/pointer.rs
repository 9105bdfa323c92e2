//! `pointer_info`: describes addresses.

use crate::abi::Allocate;
use crate::agents::Agent;
use crate::instance::{Instance, State};
use crate::mapping::{Grant, Mapping};
use crate::pool_memory::AllocationKind;
use crate::status::{HsaResult, non_null};
use core::ffi::c_void;
use core::ptr::{null_mut, without_provenance_mut};
use hsa_sys::*;

/// The description of an address, and the agents that can access it.
type Description = (hsa_amd_pointer_info_t, Vec<Agent>);

fn unknown() -> hsa_amd_pointer_info_t {
    hsa_amd_pointer_info_t {
        size: 0,
        type_: HSA_EXT_POINTER_TYPE_UNKNOWN,
        agentBaseAddress: null_mut(),
        hostBaseAddress: null_mut(),
        sizeInBytes: 0,
        userData: null_mut(),
        agentOwner: hsa_agent_t { handle: 0 },
        global_flags: 0,
    }
}

fn describe(instance: &Instance, state: &State, address: usize) -> Description {
    let behaviour = instance.behaviour;
    let ending_at_address = || {
        let before = state.reservation_at(address.checked_sub(1)?)?;
        behaviour.pointer_info_includes_end().then_some(before)
    };
    if let Some((base, reservation)) = state.reservation_at(address).or_else(ending_at_address) {
        let base = without_provenance_mut(base);
        if let Some((start, mapping)) = state.mapping_at(address)
            && behaviour.pointer_info_knows_mappings()
        {
            return describe_mapped(instance, state, (start, address), mapping);
        }
        let mut info = unknown();
        info.sizeInBytes = reservation.size;
        if behaviour.pointer_info_knows_mappings() {
            (info.type_, info.hostBaseAddress) = (HSA_EXT_POINTER_TYPE_RESERVED_ADDR, base);
        } else if behaviour.pointer_info_knows_reservations() {
            (info.type_, info.agentBaseAddress) = (HSA_EXT_POINTER_TYPE_RESERVED_ADDR, base);
            info.agentOwner = instance.agent_handle(Agent::Cpu(0));
        } else {
            (info.agentBaseAddress, info.hostBaseAddress) = (base, base);
            info.agentOwner = instance.agent_handle(Agent::Cpu(0));
        }
        return (info, Vec::new());
    }
    let Some((start, allocation)) = state.allocation_at(address) else {
        return (unknown(), Vec::new());
    };
    let start = without_provenance_mut(start);
    let on_host = instance.cpu_can_access(allocation.owner);
    let info = hsa_amd_pointer_info_t {
        type_: match allocation.kind {
            AllocationKind::Pool => HSA_EXT_POINTER_TYPE_HSA,
            AllocationKind::Attached => HSA_EXT_POINTER_TYPE_IPC,
            AllocationKind::Locked(_) => HSA_EXT_POINTER_TYPE_LOCKED,
        },
        agentBaseAddress: start,
        hostBaseAddress: if on_host { start } else { null_mut() },
        sizeInBytes: allocation.size,
        agentOwner: instance.agent_handle(allocation.owner),
        global_flags: allocation.flags,
        userData: without_provenance_mut(allocation.caller_data.user_data),
        ..unknown()
    };
    let accessible = instance.agents().filter(|agent| allocation.allows(*agent)).collect();
    (info, accessible)
}

/// Describes an address in the mapping at `start`. In ROCr, both base addresses are the queried address, not
/// the start of the mapping.
fn describe_mapped(
    instance: &Instance,
    state: &State,
    (start, address): (usize, usize),
    mapping: &Mapping,
) -> Description {
    let owner = state
        .handles
        .get(mapping.handle)
        .and_then(|handle| handle.memory())
        .map(|memory| memory.owner);
    let permits_access = |grant: &&Grant| grant.permission != HSA_ACCESS_PERMISSION_NONE;
    let granted = mapping.grants.iter().filter(permits_access);
    let granted: Vec<_> = granted.map(|grant| grant.agent).collect();
    let returns_start = instance.behaviour.pointer_info_returns_start();
    let cpu_has_access = granted.iter().any(|agent| matches!(agent, Agent::Cpu(_)));
    let base = without_provenance_mut(if returns_start { start } else { address });
    let info = hsa_amd_pointer_info_t {
        type_: HSA_EXT_POINTER_TYPE_HSA_VMEM,
        agentBaseAddress: base,
        hostBaseAddress: if returns_start && !cpu_has_access { null_mut() } else { base },
        sizeInBytes: mapping.size,
        agentOwner: owner.map_or(hsa_agent_t { handle: 0 }, |owner| instance.agent_handle(owner)),
        ..unknown()
    };
    (info, granted)
}

/// `hsa_amd_pointer_info`
///
/// # Safety
/// `info` must be null or point at a struct whose first field is its size. `count` and `accessible`
/// must be null or writable. `allocate` must be callable.
pub(crate) unsafe fn info(
    instance: &Instance,
    address: *const c_void,
    info: *mut hsa_amd_pointer_info_t,
    allocate: Allocate,
    count: *mut u32,
    accessible: *mut *mut hsa_agent_t,
) -> HsaResult {
    let address = non_null(address.cast_mut())?.addr().get();
    let info = non_null(info)?;
    // SAFETY: not null, and the caller has set the size, which comes first.
    let caller_size = unsafe { info.cast::<u32>().read() };
    if (caller_size as usize) < size_of::<u32>() {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let (mut description, agents) = describe(instance, &instance.lock(), address);
    // The struct of an older caller is shorter. Only the fields that this struct has are written.
    let length = (caller_size as usize).min(size_of::<hsa_amd_pointer_info_t>());
    description.size = length as u32;
    let bytes = core::ptr::from_ref(&description).cast::<u8>();
    // SAFETY: `length` is at most the size of either struct.
    unsafe { core::ptr::copy_nonoverlapping(bytes, info.cast().as_ptr(), length) };
    let (Some(allocate), Ok(count), Ok(accessible)) =
        (allocate, non_null(count), non_null(accessible))
    else {
        return Ok(());
    };
    if description.type_ == HSA_EXT_POINTER_TYPE_UNKNOWN {
        return Ok(());
    }
    // SAFETY: the caller promises that `allocate` is callable; no lock is held.
    let list = unsafe { allocate(agents.len() * size_of::<hsa_agent_t>()) }.cast::<hsa_agent_t>();
    if list.is_null() && !agents.is_empty() {
        return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    }
    for (index, agent) in agents.iter().enumerate() {
        // SAFETY: `allocate` has allocated `agents.len()` elements.
        unsafe { list.add(index).write_unaligned(instance.agent_handle(*agent)) };
    }
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe {
        count.write(agents.len() as u32);
        accessible.write(list);
    }
    Ok(())
}
