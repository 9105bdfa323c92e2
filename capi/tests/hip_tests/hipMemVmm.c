/* Reserves, creates, maps, accesses, unmaps and releases pinned and uncached memory. */
#include "memory.h"

static void full_cycle(const hipMemAllocationProp *prop, size_t size, size_t alignment) {
  static char values[2 << 20];
  hipMemGenericAllocationHandle_t handle;
  hipDeviceptr_t ptr;
  size_t index;
  CHECK(size <= sizeof values);
  EXPECT_SUCCESS(hipMemAddressReserve(&ptr, size, alignment, NULL, 0));
  EXPECT_SUCCESS(hipMemCreate(&handle, size, prop, 0));
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  grant(ptr, size, 0, hipMemAccessFlagsProtReadWrite);
  EXPECT_SUCCESS(hipMemset(ptr, 1, size));
  EXPECT_SUCCESS(hipMemcpy(values, ptr, size, hipMemcpyDeviceToHost));
  for (index = 0; index < size; index++) CHECK(values[index] == 1);
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

/* The original leaves fields of the properties uninitialised, and can therefore request handle types that do not exist.
 * Here these fields are 0. The recommended granularity is used only as the alignment. */
static void hipMemVmm_Basic(void) {
  hipMemAllocationProp prop = properties_of(0);
  size_t granularity = 0;
  EXPECT_SUCCESS(hipMemGetAllocationGranularity(&granularity, &prop,
                                                hipMemAllocationGranularityRecommended));
  full_cycle(&prop, 4096, granularity);
}

/* In hip-tests since 2026. HIP 6, and runtimes before version 1.18 of AMD's extension, have no uncached memory. */
static void hipMemVmm_Uncached(void) {
  hipMemAllocationProp prop = properties_of(0);
  hipMemGenericAllocationHandle_t handle;
  size_t granularity = 0;
  hsavmm_runtime_info info;
  prop.type = hipMemAllocationTypeUncached;
  EXPECT_SUCCESS(hsavmm_runtime(&info));
  if (info.profile == 6 || info.extension_minor < 18) {
    hipError_t error = by_profile(hipErrorInvalidValue, hipErrorNotSupported);
    EXPECT_ERROR(hipMemCreate(&handle, granularity_of(0), &prop, 0), error);
    skip("no uncached memory");
  }
  EXPECT_SUCCESS(hipMemGetAllocationGranularity(&granularity, &prop,
                                                hipMemAllocationGranularityRecommended));
  full_cycle(&prop, granularity, 0);
}

CASES(CASE(hipMemVmm_Basic), CASE(hipMemVmm_Uncached))
