/* hipIpcGetMemHandle: handles of memory that is there, and of memory that is not. */
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

/* Also if the address is the same, which the original only hopes for. */
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

/* A whole page, so that what is behind it is nobody's. */
static void hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer(void) {
  hipIpcMemHandle_t handle;
  void *ptr;
  EXPECT_SUCCESS(hipMalloc(&ptr, 4096));
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, at(ptr, 4096)), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipFree(ptr));
}

/* Not of hip-tests: mapped memory brought the kernel down under HIP (clr#265). */
static void hipIpcGetMemHandle_Negative_Mapped_Memory(void) {
  size_t size = rounded(0, BYTES);
  hipDeviceptr_t ptr = mapped(0, size);
  hipIpcMemHandle_t handle;
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, ptr), hipErrorInvalidValue);
  unmap_and_free(ptr, size);
}

CASES(CASE(hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations),
      CASE(hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory),
      CASE(hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory),
      CASE(hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer),
      CASE(hipIpcGetMemHandle_Negative_Mapped_Memory))
