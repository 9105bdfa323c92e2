/* Checks calls whose result depends on the profile. */
#include <hip/hip_runtime.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(hipError_t result, hipError_t in_profile_6, hipError_t in_profile_7, int line) {
  hsavmm_runtime_info info;
  if (hsavmm_runtime(&info) == hipSuccess &&
      result == (info.profile == 6 ? in_profile_6 : in_profile_7))
    return;
  fprintf(stderr, "line %d: %d\n  last message: %s\n", line, result, hsavmm_last_message());
  exit(1);
}
#define EXPECT(call, in_profile_6, in_profile_7) expect(call, in_profile_6, in_profile_7, __LINE__)
#define OK(call) EXPECT(call, hipSuccess, hipSuccess)

int main(void) {
  hipStream_t stream;
  hipEvent_t event;
  hipCtx_t context;
  void *memory;
  OK(hipStreamCreate(&stream));
  OK(hipEventCreate(&event));
  OK(hipStreamWaitEvent(stream, event, hipEventWaitDefault));
  EXPECT(hipStreamWaitEvent(stream, event, hipEventWaitExternal), hipErrorInvalidValue,
         hipErrorInvalidHandle);
  OK(hipEventDestroy(event));
  OK(hipStreamDestroy(stream));
  OK(hipMalloc(&memory, 4096));
  EXPECT(hipPointerGetAttribute(&context, HIP_POINTER_ATTRIBUTE_CONTEXT, memory),
         hipErrorNotSupported, hipSuccess);
  int is_capable;
  EXPECT(hipPointerGetAttribute(&is_capable, HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE, memory),
         hipErrorNotSupported, hipSuccess);
  OK(hipFree(memory));
  hipIpcMemHandle_t handle;
  memset(&handle, 0xa5, sizeof handle);
  EXPECT(hipIpcOpenMemHandle(&memory, handle, hipIpcMemLazyEnablePeerAccess),
         hipErrorInvalidDevicePointer, hipErrorInvalidValue);
  memset(&handle, 0, sizeof handle);
  EXPECT(hipIpcOpenMemHandle(&memory, handle, hipIpcMemLazyEnablePeerAccess), hipErrorInvalidValue,
         hipErrorInvalidValue);
  puts("all checks passed");
  return 0;
}
