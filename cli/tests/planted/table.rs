//! The faults that are planted, and what finds each.

/// Below what the tool runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The simulation, so configured.
    Simulation(&'static str),
    /// AMD's own runtime of this release, on the emulated driver.
    Release(&'static str),
}

/// Who is to find a fault, and what it is to say.
#[derive(Clone, Copy, Debug)]
pub enum Finder {
    /// The case that must fail, and words of its detail.
    Conform(&'static str, &'static str),
    /// As conform, which ends with the first case that fails: each would take its time limit.
    ConformAtOnce(&'static str, &'static str),
    /// Words of the difference.
    Fuzz(&'static str),
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    pub name: &'static str,
    pub target: Target,
    /// In the language of `hsa-faults`.
    pub plan: &'static str,
    pub finder: Finder,
}

const fn planted(
    name: &'static str,
    target: Target,
    plan: &'static str,
    finder: Finder,
) -> Planted {
    Planted { name, target, plan, finder }
}

use Finder::{Conform, ConformAtOnce, Fuzz};
use Target::{Release, Simulation};

const OLD: Target = Release("6.1.2");
const MIDDLE: Target = Release("6.4.3");
const NEW: Target = Release("7.2.4");
const SIM: Target = Simulation("");
/// The runtime gives the CPU its access, and not the library.
const BY_RUNTIME: Target = Simulation("dmabuf-cpu-mapping=off");
const ENFORCED: Target = Simulation("permissions=enforced");

const BY_PAGE_TABLE: &str = "access.gpu.as_its_page_table_has_it";
const OUT_OF: &str = "HSA_STATUS_ERROR_OUT_OF_RESOURCES";

pub const PLANTED: &[Planted] = &[
    // Mappings that are lost, late, of something else.
    planted(
        "a mapping of the GPU is lost",
        OLD,
        "GEM_VA.MAP=lost",
        Conform(BY_PAGE_TABLE, "no page-table entry at offset 0x0 after Read"),
    ),
    planted(
        "a mapping of the GPU is late",
        MIDDLE,
        "GEM_VA.MAP=late:5ms",
        Conform(BY_PAGE_TABLE, "no page-table entry at offset 0x0 after Read"),
    ),
    planted(
        "half of a mapping is lost",
        NEW,
        "GEM_VA.MAP=half",
        Conform(BY_PAGE_TABLE, "no page-table entry at offset 0x2000 after Read"),
    ),
    planted(
        "the GPU is shown memory a page further on",
        MIDDLE,
        "GEM_VA.MAP=shifted",
        Conform(BY_PAGE_TABLE, "4096 instead of 0"),
    ),
    planted(
        "what is unmapped stays in the page table",
        MIDDLE,
        "GEM_VA.UNMAP=lost",
        Conform("unmap.gpu.page_table_forgets", "after "),
    ),
    planted(
        "what is unmapped goes later",
        NEW,
        "GEM_VA.UNMAP=late:5ms",
        Conform("unmap.gpu.page_table_forgets", ""),
    ),
    planted(
        "the engines see a mapping late",
        NEW,
        "GEM_VA.MAP=unseen:50ms",
        Conform("map.memory.whole_handle", "in the memory"),
    ),
    planted(
        "the engines still use what is unmapped",
        MIDDLE,
        "GEM_VA.UNMAP=stale:50ms",
        Conform("map.again.other_handles", "in the memory"),
    ),
    planted(
        "an import moves the memory",
        OLD,
        "PRIME_FD_TO_HANDLE=evict",
        Conform("access.gpus.peer_after_the_owner", "for GPU 0"),
    ),
    planted(
        "the twentieth mapping is lost",
        SIM,
        "hsa_amd_vmem_map#20=lost",
        Conform("create.memory.is_its_own", "set_access"),
    ),
    planted(
        "every mapping is late",
        SIM,
        "hsa_amd_vmem_map=late:5ms",
        Conform("map.memory.whole_handle", "set_access"),
    ),
    planted(
        "the twentieth unmapping is lost",
        Simulation("era=a"),
        "hsa_amd_vmem_unmap#20=lost",
        Conform("create.memory.is_its_own", "RESOURCE_FREE"),
    ),
    planted(
        "GPUs see other memory",
        Simulation("era=c"),
        "hsa_amd_vmem_set_access=other",
        Conform("map.memory.whole_handle", "in the memory"),
    ),
    planted(
        "GPUs see half of it",
        SIM,
        "hsa_amd_vmem_set_access=half",
        Conform(BY_PAGE_TABLE, "no page-table entry"),
    ),
    planted(
        "GPUs see it a page further on",
        Simulation("era=d"),
        "hsa_amd_vmem_set_access=shifted",
        Conform(BY_PAGE_TABLE, "4096 instead of 0"),
    ),
    planted(
        "a descriptor leads to other memory",
        OLD,
        "EXPORT_DMABUF=other",
        Conform("map.memory.whole_handle", "in the memory"),
    ),
    // Permissions.
    planted(
        "access is not set",
        SIM,
        "hsa_amd_vmem_set_access=lost",
        Conform(BY_PAGE_TABLE, "no page-table entry at offset 0x0 after Read"),
    ),
    planted(
        "a GPU may only read",
        NEW,
        "GEM_VA.MAP=narrow",
        Conform(BY_PAGE_TABLE, "ReadWrite was granted, but the page is not writable"),
    ),
    planted(
        "a GPU may write what it may read",
        ENFORCED,
        "hsa_amd_vmem_set_access=wide",
        Conform(BY_PAGE_TABLE, "Read was granted, but the page is writable"),
    ),
    planted(
        "the CPU may only read",
        BY_RUNTIME,
        "hsa_amd_vmem_set_access=narrow",
        Conform("access.cpu.as_the_kernel_has_it", "ReadWrite was granted, and the kernel has r--"),
    ),
    // Errors of the kernel.
    planted(
        "no memory for page tables",
        OLD,
        "GEM_VA.MAP=ENOMEM",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"),
    ),
    planted(
        "a mapping is invalid",
        NEW,
        "GEM_VA.MAP=EINVAL",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"),
    ),
    planted(
        "there is nothing to unmap",
        NEW,
        "GEM_VA.UNMAP=ENOENT",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_unmap returned HSA_STATUS_ERROR"),
    ),
    planted(
        "too many open files",
        MIDDLE,
        "EXPORT_DMABUF=EMFILE",
        Conform("map.memory.whole_handle", OUT_OF),
    ),
    planted(
        "a descriptor names nothing",
        MIDDLE,
        "PRIME_FD_TO_HANDLE=ENOENT",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_map returned HSA_STATUS_ERROR"),
    ),
    planted(
        "imports are refused",
        OLD,
        "IMPORT_DMABUF=EINVAL",
        Conform("share.import.same_memory", "is not memory that this runtime can import"),
    ),
    planted(
        "descriptors are bad",
        MIDDLE,
        "GET_DMABUF_INFO=EBADF",
        Conform("share.import.same_memory", "is not memory that this runtime can import"),
    ),
    planted(
        "memory is busy",
        NEW,
        "FREE_MEMORY_OF_GPU=EBUSY",
        Conform("pool.memory.holds_what_is_written", "crashed: SIGABRT, in hsa_amd_memory_"),
    ),
    planted(
        "mapping for the CPU is forbidden",
        OLD,
        "GEM_MMAP=EACCES",
        Conform("map.memory.whole_handle", "hsa_amd_vmem_map returned HSA_STATUS_ERROR"),
    ),
    planted(
        "mapping for the CPU fails",
        MIDDLE,
        "MMAP#20-=ENOMEM",
        Conform("ipc.get.separate_allocations", "hsa_amd_memory_pool_allocate returned"),
    ),
    planted(
        "the memory is at an end",
        MIDDLE,
        "ALLOC_MEMORY_OF_GPU#40-=ENOMEM",
        Conform("pool.memory.filled", OUT_OF),
    ),
    planted("the device has an error", NEW, "COPY=EIO", Conform("access.gpu.copies", "crashed")),
    // Leaks.
    planted(
        "freed memory stays taken",
        OLD,
        "FREE_MEMORY_OF_GPU=leak",
        Conform("release.memory.comes_back", "has lost"),
    ),
    planted(
        "freeing is forgotten",
        NEW,
        "FREE_MEMORY_OF_GPU=lost",
        Conform("release.memory.comes_back", "has lost"),
    ),
    planted(
        "a closed handle keeps its memory",
        MIDDLE,
        "GEM_CLOSE=leak",
        Conform("release.memory.comes_back", "has lost"),
    ),
    planted(
        "each export leaves a descriptor open",
        NEW,
        "EXPORT_DMABUF=leak",
        Conform("share.export.twice", "open file descriptors"),
    ),
    planted(
        "released memory is not freed",
        SIM,
        "hsa_amd_vmem_handle_release=leak",
        Conform("release.memory.comes_back", "has lost"),
    ),
    planted(
        "freed addresses stay reserved",
        SIM,
        "hsa_amd_vmem_address_free=leak",
        Conform("reserve.free.gives_the_addresses_back", "freed, but still in use"),
    ),
    // What never returns, and what ends the process.
    planted(
        "a call of the driver hangs",
        MIDDLE,
        "GEM_VA.UNMAP=hang",
        ConformAtOnce(
            "runtime.vmm.gives_back_at_its_end",
            "hung: did not end within 10 s, in hsa_amd_vmem_unmap",
        ),
    ),
    planted(
        "a call of the driver is always interrupted",
        OLD,
        "GEM_CLOSE=EINTR",
        ConformAtOnce(
            "runtime.vmm.gives_back_at_its_end",
            "hung: did not end within 10 s, in hsa_amd_vmem_",
        ),
    ),
    planted(
        "a call of the runtime hangs",
        SIM,
        "hsa_amd_vmem_unmap=hang",
        ConformAtOnce(
            "runtime.vmm.gives_back_at_its_end",
            "hung: did not end within 10 s, in hsa_amd_vmem_unmap",
        ),
    ),
    planted(
        "a call of the runtime crashes",
        Simulation("era=c"),
        "hsa_amd_vmem_map=crash",
        Conform("map.memory.whole_handle", "crashed: SIGABRT, in hsa_amd_vmem_map"),
    ),
    // Contents and reported values.
    planted(
        "a bit is flipped",
        NEW,
        "COPY=garbled",
        Conform("access.gpu.copies", "bytes differ, first at offset 0x0"),
    ),
    planted("a copy is forgotten", OLD, "COPY=lost", Conform("access.gpu.copies", "in the memory")),
    planted(
        "a copy is done before it is done",
        MIDDLE,
        "COPY=late:5ms",
        Conform("access.gpu.copies", "in the memory"),
    ),
    planted(
        "half is copied",
        SIM,
        "hsa_amd_memory_async_copy=half",
        Conform("pool.memory.copied_between_gpus", "not all was copied"),
    ),
    planted(
        "a GPU has more left than it has",
        OLD,
        "AVAILABLE_MEMORY=double",
        Conform("create.memory.is_counted", "bytes are available"),
    ),
    planted(
        "memory is larger than it is",
        MIDDLE,
        "GET_DMABUF_INFO=half",
        Conform("share.import.same_memory", OUT_OF),
    ),
    planted(
        "granules are half as large",
        SIM,
        "hsa_amd_memory_pool_get_info=half",
        Conform("pool.granule.power_of_two", "a granule is"),
    ),
    // Random sequences against the model.
    planted(
        "the seventh mapping is lost",
        SIM,
        "hsa_amd_vmem_map#7=lost",
        Fuzz("reservations, handles and mappings in the runtime"),
    ),
    planted(
        "the third unmapping keeps the memory",
        Simulation("era=d"),
        "hsa_amd_vmem_unmap#3=leak",
        Fuzz("video memory and descriptors in the runtime"),
    ),
    planted(
        "GPUs see half of a range",
        Simulation("era=a"),
        "hsa_amd_vmem_set_access=half",
        Fuzz("page of GPU"),
    ),
    planted(
        "a bit of a copy is turned round",
        Simulation("era=c"),
        "hsa_amd_memory_async_copy=garbled",
        Fuzz("value read at"),
    ),
    planted(
        "a call of the runtime ends the process",
        SIM,
        "hsa_amd_vmem_unmap#5=crash",
        Fuzz("SIGABRT"),
    ),
    planted(
        "every mapping of a GPU is lost",
        MIDDLE,
        "GEM_VA.MAP=lost",
        Fuzz("the process ended (SIGABRT"),
    ),
    planted("what a GPU writes has a bit turned round", NEW, "COPY=garbled", Fuzz("value read at")),
    planted("the CPU sees other memory", OLD, "EXPORT_DMABUF=other", Fuzz("value read at")),
    planted("what is revoked stays", MIDDLE, "GEM_VA.UNMAP=lost", Fuzz("set_access")),
    planted(
        "the ninth mapping finds no memory",
        NEW,
        "GEM_VA.MAP#9=ENOMEM",
        Fuzz("hsa_amd_vmem_set_access returned HSA_STATUS_ERROR"),
    ),
    planted(
        "a GPU sees memory a page further on",
        MIDDLE,
        "GEM_VA.MAP=shifted",
        Fuzz("value read at"),
    ),
    planted(
        "the fifth unmapping never returns",
        NEW,
        "GEM_VA.UNMAP#5=hang",
        Fuzz("did not end within"),
    ),
    planted("descriptors leak", MIDDLE, "EXPORT_DMABUF=leak", Fuzz("what the process has")),
];
