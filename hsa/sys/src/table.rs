//! The list of all functions of the ABI. From this list, a macro generates the structs of function pointers, the
//! functions that load them, and the names in logs and errors.

use crate::bindings::*;
use core::ffi::{CStr, c_void};
use core::mem::{size_of, transmute_copy};
use core::ptr::NonNull;

/// The name of a function, and whether its group requires it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol {
    /// The C name, for the look-up and the logs.
    pub name: &'static str,
    /// Whether loading the group fails without the function.
    pub required: bool,
}

/// A required function that the library does not export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the library does not export `{0}`")]
pub struct MissingSymbol(pub &'static str);

/// A function that returns the address of a symbol.
pub type Resolver<'a> = dyn FnMut(&CStr) -> Option<NonNull<c_void>> + 'a;

/// Converts the type of an optional function pointer, as bindgen generates it, to the type of the
/// function pointer itself.
pub trait Pointer {
    /// The function pointer itself.
    type Function: Copy;
}
impl<F: Copy> Pointer for Option<F> {
    type Function = F;
}
/// The type of a required function: bindgen's type without `Option`.
pub type Required<F> = <F as Pointer>::Function;

macro_rules! functions {
    (
        $(#[$meta:meta])* $group:ident:
        required { $($(#[$rmeta:meta])* $required:ident: $rtype:ident,)* }
        optional { $($(#[$ometa:meta])* $optional:ident: $otype:ident,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $group {
            $($(#[$rmeta])* pub $required: Required<$rtype>,)*
            $($(#[$ometa])* pub $optional: $otype,)*
        }

        impl $group {
            /// Every function of the group, in the order of the fields.
            pub const SYMBOLS: &'static [Symbol] = &[
                $(Symbol { name: stringify!($required), required: true },)*
                $(Symbol { name: stringify!($optional), required: false },)*
            ];

            /// Looks up every function of the group.
            ///
            /// # Errors
            /// [`MissingSymbol`] names the first missing required function.
            ///
            /// # Safety
            /// For each name, `resolve` must return the address of the C function of that name. The
            /// function must have the type that `include/hsa_abi.h` declares, and must exist for as
            /// long as the table is used.
            pub unsafe fn load(resolve: &mut Resolver<'_>) -> Result<Self, MissingSymbol> {
                Ok(Self {
                    $($required: {
                        let name = concat!(stringify!($required), "\0");
                        let found = look_up(resolve, name)
                            .ok_or(MissingSymbol(stringify!($required)))?;
                        // SAFETY: the caller promises the address and its type.
                        unsafe { function(found) }
                    },)*
                    $($optional: {
                        let name = concat!(stringify!($optional), "\0");
                        // SAFETY: the caller promises the address and its type.
                        look_up(resolve, name).map(|found| unsafe { function(found) })
                    },)*
                })
            }

            /// Returns the name of each optional function, and whether the function is present.
            pub fn optional(&self) -> impl Iterator<Item = (&'static str, bool)> {
                [$((stringify!($optional), self.$optional.is_some()),)*].into_iter()
            }
        }
    };
}

fn look_up(resolve: &mut Resolver<'_>, name: &'static str) -> Option<NonNull<c_void>> {
    CStr::from_bytes_with_nul(name.as_bytes()).ok().and_then(resolve)
}

/// Reads a symbol's address as a function pointer.
///
/// # Safety
/// `F` must be a function pointer type, and `address` the address of a function of that type.
unsafe fn function<F: Copy>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: the sizes are equal (asserted), and the caller promises that `address` is that of a function
    // of type `F`.
    unsafe { transmute_copy(&address) }
}

functions! {
    /// The runtime, its agents and pools, copies, and everything else except virtual memory.
    Core:
    required {
        /// Returns the text of a status.
        hsa_status_string: hsa_status_string_fn,
        /// Starts the runtime, or adds a user to the running runtime.
        hsa_init: hsa_init_fn,
        /// Removes a user. Removing the last user stops the runtime.
        hsa_shut_down: hsa_shut_down_fn,
        /// Reads an attribute of the runtime.
        hsa_system_get_info: hsa_system_get_info_fn,
        /// Calls a callback for each agent.
        hsa_iterate_agents: hsa_iterate_agents_fn,
        /// Reads an attribute of an agent.
        hsa_agent_get_info: hsa_agent_get_info_fn,
        /// Calls a callback for each memory pool of an agent.
        hsa_amd_agent_iterate_memory_pools: hsa_amd_agent_iterate_memory_pools_fn,
        /// Reads an attribute of a pool.
        hsa_amd_memory_pool_get_info: hsa_amd_memory_pool_get_info_fn,
    }
    optional {
        /// Reads how an agent can access a pool.
        hsa_amd_agent_memory_pool_get_info: hsa_amd_agent_memory_pool_get_info_fn,
        /// Calls a callback for each instruction set of an agent.
        hsa_agent_iterate_isas: hsa_agent_iterate_isas_fn,
        /// Reads an attribute of an instruction set.
        hsa_isa_get_info_alt: hsa_isa_get_info_alt_fn,
        /// Allocates from a pool.
        hsa_amd_memory_pool_allocate: hsa_amd_memory_pool_allocate_fn,
        /// Frees an allocation of a pool.
        hsa_amd_memory_pool_free: hsa_amd_memory_pool_free_fn,
        /// Grants agents access to an allocation.
        hsa_amd_agents_allow_access: hsa_amd_agents_allow_access_fn,
        /// Copies memory, and waits until the copy is complete.
        hsa_memory_copy: hsa_memory_copy_fn,
        /// Fills memory with a 32-bit value, and waits until the fill is complete.
        hsa_amd_memory_fill: hsa_amd_memory_fill_fn,
        /// Copies memory in the background.
        hsa_amd_memory_async_copy: hsa_amd_memory_async_copy_fn,
        /// Creates a signal.
        hsa_signal_create: hsa_signal_create_fn,
        /// Destroys a signal.
        hsa_signal_destroy: hsa_signal_destroy_fn,
        /// Reads a signal.
        hsa_signal_load_scacquire: hsa_signal_load_scacquire_fn,
        /// Sets a signal.
        hsa_signal_store_screlease: hsa_signal_store_screlease_fn,
        /// Waits for a signal.
        hsa_signal_wait_scacquire: hsa_signal_wait_scacquire_fn,
        /// Pins host memory for agents.
        hsa_amd_memory_lock: hsa_amd_memory_lock_fn,
        /// Unpins host memory.
        hsa_amd_memory_unlock: hsa_amd_memory_unlock_fn,
        /// Describes an address.
        hsa_amd_pointer_info: hsa_amd_pointer_info_fn,
        /// Creates an IPC handle of an allocation.
        hsa_amd_ipc_memory_create: hsa_amd_ipc_memory_create_fn,
        /// Maps another process's allocation.
        hsa_amd_ipc_memory_attach: hsa_amd_ipc_memory_attach_fn,
        /// Unmaps another process's allocation.
        hsa_amd_ipc_memory_detach: hsa_amd_ipc_memory_detach_fn,
        /// Exports an allocation as a dma-buf.
        hsa_amd_portable_export_dmabuf: hsa_amd_portable_export_dmabuf_fn,
        /// Exports an allocation as a dma-buf, with flags (extension 1.9).
        hsa_amd_portable_export_dmabuf_v2: hsa_amd_portable_export_dmabuf_v2_fn,
        /// Closes an exported dma-buf.
        hsa_amd_portable_close_dmabuf: hsa_amd_portable_close_dmabuf_fn,
        /// Registers a handler of memory faults and other events.
        hsa_amd_register_system_event_handler: hsa_amd_register_system_event_handler_fn,
        /// Sets attributes of shared virtual memory.
        hsa_amd_svm_attributes_set: hsa_amd_svm_attributes_set_fn,
        /// Reads attributes of shared virtual memory.
        hsa_amd_svm_attributes_get: hsa_amd_svm_attributes_get_fn,
    }
}

functions! {
    /// Virtual memory management: ROCm 6.0 (extension 1.4) and later.
    Vmem:
    required {
        /// Reserves a range of addresses.
        hsa_amd_vmem_address_reserve: hsa_amd_vmem_address_reserve_fn,
        /// Frees a range of addresses.
        hsa_amd_vmem_address_free: hsa_amd_vmem_address_free_fn,
        /// Allocates physical memory.
        hsa_amd_vmem_handle_create: hsa_amd_vmem_handle_create_fn,
        /// Drops one reference to physical memory.
        hsa_amd_vmem_handle_release: hsa_amd_vmem_handle_release_fn,
        /// Maps physical memory at an address.
        hsa_amd_vmem_map: hsa_amd_vmem_map_fn,
        /// Unmaps physical memory.
        hsa_amd_vmem_unmap: hsa_amd_vmem_unmap_fn,
        /// Sets the access of agents.
        hsa_amd_vmem_set_access: hsa_amd_vmem_set_access_fn,
        /// Reads the access of an agent.
        hsa_amd_vmem_get_access: hsa_amd_vmem_get_access_fn,
        /// Exports physical memory as a file descriptor.
        hsa_amd_vmem_export_shareable_handle: hsa_amd_vmem_export_shareable_handle_fn,
        /// Imports an exported file descriptor as a handle.
        hsa_amd_vmem_import_shareable_handle: hsa_amd_vmem_import_shareable_handle_fn,
        /// Adds a reference to the memory that is mapped at an address.
        hsa_amd_vmem_retain_alloc_handle: hsa_amd_vmem_retain_alloc_handle_fn,
        /// Returns the pool and the memory type of a handle.
        hsa_amd_vmem_get_alloc_properties_from_handle:
            hsa_amd_vmem_get_alloc_properties_from_handle_fn,
    }
    optional {
        /// Reserves a range of addresses with an alignment (ROCm 6.2, extension 1.6).
        hsa_amd_vmem_address_reserve_align: hsa_amd_vmem_address_reserve_align_fn,
        /// Exports a handle for another machine of the fabric (ROCm 7.14).
        hsa_amd_vmem_export_fabric_handle: hsa_amd_vmem_export_fabric_handle_fn,
        /// Imports a handle from another machine of the fabric (ROCm 7.14).
        hsa_amd_vmem_import_fabric_handle: hsa_amd_vmem_import_fabric_handle_fn,
    }
}

/// All functions of one runtime.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// All functions except virtual memory management.
    pub core: Core,
    /// Virtual memory management, or the first missing function.
    pub vmem: Result<Vmem, MissingSymbol>,
}

impl Table {
    /// Looks up every function.
    ///
    /// # Errors
    /// [`MissingSymbol`] if a required function of [`Core`] is missing. Missing functions of
    /// [`Vmem`] are reported in [`Table::vmem`].
    ///
    /// # Safety
    /// As for [`Core::load`].
    pub unsafe fn load(resolve: &mut Resolver<'_>) -> Result<Self, MissingSymbol> {
        // SAFETY: the caller promises the results of `resolve`.
        let core = unsafe { Core::load(resolve)? };
        // SAFETY: the caller promises the results of `resolve`.
        let vmem = unsafe { Vmem::load(resolve) };
        Ok(Self { core, vmem })
    }
}
