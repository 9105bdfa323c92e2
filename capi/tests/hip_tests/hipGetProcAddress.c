/* hipGetProcAddress: looks up every function of virtual memory by its name (in hip-tests since 2026). */
#include "memory.h"

/* Returns the address of a function by its name. */
static void *by_name(const char *name) {
  hipDriverProcAddressQueryResult result = HIP_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  void *function = NULL;
  EXPECT_SUCCESS(hipGetProcAddress(name, &function, HIP_VERSION, 0, &result));
  CHECK(result == HIP_GET_PROC_ADDRESS_SUCCESS);
  CHECK(function != NULL);
  return function;
}

/* Stores the address in a pointer to a function. ISO C has no such conversion, but POSIX requires it. */
#define FUNCTION(variable) *(void **)(&variable) = by_name("hip" #variable)

static void hipGetProcAddressVmmApis(void) {
  hipError_t (*MemGetAllocationGranularity)(size_t *, const hipMemAllocationProp *,
                                            hipMemAllocationGranularity_flags);
  hipError_t (*MemAddressReserve)(void **, size_t, size_t, void *, unsigned long long);
  hipError_t (*MemAddressFree)(void *, size_t);
  hipError_t (*MemCreate)(hipMemGenericAllocationHandle_t *, size_t, const hipMemAllocationProp *,
                          unsigned long long);
  hipError_t (*MemRelease)(hipMemGenericAllocationHandle_t);
  hipError_t (*MemMap)(void *, size_t, size_t, hipMemGenericAllocationHandle_t,
                       unsigned long long);
  hipError_t (*MemUnmap)(void *, size_t);
  hipError_t (*MemSetAccess)(void *, size_t, const hipMemAccessDesc *, size_t);
  hipError_t (*MemGetAccess)(unsigned long long *, const hipMemLocation *, void *);
  hipError_t (*MemRetainAllocationHandle)(hipMemGenericAllocationHandle_t *, void *);
  hipError_t (*MemGetAllocationPropertiesFromHandle)(hipMemAllocationProp *,
                                                     hipMemGenericAllocationHandle_t);
  hipError_t (*MemExportToShareableHandle)(void *, hipMemGenericAllocationHandle_t,
                                           hipMemAllocationHandleType, unsigned long long);
  hipError_t (*MemImportFromShareableHandle)(hipMemGenericAllocationHandle_t *, void *,
                                             hipMemAllocationHandleType);
  hipError_t (*MemMapArrayAsync)(hipArrayMapInfo *, unsigned int, hipStream_t);
  hipMemAllocationProp prop = properties_of(0), found;
  hipMemGenericAllocationHandle_t handle, retained, other;
  hipMemAccessDesc desc = access_of(0, hipMemAccessFlagsProtReadWrite);
  hipArrayMapInfo info;
  hipDriverProcAddressQueryResult result;
  unsigned long long flags = 0;
  size_t size = 0;
  void *ptr = NULL, *nothing = &ptr;
  int descriptor = -1;
  prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  FUNCTION(MemGetAllocationGranularity);
  FUNCTION(MemAddressReserve);
  FUNCTION(MemAddressFree);
  FUNCTION(MemCreate);
  FUNCTION(MemRelease);
  FUNCTION(MemMap);
  FUNCTION(MemUnmap);
  FUNCTION(MemSetAccess);
  FUNCTION(MemGetAccess);
  FUNCTION(MemRetainAllocationHandle);
  FUNCTION(MemGetAllocationPropertiesFromHandle);
  FUNCTION(MemExportToShareableHandle);
  FUNCTION(MemImportFromShareableHandle);
  FUNCTION(MemMapArrayAsync);
  EXPECT_SUCCESS(MemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityMinimum));
  size *= (BYTES + size - 1) / size;
  EXPECT_SUCCESS(MemAddressReserve(&ptr, size, 0, NULL, 0));
  EXPECT_SUCCESS(MemCreate(&handle, size, &prop, 0));
  EXPECT_SUCCESS(MemMap(ptr, size, 0, handle, 0));
  EXPECT_SUCCESS(MemSetAccess(ptr, size, &desc, 1));
  EXPECT_SUCCESS(MemGetAccess(&flags, &desc.location, ptr));
  CHECK(flags == hipMemAccessFlagsProtReadWrite);
  write_and_read(ptr, 0);
  EXPECT_SUCCESS(MemRetainAllocationHandle(&retained, ptr));
  CHECK(retained == handle);
  EXPECT_SUCCESS(MemGetAllocationPropertiesFromHandle(&found, handle));
  CHECK(found.location.id == 0);
  EXPECT_SUCCESS(MemExportToShareableHandle(&descriptor, handle,
                                            hipMemHandleTypePosixFileDescriptor, 0));
  EXPECT_SUCCESS(MemImportFromShareableHandle(
      &other, profile() == 6 ? (void *)&descriptor : (void *)(uintptr_t)descriptor,
      hipMemHandleTypePosixFileDescriptor));
  CHECK(close(descriptor) == 0);
  memset(&info, 0, sizeof info);
  EXPECT_ERROR(MemMapArrayAsync(&info, 1, NULL), hipErrorNotSupported);
  EXPECT_SUCCESS(MemRelease(other));
  EXPECT_SUCCESS(MemRelease(retained));
  EXPECT_SUCCESS(MemRelease(handle));
  EXPECT_SUCCESS(MemUnmap(ptr, size));
  EXPECT_SUCCESS(MemAddressFree(ptr, size));
  EXPECT_ERROR(hipGetProcAddress("hipMemNothing", &nothing, HIP_VERSION, 0, &result),
               hipErrorInvalidValue);
  CHECK(result == HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && nothing == NULL);
}

/* The original does not look up unknown names, or hipGetDeviceProperties of HIP 5, whose structure is smaller. */
static void hipGetProcAddress_Negative(void) {
  hipDriverProcAddressQueryResult result;
  hipDriverEntryPointQueryResult entry_result;
  void *function;
  EXPECT_ERROR(hipGetProcAddress("", &function, HIP_VERSION, 0, &result), hipErrorInvalidValue);
  EXPECT_ERROR(hipGetProcAddress("hipGetDeviceCount", &function, HIP_VERSION, -1, &result),
               hipErrorInvalidValue);
  EXPECT_ERROR(hipGetProcAddress("hipGetDeviceCount", NULL, HIP_VERSION, 0, &result),
               hipErrorInvalidValue);
  EXPECT_ERROR(hipGetDriverEntryPoint("hipGetDeviceCount", &function, 3, &entry_result),
               hipErrorInvalidValue);
  EXPECT_SUCCESS(hipGetProcAddress("hipGetDeviceCount", &function, HIP_VERSION, 2, NULL));
  EXPECT_SUCCESS(hipGetProcAddress("hipGetDeviceProperties", &function, 600, 0, &result));
  CHECK(result == HIP_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_ERROR(hipGetProcAddress("hipGetDeviceProperties", &function, 599, 0, &result),
               hipErrorInvalidValue);
  CHECK(result == HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && function == NULL);
  EXPECT_ERROR(hipGetDriverEntryPoint("hipGetDeviceProperties", &function, 0, &entry_result),
               hipErrorInvalidValue);
  CHECK(entry_result == hipDriverEntryPointSymbolNotFound);
}

CASES(CASE(hipGetProcAddress_Negative), CASE(hipGetProcAddressVmmApis))
