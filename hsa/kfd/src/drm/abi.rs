//! The structs of `drm/drm.h` and `drm/amdgpu_drm.h`.

use crate::abi::{format_bits, format_open_flags, structs};

/// The operations of `GEM_VA`, as fault plans name them.
pub(crate) const VA_OPERATIONS: [&str; 4] =
    ["GEM_VA.MAP", "GEM_VA.UNMAP", "GEM_VA.CLEAR", "GEM_VA.REPLACE"];

fn va_operation(va: &GemVa) -> &'static str {
    let operation = (va.operation as usize).checked_sub(1);
    operation.and_then(|index| VA_OPERATIONS.get(index)).copied().unwrap_or("GEM_VA")
}

fn operation_name(operation: u32) -> String {
    let names = ["0", "MAP", "UNMAP", "CLEAR", "REPLACE"];
    names.get(operation as usize).map_or_else(|| operation.to_string(), |name| (*name).to_owned())
}

fn format_page_flags(flags: u32) -> String {
    format_bits(
        flags,
        &[(1 << 0, "DELAY_UPDATE"), (1 << 1, "R"), (1 << 2, "W"), (1 << 3, "X"), (1 << 4, "PRT")],
    )
}

fn query_name(query: u32) -> String {
    match query {
        0x00 => "ACCEL_WORKING".to_owned(),
        0x03 => "HW_IP_COUNT".to_owned(),
        0x10 => "VRAM_USAGE".to_owned(),
        0x15 => "READ_MMR_REG".to_owned(),
        0x16 => "DEV_INFO".to_owned(),
        0x17 => "VIS_VRAM_USAGE".to_owned(),
        0x19 => "MEMORY".to_owned(),
        _ => format!("{query:#x}"),
    }
}

structs! {
    /// `pad` represents the C struct's four bytes of padding.
    Version: 64 {
        major: i32, minor: i32, patch: i32, pad: u32, name_length: u64, name: u64,
        date_length: u64, date: u64, description_length: u64, description: u64,
    }
    GemClose: 8 { handle: u32, pad: u32 }
    /// Contains a size on input, a handle on output.
    GemCreate: 32 { size_or_handle: u64, alignment: u64, domains: u64, flags: u64 }
    Prime: 12 { handle: u32, flags: u32 as format_open_flags, fd: i32 }
    /// Contains a handle on input, an offset on output.
    GemMmap: 8 { handle_or_offset: u64 }
    GemOperation: 16 { handle: u32, operation: u32, value: u64 }
    CreateInfo: 32 { size: u64, alignment: u64, domains: u64, flags: u64 }
    /// `pad` represents the C struct's four bytes of padding.
    GemMetadata: 288 {
        handle: u32, operation: u32, flags: u64, tiling: u64, size: u32, data: [u32; 64], pad: u32,
    }
    Info: 32 { address: u64, size: u32, query: u32 as query_name, parameters: [u32; 4] }
    /// Older callers lack the fields from `timeline_point` on, which are then zero.
    GemVa: 64 named va_operation {
        handle: u32, pad: u32, operation: u32 as operation_name, flags: u32 as format_page_flags, address: u64,
        offset: u64, size: u64,
        timeline_point: u64, timeline_syncobj: u32, syncobj_count: u32, syncobjs: u64,
    }
    DeviceInfo: 360 {
        device_id: u32, chip_revision: u32, external_revision: u32, pci_revision: u32,
        family: u32, shader_engines: u32, shader_arrays_per_engine: u32, counter_frequency: u32,
        max_engine_clock: u64, max_memory_clock: u64,
        active_units: u32, always_on_units: u32, unit_bitmap: [u32; 16],
        enabled_backends: u32, backends: u32, graphics_contexts: u32, pcie_generation: u32,
        ids_flags: u64, address_offset: u64, address_max: u64,
        address_alignment: u32, pte_fragment_size: u32, gart_page_size: u32, ce_ram_size: u32,
        vram_type: u32, vram_bit_width: u32, vce_harvest: u32, double_offchip_buffer: u32,
        graphics_buffers: [u64; 4], graphics_buffer_sizes: [u32; 4],
        wave_size: u32, visible_registers: u32, units_per_array: u32, cache_blocks: u32,
        vgt_table_depth: u32, gs_buffer_depth: u32, gs_waves: u32, pcie_lanes: u32,
        always_on_bitmap: [u32; 16], high_address_offset: u64, high_address_max: u64,
        tile_steering: u32, pad: u32,
    }
    MemoryInfo: 96 { vram: [u64; 4], visible_vram: [u64; 4], gtt: [u64; 4] }
}
