//! The reasons why a tool does not detect a fault.

use crate::call_faults::CallFault;

/// Each row contains the tool (`*` means `conform` and `bringup`), the calls, the effects (`*` means all), and the
/// reason. The first matching row applies.
const REASONS: &[(&str, &[&str], &[&str], &str)] = &[
    (
        "conform",
        &["GEM_CREATE", "PRIME_HANDLE_TO_FD"],
        &["lost"],
        "with this fault, memory of the host is not supported, and its cases are skipped",
    ),
    (
        "conform",
        &["PRIME_HANDLE_TO_FD"],
        &["other"],
        "the library uses only the exported memory, which is new",
    ),
    (
        "bringup",
        &["GEM_CREATE", "PRIME_HANDLE_TO_FD"],
        &["*"],
        "AMD's runtime does not make this call in these programs",
    ),
    (
        "*",
        &["GEM_VA.CLEAR", "IPC_EXPORT_HANDLE", "IPC_IMPORT_HANDLE", "RESET_EVENT", "UPDATE_QUEUE"],
        &["*"],
        "AMD's runtime does not make this call in these programs",
    ),
    (
        "conform",
        &["DESTROY_EVENT"],
        &["EIO"],
        "the runtime ignores the error, and an event that is not destroyed has no effect on memory",
    ),
    (
        "conform",
        &["GEM_VA.REPLACE"],
        &["*"],
        "AMD's runtime does not make this call; with `--page-tables` the library does",
    ),
    (
        "conform",
        &["DESTROY_QUEUE"],
        &["lost"],
        "the runtime frees the memory of the queue, which still exists, and the GPU reads the freed memory; this read ends the \
         second process of `runtime.process.stops_after_copies` in about one run of four",
    ),
    ("*", &["DESTROY_EVENT"], &["lost"], "an event that is not destroyed has no effect on memory"),
    (
        "conform",
        &["CREATE_EVENT", "SET_EVENT", "WAIT_EVENTS"],
        &["EIO", "lost"],
        "the library polls signals; events only wake threads that sleep",
    ),
    (
        "*",
        &["GEM_OP"],
        &["half", "double", "lost"],
        "AMD's runtime uses this call to query the memory's domain, and ignores the size",
    ),
    (
        "bringup",
        &["GEM_METADATA", "GEM_OP"],
        &["*"],
        "only `hsa_amd_ipc_memory_create` makes this call; bringup shares memory by dma-buf alone",
    ),
    (
        "*",
        &["GET_DMABUF_INFO"],
        &["double"],
        "the runtime checks mappings against this size, and no correct program maps more than it imported",
    ),
    (
        "bringup",
        &["hsa_agent_iterate_isas"],
        &["*"],
        "bringup runs no kernels, and does not need this call",
    ),
    (
        "conform",
        &["GEM_VA"],
        &["wide"],
        "AMD's runtime requests read and write access, whichever access is granted ([defects.md](defects.md))",
    ),
    (
        "*",
        &["GEM_VA.MAP"],
        &["wide"],
        "AMD's runtime requests read and write access, whichever access is granted ([defects.md](defects.md))",
    ),
    (
        "bringup",
        &["MMAP"],
        &["wide"],
        "no level checks that the CPU cannot access memory before it is granted access",
    ),
    (
        "bringup",
        &["GEM_VA.REPLACE"],
        &["narrow"],
        "no level writes through an entry that was replaced with write permission",
    ),
    (
        "bringup",
        &["GEM_VA.REPLACE"],
        &["half"],
        "no level reads the second half of a replaced range after the entries have changed",
    ),
    (
        "bringup",
        &["FREE_MEMORY_OF_GPU", "GEM_CLOSE"],
        &["late:5ms"],
        "a driver may free memory later, so bringup waits two seconds",
    ),
    (
        "*",
        &[
            "GET_CLOCK_COUNTERS",
            "RUNTIME_ENABLE",
            "SET_MEMORY_POLICY",
            "SET_SCRATCH_BACKING_VA",
            "SET_TRAP_HANDLER",
            "SET_XNACK_MODE",
        ],
        &["EIO", "lost"],
        "clocks, debuggers, kernels' scratch memory and page-fault retry: copies do not use them",
    ),
    (
        "*",
        &["GET_TILE_CONFIG"],
        &["*"],
        "only HIP makes this call, for images; the tests do not use HIP",
    ),
    (
        "*",
        &[
            "hsa_amd_portable_close_dmabuf",
            "hsa_amd_portable_export_dmabuf_v2",
            "hsa_amd_register_system_event_handler",
            "hsa_amd_svm_attributes_get",
            "hsa_amd_svm_attributes_set",
            "hsa_amd_vmem_get_access",
            "hsa_amd_vmem_retain_alloc_handle",
        ],
        &["*"],
        "neither the library nor bringup makes this call",
    ),
    (
        "*",
        &["hsa_amd_vmem_export_fabric_handle", "hsa_amd_vmem_import_fabric_handle"],
        &["*"],
        "no case and no level shares memory over a fabric",
    ),
    ("*", &["hsa_sim_replace_entries"], &["*"], "only `conform --page-tables` changes page tables"),
    (
        "conform",
        &["hsa_amd_vmem_address_reserve"],
        &["*"],
        "the library calls `hsa_amd_vmem_address_reserve_align` where it exists",
    ),
    (
        "conform",
        &["hsa_amd_ipc_memory_create"],
        &["ERROR"],
        "the IPC cases are skipped with this error: runtimes without IPC return it",
    ),
    (
        "conform",
        &["hsa_amd_vmem_get_alloc_properties_from_handle"],
        &["ERROR", "lost"],
        "this call only returns the owner of imported memory, and \"unknown\" is a valid result of the library",
    ),
    (
        "bringup",
        &[
            "hsa_amd_ipc_memory_attach",
            "hsa_amd_ipc_memory_create",
            "hsa_amd_ipc_memory_detach",
            "hsa_amd_memory_lock",
            "hsa_amd_memory_unlock",
            "hsa_amd_pointer_info",
            "hsa_amd_portable_export_dmabuf",
            "hsa_amd_vmem_address_reserve_align",
            "hsa_amd_vmem_get_alloc_properties_from_handle",
        ],
        &["*"],
        "bringup does not make this call: the levels need no IPC, pinned memory, queries or alignment",
    ),
    (
        "bringup",
        &["hsa_amd_vmem_address_free"],
        &["leak", "late:5ms"],
        "addresses that stay reserved are not visible from outside, and there are 128 TiB of them",
    ),
    (
        "bringup",
        &["hsa_amd_vmem_handle_release", "hsa_amd_vmem_unmap", "hsa_amd_memory_pool_free"],
        &["late:5ms"],
        "a driver may free memory later, so bringup waits two seconds",
    ),
    (
        "bringup",
        &["hsa_amd_agent_memory_pool_get_info"],
        &["lost"],
        "the result \"no access\" is valid: the levels of the CPU and of other GPUs are skipped",
    ),
    (
        "*",
        &["hsa_amd_memory_pool_get_info"],
        &["double"],
        "twice the granule and twice the size are valid results, and every allocation works with them",
    ),
    (
        "*",
        &["hsa_amd_vmem_set_access"],
        &["wide"],
        "the simulation grants GPUs read and write access, as AMD's runtime does; with `permissions=enforced`, \
         `conform` detects the fault",
    ),
    (
        "bringup",
        &["hsa_isa_get_info_alt"],
        &["*"],
        "bringup runs no kernels, and does not need this call",
    ),
    (
        "conform",
        &["hsa_isa_get_info_alt"],
        &["lost"],
        "an instruction set without a name is only shown by `info`",
    ),
    ("*", &["hsa_memory_copy"], &["*"], "neither the library nor bringup makes this call"),
    ("bringup", &["hsa_shut_down"], &["lost"], "this is the last call, and the process ends next"),
    (
        "*",
        &["hsa_signal_destroy"],
        &["ERROR", "lost"],
        "a signal that is not destroyed has no effect on memory, and a drop in the library cannot return an error",
    ),
    (
        "*",
        &["hsa_status_string"],
        &["*"],
        "this call only returns texts of errors that the library does not know",
    ),
];

/// Returns the reason why a tool does not detect a fault. Returns `None` if no row matches.
pub fn find(tool: &str, call_fault: &CallFault) -> Option<&'static str> {
    let matches = |list: &[&str], name: &str| list.contains(&"*") || list.contains(&name);
    let found = REASONS.iter().find(|(by, calls, effects, _)| {
        matches(&[by], tool)
            && matches(calls, &call_fault.call)
            && matches(effects, &call_fault.effect)
    });
    found.map(|row| row.3)
}
