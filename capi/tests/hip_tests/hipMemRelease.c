/* hipMemRelease: invalid calls. */
#include "memory.h"

/* The original only passes a null pointer. This case also passes a handle that was released before, and an address that
 * is not a handle. Both crash HIP. */
static void hipMemRelease_negative(void) {
  hipMemGenericAllocationHandle_t handle;
  EXPECT_ERROR(hipMemRelease(NULL), hipErrorInvalidValue);
  handle = create(0, granularity_of(0));
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_ERROR(hipMemRelease(handle), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemRelease((hipMemGenericAllocationHandle_t)&handle), hipErrorInvalidValue);
}

CASES(CASE(hipMemRelease_negative))
