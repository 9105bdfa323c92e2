/* hipMemRetainAllocationHandle: returns the handle of a mapping. */
#include "memory.h"

/* The original releases the handle once, which was enough in HIP's releases of 2024. This case
 * releases the handle twice, because hipMemRetainAllocationHandle adds a reference. */
static void hipMemRetainAllocationHandle_SetGet(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size), retained = NULL;
  hipDeviceptr_t ptr = reserve(size);
  EXPECT_SUCCESS(hipFree(NULL));
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  EXPECT_SUCCESS(hipMemRetainAllocationHandle(&retained, ptr));
  CHECK(retained == handle);
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemRelease(retained));
  EXPECT_ERROR(hipMemRelease(retained), hipErrorInvalidValue);
  unmap_and_free(ptr, size);
}

static void hipMemRetainAllocationHandle_NegTst(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size), retained = NULL;
  hipDeviceptr_t ptr = reserve(size), empty = reserve(size);
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  EXPECT_ERROR(hipMemRetainAllocationHandle(NULL, ptr), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemRetainAllocationHandle(&retained, NULL), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemRetainAllocationHandle(&retained, empty), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_ERROR(hipMemRetainAllocationHandle(&retained, ptr), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
  EXPECT_SUCCESS(hipMemAddressFree(empty, size));
}

CASES(CASE(hipMemRetainAllocationHandle_SetGet), CASE(hipMemRetainAllocationHandle_NegTst))
