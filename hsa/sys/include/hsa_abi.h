/*
 * The part of the HSA ABI that hsa-vmm and its simulation use, as libhsa-runtime64.so.1 exports it.
 *
 * Written for this project from the public documentation of HSA 1.2 and of AMD's
 * extensions up to ROCm 7.14. This header is not AMD's header and does not replace it
 * in C programs. bindgen generates ../src/bindings.rs from this header; `cargo test -p hsa-sys
 * --features bindgen` checks that the bindings are up to date. tests/layout.rs compares
 * every constant, size and offset with AMD's own headers, if installed.
 *
 * HSA_FUNCTION(result, name, (parameters)) declares the pointer type `name_fn`. ../src/table.rs
 * lists the functions that the loader looks up.
 */
#ifndef HSA_VMM_HSA_ABI_H
#define HSA_VMM_HSA_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HSA_FUNCTION(result, name, parameters) typedef result(*name##_fn) parameters

/* ---- Status ------------------------------------------------------------------ */

typedef enum {
  HSA_STATUS_SUCCESS = 0x0,
  HSA_STATUS_INFO_BREAK = 0x1,
  /* Defined by AMD's extension. */
  HSA_STATUS_ERROR_INVALID_MEMORY_POOL = 40,
  HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION = 41,
  HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION = 42,
  HSA_STATUS_ERROR_MEMORY_FAULT = 43,
  HSA_STATUS_CU_MASK_REDUCED = 44,
  HSA_STATUS_ERROR_OUT_OF_REGISTERS = 45,
  HSA_STATUS_ERROR_RESOURCE_BUSY = 46,
  HSA_STATUS_ERROR_NOT_SUPPORTED = 47,
  /* Defined by the HSA standard. */
  HSA_STATUS_ERROR = 0x1000,
  HSA_STATUS_ERROR_INVALID_ARGUMENT = 0x1001,
  HSA_STATUS_ERROR_INVALID_QUEUE_CREATION = 0x1002,
  HSA_STATUS_ERROR_INVALID_ALLOCATION = 0x1003,
  HSA_STATUS_ERROR_INVALID_AGENT = 0x1004,
  HSA_STATUS_ERROR_INVALID_REGION = 0x1005,
  HSA_STATUS_ERROR_INVALID_SIGNAL = 0x1006,
  HSA_STATUS_ERROR_INVALID_QUEUE = 0x1007,
  HSA_STATUS_ERROR_OUT_OF_RESOURCES = 0x1008,
  HSA_STATUS_ERROR_INVALID_PACKET_FORMAT = 0x1009,
  HSA_STATUS_ERROR_RESOURCE_FREE = 0x100A,
  HSA_STATUS_ERROR_NOT_INITIALIZED = 0x100B,
  HSA_STATUS_ERROR_REFCOUNT_OVERFLOW = 0x100C,
  HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS = 0x100D,
  HSA_STATUS_ERROR_INVALID_INDEX = 0x100E,
  HSA_STATUS_ERROR_INVALID_ISA = 0x100F,
  HSA_STATUS_ERROR_INVALID_CODE_OBJECT = 0x1010,
  HSA_STATUS_ERROR_INVALID_EXECUTABLE = 0x1011,
  HSA_STATUS_ERROR_FROZEN_EXECUTABLE = 0x1012,
  HSA_STATUS_ERROR_INVALID_SYMBOL_NAME = 0x1013,
  HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED = 0x1014,
  HSA_STATUS_ERROR_VARIABLE_UNDEFINED = 0x1015,
  HSA_STATUS_ERROR_EXCEPTION = 0x1016,
  HSA_STATUS_ERROR_INVALID_ISA_NAME = 0x1017,
  HSA_STATUS_ERROR_INVALID_CODE_SYMBOL = 0x1018,
  HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL = 0x1019,
  HSA_STATUS_ERROR_INVALID_FILE = 0x1020,
  HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER = 0x1021,
  HSA_STATUS_ERROR_INVALID_CACHE = 0x1022,
  HSA_STATUS_ERROR_INVALID_WAVEFRONT = 0x1023,
  HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP = 0x1024,
  HSA_STATUS_ERROR_INVALID_RUNTIME_STATE = 0x1025,
  HSA_STATUS_ERROR_FATAL = 0x1026
} hsa_status_t;

HSA_FUNCTION(hsa_status_t, hsa_status_string, (hsa_status_t status, const char **text));

/* ---- Runtime ----------------------------------------------------------------- */

typedef enum {
  HSA_SYSTEM_INFO_VERSION_MAJOR = 0,
  HSA_SYSTEM_INFO_VERSION_MINOR = 1,
  HSA_SYSTEM_INFO_TIMESTAMP = 2,
  HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY = 3,
  HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT = 4,
  HSA_SYSTEM_INFO_ENDIANNESS = 5,
  HSA_SYSTEM_INFO_MACHINE_MODEL = 6,
  HSA_SYSTEM_INFO_EXTENSIONS = 7,
  HSA_AMD_SYSTEM_INFO_BUILD_VERSION = 0x200,
  HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED = 0x201,
  HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT = 0x202,
  HSA_AMD_SYSTEM_INFO_MWAITX_ENABLED = 0x203,
  HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED = 0x204,
  HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED = 0x205,
  HSA_AMD_SYSTEM_INFO_XNACK_ENABLED = 0x206,
  HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR = 0x207,
  HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR = 0x208,
  HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED = 0x209,
  HSA_AMD_SYSTEM_INFO_HOST_ALLOC_DMA_BUF_SUPPORTED = 0x20A
} hsa_system_info_t;

typedef enum { HSA_ENDIANNESS_LITTLE = 0 } hsa_endianness_t;
typedef enum { HSA_MACHINE_MODEL_LARGE = 1 } hsa_machine_model_t;

/* The numbers of the bits in the value of HSA_SYSTEM_INFO_EXTENSIONS, one for each extension. */
typedef enum {
  HSA_EXTENSION_FINALIZER = 0,
  HSA_EXTENSION_IMAGES = 1,
  HSA_EXTENSION_PERFORMANCE_COUNTERS = 2,
  HSA_EXTENSION_PROFILING_EVENTS = 3,
  HSA_EXTENSION_AMD_PROFILER = 0x200,
  HSA_EXTENSION_AMD_LOADER = 0x201,
  HSA_EXTENSION_AMD_AQLPROFILE = 0x202,
  HSA_EXTENSION_AMD_PC_SAMPLING = 0x203
} hsa_extension_t;

HSA_FUNCTION(hsa_status_t, hsa_init, (void));
HSA_FUNCTION(hsa_status_t, hsa_shut_down, (void));
HSA_FUNCTION(hsa_status_t, hsa_system_get_info, (hsa_system_info_t attribute, void *value));

/* ---- Agents ------------------------------------------------------------------ */

typedef struct hsa_agent_s {
  uint64_t handle;
} hsa_agent_t;

typedef enum {
  HSA_DEVICE_TYPE_CPU = 0,
  HSA_DEVICE_TYPE_GPU = 1,
  HSA_DEVICE_TYPE_DSP = 2,
  HSA_DEVICE_TYPE_AIE = 3
} hsa_device_type_t;

typedef enum {
  HSA_AGENT_INFO_NAME = 0,
  HSA_AGENT_INFO_VENDOR_NAME = 1,
  HSA_AGENT_INFO_FEATURE = 2,
  HSA_AGENT_INFO_MACHINE_MODEL = 3,
  HSA_AGENT_INFO_PROFILE = 4,
  HSA_AGENT_INFO_DEFAULT_FLOAT_ROUNDING_MODE = 5,
  HSA_AGENT_INFO_WAVEFRONT_SIZE = 6,
  HSA_AGENT_INFO_WORKGROUP_MAX_DIM = 7,
  HSA_AGENT_INFO_WORKGROUP_MAX_SIZE = 8,
  HSA_AGENT_INFO_GRID_MAX_DIM = 9,
  HSA_AGENT_INFO_GRID_MAX_SIZE = 10,
  HSA_AGENT_INFO_FBARRIER_MAX_SIZE = 11,
  HSA_AGENT_INFO_QUEUES_MAX = 12,
  HSA_AGENT_INFO_QUEUE_MIN_SIZE = 13,
  HSA_AGENT_INFO_QUEUE_MAX_SIZE = 14,
  HSA_AGENT_INFO_QUEUE_TYPE = 15,
  HSA_AGENT_INFO_NODE = 16,
  HSA_AGENT_INFO_DEVICE = 17,
  HSA_AGENT_INFO_CACHE_SIZE = 18,
  HSA_AGENT_INFO_ISA = 19,
  HSA_AGENT_INFO_EXTENSIONS = 20,
  HSA_AGENT_INFO_VERSION_MAJOR = 21,
  HSA_AGENT_INFO_VERSION_MINOR = 22,
  HSA_AGENT_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES = 23,
  HSA_AGENT_INFO_FAST_F16_OPERATION = 24,
  /* Attributes of the extension for images. */
  HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS = 0x3000,
  HSA_EXT_AGENT_INFO_IMAGE_1DA_MAX_ELEMENTS = 0x3001,
  HSA_EXT_AGENT_INFO_IMAGE_1DB_MAX_ELEMENTS = 0x3002,
  HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS = 0x3003,
  HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS = 0x3004,
  HSA_EXT_AGENT_INFO_IMAGE_2DDEPTH_MAX_ELEMENTS = 0x3005,
  HSA_EXT_AGENT_INFO_IMAGE_2DADEPTH_MAX_ELEMENTS = 0x3006,
  HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS = 0x3007,
  HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS = 0x3008,
  HSA_EXT_AGENT_INFO_MAX_IMAGE_RD_HANDLES = 0x3009,
  HSA_EXT_AGENT_INFO_MAX_IMAGE_RORW_HANDLES = 0x300A,
  HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS = 0x300B,
  HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT = 0x300C
} hsa_agent_info_t;

typedef enum { HSA_AGENT_FEATURE_KERNEL_DISPATCH = 1 } hsa_agent_feature_t;
typedef enum { HSA_PROFILE_BASE = 0, HSA_PROFILE_FULL = 1 } hsa_profile_t;
typedef enum { HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR = 2 } hsa_default_float_rounding_mode_t;

typedef struct hsa_dim3_s {
  uint32_t x;
  uint32_t y;
  uint32_t z;
} hsa_dim3_t;

/* More attributes of hsa_agent_get_info, which are passed as hsa_agent_info_t. */
typedef enum {
  HSA_AMD_AGENT_INFO_CHIP_ID = 0xA000,
  HSA_AMD_AGENT_INFO_CACHELINE_SIZE = 0xA001,
  HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT = 0xA002,
  HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY = 0xA003,
  HSA_AMD_AGENT_INFO_DRIVER_NODE_ID = 0xA004,
  HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS = 0xA005,
  HSA_AMD_AGENT_INFO_BDFID = 0xA006,
  HSA_AMD_AGENT_INFO_MEMORY_WIDTH = 0xA007,
  HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY = 0xA008,
  HSA_AMD_AGENT_INFO_PRODUCT_NAME = 0xA009,
  HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU = 0xA00A,
  HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU = 0xA00B,
  HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES = 0xA00C,
  HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE = 0xA00D,
  HSA_AMD_AGENT_INFO_HDP_FLUSH = 0xA00E,
  HSA_AMD_AGENT_INFO_DOMAIN = 0xA00F,
  HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES = 0xA010,
  HSA_AMD_AGENT_INFO_UUID = 0xA011,
  HSA_AMD_AGENT_INFO_ASIC_REVISION = 0xA012,
  HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS = 0xA013,
  HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT = 0xA014,
  HSA_AMD_AGENT_INFO_MEMORY_AVAIL = 0xA015,
  HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY = 0xA016,
  HSA_AMD_AGENT_INFO_ASIC_FAMILY_ID = 0xA107,
  HSA_AMD_AGENT_INFO_UCODE_VERSION = 0xA108,
  HSA_AMD_AGENT_INFO_SDMA_UCODE_VERSION = 0xA109,
  HSA_AMD_AGENT_INFO_NUM_SDMA_ENG = 0xA10A,
  HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG = 0xA10B,
  HSA_AMD_AGENT_INFO_IOMMU_SUPPORT = 0xA110,
  HSA_AMD_AGENT_INFO_NUM_XCC = 0xA111,
  HSA_AMD_AGENT_INFO_DRIVER_UID = 0xA112,
  HSA_AMD_AGENT_INFO_NEAREST_CPU = 0xA113,
  HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES = 0xA114,
  HSA_AMD_AGENT_INFO_AQL_EXTENSIONS = 0xA115,
  HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_MAX = 0xA116,
  HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_CURRENT = 0xA117,
  HSA_AMD_AGENT_INFO_CLOCK_COUNTERS = 0xA118
} hsa_amd_agent_info_t;

typedef enum { HSA_IOMMU_SUPPORT_NONE = 0, HSA_IOMMU_SUPPORT_V2 = 1 } hsa_amd_iommu_version_t;

/* Pointers to the registers that flush the path from the CPU to the GPU's memory. */
typedef struct hsa_amd_hdp_flush_s {
  uint32_t *HDP_MEM_FLUSH_CNTL;
  uint32_t *HDP_REG_FLUSH_CNTL;
} hsa_amd_hdp_flush_t;

typedef struct hsa_amd_clock_counters_s {
  uint64_t gpu_clock_counter;
  uint64_t cpu_clock_counter;
  uint64_t system_clock_counter;
  uint64_t system_clock_frequency;
} hsa_amd_clock_counters_t;

/* The number of a bit in the eight bytes that HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES returns. */
typedef enum { HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU = 1 } hsa_amd_agent_memory_properties_t;

HSA_FUNCTION(hsa_status_t, hsa_iterate_agents,
             (hsa_status_t (*callback)(hsa_agent_t agent, void *data), void *data));
HSA_FUNCTION(hsa_status_t, hsa_agent_get_info,
             (hsa_agent_t agent, hsa_agent_info_t attribute, void *value));

typedef struct hsa_isa_s {
  uint64_t handle;
} hsa_isa_t;

typedef enum {
  HSA_ISA_INFO_NAME_LENGTH = 0,
  HSA_ISA_INFO_NAME = 1,
  HSA_ISA_INFO_CALL_CONVENTION_COUNT = 2,
  HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONT_SIZE = 3,
  HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONTS_PER_COMPUTE_UNIT = 4,
  HSA_ISA_INFO_MACHINE_MODELS = 5,
  HSA_ISA_INFO_PROFILES = 6,
  HSA_ISA_INFO_DEFAULT_FLOAT_ROUNDING_MODES = 7,
  HSA_ISA_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES = 8,
  HSA_ISA_INFO_FAST_F16_OPERATION = 9,
  HSA_ISA_INFO_WORKGROUP_MAX_DIM = 12,
  HSA_ISA_INFO_WORKGROUP_MAX_SIZE = 13,
  HSA_ISA_INFO_GRID_MAX_DIM = 14,
  HSA_ISA_INFO_GRID_MAX_SIZE = 16,
  HSA_ISA_INFO_FBARRIER_MAX_SIZE = 17
} hsa_isa_info_t;

typedef struct hsa_wavefront_s {
  uint64_t handle;
} hsa_wavefront_t;

typedef enum { HSA_WAVEFRONT_INFO_SIZE = 0 } hsa_wavefront_info_t;

typedef struct hsa_cache_s {
  uint64_t handle;
} hsa_cache_t;

typedef enum {
  HSA_CACHE_INFO_NAME_LENGTH = 0,
  HSA_CACHE_INFO_NAME = 1,
  HSA_CACHE_INFO_LEVEL = 2,
  HSA_CACHE_INFO_SIZE = 3
} hsa_cache_info_t;

HSA_FUNCTION(hsa_status_t, hsa_agent_iterate_isas,
             (hsa_agent_t agent, hsa_status_t (*callback)(hsa_isa_t isa, void *data), void *data));
HSA_FUNCTION(hsa_status_t, hsa_isa_get_info_alt,
             (hsa_isa_t isa, hsa_isa_info_t attribute, void *value));

/* ---- Memory pools ------------------------------------------------------------ */

typedef struct hsa_amd_memory_pool_s {
  uint64_t handle;
} hsa_amd_memory_pool_t;

typedef enum {
  HSA_AMD_SEGMENT_GLOBAL = 0,
  HSA_AMD_SEGMENT_READONLY = 1,
  HSA_AMD_SEGMENT_PRIVATE = 2,
  HSA_AMD_SEGMENT_GROUP = 3
} hsa_amd_segment_t;

typedef enum {
  HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT = 1,
  HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED = 2,
  HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED = 4,
  HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED = 8
} hsa_amd_memory_pool_global_flag_t;

typedef enum {
  HSA_AMD_MEMORY_POOL_LOCATION_CPU = 0,
  HSA_AMD_MEMORY_POOL_LOCATION_GPU = 1
} hsa_amd_memory_pool_location_t;

typedef enum {
  HSA_AMD_MEMORY_POOL_INFO_SEGMENT = 0,
  HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS = 1,
  HSA_AMD_MEMORY_POOL_INFO_SIZE = 2,
  HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED = 5,
  HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE = 6,
  HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT = 7,
  HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL = 15,
  HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE = 16,
  HSA_AMD_MEMORY_POOL_INFO_LOCATION = 17,
  HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE = 18
} hsa_amd_memory_pool_info_t;

/* Flags of hsa_amd_memory_pool_allocate. hsa_amd_vmem_handle_create also accepts PCIE and UNCACHED. */
typedef enum {
  HSA_AMD_MEMORY_POOL_STANDARD_FLAG = 0,
  HSA_AMD_MEMORY_POOL_PCIE_FLAG = 1,
  HSA_AMD_MEMORY_POOL_CONTIGUOUS_FLAG = 2,
  HSA_AMD_MEMORY_POOL_EXECUTABLE_FLAG = 4,
  HSA_AMD_MEMORY_POOL_UNCACHED_FLAG = 8
} hsa_amd_memory_pool_flag_t;

typedef enum {
  HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED = 0,
  HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT = 1,
  HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT = 2
} hsa_amd_memory_pool_access_t;

typedef enum {
  HSA_AMD_LINK_INFO_TYPE_HYPERTRANSPORT = 0,
  HSA_AMD_LINK_INFO_TYPE_QPI = 1,
  HSA_AMD_LINK_INFO_TYPE_PCIE = 2,
  HSA_AMD_LINK_INFO_TYPE_INFINBAND = 3,
  HSA_AMD_LINK_INFO_TYPE_XGMI = 4
} hsa_amd_link_info_type_t;

typedef struct hsa_amd_memory_pool_link_info_s {
  uint32_t min_latency;
  uint32_t max_latency;
  uint32_t min_bandwidth;
  uint32_t max_bandwidth;
  bool atomic_support_32bit;
  bool atomic_support_64bit;
  bool coherent_support;
  hsa_amd_link_info_type_t link_type;
  uint32_t numa_distance;
} hsa_amd_memory_pool_link_info_t;

typedef enum {
  HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS = 0,
  HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS = 1,
  HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO = 2
} hsa_amd_agent_memory_pool_info_t;

HSA_FUNCTION(hsa_status_t, hsa_amd_agent_iterate_memory_pools,
             (hsa_agent_t agent,
              hsa_status_t (*callback)(hsa_amd_memory_pool_t pool, void *data), void *data));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_pool_get_info,
             (hsa_amd_memory_pool_t pool, hsa_amd_memory_pool_info_t attribute, void *value));
HSA_FUNCTION(hsa_status_t, hsa_amd_agent_memory_pool_get_info,
             (hsa_agent_t agent, hsa_amd_memory_pool_t pool,
              hsa_amd_agent_memory_pool_info_t attribute, void *value));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_pool_allocate,
             (hsa_amd_memory_pool_t pool, size_t size, uint32_t flags, void **address));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_pool_free, (void *address));
HSA_FUNCTION(hsa_status_t, hsa_amd_agents_allow_access,
             (uint32_t agent_count, const hsa_agent_t *agents, const uint32_t *flags,
              const void *address));

/* ---- Regions: the pools of the HSA standard ----------------------------------- */

typedef struct hsa_region_s {
  uint64_t handle;
} hsa_region_t;

typedef enum {
  HSA_REGION_INFO_SEGMENT = 0,
  HSA_REGION_INFO_GLOBAL_FLAGS = 1,
  HSA_REGION_INFO_SIZE = 2,
  HSA_REGION_INFO_ALLOC_MAX_SIZE = 4,
  HSA_REGION_INFO_RUNTIME_ALLOC_ALLOWED = 5,
  HSA_REGION_INFO_RUNTIME_ALLOC_GRANULE = 6,
  HSA_REGION_INFO_RUNTIME_ALLOC_ALIGNMENT = 7,
  HSA_REGION_INFO_ALLOC_MAX_PRIVATE_WORKGROUP_SIZE = 8
} hsa_region_info_t;

/* More attributes of regions, which are passed as hsa_region_info_t. */
typedef enum {
  HSA_AMD_REGION_INFO_HOST_ACCESSIBLE = 0xA000,
  HSA_AMD_REGION_INFO_BASE = 0xA001,
  HSA_AMD_REGION_INFO_BUS_WIDTH = 0xA002,
  HSA_AMD_REGION_INFO_MAX_CLOCK_FREQUENCY = 0xA003
} hsa_amd_region_info_t;

/* ---- Queues ------------------------------------------------------------------- */

typedef struct hsa_signal_s {
  uint64_t handle;
} hsa_signal_t;

typedef int64_t hsa_signal_value_t;

typedef enum { HSA_QUEUE_TYPE_MULTI = 0, HSA_QUEUE_TYPE_SINGLE = 1 } hsa_queue_type_t;
typedef enum { HSA_QUEUE_FEATURE_KERNEL_DISPATCH = 1 } hsa_queue_feature_t;

typedef struct hsa_queue_s {
  uint32_t type;
  uint32_t features;
  void *base_address;
  hsa_signal_t doorbell_signal;
  uint32_t size;
  uint32_t reserved1;
  uint64_t id;
} hsa_queue_t;

typedef enum {
  HSA_AMD_QUEUE_INFO_AGENT = 0,
  HSA_AMD_QUEUE_INFO_DOORBELL_ID = 1
} hsa_queue_info_attribute_t;

/* The lowest byte of a packet's header. */
typedef enum {
  HSA_PACKET_TYPE_VENDOR_SPECIFIC = 0,
  HSA_PACKET_TYPE_INVALID = 1,
  HSA_PACKET_TYPE_KERNEL_DISPATCH = 2,
  HSA_PACKET_TYPE_BARRIER_AND = 3,
  HSA_PACKET_TYPE_AGENT_DISPATCH = 4,
  HSA_PACKET_TYPE_BARRIER_OR = 5
} hsa_packet_type_t;

typedef struct hsa_barrier_and_packet_s {
  uint16_t header;
  uint16_t reserved0;
  uint32_t reserved1;
  hsa_signal_t dep_signal[5];
  uint64_t reserved2;
  hsa_signal_t completion_signal;
} hsa_barrier_and_packet_t;

typedef enum { HSA_AMD_PACKET_TYPE_BARRIER_VALUE = 2 } hsa_amd_packet_type_t;

typedef struct hsa_amd_vendor_packet_header_s {
  uint16_t header;
  uint8_t AmdFormat;
  uint8_t reserved;
} hsa_amd_vendor_packet_header_t;

typedef struct hsa_amd_barrier_value_packet_s {
  hsa_amd_vendor_packet_header_t header;
  uint32_t reserved0;
  hsa_signal_t signal;
  hsa_signal_value_t value;
  hsa_signal_value_t mask;
  uint32_t cond;
  uint32_t reserved1;
  uint64_t reserved2;
  uint64_t reserved3;
  hsa_signal_t completion_signal;
} hsa_amd_barrier_value_packet_t;

typedef enum {
  HSA_AMD_SIGNAL_AMD_GPU_ONLY = 1,
  HSA_AMD_SIGNAL_IPC = 2
} hsa_amd_signal_attribute_t;

/* ---- Copies, fills, host memory ---------------------------------------------- */

typedef enum {
  HSA_SIGNAL_CONDITION_EQ = 0,
  HSA_SIGNAL_CONDITION_NE = 1,
  HSA_SIGNAL_CONDITION_LT = 2,
  HSA_SIGNAL_CONDITION_GTE = 3
} hsa_signal_condition_t;

typedef enum { HSA_WAIT_STATE_BLOCKED = 0, HSA_WAIT_STATE_ACTIVE = 1 } hsa_wait_state_t;

HSA_FUNCTION(hsa_status_t, hsa_signal_create,
             (hsa_signal_value_t initial_value, uint32_t consumer_count,
              const hsa_agent_t *consumers, hsa_signal_t *signal));
HSA_FUNCTION(hsa_status_t, hsa_signal_destroy, (hsa_signal_t signal));
HSA_FUNCTION(hsa_signal_value_t, hsa_signal_load_scacquire, (hsa_signal_t signal));
HSA_FUNCTION(void, hsa_signal_store_screlease, (hsa_signal_t signal, hsa_signal_value_t value));
HSA_FUNCTION(hsa_signal_value_t, hsa_signal_wait_scacquire,
             (hsa_signal_t signal, hsa_signal_condition_t condition,
              hsa_signal_value_t compare_value, uint64_t timeout_hint,
              hsa_wait_state_t wait_state_hint));

HSA_FUNCTION(hsa_status_t, hsa_memory_copy, (void *destination, const void *source, size_t size));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_fill, (void *address, uint32_t value, size_t count));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_async_copy,
             (void *destination, hsa_agent_t destination_agent, const void *source,
              hsa_agent_t source_agent, size_t size, uint32_t dependency_count,
              const hsa_signal_t *dependencies, hsa_signal_t completion_signal));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_lock,
             (void *host_address, size_t size, hsa_agent_t *agents, int agent_count,
              void **agent_address));
HSA_FUNCTION(hsa_status_t, hsa_amd_memory_unlock, (void *host_address));

/* ---- Information about addresses ---------------------------------------------- */

typedef enum {
  HSA_EXT_POINTER_TYPE_UNKNOWN = 0,
  HSA_EXT_POINTER_TYPE_HSA = 1,
  HSA_EXT_POINTER_TYPE_LOCKED = 2,
  HSA_EXT_POINTER_TYPE_GRAPHICS = 3,
  HSA_EXT_POINTER_TYPE_IPC = 4,
  HSA_EXT_POINTER_TYPE_RESERVED_ADDR = 5,
  HSA_EXT_POINTER_TYPE_HSA_VMEM = 6
} hsa_amd_pointer_type_t;

typedef struct hsa_amd_pointer_info_s {
  /* The size of the caller's struct in bytes. A newer runtime, whose struct is larger, writes only this many bytes. */
  uint32_t size;
  hsa_amd_pointer_type_t type;
  void *agentBaseAddress;
  void *hostBaseAddress;
  size_t sizeInBytes;
  void *userData;
  hsa_agent_t agentOwner;
  uint32_t global_flags;
} hsa_amd_pointer_info_t;

HSA_FUNCTION(hsa_status_t, hsa_amd_pointer_info,
             (const void *address, hsa_amd_pointer_info_t *info, void *(*allocate)(size_t),
              uint32_t *accessible_count, hsa_agent_t **accessible));

/* ---- Sharing between processes ------------------------------------------------ */

typedef struct hsa_amd_ipc_memory_s {
  uint32_t handle[8];
} hsa_amd_ipc_memory_t;

typedef hsa_amd_ipc_memory_t hsa_amd_ipc_signal_t;

HSA_FUNCTION(hsa_status_t, hsa_amd_ipc_memory_create,
             (void *address, size_t length, hsa_amd_ipc_memory_t *handle));
HSA_FUNCTION(hsa_status_t, hsa_amd_ipc_memory_attach,
             (const hsa_amd_ipc_memory_t *handle, size_t length, uint32_t agent_count,
              const hsa_agent_t *agents, void **address));
HSA_FUNCTION(hsa_status_t, hsa_amd_ipc_memory_detach, (void *address));

/* Flags of hsa_amd_portable_export_dmabuf_v2 and hsa_amd_vmem_export_shareable_handle. */
typedef enum {
  HSA_AMD_DMABUF_MAPPING_TYPE_NONE = 0,
  HSA_AMD_DMABUF_MAPPING_TYPE_PCIE = 1
} hsa_amd_dma_buf_mapping_type_t;

HSA_FUNCTION(hsa_status_t, hsa_amd_portable_export_dmabuf,
             (const void *address, size_t size, int *dmabuf, uint64_t *offset));
HSA_FUNCTION(hsa_status_t, hsa_amd_portable_export_dmabuf_v2,
             (const void *address, size_t size, int *dmabuf, uint64_t *offset, uint64_t flags));
HSA_FUNCTION(hsa_status_t, hsa_amd_portable_close_dmabuf, (int dmabuf));

/* ---- System events ------------------------------------------------------------ */

typedef enum {
  HSA_AMD_GPU_MEMORY_FAULT_EVENT = 0,
  HSA_AMD_GPU_HW_EXCEPTION_EVENT = 1,
  HSA_AMD_GPU_MEMORY_ERROR_EVENT = 2
} hsa_amd_event_type_t;

typedef enum {
  HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT = 1,
  HSA_AMD_MEMORY_FAULT_READ_ONLY = 2,
  HSA_AMD_MEMORY_FAULT_NX = 4,
  HSA_AMD_MEMORY_FAULT_HOST_ONLY = 8,
  HSA_AMD_MEMORY_FAULT_IMPRECISE = 32
} hsa_amd_memory_fault_reason_t;

typedef struct hsa_amd_gpu_memory_fault_info_s {
  hsa_agent_t agent;
  uint64_t virtual_address;
  uint32_t fault_reason_mask;
} hsa_amd_gpu_memory_fault_info_t;

typedef struct hsa_amd_gpu_memory_error_info_s {
  hsa_agent_t agent;
  uint64_t virtual_address;
  uint32_t error_reason_mask;
} hsa_amd_gpu_memory_error_info_t;

typedef struct hsa_amd_gpu_hw_exception_info_s {
  hsa_agent_t agent;
  uint32_t reset_type;
  uint32_t reset_cause;
} hsa_amd_gpu_hw_exception_info_t;

typedef struct hsa_amd_event_s {
  hsa_amd_event_type_t event_type;
  union {
    hsa_amd_gpu_memory_fault_info_t memory_fault;
    hsa_amd_gpu_hw_exception_info_t hw_exception;
    hsa_amd_gpu_memory_error_info_t memory_error;
  };
} hsa_amd_event_t;

typedef hsa_status_t (*hsa_amd_system_event_callback_t)(const hsa_amd_event_t *event, void *data);

HSA_FUNCTION(hsa_status_t, hsa_amd_register_system_event_handler,
             (hsa_amd_system_event_callback_t callback, void *data));

/* ---- Shared virtual memory ---------------------------------------------------- */

typedef enum {
  HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG = 0,
  HSA_AMD_SVM_ATTRIB_READ_ONLY = 1,
  HSA_AMD_SVM_ATTRIB_HIVE_LOCAL = 2,
  HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY = 3,
  HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION = 4,
  HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION = 5,
  HSA_AMD_SVM_ATTRIB_READ_MOSTLY = 6,
  HSA_AMD_SVM_ATTRIB_GPU_EXEC = 7,
  HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE = 0x200,
  HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE = 0x201,
  HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS = 0x202,
  HSA_AMD_SVM_ATTRIB_ACCESS_QUERY = 0x203
} hsa_amd_svm_attribute_t;

typedef struct hsa_amd_svm_attribute_pair_s {
  uint64_t attribute;
  uint64_t value;
} hsa_amd_svm_attribute_pair_t;

HSA_FUNCTION(hsa_status_t, hsa_amd_svm_attributes_set,
             (void *address, size_t size, hsa_amd_svm_attribute_pair_t *attributes,
              size_t attribute_count));
HSA_FUNCTION(hsa_status_t, hsa_amd_svm_attributes_get,
             (void *address, size_t size, hsa_amd_svm_attribute_pair_t *attributes,
              size_t attribute_count));

/* ---- Virtual memory management ------------------------------------------------ */

typedef enum {
  HSA_ACCESS_PERMISSION_NONE = 0,
  HSA_ACCESS_PERMISSION_RO = 1,
  HSA_ACCESS_PERMISSION_WO = 2,
  HSA_ACCESS_PERMISSION_RW = 3
} hsa_access_permission_t;

typedef enum { HSA_AMD_VMEM_ADDRESS_NO_REGISTER = 1 } hsa_amd_vmem_address_reserve_flag_t;

typedef enum { MEMORY_TYPE_NONE = 0, MEMORY_TYPE_PINNED = 1 } hsa_amd_memory_type_t;

typedef struct hsa_amd_vmem_alloc_handle_s {
  uint64_t handle;
} hsa_amd_vmem_alloc_handle_t;

typedef struct hsa_amd_memory_access_desc_s {
  hsa_access_permission_t permissions;
  hsa_agent_t agent_handle;
} hsa_amd_memory_access_desc_t;

/* ROCm 7.14 and later. */
typedef struct hsa_fabric_handle_s {
  uint8_t handle[16];
} hsa_fabric_handle_t;

HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_address_reserve,
             (void **address, size_t size, uint64_t hint, uint64_t flags));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_address_reserve_align,
             (void **address, size_t size, uint64_t hint, uint64_t alignment, uint64_t flags));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_address_free, (void *address, size_t size));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_handle_create,
             (hsa_amd_memory_pool_t pool, size_t size, hsa_amd_memory_type_t type, uint64_t flags,
              hsa_amd_vmem_alloc_handle_t *handle));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_handle_release, (hsa_amd_vmem_alloc_handle_t handle));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_map,
             (void *address, size_t size, size_t offset, hsa_amd_vmem_alloc_handle_t handle,
              uint64_t flags));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_unmap, (void *address, size_t size));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_set_access,
             (void *address, size_t size, const hsa_amd_memory_access_desc_t *descriptors,
              size_t descriptor_count));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_get_access,
             (void *address, hsa_access_permission_t *permissions, hsa_agent_t agent));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_export_shareable_handle,
             (int *dmabuf, hsa_amd_vmem_alloc_handle_t handle, uint64_t flags));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_import_shareable_handle,
             (int dmabuf, hsa_amd_vmem_alloc_handle_t *handle));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_retain_alloc_handle,
             (hsa_amd_vmem_alloc_handle_t *handle, void *address));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_get_alloc_properties_from_handle,
             (hsa_amd_vmem_alloc_handle_t handle, hsa_amd_memory_pool_t *pool,
              hsa_amd_memory_type_t *type));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_export_fabric_handle,
             (hsa_fabric_handle_t *fabric, hsa_amd_vmem_alloc_handle_t handle, uint64_t flags));
HSA_FUNCTION(hsa_status_t, hsa_amd_vmem_import_fabric_handle,
             (hsa_fabric_handle_t fabric, hsa_amd_vmem_alloc_handle_t *handle));

#endif
