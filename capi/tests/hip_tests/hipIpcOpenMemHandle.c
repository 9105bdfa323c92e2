/* hipIpcOpenMemHandle: memory cannot be opened in the process that owns it.
 * hipIpcOpenMemHandle_Negative_Open_In_Two_Contexts_Same_Device is omitted, because a
 * device has only one context. */
#include "memory.h"

static void hipIpcOpenMemHandle_Negative_Open_In_Creating_Process(void) {
  hipIpcMemHandle_t handle;
  void *ptr, *other = NULL;
  EXPECT_SUCCESS(hipMalloc(&ptr, 1024));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, ptr));
  EXPECT_ERROR(hipIpcOpenMemHandle(&other, handle, hipIpcMemLazyEnablePeerAccess),
               hipErrorInvalidContext);
  EXPECT_SUCCESS(hipFree(ptr));
}

CASES(CASE(hipIpcOpenMemHandle_Negative_Open_In_Creating_Process))
