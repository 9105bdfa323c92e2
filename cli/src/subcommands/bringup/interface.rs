//! The table of kernel interfaces that each HSA call uses. `cli/tests/bringup` compares the table with the requests
//! of AMD's runtime 6.1.2, 6.4.3 and 7.2.4 to the emulated driver.

use super::level::Level;
use serde::Serialize;

/// A kernel interface: a request to a device or file, and the kernel function that handles the request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interface {
    /// The device and call in the emulated driver's log, `kfd ALLOC_MEMORY_OF_GPU`. Empty if the log does not contain
    /// the requests.
    #[serde(rename = "log")]
    pub logged: &'static str,
    /// The device or file.
    pub file: &'static str,
    /// The request, as the kernel's header names it.
    pub request: &'static str,
    /// The kernel function that handles the request.
    pub function: &'static str,
}

const fn kfd(logged: &'static str, request: &'static str, function: &'static str) -> Interface {
    Interface { logged, file: "/dev/kfd", request, function }
}

const fn drm(logged: &'static str, request: &'static str, function: &'static str) -> Interface {
    Interface { logged, file: "/dev/dri/renderD*", request, function }
}

const fn unlogged(file: &'static str, request: &'static str, function: &'static str) -> Interface {
    Interface { logged: "", file, request, function }
}

const OPEN_KFD: Interface = kfd("kfd OPEN", "open", "kfd_open");
const OPEN_DRM: Interface = drm("drm OPEN", "open", "drm_open");
const TOPOLOGY: Interface =
    unlogged("/sys/…/kfd/topology", "read", "node_show, mem_show, iolink_show");
const VERSION: Interface =
    kfd("kfd GET_VERSION", "AMDKFD_IOC_GET_VERSION", "kfd_ioctl_get_version");
const APERTURES: Interface = kfd(
    "kfd GET_PROCESS_APERTURES_NEW",
    "AMDKFD_IOC_GET_PROCESS_APERTURES_NEW",
    "kfd_ioctl_get_process_apertures_new",
);
const ACQUIRE: Interface = kfd("kfd ACQUIRE_VM", "AMDKFD_IOC_ACQUIRE_VM", "kfd_ioctl_acquire_vm");
const POLICY: Interface =
    kfd("kfd SET_MEMORY_POLICY", "AMDKFD_IOC_SET_MEMORY_POLICY", "kfd_ioctl_set_memory_policy");
const CLOCKS: Interface =
    kfd("kfd GET_CLOCK_COUNTERS", "AMDKFD_IOC_GET_CLOCK_COUNTERS", "kfd_ioctl_get_clock_counters");
const SCRATCH: Interface = kfd(
    "kfd SET_SCRATCH_BACKING_VA",
    "AMDKFD_IOC_SET_SCRATCH_BACKING_VA",
    "kfd_ioctl_set_scratch_backing_va",
);
const TRAP: Interface =
    kfd("kfd SET_TRAP_HANDLER", "AMDKFD_IOC_SET_TRAP_HANDLER", "kfd_ioctl_set_trap_handler");
const XNACK: Interface =
    kfd("kfd SET_XNACK_MODE", "AMDKFD_IOC_SET_XNACK_MODE", "kfd_ioctl_set_xnack_mode");
const ENABLE: Interface =
    kfd("kfd RUNTIME_ENABLE", "AMDKFD_IOC_RUNTIME_ENABLE", "kfd_ioctl_runtime_enable");
const ALLOC: Interface = kfd(
    "kfd ALLOC_MEMORY_OF_GPU",
    "AMDKFD_IOC_ALLOC_MEMORY_OF_GPU",
    "kfd_ioctl_alloc_memory_of_gpu",
);
const FREE: Interface =
    kfd("kfd FREE_MEMORY_OF_GPU", "AMDKFD_IOC_FREE_MEMORY_OF_GPU", "kfd_ioctl_free_memory_of_gpu");
const MAP: Interface =
    kfd("kfd MAP_MEMORY_TO_GPU", "AMDKFD_IOC_MAP_MEMORY_TO_GPU", "kfd_ioctl_map_memory_to_gpu");
const UNMAP: Interface = kfd(
    "kfd UNMAP_MEMORY_FROM_GPU",
    "AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU",
    "kfd_ioctl_unmap_memory_from_gpu",
);
const EXPORT: Interface =
    kfd("kfd EXPORT_DMABUF", "AMDKFD_IOC_EXPORT_DMABUF", "kfd_ioctl_export_dmabuf");
const IMPORT: Interface =
    kfd("kfd IMPORT_DMABUF", "AMDKFD_IOC_IMPORT_DMABUF", "kfd_ioctl_import_dmabuf");
const DMABUF: Interface =
    kfd("kfd GET_DMABUF_INFO", "AMDKFD_IOC_GET_DMABUF_INFO", "kfd_ioctl_get_dmabuf_info");
const CREATE_EVENT: Interface =
    kfd("kfd CREATE_EVENT", "AMDKFD_IOC_CREATE_EVENT", "kfd_ioctl_create_event");
const DESTROY_EVENT: Interface =
    kfd("kfd DESTROY_EVENT", "AMDKFD_IOC_DESTROY_EVENT", "kfd_ioctl_destroy_event");
const SET_EVENT: Interface = kfd("kfd SET_EVENT", "AMDKFD_IOC_SET_EVENT", "kfd_ioctl_set_event");
const WAIT: Interface = kfd("kfd WAIT_EVENTS", "AMDKFD_IOC_WAIT_EVENTS", "kfd_ioctl_wait_events");
const CREATE_QUEUE: Interface =
    kfd("kfd CREATE_QUEUE", "AMDKFD_IOC_CREATE_QUEUE", "kfd_ioctl_create_queue");
const UPDATE_QUEUE: Interface =
    kfd("kfd UPDATE_QUEUE", "AMDKFD_IOC_UPDATE_QUEUE", "kfd_ioctl_update_queue");
const DESTROY_QUEUE: Interface =
    kfd("kfd DESTROY_QUEUE", "AMDKFD_IOC_DESTROY_QUEUE", "kfd_ioctl_destroy_queue");
const AVAILABLE: Interface =
    kfd("kfd AVAILABLE_MEMORY", "AMDKFD_IOC_AVAILABLE_MEMORY", "kfd_ioctl_get_available_memory");
const KFD_MMAP: Interface = kfd("kfd MMAP", "mmap (doorbells, events, MMIO)", "kfd_mmap");
const INFO: Interface = drm("drm INFO", "DRM_IOCTL_AMDGPU_INFO", "amdgpu_info_ioctl");
const DRM_VERSION: Interface = drm("drm VERSION", "DRM_IOCTL_VERSION", "drm_version");
pub const GEM_VA: Interface = drm("drm GEM_VA", "DRM_IOCTL_AMDGPU_GEM_VA", "amdgpu_gem_va_ioctl");
const GEM_OP: Interface = drm("drm GEM_OP", "DRM_IOCTL_AMDGPU_GEM_OP", "amdgpu_gem_op_ioctl");
const GEM_MMAP: Interface =
    drm("drm GEM_MMAP", "DRM_IOCTL_AMDGPU_GEM_MMAP", "amdgpu_gem_mmap_ioctl");
const GEM_CLOSE: Interface = drm("drm GEM_CLOSE", "DRM_IOCTL_GEM_CLOSE", "drm_gem_close_ioctl");
const PRIME: Interface =
    drm("drm PRIME_FD_TO_HANDLE", "DRM_IOCTL_PRIME_FD_TO_HANDLE", "drm_prime_fd_to_handle_ioctl");
const DRM_MMAP: Interface = drm("drm MMAP", "mmap", "drm_gem_mmap, ttm_bo_mmap_obj");
const DRM_FAULT: Interface = Interface {
    logged: "",
    file: "/dev/dri/renderD*",
    request: "page fault",
    function: "amdgpu_gem_fault",
};
const RESERVE: Interface = unlogged("(no device)", "mmap PROT_NONE, NORESERVE", "do_mmap");
const UNRESERVE: Interface = unlogged("(no device)", "munmap", "do_vmi_munmap");
const LIBRARY: Interface = unlogged("(no device)", "open, mmap", "");
const DMA: Interface = unlogged("the GPU", "SDMA or a blit kernel, page tables", "");
const INTERRUPT: Interface =
    unlogged("the GPU", "interrupt at the end of a copy", "kfd_signal_event_interrupt");

/// The interfaces that an allocation of pool memory uses.
const POOL_ALLOCATION: [Interface; 4] = [ALLOC, MAP, DRM_MMAP, CREATE_EVENT];

/// The interfaces that each call uses, in the order of use. `library` stands for loading the library. `fill` and
/// `compare` stand for writes and reads by the CPU.
pub const TABLE: &[(&str, &[Interface])] = &[
    ("library", &[LIBRARY]),
    (
        "hsa_init",
        &[
            OPEN_KFD,
            VERSION,
            TOPOLOGY,
            OPEN_DRM,
            DRM_VERSION,
            INFO,
            APERTURES,
            ACQUIRE,
            POLICY,
            XNACK,
            ENABLE,
            CLOCKS,
            CREATE_EVENT,
            KFD_MMAP,
            ALLOC,
            MAP,
            DRM_MMAP,
            SCRATCH,
            TRAP,
            WAIT,
            SET_EVENT,
            GEM_VA,
            AVAILABLE,
            UNMAP,
            FREE,
        ],
    ),
    (
        "hsa_shut_down",
        &[SET_EVENT, DESTROY_QUEUE, DESTROY_EVENT, WAIT, UNMAP, FREE, GEM_CLOSE, ENABLE, UNRESERVE],
    ),
    ("hsa_system_get_info", &[VERSION, CLOCKS]),
    ("hsa_iterate_agents", &[TOPOLOGY]),
    ("hsa_agent_get_info", &[TOPOLOGY, AVAILABLE]),
    ("hsa_amd_agent_iterate_memory_pools", &[TOPOLOGY]),
    ("hsa_amd_memory_pool_get_info", &[TOPOLOGY]),
    ("hsa_amd_agent_memory_pool_get_info", &[TOPOLOGY]),
    ("hsa_amd_vmem_address_reserve", &[RESERVE, ALLOC]),
    ("hsa_amd_vmem_address_free", &[UNRESERVE, FREE]),
    ("hsa_amd_vmem_handle_create", &[ALLOC]),
    ("hsa_amd_vmem_handle_release", &[FREE]),
    ("hsa_amd_vmem_map", &[EXPORT, PRIME, GEM_MMAP, DRM_MMAP, GEM_CLOSE]),
    ("hsa_amd_vmem_unmap", &[GEM_VA, DRM_MMAP, UNRESERVE, GEM_CLOSE, FREE]),
    ("hsa_amd_vmem_set_access", &[EXPORT, PRIME, GEM_VA, DRM_MMAP, GEM_CLOSE]),
    ("hsa_amd_vmem_export_shareable_handle", &[EXPORT]),
    ("hsa_amd_vmem_import_shareable_handle", &[DMABUF, IMPORT]),
    ("hsa_amd_memory_pool_allocate", &POOL_ALLOCATION),
    ("hsa_amd_memory_pool_free", &[UNMAP, FREE]),
    ("hsa_amd_agents_allow_access", &[MAP]),
    ("hsa_signal_create", &[CREATE_EVENT]),
    ("hsa_signal_destroy", &[DESTROY_EVENT]),
    ("hsa_signal_store_screlease", &[SET_EVENT]),
    (
        "hsa_amd_memory_async_copy",
        &[
            CREATE_QUEUE,
            AVAILABLE,
            KFD_MMAP,
            ALLOC,
            MAP,
            DRM_MMAP,
            CREATE_EVENT,
            SET_EVENT,
            UPDATE_QUEUE,
            DMA,
        ],
    ),
    (
        "hsa_amd_memory_fill",
        &[CREATE_QUEUE, KFD_MMAP, ALLOC, MAP, DRM_MMAP, CREATE_EVENT, WAIT, DMA],
    ),
    ("hsa_signal_wait_scacquire", &[WAIT, INTERRUPT, DMA]),
    ("hsa_signal_load_scacquire", &[INTERRUPT, DMA]),
    ("hsa_amd_register_system_event_handler", &[unlogged("(no device)", "none", "")]),
    ("hsa_amd_memory_lock", &[ALLOC, MAP, CREATE_EVENT]),
    ("hsa_amd_memory_unlock", &[UNMAP, FREE]),
    ("amdgpu_device_initialize", &[OPEN_DRM, DRM_VERSION, INFO]),
    ("amdgpu_bo_import", &[PRIME]),
    ("amdgpu_bo_va_op_raw", &[GEM_VA, GEM_OP, GEM_CLOSE]),
    ("close", &[unlogged("a dma-buf", "close", "dma_buf_release")]),
    ("count_descriptors", &[unlogged("/proc/self/fd", "getdents", "proc_readfd")]),
    ("fill", &[DRM_FAULT]),
    ("compare", &[DRM_FAULT]),
    (
        "kill",
        &[unlogged("(no device)", "exit of a process", "kfd_process_notifier_release_internal")],
    ),
    ("send", &[unlogged("a socket", "SCM_RIGHTS", "unix_attach_fds")]),
    ("receive", &[unlogged("a socket", "SCM_RIGHTS", "unix_attach_fds")]),
];

/// Returns the interfaces that a call uses.
pub fn used_by(call: &str) -> &'static [Interface] {
    TABLE.iter().find(|row| row.0 == call).map_or(&[], |row| row.1)
}

/// The functions that `bringup` does not call on a simulation: only the levels "offset" and "permission" call them, and
/// these levels are skipped there.
const NOT_CALLED_ON_SIMULATION: [&str; 3] =
    ["hsa_amd_memory_lock", "hsa_amd_memory_unlock", "hsa_amd_register_system_event_handler"];

/// Returns whether any level calls this function of the runtime.
pub fn is_called(function: &str, is_simulation: bool) -> bool {
    let is_skipped = is_simulation && NOT_CALLED_ON_SIMULATION.contains(&function);
    TABLE.iter().any(|row| row.0 == function) && !is_skipped
}

/// Returns whether a line of the emulated driver's log is a request that any level makes. Without control of page tables,
/// no level makes the request `GEM_OP`.
pub fn is_request_of_a_level(line: &str) -> bool {
    function_of(line).is_some_and(|function| function != GEM_OP.function)
}

/// Returns the interface to suspect first if a level found a wrong result although all requests succeeded. Also returns
/// a text about the request's operation, which is empty for requests without an operation. `call` is the call that the
/// level reported. `has_moved` is whether a grant to another GPU has moved or damaged the memory.
pub fn suspect(level: Level, call: &str, has_moved: bool) -> Option<(Interface, String)> {
    let (interface, operation) = match (level, call) {
        (Level::Pools | Level::Counted | Level::Killed, "hsa_agent_get_info") => (AVAILABLE, None),
        (Level::Counted, "hsa_amd_vmem_handle_release" | "hsa_amd_memory_pool_free") => {
            (FREE, None)
        }
        (Level::Counted, "hsa_amd_vmem_unmap") => (GEM_CLOSE, None),
        (Level::Descriptors, _) | (_, "hsa_amd_vmem_export_shareable_handle") => (EXPORT, None),
        (_, "hsa_amd_vmem_import_shareable_handle") => (IMPORT, None),
        (_, "hsa_amd_vmem_set_access") if has_moved => (PRIME, None),
        (_, "hsa_amd_vmem_set_access") => (GEM_VA, Some("MAP")),
        (_, "hsa_amd_vmem_unmap") => (GEM_VA, Some("UNMAP")),
        (_, "amdgpu_bo_import") => (PRIME, None),
        (_, "amdgpu_bo_va_op_raw") => (GEM_VA, Some("REPLACE")),
        (_, "hsa_amd_vmem_map") => (EXPORT, None),
        _ => return None,
    };
    let operation = operation
        .map_or(String::new(), |name| format!(" with the operation {name} (AMDGPU_VA_OP_{name})"));
    Some((interface, operation))
}

/// Returns the kernel function for a line of the emulated driver's log, if the table contains it.
pub fn function_of(line: &str) -> Option<&'static str> {
    let mut interfaces = TABLE.iter().flat_map(|row| row.1);
    interfaces.find(|interface| is_logged(interface, line)).map(|interface| interface.function)
}

/// Returns the interface that a line of the runtime's output or of the kernel's log names, and the word that names it:
/// its function, or its request, as `AMDGPU_INFO_ACCEL_WORKING = 0` names `DRM_IOCTL_AMDGPU_INFO`.
pub fn named_in(line: &str) -> Option<(&'static Interface, &str)> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words: Vec<_> =
        line.split(|letter| !is_name(letter)).filter(|word| !word.is_empty()).collect();
    let named = |interface: &'static Interface| {
        let request = interface.request;
        let name = request.strip_prefix("DRM_IOCTL_").or(request.strip_prefix("AMDKFD_IOC_"));
        // Names of one word, such as `VERSION`, can also be other words.
        let name = name.filter(|name| name.contains('_'));
        let names_request = |word: &&str| {
            let rest = name.and_then(|name| word.strip_prefix(name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        let is_name = |word: &&&str| **word == interface.function || names_request(word);
        Some((interface, *words.iter().find(is_name)?))
    };
    TABLE.iter().flat_map(|row| row.1).find_map(named)
}

/// Returns whether a line of the emulated driver's log opens a device.
pub fn is_open(line: &str) -> bool {
    is_logged(&OPEN_KFD, line) || is_logged(&OPEN_DRM, line)
}

/// Returns whether a line of the emulated driver's log is a request to this interface.
pub fn is_logged(interface: &Interface, line: &str) -> bool {
    request(line).is_some_and(|request| interface.logged == request)
}

/// Returns the request in a line of the emulated driver's log, without the device's number:
/// `drm GEM_VA` for `16306:16306 0.014652 drm0 GEM_VA …`. Returns `None` for requests that cannot fail, and for lines
/// without a request.
pub fn request(line: &str) -> Option<String> {
    let mut words = line.split(' ').skip(2);
    let device = words.next()?.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let call = words.next()?;
    if matches!(call, "CLOSE" | "MUNMAP") {
        return None;
    }
    let is_name =
        call.chars().all(|letter| letter.is_ascii_uppercase() || "_0123456789".contains(letter));
    (matches!(device, "kfd" | "drm") && is_name).then(|| format!("{device} {call}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_make_only_some_requests() {
        for (request, expected) in [("GEM_VA", true), ("GEM_OP", false), ("GEM_METADATA", false)] {
            let line = format!("16306:16306 0.014652 drm0 {request} handle=1");
            assert_eq!(is_request_of_a_level(&line), expected, "{request}");
        }
    }

    #[test]
    fn request_returns_the_interface_of_a_log_line() {
        let line = "1:1 0.026873 drm0 GEM_VA handle=1 operation=MAP = EINVAL (1.8 us)";
        assert_eq!(request(line).as_deref(), Some("drm GEM_VA"));
        assert!(is_logged(&GEM_VA, line) && !is_logged(&GEM_MMAP, line));
        assert_eq!(request("1:1 0.0 NOT EMULATED: kfd call"), None);
        assert_eq!(request("1:1 0.0 kfd call 0x1 = EBADF: another process's"), None);
        assert_eq!(request(""), None);
    }

    #[test]
    fn logs_name_interfaces() {
        for (line, expected) in [
            (
                "_amdgpu_device_initialize: AMDGPU_INFO_ACCEL_WORKING = 0",
                Some((&INFO, "AMDGPU_INFO_ACCEL_WORKING")),
            ),
            ("amdgpu_gem_va_ioctl+0x1c/0x20 [amdgpu]", Some((&GEM_VA, "amdgpu_gem_va_ioctl"))),
            ("VERSION 3 of INFO", None),
            ("acquiring VM for 1001 using 8", None),
        ] {
            assert_eq!(named_in(line), expected, "{line}");
        }
    }

    #[test]
    fn table_has_unique_calls_with_interfaces() {
        for (index, (call, interfaces)) in TABLE.iter().enumerate() {
            assert!(!interfaces.is_empty(), "{call}");
            assert!(!TABLE[..index].iter().any(|row| row.0 == *call), "{call}");
        }
    }
}
