//! The tables of function pointers that AMD's runtime gives to tool libraries.
//!
//! The environment variable `HSA_TOOLS_LIB` names tool libraries. `hsa_init` loads each of them and calls its
//! function `OnLoad` ([`OnLoad`]) with an [`ApiTable`]. The runtime's exported functions call through these
//! tables, so a tool that replaces the pointer of a function observes every call of this function in the process.
//!
//! `hsa_api_trace.h` defines the index of each function in AMD's tables, which only grow at the end. The test
//! `tests/layout.rs` compares the indexes with AMD's headers, if installed.

use core::ffi::{c_char, c_void};
use core::mem::size_of;

/// The version of a table: the first member of every table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableVersion {
    /// Changes if the layout changes incompatibly.
    pub major: u32,
    /// The size of the table in bytes.
    pub size: u32,
    /// Changes with each addition.
    pub step: u32,
    /// Unused.
    pub reserved: u32,
}

/// The beginning of AMD's `HsaApiTable`, with pointers to the tables that this module describes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ApiTable {
    /// The version; its major number is [`API_TABLE_MAJOR`].
    pub version: TableVersion,
    /// The functions of the HSA standard. [`CORE`] lists some of them.
    pub core: *mut FunctionTable,
    /// The functions of AMD's extension. [`AMD_EXT`] lists some of them.
    pub amd_ext: *mut FunctionTable,
}

/// A table of functions: AMD's `CoreApiTable` or `AmdExtTable`. The pointers follow the version.
#[repr(C)]
#[derive(Debug)]
pub struct FunctionTable {
    /// The version. Its major number is [`CORE_MAJOR`] or [`AMD_EXT_MAJOR`].
    pub version: TableVersion,
}

/// The major version of [`ApiTable`].
pub const API_TABLE_MAJOR: u32 = 3;
/// The major version of the table to which [`CORE`] refers.
pub const CORE_MAJOR: u32 = 2;
/// The major version of the table to which [`AMD_EXT`] refers.
pub const AMD_EXT_MAJOR: u32 = 2;

/// The type of a tool's function `OnLoad`. The parameters are the tables, the runtime's version, and the number and
/// names of the tools that could not be loaded. The function returns whether the tool stays loaded.
pub type OnLoad = unsafe extern "C" fn(
    table: *mut ApiTable,
    runtime_version: u64,
    failed_tool_count: u64,
    failed_tool_names: *const *const c_char,
) -> bool;

/// Functions of the HSA standard, each with its index in the table.
pub const CORE: &[(&str, usize)] = &[
    ("hsa_system_get_info", 2),
    ("hsa_iterate_agents", 5),
    ("hsa_agent_get_info", 6),
    ("hsa_memory_free", 34),
    ("hsa_memory_copy", 35),
];

/// Functions of AMD's extension, each with its index in the table.
pub const AMD_EXT: &[(&str, usize)] = &[
    ("hsa_amd_memory_pool_get_info", 11),
    ("hsa_amd_agent_iterate_memory_pools", 12),
    ("hsa_amd_memory_pool_allocate", 13),
    ("hsa_amd_memory_pool_free", 14),
    ("hsa_amd_memory_async_copy", 15),
    ("hsa_amd_memory_async_copy_on_engine", 16),
    ("hsa_amd_agents_allow_access", 19),
    ("hsa_amd_memory_fill", 24),
    ("hsa_amd_ipc_memory_create", 30),
    ("hsa_amd_ipc_memory_attach", 31),
    ("hsa_amd_ipc_memory_detach", 32),
    ("hsa_amd_portable_export_dmabuf", 53),
    ("hsa_amd_portable_close_dmabuf", 54),
    ("hsa_amd_vmem_address_reserve", 55),
    ("hsa_amd_vmem_address_free", 56),
    ("hsa_amd_vmem_handle_create", 57),
    ("hsa_amd_vmem_handle_release", 58),
    ("hsa_amd_vmem_map", 59),
    ("hsa_amd_vmem_unmap", 60),
    ("hsa_amd_vmem_set_access", 61),
    ("hsa_amd_vmem_get_access", 62),
    ("hsa_amd_vmem_export_shareable_handle", 63),
    ("hsa_amd_vmem_import_shareable_handle", 64),
    ("hsa_amd_vmem_retain_alloc_handle", 65),
    ("hsa_amd_vmem_get_alloc_properties_from_handle", 66),
    ("hsa_amd_vmem_address_reserve_align", 69),
    ("hsa_amd_portable_export_dmabuf_v2", 73),
];

/// Returns the index of a function in its table. `functions` is [`CORE`] or [`AMD_EXT`].
#[must_use]
pub fn function_index(functions: &[(&str, usize)], name: &str) -> Option<usize> {
    functions.iter().find(|(function, _)| *function == name).map(|(_, index)| *index)
}

impl FunctionTable {
    /// Returns the offset of the pointer with this index from the start of the table, in bytes.
    #[must_use]
    pub const fn offset(index: usize) -> usize {
        size_of::<TableVersion>() + index * size_of::<*mut c_void>()
    }

    /// Returns the address of the pointer with this index. Returns `None` if `table` is null, or if the table is too
    /// short: then the runtime is older than the function.
    ///
    /// # Safety
    /// `table` must be null or the address of a table with the size that its version contains.
    #[must_use]
    pub unsafe fn slot(table: *mut Self, index: usize) -> Option<*mut *mut c_void> {
        if table.is_null() {
            return None;
        }
        // SAFETY: the caller promises a table, which begins with its version.
        let size = unsafe { (*table).version.size } as usize;
        let offset = Self::offset(index);
        // SAFETY: the pointer is inside the table.
        (offset + size_of::<*mut c_void>() <= size)
            .then(|| unsafe { table.cast::<u8>().add(offset) }.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_none_beyond_the_end() {
        #[repr(C)]
        struct Table {
            table: FunctionTable,
            functions: [*mut c_void; 2],
        }
        let version = TableVersion { major: 2, size: 32, step: 0, reserved: 0 };
        let mut table =
            Table { table: FunctionTable { version }, functions: [core::ptr::null_mut(); 2] };
        let start = (&raw mut table).cast();
        // SAFETY: the table has 32 bytes, as its version says.
        let slots = [0, 1, 2].map(|index| unsafe { FunctionTable::slot(start, index) });
        assert_eq!(slots[1], Some(&raw mut table.functions[1]));
        assert!(slots[0].is_some() && slots[2].is_none());
        // SAFETY: null is allowed.
        assert!(unsafe { FunctionTable::slot(core::ptr::null_mut(), 0) }.is_none());
    }

    #[test]
    fn function_index_finds_functions_by_name() {
        assert_eq!(function_index(AMD_EXT, "hsa_amd_vmem_map"), Some(59));
        assert_eq!(function_index(CORE, "hsa_amd_vmem_map"), None);
    }
}
