/*
 * HIP's virtual memory management and IPC, and the calls that programs use with them, as
 * libhsavmm provides them: same names, types and values as HIP, so that code written for HIP compiles
 * and links without change and without HIP.
 *
 * Every function answers hipSuccess or an error, and never crashes on a bad handle. What went wrong
 * in words: hsavmm_last_message() in <hsavmm.h>. What this library does not have (streams beyond
 * the null stream, events, kernels, sparse arrays) answers hipErrorNotSupported.
 *
 * C99 and C++17.
 */
#ifndef HSAVMM_HIP_HIP_RUNTIME_API_H
#define HSAVMM_HIP_HIP_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#define HIP_VERSION_MAJOR 7
#define HIP_VERSION_MINOR 2
#define HIP_VERSION_PATCH 0
#define HIP_VERSION (HIP_VERSION_MAJOR * 10000000 + HIP_VERSION_MINOR * 100000 + HIP_VERSION_PATCH)

/* Anonymous unions are HIP's, but not C99's. */
#if defined(__GNUC__)
#define HSAVMM_ANONYMOUS __extension__
#else
#define HSAVMM_ANONYMOUS
#endif

#if defined(__cplusplus) && __cplusplus >= 201703L
#define HSAVMM_NODISCARD [[nodiscard]]
#else
#define HSAVMM_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors -------------------------------------------------------------------------------- */

typedef enum HSAVMM_NODISCARD hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorMemoryAllocation = 2,
  hipErrorNotInitialized = 3,
  hipErrorInitializationError = 3,
  hipErrorDeinitialized = 4,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidPitchValue = 12,
  hipErrorInvalidSymbol = 13,
  hipErrorInvalidDevicePointer = 17,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorInsufficientDriver = 35,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorInvalidContext = 201,
  hipErrorContextAlreadyCurrent = 202,
  hipErrorMapFailed = 205,
  hipErrorUnmapFailed = 206,
  hipErrorAlreadyMapped = 208,
  hipErrorNotMapped = 211,
  hipErrorUnsupportedLimit = 215,
  hipErrorContextAlreadyInUse = 216,
  hipErrorPeerAccessUnsupported = 217,
  hipErrorFileNotFound = 301,
  hipErrorSharedObjectSymbolNotFound = 302,
  hipErrorSharedObjectInitFailed = 303,
  hipErrorOperatingSystem = 304,
  hipErrorInvalidHandle = 400,
  hipErrorInvalidResourceHandle = 400,
  hipErrorIllegalState = 401,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorPeerAccessAlreadyEnabled = 704,
  hipErrorPeerAccessNotEnabled = 705,
  hipErrorSetOnActiveProcess = 708,
  hipErrorContextIsDestroyed = 709,
  hipErrorHostMemoryAlreadyRegistered = 712,
  hipErrorHostMemoryNotRegistered = 713,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
  hipErrorUnknown = 999,
  hipErrorRuntimeMemory = 1052,
  hipErrorRuntimeOther = 1053,
  hipErrorTbd
} hipError_t;

/* The error's name; "hipErrorUnknown" for an unknown number. */
const char *hipGetErrorName(hipError_t error);
/* What it means, in words. */
const char *hipGetErrorString(hipError_t error);
/* Returns the last error of this thread, and resets it. */
hipError_t hipGetLastError(void);
/* The last error of this thread. */
hipError_t hipPeekAtLastError(void);
hipError_t hipDrvGetErrorName(hipError_t error, const char **name);
hipError_t hipDrvGetErrorString(hipError_t error, const char **string);

/* ---- Devices ------------------------------------------------------------------------------- */

/* The number of a GPU: from 0, in the runtime's order, after HIP_VISIBLE_DEVICES. */
typedef int hipDevice_t;

#define hipCpuDeviceId ((int)-1)
#define hipInvalidDeviceId ((int)-2)

typedef struct hipUUID_t {
  char bytes[16];
} hipUUID;

/* The attributes that programs of virtual memory use; any other returns hipErrorInvalidValue. */
typedef enum hipDeviceAttribute_t {
  hipDeviceAttributeCanMapHostMemory = 3,
  hipDeviceAttributeConcurrentManagedAccess = 9,
  hipDeviceAttributeDirectManagedMemAccessFromHost = 13,
  hipDeviceAttributeIntegrated = 16,
  hipDeviceAttributeManagedMemory = 24,
  hipDeviceAttributeMultiprocessorCount = 63,
  hipDeviceAttributePageableMemoryAccess = 65,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributePciDeviceId = 68,
  hipDeviceAttributePciDomainId = 69,
  hipDeviceAttributePciDomainID = 69,
  hipDeviceAttributeTotalGlobalMem = 84,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeMemoryPoolsSupported = 88,
  hipDeviceAttributeVirtualMemoryManagementSupported = 89,
  hipDeviceAttributeHostRegisterSupported = 90,
  hipDeviceAttributeMemoryPoolSupportedHandleTypes = 91,
  hipDeviceAttributeHostNumaId = 92,
  hipDeviceAttributeIsLargeBar = 10011,
  hipDeviceAttributePhysicalMultiProcessorCount = 10015,
  hipDeviceAttributeFineGrainSupport = 10016,
  hipDeviceAttributePciChipId = 10020
} hipDeviceAttribute_t;

/* Opens the runtime, as every other call does. `flags` is 0. */
hipError_t hipInit(unsigned int flags);
hipError_t hipDriverGetVersion(int *version);
hipError_t hipRuntimeGetVersion(int *version);
/* hipErrorNoDevice if there is none. */
hipError_t hipGetDeviceCount(int *count);
/* The device of this thread; 0 until it is set. */
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipDeviceGet(hipDevice_t *device, int ordinal);
hipError_t hipDeviceGetName(char *name, int length, hipDevice_t device);
hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device);
hipError_t hipDeviceGetPCIBusId(char *id, int length, int device);
hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device);
hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device);
/* Whether memory of `peer` can be used by `device`; 0 for the device itself. */
hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer);
/* Grants the current device access to memory that hipMalloc allocates on `peer`, now and later. */
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned int flags);
hipError_t hipDeviceDisablePeerAccess(int peer);
/* Returns at once: every call of this library is synchronous. */
hipError_t hipDeviceSynchronize(void);

/* ---- Streams: the null stream -------------------------------------------------------------- */

typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;

#define hipStreamDefault 0x00
#define hipStreamNonBlocking 0x01
#define hipStreamLegacy ((hipStream_t)1)
#define hipStreamPerThread ((hipStream_t)2)

hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamQuery(hipStream_t stream);
/* These return hipErrorNotSupported. */
hipError_t hipStreamCreate(hipStream_t *stream);
hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipEventCreate(hipEvent_t *event);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventDestroy(hipEvent_t event);

/* ---- Virtual memory ------------------------------------------------------------------------ */

/* Physical memory. A number that is given once in a process, not a pointer. */
typedef struct ihipMemGenericAllocationHandle *hipMemGenericAllocationHandle_t;

typedef enum hipMemAllocationType {
  hipMemAllocationTypeInvalid = 0x0,
  hipMemAllocationTypePinned = 0x1,
  hipMemAllocationTypeManaged = 0x2,
  hipMemAllocationTypeUncached = 0x40000000,
  hipMemAllocationTypeMax = 0x7FFFFFFF
} hipMemAllocationType;

typedef enum hipMemAllocationHandleType {
  hipMemHandleTypeNone = 0x0,
  hipMemHandleTypePosixFileDescriptor = 0x1,
  hipMemHandleTypeWin32 = 0x2,
  hipMemHandleTypeWin32Kmt = 0x4,
  hipMemHandleTypeFabric = 0x8
} hipMemAllocationHandleType;

typedef enum hipMemLocationType {
  hipMemLocationTypeInvalid = 0,
  hipMemLocationTypeNone = 0,
  hipMemLocationTypeDevice = 1,
  hipMemLocationTypeHost = 2,
  hipMemLocationTypeHostNuma = 3,
  hipMemLocationTypeHostNumaCurrent = 4
} hipMemLocationType;

typedef enum hipMemAccessFlags {
  hipMemAccessFlagsProtNone = 0,
  hipMemAccessFlagsProtRead = 1,
  hipMemAccessFlagsProtReadWrite = 3
} hipMemAccessFlags;

typedef enum hipMemAllocationGranularity_flags {
  hipMemAllocationGranularityMinimum = 0x0,
  hipMemAllocationGranularityRecommended = 0x1
} hipMemAllocationGranularity_flags;

typedef struct hipMemLocation {
  hipMemLocationType type;
  int id;
} hipMemLocation;

typedef struct hipMemAccessDesc {
  hipMemLocation location;
  hipMemAccessFlags flags;
} hipMemAccessDesc;

typedef struct hipMemAllocationProp {
  hipMemAllocationType type;
  HSAVMM_ANONYMOUS union {
    hipMemAllocationHandleType requestedHandleType;
    hipMemAllocationHandleType requestedHandleTypes;
  };
  hipMemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
  } allocFlags;
} hipMemAllocationProp;

typedef enum hipResourceType {
  hipResourceTypeArray = 0,
  hipResourceTypeMipmappedArray = 1,
  hipResourceTypeLinear = 2,
  hipResourceTypePitch2D = 3
} hipResourceType;

typedef enum hipMemHandleType { hipMemHandleTypeGeneric = 0x0 } hipMemHandleType;

typedef enum hipMemOperationType {
  hipMemOperationTypeMap = 0x1,
  hipMemOperationTypeUnmap = 0x2
} hipMemOperationType;

typedef enum hipArraySparseSubresourceType {
  hipArraySparseSubresourceTypeSparseLevel = 0x0,
  hipArraySparseSubresourceTypeMiptail = 0x1
} hipArraySparseSubresourceType;

typedef struct hipArray *hipArray_t;
typedef struct hipMipmappedArray *hipMipmappedArray_t;

typedef struct hipArrayMapInfo {
  hipResourceType resourceType;
  union {
    /* By value in HIP's header: opaque here, of the same size. */
    struct {
      uint64_t opaque[8];
    } mipmap;
    hipArray_t array;
  } resource;
  hipArraySparseSubresourceType subresourceType;
  union {
    struct {
      unsigned int level;
      unsigned int layer;
      unsigned int offsetX;
      unsigned int offsetY;
      unsigned int offsetZ;
      unsigned int extentWidth;
      unsigned int extentHeight;
      unsigned int extentDepth;
    } sparseLevel;
    struct {
      unsigned int layer;
      unsigned long long offset;
      unsigned long long size;
    } miptail;
  } subresource;
  hipMemOperationType memOperationType;
  hipMemHandleType memHandleType;
  union {
    hipMemGenericAllocationHandle_t memHandle;
  } memHandle;
  unsigned long long offset;
  unsigned int deviceBitMask;
  unsigned int flags;
  unsigned int reserved[2];
} hipArrayMapInfo;

/* Reserves `size` bytes of addresses, near `address` if that is not null; `flags` is 0. For an exact
 * address: hsavmm_reserve_at(). */
hipError_t hipMemAddressReserve(void **ptr, size_t size, size_t alignment, void *address,
                                unsigned long long flags);
/* Frees a whole reservation, in which nothing is mapped. */
hipError_t hipMemAddressFree(void *ptr, size_t size);
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t size,
                        const hipMemAllocationProp *prop, unsigned long long flags);
/* Releases one reference; mapped memory is kept until it is unmapped. */
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle);
/* Maps the first `size` bytes of a handle; `offset` and `flags` are 0. */
hipError_t hipMemMap(void *ptr, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                     unsigned long long flags);
/* Unmaps exactly a run of whole mappings. */
hipError_t hipMemUnmap(void *ptr, size_t size);
/* All or nothing, for exactly a run of whole mappings; devices that are not named keep their access. The
 * host gets the most access that a device has, if it can access all GPUs' memory (as in HIP), until
 * `desc` names the host. The access of GPUs is not enforced: hsavmm_enforcement(), hsavmm_revoke(). */
hipError_t hipMemSetAccess(void *ptr, size_t size, const hipMemAccessDesc *desc, size_t count);
hipError_t hipMemGetAccess(unsigned long long *flags, const hipMemLocation *location, void *ptr);
hipError_t hipMemGetAllocationGranularity(size_t *granularity, const hipMemAllocationProp *prop,
                                          hipMemAllocationGranularity_flags option);
hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp *prop,
                                                   hipMemGenericAllocationHandle_t handle);
/* Writes an `int`: a file descriptor, to be closed by the caller. */
hipError_t hipMemExportToShareableHandle(void *shareable, hipMemGenericAllocationHandle_t handle,
                                         hipMemAllocationHandleType type,
                                         unsigned long long flags);
/* `os_handle` is the file descriptor itself since HIP 7.1, a pointer to it before (profile hip6).
 * The caller still owns it. */
hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle, void *os_handle,
                                           hipMemAllocationHandleType type);
/* Adds a reference to the memory that is mapped at an address. */
hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t *handle, void *address);
/* Not supported. */
hipError_t hipMemMapArrayAsync(hipArrayMapInfo *list, unsigned int count, hipStream_t stream);

/* ---- Memory -------------------------------------------------------------------------------- */

#define hipHostMallocDefault 0x0
#define hipHostMallocPortable 0x1
#define hipHostMallocMapped 0x2
#define hipHostMallocWriteCombined 0x4
#define hipHostMallocNumaUser 0x20000000
#define hipHostMallocCoherent 0x40000000
#define hipHostMallocNonCoherent 0x80000000
#define hipMemAttachGlobal 0x01
#define hipMemAttachHost 0x02
#define hipMemAttachSingle 0x04

typedef void *hipDeviceptr_t;

typedef enum hipMemcpyKind {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
  hipMemcpyDeviceToDeviceNoCU = 1024
} hipMemcpyKind;

typedef enum hipMemoryType {
  hipMemoryTypeUnregistered = 0,
  hipMemoryTypeHost = 1,
  hipMemoryTypeDevice = 2,
  hipMemoryTypeManaged = 3,
  hipMemoryTypeArray = 10,
  hipMemoryTypeUnified = 11
} hipMemoryType;

typedef struct hipPointerAttribute_t {
  enum hipMemoryType type;
  int device;
  void *devicePointer;
  void *hostPointer;
  int isManaged;
  unsigned allocationFlags;
} hipPointerAttribute_t;

/* Allocates memory of the current device; for 0 bytes `*ptr` is null. */
hipError_t hipMalloc(void **ptr, size_t size);
hipError_t hipFree(void *ptr);
/* Allocates memory of the host that all devices can access. */
hipError_t hipHostMalloc(void **ptr, size_t size, unsigned int flags);
hipError_t hipHostFree(void *ptr);
/* The same: nothing migrates here. */
hipError_t hipMallocManaged(void **ptr, size_t size, unsigned int flags);
hipError_t hipMemGetInfo(size_t *free, size_t *total);
/* hipErrorInvalidValue, and hipMemoryTypeUnregistered, for memory that is not this library's. */
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *ptr);
hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *size, hipDeviceptr_t ptr);

/* Copies are complete when they return. An agent that has access copies mapped memory; `kind` must fit
 * the pointers, or be hipMemcpyDefault. */
hipError_t hipMemcpy(void *destination, const void *source, size_t size, hipMemcpyKind kind);
hipError_t hipMemcpyHtoD(hipDeviceptr_t destination, const void *source, size_t size);
hipError_t hipMemcpyDtoH(void *destination, hipDeviceptr_t source, size_t size);
hipError_t hipMemcpyDtoD(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size);
hipError_t hipMemcpyPeer(void *destination, int destination_device, const void *source,
                         int source_device, size_t size);
hipError_t hipMemcpyAsync(void *destination, const void *source, size_t size, hipMemcpyKind kind,
                          hipStream_t stream);
hipError_t hipMemset(void *destination, int value, size_t size);
hipError_t hipMemsetD8(hipDeviceptr_t destination, unsigned char value, size_t count);
hipError_t hipMemsetD16(hipDeviceptr_t destination, unsigned short value, size_t count);
hipError_t hipMemsetD32(hipDeviceptr_t destination, int value, size_t count);
hipError_t hipMemsetAsync(void *destination, int value, size_t size, hipStream_t stream);

/* ---- IPC ----------------------------------------------------------------------------------- */

#define HIP_IPC_HANDLE_SIZE 64
#define hipIpcMemLazyEnablePeerAccess 0x01

typedef struct hipIpcMemHandle_st {
  char reserved[HIP_IPC_HANDLE_SIZE];
} hipIpcMemHandle_t;

/* Returns a handle of memory from hipMalloc. For mapped memory: hipMemExportToShareableHandle(). */
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *ptr);
/* Maps another process's memory for all devices. `flags` is hipIpcMemLazyEnablePeerAccess. */
hipError_t hipIpcOpenMemHandle(void **ptr, hipIpcMemHandle_t handle, unsigned int flags);
/* Closes opened memory once; `ptr` is any address inside it. */
hipError_t hipIpcCloseMemHandle(void *ptr);

/* ---- Functions by name --------------------------------------------------------------------- */

typedef enum hipDriverProcAddressQueryResult {
  HIP_GET_PROC_ADDRESS_SUCCESS = 0,
  HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  HIP_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} hipDriverProcAddressQueryResult;

hipError_t hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags,
                             hipDriverProcAddressQueryResult *result);

/* ---- Kernels: not supported ---------------------------------------------------------------- */

typedef struct dim3 {
  uint32_t x, y, z;
#ifdef __cplusplus
  constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
#endif
} dim3;

typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;

hipError_t hipModuleLoad(hipModule_t *module, const char *file);
hipError_t hipModuleUnload(hipModule_t module);
hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name);
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y,
                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                 unsigned int block_z, unsigned int shared_bytes,
                                 hipStream_t stream, void **arguments, void **extra);
hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                           size_t shared_bytes, hipStream_t stream);

#ifdef __cplusplus
} /* extern "C" */

/* HIP's C++ takes pointers of any type. */
template <class T> static inline hipError_t hipMalloc(T **ptr, size_t size) {
  return hipMalloc(reinterpret_cast<void **>(ptr), size);
}
template <class T>
static inline hipError_t hipHostMalloc(T **ptr, size_t size,
                                       unsigned int flags = hipHostMallocDefault) {
  return hipHostMalloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T>
static inline hipError_t hipMallocManaged(T **ptr, size_t size,
                                          unsigned int flags = hipMemAttachGlobal) {
  return hipMallocManaged(reinterpret_cast<void **>(ptr), size, flags);
}
#endif

#endif
