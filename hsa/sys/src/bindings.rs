pub const HSA_STATUS_SUCCESS: hsa_status_t = 0;
pub const HSA_STATUS_INFO_BREAK: hsa_status_t = 1;
pub const HSA_STATUS_ERROR_INVALID_MEMORY_POOL: hsa_status_t = 40;
pub const HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: hsa_status_t = 41;
pub const HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: hsa_status_t = 42;
pub const HSA_STATUS_ERROR_MEMORY_FAULT: hsa_status_t = 43;
pub const HSA_STATUS_CU_MASK_REDUCED: hsa_status_t = 44;
pub const HSA_STATUS_ERROR_OUT_OF_REGISTERS: hsa_status_t = 45;
pub const HSA_STATUS_ERROR_RESOURCE_BUSY: hsa_status_t = 46;
pub const HSA_STATUS_ERROR_NOT_SUPPORTED: hsa_status_t = 47;
pub const HSA_STATUS_ERROR: hsa_status_t = 4096;
pub const HSA_STATUS_ERROR_INVALID_ARGUMENT: hsa_status_t = 4097;
pub const HSA_STATUS_ERROR_INVALID_QUEUE_CREATION: hsa_status_t = 4098;
pub const HSA_STATUS_ERROR_INVALID_ALLOCATION: hsa_status_t = 4099;
pub const HSA_STATUS_ERROR_INVALID_AGENT: hsa_status_t = 4100;
pub const HSA_STATUS_ERROR_INVALID_REGION: hsa_status_t = 4101;
pub const HSA_STATUS_ERROR_INVALID_SIGNAL: hsa_status_t = 4102;
pub const HSA_STATUS_ERROR_INVALID_QUEUE: hsa_status_t = 4103;
pub const HSA_STATUS_ERROR_OUT_OF_RESOURCES: hsa_status_t = 4104;
pub const HSA_STATUS_ERROR_INVALID_PACKET_FORMAT: hsa_status_t = 4105;
pub const HSA_STATUS_ERROR_RESOURCE_FREE: hsa_status_t = 4106;
pub const HSA_STATUS_ERROR_NOT_INITIALIZED: hsa_status_t = 4107;
pub const HSA_STATUS_ERROR_REFCOUNT_OVERFLOW: hsa_status_t = 4108;
pub const HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS: hsa_status_t = 4109;
pub const HSA_STATUS_ERROR_INVALID_INDEX: hsa_status_t = 4110;
pub const HSA_STATUS_ERROR_INVALID_ISA: hsa_status_t = 4111;
pub const HSA_STATUS_ERROR_INVALID_CODE_OBJECT: hsa_status_t = 4112;
pub const HSA_STATUS_ERROR_INVALID_EXECUTABLE: hsa_status_t = 4113;
pub const HSA_STATUS_ERROR_FROZEN_EXECUTABLE: hsa_status_t = 4114;
pub const HSA_STATUS_ERROR_INVALID_SYMBOL_NAME: hsa_status_t = 4115;
pub const HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED: hsa_status_t = 4116;
pub const HSA_STATUS_ERROR_VARIABLE_UNDEFINED: hsa_status_t = 4117;
pub const HSA_STATUS_ERROR_EXCEPTION: hsa_status_t = 4118;
pub const HSA_STATUS_ERROR_INVALID_ISA_NAME: hsa_status_t = 4119;
pub const HSA_STATUS_ERROR_INVALID_CODE_SYMBOL: hsa_status_t = 4120;
pub const HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL: hsa_status_t = 4121;
pub const HSA_STATUS_ERROR_INVALID_FILE: hsa_status_t = 4128;
pub const HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER: hsa_status_t = 4129;
pub const HSA_STATUS_ERROR_INVALID_CACHE: hsa_status_t = 4130;
pub const HSA_STATUS_ERROR_INVALID_WAVEFRONT: hsa_status_t = 4131;
pub const HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP: hsa_status_t = 4132;
pub const HSA_STATUS_ERROR_INVALID_RUNTIME_STATE: hsa_status_t = 4133;
pub const HSA_STATUS_ERROR_FATAL: hsa_status_t = 4134;
pub type hsa_status_t = ::core::ffi::c_uint;
pub type hsa_status_string_fn = ::core::option::Option<
    unsafe extern "C" fn(
        status: hsa_status_t,
        text: *mut *const ::core::ffi::c_char,
    ) -> hsa_status_t,
>;
pub const HSA_SYSTEM_INFO_VERSION_MAJOR: hsa_system_info_t = 0;
pub const HSA_SYSTEM_INFO_VERSION_MINOR: hsa_system_info_t = 1;
pub const HSA_SYSTEM_INFO_TIMESTAMP: hsa_system_info_t = 2;
pub const HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY: hsa_system_info_t = 3;
pub const HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT: hsa_system_info_t = 4;
pub const HSA_SYSTEM_INFO_ENDIANNESS: hsa_system_info_t = 5;
pub const HSA_SYSTEM_INFO_MACHINE_MODEL: hsa_system_info_t = 6;
pub const HSA_SYSTEM_INFO_EXTENSIONS: hsa_system_info_t = 7;
pub const HSA_AMD_SYSTEM_INFO_BUILD_VERSION: hsa_system_info_t = 512;
pub const HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED: hsa_system_info_t = 513;
pub const HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT: hsa_system_info_t = 514;
pub const HSA_AMD_SYSTEM_INFO_MWAITX_ENABLED: hsa_system_info_t = 515;
pub const HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED: hsa_system_info_t = 516;
pub const HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED: hsa_system_info_t = 517;
pub const HSA_AMD_SYSTEM_INFO_XNACK_ENABLED: hsa_system_info_t = 518;
pub const HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR: hsa_system_info_t = 519;
pub const HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR: hsa_system_info_t = 520;
pub const HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED: hsa_system_info_t = 521;
pub const HSA_AMD_SYSTEM_INFO_HOST_ALLOC_DMA_BUF_SUPPORTED: hsa_system_info_t = 522;
pub type hsa_system_info_t = ::core::ffi::c_uint;
pub const HSA_ENDIANNESS_LITTLE: hsa_endianness_t = 0;
pub type hsa_endianness_t = ::core::ffi::c_uint;
pub const HSA_MACHINE_MODEL_LARGE: hsa_machine_model_t = 1;
pub type hsa_machine_model_t = ::core::ffi::c_uint;
pub const HSA_EXTENSION_FINALIZER: hsa_extension_t = 0;
pub const HSA_EXTENSION_IMAGES: hsa_extension_t = 1;
pub const HSA_EXTENSION_PERFORMANCE_COUNTERS: hsa_extension_t = 2;
pub const HSA_EXTENSION_PROFILING_EVENTS: hsa_extension_t = 3;
pub const HSA_EXTENSION_AMD_PROFILER: hsa_extension_t = 512;
pub const HSA_EXTENSION_AMD_LOADER: hsa_extension_t = 513;
pub const HSA_EXTENSION_AMD_AQLPROFILE: hsa_extension_t = 514;
pub const HSA_EXTENSION_AMD_PC_SAMPLING: hsa_extension_t = 515;
pub type hsa_extension_t = ::core::ffi::c_uint;
pub type hsa_init_fn = ::core::option::Option<unsafe extern "C" fn() -> hsa_status_t>;
pub type hsa_shut_down_fn = ::core::option::Option<unsafe extern "C" fn() -> hsa_status_t>;
pub type hsa_system_get_info_fn = ::core::option::Option<
    unsafe extern "C" fn(
        attribute: hsa_system_info_t,
        value: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_agent_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_agent_s"][::core::mem::size_of::<hsa_agent_s>() - 8usize];
    ["Alignment of hsa_agent_s"][::core::mem::align_of::<hsa_agent_s>() - 8usize];
    ["Offset of field: hsa_agent_s::handle"][::core::mem::offset_of!(hsa_agent_s, handle) - 0usize];
};
pub type hsa_agent_t = hsa_agent_s;
pub const HSA_DEVICE_TYPE_CPU: hsa_device_type_t = 0;
pub const HSA_DEVICE_TYPE_GPU: hsa_device_type_t = 1;
pub const HSA_DEVICE_TYPE_DSP: hsa_device_type_t = 2;
pub const HSA_DEVICE_TYPE_AIE: hsa_device_type_t = 3;
pub type hsa_device_type_t = ::core::ffi::c_uint;
pub const HSA_AGENT_INFO_NAME: hsa_agent_info_t = 0;
pub const HSA_AGENT_INFO_VENDOR_NAME: hsa_agent_info_t = 1;
pub const HSA_AGENT_INFO_FEATURE: hsa_agent_info_t = 2;
pub const HSA_AGENT_INFO_MACHINE_MODEL: hsa_agent_info_t = 3;
pub const HSA_AGENT_INFO_PROFILE: hsa_agent_info_t = 4;
pub const HSA_AGENT_INFO_DEFAULT_FLOAT_ROUNDING_MODE: hsa_agent_info_t = 5;
pub const HSA_AGENT_INFO_WAVEFRONT_SIZE: hsa_agent_info_t = 6;
pub const HSA_AGENT_INFO_WORKGROUP_MAX_DIM: hsa_agent_info_t = 7;
pub const HSA_AGENT_INFO_WORKGROUP_MAX_SIZE: hsa_agent_info_t = 8;
pub const HSA_AGENT_INFO_GRID_MAX_DIM: hsa_agent_info_t = 9;
pub const HSA_AGENT_INFO_GRID_MAX_SIZE: hsa_agent_info_t = 10;
pub const HSA_AGENT_INFO_FBARRIER_MAX_SIZE: hsa_agent_info_t = 11;
pub const HSA_AGENT_INFO_QUEUES_MAX: hsa_agent_info_t = 12;
pub const HSA_AGENT_INFO_QUEUE_MIN_SIZE: hsa_agent_info_t = 13;
pub const HSA_AGENT_INFO_QUEUE_MAX_SIZE: hsa_agent_info_t = 14;
pub const HSA_AGENT_INFO_QUEUE_TYPE: hsa_agent_info_t = 15;
pub const HSA_AGENT_INFO_NODE: hsa_agent_info_t = 16;
pub const HSA_AGENT_INFO_DEVICE: hsa_agent_info_t = 17;
pub const HSA_AGENT_INFO_CACHE_SIZE: hsa_agent_info_t = 18;
pub const HSA_AGENT_INFO_ISA: hsa_agent_info_t = 19;
pub const HSA_AGENT_INFO_EXTENSIONS: hsa_agent_info_t = 20;
pub const HSA_AGENT_INFO_VERSION_MAJOR: hsa_agent_info_t = 21;
pub const HSA_AGENT_INFO_VERSION_MINOR: hsa_agent_info_t = 22;
pub const HSA_AGENT_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES: hsa_agent_info_t = 23;
pub const HSA_AGENT_INFO_FAST_F16_OPERATION: hsa_agent_info_t = 24;
pub const HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS: hsa_agent_info_t = 12288;
pub const HSA_EXT_AGENT_INFO_IMAGE_1DA_MAX_ELEMENTS: hsa_agent_info_t = 12289;
pub const HSA_EXT_AGENT_INFO_IMAGE_1DB_MAX_ELEMENTS: hsa_agent_info_t = 12290;
pub const HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS: hsa_agent_info_t = 12291;
pub const HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS: hsa_agent_info_t = 12292;
pub const HSA_EXT_AGENT_INFO_IMAGE_2DDEPTH_MAX_ELEMENTS: hsa_agent_info_t = 12293;
pub const HSA_EXT_AGENT_INFO_IMAGE_2DADEPTH_MAX_ELEMENTS: hsa_agent_info_t = 12294;
pub const HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS: hsa_agent_info_t = 12295;
pub const HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS: hsa_agent_info_t = 12296;
pub const HSA_EXT_AGENT_INFO_MAX_IMAGE_RD_HANDLES: hsa_agent_info_t = 12297;
pub const HSA_EXT_AGENT_INFO_MAX_IMAGE_RORW_HANDLES: hsa_agent_info_t = 12298;
pub const HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS: hsa_agent_info_t = 12299;
pub const HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT: hsa_agent_info_t = 12300;
pub type hsa_agent_info_t = ::core::ffi::c_uint;
pub const HSA_AGENT_FEATURE_KERNEL_DISPATCH: hsa_agent_feature_t = 1;
pub type hsa_agent_feature_t = ::core::ffi::c_uint;
pub const HSA_PROFILE_BASE: hsa_profile_t = 0;
pub const HSA_PROFILE_FULL: hsa_profile_t = 1;
pub type hsa_profile_t = ::core::ffi::c_uint;
pub const HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR: hsa_default_float_rounding_mode_t = 2;
pub type hsa_default_float_rounding_mode_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_dim3_s {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_dim3_s"][::core::mem::size_of::<hsa_dim3_s>() - 12usize];
    ["Alignment of hsa_dim3_s"][::core::mem::align_of::<hsa_dim3_s>() - 4usize];
    ["Offset of field: hsa_dim3_s::x"][::core::mem::offset_of!(hsa_dim3_s, x) - 0usize];
    ["Offset of field: hsa_dim3_s::y"][::core::mem::offset_of!(hsa_dim3_s, y) - 4usize];
    ["Offset of field: hsa_dim3_s::z"][::core::mem::offset_of!(hsa_dim3_s, z) - 8usize];
};
pub type hsa_dim3_t = hsa_dim3_s;
pub const HSA_AMD_AGENT_INFO_CHIP_ID: hsa_amd_agent_info_t = 40960;
pub const HSA_AMD_AGENT_INFO_CACHELINE_SIZE: hsa_amd_agent_info_t = 40961;
pub const HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT: hsa_amd_agent_info_t = 40962;
pub const HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY: hsa_amd_agent_info_t = 40963;
pub const HSA_AMD_AGENT_INFO_DRIVER_NODE_ID: hsa_amd_agent_info_t = 40964;
pub const HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS: hsa_amd_agent_info_t = 40965;
pub const HSA_AMD_AGENT_INFO_BDFID: hsa_amd_agent_info_t = 40966;
pub const HSA_AMD_AGENT_INFO_MEMORY_WIDTH: hsa_amd_agent_info_t = 40967;
pub const HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY: hsa_amd_agent_info_t = 40968;
pub const HSA_AMD_AGENT_INFO_PRODUCT_NAME: hsa_amd_agent_info_t = 40969;
pub const HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU: hsa_amd_agent_info_t = 40970;
pub const HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU: hsa_amd_agent_info_t = 40971;
pub const HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES: hsa_amd_agent_info_t = 40972;
pub const HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE: hsa_amd_agent_info_t = 40973;
pub const HSA_AMD_AGENT_INFO_HDP_FLUSH: hsa_amd_agent_info_t = 40974;
pub const HSA_AMD_AGENT_INFO_DOMAIN: hsa_amd_agent_info_t = 40975;
pub const HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES: hsa_amd_agent_info_t = 40976;
pub const HSA_AMD_AGENT_INFO_UUID: hsa_amd_agent_info_t = 40977;
pub const HSA_AMD_AGENT_INFO_ASIC_REVISION: hsa_amd_agent_info_t = 40978;
pub const HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS: hsa_amd_agent_info_t = 40979;
pub const HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT: hsa_amd_agent_info_t = 40980;
pub const HSA_AMD_AGENT_INFO_MEMORY_AVAIL: hsa_amd_agent_info_t = 40981;
pub const HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY: hsa_amd_agent_info_t = 40982;
pub const HSA_AMD_AGENT_INFO_ASIC_FAMILY_ID: hsa_amd_agent_info_t = 41223;
pub const HSA_AMD_AGENT_INFO_UCODE_VERSION: hsa_amd_agent_info_t = 41224;
pub const HSA_AMD_AGENT_INFO_SDMA_UCODE_VERSION: hsa_amd_agent_info_t = 41225;
pub const HSA_AMD_AGENT_INFO_NUM_SDMA_ENG: hsa_amd_agent_info_t = 41226;
pub const HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG: hsa_amd_agent_info_t = 41227;
pub const HSA_AMD_AGENT_INFO_IOMMU_SUPPORT: hsa_amd_agent_info_t = 41232;
pub const HSA_AMD_AGENT_INFO_NUM_XCC: hsa_amd_agent_info_t = 41233;
pub const HSA_AMD_AGENT_INFO_DRIVER_UID: hsa_amd_agent_info_t = 41234;
pub const HSA_AMD_AGENT_INFO_NEAREST_CPU: hsa_amd_agent_info_t = 41235;
pub const HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES: hsa_amd_agent_info_t = 41236;
pub const HSA_AMD_AGENT_INFO_AQL_EXTENSIONS: hsa_amd_agent_info_t = 41237;
pub const HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_MAX: hsa_amd_agent_info_t = 41238;
pub const HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_CURRENT: hsa_amd_agent_info_t = 41239;
pub const HSA_AMD_AGENT_INFO_CLOCK_COUNTERS: hsa_amd_agent_info_t = 41240;
pub type hsa_amd_agent_info_t = ::core::ffi::c_uint;
pub const HSA_IOMMU_SUPPORT_NONE: hsa_amd_iommu_version_t = 0;
pub const HSA_IOMMU_SUPPORT_V2: hsa_amd_iommu_version_t = 1;
pub type hsa_amd_iommu_version_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_hdp_flush_s {
    pub HDP_MEM_FLUSH_CNTL: *mut u32,
    pub HDP_REG_FLUSH_CNTL: *mut u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_hdp_flush_s"][::core::mem::size_of::<hsa_amd_hdp_flush_s>() - 16usize];
    ["Alignment of hsa_amd_hdp_flush_s"][::core::mem::align_of::<hsa_amd_hdp_flush_s>() - 8usize];
    ["Offset of field: hsa_amd_hdp_flush_s::HDP_MEM_FLUSH_CNTL"]
        [::core::mem::offset_of!(hsa_amd_hdp_flush_s, HDP_MEM_FLUSH_CNTL) - 0usize];
    ["Offset of field: hsa_amd_hdp_flush_s::HDP_REG_FLUSH_CNTL"]
        [::core::mem::offset_of!(hsa_amd_hdp_flush_s, HDP_REG_FLUSH_CNTL) - 8usize];
};
pub type hsa_amd_hdp_flush_t = hsa_amd_hdp_flush_s;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_clock_counters_s {
    pub gpu_clock_counter: u64,
    pub cpu_clock_counter: u64,
    pub system_clock_counter: u64,
    pub system_clock_frequency: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_clock_counters_s"]
        [::core::mem::size_of::<hsa_amd_clock_counters_s>() - 32usize];
    ["Alignment of hsa_amd_clock_counters_s"]
        [::core::mem::align_of::<hsa_amd_clock_counters_s>() - 8usize];
    ["Offset of field: hsa_amd_clock_counters_s::gpu_clock_counter"]
        [::core::mem::offset_of!(hsa_amd_clock_counters_s, gpu_clock_counter) - 0usize];
    ["Offset of field: hsa_amd_clock_counters_s::cpu_clock_counter"]
        [::core::mem::offset_of!(hsa_amd_clock_counters_s, cpu_clock_counter) - 8usize];
    ["Offset of field: hsa_amd_clock_counters_s::system_clock_counter"]
        [::core::mem::offset_of!(hsa_amd_clock_counters_s, system_clock_counter) - 16usize];
    ["Offset of field: hsa_amd_clock_counters_s::system_clock_frequency"]
        [::core::mem::offset_of!(hsa_amd_clock_counters_s, system_clock_frequency) - 24usize];
};
pub type hsa_amd_clock_counters_t = hsa_amd_clock_counters_s;
pub const HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU: hsa_amd_agent_memory_properties_t = 1;
pub type hsa_amd_agent_memory_properties_t = ::core::ffi::c_uint;
pub type hsa_iterate_agents_fn = ::core::option::Option<
    unsafe extern "C" fn(
        callback: ::core::option::Option<
            unsafe extern "C" fn(
                agent: hsa_agent_t,
                data: *mut ::core::ffi::c_void,
            ) -> hsa_status_t,
        >,
        data: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_agent_get_info_fn = ::core::option::Option<
    unsafe extern "C" fn(
        agent: hsa_agent_t,
        attribute: hsa_agent_info_t,
        value: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_isa_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_isa_s"][::core::mem::size_of::<hsa_isa_s>() - 8usize];
    ["Alignment of hsa_isa_s"][::core::mem::align_of::<hsa_isa_s>() - 8usize];
    ["Offset of field: hsa_isa_s::handle"][::core::mem::offset_of!(hsa_isa_s, handle) - 0usize];
};
pub type hsa_isa_t = hsa_isa_s;
pub const HSA_ISA_INFO_NAME_LENGTH: hsa_isa_info_t = 0;
pub const HSA_ISA_INFO_NAME: hsa_isa_info_t = 1;
pub const HSA_ISA_INFO_CALL_CONVENTION_COUNT: hsa_isa_info_t = 2;
pub const HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONT_SIZE: hsa_isa_info_t = 3;
pub const HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONTS_PER_COMPUTE_UNIT: hsa_isa_info_t = 4;
pub const HSA_ISA_INFO_MACHINE_MODELS: hsa_isa_info_t = 5;
pub const HSA_ISA_INFO_PROFILES: hsa_isa_info_t = 6;
pub const HSA_ISA_INFO_DEFAULT_FLOAT_ROUNDING_MODES: hsa_isa_info_t = 7;
pub const HSA_ISA_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES: hsa_isa_info_t = 8;
pub const HSA_ISA_INFO_FAST_F16_OPERATION: hsa_isa_info_t = 9;
pub const HSA_ISA_INFO_WORKGROUP_MAX_DIM: hsa_isa_info_t = 12;
pub const HSA_ISA_INFO_WORKGROUP_MAX_SIZE: hsa_isa_info_t = 13;
pub const HSA_ISA_INFO_GRID_MAX_DIM: hsa_isa_info_t = 14;
pub const HSA_ISA_INFO_GRID_MAX_SIZE: hsa_isa_info_t = 16;
pub const HSA_ISA_INFO_FBARRIER_MAX_SIZE: hsa_isa_info_t = 17;
pub type hsa_isa_info_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_wavefront_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_wavefront_s"][::core::mem::size_of::<hsa_wavefront_s>() - 8usize];
    ["Alignment of hsa_wavefront_s"][::core::mem::align_of::<hsa_wavefront_s>() - 8usize];
    ["Offset of field: hsa_wavefront_s::handle"]
        [::core::mem::offset_of!(hsa_wavefront_s, handle) - 0usize];
};
pub type hsa_wavefront_t = hsa_wavefront_s;
pub const HSA_WAVEFRONT_INFO_SIZE: hsa_wavefront_info_t = 0;
pub type hsa_wavefront_info_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_cache_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_cache_s"][::core::mem::size_of::<hsa_cache_s>() - 8usize];
    ["Alignment of hsa_cache_s"][::core::mem::align_of::<hsa_cache_s>() - 8usize];
    ["Offset of field: hsa_cache_s::handle"][::core::mem::offset_of!(hsa_cache_s, handle) - 0usize];
};
pub type hsa_cache_t = hsa_cache_s;
pub const HSA_CACHE_INFO_NAME_LENGTH: hsa_cache_info_t = 0;
pub const HSA_CACHE_INFO_NAME: hsa_cache_info_t = 1;
pub const HSA_CACHE_INFO_LEVEL: hsa_cache_info_t = 2;
pub const HSA_CACHE_INFO_SIZE: hsa_cache_info_t = 3;
pub type hsa_cache_info_t = ::core::ffi::c_uint;
pub type hsa_agent_iterate_isas_fn = ::core::option::Option<
    unsafe extern "C" fn(
        agent: hsa_agent_t,
        callback: ::core::option::Option<
            unsafe extern "C" fn(isa: hsa_isa_t, data: *mut ::core::ffi::c_void) -> hsa_status_t,
        >,
        data: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_isa_get_info_alt_fn = ::core::option::Option<
    unsafe extern "C" fn(
        isa: hsa_isa_t,
        attribute: hsa_isa_info_t,
        value: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_memory_pool_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_memory_pool_s"][::core::mem::size_of::<hsa_amd_memory_pool_s>() - 8usize];
    ["Alignment of hsa_amd_memory_pool_s"]
        [::core::mem::align_of::<hsa_amd_memory_pool_s>() - 8usize];
    ["Offset of field: hsa_amd_memory_pool_s::handle"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_s, handle) - 0usize];
};
pub type hsa_amd_memory_pool_t = hsa_amd_memory_pool_s;
pub const HSA_AMD_SEGMENT_GLOBAL: hsa_amd_segment_t = 0;
pub const HSA_AMD_SEGMENT_READONLY: hsa_amd_segment_t = 1;
pub const HSA_AMD_SEGMENT_PRIVATE: hsa_amd_segment_t = 2;
pub const HSA_AMD_SEGMENT_GROUP: hsa_amd_segment_t = 3;
pub type hsa_amd_segment_t = ::core::ffi::c_uint;
pub const HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT: hsa_amd_memory_pool_global_flag_t = 1;
pub const HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED: hsa_amd_memory_pool_global_flag_t = 2;
pub const HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED: hsa_amd_memory_pool_global_flag_t = 4;
pub const HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED:
    hsa_amd_memory_pool_global_flag_t = 8;
pub type hsa_amd_memory_pool_global_flag_t = ::core::ffi::c_uint;
pub const HSA_AMD_MEMORY_POOL_LOCATION_CPU: hsa_amd_memory_pool_location_t = 0;
pub const HSA_AMD_MEMORY_POOL_LOCATION_GPU: hsa_amd_memory_pool_location_t = 1;
pub type hsa_amd_memory_pool_location_t = ::core::ffi::c_uint;
pub const HSA_AMD_MEMORY_POOL_INFO_SEGMENT: hsa_amd_memory_pool_info_t = 0;
pub const HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: hsa_amd_memory_pool_info_t = 1;
pub const HSA_AMD_MEMORY_POOL_INFO_SIZE: hsa_amd_memory_pool_info_t = 2;
pub const HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED: hsa_amd_memory_pool_info_t = 5;
pub const HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE: hsa_amd_memory_pool_info_t = 6;
pub const HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT: hsa_amd_memory_pool_info_t = 7;
pub const HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL: hsa_amd_memory_pool_info_t = 15;
pub const HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE: hsa_amd_memory_pool_info_t = 16;
pub const HSA_AMD_MEMORY_POOL_INFO_LOCATION: hsa_amd_memory_pool_info_t = 17;
pub const HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE: hsa_amd_memory_pool_info_t = 18;
pub type hsa_amd_memory_pool_info_t = ::core::ffi::c_uint;
pub const HSA_AMD_MEMORY_POOL_STANDARD_FLAG: hsa_amd_memory_pool_flag_t = 0;
pub const HSA_AMD_MEMORY_POOL_PCIE_FLAG: hsa_amd_memory_pool_flag_t = 1;
pub const HSA_AMD_MEMORY_POOL_CONTIGUOUS_FLAG: hsa_amd_memory_pool_flag_t = 2;
pub const HSA_AMD_MEMORY_POOL_EXECUTABLE_FLAG: hsa_amd_memory_pool_flag_t = 4;
pub const HSA_AMD_MEMORY_POOL_UNCACHED_FLAG: hsa_amd_memory_pool_flag_t = 8;
pub type hsa_amd_memory_pool_flag_t = ::core::ffi::c_uint;
pub const HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED: hsa_amd_memory_pool_access_t = 0;
pub const HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT: hsa_amd_memory_pool_access_t = 1;
pub const HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT: hsa_amd_memory_pool_access_t = 2;
pub type hsa_amd_memory_pool_access_t = ::core::ffi::c_uint;
pub const HSA_AMD_LINK_INFO_TYPE_HYPERTRANSPORT: hsa_amd_link_info_type_t = 0;
pub const HSA_AMD_LINK_INFO_TYPE_QPI: hsa_amd_link_info_type_t = 1;
pub const HSA_AMD_LINK_INFO_TYPE_PCIE: hsa_amd_link_info_type_t = 2;
pub const HSA_AMD_LINK_INFO_TYPE_INFINBAND: hsa_amd_link_info_type_t = 3;
pub const HSA_AMD_LINK_INFO_TYPE_XGMI: hsa_amd_link_info_type_t = 4;
pub type hsa_amd_link_info_type_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_memory_pool_link_info_s {
    pub min_latency: u32,
    pub max_latency: u32,
    pub min_bandwidth: u32,
    pub max_bandwidth: u32,
    pub atomic_support_32bit: bool,
    pub atomic_support_64bit: bool,
    pub coherent_support: bool,
    pub link_type: hsa_amd_link_info_type_t,
    pub numa_distance: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_memory_pool_link_info_s"]
        [::core::mem::size_of::<hsa_amd_memory_pool_link_info_s>() - 28usize];
    ["Alignment of hsa_amd_memory_pool_link_info_s"]
        [::core::mem::align_of::<hsa_amd_memory_pool_link_info_s>() - 4usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::min_latency"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, min_latency) - 0usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::max_latency"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, max_latency) - 4usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::min_bandwidth"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, min_bandwidth) - 8usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::max_bandwidth"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, max_bandwidth) - 12usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::atomic_support_32bit"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, atomic_support_32bit) - 16usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::atomic_support_64bit"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, atomic_support_64bit) - 17usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::coherent_support"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, coherent_support) - 18usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::link_type"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, link_type) - 20usize];
    ["Offset of field: hsa_amd_memory_pool_link_info_s::numa_distance"]
        [::core::mem::offset_of!(hsa_amd_memory_pool_link_info_s, numa_distance) - 24usize];
};
pub type hsa_amd_memory_pool_link_info_t = hsa_amd_memory_pool_link_info_s;
pub const HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS: hsa_amd_agent_memory_pool_info_t = 0;
pub const HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS: hsa_amd_agent_memory_pool_info_t = 1;
pub const HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO: hsa_amd_agent_memory_pool_info_t = 2;
pub type hsa_amd_agent_memory_pool_info_t = ::core::ffi::c_uint;
pub type hsa_amd_agent_iterate_memory_pools_fn = ::core::option::Option<
    unsafe extern "C" fn(
        agent: hsa_agent_t,
        callback: ::core::option::Option<
            unsafe extern "C" fn(
                pool: hsa_amd_memory_pool_t,
                data: *mut ::core::ffi::c_void,
            ) -> hsa_status_t,
        >,
        data: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_pool_get_info_fn = ::core::option::Option<
    unsafe extern "C" fn(
        pool: hsa_amd_memory_pool_t,
        attribute: hsa_amd_memory_pool_info_t,
        value: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_agent_memory_pool_get_info_fn = ::core::option::Option<
    unsafe extern "C" fn(
        agent: hsa_agent_t,
        pool: hsa_amd_memory_pool_t,
        attribute: hsa_amd_agent_memory_pool_info_t,
        value: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_pool_allocate_fn = ::core::option::Option<
    unsafe extern "C" fn(
        pool: hsa_amd_memory_pool_t,
        size: usize,
        flags: u32,
        address: *mut *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_pool_free_fn =
    ::core::option::Option<unsafe extern "C" fn(address: *mut ::core::ffi::c_void) -> hsa_status_t>;
pub type hsa_amd_agents_allow_access_fn = ::core::option::Option<
    unsafe extern "C" fn(
        agent_count: u32,
        agents: *const hsa_agent_t,
        flags: *const u32,
        address: *const ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_region_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_region_s"][::core::mem::size_of::<hsa_region_s>() - 8usize];
    ["Alignment of hsa_region_s"][::core::mem::align_of::<hsa_region_s>() - 8usize];
    ["Offset of field: hsa_region_s::handle"]
        [::core::mem::offset_of!(hsa_region_s, handle) - 0usize];
};
pub type hsa_region_t = hsa_region_s;
pub const HSA_REGION_INFO_SEGMENT: hsa_region_info_t = 0;
pub const HSA_REGION_INFO_GLOBAL_FLAGS: hsa_region_info_t = 1;
pub const HSA_REGION_INFO_SIZE: hsa_region_info_t = 2;
pub const HSA_REGION_INFO_ALLOC_MAX_SIZE: hsa_region_info_t = 4;
pub const HSA_REGION_INFO_RUNTIME_ALLOC_ALLOWED: hsa_region_info_t = 5;
pub const HSA_REGION_INFO_RUNTIME_ALLOC_GRANULE: hsa_region_info_t = 6;
pub const HSA_REGION_INFO_RUNTIME_ALLOC_ALIGNMENT: hsa_region_info_t = 7;
pub const HSA_REGION_INFO_ALLOC_MAX_PRIVATE_WORKGROUP_SIZE: hsa_region_info_t = 8;
pub type hsa_region_info_t = ::core::ffi::c_uint;
pub const HSA_AMD_REGION_INFO_HOST_ACCESSIBLE: hsa_amd_region_info_t = 40960;
pub const HSA_AMD_REGION_INFO_BASE: hsa_amd_region_info_t = 40961;
pub const HSA_AMD_REGION_INFO_BUS_WIDTH: hsa_amd_region_info_t = 40962;
pub const HSA_AMD_REGION_INFO_MAX_CLOCK_FREQUENCY: hsa_amd_region_info_t = 40963;
pub type hsa_amd_region_info_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_signal_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_signal_s"][::core::mem::size_of::<hsa_signal_s>() - 8usize];
    ["Alignment of hsa_signal_s"][::core::mem::align_of::<hsa_signal_s>() - 8usize];
    ["Offset of field: hsa_signal_s::handle"]
        [::core::mem::offset_of!(hsa_signal_s, handle) - 0usize];
};
pub type hsa_signal_t = hsa_signal_s;
pub type hsa_signal_value_t = i64;
pub const HSA_QUEUE_TYPE_MULTI: hsa_queue_type_t = 0;
pub const HSA_QUEUE_TYPE_SINGLE: hsa_queue_type_t = 1;
pub type hsa_queue_type_t = ::core::ffi::c_uint;
pub const HSA_QUEUE_FEATURE_KERNEL_DISPATCH: hsa_queue_feature_t = 1;
pub type hsa_queue_feature_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_queue_s {
    pub type_: u32,
    pub features: u32,
    pub base_address: *mut ::core::ffi::c_void,
    pub doorbell_signal: hsa_signal_t,
    pub size: u32,
    pub reserved1: u32,
    pub id: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_queue_s"][::core::mem::size_of::<hsa_queue_s>() - 40usize];
    ["Alignment of hsa_queue_s"][::core::mem::align_of::<hsa_queue_s>() - 8usize];
    ["Offset of field: hsa_queue_s::type_"][::core::mem::offset_of!(hsa_queue_s, type_) - 0usize];
    ["Offset of field: hsa_queue_s::features"]
        [::core::mem::offset_of!(hsa_queue_s, features) - 4usize];
    ["Offset of field: hsa_queue_s::base_address"]
        [::core::mem::offset_of!(hsa_queue_s, base_address) - 8usize];
    ["Offset of field: hsa_queue_s::doorbell_signal"]
        [::core::mem::offset_of!(hsa_queue_s, doorbell_signal) - 16usize];
    ["Offset of field: hsa_queue_s::size"][::core::mem::offset_of!(hsa_queue_s, size) - 24usize];
    ["Offset of field: hsa_queue_s::reserved1"]
        [::core::mem::offset_of!(hsa_queue_s, reserved1) - 28usize];
    ["Offset of field: hsa_queue_s::id"][::core::mem::offset_of!(hsa_queue_s, id) - 32usize];
};
pub type hsa_queue_t = hsa_queue_s;
pub const HSA_AMD_QUEUE_INFO_AGENT: hsa_queue_info_attribute_t = 0;
pub const HSA_AMD_QUEUE_INFO_DOORBELL_ID: hsa_queue_info_attribute_t = 1;
pub type hsa_queue_info_attribute_t = ::core::ffi::c_uint;
pub const HSA_PACKET_TYPE_VENDOR_SPECIFIC: hsa_packet_type_t = 0;
pub const HSA_PACKET_TYPE_INVALID: hsa_packet_type_t = 1;
pub const HSA_PACKET_TYPE_KERNEL_DISPATCH: hsa_packet_type_t = 2;
pub const HSA_PACKET_TYPE_BARRIER_AND: hsa_packet_type_t = 3;
pub const HSA_PACKET_TYPE_AGENT_DISPATCH: hsa_packet_type_t = 4;
pub const HSA_PACKET_TYPE_BARRIER_OR: hsa_packet_type_t = 5;
pub type hsa_packet_type_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_barrier_and_packet_s {
    pub header: u16,
    pub reserved0: u16,
    pub reserved1: u32,
    pub dep_signal: [hsa_signal_t; 5usize],
    pub reserved2: u64,
    pub completion_signal: hsa_signal_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_barrier_and_packet_s"]
        [::core::mem::size_of::<hsa_barrier_and_packet_s>() - 64usize];
    ["Alignment of hsa_barrier_and_packet_s"]
        [::core::mem::align_of::<hsa_barrier_and_packet_s>() - 8usize];
    ["Offset of field: hsa_barrier_and_packet_s::header"]
        [::core::mem::offset_of!(hsa_barrier_and_packet_s, header) - 0usize];
    ["Offset of field: hsa_barrier_and_packet_s::reserved0"]
        [::core::mem::offset_of!(hsa_barrier_and_packet_s, reserved0) - 2usize];
    ["Offset of field: hsa_barrier_and_packet_s::reserved1"]
        [::core::mem::offset_of!(hsa_barrier_and_packet_s, reserved1) - 4usize];
    ["Offset of field: hsa_barrier_and_packet_s::dep_signal"]
        [::core::mem::offset_of!(hsa_barrier_and_packet_s, dep_signal) - 8usize];
    ["Offset of field: hsa_barrier_and_packet_s::reserved2"]
        [::core::mem::offset_of!(hsa_barrier_and_packet_s, reserved2) - 48usize];
    ["Offset of field: hsa_barrier_and_packet_s::completion_signal"]
        [::core::mem::offset_of!(hsa_barrier_and_packet_s, completion_signal) - 56usize];
};
pub type hsa_barrier_and_packet_t = hsa_barrier_and_packet_s;
pub const HSA_AMD_PACKET_TYPE_BARRIER_VALUE: hsa_amd_packet_type_t = 2;
pub type hsa_amd_packet_type_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_vendor_packet_header_s {
    pub header: u16,
    pub AmdFormat: u8,
    pub reserved: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_vendor_packet_header_s"]
        [::core::mem::size_of::<hsa_amd_vendor_packet_header_s>() - 4usize];
    ["Alignment of hsa_amd_vendor_packet_header_s"]
        [::core::mem::align_of::<hsa_amd_vendor_packet_header_s>() - 2usize];
    ["Offset of field: hsa_amd_vendor_packet_header_s::header"]
        [::core::mem::offset_of!(hsa_amd_vendor_packet_header_s, header) - 0usize];
    ["Offset of field: hsa_amd_vendor_packet_header_s::AmdFormat"]
        [::core::mem::offset_of!(hsa_amd_vendor_packet_header_s, AmdFormat) - 2usize];
    ["Offset of field: hsa_amd_vendor_packet_header_s::reserved"]
        [::core::mem::offset_of!(hsa_amd_vendor_packet_header_s, reserved) - 3usize];
};
pub type hsa_amd_vendor_packet_header_t = hsa_amd_vendor_packet_header_s;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_barrier_value_packet_s {
    pub header: hsa_amd_vendor_packet_header_t,
    pub reserved0: u32,
    pub signal: hsa_signal_t,
    pub value: hsa_signal_value_t,
    pub mask: hsa_signal_value_t,
    pub cond: u32,
    pub reserved1: u32,
    pub reserved2: u64,
    pub reserved3: u64,
    pub completion_signal: hsa_signal_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_barrier_value_packet_s"]
        [::core::mem::size_of::<hsa_amd_barrier_value_packet_s>() - 64usize];
    ["Alignment of hsa_amd_barrier_value_packet_s"]
        [::core::mem::align_of::<hsa_amd_barrier_value_packet_s>() - 8usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::header"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, header) - 0usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::reserved0"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, reserved0) - 4usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::signal"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, signal) - 8usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::value"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, value) - 16usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::mask"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, mask) - 24usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::cond"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, cond) - 32usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::reserved1"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, reserved1) - 36usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::reserved2"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, reserved2) - 40usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::reserved3"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, reserved3) - 48usize];
    ["Offset of field: hsa_amd_barrier_value_packet_s::completion_signal"]
        [::core::mem::offset_of!(hsa_amd_barrier_value_packet_s, completion_signal) - 56usize];
};
pub type hsa_amd_barrier_value_packet_t = hsa_amd_barrier_value_packet_s;
pub const HSA_AMD_SIGNAL_AMD_GPU_ONLY: hsa_amd_signal_attribute_t = 1;
pub const HSA_AMD_SIGNAL_IPC: hsa_amd_signal_attribute_t = 2;
pub type hsa_amd_signal_attribute_t = ::core::ffi::c_uint;
pub const HSA_SIGNAL_CONDITION_EQ: hsa_signal_condition_t = 0;
pub const HSA_SIGNAL_CONDITION_NE: hsa_signal_condition_t = 1;
pub const HSA_SIGNAL_CONDITION_LT: hsa_signal_condition_t = 2;
pub const HSA_SIGNAL_CONDITION_GTE: hsa_signal_condition_t = 3;
pub type hsa_signal_condition_t = ::core::ffi::c_uint;
pub const HSA_WAIT_STATE_BLOCKED: hsa_wait_state_t = 0;
pub const HSA_WAIT_STATE_ACTIVE: hsa_wait_state_t = 1;
pub type hsa_wait_state_t = ::core::ffi::c_uint;
pub type hsa_signal_create_fn = ::core::option::Option<
    unsafe extern "C" fn(
        initial_value: hsa_signal_value_t,
        consumer_count: u32,
        consumers: *const hsa_agent_t,
        signal: *mut hsa_signal_t,
    ) -> hsa_status_t,
>;
pub type hsa_signal_destroy_fn =
    ::core::option::Option<unsafe extern "C" fn(signal: hsa_signal_t) -> hsa_status_t>;
pub type hsa_signal_load_scacquire_fn =
    ::core::option::Option<unsafe extern "C" fn(signal: hsa_signal_t) -> hsa_signal_value_t>;
pub type hsa_signal_store_screlease_fn =
    ::core::option::Option<unsafe extern "C" fn(signal: hsa_signal_t, value: hsa_signal_value_t)>;
pub type hsa_signal_wait_scacquire_fn = ::core::option::Option<
    unsafe extern "C" fn(
        signal: hsa_signal_t,
        condition: hsa_signal_condition_t,
        compare_value: hsa_signal_value_t,
        timeout_hint: u64,
        wait_state_hint: hsa_wait_state_t,
    ) -> hsa_signal_value_t,
>;
pub type hsa_memory_copy_fn = ::core::option::Option<
    unsafe extern "C" fn(
        destination: *mut ::core::ffi::c_void,
        source: *const ::core::ffi::c_void,
        size: usize,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_fill_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        value: u32,
        count: usize,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_async_copy_fn = ::core::option::Option<
    unsafe extern "C" fn(
        destination: *mut ::core::ffi::c_void,
        destination_agent: hsa_agent_t,
        source: *const ::core::ffi::c_void,
        source_agent: hsa_agent_t,
        size: usize,
        dependency_count: u32,
        dependencies: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_lock_fn = ::core::option::Option<
    unsafe extern "C" fn(
        host_address: *mut ::core::ffi::c_void,
        size: usize,
        agents: *mut hsa_agent_t,
        agent_count: ::core::ffi::c_int,
        agent_address: *mut *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_memory_unlock_fn = ::core::option::Option<
    unsafe extern "C" fn(host_address: *mut ::core::ffi::c_void) -> hsa_status_t,
>;
pub const HSA_EXT_POINTER_TYPE_UNKNOWN: hsa_amd_pointer_type_t = 0;
pub const HSA_EXT_POINTER_TYPE_HSA: hsa_amd_pointer_type_t = 1;
pub const HSA_EXT_POINTER_TYPE_LOCKED: hsa_amd_pointer_type_t = 2;
pub const HSA_EXT_POINTER_TYPE_GRAPHICS: hsa_amd_pointer_type_t = 3;
pub const HSA_EXT_POINTER_TYPE_IPC: hsa_amd_pointer_type_t = 4;
pub const HSA_EXT_POINTER_TYPE_RESERVED_ADDR: hsa_amd_pointer_type_t = 5;
pub const HSA_EXT_POINTER_TYPE_HSA_VMEM: hsa_amd_pointer_type_t = 6;
pub type hsa_amd_pointer_type_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_pointer_info_s {
    pub size: u32,
    pub type_: hsa_amd_pointer_type_t,
    pub agentBaseAddress: *mut ::core::ffi::c_void,
    pub hostBaseAddress: *mut ::core::ffi::c_void,
    pub sizeInBytes: usize,
    pub userData: *mut ::core::ffi::c_void,
    pub agentOwner: hsa_agent_t,
    pub global_flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_pointer_info_s"][::core::mem::size_of::<hsa_amd_pointer_info_s>() - 56usize];
    ["Alignment of hsa_amd_pointer_info_s"]
        [::core::mem::align_of::<hsa_amd_pointer_info_s>() - 8usize];
    ["Offset of field: hsa_amd_pointer_info_s::size"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, size) - 0usize];
    ["Offset of field: hsa_amd_pointer_info_s::type_"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, type_) - 4usize];
    ["Offset of field: hsa_amd_pointer_info_s::agentBaseAddress"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, agentBaseAddress) - 8usize];
    ["Offset of field: hsa_amd_pointer_info_s::hostBaseAddress"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, hostBaseAddress) - 16usize];
    ["Offset of field: hsa_amd_pointer_info_s::sizeInBytes"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, sizeInBytes) - 24usize];
    ["Offset of field: hsa_amd_pointer_info_s::userData"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, userData) - 32usize];
    ["Offset of field: hsa_amd_pointer_info_s::agentOwner"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, agentOwner) - 40usize];
    ["Offset of field: hsa_amd_pointer_info_s::global_flags"]
        [::core::mem::offset_of!(hsa_amd_pointer_info_s, global_flags) - 48usize];
};
pub type hsa_amd_pointer_info_t = hsa_amd_pointer_info_s;
pub type hsa_amd_pointer_info_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *const ::core::ffi::c_void,
        info: *mut hsa_amd_pointer_info_t,
        allocate: ::core::option::Option<
            unsafe extern "C" fn(arg1: usize) -> *mut ::core::ffi::c_void,
        >,
        accessible_count: *mut u32,
        accessible: *mut *mut hsa_agent_t,
    ) -> hsa_status_t,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_ipc_memory_s {
    pub handle: [u32; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_ipc_memory_s"][::core::mem::size_of::<hsa_amd_ipc_memory_s>() - 32usize];
    ["Alignment of hsa_amd_ipc_memory_s"][::core::mem::align_of::<hsa_amd_ipc_memory_s>() - 4usize];
    ["Offset of field: hsa_amd_ipc_memory_s::handle"]
        [::core::mem::offset_of!(hsa_amd_ipc_memory_s, handle) - 0usize];
};
pub type hsa_amd_ipc_memory_t = hsa_amd_ipc_memory_s;
pub type hsa_amd_ipc_signal_t = hsa_amd_ipc_memory_t;
pub type hsa_amd_ipc_memory_create_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        length: usize,
        handle: *mut hsa_amd_ipc_memory_t,
    ) -> hsa_status_t,
>;
pub type hsa_amd_ipc_memory_attach_fn = ::core::option::Option<
    unsafe extern "C" fn(
        handle: *const hsa_amd_ipc_memory_t,
        length: usize,
        agent_count: u32,
        agents: *const hsa_agent_t,
        address: *mut *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_ipc_memory_detach_fn =
    ::core::option::Option<unsafe extern "C" fn(address: *mut ::core::ffi::c_void) -> hsa_status_t>;
pub const HSA_AMD_DMABUF_MAPPING_TYPE_NONE: hsa_amd_dma_buf_mapping_type_t = 0;
pub const HSA_AMD_DMABUF_MAPPING_TYPE_PCIE: hsa_amd_dma_buf_mapping_type_t = 1;
pub type hsa_amd_dma_buf_mapping_type_t = ::core::ffi::c_uint;
pub type hsa_amd_portable_export_dmabuf_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *const ::core::ffi::c_void,
        size: usize,
        dmabuf: *mut ::core::ffi::c_int,
        offset: *mut u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_portable_export_dmabuf_v2_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *const ::core::ffi::c_void,
        size: usize,
        dmabuf: *mut ::core::ffi::c_int,
        offset: *mut u64,
        flags: u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_portable_close_dmabuf_fn =
    ::core::option::Option<unsafe extern "C" fn(dmabuf: ::core::ffi::c_int) -> hsa_status_t>;
pub const HSA_AMD_GPU_MEMORY_FAULT_EVENT: hsa_amd_event_type_t = 0;
pub const HSA_AMD_GPU_HW_EXCEPTION_EVENT: hsa_amd_event_type_t = 1;
pub const HSA_AMD_GPU_MEMORY_ERROR_EVENT: hsa_amd_event_type_t = 2;
pub type hsa_amd_event_type_t = ::core::ffi::c_uint;
pub const HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT: hsa_amd_memory_fault_reason_t = 1;
pub const HSA_AMD_MEMORY_FAULT_READ_ONLY: hsa_amd_memory_fault_reason_t = 2;
pub const HSA_AMD_MEMORY_FAULT_NX: hsa_amd_memory_fault_reason_t = 4;
pub const HSA_AMD_MEMORY_FAULT_HOST_ONLY: hsa_amd_memory_fault_reason_t = 8;
pub const HSA_AMD_MEMORY_FAULT_IMPRECISE: hsa_amd_memory_fault_reason_t = 32;
pub type hsa_amd_memory_fault_reason_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_gpu_memory_fault_info_s {
    pub agent: hsa_agent_t,
    pub virtual_address: u64,
    pub fault_reason_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_gpu_memory_fault_info_s"]
        [::core::mem::size_of::<hsa_amd_gpu_memory_fault_info_s>() - 24usize];
    ["Alignment of hsa_amd_gpu_memory_fault_info_s"]
        [::core::mem::align_of::<hsa_amd_gpu_memory_fault_info_s>() - 8usize];
    ["Offset of field: hsa_amd_gpu_memory_fault_info_s::agent"]
        [::core::mem::offset_of!(hsa_amd_gpu_memory_fault_info_s, agent) - 0usize];
    ["Offset of field: hsa_amd_gpu_memory_fault_info_s::virtual_address"]
        [::core::mem::offset_of!(hsa_amd_gpu_memory_fault_info_s, virtual_address) - 8usize];
    ["Offset of field: hsa_amd_gpu_memory_fault_info_s::fault_reason_mask"]
        [::core::mem::offset_of!(hsa_amd_gpu_memory_fault_info_s, fault_reason_mask) - 16usize];
};
pub type hsa_amd_gpu_memory_fault_info_t = hsa_amd_gpu_memory_fault_info_s;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_gpu_memory_error_info_s {
    pub agent: hsa_agent_t,
    pub virtual_address: u64,
    pub error_reason_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_gpu_memory_error_info_s"]
        [::core::mem::size_of::<hsa_amd_gpu_memory_error_info_s>() - 24usize];
    ["Alignment of hsa_amd_gpu_memory_error_info_s"]
        [::core::mem::align_of::<hsa_amd_gpu_memory_error_info_s>() - 8usize];
    ["Offset of field: hsa_amd_gpu_memory_error_info_s::agent"]
        [::core::mem::offset_of!(hsa_amd_gpu_memory_error_info_s, agent) - 0usize];
    ["Offset of field: hsa_amd_gpu_memory_error_info_s::virtual_address"]
        [::core::mem::offset_of!(hsa_amd_gpu_memory_error_info_s, virtual_address) - 8usize];
    ["Offset of field: hsa_amd_gpu_memory_error_info_s::error_reason_mask"]
        [::core::mem::offset_of!(hsa_amd_gpu_memory_error_info_s, error_reason_mask) - 16usize];
};
pub type hsa_amd_gpu_memory_error_info_t = hsa_amd_gpu_memory_error_info_s;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_gpu_hw_exception_info_s {
    pub agent: hsa_agent_t,
    pub reset_type: u32,
    pub reset_cause: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_gpu_hw_exception_info_s"]
        [::core::mem::size_of::<hsa_amd_gpu_hw_exception_info_s>() - 16usize];
    ["Alignment of hsa_amd_gpu_hw_exception_info_s"]
        [::core::mem::align_of::<hsa_amd_gpu_hw_exception_info_s>() - 8usize];
    ["Offset of field: hsa_amd_gpu_hw_exception_info_s::agent"]
        [::core::mem::offset_of!(hsa_amd_gpu_hw_exception_info_s, agent) - 0usize];
    ["Offset of field: hsa_amd_gpu_hw_exception_info_s::reset_type"]
        [::core::mem::offset_of!(hsa_amd_gpu_hw_exception_info_s, reset_type) - 8usize];
    ["Offset of field: hsa_amd_gpu_hw_exception_info_s::reset_cause"]
        [::core::mem::offset_of!(hsa_amd_gpu_hw_exception_info_s, reset_cause) - 12usize];
};
pub type hsa_amd_gpu_hw_exception_info_t = hsa_amd_gpu_hw_exception_info_s;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct hsa_amd_event_s {
    pub event_type: hsa_amd_event_type_t,
    pub __bindgen_anon_1: hsa_amd_event_s__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union hsa_amd_event_s__bindgen_ty_1 {
    pub memory_fault: hsa_amd_gpu_memory_fault_info_t,
    pub hw_exception: hsa_amd_gpu_hw_exception_info_t,
    pub memory_error: hsa_amd_gpu_memory_error_info_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_event_s__bindgen_ty_1"]
        [::core::mem::size_of::<hsa_amd_event_s__bindgen_ty_1>() - 24usize];
    ["Alignment of hsa_amd_event_s__bindgen_ty_1"]
        [::core::mem::align_of::<hsa_amd_event_s__bindgen_ty_1>() - 8usize];
    ["Offset of field: hsa_amd_event_s__bindgen_ty_1::memory_fault"]
        [::core::mem::offset_of!(hsa_amd_event_s__bindgen_ty_1, memory_fault) - 0usize];
    ["Offset of field: hsa_amd_event_s__bindgen_ty_1::hw_exception"]
        [::core::mem::offset_of!(hsa_amd_event_s__bindgen_ty_1, hw_exception) - 0usize];
    ["Offset of field: hsa_amd_event_s__bindgen_ty_1::memory_error"]
        [::core::mem::offset_of!(hsa_amd_event_s__bindgen_ty_1, memory_error) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_event_s"][::core::mem::size_of::<hsa_amd_event_s>() - 32usize];
    ["Alignment of hsa_amd_event_s"][::core::mem::align_of::<hsa_amd_event_s>() - 8usize];
    ["Offset of field: hsa_amd_event_s::event_type"]
        [::core::mem::offset_of!(hsa_amd_event_s, event_type) - 0usize];
};
pub type hsa_amd_event_t = hsa_amd_event_s;
pub type hsa_amd_system_event_callback_t = ::core::option::Option<
    unsafe extern "C" fn(
        event: *const hsa_amd_event_t,
        data: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_register_system_event_handler_fn = ::core::option::Option<
    unsafe extern "C" fn(
        callback: hsa_amd_system_event_callback_t,
        data: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub const HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG: hsa_amd_svm_attribute_t = 0;
pub const HSA_AMD_SVM_ATTRIB_READ_ONLY: hsa_amd_svm_attribute_t = 1;
pub const HSA_AMD_SVM_ATTRIB_HIVE_LOCAL: hsa_amd_svm_attribute_t = 2;
pub const HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY: hsa_amd_svm_attribute_t = 3;
pub const HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION: hsa_amd_svm_attribute_t = 4;
pub const HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION: hsa_amd_svm_attribute_t = 5;
pub const HSA_AMD_SVM_ATTRIB_READ_MOSTLY: hsa_amd_svm_attribute_t = 6;
pub const HSA_AMD_SVM_ATTRIB_GPU_EXEC: hsa_amd_svm_attribute_t = 7;
pub const HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE: hsa_amd_svm_attribute_t = 512;
pub const HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE: hsa_amd_svm_attribute_t = 513;
pub const HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS: hsa_amd_svm_attribute_t = 514;
pub const HSA_AMD_SVM_ATTRIB_ACCESS_QUERY: hsa_amd_svm_attribute_t = 515;
pub type hsa_amd_svm_attribute_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_svm_attribute_pair_s {
    pub attribute: u64,
    pub value: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_svm_attribute_pair_s"]
        [::core::mem::size_of::<hsa_amd_svm_attribute_pair_s>() - 16usize];
    ["Alignment of hsa_amd_svm_attribute_pair_s"]
        [::core::mem::align_of::<hsa_amd_svm_attribute_pair_s>() - 8usize];
    ["Offset of field: hsa_amd_svm_attribute_pair_s::attribute"]
        [::core::mem::offset_of!(hsa_amd_svm_attribute_pair_s, attribute) - 0usize];
    ["Offset of field: hsa_amd_svm_attribute_pair_s::value"]
        [::core::mem::offset_of!(hsa_amd_svm_attribute_pair_s, value) - 8usize];
};
pub type hsa_amd_svm_attribute_pair_t = hsa_amd_svm_attribute_pair_s;
pub type hsa_amd_svm_attributes_set_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        size: usize,
        attributes: *mut hsa_amd_svm_attribute_pair_t,
        attribute_count: usize,
    ) -> hsa_status_t,
>;
pub type hsa_amd_svm_attributes_get_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        size: usize,
        attributes: *mut hsa_amd_svm_attribute_pair_t,
        attribute_count: usize,
    ) -> hsa_status_t,
>;
pub const HSA_ACCESS_PERMISSION_NONE: hsa_access_permission_t = 0;
pub const HSA_ACCESS_PERMISSION_RO: hsa_access_permission_t = 1;
pub const HSA_ACCESS_PERMISSION_WO: hsa_access_permission_t = 2;
pub const HSA_ACCESS_PERMISSION_RW: hsa_access_permission_t = 3;
pub type hsa_access_permission_t = ::core::ffi::c_uint;
pub const HSA_AMD_VMEM_ADDRESS_NO_REGISTER: hsa_amd_vmem_address_reserve_flag_t = 1;
pub type hsa_amd_vmem_address_reserve_flag_t = ::core::ffi::c_uint;
pub const MEMORY_TYPE_NONE: hsa_amd_memory_type_t = 0;
pub const MEMORY_TYPE_PINNED: hsa_amd_memory_type_t = 1;
pub type hsa_amd_memory_type_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_vmem_alloc_handle_s {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_vmem_alloc_handle_s"]
        [::core::mem::size_of::<hsa_amd_vmem_alloc_handle_s>() - 8usize];
    ["Alignment of hsa_amd_vmem_alloc_handle_s"]
        [::core::mem::align_of::<hsa_amd_vmem_alloc_handle_s>() - 8usize];
    ["Offset of field: hsa_amd_vmem_alloc_handle_s::handle"]
        [::core::mem::offset_of!(hsa_amd_vmem_alloc_handle_s, handle) - 0usize];
};
pub type hsa_amd_vmem_alloc_handle_t = hsa_amd_vmem_alloc_handle_s;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_amd_memory_access_desc_s {
    pub permissions: hsa_access_permission_t,
    pub agent_handle: hsa_agent_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_amd_memory_access_desc_s"]
        [::core::mem::size_of::<hsa_amd_memory_access_desc_s>() - 16usize];
    ["Alignment of hsa_amd_memory_access_desc_s"]
        [::core::mem::align_of::<hsa_amd_memory_access_desc_s>() - 8usize];
    ["Offset of field: hsa_amd_memory_access_desc_s::permissions"]
        [::core::mem::offset_of!(hsa_amd_memory_access_desc_s, permissions) - 0usize];
    ["Offset of field: hsa_amd_memory_access_desc_s::agent_handle"]
        [::core::mem::offset_of!(hsa_amd_memory_access_desc_s, agent_handle) - 8usize];
};
pub type hsa_amd_memory_access_desc_t = hsa_amd_memory_access_desc_s;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct hsa_fabric_handle_s {
    pub handle: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of hsa_fabric_handle_s"][::core::mem::size_of::<hsa_fabric_handle_s>() - 16usize];
    ["Alignment of hsa_fabric_handle_s"][::core::mem::align_of::<hsa_fabric_handle_s>() - 1usize];
    ["Offset of field: hsa_fabric_handle_s::handle"]
        [::core::mem::offset_of!(hsa_fabric_handle_s, handle) - 0usize];
};
pub type hsa_fabric_handle_t = hsa_fabric_handle_s;
pub type hsa_amd_vmem_address_reserve_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut *mut ::core::ffi::c_void,
        size: usize,
        hint: u64,
        flags: u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_address_reserve_align_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut *mut ::core::ffi::c_void,
        size: usize,
        hint: u64,
        alignment: u64,
        flags: u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_address_free_fn = ::core::option::Option<
    unsafe extern "C" fn(address: *mut ::core::ffi::c_void, size: usize) -> hsa_status_t,
>;
pub type hsa_amd_vmem_handle_create_fn = ::core::option::Option<
    unsafe extern "C" fn(
        pool: hsa_amd_memory_pool_t,
        size: usize,
        type_: hsa_amd_memory_type_t,
        flags: u64,
        handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_handle_release_fn = ::core::option::Option<
    unsafe extern "C" fn(handle: hsa_amd_vmem_alloc_handle_t) -> hsa_status_t,
>;
pub type hsa_amd_vmem_map_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        size: usize,
        offset: usize,
        handle: hsa_amd_vmem_alloc_handle_t,
        flags: u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_unmap_fn = ::core::option::Option<
    unsafe extern "C" fn(address: *mut ::core::ffi::c_void, size: usize) -> hsa_status_t,
>;
pub type hsa_amd_vmem_set_access_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        size: usize,
        descriptors: *const hsa_amd_memory_access_desc_t,
        descriptor_count: usize,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_get_access_fn = ::core::option::Option<
    unsafe extern "C" fn(
        address: *mut ::core::ffi::c_void,
        permissions: *mut hsa_access_permission_t,
        agent: hsa_agent_t,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_export_shareable_handle_fn = ::core::option::Option<
    unsafe extern "C" fn(
        dmabuf: *mut ::core::ffi::c_int,
        handle: hsa_amd_vmem_alloc_handle_t,
        flags: u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_import_shareable_handle_fn = ::core::option::Option<
    unsafe extern "C" fn(
        dmabuf: ::core::ffi::c_int,
        handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_retain_alloc_handle_fn = ::core::option::Option<
    unsafe extern "C" fn(
        handle: *mut hsa_amd_vmem_alloc_handle_t,
        address: *mut ::core::ffi::c_void,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_get_alloc_properties_from_handle_fn = ::core::option::Option<
    unsafe extern "C" fn(
        handle: hsa_amd_vmem_alloc_handle_t,
        pool: *mut hsa_amd_memory_pool_t,
        type_: *mut hsa_amd_memory_type_t,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_export_fabric_handle_fn = ::core::option::Option<
    unsafe extern "C" fn(
        fabric: *mut hsa_fabric_handle_t,
        handle: hsa_amd_vmem_alloc_handle_t,
        flags: u64,
    ) -> hsa_status_t,
>;
pub type hsa_amd_vmem_import_fabric_handle_fn = ::core::option::Option<
    unsafe extern "C" fn(
        fabric: hsa_fabric_handle_t,
        handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) -> hsa_status_t,
>;
