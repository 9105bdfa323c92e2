//! The functions of AMD's runtimes 6.1 to 7.2 that are not simulated.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use hsa_sys::{HSA_STATUS_ERROR_NOT_SUPPORTED, hsa_status_t};

/// Exports functions that return an error. They are declared without parameters: in the C ABI of 64-bit Linux,
/// a function can ignore its arguments, because the caller frees their stack space.
macro_rules! not_simulated {
    ($($name:ident)*) => { $(
        /// Prints its name at the first call, and returns an error.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> hsa_status_t {
            static REPORTED: AtomicBool = AtomicBool::new(false);
            reject(stringify!($name), &REPORTED)
        }
    )* };
}

/// Prints the name of a function at its first call. Returns the error of the call.
fn reject(name: &str, reported: &AtomicBool) -> hsa_status_t {
    if !reported.swap(true, Relaxed) {
        eprintln!("hsa-sim: {name} is not simulated and returns HSA_STATUS_ERROR_NOT_SUPPORTED");
    }
    HSA_STATUS_ERROR_NOT_SUPPORTED
}

// Code objects, executables and kernels.
not_simulated! {
    hsa_code_object_deserialize
    hsa_code_object_destroy
    hsa_code_object_get_info
    hsa_code_object_get_symbol
    hsa_code_object_get_symbol_from_name
    hsa_code_object_iterate_symbols
    hsa_code_object_reader_create_from_file
    hsa_code_object_reader_create_from_memory
    hsa_code_object_reader_destroy
    hsa_code_object_serialize
    hsa_code_symbol_get_info
    hsa_executable_agent_global_variable_define
    hsa_executable_create
    hsa_executable_create_alt
    hsa_executable_destroy
    hsa_executable_freeze
    hsa_executable_get_info
    hsa_executable_get_symbol
    hsa_executable_get_symbol_by_name
    hsa_executable_global_variable_define
    hsa_executable_iterate_agent_symbols
    hsa_executable_iterate_program_symbols
    hsa_executable_iterate_symbols
    hsa_executable_load_agent_code_object
    hsa_executable_load_code_object
    hsa_executable_load_program_code_object
    hsa_executable_readonly_variable_define
    hsa_executable_symbol_get_info
    hsa_executable_validate
    hsa_executable_validate_alt
}

// Groups of signals, and queues that a program executes itself.
not_simulated! {
    hsa_signal_group_create
    hsa_signal_group_destroy
    hsa_signal_group_wait_any_relaxed
    hsa_signal_group_wait_any_scacquire
    hsa_soft_queue_create
}

// Tables of extensions, and the extensions for images, finalization and sampling.
not_simulated! {
    hsa_amd_image_create
    hsa_amd_image_get_info_max_dim
    hsa_ext_image_clear
    hsa_ext_image_copy
    hsa_ext_image_create
    hsa_ext_image_create_with_layout
    hsa_ext_image_data_get_info
    hsa_ext_image_data_get_info_with_layout
    hsa_ext_image_destroy
    hsa_ext_image_export
    hsa_ext_image_get_capability
    hsa_ext_image_get_capability_with_layout
    hsa_ext_image_import
    hsa_ext_program_add_module
    hsa_ext_program_create
    hsa_ext_program_destroy
    hsa_ext_program_finalize
    hsa_ext_program_get_info
    hsa_ext_program_iterate_modules
    hsa_ext_sampler_create
    hsa_ext_sampler_create_v2
    hsa_ext_sampler_destroy
    hsa_system_get_extension_table
    hsa_system_get_major_extension_table
    hsa_ven_amd_pcs_create
    hsa_ven_amd_pcs_create_from_id
    hsa_ven_amd_pcs_destroy
    hsa_ven_amd_pcs_flush
    hsa_ven_amd_pcs_iterate_configuration
    hsa_ven_amd_pcs_start
    hsa_ven_amd_pcs_stop
}

// Profiling, and limits of hardware.
not_simulated! {
    hsa_amd_agent_set_async_scratch_limit
    hsa_amd_coherency_get_type
    hsa_amd_coherency_set_type
    hsa_amd_enable_logging
    hsa_amd_profiling_async_copy_enable
    hsa_amd_profiling_convert_tick_to_system_domain
    hsa_amd_profiling_get_async_copy_time
    hsa_amd_profiling_get_dispatch_time
    hsa_amd_profiling_set_profiler_enabled
    hsa_amd_queue_cu_get_mask
    hsa_amd_queue_cu_set_mask
    hsa_amd_spm_acquire
    hsa_amd_spm_release
    hsa_amd_spm_set_dest_buffer
    hsa_isa_get_round_method
}

// Other functions for copies and memory.
not_simulated! {
    hsa_amd_ais_file_read
    hsa_amd_ais_file_write
    hsa_amd_memory_async_copy_rect
    hsa_amd_memory_migrate
    hsa_amd_memory_pool_can_migrate
    hsa_amd_svm_prefetch_async
}
