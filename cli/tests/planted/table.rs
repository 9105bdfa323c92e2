//! The planned faults, and the tool that must find each fault.

/// The runtime and driver that a tool runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The simulation with this configuration.
    Simulation(&'static str),
    /// AMD's own runtime of this release, on the emulated driver.
    Release(&'static str),
    /// AMD's own runtime of this release, on AMD's kernel driver in the virtual machine.
    Machine(&'static str),
}

/// The tool that must find a fault, and the message that the tool must print.
#[derive(Clone, Copy, Debug)]
pub enum Finder {
    /// `conform`: the case that must fail, and a part of its detail.
    Conform(&'static str, &'static str),
    /// `conform --fail-fast`, for faults that would make each case run until its time limit.
    ConformFailFast(&'static str, &'static str),
    /// `fuzz`: a part of the failure's message.
    Fuzz(&'static str),
}

/// A planned fault that a tool must find.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub name: &'static str,
    pub target: Target,
    /// The plan, as `hsa-faults` parses it.
    pub plan: &'static str,
    pub finder: Finder,
}

const fn fault(name: &'static str, target: Target, plan: &'static str, finder: Finder) -> Fault {
    Fault { name, target, plan, finder }
}

use Finder::{Conform, ConformFailFast, Fuzz};
use Target::{Release, Simulation};

const R6_1: Target = Release("6.1.2");
const R6_4: Target = Release("6.4.3");
const R7_2: Target = Release("7.2.4");
const SIM: Target = Simulation("");
/// A simulation in which the runtime, not the library, maps memory for the CPU.
const CPU_MAPPED_BY_RUNTIME: Target = Simulation("dmabuf-cpu-mapping=off");
const ENFORCED: Target = Simulation("permissions=enforced");

const PAGE_TABLE_CASE: &str = "access.gpu.as_its_page_table_has_it";
const OUT_OF_RESOURCES: &str = "HSA_STATUS_ERROR_OUT_OF_RESOURCES";

pub const FAULTS: &[Fault] = &[
    // Mappings that are lost, late or wrong.
    fault(
        "a mapping of the GPU is lost",
        R6_1,
        "GEM_VA.MAP=lost",
        Conform(PAGE_TABLE_CASE, "no page-table entry at offset 0x0, although Read"),
    ),
    fault(
        "a mapping of the GPU is late",
        R6_4,
        "GEM_VA.MAP=late:5ms",
        Conform(PAGE_TABLE_CASE, "no page-table entry at offset 0x0, although Read"),
    ),
    fault(
        "half of a mapping is lost",
        R7_2,
        "GEM_VA.MAP=half",
        Conform(PAGE_TABLE_CASE, "no page-table entry at offset 0x2000, although Read"),
    ),
    fault(
        "a mapping of the GPU is shifted by a page",
        R6_4,
        "GEM_VA.MAP=shifted",
        Conform(PAGE_TABLE_CASE, "4096 instead of 0"),
    ),
    fault(
        "an unmapped range stays in the page table",
        R6_4,
        "GEM_VA.UNMAP=lost",
        Conform("unmap.gpu.page_table_forgets", "after "),
    ),
    fault(
        "an unmapped range leaves the page table late",
        R7_2,
        "GEM_VA.UNMAP=late:5ms",
        Conform("unmap.gpu.page_table_forgets", ""),
    ),
    fault(
        "the CPU can access memory without a grant",
        R7_2,
        "MMAP=wide",
        Conform("map.memory.no_access_at_first", "None was granted, but the kernel has rw-"),
    ),
    fault(
        "the engines see a mapping late",
        R7_2,
        "GEM_VA.MAP=unseen:50ms",
        Conform("map.memory.whole_handle", "of the memory"),
    ),
    fault(
        "the engines use an unmapped range for a while",
        R6_4,
        "GEM_VA.UNMAP=stale:50ms",
        Conform("map.again.other_handles", "of the memory"),
    ),
    fault(
        "an import moves the memory",
        R6_1,
        "PRIME_FD_TO_HANDLE=evict",
        Conform("access.gpus.peer_after_the_owner", "GPU 0 (SDMA or blit shader) reads wrong data"),
    ),
    fault(
        "the twentieth mapping is lost",
        SIM,
        "hsa_amd_vmem_map#20=lost",
        Conform("create.memory.is_its_own", "set_access"),
    ),
    fault(
        "every mapping is late",
        SIM,
        "hsa_amd_vmem_map=late:5ms",
        Conform("map.memory.whole_handle", "set_access"),
    ),
    fault(
        "the twentieth unmapping is lost",
        Simulation("era=a"),
        "hsa_amd_vmem_unmap#20=lost",
        Conform("create.memory.is_its_own", "RESOURCE_FREE"),
    ),
    fault(
        "GPUs access wrong memory",
        Simulation("era=c"),
        "hsa_amd_vmem_set_access=other",
        Conform("map.memory.whole_handle", "of the memory"),
    ),
    fault(
        "GPUs can access half of a mapping",
        SIM,
        "hsa_amd_vmem_set_access=half",
        Conform(PAGE_TABLE_CASE, "no page-table entry"),
    ),
    fault(
        "GPUs access memory shifted by a page",
        Simulation("era=d"),
        "hsa_amd_vmem_set_access=shifted",
        Conform(PAGE_TABLE_CASE, "4096 instead of 0"),
    ),
    fault(
        "a descriptor refers to wrong memory",
        R6_1,
        "EXPORT_DMABUF=other",
        Conform("map.memory.whole_handle", "of the memory"),
    ),
    // Permissions.
    fault(
        "access is not set",
        SIM,
        "hsa_amd_vmem_set_access=lost",
        Conform(PAGE_TABLE_CASE, "no page-table entry at offset 0x0, although Read"),
    ),
    fault(
        "a GPU can only read",
        R7_2,
        "GEM_VA.MAP=narrow",
        Conform(PAGE_TABLE_CASE, "ReadWrite was granted, but the page is not writable"),
    ),
    fault(
        "a GPU can write memory that it may only read",
        ENFORCED,
        "hsa_amd_vmem_set_access=wide",
        Conform(PAGE_TABLE_CASE, "Read was granted, but the page is writable"),
    ),
    fault(
        "the CPU can only read",
        CPU_MAPPED_BY_RUNTIME,
        "hsa_amd_vmem_set_access=narrow",
        Conform("access.cpu.as_the_kernel_has_it", "ReadWrite was granted, but the kernel has r--"),
    ),
    // Errors of the kernel.
    fault(
        "no memory for page tables",
        R6_1,
        "GEM_VA.MAP=ENOMEM",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"),
    ),
    fault(
        "a mapping is invalid",
        R7_2,
        "GEM_VA.MAP=EINVAL",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"),
    ),
    fault(
        "an unmap finds no mapping",
        R7_2,
        "GEM_VA.UNMAP=ENOENT",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_unmap returned HSA_STATUS_ERROR"),
    ),
    fault(
        "too many open files",
        R6_4,
        "EXPORT_DMABUF=EMFILE",
        Conform("map.memory.whole_handle", OUT_OF_RESOURCES),
    ),
    fault(
        "a descriptor is not found",
        R6_4,
        "PRIME_FD_TO_HANDLE=ENOENT",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_map returned HSA_STATUS_ERROR"),
    ),
    fault(
        "imports are rejected",
        R6_1,
        "IMPORT_DMABUF=EINVAL",
        Conform("share.import.same_memory", "is not memory that this runtime can import"),
    ),
    fault(
        "descriptors are invalid",
        R6_4,
        "GET_DMABUF_INFO=EBADF",
        Conform("share.import.same_memory", "is not memory that this runtime can import"),
    ),
    fault(
        "memory is busy",
        R7_2,
        "FREE_MEMORY_OF_GPU=EBUSY",
        Conform("pool.memory.holds_what_is_written", "crashed: SIGABRT, in hsa_amd_memory_"),
    ),
    fault(
        "mapping for the CPU is forbidden",
        R6_1,
        "GEM_MMAP=EACCES",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_map returned HSA_STATUS_ERROR"),
    ),
    fault(
        "mapping for the CPU fails",
        R6_4,
        "MMAP#20-=ENOMEM",
        Conform("ipc.get.separate_allocations", "hsa_amd_memory_pool_allocate returned"),
    ),
    fault(
        "no memory is left",
        R6_4,
        "ALLOC_MEMORY_OF_GPU#40-=ENOMEM",
        Conform("pool.memory.filled", OUT_OF_RESOURCES),
    ),
    fault("the device has an error", R7_2, "COPY=EIO", Conform("access.gpu.copies", "crashed")),
    // Leaks.
    fault(
        "a free removes the handle, but keeps the memory",
        R6_1,
        "FREE_MEMORY_OF_GPU=leak",
        Conform("release.memory.comes_back", "has lost"),
    ),
    fault(
        "a free succeeds, but does nothing",
        R7_2,
        "FREE_MEMORY_OF_GPU=lost",
        Conform("release.memory.comes_back", "has lost"),
    ),
    fault(
        "a closed handle keeps its memory",
        R6_4,
        "GEM_CLOSE=leak",
        Conform("release.memory.comes_back", "has lost"),
    ),
    fault(
        "each export leaves a descriptor open",
        R7_2,
        "EXPORT_DMABUF=leak",
        Conform("share.export.twice", "open file descriptors"),
    ),
    fault(
        "released memory is not freed",
        SIM,
        "hsa_amd_vmem_handle_release=leak",
        Conform("release.memory.comes_back", "has lost"),
    ),
    fault(
        "freed addresses stay reserved",
        SIM,
        "hsa_amd_vmem_address_free=leak",
        Conform("reserve.free.gives_the_addresses_back", "freed, but still in use"),
    ),
    // Hangs and crashes.
    fault(
        "a call of the driver hangs",
        R6_4,
        "GEM_VA.UNMAP=hang",
        ConformFailFast(
            "runtime.vmm.gives_back_at_its_end",
            "hung: did not end within 10 s, in hsa_amd_vmem_set_access",
        ),
    ),
    fault(
        "a call of the driver that the library makes hangs",
        R7_2,
        "PRIME_HANDLE_TO_FD=hang",
        ConformFailFast(
            "share.host.all_agents",
            "hung: did not end within 10 s, in PRIME_HANDLE_TO_FD",
        ),
    ),
    fault(
        "a call of the driver is always interrupted",
        R6_1,
        "GEM_CLOSE=EINTR",
        ConformFailFast(
            "runtime.vmm.gives_back_at_its_end",
            "hung: did not end within 10 s, in hsa_amd_vmem_",
        ),
    ),
    fault(
        "a call of the runtime hangs",
        SIM,
        "hsa_amd_vmem_unmap=hang",
        ConformFailFast(
            "runtime.vmm.gives_back_at_its_end",
            "hung: did not end within 10 s, in hsa_amd_vmem_unmap",
        ),
    ),
    fault(
        "a call of the runtime crashes",
        Simulation("era=c"),
        "hsa_amd_vmem_map=crash",
        Conform("map.memory.whole_handle", "crashed: SIGABRT, in hsa_amd_vmem_map"),
    ),
    // Contents and reported values.
    fault(
        "a bit is flipped",
        R7_2,
        "COPY=garbled",
        Conform("access.gpu.copies", "1 of 16 32-bit words differs, the first byte at offset 0x0"),
    ),
    fault("a copy is forgotten", R6_1, "COPY=lost", Conform("access.gpu.copies", "of the memory")),
    fault(
        "a copy signals its completion early",
        R6_4,
        "COPY=late:5ms",
        Conform("access.gpu.copies", "of the memory"),
    ),
    fault(
        "half of the data is copied",
        SIM,
        "hsa_amd_memory_async_copy=half",
        Conform("pool.memory.copied_between_gpus", "copied wrong data from"),
    ),
    fault(
        "available memory is reported twice as large",
        R6_1,
        "AVAILABLE_MEMORY=double",
        Conform("create.memory.is_counted", "bytes are available"),
    ),
    fault(
        "the query of available memory fails from the sixth on",
        R7_2,
        "AVAILABLE_MEMORY#6-=EIO",
        Conform(
            "release.memory.comes_back",
            "hsa_agent_get_info(HSA_AMD_AGENT_INFO_MEMORY_AVAIL) returned HSA_STATUS_ERROR_INVALID",
        ),
    ),
    fault(
        "the size of memory is reported as half",
        R6_4,
        "GET_DMABUF_INFO=half",
        Conform("share.import.same_memory", OUT_OF_RESOURCES),
    ),
    fault(
        "granules are reported as half",
        SIM,
        "hsa_amd_memory_pool_get_info=half",
        Conform("pool.granule.power_of_two", "a granule is"),
    ),
    fault(
        "an export returns other memory",
        R7_2,
        "EXPORT_DMABUF=other",
        Conform(
            "granularity.minimum.suffices",
            "hsa_amd_vmem_export_shareable_handle (EXPORT_DMABUF) returns other memory: two exports",
        ),
    ),
    // Random sequences against the model.
    fault(
        "the seventh mapping is lost",
        SIM,
        "hsa_amd_vmem_map#7=lost",
        Fuzz("reservations, handles and mappings in the runtime"),
    ),
    fault(
        "the third unmapping keeps the memory",
        Simulation("era=d"),
        "hsa_amd_vmem_unmap#3=leak",
        Fuzz("video memory and descriptors in the runtime"),
    ),
    fault(
        "GPUs can access half of a range",
        Simulation("era=a"),
        "hsa_amd_vmem_set_access=half",
        Fuzz("page-table entry of GPU"),
    ),
    fault(
        "a bit of a copy is flipped",
        Simulation("era=c"),
        "hsa_amd_memory_async_copy=garbled",
        Fuzz("value read at"),
    ),
    fault(
        "a call of the runtime ends the process",
        SIM,
        "hsa_amd_vmem_unmap#5=crash",
        Fuzz("SIGABRT"),
    ),
    fault(
        "every mapping of a GPU is lost",
        R6_4,
        "GEM_VA.MAP=lost",
        Fuzz("the process ended (SIGABRT"),
    ),
    fault("data that a GPU writes has a flipped bit", R7_2, "COPY=garbled", Fuzz("value read at")),
    fault("the CPU accesses wrong memory", R6_1, "EXPORT_DMABUF=other", Fuzz("value read at")),
    fault("revoked access stays", R6_4, "GEM_VA.UNMAP=lost", Fuzz("set_access")),
    fault(
        "the ninth mapping finds no memory",
        R7_2,
        "GEM_VA.MAP#9=ENOMEM",
        Fuzz("hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"),
    ),
    fault(
        "a GPU accesses memory shifted by a page",
        R6_4,
        "GEM_VA.MAP=shifted",
        Fuzz("page-table entry of GPU 0"),
    ),
    fault(
        "the fifth unmapping never returns",
        R7_2,
        "GEM_VA.UNMAP#5=hang",
        Fuzz("did not end within"),
    ),
    fault("descriptors leak", R6_4, "EXPORT_DMABUF=leak", Fuzz("resources of the process")),
];
