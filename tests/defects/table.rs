//! The table of defects of AMD's runtime. The tests in this folder prove each row.
//!
//! The columns are the releases 6.1.2, 6.4.3 and 7.2.4. Each row has the defect, its source, and the
//! behaviour through the library. A source such as "runtime.cpp" is ROCr's
//! `core/runtime/runtime.cpp` of 2025; `#n` is an issue of ROCm/rocm-systems.

use crate::defect::Defect;
use crate::defect::Presence::{Crash, No, Undefined, Yes};
use libc::{SIGABRT, SIGSEGV};

const ABORT: &[i32] = &[SIGABRT];
const FAULT: &[i32] = &[SIGSEGV];
/// What freed memory contains decides which signal it is.
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
        "an offset other than 0 is refused, or mapped with `VmmOptions::with_page_tables`";
    ACCESS_BEYOND_THE_RANGE: [Yes, Yes, Yes],
        "set_access to the first page of a mapping changes the whole mapping",
        "runtime.cpp, VMemorySetAccess: only the start of the range is compared",
        "a range that splits a mapping is refused";
    ACCESS_BEYOND_THE_SECOND: [Yes, Yes, Yes],
        "set_access to a mapping and one page of the next changes all of the next",
        "as above",
        "as above";
    ACCESS_OF_SEVERAL_ABORTS: [Crash(ABORT), No, No],
        "set_access to two mappings aborts the process if the list contains a CPU",
        "runtime.cpp of 6.1: maps each mapping with the size of both; fixed by ROCR-Runtime 8f1b0566",
        "called once for each mapping: quirk `set_access_of_several_fails`";
    LIST_HALF_APPLIED: [Yes, Yes, Yes],
        "if a later agent of the list is refused, the earlier ones keep their new access",
        "runtime.cpp, VMemorySetAccessPerHandle: returns at the first failure",
        "every descriptor is checked first; on failure, earlier changes are rolled back";
    REFUSED_CHANGE_TAKES_ACCESS: [Yes, Yes, Yes],
        "a refused change of access revokes the existing access",
        "runtime.cpp, VMemorySetAccessPerHandle: removes before it grants",
        "the existing access is restored";
    HOLE_IN_THE_RESERVATION: [Yes, Yes, No],
        "unmap after CPU access leaves a hole, in which a foreign mapping is overwritten or freed",
        "runtime.cpp, RemoveAccess: munmap",
        "the CPU accesses a mapping of the dma-buf, so that there is no hole; else quirk `cpu_unmap_leaves_hole`";
    ACCESS_PAST_THE_END: [Yes, Yes, Yes],
        "get_access at the exclusive end of a mapping succeeds",
        "runtime.cpp, VMemoryGetAccess: <= instead of <",
        "the library's ledger has the access";
    ACCESS_OF_CPU_NOT_REPORTED: [Yes, Yes, Yes],
        "get_access refuses a CPU that has access",
        "runtime.cpp, VMemoryGetAccess; supported since ROCm 10",
        "the library's ledger has the access";
    RETAIN_INSIDE_REFUSED: [Yes, Yes, Yes],
        "retain refuses an address inside a mapping, which HIP allows",
        "runtime.cpp, VMemoryRetainAllocHandle: looks up the address as the start of a mapping",
        "the library's ledger has the handle";
    STALE_HANDLE_NAMES_NEW_MEMORY: [Yes, Yes, Yes],
        "a released handle's value refers to memory that is created later",
        "libhsakmt, fmm.c: addresses of mem_handle_aperture are reused at once",
        "handles are the library's own, with a generation: a stale one is refused";
    SHUTDOWN_CRASHES: [No, Crash(USE_AFTER_FREE), No],
        "hsa_shut_down crashes if a GPU has access to a mapping",
        "runtime.cpp, Unload: agents are deleted before the mappings that use them",
        "all mappings are unmapped before the runtime stops";
    ADDRESSES_OUTLIVE_STOP: [Yes, Yes, Yes],
        "hsa_shut_down leaves reservations in the address space until the process ends",
        "runtime.cpp, Unload: mappings and handles are dropped, reservations are not freed",
        "all reservations are freed before the runtime stops";
    FREED_MEMORY_BLOCKS: [No, Yes, Yes],
        "hsa_amd_ipc_memory_attach, by dma-buf, of freed memory never returns and uses a full CPU",
        "runtime.cpp, ReceiveDmaBufFd: calls recvmsg until it returns data, even at the end of file",
        "refused at once: the importer looks up exports in a table";
    ATTACH_LEAVES_A_SOCKET: [Yes, No, No],
        "each hsa_amd_ipc_memory_attach leaks a descriptor",
        "observed; a socket is created before the runtime chooses the driver's own method, which does not use it",
        "cannot be prevented by the library";
    FREED_MEMORY_OPENED: [Yes, Yes, No],
        "hsa_amd_ipc_memory_attach opens 2 MiB of freed memory, which the runtime keeps for reuse",
        "observed; freed memory stays in a pool of blocks, which are still exported",
        "refused: the importer looks up exports in a table";
    IPC_LENGTH_NOT_CHECKED: [Yes, Yes, Yes],
        "hsa_amd_ipc_memory_attach accepts any length; a copy past the end of the memory is a GPU page fault",
        "runtime.cpp, IPCAttach: records the length, and limits the length only for a part of a block",
        "after attaching, the library looks up the last byte; if it is not mapped, the handle is refused";
    IPC_SERVER_OUTLIVES_STOP: [No, Yes, Yes],
        "hsa_shut_down after an export for IPC, by dma-buf, sometimes crashes the process",
        "runtime.cpp, Unload: the thread at the socket frees memory that was already freed; fixed by #3256",
        "the runtime is not stopped after such an export: quirk `ipc_server_outlives_stop`";
    IPC_NAME_IN_USE_ABORTS: [No, Crash(ABORT), Crash(ABORT)],
        "hsa_amd_ipc_memory_create, by dma-buf, aborts the process if another process of the network namespace has the abstract socket hsa<process>: one with the same process ID in another PID namespace, or of any user",
        "runtime.cpp, IPCCreate: asserts that bind to the abstract socket hsa<process> succeeds",
        "refused before the call, with advice; if another process binds the name between that check and the call, the process still aborts";
    IPC_SERVER_TRUSTS_ANYONE: [No, Yes, Yes],
        "memory exported for IPC, by dma-buf, is sent to any process of any user that connects to the abstract socket hsa<process> and knows the memory's address",
        "observed; the server does not check the peer",
        "cannot be prevented by the library; a separate network namespace keeps other processes out";
    IPC_SERVER_BLOCKS: [No, Yes, Yes],
        "hsa_amd_ipc_memory_create, by dma-buf, blocks until a process of any user that has requested memory acknowledges it or exits",
        "observed; the server waits for the acknowledgement while holding its lock, without a time limit",
        "cannot be prevented by the library; freeing the memory does not block";
    SIGNAL_USED_AFTER_COPY: [Crash(FAULT), Crash(FAULT), Crash(FAULT)],
        "a copy by a CPU sometimes crashes the process if its signal is destroyed on completion",
        "runtime.cpp, CopyMemory: the copying thread decrements the signal and then still uses it",
        "copies by a CPU are this process's own loads and stores";
    REVOKE_KEEPS_PAGE_TABLE: [Yes, Yes, Yes],
        "set_access with NONE does not change a GPU's page table",
        "libdrm, amdgpu_bo_va_op: the flags are not passed on",
        "`Vmm::revoke` removes the access; `set_access` does with `VmmOptions::with_page_tables`";
    READ_ONLY_IS_WRITABLE: [Yes, Yes, Yes],
        "a GPU with read access can write",
        "as above",
        "prevented with `VmmOptions::with_page_tables`; otherwise `Vmm::enforcement` reports it";
    INVENTED_AGENT_CRASHES: [Crash(FAULT), Crash(FAULT), Crash(FAULT)],
        "set_access for an agent that does not exist crashes",
        "agent.h, Agent::Convert: the handle is a pointer",
        "refused: agents are the library's own values";
    WRITE_ONLY_ACCEPTED: [Yes, Yes, Yes],
        "a GPU with write-only access can read",
        "libdrm, amdgpu_bo_va_op",
        "impossible: `Access` has no such value";
    INVENTED_PERMISSION_ACCEPTED: [Yes, Yes, Yes],
        "set_access accepts a permission that does not exist",
        "runtime.cpp, VMemorySetAccess: any number is stored",
        "impossible: `Access` has no such value, and `Access::from_bits` returns `None`";
    UNALIGNED_ADDRESS_MAPPED: [Yes, Yes, No],
        "map accepts an address inside a page; no agent can then get access to it",
        "runtime.cpp, VMemoryHandleMap: the address is not checked",
        "refused";
    UNALIGNED_SIZE_MAPPED: [Yes, Yes, Yes],
        "map accepts a part of a page",
        "as above",
        "refused";
    HINT_OVERRIDES_ALIGNMENT: [Yes, Yes, Yes],
        "a reservation with a hint is not aligned as requested",
        "libhsakmt, fmm.c: MAP_FIXED_NOREPLACE at the hint; 6.1.2 supports no alignment",
        "aligned as requested";
    UNMAP_OF_SEVERAL_REFUSED: [Yes, Yes, No],
        "unmap of two whole mappings is refused",
        "ROCR-Runtime#285, fixed by f0ce7a8e5",
        "unmapped one by one: quirk `unmap_of_several_fails`";
    UNNAMED_AGENTS_LOSE_ACCESS: [Yes, No, No],
        "a change of one agent's access revokes the access of agents that are not in the list",
        "fixed by ROCR-Runtime 73f6bfa7",
        "all agents are listed in each call: quirk `set_access_drops_unnamed_agents`";
    FILL_REFUSED: [Yes, Yes, No],
        "hsa_amd_memory_fill does not fill virtual memory; 6.1.2 even returns success",
        "runtime.cpp, FillMemory: chooses the agent by its records of the address",
        "filled without that function";
    RESERVATION_CAN_BE_WRITTEN: [Yes, No, No],
        "reserved addresses can be written before memory is mapped there, and the data is lost",
        "/proc/self/maps shows rw-p",
        "protected when reserved";
    MEMORY_KEPT_AFTER_UNMAP: [No, No, Yes],
        "unmapped and released memory is freed only with its addresses",
        "torch_memory_saver#84",
        "quirks `unmap_keeps_memory`, `memory_returns_with_addresses`";
    TOO_LARGE_IS_OUT_OF_RESOURCES: [Yes, Yes, No],
        "a mapping larger than the memory fails with out of resources",
        "runtime.cpp, VMemoryHandleMap: returns this status for any failure of ExportDMABuf",
        "refused as an invalid size";
    ODD_SIZE_IS_OUT_OF_RESOURCES: [Yes, Yes, Yes],
        "a reservation whose size is not a multiple of the page fails with out of resources",
        "runtime.cpp, VMemoryAddressReserve: returns this status for any failure of hsaKmtAllocMemoryAlign",
        "refused as an invalid size";
    IMPORT_HAS_ANOTHER_POOL: [Yes, Yes, Yes],
        "imported memory is reported to be from another pool",
        "runtime.cpp, VMemoryImportShareableHandle: uses the last region of the GPU",
        "the properties name the owner";
    CREATED_WITHOUT_MEMORY: [Yes, No, No],
        "handle_create without free memory succeeds, and returns a handle that refers to no memory",
        "amd_memory_region.cpp of 6.1, AllocateImpl: returns before checking",
        "an error: out of memory";
    GRANT_WITHOUT_DESCRIPTOR_ABORTS: [Crash(ABORT), Crash(ABORT), Crash(ABORT)],
        "set_access for a GPU without a free descriptor aborts the process",
        "runtime.cpp, MappedHandleAllowedAgent: asserts that the export succeeds",
        "checked before the call, but another thread can use the last descriptor in between: quirk \
         `grant_without_descriptor_aborts`";
    MAP_LEAKS_DESCRIPTOR: [Yes, Yes, Yes],
        "a map that the kernel refuses leaks a descriptor",
        "runtime.cpp, VMemoryHandleMap: returns before it closes the dma-buf",
        "cannot be prevented by the library";
    MAP_LEAKS_MEMORY: [Yes, Yes, Yes],
        "after the kernel refused to map memory, releasing the memory does not free it",
        "runtime.cpp, VMemoryHandleMap: returns without freeing the imported buffer",
        "cannot be prevented by the library";
    LOCKED_FOR_ALL_GPUS: [Yes, Yes, Yes],
        "hsa_amd_memory_lock gives access to a GPU that is not in the list",
        "observed in the driver's page tables",
        "cannot be prevented by the library";
    TWICE_LOCKED_STAYS_LOCKED: [Yes, Yes, Crash(ABORT)],
        "after two locks with the same start, unlocking releases neither lock, or aborts the process",
        "libhsakmt, fmm.c: registrations are looked up by their start only",
        "the second lock is refused: `ErrorKind::HostMemoryMapped`";
    RESERVES_MORE_THAN_EXISTS: [No, Undefined, Undefined],
        "a reservation of the whole address space minus one page succeeds and may damage the heap",
        "observed, once with a crash in malloc; the rounded size overflows",
        "an error: out of address space";
}
