/* hipMemRelease: invalid calls. */
#include "memory.h"

/* After the original's null pointer, calls that crash HIP: a handle released too often, and an
 * invented one. */
static void hipMemRelease_negative(void) {
  hipMemGenericAllocationHandle_t handle;
  EXPECT_ERROR(hipMemRelease(NULL), hipErrorInvalidValue);
  handle = create(0, granularity_of(0));
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_ERROR(hipMemRelease(handle), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemRelease((hipMemGenericAllocationHandle_t)&handle), hipErrorInvalidValue);
}

CASES(CASE(hipMemRelease_negative))
