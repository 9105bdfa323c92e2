/* hipMemAddressFree: invalid calls. */
#include "memory.h"

static void hipMemAddressFree_negative(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = reserve(size);
  EXPECT_ERROR(hipMemAddressFree(NULL, size), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemAddressFree(ptr, 0), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

CASES(CASE(hipMemAddressFree_negative))
