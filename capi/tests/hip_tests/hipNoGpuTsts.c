/* Calls functions without a device (HIP_VISIBLE_DEVICES selects none). Unlike the originals, these cases also call the
 * functions of virtual memory and IPC. Functions that this library lacks are omitted. */
#include "case.h"

/* Defines a case of one call. The case exits before the checks in run_and_exit() of case.h, which
 * need a device. */
#define WITHOUT_DEVICE(function, call)                                                             \
  static void NoGpuTst_##function(void) {                                                          \
    CHECK(setenv("HIP_VISIBLE_DEVICES", "-1", 1) == 0);                                            \
    EXPECT_ERROR(call, hipErrorNoDevice);                                                          \
    EXPECT_SUCCESS(hsavmm_shut_down());                                                            \
    exit(PASSED);                                                                                  \
  }

static int number;
static size_t size, more;
static void *ptr;
static char bytes[64];
static hipMemAllocationProp prop;
static hipMemGenericAllocationHandle_t handle;
static hipPointerAttribute_t attributes;
static hipIpcMemHandle_t ipc;
static unsigned long long flags;
static hipMemAccessDesc desc;

WITHOUT_DEVICE(hipGetDeviceCount, hipGetDeviceCount(&number))
WITHOUT_DEVICE(hipGetDevice, hipGetDevice(&number))
WITHOUT_DEVICE(hipSetDevice, hipSetDevice(0))
WITHOUT_DEVICE(hipDeviceGet, hipDeviceGet(&number, 0))
WITHOUT_DEVICE(hipDeviceGetName, hipDeviceGetName(bytes, sizeof bytes, 0))
WITHOUT_DEVICE(hipDeviceGetAttribute,
               hipDeviceGetAttribute(&number, hipDeviceAttributePciBusId, 0))
WITHOUT_DEVICE(hipDeviceGetPCIBusId, hipDeviceGetPCIBusId(bytes, sizeof bytes, 0))
WITHOUT_DEVICE(hipDeviceTotalMem, hipDeviceTotalMem(&size, 0))
WITHOUT_DEVICE(hipDeviceCanAccessPeer, hipDeviceCanAccessPeer(&number, 0, 1))
WITHOUT_DEVICE(hipDeviceEnablePeerAccess, hipDeviceEnablePeerAccess(0, 0))
WITHOUT_DEVICE(hipDeviceDisablePeerAccess, hipDeviceDisablePeerAccess(0))
WITHOUT_DEVICE(hipDeviceSynchronize, hipDeviceSynchronize())
WITHOUT_DEVICE(hipStreamSynchronize, hipStreamSynchronize(NULL))
WITHOUT_DEVICE(hipMalloc, hipMalloc(&ptr, 1024))
WITHOUT_DEVICE(hipMallocManaged, hipMallocManaged(&ptr, 1024, hipMemAttachGlobal))
WITHOUT_DEVICE(hipHostMalloc, hipHostMalloc(&ptr, 1024, hipHostMallocDefault))
WITHOUT_DEVICE(hipHostFree, hipHostFree(NULL))
WITHOUT_DEVICE(hipMemcpy, hipMemcpy(bytes, bytes + 32, 32, hipMemcpyHostToHost))
WITHOUT_DEVICE(hipMemGetInfo, hipMemGetInfo(&size, &more))
WITHOUT_DEVICE(hipPointerGetAttributes, hipPointerGetAttributes(&attributes, bytes))
WITHOUT_DEVICE(hipMemGetAddressRange, hipMemGetAddressRange(&ptr, &size, bytes))
WITHOUT_DEVICE(hipMemGetAllocationGranularity,
               hipMemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityMinimum))
WITHOUT_DEVICE(hipMemAddressReserve, hipMemAddressReserve(&ptr, 4096, 0, NULL, 0))
WITHOUT_DEVICE(hipMemAddressFree, hipMemAddressFree(bytes, 4096))
WITHOUT_DEVICE(hipMemCreate, hipMemCreate(&handle, 4096, &prop, 0))
WITHOUT_DEVICE(hipMemRelease, hipMemRelease(handle))
WITHOUT_DEVICE(hipMemMap, hipMemMap(bytes, 4096, 0, handle, 0))
WITHOUT_DEVICE(hipMemUnmap, hipMemUnmap(bytes, 4096))
WITHOUT_DEVICE(hipMemSetAccess, hipMemSetAccess(bytes, 4096, &desc, 1))
WITHOUT_DEVICE(hipMemGetAccess, hipMemGetAccess(&flags, &desc.location, bytes))
WITHOUT_DEVICE(hipIpcGetMemHandle, hipIpcGetMemHandle(&ipc, bytes))
WITHOUT_DEVICE(hipIpcOpenMemHandle,
               hipIpcOpenMemHandle(&ptr, ipc, hipIpcMemLazyEnablePeerAccess))
WITHOUT_DEVICE(hipIpcCloseMemHandle, hipIpcCloseMemHandle(bytes))

#define TABLE_CASE(function) CASE(NoGpuTst_##function)

CASES(TABLE_CASE(hipGetDeviceCount), TABLE_CASE(hipGetDevice), TABLE_CASE(hipSetDevice), TABLE_CASE(hipDeviceGet),
      TABLE_CASE(hipDeviceGetName), TABLE_CASE(hipDeviceGetAttribute), TABLE_CASE(hipDeviceGetPCIBusId),
      TABLE_CASE(hipDeviceTotalMem), TABLE_CASE(hipDeviceCanAccessPeer),
      TABLE_CASE(hipDeviceEnablePeerAccess), TABLE_CASE(hipDeviceDisablePeerAccess),
      TABLE_CASE(hipDeviceSynchronize), TABLE_CASE(hipStreamSynchronize), TABLE_CASE(hipMalloc),
      TABLE_CASE(hipMallocManaged), TABLE_CASE(hipHostMalloc), TABLE_CASE(hipHostFree), TABLE_CASE(hipMemcpy),
      TABLE_CASE(hipMemGetInfo), TABLE_CASE(hipPointerGetAttributes), TABLE_CASE(hipMemGetAddressRange),
      TABLE_CASE(hipMemGetAllocationGranularity), TABLE_CASE(hipMemAddressReserve),
      TABLE_CASE(hipMemAddressFree), TABLE_CASE(hipMemCreate), TABLE_CASE(hipMemRelease), TABLE_CASE(hipMemMap),
      TABLE_CASE(hipMemUnmap), TABLE_CASE(hipMemSetAccess), TABLE_CASE(hipMemGetAccess),
      TABLE_CASE(hipIpcGetMemHandle), TABLE_CASE(hipIpcOpenMemHandle), TABLE_CASE(hipIpcCloseMemHandle))
