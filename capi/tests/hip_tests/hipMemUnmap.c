/* hipMemUnmap: invalid calls. */
#include "memory.h"

static void hipMemUnmap_negative(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size);
  EXPECT_ERROR(hipMemUnmap(NULL, size), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemUnmap(ptr, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemUnmap(ptr, size - 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemUnmap(ptr, size - granularity_of(0)), hipErrorInvalidValue);
  unmap_and_free(ptr, size);
}

CASES(CASE(hipMemUnmap_negative))
