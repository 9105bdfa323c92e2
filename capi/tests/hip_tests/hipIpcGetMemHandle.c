/* hipIpcGetMemHandle: handles of valid and of invalid addresses. */
#include "memory.h"

static void hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations(void) {
  hipIpcMemHandle_t one, other;
  void *first, *second;
  EXPECT_SUCCESS(hipMalloc(&first, 1024));
  EXPECT_SUCCESS(hipMalloc(&second, 1024));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&one, first));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&other, second));
  CHECK(memcmp(&one, &other, sizeof one) != 0);
  EXPECT_SUCCESS(hipFree(first));
  EXPECT_SUCCESS(hipFree(second));
}

/* The handles differ, even if both allocations have the same address. */
static void hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory(void) {
  hipIpcMemHandle_t one, other;
  void *first, *second;
  EXPECT_SUCCESS(hipMalloc(&first, 1024));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&one, first));
  EXPECT_SUCCESS(hipFree(first));
  EXPECT_SUCCESS(hipMalloc(&second, 1024));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&other, second));
  CHECK(memcmp(&one, &other, sizeof one) != 0);
  EXPECT_SUCCESS(hipFree(second));
}

static void hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory(void) {
  hipIpcMemHandle_t handle;
  void *ptr;
  EXPECT_SUCCESS(hipMalloc(&ptr, 1024));
  EXPECT_SUCCESS(hipFree(ptr));
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, ptr), hipErrorInvalidValue);
}

/* The allocation fills a whole page, so that the address after it is invalid. */
static void hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer(void) {
  hipIpcMemHandle_t handle;
  void *ptr;
  EXPECT_SUCCESS(hipMalloc(&ptr, 4096));
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, at(ptr, 4096)), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipFree(ptr));
}

/* Not in hip-tests. HIP accepted a mapped address, and the Linux kernel crashed later (clr#265). */
static void hipIpcGetMemHandle_Negative_Mapped_Memory(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size);
  hipIpcMemHandle_t handle;
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, ptr), hipErrorInvalidValue);
  unmap_and_free(ptr, size);
}

CASES(CASE(hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations),
      CASE(hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory),
      CASE(hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory),
      CASE(hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer),
      CASE(hipIpcGetMemHandle_Negative_Mapped_Memory))
