//! AMD's functions for copies, host memory and allocations that the table of [`Simulation`](crate::Simulation) lacks.

use super::call;
use crate::agents::Agent;
use crate::instance::Instance;
use crate::ipc;
use crate::physical::{self, Memory};
use crate::pool_memory::DeallocationCallback;
use crate::status::{HsaResult, file_error_status, non_null};
use core::ffi::{c_int, c_void};
use hsa_sys::*;
use std::fs::File;
use std::os::fd::BorrowedFd;

type DeallocationFunction = Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>;
type AsyncFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// Returns a bit for each copy engine of the first GPU among two agents: the engines for the host, and for two GPUs
/// also the engines for links. No engine is ever busy.
fn engines(instance: &Instance, agents: [hsa_agent_t; 2]) -> HsaResult<u32> {
    let [destination, source] = [instance.agent(agents[0])?, instance.agent(agents[1])?];
    let (number, peer) = match (destination, source) {
        (Agent::Gpu(number), other) => (number, matches!(other, Agent::Gpu(_))),
        (_, Agent::Gpu(number)) => (number, false),
        _ => return Err(HSA_STATUS_ERROR_INVALID_AGENT),
    };
    let hardware = &instance.config.gpus[number].hardware;
    let count = hardware.copy_engines + if peer { hardware.link_copy_engines } else { 0 };
    Ok(((1u64 << count.min(32)) - 1) as u32)
}

super::exports! {
    hsa_amd_memory_async_copy_on_engine(
        destination: *mut c_void,
        destination_agent: hsa_agent_t,
        source: *const c_void,
        source_agent: hsa_agent_t,
        size: usize,
        dependency_count: u32,
        dependencies: *const hsa_signal_t,
        completion: hsa_signal_t,
        engine: u32,
        _force: bool,
    ) => |instance| {
        // Exactly one engine must be named, and it must exist.
        if !engine.is_power_of_two() || engine & engines(instance, [destination_agent, source_agent])? == 0 {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: both functions have the same contract.
        unsafe {
            crate::copy::copy_async(
                instance,
                destination,
                destination_agent,
                source,
                source_agent,
                size,
                dependency_count,
                dependencies,
                completion,
            )
        }
    };

    hsa_amd_memory_copy_engine_status(
        destination: hsa_agent_t,
        source: hsa_agent_t,
        mask: *mut u32,
    ) => |instance| {
        let found = engines(instance, [destination, source])?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { non_null(mask)?.write(found) };
        Ok(())
    };

    hsa_amd_interop_map_buffer(
        count: u32,
        agents: *mut hsa_agent_t,
        descriptor: c_int,
        _flags: u32,
        size: *mut usize,
        address: *mut *mut c_void,
        metadata_size: *mut usize,
        metadata: *mut *const c_void,
    ) => |instance| {
        let (size, address) = (non_null(size)?, non_null(address)?);
        // SAFETY: the caller promises `count` agents.
        let agents = unsafe { instance.agents_of(agents, count as usize)? };
        let exported = physical::recognise(descriptor);
        let exported = exported.filter(|exported| instance.has_agent(exported.owner));
        let exported = exported.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: the descriptor was just recognised, and is open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        let file = file.map_err(|error| file_error_status(&error))?;
        let length = exported.size as usize;
        let memory = Memory::adopt(exported, File::from(file));
        let start = ipc::attach_memory(instance, memory, length, agents)?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe {
            size.write(length);
            address.write(core::ptr::without_provenance_mut(start));
        }
        // The buffers of the simulation have no metadata.
        if let (Ok(size), Ok(metadata)) = (non_null(metadata_size), non_null(metadata)) {
            // SAFETY: not null, and writable as HSA documents the function.
            unsafe {
                size.write(0);
                metadata.write(core::ptr::null());
            }
        }
        Ok(())
    };

    hsa_amd_interop_unmap_buffer(address: *mut c_void) => |instance| {
        // SAFETY: both functions have the same contract.
        unsafe { ipc::detach(instance, address) }
    };

    // The mask 0 means: no engine is preferred.
    hsa_amd_memory_get_preferred_copy_engine(
        destination: hsa_agent_t,
        source: hsa_agent_t,
        mask: *mut u32,
    ) => |instance| {
        engines(instance, [destination, source])?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { non_null(mask)?.write(0) };
        Ok(())
    };

    hsa_amd_memory_lock_to_pool(
        address: *mut c_void,
        size: usize,
        agents: *mut hsa_agent_t,
        count: c_int,
        pool: hsa_amd_memory_pool_t,
        _flags: u32,
        agent_address: *mut *mut c_void,
    ) => |instance| {
        let pool = instance.pool(pool).ok_or(HSA_STATUS_ERROR_INVALID_MEMORY_POOL)?;
        if let Agent::Gpu(_) = pool.owner {
            return Err(HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
        }
        // SAFETY: both functions have the same contract.
        unsafe { crate::host_memory::lock(instance, address, size, agents, count, agent_address) }
    };

    hsa_amd_pointer_info_set_userdata(address: *const c_void, data: *mut c_void) => |instance| {
        let address = non_null(address.cast_mut())?.addr().get();
        let mut state = instance.lock();
        let start = state.allocation_at(address).map(|(start, _)| start);
        let start = start.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        if let Some(allocation) = state.allocations.get_mut(&start) {
            allocation.caller_data.user_data = data.expose_provenance();
        }
        Ok(())
    };

    hsa_amd_register_deallocation_callback(
        address: *mut c_void,
        callback: DeallocationFunction,
        data: *mut c_void,
    ) => |instance| {
        let address = non_null(address)?.addr().get();
        let function = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        let mut state = instance.lock();
        let start = state.allocation_at(address).map(|(start, _)| start);
        let start = start.ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
        if let Some(allocation) = state.allocations.get_mut(&start) {
            let data = data.expose_provenance();
            allocation.caller_data.deallocation_callbacks.push(DeallocationCallback { function, address, data });
        }
        Ok(())
    };

    hsa_amd_deregister_deallocation_callback(address: *mut c_void, callback: DeallocationFunction) => |instance| {
        let address = non_null(address)?.addr().get();
        let function = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        let mut state = instance.lock();
        let start = state.allocation_at(address).map(|(start, _)| start);
        let allocation = start.and_then(|start| state.allocations.get_mut(&start));
        let callbacks = &mut allocation.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?.caller_data.deallocation_callbacks;
        let matches = |known: &DeallocationCallback| {
            known.address == address && core::ptr::fn_addr_eq(known.function, function)
        };
        let index = callbacks.iter().position(matches).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        callbacks.remove(index);
        Ok(())
    };

    hsa_amd_async_function(function: AsyncFunction, argument: *mut c_void) => |_| {
        let function = function.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        let argument = argument.expose_provenance();
        // SAFETY: the caller must expect the call on any thread, as with AMD's runtime.
        let run = move || unsafe { function(core::ptr::with_exposed_provenance_mut(argument)) };
        crate::thread::spawn("hsa-sim function", run)
    };
}
