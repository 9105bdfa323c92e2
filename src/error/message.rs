//! Parts of messages: what a call ran out of, why the runtime did not start, and what to do.

use super::{Errno, SIMULATION};
use crate::native::{DriverState, Status, check_room_for_thread};
use hsa_sys::LoadedLibrary;
use std::path::Path;

/// How to name the simulation in `HSA_VMM_RUNTIME`, if this build contains it.
pub(super) const OR_SIMULATION: &str =
    if cfg!(feature = "simulation") { " (`sim` for the simulation)" } else { "" };

const CREATE: &str = "hsa_amd_vmem_handle_create";

const IMPORT: &str = "hsa_amd_vmem_import_shareable_handle";

const LOCK: &str = "hsa_amd_memory_lock";

/// The functions that allocate memory of a pool.
pub(super) const ALLOCATING: [&str; 2] = ["hsa_amd_memory_pool_allocate", CREATE];

/// The beginnings of the names of functions that open a file descriptor. ROCm 7.14 and rocddi also open a descriptor
/// when they create memory; `Vmm::create` checks for this.
const OPENING: [&str; 7] = [
    "hsa_amd_vmem_map",
    "hsa_amd_vmem_set_access",
    "hsa_amd_vmem_export_",
    "hsa_amd_vmem_import_",
    "hsa_amd_portable_export_dmabuf",
    "hsa_amd_ipc_memory_",
    // Only in the simulation.
    LOCK,
];

/// Returns whether a function opens a file descriptor, so that it can fail because no descriptor is free.
pub(super) fn opens_descriptor(call: &str) -> bool {
    OPENING.iter().any(|beginning| call.starts_with(beginning))
}

/// Returns whether a status means that no memory, no addresses or no mappings are left.
pub(super) fn is_shortage(call: &str, status: Status) -> bool {
    match status {
        Status::OUT_OF_RESOURCES => true,
        // The size exceeds the whole pool.
        Status::INVALID_ALLOCATION => ALLOCATING.contains(&call),
        // ROCm 6.1 returns success and the handle 0 if no memory is left.
        Status::NO_RESULT => call == CREATE,
        // ROCm 7.2 maps memory of this process. It reports every failure as ERROR.
        Status::ERROR => call == "hsa_amd_vmem_map" && check_room_for_thread().is_err(),
        _ => false,
    }
}

/// Describes what a call could not provide. Without a status, a call of the driver has failed, or no suitable range of
/// addresses was found.
pub(super) fn describe_shortage(call: &str, status: Option<Status>, size: usize) -> String {
    let requested = if size == 0 { String::new() } else { format!(" for {size:#x} bytes") };
    match status {
        Some(status) => format!("{call} returned {status}{requested}"),
        None if !is_reserve(call) => format!("{call} failed{requested}"),
        None if size > isize::MAX as usize => {
            format!("{size:#x} bytes of addresses exceed the address space")
        }
        None => format!("no {size:#x} bytes of addresses were found at the requested alignment"),
    }
}

/// Explains a status that contradicts itself or has several causes.
pub(super) fn explain_status(call: &str, status: Status) -> &'static str {
    match status {
        Status::NO_RESULT => {
            ", which is a defect of the runtime or of a tool library that it loads (HSA_TOOLS_LIB)"
        }
        Status::INCOMPATIBLE_ARGUMENTS | Status::INVALID_ALLOCATION if call == IMPORT => {
            ": the file descriptor is not memory of an AMD GPU, or the driver has failed"
        }
        Status::ERROR if call == LOCK => {
            ": memory of this process could not be pinned for a GPU. Either the caller passed memory that is not mapped \
             or not writable, or the host has no memory left, or the driver's limit of system memory is reached"
        }
        _ => "",
    }
}

pub(super) fn is_reserve(call: &str) -> bool {
    call.starts_with("hsa_amd_vmem_address_reserve")
}

/// Returns what the caller can do when this call runs out of memory.
pub(super) fn advice(call: &str) -> &'static str {
    match call {
        call if is_reserve(call) => {
            "free addresses, reserve fewer, choose a smaller alignment, or raise a limit: of addresses (`ulimit -v`), \
             of mappings (`sysctl vm.max_map_count`), after mlockall of locked memory (`ulimit -l`), or, with ROCm 6.1, \
             of memory and swap together (`sysctl vm.overcommit_memory=1`)"
        }
        call if ALLOCATING.contains(&call) => {
            "release memory, or use another agent's (Runtime::available_memory)"
        }
        // A GPU's first copies need memory of this GPU for a queue of the runtime.
        "hsa_amd_memory_async_copy" => {
            "release memory of the GPU that copies (Runtime::available_memory) or of the host, or raise the limit of \
             descriptors (`ulimit -n`) or of mappings (`sysctl vm.max_map_count`), then try again"
        }
        _ => {
            "release memory, or raise the kernel's limit of mappings (`sysctl vm.max_map_count`), then try again"
        }
    }
}

/// Describes an address-space hole that `mmap` could not fill.
pub(super) fn describe_hole(errno: Errno) -> String {
    match errno {
        Errno::EXIST => "may contain a foreign mapping".to_owned(),
        _ => format!(
            "are not mapped any more, and mmap could not reserve them again: {errno}{}",
            advise_mapping("mmap", errno)
        ),
    }
}

/// Says what to do if a system call failed because the process may have reached a limit.
pub(super) fn advise_mapping(call: &str, errno: Errno) -> &'static str {
    match (call, errno) {
        ("mmap" | "mprotect" | "munmap" | "pthread_create", Errno::NOMEM) => {
            "; the process may have reached the kernel's limit of mappings (`sysctl vm.max_map_count`) or its limit of \
             addresses (`ulimit -v`): raise it or unmap memory"
        }
        ("mmap", Errno::AGAIN) => {
            "; the process has called mlockall and reached its limit of locked memory (`ulimit -l`): raise it or \
             unlock memory"
        }
        _ => "",
    }
}

/// Says what to check if `hsa_init` failed. The simulation does not use the kernel driver.
pub(super) fn advise_start(path: &Path, driver: &DriverState) -> String {
    if path == Path::new(SIMULATION) {
        return "this is a simulation: check its configuration (HSA_SIM)".to_owned();
    }
    driver.to_string()
}

/// Lists the HSA libraries of this process if there are several.
pub(super) fn list_libraries(loaded: &[LoadedLibrary]) -> String {
    if loaded.len() < 2 {
        return String::new();
    }
    let lines = loaded.iter().map(|library| format!("\n  {library}"));
    format!("\nthe process has loaded {} HSA libraries:{}", loaded.len(), lines.collect::<String>())
}
