//! C's types, in HIP's layout (`hip_runtime_api.h`).
//!
//! Enumerations are integers: C can pass any value, and an invalid value of a Rust `enum` is
//! undefined behaviour.

use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

pub type hipError_t = c_int;
pub type hipDevice_t = c_int;
pub type hipCtx_t = *mut c_void;
pub type hipStream_t = *mut c_void;
pub type hipEvent_t = *mut c_void;
pub type hipMemGenericAllocationHandle_t = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipUUID {
    pub bytes: [c_char; 16],
}

pub const LOCATION_INVALID: c_int = 0;
pub const LOCATION_DEVICE: c_int = 1;
pub const LOCATION_HOST: c_int = 2;
pub const LOCATION_HOST_NUMA: c_int = 3;
pub const LOCATION_HOST_NUMA_CURRENT: c_int = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipMemLocation {
    pub kind: c_int,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipMemAccessDesc {
    pub location: hipMemLocation,
    pub flags: c_uint,
}

pub const ALLOCATION_PINNED: c_int = 1;
pub const ALLOCATION_UNCACHED: c_int = 0x4000_0000;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipMemAllocationProp {
    pub kind: c_int,
    pub requested_handle_types: c_uint,
    pub location: hipMemLocation,
    pub win32_metadata: *mut c_void,
    pub compression: c_uchar,
    pub rdma: c_uchar,
    pub usage: c_ushort,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipIpcMemHandle_t {
    pub reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipMemFabricHandle_t {
    pub data: [u8; 64],
}

pub const MEMORY_UNREGISTERED: c_int = 0;
pub const MEMORY_HOST: c_int = 1;
pub const MEMORY_DEVICE: c_int = 2;
pub const MEMORY_MANAGED: c_int = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipPointerAttribute_t {
    pub kind: c_int,
    pub device: c_int,
    pub device_pointer: *mut c_void,
    pub host_pointer: *mut c_void,
    pub is_managed: c_int,
    pub allocation_flags: c_uint,
}

/// Kinds of copies (`hipMemcpyKind`).
pub mod memcpy_kind {
    use super::c_int;

    pub const HOST_TO_HOST: c_int = 0;
    pub const HOST_TO_DEVICE: c_int = 1;
    pub const DEVICE_TO_HOST: c_int = 2;
    pub const DEVICE_TO_DEVICE: c_int = 3;
    pub const DEFAULT: c_int = 4;
    pub const DEVICE_TO_DEVICE_NO_CU: c_int = 1024;
}

/// Attributes of a pointer (`HIP_POINTER_ATTRIBUTE_…`).
pub mod pointer_attribute {
    use super::c_uint;

    pub const CONTEXT: c_uint = 1;
    pub const MEMORY_TYPE: c_uint = 2;
    pub const DEVICE_POINTER: c_uint = 3;
    pub const HOST_POINTER: c_uint = 4;
    pub const SYNC_MEMOPS: c_uint = 6;
    pub const BUFFER_ID: c_uint = 7;
    pub const IS_MANAGED: c_uint = 8;
    pub const DEVICE_ORDINAL: c_uint = 9;
    pub const IS_LEGACY_HIP_IPC_CAPABLE: c_uint = 10;
    pub const RANGE_START_ADDR: c_uint = 11;
    pub const RANGE_SIZE: c_uint = 12;
    pub const MAPPED: c_uint = 13;
    pub const ACCESS_FLAGS: c_uint = 16;
}

/// Attributes of a device (`hipDeviceAttribute…`).
pub mod attribute {
    use super::c_int;

    pub const ECC_ENABLED: c_int = 0;
    pub const ACCESS_POLICY_MAX_WINDOW_SIZE: c_int = 1;
    pub const ASYNC_ENGINE_COUNT: c_int = 2;
    pub const CAN_MAP_HOST_MEMORY: c_int = 3;
    pub const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: c_int = 4;
    pub const CLOCK_RATE: c_int = 5;
    pub const COMPUTE_MODE: c_int = 6;
    pub const COMPUTE_PREEMPTION_SUPPORTED: c_int = 7;
    pub const CONCURRENT_KERNELS: c_int = 8;
    pub const CONCURRENT_MANAGED_ACCESS: c_int = 9;
    pub const COOPERATIVE_LAUNCH: c_int = 10;
    pub const COOPERATIVE_MULTI_DEVICE_LAUNCH: c_int = 11;
    pub const DEVICE_OVERLAP: c_int = 12;
    pub const DIRECT_MANAGED_MEM_ACCESS_FROM_HOST: c_int = 13;
    pub const GLOBAL_L1_CACHE_SUPPORTED: c_int = 14;
    pub const INTEGRATED: c_int = 16;
    pub const IS_MULTI_GPU_BOARD: c_int = 17;
    pub const KERNEL_EXEC_TIMEOUT: c_int = 18;
    pub const L2_CACHE_SIZE: c_int = 19;
    pub const LOCAL_L1_CACHE_SUPPORTED: c_int = 20;
    pub const LUID_DEVICE_NODE_MASK: c_int = 22;
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 23;
    pub const MANAGED_MEMORY: c_int = 24;
    pub const MAX_BLOCKS_PER_MULTI_PROCESSOR: c_int = 25;
    pub const MAX_BLOCK_DIM_X: c_int = 26;
    pub const MAX_BLOCK_DIM_Y: c_int = 27;
    pub const MAX_BLOCK_DIM_Z: c_int = 28;
    pub const MAX_GRID_DIM_X: c_int = 29;
    pub const MAX_GRID_DIM_Y: c_int = 30;
    pub const MAX_GRID_DIM_Z: c_int = 31;
    pub const MAX_THREADS_PER_BLOCK: c_int = 56;
    pub const MAX_THREADS_PER_MULTI_PROCESSOR: c_int = 57;
    pub const MAX_PITCH: c_int = 58;
    pub const MEMORY_BUS_WIDTH: c_int = 59;
    pub const MEMORY_CLOCK_RATE: c_int = 60;
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 61;
    pub const MULTIPROCESSOR_COUNT: c_int = 63;
    pub const PAGEABLE_MEMORY_ACCESS: c_int = 65;
    pub const PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: c_int = 66;
    pub const PCI_BUS_ID: c_int = 67;
    pub const PCI_DEVICE_ID: c_int = 68;
    pub const PCI_DOMAIN_ID: c_int = 69;
    pub const PERSISTING_L2_CACHE_MAX_SIZE: c_int = 70;
    pub const RESERVED_SHARED_MEM_PER_BLOCK: c_int = 73;
    pub const MAX_SHARED_MEMORY_PER_BLOCK: c_int = 74;
    pub const SHARED_MEM_PER_BLOCK_OPTIN: c_int = 75;
    pub const SHARED_MEM_PER_MULTIPROCESSOR: c_int = 76;
    pub const STREAM_PRIORITIES_SUPPORTED: c_int = 78;
    pub const TOTAL_GLOBAL_MEM: c_int = 84;
    pub const UNIFIED_ADDRESSING: c_int = 85;
    pub const WARP_SIZE: c_int = 87;
    pub const MEMORY_POOLS_SUPPORTED: c_int = 88;
    pub const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 89;
    pub const HOST_REGISTER_SUPPORTED: c_int = 90;
    pub const MEMORY_POOL_SUPPORTED_HANDLE_TYPES: c_int = 91;
    pub const HOST_NUMA_ID: c_int = 92;
    pub const DMA_BUF_SUPPORTED: c_int = 93;
    pub const HANDLE_TYPE_FABRIC_SUPPORTED: c_int = 95;
    pub const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: c_int = 10_002;
    pub const HDP_MEM_FLUSH_CNTL: c_int = 10_005;
    pub const HDP_REG_FLUSH_CNTL: c_int = 10_006;
    pub const COOPERATIVE_MULTI_DEVICE_UNMATCHED_FUNC: c_int = 10_007;
    pub const COOPERATIVE_MULTI_DEVICE_UNMATCHED_GRID_DIM: c_int = 10_008;
    pub const COOPERATIVE_MULTI_DEVICE_UNMATCHED_BLOCK_DIM: c_int = 10_009;
    pub const COOPERATIVE_MULTI_DEVICE_UNMATCHED_SHARED_MEM: c_int = 10_010;
    pub const IS_LARGE_BAR: c_int = 10_011;
    pub const ASIC_REVISION: c_int = 10_012;
    pub const CAN_USE_STREAM_WAIT_VALUE: c_int = 10_013;
    pub const IMAGE_SUPPORT: c_int = 10_014;
    pub const PHYSICAL_MULTI_PROCESSOR_COUNT: c_int = 10_015;
    pub const FINE_GRAIN_SUPPORT: c_int = 10_016;
    pub const PCI_CHIP_ID: c_int = 10_020;
}

// The sizes that a C compiler computes for the headers' types. tests/abi/layout.rs tests the headers, not these Rust
// types.
const _: () = {
    assert!(size_of::<hipMemAllocationProp>() == 32);
    assert!(size_of::<hipMemAccessDesc>() == 12);
    assert!(size_of::<hipPointerAttribute_t>() == 32);
    assert!(size_of::<hipIpcMemHandle_t>() == 64);
    assert!(size_of::<hipMemFabricHandle_t>() == 64);
};
