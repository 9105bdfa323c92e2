/* hipMemSetAccess grants the host access to memory of another process (in hip-tests since 2026). */
#include "process.h"
#include "shareable.h"

/* Forks a child that imports and maps memory of a device, grants the host access and calls `act`.
 * `act` must write the numbers 1, 2 and so on to the memory. */
static void import_in_child(int device, void (*act)(hipDeviceptr_t ptr, size_t size)) {
  hipMemGenericAllocationHandle_t handle;
  hipDeviceptr_t ptr;
  int end;
  pid_t child = fork_child(&end);
  size_t size;
  int descriptor;
  if (child == 0) {
    hipMemAccessDesc desc = access_of(0, hipMemAccessFlagsProtReadWrite);
    desc.location.type = hipMemLocationTypeHost;
    descriptor = receive_descriptor(end, &size);
    handle = import_descriptor(descriptor);
    CHECK(close(descriptor) == 0);
    ptr = reserve(size);
    EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
    EXPECT_SUCCESS(hipMemSetAccess(ptr, size, &desc, 1));
    CHECK(is_counting_up((const int *)ptr, N, 0));
    act(ptr, size);
    EXPECT_SUCCESS(hipMemRelease(handle));
    unmap_and_free(ptr, size);
    end_child(end);
  }
  if (device >= device_count()) device = 0;
  size = rounded_size(device, BYTES);
  handle = create_shareable(device, size);
  ptr = reserve(size);
  map_and_grant(ptr, size, handle, device);
  write_numbers(ptr, 0);
  descriptor = export_handle(handle);
  send_descriptor(end, descriptor, size);
  CHECK(close(descriptor) == 0);
  wait_for(child, end);
  expect_numbers(ptr, 1);
  EXPECT_SUCCESS(hipMemRelease(handle));
  unmap_and_free(ptr, size);
}

static void write_by_host(hipDeviceptr_t ptr, size_t size) {
  (void)size;
  count_up((int *)ptr, N, 1);
}

/* Uses the second device's memory, if there is one: HIP failed if the memory was not the first device's. */
static void hipMemSetAccess_MulProc_ImportedDeviceMem_HostAccess(void) {
  import_in_child(1, write_by_host);
}

/* The host writes numbers, the device fills the memory, and the host writes numbers again. */
static void write_by_both(hipDeviceptr_t ptr, size_t size) {
  const int pattern = (int)0xdeadbeef;
  const int *values = (const int *)ptr;
  int index;
  grant(ptr, size, 0, hipMemAccessFlagsProtReadWrite);
  count_up((int *)ptr, N, 2);
  EXPECT_SUCCESS(hipMemsetD32(ptr, pattern, N));
  EXPECT_SUCCESS(hipDeviceSynchronize());
  for (index = 0; index < N; index++) CHECK(values[index] == pattern);
  count_up((int *)ptr, N, 1);
  expect_numbers(ptr, 1);
}

static void hipMemSetAccess_MulProc_ImportedDeviceMem_HostThenDeviceAccess(void) {
  import_in_child(0, write_by_both);
}

CASES(CASE(hipMemSetAccess_MulProc_ImportedDeviceMem_HostAccess),
      CASE(hipMemSetAccess_MulProc_ImportedDeviceMem_HostThenDeviceAccess))
