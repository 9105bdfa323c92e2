/*
 * Devices, their attributes, and peer access. Included by hip_runtime_api.h.
 */
#ifndef HSAVMM_HIP_DEVICES_H
#define HSAVMM_HIP_DEVICES_H

#define hipCpuDeviceId ((int)-1)
#define hipInvalidDeviceId ((int)-2)

/* The attributes that programs with virtual memory management use. hipDeviceGetAttribute returns hipErrorNotSupported
 * for the two attributes of HDP registers, and hipErrorInvalidValue for attributes that are not in this list. */
typedef enum hipDeviceAttribute_t {
  hipDeviceAttributeCanMapHostMemory = 3,
  hipDeviceAttributeCanUseHostPointerForRegisteredMem = 4,
  hipDeviceAttributeClockRate = 5,
  hipDeviceAttributeConcurrentManagedAccess = 9,
  hipDeviceAttributeCooperativeLaunch = 10,
  hipDeviceAttributeDirectManagedMemAccessFromHost = 13,
  hipDeviceAttributeIntegrated = 16,
  hipDeviceAttributeComputeCapabilityMajor = 23,
  hipDeviceAttributeManagedMemory = 24,
  hipDeviceAttributeMemoryBusWidth = 59,
  hipDeviceAttributeMemoryClockRate = 60,
  hipDeviceAttributeComputeCapabilityMinor = 61,
  hipDeviceAttributeMultiprocessorCount = 63,
  hipDeviceAttributePageableMemoryAccess = 65,
  hipDeviceAttributePageableMemoryAccessUsesHostPageTables = 66,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributePciDeviceId = 68,
  hipDeviceAttributePciDomainId = 69,
  hipDeviceAttributePciDomainID = 69,
  hipDeviceAttributeTotalGlobalMem = 84,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeWarpSize = 87,
  hipDeviceAttributeMemoryPoolsSupported = 88,
  hipDeviceAttributeVirtualMemoryManagementSupported = 89,
  hipDeviceAttributeHostRegisterSupported = 90,
  hipDeviceAttributeMemoryPoolSupportedHandleTypes = 91,
  hipDeviceAttributeHostNumaId = 92,
  hipDeviceAttributeHandleTypeFabricSupported = 95,
  hipDeviceAttributeHdpMemFlushCntl = 10005,
  hipDeviceAttributeHdpRegFlushCntl = 10006,
  hipDeviceAttributeIsLargeBar = 10011,
  hipDeviceAttributeImageSupport = 10014,
  hipDeviceAttributePhysicalMultiProcessorCount = 10015,
  hipDeviceAttributeFineGrainSupport = 10016,
  hipDeviceAttributePciChipId = 10020
} hipDeviceAttribute_t;

/* Opens the runtime, as most other calls do. `flags` must be 0. */
hipError_t hipInit(unsigned int flags);
hipError_t hipDriverGetVersion(int *version);
hipError_t hipRuntimeGetVersion(int *version);
/* Returns hipErrorNoDevice if there is no device. */
hipError_t hipGetDeviceCount(int *count);
/* Returns the current device of this thread, initially 0. */
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipDeviceGet(hipDevice_t *device, int ordinal);
hipError_t hipDeviceGetName(char *name, int length, hipDevice_t device);
hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device);
/* Returns hipErrorInvalidValue if `length` is less than 13. */
hipError_t hipDeviceGetPCIBusId(char *id, int length, int device);
hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device);
hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device);
/* Sets `*can` to 1 if `device` can access memory of `peer`, else to 0. A device is not its own peer: if `device` and
 * `peer` are equal, sets `*can` to 0, even if the number is invalid. */
hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer);
/* Grants the current device access to all memory that hipMalloc has allocated or will allocate on `peer`. */
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned int flags);
hipError_t hipDeviceDisablePeerAccess(int peer);
/* Returns at once: every call of this library is synchronous. */
hipError_t hipDeviceSynchronize(void);

#endif
