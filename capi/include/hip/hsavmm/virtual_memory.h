/*
 * Virtual memory: addresses, physical memory, mappings, access. Included by hip_runtime_api.h.
 */
#ifndef HSAVMM_HIP_VIRTUAL_MEMORY_H
#define HSAVMM_HIP_VIRTUAL_MEMORY_H

/* A handle of physical memory: a number that is never reused in a process, not a pointer. */
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

/* A handle by which other machines of a fabric (UALink) can import memory. */
typedef struct hipMemFabricHandle_st {
  unsigned char data[64];
} hipMemFabricHandle_t;
/* HIP 7.2 lacks this type. rocSHMEM declares it itself if there is no macro of this name. */
#define hipMemFabricHandle_t hipMemFabricHandle_t

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
typedef hipMipmappedArray_t hipmipmappedArray;

typedef struct hipArrayMapInfo {
  hipResourceType resourceType;
  union {
    /* HIP's header declares the members of this struct. Here the struct is opaque, with the same size. */
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

/* Reserves `size` bytes of addresses, near `address` if `address` is not null. `flags` must be 0. If the reservation
 * fails although the arguments are valid, sets `*ptr` to null. For an exact address, use hsavmm_reserve_at(). */
hipError_t hipMemAddressReserve(void **ptr, size_t size, size_t alignment, void *address,
                                unsigned long long flags);
/* Frees a whole reservation, which must contain no mapping. */
hipError_t hipMemAddressFree(void *ptr, size_t size);
/* Creates physical memory. `size` must be a multiple of the minimum granularity, and `flags` must be 0. `prop->type` is
 * hipMemAllocationTypePinned, or hipMemAllocationTypeUncached if the runtime supports it (hipErrorNotSupported
 * otherwise). `prop->location.type` selects the memory:
 *
 * - hipMemLocationTypeDevice: the device `id`
 * - hipMemLocationTypeHost: the host; `id` is ignored
 * - hipMemLocationTypeHostNuma: the NUMA node `id` of the host. On a host with several nodes, only ROCm 10 can choose
 *   the node (hipErrorNotSupported otherwise). hipErrorInvalidValue if the node does not exist.
 * - hipMemLocationTypeHostNumaCurrent: the same as hipMemLocationTypeHost
 *
 * `prop->requestedHandleType` is hipMemHandleTypeNone, hipMemHandleTypePosixFileDescriptor or
 * hipMemHandleTypeFabric. */
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t size,
                        const hipMemAllocationProp *prop, unsigned long long flags);
/* Releases one reference. The memory is freed when it has no reference and no mapping. */
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle);
/* Maps `size` bytes of a handle, from `offset` on. `flags` must be 0. `offset` must be 0, unless the library controls
 * GPUs' page tables (hsavmm_use_page_tables()). */
hipError_t hipMemMap(void *ptr, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                     unsigned long long flags);
/* Unmaps a range, which must consist of whole, adjacent mappings in one reservation. */
hipError_t hipMemUnmap(void *ptr, size_t size);
/* Sets the access to a range, which must consist of whole, adjacent mappings in one reservation. If the call fails,
 * nothing has changed. hipErrorNotSupported if `desc` names the host, and the memory is of a GPU without a large BAR,
 * unlike in HIP. Devices that `desc` does not name keep their access.
 *
 * If `desc` does not name the host, the host gets the highest access that any device has after the call, unlike in HIP.
 * After hipMemMap, the first call that lets a device read a mapping therefore lets the CPU read it, too. The host keeps
 * its access instead in each of these cases:
 *
 * - A GPU has no large BAR: the host cannot access all of its memory.
 * - Before the call, the host's access to the mapping differs from the highest access of the devices. A call that names
 *   the host causes this: if devices have hipMemAccessFlagsProtReadWrite, and a call gives the host
 *   hipMemAccessFlagsProtRead, later calls for this mapping that do not name the host leave it at
 *   hipMemAccessFlagsProtRead. hsavmm_map_many() and hsavmm_set_access_many() can cause it, too, because they change
 *   the access only of what `desc` names.
 *
 * A GPU's access is enforced only if hsavmm_enforcement() sets `*enforced` to 1 for the GPU (see also
 * hsavmm_use_page_tables() and hsavmm_revoke()). */
hipError_t hipMemSetAccess(void *ptr, size_t size, const hipMemAccessDesc *desc, size_t count);
/* Returns the access of a device or of the host to the mapping at `ptr`, as hipMemSetAccess has set it. */
hipError_t hipMemGetAccess(unsigned long long *flags, const hipMemLocation *location, void *ptr);
/* Returns the granularity of memory with these properties. Sizes must be multiples of the minimum granularity.
 * Multiples of the recommended granularity give the best performance. */
hipError_t hipMemGetAllocationGranularity(size_t *granularity, const hipMemAllocationProp *prop,
                                          hipMemAllocationGranularity_flags option);
/* Returns the properties that hipMemCreate received, with these differences:
 *
 * - Fields that this library ignores are 0. So is `allocFlags.gpuDirectRDMACapable` for memory of the host, and if the
 *   runtime or the device does not support it: hipMemCreate ignores it then.
 * - For the host, `location.id` is 0. The type hipMemLocationTypeHostNumaCurrent becomes hipMemLocationTypeHost.
 * - For imported memory whose owner is unknown, `location.type` is hipMemLocationTypeInvalid.
 * - Imported memory of the host is reported as memory of a device, if the runtime reports an owner. */
hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp *prop,
                                                   hipMemGenericAllocationHandle_t handle);
/* Writes a file descriptor (`int`), which the caller must close. As in HIP, the descriptor is close-on-exec: a program
 * that this process starts does not inherit it. Send it over a Unix socket (SCM_RIGHTS), or call
 * fcntl(descriptor, F_SETFD, 0) before fork and exec. With hipMemHandleTypeFabric, writes a hipMemFabricHandle_t, which
 * does not keep the memory alive. */
hipError_t hipMemExportToShareableHandle(void *shareable, hipMemGenericAllocationHandle_t handle,
                                         hipMemAllocationHandleType type,
                                         unsigned long long flags);
/* `os_handle` is the file descriptor itself (HIP 7.1 and later), or a pointer to it (earlier releases). A value below
 * 65,536 is a descriptor. Any other value is a pointer if it is the address of readable memory, else a descriptor. The
 * caller still owns the descriptor. With hipMemHandleTypeFabric, `os_handle` is a pointer to a hipMemFabricHandle_t
 * that this library has exported. Handles that HIP has exported are rejected, because they contain no size. */
hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle, void *os_handle,
                                           hipMemAllocationHandleType type);
typedef enum hipMemRangeHandleType {
  hipMemRangeHandleTypeDmaBufFd = 0x1,
  hipMemRangeHandleTypeMax = 0x7fffffff
} hipMemRangeHandleType;

typedef enum hipMemRangeFlags {
  hipMemRangeFlagDmaBufMappingTypePcie = 0x1,
  hipMemRangeFlagsMax = 0x7fffffff
} hipMemRangeFlags;

/* Writes the descriptor (`int`) of a dma-buf, which the caller must close. As in HIP, the descriptor is close-on-exec.
 * `ptr` is the start of memory of hipMalloc or of mapped memory, and `flags` is 0. Returns hipErrorInvalidValue if the
 * range needs several dma-bufs, or does not begin at the start of its dma-buf. hsavmm_export_address_range() exports
 * these ranges, too. The descriptor gives access to the whole dma-buf, also outside the range: to the other parts of
 * the allocation, and to small allocations of hipMalloc that share the dma-buf. */
hipError_t hipMemGetHandleForAddressRange(void *handle, hipDeviceptr_t ptr, size_t size,
                                          hipMemRangeHandleType type, unsigned long long flags);
/* Returns the handle of the memory mapped at an address, and adds a reference to the handle. */
hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t *handle, void *address);

#endif
