/* hipIpcCloseMemHandle: memory that was opened twice must be closed twice. */
#include "memory.h"
#include "process.h"

static void hipIpcCloseMemHandle_Positive_Reference_Counting(void) {
  const unsigned int lazy_peer_access = hipIpcMemLazyEnablePeerAccess;
  hipPointerAttribute_t attributes;
  hipIpcMemHandle_t handle;
  void *first, *second;
  int end;
  pid_t child = fork_child(&end);
  if (child == 0) {
    receive_bytes(end, &handle, sizeof handle);
    EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handle, lazy_peer_access));
    EXPECT_SUCCESS(hipIpcOpenMemHandle(&second, handle, lazy_peer_access));
    CHECK(first == second);
    EXPECT_SUCCESS(hipIpcCloseMemHandle(first));
    EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, first));
    EXPECT_SUCCESS(hipIpcCloseMemHandle(second));
    EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, first));
    CHECK(attributes.type == hipMemoryTypeUnregistered);
    EXPECT_ERROR(hipIpcCloseMemHandle(first), hipErrorInvalidValue);
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&first, 1024));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, first));
  send_bytes(end, &handle, sizeof handle);
  wait_for(child, end);
  EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, first));
  CHECK(attributes.type == hipMemoryTypeDevice && attributes.devicePointer == first);
  EXPECT_SUCCESS(hipFree(first));
}

static void hipIpcCloseMemHandle_Negative_Close_In_Originating_Process(void) {
  hipIpcMemHandle_t handle;
  void *ptr;
  EXPECT_SUCCESS(hipMalloc(&ptr, 1024));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, ptr));
  EXPECT_ERROR(hipIpcCloseMemHandle(ptr), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipFree(ptr));
}

CASES(CASE(hipIpcCloseMemHandle_Positive_Reference_Counting),
      CASE(hipIpcCloseMemHandle_Negative_Close_In_Originating_Process))
