//! The structs of `linux/kfd_ioctl.h`.

use crate::abi::{format_bits, format_open_flags, structs};

fn queue_kind_name(kind: u32) -> String {
    let names = ["COMPUTE", "SDMA", "AQL", "SDMA_XGMI", "SDMA_BY_ENGINE"];
    names.get(kind as usize).map_or_else(|| kind.to_string(), |name| (*name).to_owned())
}

fn event_kind_name(kind: u32) -> String {
    let names = [
        "SIGNAL",
        "NODECHANGE",
        "DEVICESTATECHANGE",
        "HW_EXCEPTION",
        "SYSTEM_EVENT",
        "DEBUG_EVENT",
        "PROFILE_EVENT",
        "QUEUE_EVENT",
        "MEMORY",
    ];
    names.get(kind as usize).map_or_else(|| kind.to_string(), |name| (*name).to_owned())
}

structs! {
    Version: 8 { major: u32, minor: u32 }
    CreateQueue: 96 {
        ring_base: u64, write_pointer: u64, read_pointer: u64, doorbell_offset: u64,
        ring_size: u32, gpu_id: u32, kind: u32 as queue_kind_name, percentage: u32, priority: u32, queue_id: u32,
        eop_address: u64, eop_size: u64, save_address: u64, save_size: u32, stack_size: u32,
        sdma_engine_id: u32, pad: u32,
    }
    DestroyQueue: 8 { queue_id: u32, pad: u32 }
    UpdateQueue: 24 {
        ring_base: u64, queue_id: u32, ring_size: u32, percentage: u32, priority: u32,
    }
    MemoryPolicy: 32 {
        alternate_base: u64, alternate_size: u64, gpu_id: u32, default_policy: u32,
        alternate_policy: u32, pad: u32,
    }
    ClockCounters: 40 {
        gpu_clock: u64, cpu_clock: u64, system_clock: u64, system_frequency: u64,
        gpu_id: u32, pad: u32,
    }
    CreateEvent: 32 {
        page_offset: u64, trigger_data: u32, kind: u32 as event_kind_name, auto_reset: u32, node_id: u32,
        event_id: u32, slot: u32,
    }
    EventId: 8 { event_id: u32, pad: u32 }
    WaitEvents: 24 { events: u64, count: u32, all: u32, timeout: u32, result: u32 }
    /// In C, the first 32 bytes are a union: a signal's age, or the description of a fault.
    EventData: 48 { age: u64, fault: [u64; 3], extension: u64, event_id: u32, pad: u32 }
    ScratchBacking: 16 { address: u64, gpu_id: u32, pad: u32 }
    /// The two addresses are arrays of the caller. `address_config` is the register `GB_ADDR_CONFIG`.
    TileConfig: 40 {
        tiles: u64, macro_tiles: u64, tile_count: u32, macro_tile_count: u32, gpu_id: u32,
        address_config: u32, banks: u32, ranks: u32,
    }
    TrapHandler: 24 { handler: u64, memory: u64, gpu_id: u32, pad: u32 }
    Apertures: 16 { address: u64, count: u32, pad: u32 }
    Aperture: 56 {
        lds_base: u64, lds_limit: u64, scratch_base: u64, scratch_limit: u64,
        gpuvm_base: u64, gpuvm_limit: u64, gpu_id: u32, pad: u32,
    }
    AcquireVm: 8 { drm_fd: u32, gpu_id: u32 }
    Alloc: 40 {
        address: u64, size: u64, handle: u64, offset: u64, gpu_id: u32,
        flags: u32 as flags::format,
    }
    Free: 8 { handle: u64 }
    Map: 24 { handle: u64, gpus: u64, count: u32, done: u32 }
    DmabufInfo: 32 {
        size: u64, metadata: u64, metadata_size: u32, gpu_id: u32, flags: u32 as flags::format, fd: u32,
    }
    ImportDmabuf: 24 { address: u64, handle: u64, gpu_id: u32, fd: u32 }
    ExportDmabuf: 16 { handle: u64, flags: u32 as format_open_flags, fd: u32 }
    IpcExport: 32 { handle: u64, share_handle: [u32; 4], gpu_id: u32, flags: u32 }
    IpcImport: 48 {
        handle: u64, address: u64, mmap_offset: u64, share_handle: [u32; 4], gpu_id: u32,
        flags: u32,
    }
    Xnack: 4 { enabled: i32 }
    AvailableMemory: 16 { available: u64, gpu_id: u32, pad: u32 }
    RuntimeEnable: 16 { debug: u64, mode: u32, capabilities: u32 }
}

/// The bits of `Alloc::flags` (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub(crate) mod flags {
    pub(crate) const VRAM: u32 = 1 << 0;
    pub(crate) const GTT: u32 = 1 << 1;
    pub(crate) const USERPTR: u32 = 1 << 2;
    pub(crate) const DOORBELL: u32 = 1 << 3;
    pub(crate) const MMIO_REMAP: u32 = 1 << 4;
    /// The kinds of memory. An allocation has exactly one kind.
    pub(crate) const KINDS: u32 = VRAM | GTT | USERPTR | DOORBELL | MMIO_REMAP;
    pub(crate) const PUBLIC: u32 = 1 << 29;
    pub(crate) const EXECUTABLE: u32 = 1 << 30;
    pub(crate) const WRITABLE: u32 = 1 << 31;

    /// Formats the names of the set bits.
    pub(crate) fn format(flags: u32) -> String {
        super::format_bits(
            flags,
            &[
                (VRAM, "VRAM"),
                (GTT, "GTT"),
                (USERPTR, "USERPTR"),
                (DOORBELL, "DOORBELL"),
                (MMIO_REMAP, "MMIO_REMAP"),
                (1 << 23, "CONTIGUOUS"),
                (1 << 24, "EXT_COHERENT"),
                (1 << 25, "UNCACHED"),
                (1 << 26, "COHERENT"),
                (1 << 27, "AQL_QUEUE_MEM"),
                (1 << 28, "NO_SUBSTITUTE"),
                (PUBLIC, "PUBLIC"),
                (EXECUTABLE, "EXECUTABLE"),
                (WRITABLE, "WRITABLE"),
            ],
        )
    }
}
