//! The table of defects of AMD's runtime. The tests in this folder check each row.
//!
//! Each row lists the presence of the defect in the releases 6.1.2, 6.4.3 and 7.2.4. The texts are the
//! defect, its source, and the behaviour through the library. A source such as "runtime.cpp" is ROCr's
//! `core/runtime/runtime.cpp` of 2025; `#n` is an issue or pull request of ROCm/rocm-systems.

use crate::defect::Defect;
use crate::defect::Presence::{Crash, No, Undefined, Yes};
use libc::{SIGABRT, SIGSEGV};

const ABORT: &[i32] = &[SIGABRT];
const FAULT: &[i32] = &[SIGSEGV];
/// The contents of the freed memory decide which signal ends the process.
const USE_AFTER_FREE: &[i32] = &[SIGSEGV, SIGABRT];

/// Defines the rows of the table.
macro_rules! defects {
    ($($name:ident: [$($presence:expr),*], $description:literal, $source:literal, $library:literal;)*) => {
        $(
            #[doc = $description]
            pub const $name: Defect = Defect {
                description: $description,
                source: $source,
                library: $library,
                releases: [$($presence),*],
            };
        )*

        /// Every row.
        pub const ALL: &[Defect] = &[$($name),*];
    };
}

defects! {
    IN_OFFSET_IGNORED: [Yes, Yes, Yes],
        "map ignores in_offset and maps the start of the memory",
        "runtime.cpp, VMemoryHandleMap: in_offset is never read",
        "an offset other than 0 is rejected; with `VmmOptions::with_page_tables`, the right part is mapped";
    ACCESS_BEYOND_THE_RANGE: [Yes, Yes, Yes],
        "set_access to the first page of a mapping changes the whole mapping",
        "runtime.cpp, VMemorySetAccess: only the start of the range is compared",
        "a range that splits a mapping is rejected";
    ACCESS_BEYOND_THE_SECOND: [Yes, Yes, Yes],
        "set_access to a mapping and the first page of the next mapping changes the whole next mapping",
        "runtime.cpp, VMemorySetAccess: only the start of the range is compared",
        "a range that splits a mapping is rejected";
    ACCESS_OF_SEVERAL_ABORTS: [Crash(ABORT), No, No],
        "set_access to two mappings aborts the process if the list contains a CPU",
        "runtime.cpp of 6.1: maps each mapping with the total size of both mappings; fixed by ROCR-Runtime 8f1b0566",
        "the library calls set_access once for each mapping: quirk `set_access_of_several_fails`";
    LIST_PARTLY_APPLIED: [Yes, Yes, Yes],
        "if set_access fails for one agent of its list, earlier agents of the list keep their new access",
        "runtime.cpp, VMemorySetAccessPerHandle: returns at the first failure",
        "the library checks every descriptor first; after a failure, it rolls back the earlier changes";
    FAILED_CHANGE_REVOKES_ACCESS: [Yes, Yes, Yes],
        "if set_access fails for an agent, the agent loses its existing access",
        "runtime.cpp, VMemorySetAccessPerHandle: removes before it grants",
        "the library restores the existing access";
    HOLE_IN_THE_RESERVATION: [Yes, Yes, No],
        "after CPU access, unmap leaves an address-space hole; later calls overwrite or unmap a foreign mapping in the hole",
        "runtime.cpp, RemoveAccess: munmap",
        "the library maps the dma-buf for the CPU, so that no hole appears; if it cannot: quirk `cpu_unmap_leaves_hole`. 7.2.4 leaves a hole for a moment, and then overwrites a foreign mapping in the hole";
    CPU_GRANT_AT_MAPPING_LIMIT_ABORTS: [Crash(ABORT), No, No],
        "at the kernel's limit of mappings (vm.max_map_count), set_access for a CPU aborts the process",
        "runtime.cpp of 6.1, EnableAccess: asserts that mmap succeeds",
        "the library maps the dma-buf for the CPU; before the runtime maps memory for the CPU, the library checks that the kernel allows more mappings, but another thread can then reach the limit";
    ACCESS_PAST_THE_END: [Yes, Yes, Yes],
        "get_access at the exclusive end of a mapping succeeds",
        "runtime.cpp, VMemoryGetAccess: <= instead of <",
        "the library reads the access from its ledger";
    ACCESS_OF_CPU_NOT_REPORTED: [Yes, Yes, Yes],
        "get_access fails for a CPU that has access",
        "runtime.cpp, VMemoryGetAccess; CPUs are supported since ROCm 10",
        "the library reads the access from its ledger";
    RETAIN_INSIDE_REJECTED: [Yes, Yes, Yes],
        "retain rejects an address inside a mapping, which HIP allows",
        "runtime.cpp, VMemoryRetainAllocHandle: looks up the address as the start of a mapping",
        "the library finds the handle in its ledger";
    STALE_HANDLE_NAMES_NEW_MEMORY: [Yes, Yes, Yes],
        "a released handle's value refers to memory that is created later",
        "libhsakmt, fmm.c: addresses of mem_handle_aperture are reused at once",
        "rejected: the library never uses a handle's number twice";
    SHUTDOWN_CRASHES: [No, Crash(USE_AFTER_FREE), No],
        "hsa_shut_down crashes if a GPU has access to a mapping",
        "runtime.cpp, Unload: agents are deleted before the mappings that use them",
        "the library unmaps all mappings before it stops the runtime";
    ADDRESSES_OUTLIVE_STOP: [Yes, Yes, Yes],
        "hsa_shut_down leaves reservations in the address space until the process ends",
        "runtime.cpp, Unload: drops mappings and handles, but does not free reservations",
        "the library frees all reservations before it stops the runtime";
    FREED_MEMORY_BLOCKS: [No, Yes, Yes],
        "hsa_amd_ipc_memory_attach of freed memory that is shared by dma-buf never returns, and uses a full CPU",
        "runtime.cpp, ReceiveDmaBufFd: calls recvmsg until it returns data, even at the end of file",
        "rejected at once: the importer looks up exports in a table";
    ATTACH_LEAVES_A_SOCKET: [Yes, No, No],
        "each hsa_amd_ipc_memory_attach leaks a descriptor",
        "observed; the runtime first creates a socket, which it does not close, and then chooses the driver's own method, which uses no socket",
        "cannot be prevented by the library";
    SMALL_MEMORY_KEEPS_ACCESS: [Yes, Yes, Yes],
        "hsa_amd_agents_allow_access revokes no access to a GPU's memory whose size is no multiple of 2 MiB, and grants access to the whole block of 2 MiB, in which other memory can be",
        "amd_memory_region.cpp, AllowAccess: keeps all agents of a block that several allocations share",
        "cannot be prevented by the library: `PoolMemory::allow` documents it";
    HIDDEN_OWNER_BLOCKS: [Yes, Yes, Yes],
        "a copy of a page or more to memory of another process never ends if ROCR_VISIBLE_DEVICES hides the owner from the importer",
        "amd_gpu_agent.cpp, DmaCopy: if both agents of the copy are equal, it looks up the owner; for a hidden owner, it divides the copy into 0 parts",
        "the library names a CPU as the agent of the source";
    FREED_MEMORY_OPENED: [Yes, Yes, No],
        "hsa_amd_ipc_memory_attach opens freed memory of 2 MiB, because the runtime keeps this memory for reuse",
        "observed; the runtime caches freed memory, which stays exported",
        "rejected: the importer looks up exports in a table";
    IPC_LENGTH_NOT_CHECKED: [Yes, Yes, Yes],
        "hsa_amd_ipc_memory_attach accepts any length; a copy past the end of the memory then causes a page fault of the GPU",
        "runtime.cpp, IPCAttach: records the length, and compares it with the size only if the memory is a part of a larger block",
        "after attaching, the library looks up the last byte; if this byte is not mapped, the library rejects the handle";
    IPC_SERVER_OUTLIVES_STOP: [No, Yes, Yes],
        "after an export for IPC by dma-buf, hsa_shut_down sometimes crashes the process",
        "runtime.cpp, Unload: the thread that serves the socket frees memory that was already freed; fixed by #3256",
        "the library does not stop a runtime that has exported memory by dma-buf: quirk `ipc_server_outlives_stop`";
    IPC_NAME_IN_USE_ABORTS: [No, Crash(ABORT), Crash(ABORT)],
        "hsa_amd_ipc_memory_create by dma-buf aborts the process if another process of the network namespace has bound the abstract socket hsa<process>; this can be a process of any user, or one that has the same process ID in another PID namespace",
        "runtime.cpp, IPCCreate: asserts that bind to the abstract socket hsa<process> succeeds",
        "the library checks the name before the call, and returns an error with advice; if another process binds the name between check and call, the process still aborts";
    IPC_SERVER_TRUSTS_ANYONE: [No, Yes, Yes],
        "the runtime sends memory exported for IPC by dma-buf to any process of any user that connects to the abstract socket hsa<process> and knows the memory's address",
        "observed; the server does not check the peer",
        "cannot be prevented by the library; a separate network namespace keeps other processes out";
    IPC_SERVER_SURVIVES_EXEC: [No, Yes, Yes],
        "programs that the process starts inherit the listening socket of the server of IPC by dma-buf; such a program can answer importers in the name of the process",
        "runtime.cpp, IPCCreate: creates the socket without SOCK_CLOEXEC",
        "the library sets the close-on-exec flag after hsa_amd_ipc_memory_create; a program that another thread starts during that call still inherits the socket";
    IPC_SERVER_BLOCKS: [No, Yes, Yes],
        "if a process of any user has requested exported memory from the IPC server of this process, hsa_amd_ipc_memory_create by dma-buf blocks until that process acknowledges the reply or exits",
        "observed; the server waits for the acknowledgement while holding its lock, without a time limit",
        "cannot be prevented by the library; freeing the memory does not block";
    IPC_EXPORT_KEEPS_MEMORY: [No, No, Yes],
        "memory exported for IPC by dma-buf is not released when it is freed; it stays allocated until the process ends",
        "observed, also on AMD's kernel driver: hsa_amd_ipc_memory_create imports the memory with libdrm and never closes the import",
        "cannot be prevented by the library; with HSA_ENABLE_IPC_MODE_LEGACY=1, the memory is released, except as in the next row. Export memory once, and use it again";
    SMALL_EXPORT_LEAKS_BLOCK: [Yes, Yes, Yes],
        "if memory of less than 2 MiB is exported for IPC by the driver's own method while other memory is in the same block of 2 MiB, the block stays allocated until the process ends",
        "observed",
        "cannot be prevented by the library. Allocate at least 2 MiB for an export, or export memory once, and use it again";
    FREE_SPOILS_OTHER_EXPORTS: [No, No, Yes],
        "after memory of less than 2 MiB that was exported for IPC by dma-buf was freed, hsa_amd_ipc_memory_attach rejects the handles of other memory in the same block of 2 MiB, if these handles were created after the first export",
        "observed; the runtime stores a random number in the metadata of the block's GEM object and in each handle, and clears the number when it frees the memory that was exported first",
        "the importer repeats the call with a handle that the runtime accepts. If the exporter has exported other memory of the block after the free, the handle stays invalid: allocate at least 2 MiB for an export";
    SIGNAL_USED_AFTER_COPY: [Crash(FAULT), Crash(FAULT), Crash(FAULT)],
        "a copy by a CPU sometimes crashes the process if the program destroys the copy's signal on completion",
        "runtime.cpp, CopyMemory: the copying thread decrements the signal and then still uses it",
        "the calling thread copies with loads and stores, without the runtime";
    REVOKE_KEEPS_PAGE_TABLE: [Yes, Yes, Yes],
        "set_access with NONE does not change a GPU's page table",
        "libdrm, amdgpu_bo_va_op: does not pass on the flags",
        "`Vmm::revoke` removes the access; with `VmmOptions::with_page_tables`, `set_access` removes it too";
    READ_ONLY_IS_WRITABLE: [Yes, Yes, Yes],
        "a GPU with read access can write",
        "libdrm, amdgpu_bo_va_op: does not pass on the flags",
        "prevented with `VmmOptions::with_page_tables`; otherwise `Vmm::enforcement` reports it";
    INVENTED_AGENT_CRASHES: [Crash(FAULT), Crash(FAULT), Crash(FAULT)],
        "set_access for an agent that does not exist crashes",
        "agent.h, Agent::Convert: the handle is a pointer",
        "rejected: the library knows every agent of the runtime";
    WRITE_ONLY_ACCEPTED: [Yes, Yes, Yes],
        "a GPU with write-only access can read",
        "libdrm, amdgpu_bo_va_op",
        "impossible: `Access` has no such value";
    INVENTED_PERMISSION_ACCEPTED: [Yes, Yes, Yes],
        "set_access accepts a permission that does not exist",
        "runtime.cpp, VMemorySetAccess: any number is stored",
        "impossible: `Access` has no such value, and `Access::from_bits` returns `None`";
    UNALIGNED_ADDRESS_MAPPED: [Yes, Yes, No],
        "map accepts an address that is not a multiple of the page size; no agent can then get access to the mapping",
        "runtime.cpp, VMemoryHandleMap: the address is not checked",
        "rejected";
    UNALIGNED_SIZE_MAPPED: [Yes, Yes, Yes],
        "map accepts a size that is not a multiple of the page size",
        "runtime.cpp, VMemoryHandleMap: the size is not checked",
        "rejected";
    HINT_OVERRIDES_ALIGNMENT: [Yes, Yes, Yes],
        "a reservation with a hint is not aligned as requested",
        "libhsakmt, fmm.c: MAP_FIXED_NOREPLACE at the hint; 6.1.2 supports no alignment",
        "aligned as requested";
    UNMAP_OF_SEVERAL_FAILS: [Yes, Yes, No],
        "unmap of two whole mappings fails",
        "ROCR-Runtime#285, fixed by f0ce7a8e5",
        "the library unmaps each mapping with a call of its own: quirk `unmap_of_several_fails`";
    UNNAMED_AGENTS_LOSE_ACCESS: [Yes, No, No],
        "a change of one agent's access revokes the access of agents that are not in the list",
        "fixed by ROCR-Runtime 73f6bfa7",
        "the library lists all agents in each call: quirk `set_access_drops_unnamed_agents`";
    FILL_FAILS: [Yes, Yes, No],
        "hsa_amd_memory_fill does not fill virtual memory; 6.1.2 even returns success",
        "runtime.cpp, FillMemory: chooses the agent by the runtime's own record of the address",
        "the library fills memory without this function";
    RESERVATION_CAN_BE_WRITTEN: [Yes, No, No],
        "reserved addresses can be written before memory is mapped there, and the data is lost",
        "/proc/self/maps shows rw-p",
        "the library protects the addresses when it reserves them";
    MEMORY_KEPT_AFTER_UNMAP: [No, No, Yes],
        "unmapped and released memory is freed only when its addresses are freed, or when other memory is mapped there",
        "torch_memory_saver#83, #84, vllm#46203",
        "worked around: quirk `unmap_keeps_memory`";
    TOO_LARGE_IS_OUT_OF_RESOURCES: [Yes, Yes, No],
        "a mapping larger than the memory fails with the status `out of resources`",
        "runtime.cpp, VMemoryHandleMap: returns this status for any failure of ExportDMABuf",
        "rejected as an invalid size";
    UNALIGNED_SIZE_IS_OUT_OF_RESOURCES: [Yes, Yes, Yes],
        "a reservation whose size is not a multiple of the page size fails with the status `out of resources`",
        "runtime.cpp, VMemoryAddressReserve: returns this status for any failure of hsaKmtAllocMemoryAlign",
        "rejected as an invalid size";
    IMPORT_HAS_ANOTHER_POOL: [Yes, Yes, Yes],
        "imported memory is reported to be from another pool",
        "runtime.cpp, VMemoryImportShareableHandle: uses the last region of the GPU",
        "the library reports the GPU that owns the memory; imported memory of the host is reported as memory of a GPU";
    CREATED_WITHOUT_MEMORY: [Yes, No, No],
        "handle_create without free memory succeeds, and returns a handle that refers to no memory",
        "amd_memory_region.cpp of 6.1, AllocateImpl: returns before checking",
        "an error: out of memory. If several threads run out of memory at the same time, the runtime may warn that it cannot find a memory handle; this is harmless";
    GRANT_WITHOUT_DESCRIPTOR_ABORTS: [Crash(ABORT), Crash(ABORT), Crash(ABORT)],
        "if the process has no free file descriptor, set_access for a GPU aborts the process",
        "runtime.cpp, MappedHandleAllowedAgent: asserts that the export and the import succeed, so it also aborts if \
         the driver rejects one of them",
        "the library checks before the call, but another thread can then use the last descriptor: quirk \
         `grant_without_descriptor_aborts`";
    FIRST_COPY_NEEDS_MEMORY: [No, No, Crash(ABORT)],
        "if the memory of a GPU of some models (gfx90a) is full, its first copy or fill aborts the process, and so does its first copy of at least 1 MiB",
        "amd_gpu_agent.cpp, ReleaseQueueMainScratch: asserts that the queue, which could not be created, has scratch memory",
        "cannot be prevented by the library. Before the memory is full, copy a few bytes once, and 2 MiB once, with each GPU";
    MAP_LEAKS_DESCRIPTOR: [Yes, Yes, Yes],
        "a map that the kernel rejects leaks a descriptor",
        "runtime.cpp, VMemoryHandleMap: returns before it closes the dma-buf",
        "cannot be prevented by the library";
    MAP_LEAKS_MEMORY: [Yes, Yes, Yes],
        "after the kernel has rejected a map, releasing the memory does not free it",
        "runtime.cpp, VMemoryHandleMap: returns without freeing the imported buffer",
        "cannot be prevented by the library";
    LOCKED_FOR_ALL_GPUS: [Yes, Yes, Yes],
        "hsa_amd_memory_lock gives access to a GPU that is not in the list",
        "observed in the driver's page tables",
        "cannot be prevented by the library";
    TWICE_LOCKED_STAYS_LOCKED: [Yes, Yes, Crash(ABORT)],
        "after two locks with the same start, unlocking releases neither lock, or aborts the process",
        "libhsakmt, fmm.c: registrations are looked up by their start only",
        "the second lock is rejected: `ErrorKind::HostMemoryMapped`";
    RESERVES_MORE_THAN_EXISTS: [No, Undefined, Undefined],
        "a reservation of the whole address space minus one page succeeds and may damage the heap",
        "observed, once with a crash in malloc; the rounded size overflows",
        "an error: out of address space";
}
