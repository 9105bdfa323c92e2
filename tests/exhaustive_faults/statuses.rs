//! The error statuses of each function of the runtime.
//!
//! `hsa_ext_amd.h` documents the statuses. If a function of AMD's public sources returns further statuses, the list
//! also contains these. Three statuses are in every list, because every function can return them: an error (after a C++
//! exception), out of resources, and not initialised.

pub const ERROR: u32 = 0x1000;
const INVALID_ARGUMENT: u32 = 0x1001;
const INVALID_ALLOCATION: u32 = 0x1003;
const INVALID_AGENT: u32 = 0x1004;
const OUT_OF_RESOURCES: u32 = 0x1008;
const RESOURCE_FREE: u32 = 0x100a;
const NOT_INITIALIZED: u32 = 0x100b;
const INCOMPATIBLE_ARGUMENTS: u32 = 0x100d;

/// Returns the error statuses that a function can return.
pub fn statuses_of(function: &str) -> &'static [u32] {
    match function {
        "hsa_amd_vmem_address_free" => {
            &[ERROR, OUT_OF_RESOURCES, NOT_INITIALIZED, INVALID_ARGUMENT, RESOURCE_FREE]
        }
        "hsa_amd_vmem_handle_create" | "hsa_amd_vmem_unmap" => {
            &[ERROR, OUT_OF_RESOURCES, NOT_INITIALIZED, INVALID_ARGUMENT, INVALID_ALLOCATION]
        }
        "hsa_amd_vmem_map" | "hsa_amd_vmem_set_access" => &[
            ERROR,
            OUT_OF_RESOURCES,
            NOT_INITIALIZED,
            INVALID_ARGUMENT,
            INVALID_ALLOCATION,
            INVALID_AGENT,
        ],
        "hsa_amd_vmem_export_shareable_handle"
        | "hsa_amd_vmem_handle_release"
        | "hsa_amd_vmem_get_alloc_properties_from_handle" => {
            &[ERROR, OUT_OF_RESOURCES, NOT_INITIALIZED, INVALID_ALLOCATION]
        }
        "hsa_amd_vmem_import_shareable_handle" => &[
            ERROR,
            OUT_OF_RESOURCES,
            NOT_INITIALIZED,
            INVALID_ARGUMENT,
            INVALID_ALLOCATION,
            INCOMPATIBLE_ARGUMENTS,
        ],
        _ => &[ERROR, OUT_OF_RESOURCES, NOT_INITIALIZED, INVALID_ARGUMENT],
    }
}
