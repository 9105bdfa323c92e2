/* hipMemMapArrayAsync: sparse arrays, which AMD does not support. */
#include "memory.h"

/* The original maps and unmaps on NVIDIA only. HIP on AMD returns the same error as this library. */
static void hipMemMapArrayAsync_Positive_Basic(void) {
  hipMemGenericAllocationHandle_t handle = create(0, granularity_of(0));
  hipArrayMapInfo info;
  memset(&info, 0, sizeof info);
  info.resourceType = hipResourceTypeMipmappedArray;
  info.subresourceType = hipArraySparseSubresourceTypeSparseLevel;
  info.memOperationType = hipMemOperationTypeMap;
  info.memHandleType = hipMemHandleTypeGeneric;
  info.memHandle.memHandle = handle;
  info.deviceBitMask = 1;
  EXPECT_ERROR(hipMemMapArrayAsync(&info, 1, NULL), hipErrorNotSupported);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

CASES(CASE(hipMemMapArrayAsync_Positive_Basic))
