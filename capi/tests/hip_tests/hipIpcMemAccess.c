/* A child process opens memory of each device by an IPC handle. */
#include "memory.h"
#include "process.h"

/* A handle of the parent's memory, for the child to open. */
struct shared_memory {
  int device;
  hipIpcMemHandle_t handle;
};

/* Opens the memory on every device that can access it, reads it directly and through a copy, and writes to it. */
static void open_on_every_device(const struct shared_memory *shared) {
  int device, count = device_count();
  for (device = 0; device < count; device++) {
    void *opened, *own;
    int can = 0;
    EXPECT_SUCCESS(hipSetDevice(device));
    EXPECT_SUCCESS(hipDeviceCanAccessPeer(&can, device, shared->device));
    /* A device is not its own peer. The original skips the device that owns the memory, and therefore tests nothing
     * with a single device. */
    if (!can && device != shared->device) continue;
    EXPECT_SUCCESS(hipMalloc(&own, BYTES));
    EXPECT_SUCCESS(hipIpcOpenMemHandle(&opened, shared->handle, hipIpcMemLazyEnablePeerAccess));
    EXPECT_SUCCESS(hipMemcpy(own, opened, BYTES, hipMemcpyDeviceToDevice));
    expect_numbers(own, shared->device);
    expect_numbers(opened, shared->device);
    write_numbers(opened, shared->device);
    EXPECT_SUCCESS(hipIpcCloseMemHandle(opened));
    EXPECT_SUCCESS(hipFree(own));
  }
}

/* Messages replace the original's named semaphores. */
static void hipIpcMemAccess_Semaphores(void) {
  struct shared_memory shared;
  int end;
  pid_t child = fork_child(&end);
  char done = 0;
  int count;
  count = device_count();
  if (child == 0) {
    int left;
    for (left = count; left > 0; left--) {
      receive_bytes(end, &shared, sizeof shared);
      open_on_every_device(&shared);
      send_bytes(end, &done, sizeof done);
    }
    end_child(end);
  }
  for (shared.device = 0; shared.device < count; shared.device++) {
    void *ptr;
    EXPECT_SUCCESS(hipSetDevice(shared.device));
    EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
    EXPECT_SUCCESS(hipIpcGetMemHandle(&shared.handle, ptr));
    write_numbers(ptr, shared.device);
    send_bytes(end, &shared, sizeof shared);
    receive_bytes(end, &done, sizeof done);
    expect_numbers(ptr, shared.device);
    EXPECT_SUCCESS(hipFree(ptr));
  }
  wait_for(child, end);
}

static void hipIpcMemAccess_ParameterValidation(void) {
  const unsigned int lazy_peer_access = hipIpcMemLazyEnablePeerAccess;
  hipIpcMemHandle_t handle, empty, noise;
  void *ptr, *other = NULL;
  hipError_t error;
  memset(&empty, 0, sizeof empty);
  memset(&noise, 0xa5, sizeof noise);
  EXPECT_SUCCESS(hipMalloc(&ptr, 1024));
  EXPECT_ERROR(hipIpcGetMemHandle(NULL, ptr), hipErrorInvalidValue);
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, NULL), hipErrorInvalidValue);
  EXPECT_ERROR(hipIpcGetMemHandle(NULL, NULL), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, ptr));
  EXPECT_ERROR(hipIpcOpenMemHandle(NULL, handle, lazy_peer_access), hipErrorInvalidValue);
  error = hipIpcOpenMemHandle(&other, empty, lazy_peer_access);
  CHECK(error == hipErrorInvalidValue || error == hipErrorInvalidDevicePointer);
  error = hipIpcOpenMemHandle(&other, noise, lazy_peer_access);
  CHECK(error == hipErrorInvalidValue || error == hipErrorInvalidDevicePointer);
  EXPECT_ERROR(hipIpcOpenMemHandle(&other, handle, 123), hipErrorInvalidValue);
  EXPECT_ERROR(hipIpcOpenMemHandle(&other, handle, 0), hipErrorInvalidValue);
  CHECK(other == NULL);
  EXPECT_ERROR(hipIpcCloseMemHandle(NULL), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipFree(ptr));
}

CASES(CASE(hipIpcMemAccess_Semaphores), CASE(hipIpcMemAccess_ParameterValidation))
