//! The wrappers that replace the runtime's functions. Each wrapper calls the runtime's function, and records the call.

use crate::line::Line;
use crate::recording;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};
use hsa_sys::tools::{AMD_EXT, ApiTable, CORE, FunctionTable, function_index};
use hsa_sys::*;

/// The maximum number of elements of an array that are recorded.
const MAX_ELEMENTS: usize = 1024;

/// Defines the wrappers. An entry has the table of a function, the function's name and parameters,
/// and a block that writes its arguments and results. `$succeeded` is whether the call succeeded.
/// The results of a failed call are not valid.
macro_rules! wrappers {
    ($($table:ident $name:ident($($parameter:ident: $type:ty),*) |$line:ident, $succeeded:ident| $write:block)*) => {
        /// The runtime's functions.
        struct Originals {
            $($name: AtomicPtr<c_void>,)*
        }

        static ORIGINALS: Originals = Originals {
            $($name: AtomicPtr::new(ptr::null_mut()),)*
        };

        $(unsafe extern "C" fn $name($($parameter: $type),*) -> hsa_status_t {
            type Function = unsafe extern "C" fn($($type),*) -> hsa_status_t;
            let original = ORIGINALS.$name.load(Ordering::Acquire);
            // SAFETY: `install` stores the runtime's function of this name, which has this type, before it
            // replaces the function by this wrapper.
            let original = unsafe { transmute::<*mut c_void, Function>(original) };
            #[allow(unused_variables, reason = "some functions have no results")]
            let write = |$line: &mut Line, $succeeded: bool| $write;
            let start = recording::start(stringify!($name), |line| write(line, false));
            // SAFETY: the wrapper has the contract of the function that it replaces.
            let status = unsafe { original($($parameter),*) };
            if let Some(start) = start {
                let succeeded = status == HSA_STATUS_SUCCESS;
                recording::finish(start, stringify!($name), status, |line| write(line, succeeded));
            }
            status
        })*

        /// Replaces the runtime's functions in its tables.
        ///
        /// # Safety
        /// The tables must be those of the runtime, with the versions that `hsa_sys::tools` describes.
        pub(crate) unsafe fn install(table: &ApiTable) {
            $({
                let (functions, table) = wrappers!(@table $table, table);
                let index = function_index(functions, stringify!($name));
                // SAFETY: the caller promises the runtime's tables, which begin with their versions.
                let slot = index.and_then(|index| unsafe { FunctionTable::slot(table, index) });
                let wrapper = $name as *mut c_void;
                if let Some(slot) = slot {
                    // SAFETY: no other thread uses the table, because `hsa_init` has not returned.
                    unsafe {
                        // If the tool is loaded twice, the table already contains the wrapper.
                        if !(*slot).is_null() && *slot != wrapper {
                            ORIGINALS.$name.store(*slot, Ordering::Release);
                            *slot = wrapper;
                        }
                    }
                }
            })*
        }
    };
    (@table core, $table:ident) => { (CORE, $table.core) };
    (@table amd_ext, $table:ident) => { (AMD_EXT, $table.amd_ext) };
}

/// Returns the first elements of an array, at most [`MAX_ELEMENTS`]. Returns no elements if the
/// pointer is null.
///
/// # Safety
/// A pointer other than null must be valid for `count` elements.
unsafe fn elements<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: not null, therefore valid for `count` elements.
    unsafe { slice::from_raw_parts(first, count.min(MAX_ELEMENTS)) }
}

fn write_agents(line: &mut Line, agents: &[hsa_agent_t]) {
    line.list("agents", agents, |line, agent| line.hex_item(agent.handle));
}

/// Writes a result, if the call succeeded.
///
/// # Safety
/// If `succeeded`, the pointer must be null or valid.
unsafe fn write_result<T: Copy>(
    line: &mut Line,
    succeeded: bool,
    result: *const T,
    write: impl FnOnce(&mut Line, T),
) {
    if succeeded && !result.is_null() {
        // SAFETY: not null, therefore valid (`# Safety`).
        write(line, unsafe { *result });
    }
}

/// Writes an address that a call has returned.
///
/// # Safety
/// As for [`write_result`].
unsafe fn write_address(line: &mut Line, succeeded: bool, result: *const *mut c_void) {
    // SAFETY: both functions have the same contract.
    unsafe {
        write_result(line, succeeded, result, |line, value| line.hex("address", value as u64))
    };
}

/// Writes a handle that a call has returned.
///
/// # Safety
/// As for [`write_result`].
unsafe fn write_handle(
    line: &mut Line,
    succeeded: bool,
    result: *const hsa_amd_vmem_alloc_handle_t,
) {
    // SAFETY: both functions have the same contract.
    unsafe {
        write_result(line, succeeded, result, |line, value| line.hex("handle", value.handle))
    };
}

/// Writes a descriptor that a call has returned.
///
/// # Safety
/// As for [`write_result`].
unsafe fn write_descriptor(line: &mut Line, succeeded: bool, result: *const c_int) {
    // SAFETY: both functions have the same contract.
    unsafe { write_result(line, succeeded, result, |line, value| line.signed("fd", value.into())) };
}

// SAFETY, for all blocks: the wrapper's caller keeps the contract of the runtime's function.
wrappers! {
    amd_ext hsa_amd_vmem_address_reserve(address: *mut *mut c_void, size: usize, hint: u64, flags: u64)
    |line, succeeded| {
        line.number("size", size as u64);
        line.hex("hint", hint);
        line.number("flags", flags);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_address(line, succeeded, address) };
    }

    amd_ext hsa_amd_vmem_address_reserve_align(
        address: *mut *mut c_void, size: usize, hint: u64, alignment: u64, flags: u64
    ) |line, succeeded| {
        line.number("size", size as u64);
        line.hex("hint", hint);
        line.number("alignment", alignment);
        line.number("flags", flags);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_address(line, succeeded, address) };
    }

    amd_ext hsa_amd_vmem_address_free(address: *mut c_void, size: usize) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
    }

    amd_ext hsa_amd_vmem_handle_create(
        pool: hsa_amd_memory_pool_t, size: usize, kind: hsa_amd_memory_type_t, flags: u64,
        handle: *mut hsa_amd_vmem_alloc_handle_t
    ) |line, succeeded| {
        line.hex("pool", pool.handle);
        line.number("size", size as u64);
        line.number("type", kind.into());
        line.number("flags", flags);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_handle(line, succeeded, handle) };
    }

    amd_ext hsa_amd_vmem_handle_release(handle: hsa_amd_vmem_alloc_handle_t) |line, succeeded| {
        line.hex("handle", handle.handle);
    }

    amd_ext hsa_amd_vmem_map(
        address: *mut c_void, size: usize, offset: usize, handle: hsa_amd_vmem_alloc_handle_t, flags: u64
    ) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
        line.number("offset", offset as u64);
        line.hex("handle", handle.handle);
        line.number("flags", flags);
    }

    amd_ext hsa_amd_vmem_unmap(address: *mut c_void, size: usize) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
    }

    amd_ext hsa_amd_vmem_set_access(
        address: *mut c_void, size: usize, descriptors: *const hsa_amd_memory_access_desc_t, count: usize
    ) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
        line.number("count", count as u64);
        // SAFETY: the runtime requires `count` descriptors.
        let descriptors = unsafe { elements(descriptors, count) };
        line.list("access", descriptors, |line, descriptor| {
            line.object_item(|line| {
                line.hex("agent", descriptor.agent_handle.handle);
                line.number("permissions", descriptor.permissions.into());
            });
        });
    }

    amd_ext hsa_amd_vmem_get_access(
        address: *mut c_void, permissions: *mut hsa_access_permission_t, agent: hsa_agent_t
    ) |line, succeeded| {
        line.hex("address", address as u64);
        line.hex("agent", agent.handle);
        // SAFETY: the runtime requires a valid result.
        unsafe {
            write_result(line, succeeded, permissions, |line, value| {
                line.number("permissions", value.into());
            });
        }
    }

    amd_ext hsa_amd_vmem_export_shareable_handle(
        descriptor: *mut c_int, handle: hsa_amd_vmem_alloc_handle_t, flags: u64
    ) |line, succeeded| {
        line.hex("handle", handle.handle);
        line.number("flags", flags);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_descriptor(line, succeeded, descriptor) };
    }

    amd_ext hsa_amd_vmem_import_shareable_handle(
        descriptor: c_int, handle: *mut hsa_amd_vmem_alloc_handle_t
    ) |line, succeeded| {
        line.signed("fd", descriptor.into());
        // SAFETY: the runtime requires a valid result.
        unsafe { write_handle(line, succeeded, handle) };
    }

    amd_ext hsa_amd_vmem_retain_alloc_handle(
        handle: *mut hsa_amd_vmem_alloc_handle_t, address: *mut c_void
    ) |line, succeeded| {
        line.hex("address", address as u64);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_handle(line, succeeded, handle) };
    }

    amd_ext hsa_amd_vmem_get_alloc_properties_from_handle(
        handle: hsa_amd_vmem_alloc_handle_t, pool: *mut hsa_amd_memory_pool_t,
        kind: *mut hsa_amd_memory_type_t
    ) |line, succeeded| {
        line.hex("handle", handle.handle);
        // SAFETY: the runtime requires a valid result.
        unsafe {
            write_result(line, succeeded, pool, |line, value| line.hex("pool", value.handle));
            write_result(line, succeeded, kind, |line, value| line.number("type", value.into()));
        }
    }

    amd_ext hsa_amd_memory_pool_allocate(
        pool: hsa_amd_memory_pool_t, size: usize, flags: u32, address: *mut *mut c_void
    ) |line, succeeded| {
        line.hex("pool", pool.handle);
        line.number("size", size as u64);
        line.number("flags", flags.into());
        // SAFETY: the runtime requires a valid result.
        unsafe { write_address(line, succeeded, address) };
    }

    amd_ext hsa_amd_memory_pool_free(address: *mut c_void) |line, succeeded| {
        line.hex("address", address as u64);
    }

    core hsa_memory_free(address: *mut c_void) |line, succeeded| {
        line.hex("address", address as u64);
    }

    amd_ext hsa_amd_agents_allow_access(
        count: u32, agents: *const hsa_agent_t, flags: *const u32, address: *const c_void
    ) |line, succeeded| {
        line.hex("address", address as u64);
        // SAFETY: the runtime requires `count` agents.
        write_agents(line, unsafe { elements(agents, count as usize) });
    }

    amd_ext hsa_amd_ipc_memory_create(
        address: *mut c_void, size: usize, handle: *mut hsa_amd_ipc_memory_t
    ) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
    }

    amd_ext hsa_amd_ipc_memory_attach(
        handle: *const hsa_amd_ipc_memory_t, size: usize, count: u32, agents: *const hsa_agent_t,
        address: *mut *mut c_void
    ) |line, succeeded| {
        line.number("size", size as u64);
        // SAFETY: the runtime requires `count` agents, and a valid result.
        unsafe {
            write_agents(line, elements(agents, count as usize));
            write_address(line, succeeded, address);
        }
    }

    amd_ext hsa_amd_ipc_memory_detach(address: *mut c_void) |line, succeeded| {
        line.hex("address", address as u64);
    }

    amd_ext hsa_amd_portable_export_dmabuf(
        address: *const c_void, size: usize, descriptor: *mut c_int, offset: *mut u64
    ) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_descriptor(line, succeeded, descriptor) };
    }

    amd_ext hsa_amd_portable_export_dmabuf_v2(
        address: *const c_void, size: usize, descriptor: *mut c_int, offset: *mut u64, flags: u64
    ) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("size", size as u64);
        line.number("flags", flags);
        // SAFETY: the runtime requires a valid result.
        unsafe { write_descriptor(line, succeeded, descriptor) };
    }

    amd_ext hsa_amd_portable_close_dmabuf(descriptor: c_int) |line, succeeded| {
        line.signed("fd", descriptor.into());
    }

    core hsa_memory_copy(destination: *mut c_void, source: *const c_void, size: usize) |line, succeeded| {
        line.hex("destination", destination as u64);
        line.hex("source", source as u64);
        line.number("size", size as u64);
    }

    amd_ext hsa_amd_memory_fill(address: *mut c_void, value: u32, count: usize) |line, succeeded| {
        line.hex("address", address as u64);
        line.number("value", value.into());
        line.number("count", count as u64);
    }

    amd_ext hsa_amd_memory_async_copy(
        destination: *mut c_void, destination_agent: hsa_agent_t, source: *const c_void,
        source_agent: hsa_agent_t, size: usize, dependency_count: u32,
        dependencies: *const hsa_signal_t, completion: hsa_signal_t
    ) |line, succeeded| {
        line.hex("destination", destination as u64);
        line.hex("source", source as u64);
        line.number("size", size as u64);
    }

    amd_ext hsa_amd_memory_async_copy_on_engine(
        destination: *mut c_void, destination_agent: hsa_agent_t, source: *const c_void,
        source_agent: hsa_agent_t, size: usize, dependency_count: u32,
        dependencies: *const hsa_signal_t, completion: hsa_signal_t, engine: c_int, force: bool
    ) |line, succeeded| {
        line.hex("destination", destination as u64);
        line.hex("source", source as u64);
        line.number("size", size as u64);
    }
}
