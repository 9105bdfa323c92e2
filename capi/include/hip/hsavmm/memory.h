/*
 * Allocated and registered memory, and queries of pointers. Included by hip_runtime_api.h.
 */
#ifndef HSAVMM_HIP_MEMORY_H
#define HSAVMM_HIP_MEMORY_H

#define hipHostMallocDefault 0x0
#define hipHostMallocPortable 0x1
#define hipHostMallocMapped 0x2
#define hipHostMallocWriteCombined 0x4
#define hipHostMallocUncached 0x10000000
#define hipHostMallocNumaUser 0x20000000
#define hipHostMallocCoherent 0x40000000
#define hipHostMallocNonCoherent 0x80000000
#define hipHostAllocDefault 0x0
#define hipHostAllocPortable 0x1
#define hipHostAllocMapped 0x2
#define hipHostAllocWriteCombined 0x4
#define hipHostAllocUncached hipHostMallocUncached
#define hipHostRegisterDefault 0x0
#define hipHostRegisterPortable 0x1
#define hipHostRegisterMapped 0x2
#define hipHostRegisterIoMemory 0x4
#define hipHostRegisterReadOnly 0x08
#define hipExtHostRegisterCoarseGrained 0x8
#define hipExtHostRegisterUncached 0x80000000
#define hipDeviceMallocDefault 0x0
#define hipDeviceMallocFinegrained 0x1
#define hipDeviceMallocUncached 0x3
#define hipDeviceMallocContiguous 0x4
#define hipMallocSignalMemory 0x2
#define hipMemAttachGlobal 0x01
#define hipMemAttachHost 0x02
#define hipMemAttachSingle 0x04

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

typedef enum hipPointer_attribute {
  HIP_POINTER_ATTRIBUTE_CONTEXT = 1,
  HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  HIP_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
  HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
  HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE = 10,
  HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  HIP_POINTER_ATTRIBUTE_MAPPED = 13,
  HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
  HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
  HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
  HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17
} hipPointer_attribute;

/* Allocates memory of the current device. For 0 bytes, sets `*ptr` to null. */
hipError_t hipMalloc(void **ptr, size_t size);
/* Allocates `height` rows of `width` bytes of the current device's memory. `*pitch` is `width` rounded up to a multiple
 * of 256: the distance between the starts of two rows. For 0 bytes, sets `*ptr` to null. */
hipError_t hipMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height);
/* Frees memory that this library allocated on a device or the host. For null, does nothing. As in HIP, hipHostFree,
 * hipFreeHost and hipFreeAsync accept the same memory. */
hipError_t hipFree(void *ptr);
/* Allocates memory of the host that all devices can access. The flags have no effect. For hipHostMallocUncached,
 * returns hipErrorNotSupported. */
hipError_t hipHostMalloc(void **ptr, size_t size,
                         unsigned int flags HSAVMM_DEFAULT(hipHostMallocDefault));
hipError_t hipHostFree(void *ptr);
/* HIP's other names of hipHostMalloc and hipHostFree. hipHostAlloc rejects hipHostMallocNumaUser, hipHostMallocCoherent
 * and hipHostMallocNonCoherent; hipMallocHost and hipMemAllocHost take no flags. */
hipError_t hipHostAlloc(void **ptr, size_t size, unsigned int flags);
hipError_t hipMallocHost(void **ptr, size_t size);
hipError_t hipMemAllocHost(void **ptr, size_t size);
hipError_t hipFreeHost(void *ptr);
/* Allocates memory of the host that all devices can access. The memory never migrates. */
hipError_t hipMallocManaged(void **ptr, size_t size,
                            unsigned int flags HSAVMM_DEFAULT(hipMemAttachGlobal));
/* With hipDeviceMallocDefault, does the same as hipMalloc. With hipDeviceMallocFinegrained, allocates fine-grained
 * memory, or coarse-grained memory on a device without fine-grained memory (hipDeviceAttributeFineGrainSupport), as HIP
 * does. For uncached, contiguous and signal memory, returns hipErrorNotSupported (for signal memory of a size other
 * than 8, hipErrorInvalidValue). */
hipError_t hipExtMallocWithFlags(void **ptr, size_t size, unsigned int flags);
/* hipMallocAsync does the same as hipMalloc, for the stream's device. hipFreeAsync does the same as
 * hipFree, and also checks the stream. In profile 6, hipFreeAsync returns hipErrorInvalidValue for null. Each operation
 * is complete when the call returns. Memory pools are not supported. */
hipError_t hipMallocAsync(void **ptr, size_t size, hipStream_t stream);
hipError_t hipFreeAsync(void *ptr, hipStream_t stream);

/* Grants all devices access to memory of the program, which must not be memory of this library. The memory must stay
 * allocated until it is unregistered. It must be writable, even with hipHostRegisterReadOnly: AMD's driver pins it for
 * writing. For hipHostRegisterIoMemory and hipExtHostRegisterUncached, returns hipErrorNotSupported. */
hipError_t hipHostRegister(void *ptr, size_t size, unsigned int flags);
hipError_t hipHostUnregister(void *ptr);
/* Returns the address at which devices access memory. This is another address than `host_ptr` only for memory from
 * hipHostRegister. */
hipError_t hipHostGetDevicePointer(void **device_ptr, void *host_ptr, unsigned int flags);
/* Returns the flags of memory from hipHostMalloc, or 0 for memory from hipMallocManaged. Returns hipErrorInvalidValue
 * for other memory. hipPointerGetAttributes() returns the flags of registered memory. */
hipError_t hipHostGetFlags(unsigned int *flags, void *ptr);

/* Returns the free memory and the total memory of the current device, in bytes. Either pointer may be null. */
hipError_t hipMemGetInfo(size_t *free, size_t *total);
/* Returns the attributes of an address. Memory that does not belong to this library has the type
 * hipMemoryTypeUnregistered, as in HIP since 6.0. Null has this type, too. In profile 6, the call returns
 * hipErrorInvalidValue for null. */
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *ptr);
/* Writes one attribute, in the type that HIP writes: an `int` for MEMORY_TYPE and DEVICE_ORDINAL; an `unsigned` for
 * BUFFER_ID, ACCESS_FLAGS and, with the low 32 bits of the size, RANGE_SIZE; a `hipCtx_t` for CONTEXT; a pointer for
 * DEVICE_POINTER, HOST_POINTER and RANGE_START_ADDR; a `bool` for SYNC_MEMOPS, IS_MANAGED and MAPPED; an `int` for
 * IS_LEGACY_HIP_IPC_CAPABLE. Returns hipErrorNotSupported for the other attributes, for BUFFER_ID of an area and, in
 * profile 6, for CONTEXT and IS_LEGACY_HIP_IPC_CAPABLE.
 *
 * For memory that does not belong to this library, returns hipErrorInvalidValue, and writes the values of
 * hipMemoryTypeUnregistered, as in HIP: device hipInvalidDeviceId, and 0, null or false for the other attributes.
 * HOST_POINTER of a device's memory is also such an error. As in HIP, CONTEXT of other memory than a device's is an
 * error and writes nothing, and ACCESS_FLAGS of any memory succeeds: it writes the flags of the allocation, or 0.
 *
 * BUFFER_ID identifies memory in this process. Mappings of the same handle have the same number.
 * IS_LEGACY_HIP_IPC_CAPABLE is 1 for memory that hipIpcGetMemHandle() accepts, otherwise 0. Unlike in HIP, it is 1 for
 * memory from hipMallocAsync(), and 0 for memory that hipIpcOpenMemHandle() has opened. */
hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute, hipDeviceptr_t ptr);
/* Sets HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS (an `unsigned int`), the only attribute that can be set, to 0 or 1. The value
 * has no effect, because every copy is synchronous. The library stores the value only for memory that it has allocated.
 * For other memory, such as mapped memory, hipPointerGetAttribute() always returns false. */
hipError_t hipPointerSetAttribute(const void *value, hipPointer_attribute attribute,
                                  hipDeviceptr_t ptr);
hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *size, hipDeviceptr_t ptr);

#endif
