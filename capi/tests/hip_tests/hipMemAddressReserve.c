/* hipMemAddressReserve: alignments, and invalid calls. */
#include "memory.h"

/* Alignments smaller than a page are valid, too. */
static void hipMemAddressReserve_AlignmentTest(void) {
  size_t size = rounded_size(0, BYTES), alignment;
  hipMemGenericAllocationHandle_t handle = create(0, size);
  for (alignment = 2; alignment <= 4096; alignment *= 2) {
    hipDeviceptr_t ptr;
    EXPECT_SUCCESS(hipMemAddressReserve(&ptr, size, alignment, 0, 0));
    CHECK((uintptr_t)ptr % alignment == 0);
    map_and_grant(ptr, size, handle, 0);
    write_and_read(ptr, (int)alignment);
    unmap_and_free(ptr, size);
  }
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* HIP 6 returned hipErrorMemoryAllocation for an invalid size. The original checks only on NVIDIA that an alignment
 * must be a power of two. This library rejects other alignments. */
static void hipMemAddressReserve_Negative(void) {
  size_t size = rounded_size(0, BYTES);
  hipError_t invalid_size = by_profile(hipErrorMemoryAllocation, hipErrorInvalidValue);
  hipDeviceptr_t ptr;
  EXPECT_ERROR(hipMemAddressReserve(NULL, size, 0, 0, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemAddressReserve(&ptr, 0, 0, 0, 0), invalid_size);
  EXPECT_ERROR(hipMemAddressReserve(&ptr, size - 1, 0, 0, 0), invalid_size);
  EXPECT_ERROR(hipMemAddressReserve(&ptr, size, 3, 0, 0), invalid_size);
}

CASES(CASE(hipMemAddressReserve_AlignmentTest), CASE(hipMemAddressReserve_Negative))
