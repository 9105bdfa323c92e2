//! The table of defects of AMD's runtime. The tests in this folder prove each row.
//!
//! The columns are the releases 6.1.2, 6.4.3 and 7.2.4. Each row has the defect, its source, and the
//! behaviour through the library. A source such as "runtime.cpp" is ROCr's
//! `core/runtime/runtime.cpp` of 2025; `#n` is an issue of ROCm/rocm-systems.

use crate::defect::Defect;
use crate::defect::Found::{Crash, No, Yes};
use libc::{SIGABRT, SIGSEGV};

/// A row of the table.
macro_rules! defects {
    ($($name:ident: [$($found:expr),*], $what:literal, $source:literal, $here:literal;)*) => {
        $(
            #[doc = $what]
            pub const $name: Defect =
                Defect { what: $what, source: $source, here: $here, releases: [$($found),*] };
        )*

        /// Every row.
        pub const ALL: &[Defect] = &[$($name),*];
    };
}

defects! {
    IN_OFFSET_IGNORED: [Yes, Yes, Yes],
        "map shows the start of the memory, whatever in_offset says",
        "runtime.cpp, VMemoryHandleMap: in_offset is never read",
        "an offset other than 0 is refused";
    ACCESS_BEYOND_THE_RANGE: [Yes, Yes, Yes],
        "set_access of a mapping's first page changes all of the mapping",
        "runtime.cpp, VMemorySetAccess: only the start of the range is compared",
        "a range that cuts a mapping is refused";
    ACCESS_BEYOND_THE_SECOND: [Yes, Yes, Yes],
        "set_access of a mapping and a page more changes all of the next mapping, too",
        "as above",
        "as above";
    ACCESS_OF_SEVERAL_ABORTS: [Crash(SIGABRT), No, No],
        "set_access of two mappings ends the process if a CPU is among the agents",
        "runtime.cpp of 6.1: as much of each is mapped as both are large; fixed by ROCR-Runtime 8f1b0566",
        "called mapping by mapping: quirk `set_access_of_several_fails`";
    LIST_HALF_APPLIED: [Yes, Yes, Yes],
        "a list of agents of which a later one is refused has let the earlier ones in",
        "runtime.cpp, VMemorySetAccessPerHandle: returns at the first failure",
        "every descriptor is checked first; what was done is put back";
    REFUSED_CHANGE_TAKES_ACCESS: [Yes, Yes, Yes],
        "a change of access that is refused takes away the access there was",
        "runtime.cpp, VMemorySetAccessPerHandle: removes before it grants",
        "the access there was is put back";
    HOLE_IN_THE_RESERVATION: [Yes, Yes, No],
        "unmap after CPU access leaves a hole, in which a foreign mapping is overwritten or freed",
        "runtime.cpp, RemoveAccess: munmap",
        "the CPU's view is a mapping of the dma-buf, which leaves none; else quirk `cpu_unmap_leaves_hole`";
    ACCESS_PAST_THE_END: [Yes, Yes, Yes],
        "get_access one past the end of a mapping answers as for the mapping",
        "runtime.cpp, VMemoryGetAccess: <= where < is meant",
        "the ledger answers";
    ACCESS_OF_CPU_NOT_TOLD: [Yes, Yes, Yes],
        "get_access refuses a CPU that has access",
        "runtime.cpp, VMemoryGetAccess; answered from ROCm 10 on",
        "the ledger answers";
    RETAIN_INSIDE_REFUSED: [Yes, Yes, Yes],
        "retain refuses an address inside a mapping, which HIP allows",
        "runtime.cpp, VMemoryRetainAllocHandle: the address is looked for as the start of a mapping",
        "the ledger answers";
    STALE_HANDLE_NAMES_NEW_MEMORY: [Yes, Yes, Yes],
        "the value of a released handle names memory that is made later",
        "libhsakmt, fmm.c: addresses of mem_handle_aperture are given again at once",
        "handles are the library's own, with a generation: a stale one is refused";
    SHUTDOWN_CRASHES: [No, Crash(SIGSEGV), No],
        "hsa_shut_down with a mapping that a GPU has access to crashes",
        "runtime.cpp, Unload: agents are deleted before the mappings that call them",
        "what is still mapped is unmapped before the runtime stops";
    ADDRESSES_OUTLIVE_STOP: [Yes, Yes, Yes],
        "hsa_shut_down leaves the addresses taken that were reserved, for as long as the process lives",
        "runtime.cpp, Unload: mappings and handles are forgotten, reservations are not freed",
        "what is still reserved is freed before the runtime stops";
    FREED_MEMORY_WAITED_FOR: [No, Yes, Yes],
        "hsa_amd_ipc_memory_attach, by dma-buf, of memory that was freed never comes back, and spins",
        "runtime.cpp, ReceiveDmaBufFd: recvmsg is called until it brings something, also at the end of file",
        "refused at once: an export is entered in a table that the importer looks at first";
    ATTACH_LEAVES_A_SOCKET: [Yes, No, No],
        "hsa_amd_ipc_memory_attach leaves a descriptor open, each time",
        "seen; a socket is made before it is known that the driver's own way is taken, where it is not used",
        "cannot be prevented by the library";
    FREED_MEMORY_OPENED: [Yes, Yes, No],
        "hsa_amd_ipc_memory_attach opens 2 MiB that were freed, which the runtime keeps for its next use",
        "seen; memory is freed to a pool of blocks, which are exported as before",
        "as above";
    IPC_LENGTH_BELIEVED: [Yes, Yes, Yes],
        "hsa_amd_ipc_memory_attach accepts any length; a copy beyond the end of the memory is a GPU page fault",
        "runtime.cpp, IPCAttach: the length is recorded, and only that of a part of a block is limited",
        "after attaching, the runtime is asked for the last byte; if it is not there, the handle is refused";
    IPC_SERVER_OUTLIVES_STOP: [No, Yes, Yes],
        "hsa_shut_down after an export for IPC, by dma-buf, ends the process now and then",
        "runtime.cpp, Unload: the thread at the socket frees what was freed; fixed by #3256",
        "the runtime is not stopped after such an export: quirk `ipc_server_outlives_stop`";
    IPC_NAME_TAKEN_ABORTS: [No, Crash(SIGABRT), Crash(SIGABRT)],
        "hsa_amd_ipc_memory_create, by dma-buf, ends the process if another process of the network namespace has the abstract socket hsa<process>: one of the same number in another PID namespace, or of any user",
        "runtime.cpp, IPCCreate: bind to the abstract socket hsa<process>, and assert",
        "rejected before the call, with what to do; a process that takes the name between that check and the bind still aborts it";
    IPC_SERVER_TRUSTS_ANYONE: [No, Yes, Yes],
        "memory exported for IPC, by dma-buf, is handed to any process of any user that connects to the abstract socket hsa<process> and knows its address",
        "seen; who connects is not looked at",
        "cannot be prevented by the library; a network namespace of its own keeps others away";
    IPC_SERVER_HELD_UP: [No, Yes, Yes],
        "hsa_amd_ipc_memory_create, by dma-buf, waits until a process that has asked for memory, of any user, acknowledges it or ends",
        "seen; the server waits for the acknowledgement with its lock held, without a time limit",
        "cannot be prevented by the library; freeing the memory does not wait";
    SIGNAL_USED_AFTER_COPY: [Crash(SIGSEGV), Crash(SIGSEGV), Crash(SIGSEGV)],
        "a copy by a CPU ends the process now and then, if its signal is destroyed when it is done",
        "runtime.cpp, CopyMemory: the thread that copies counts the signal down, and uses it then",
        "a CPU's copies are this process's own loads and stores";
    REVOKED_IN_NAME_ONLY: [Yes, Yes, Yes],
        "set_access with NONE leaves a GPU's page table as it is",
        "libdrm, amdgpu_bo_va_op: the flags are not passed on",
        "`Vmm::revoke` takes it away; of `set_access`, `Agent::enforcement` says that it is only remembered";
    READ_ONLY_IS_WRITABLE: [Yes, Yes, Yes],
        "a GPU that may only read can write",
        "as above",
        "cannot be prevented; `Agent::enforcement` says so";
    INVENTED_AGENT_CRASHES: [Crash(SIGSEGV), Crash(SIGSEGV), Crash(SIGSEGV)],
        "set_access for an agent that does not exist crashes",
        "agent.h, Agent::Convert: the handle is a pointer",
        "refused: agents are the library's own values";
    WRITE_ONLY_ACCEPTED: [Yes, Yes, Yes],
        "a GPU that may only write can read",
        "libdrm, amdgpu_bo_va_op",
        "cannot be said: `Access` has no such value";
    INVENTED_PERMISSION_ACCEPTED: [Yes, Yes, Yes],
        "set_access takes a permission that does not exist",
        "runtime.cpp, VMemorySetAccess: any number is stored",
        "cannot be said, and `Access::from_bits` answers none";
    UNALIGNED_ADDRESS_MAPPED: [Yes, Yes, No],
        "map takes an address inside a page, where nobody can be given access",
        "runtime.cpp, VMemoryHandleMap: the address is not looked at",
        "refused";
    UNALIGNED_SIZE_MAPPED: [Yes, Yes, Yes],
        "map takes a part of a page",
        "as above",
        "refused";
    HINT_BEATS_ALIGNMENT: [Yes, Yes, Yes],
        "a reservation near an address is not aligned as asked",
        "libhsakmt, fmm.c: MAP_FIXED_NOREPLACE at the hint; 6.1.2 has no alignment at all",
        "aligned all the same";
    UNMAP_OF_SEVERAL_REFUSED: [Yes, Yes, No],
        "unmap of two whole mappings is refused",
        "ROCR-Runtime#285, fixed by f0ce7a8e5",
        "unmapped one by one: quirk `unmap_of_several_fails`";
    UNNAMED_AGENTS_LOSE_ACCESS: [Yes, No, No],
        "a change of one agent's access takes it from agents that are not named",
        "fixed by ROCR-Runtime 73f6bfa7",
        "all agents are named each time: quirk `set_access_drops_unnamed_agents`";
    FILL_REFUSED: [Yes, Yes, No],
        "hsa_amd_memory_fill does not fill virtual memory; 6.1.2 even says that it has",
        "runtime.cpp, FillMemory: the agent is chosen by what is known of the address",
        "filled without that function";
    RESERVATION_CAN_BE_WRITTEN: [Yes, No, No],
        "reserved addresses can be written before anything is mapped, and that is lost",
        "/proc/self/maps says rw-p",
        "protected from the beginning";
    MEMORY_KEPT_AFTER_UNMAP: [No, No, Yes],
        "unmapped and released memory is not given back before its addresses are",
        "torch_memory_saver#84",
        "quirks `unmap_keeps_memory`, `memory_returns_with_addresses`";
    TOO_LARGE_CALLED_SHORTAGE: [Yes, Yes, No],
        "a mapping larger than the memory is called a lack of resources",
        "runtime.cpp, VMemoryHandleMap: any failure of ExportDMABuf",
        "refused as a wrong size";
    ODD_SIZE_CALLED_SHORTAGE: [Yes, Yes, Yes],
        "a reservation of a size that is not made of pages is called a lack of resources",
        "runtime.cpp, VMemoryAddressReserve: any failure of hsaKmtAllocMemoryAlign",
        "refused as a wrong size";
    IMPORT_HAS_ANOTHER_POOL: [Yes, Yes, Yes],
        "imported memory is said to be of another pool",
        "runtime.cpp, VMemoryImportShareableHandle: the last region of the GPU",
        "the properties say whose memory it is";
    MADE_WITHOUT_MEMORY: [Yes, No, No],
        "handle_create succeeds when there is no memory left, and names nothing",
        "amd_memory_region.cpp of 6.1, AllocateImpl: returns before it looks",
        "an error: no memory is left";
    GRANT_WITHOUT_DESCRIPTOR_ABORTS: [Crash(SIGABRT), Crash(SIGABRT), Crash(SIGABRT)],
        "set_access for a GPU ends the process when no descriptor is left",
        "runtime.cpp, MappedHandleAllowedAgent: an assertion that the export succeeds",
        "looked first: quirk `grant_without_descriptor_aborts`";
    MAP_LEAKS_DESCRIPTOR: [Yes, Yes, Yes],
        "a map that the kernel refuses leaves a descriptor open",
        "runtime.cpp, VMemoryHandleMap: returns before it closes the dma-buf",
        "cannot be prevented by the library";
    MAP_LEAKS_MEMORY: [Yes, Yes, Yes],
        "memory that the kernel did not let be mapped is not given back by its release",
        "runtime.cpp, VMemoryHandleMap: returns without freeing the imported buffer",
        "cannot be prevented by the library";
    LOCKED_FOR_EVERYBODY: [Yes, Yes, Yes],
        "hsa_amd_memory_lock lets a GPU in that is not named",
        "seen in the driver's page tables",
        "cannot be prevented by the library";
    TWICE_LOCKED_STAYS_LOCKED: [Yes, Yes, Crash(SIGABRT)],
        "of two locks that begin at one address, unlock takes neither back, or ends the process",
        "libhsakmt, fmm.c: what is registered is looked for by its start alone",
        "the second lock is refused: `ErrorKind::HostMemoryMapped`";
    RESERVES_MORE_THAN_THERE_IS: [No, Yes, Yes],
        "a reservation of all addresses but one page succeeds",
        "seen; the size is rounded up beyond the end of all numbers",
        "an error: no addresses are left";
}
