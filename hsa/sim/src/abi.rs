//! The C functions, one set for each slot (see `slots`), and their tables.

use crate::generation::Behaviour;
use crate::instance::Instance;
use crate::status::HsaResult;
use crate::{faults, no_op, slots};
use core::ffi::{c_char, c_int, c_void};
use hsa_sys::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(crate) type AgentCallback =
    Option<unsafe extern "C" fn(hsa_agent_t, *mut c_void) -> hsa_status_t>;
pub(crate) type PoolCallback =
    Option<unsafe extern "C" fn(hsa_amd_memory_pool_t, *mut c_void) -> hsa_status_t>;
pub(crate) type IsaCallback = Option<unsafe extern "C" fn(hsa_isa_t, *mut c_void) -> hsa_status_t>;
pub(crate) type Allocate = Option<unsafe extern "C" fn(usize) -> *mut c_void>;

/// Passes all functions of the ABI to the macro `$with`, each with its parameters and the function
/// that implements it.
macro_rules! every_function {
    ($with:path) => { $with! {
        status {
            hsa_status_string(status: hsa_status_t, text: *mut *const c_char) => crate::status::string;
            hsa_init() => crate::instance::init;
            hsa_shut_down() => crate::instance::shut_down;
            hsa_system_get_info(attribute: hsa_system_info_t, value: *mut c_void) => crate::system::info;
            hsa_iterate_agents(callback: AgentCallback, data: *mut c_void) => crate::agents::iterate;
            hsa_agent_get_info(agent: hsa_agent_t, attribute: hsa_agent_info_t, value: *mut c_void) => crate::agent_info::info;
            hsa_agent_iterate_isas(agent: hsa_agent_t, callback: IsaCallback, data: *mut c_void) => crate::isa::iterate;
            hsa_isa_get_info_alt(isa: hsa_isa_t, attribute: hsa_isa_info_t, value: *mut c_void) => crate::isa::info;
            hsa_amd_agent_iterate_memory_pools(agent: hsa_agent_t, callback: PoolCallback, data: *mut c_void) => crate::pools::iterate;
            hsa_amd_memory_pool_get_info(pool: hsa_amd_memory_pool_t, attribute: hsa_amd_memory_pool_info_t, value: *mut c_void) => crate::pools::info;
            hsa_amd_agent_memory_pool_get_info(agent: hsa_agent_t, pool: hsa_amd_memory_pool_t, attribute: hsa_amd_agent_memory_pool_info_t, value: *mut c_void) => crate::links::info;
            hsa_amd_memory_pool_allocate(pool: hsa_amd_memory_pool_t, size: usize, flags: u32, address: *mut *mut c_void) => crate::pool_memory::allocate;
            hsa_amd_memory_pool_free(address: *mut c_void) => crate::pool_memory::free;
            hsa_amd_agents_allow_access(count: u32, agents: *const hsa_agent_t, flags: *const u32, address: *const c_void) => crate::pool_memory::allow_access;
            hsa_signal_create(initial: hsa_signal_value_t, consumer_count: u32, consumers: *const hsa_agent_t, signal: *mut hsa_signal_t) => crate::signal::create;
            hsa_signal_destroy(signal: hsa_signal_t) => crate::signal::destroy;
            hsa_memory_copy(destination: *mut c_void, source: *const c_void, size: usize) => crate::copy::copy;
            hsa_amd_memory_fill(address: *mut c_void, value: u32, count: usize) => crate::copy::fill;
            hsa_amd_memory_async_copy(destination: *mut c_void, destination_agent: hsa_agent_t, source: *const c_void, source_agent: hsa_agent_t, size: usize, dependency_count: u32, dependencies: *const hsa_signal_t, completion: hsa_signal_t) => crate::copy::copy_async;
            hsa_amd_memory_lock(address: *mut c_void, size: usize, agents: *mut hsa_agent_t, count: c_int, agent_address: *mut *mut c_void) => crate::host_memory::lock;
            hsa_amd_memory_unlock(address: *mut c_void) => crate::host_memory::unlock;
            hsa_amd_pointer_info(address: *const c_void, info: *mut hsa_amd_pointer_info_t, allocate: Allocate, count: *mut u32, accessible: *mut *mut hsa_agent_t) => crate::pointer::info;
            hsa_amd_ipc_memory_create(address: *mut c_void, length: usize, handle: *mut hsa_amd_ipc_memory_t) => crate::ipc::create;
            hsa_amd_ipc_memory_attach(handle: *const hsa_amd_ipc_memory_t, length: usize, count: u32, agents: *const hsa_agent_t, address: *mut *mut c_void) => crate::ipc::attach;
            hsa_amd_ipc_memory_detach(address: *mut c_void) => crate::ipc::detach;
            hsa_amd_portable_export_dmabuf(address: *const c_void, size: usize, dmabuf: *mut c_int, offset: *mut u64) => crate::ipc::export_dmabuf;
            hsa_amd_portable_export_dmabuf_v2(address: *const c_void, size: usize, dmabuf: *mut c_int, offset: *mut u64, flags: u64) => crate::ipc::export_dmabuf_v2;
            hsa_amd_portable_close_dmabuf(dmabuf: c_int) => crate::ipc::close_dmabuf;
            hsa_amd_register_system_event_handler(callback: hsa_amd_system_event_callback_t, data: *mut c_void) => crate::events::register;
            hsa_amd_svm_attributes_set(address: *mut c_void, size: usize, attributes: *mut hsa_amd_svm_attribute_pair_t, count: usize) => crate::host_memory::svm;
            hsa_amd_svm_attributes_get(address: *mut c_void, size: usize, attributes: *mut hsa_amd_svm_attribute_pair_t, count: usize) => crate::host_memory::svm;
            hsa_amd_vmem_address_reserve(address: *mut *mut c_void, size: usize, hint: u64, flags: u64) => crate::reservation::reserve;
            hsa_amd_vmem_address_reserve_align(address: *mut *mut c_void, size: usize, hint: u64, alignment: u64, flags: u64) => crate::reservation::reserve_align;
            hsa_amd_vmem_address_free(address: *mut c_void, size: usize) => crate::reservation::free;
            hsa_amd_vmem_handle_create(pool: hsa_amd_memory_pool_t, size: usize, memory_type: hsa_amd_memory_type_t, flags: u64, handle: *mut hsa_amd_vmem_alloc_handle_t) => crate::handles::create;
            hsa_amd_vmem_handle_release(handle: hsa_amd_vmem_alloc_handle_t) => crate::handles::release;
            hsa_amd_vmem_map(address: *mut c_void, size: usize, offset: usize, handle: hsa_amd_vmem_alloc_handle_t, flags: u64) => crate::mapping::map;
            hsa_amd_vmem_unmap(address: *mut c_void, size: usize) => crate::mapping::unmap;
            hsa_amd_vmem_set_access(address: *mut c_void, size: usize, descriptors: *const hsa_amd_memory_access_desc_t, count: usize) => crate::access::set;
            hsa_amd_vmem_get_access(address: *mut c_void, permissions: *mut hsa_access_permission_t, agent: hsa_agent_t) => crate::access::get;
            hsa_amd_vmem_export_shareable_handle(dmabuf: *mut c_int, handle: hsa_amd_vmem_alloc_handle_t, flags: u64) => crate::share::export;
            hsa_amd_vmem_import_shareable_handle(dmabuf: c_int, handle: *mut hsa_amd_vmem_alloc_handle_t) => crate::share::import;
            hsa_amd_vmem_retain_alloc_handle(handle: *mut hsa_amd_vmem_alloc_handle_t, address: *mut c_void) => crate::handles::retain;
            hsa_amd_vmem_get_alloc_properties_from_handle(handle: hsa_amd_vmem_alloc_handle_t, pool: *mut hsa_amd_memory_pool_t, memory_type: *mut hsa_amd_memory_type_t) => crate::handles::properties;
            hsa_amd_vmem_export_fabric_handle(fabric: *mut hsa_fabric_handle_t, handle: hsa_amd_vmem_alloc_handle_t, flags: u64) => crate::fabric::export;
            hsa_amd_vmem_import_fabric_handle(fabric: hsa_fabric_handle_t, handle: *mut hsa_amd_vmem_alloc_handle_t) => crate::fabric::import;
        }
        value {
            hsa_signal_load_scacquire(signal: hsa_signal_t) -> hsa_signal_value_t => crate::signal::load;
            hsa_signal_store_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () => crate::signal::store;
            hsa_signal_wait_scacquire(signal: hsa_signal_t, condition: hsa_signal_condition_t, compare: hsa_signal_value_t, timeout: u64, state: hsa_wait_state_t) -> hsa_signal_value_t => crate::signal::wait;
        }
    } };
}
#[cfg(feature = "export")]
pub(crate) use every_function;

macro_rules! thunks {
    (
        status { $($name:ident($($argument:ident: $type:ty),*) => $body:path;)* }
        value { $($vname:ident($($vargument:ident: $vtype:ty),*) -> $result:ty => $vbody:path;)* }
    ) => {
        /// A function of the ABI, as an index into [`names`]. `hsa_sim_replace_entries` stands for
        /// [`Simulation::replace_entries`].
        ///
        /// [`Simulation::replace_entries`]: crate::Simulation::replace_entries
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Function { $($name,)* hsa_sim_replace_entries, $($vname,)* }

        /// The functions that return a status and support faults. `VALUE_NAMES` contains the other
        /// functions.
        pub(crate) const STATUS_NAMES: &[&str] = &[$(stringify!($name),)* "hsa_sim_replace_entries"];
        const VALUE_NAMES: &[&str] = &[$(stringify!($vname),)*];

        $(
            /// # Safety
            /// As HSA documents the function of this name.
            #[allow(unused_unsafe)] // bodies without pointers are safe
            pub(crate) unsafe extern "C" fn $name<const SLOT: usize>(
                $($argument: $type),*
            ) -> hsa_status_t {
                // SAFETY: this function has the contract of `$body`.
                call(SLOT, Function::$name, move |instance| unsafe { $body(instance, $($argument),*) })
            }
        )*
        $(
            /// # Safety
            /// As HSA documents the function of this name.
            pub(crate) unsafe extern "C" fn $vname<const SLOT: usize>(
                $($vargument: $vtype),*
            ) -> $result {
                let body = |instance: &Arc<Instance>| $vbody(instance, $($vargument),*);
                evaluate(SLOT, Function::$vname, body)
            }
        )*
    };
}
every_function!(thunks);

pub(crate) const FUNCTION_COUNT: usize = STATUS_NAMES.len() + VALUE_NAMES.len();

/// Returns the name of every function, in the order of [`Function`].
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    STATUS_NAMES.iter().chain(VALUE_NAMES).copied()
}

/// Runs a call that returns a status.
pub(crate) fn call(
    slot: usize,
    function: Function,
    body: impl FnOnce(&Arc<Instance>) -> HsaResult + 'static,
) -> hsa_status_t {
    // Unwinding into C is undefined behaviour. The state after a panic is still memory-safe.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let instance = slots::instance(slot)?;
        let _running = instance.track(function);
        match instance.begin_call(function)? {
            None => body(&instance),
            Some(fault) => faults::perform(fault, &instance, Box::new(body)),
        }
    }));
    status_of(result)
}

/// Returns the status of a call that may have panicked.
pub(crate) fn status_of(result: std::thread::Result<HsaResult>) -> hsa_status_t {
    match result {
        Ok(Ok(())) => HSA_STATUS_SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => HSA_STATUS_ERROR_FATAL,
    }
}

/// Runs a call that returns a value. Returns zero if the call cannot run, or panics.
fn evaluate<T: Default>(
    slot: usize,
    function: Function,
    body: impl FnOnce(&Arc<Instance>) -> T,
) -> T {
    let value = catch_unwind(AssertUnwindSafe(|| {
        let instance = slots::instance(slot).ok()?;
        instance.begin_call(function).ok()?;
        Some(body(&instance))
    }));
    value.ok().flatten().unwrap_or_default()
}

const fn core<const SLOT: usize>(extension: u32) -> Core {
    macro_rules! functions {
        ($($required:ident)*; $($optional:ident)*) => {
            Core {
                $($required: $required::<SLOT>,)*
                $($optional: Some($optional::<SLOT>),)*
                hsa_amd_portable_export_dmabuf_v2: if extension >= 9 {
                    Some(hsa_amd_portable_export_dmabuf_v2::<SLOT>)
                } else {
                    None
                },
            }
        };
    }
    functions! {
        hsa_status_string hsa_init hsa_shut_down hsa_system_get_info hsa_iterate_agents
        hsa_agent_get_info hsa_amd_agent_iterate_memory_pools hsa_amd_memory_pool_get_info;
        hsa_amd_agent_memory_pool_get_info hsa_agent_iterate_isas hsa_isa_get_info_alt
        hsa_amd_memory_pool_allocate hsa_amd_memory_pool_free hsa_amd_agents_allow_access
        hsa_memory_copy hsa_amd_memory_fill hsa_amd_memory_async_copy hsa_signal_create
        hsa_signal_destroy hsa_signal_load_scacquire hsa_signal_store_screlease
        hsa_signal_wait_scacquire hsa_amd_memory_lock hsa_amd_memory_unlock hsa_amd_pointer_info
        hsa_amd_ipc_memory_create hsa_amd_ipc_memory_attach hsa_amd_ipc_memory_detach
        hsa_amd_portable_export_dmabuf hsa_amd_portable_close_dmabuf
        hsa_amd_register_system_event_handler hsa_amd_svm_attributes_set
        hsa_amd_svm_attributes_get
    }
}

const fn vmem<const SLOT: usize>(extension: u32) -> Result<Vmem, MissingSymbol> {
    macro_rules! functions {
        ($($required:ident)*; $($from:literal $optional:ident)*) => {
            Vmem {
                $($required: $required::<SLOT>,)*
                $($optional: if extension >= $from { Some($optional::<SLOT>) } else { None },)*
            }
        };
    }
    if extension < 4 {
        return Err(MissingSymbol("hsa_amd_vmem_address_reserve"));
    }
    Ok(functions! {
        hsa_amd_vmem_address_reserve hsa_amd_vmem_address_free hsa_amd_vmem_handle_create
        hsa_amd_vmem_handle_release hsa_amd_vmem_map hsa_amd_vmem_unmap hsa_amd_vmem_set_access
        hsa_amd_vmem_get_access hsa_amd_vmem_export_shareable_handle
        hsa_amd_vmem_import_shareable_handle hsa_amd_vmem_retain_alloc_handle
        hsa_amd_vmem_get_alloc_properties_from_handle;
        6 hsa_amd_vmem_address_reserve_align
        16 hsa_amd_vmem_export_fabric_handle
        16 hsa_amd_vmem_import_fabric_handle
    })
}

/// The extension versions that added functions, oldest first.
const VERSIONS: [u32; 5] = [0, 4, 6, 9, 16];

/// The tables of one slot: for each of [`VERSIONS`], one with real virtual memory, and one with
/// virtual memory that does nothing.
struct Tables {
    real: [Table; VERSIONS.len()],
    no_op: [Table; VERSIONS.len()],
}

const fn tables<const SLOT: usize>() -> Tables {
    macro_rules! for_each_version {
        ($vmem:path; $($index:literal)*) => {
            [$(Table { core: core::<SLOT>(VERSIONS[$index]), vmem: $vmem(VERSIONS[$index]) }),*]
        };
    }
    Tables {
        real: for_each_version!(vmem::<SLOT>; 0 1 2 3 4),
        no_op: for_each_version!(no_op::vmem; 0 1 2 3 4),
    }
}

macro_rules! slots {
    ($($slot:literal)*) => { [$(tables::<$slot>()),*] };
}

static TABLES: [Tables; slots::SLOT_COUNT] = slots! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
};

/// Returns the table of a slot, with the functions that the simulated release exports.
pub(crate) fn table(slot: usize, behaviour: Behaviour, has_no_op_vmem: bool) -> &'static Table {
    let index = VERSIONS.iter().rposition(|added| behaviour.extension >= *added).unwrap_or(0);
    let tables = &TABLES[slot];
    if has_no_op_vmem { &tables.no_op[index] } else { &tables.real[index] }
}
