/* Checks the host's access to mappings. hipMemSetAccess changes it even if no descriptor names the
 * host. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>

#include "../hip_tests/memory.h"

static void expect_host_access(hipDeviceptr_t ptr, hipMemAccessFlags expected) {
  hipMemLocation host;
  unsigned long long flags = ~0ull;
  host.type = hipMemLocationTypeHost;
  host.id = 0;
  EXPECT_SUCCESS(hipMemGetAccess(&flags, &host, ptr));
  CHECK(flags == (unsigned long long)expected);
}

/* Sets the access of the device and of the host. */
static void grant_to_both(hipDeviceptr_t ptr, size_t size, hipMemAccessFlags device,
                          hipMemAccessFlags host) {
  hipMemAccessDesc descs[2];
  descs[0] = access_of(0, device);
  descs[1] = access_of(0, host);
  descs[1].location.type = hipMemLocationTypeHost;
  EXPECT_SUCCESS(hipMemSetAccess(ptr, size, descs, 2));
}

/* Maps new memory at each of two granules. */
static void map_two(hipDeviceptr_t ptr, size_t size) {
  int index;
  for (index = 0; index < 2; index++) {
    hipMemGenericAllocationHandle_t handle = create(0, size);
    EXPECT_SUCCESS(hipMemMap(at(ptr, (size_t)index * size), size, 0, handle, 0));
    EXPECT_SUCCESS(hipMemRelease(handle));
  }
}

static void host_access_is_set_for_each_mapping(void) {
  size_t size = granularity_of(0);
  hipDeviceptr_t first = reserve(2 * size), second = at(first, size);
  map_two(first, size);
  /* In the first mapping, the host keeps the access that a descriptor granted to it. In the second
   * mapping, the host gets the access of the device. */
  grant_to_both(first, size, hipMemAccessFlagsProtReadWrite, hipMemAccessFlagsProtNone);
  grant(first, 2 * size, 0, hipMemAccessFlagsProtReadWrite);
  expect_host_access(first, hipMemAccessFlagsProtNone);
  expect_host_access(second, hipMemAccessFlagsProtReadWrite);
  grant_to_both(first, size, hipMemAccessFlagsProtRead, hipMemAccessFlagsProtReadWrite);
  grant(first, 2 * size, 0, hipMemAccessFlagsProtRead);
  expect_host_access(first, hipMemAccessFlagsProtReadWrite);
  expect_host_access(second, hipMemAccessFlagsProtRead);
  expect_access(first, 0, hipMemAccessFlagsProtRead);
  expect_access(second, 0, hipMemAccessFlagsProtRead);
  EXPECT_SUCCESS(hipMemUnmap(first, 2 * size));
  EXPECT_SUCCESS(hipMemAddressFree(first, 2 * size));
}

static void invalid_range_changes_no_access(void) {
  size_t size = granularity_of(0);
  hipMemAccessDesc desc = access_of(0, hipMemAccessFlagsProtReadWrite);
  hipDeviceptr_t first = reserve(2 * size), second = at(first, size);
  /* Two adjacent reservations. */
  EXPECT_SUCCESS(hipMemAddressFree(first, 2 * size));
  EXPECT_SUCCESS(hsavmm_reserve_at(first, size));
  EXPECT_SUCCESS(hsavmm_reserve_at(second, size));
  map_two(first, size);
  EXPECT_ERROR(hipMemSetAccess(first, 2 * size, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(first, size / 2, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(at(first, size / 2), size / 2, &desc, 1), hipErrorInvalidValue);
  expect_access(first, 0, hipMemAccessFlagsProtNone);
  expect_access(second, 0, hipMemAccessFlagsProtNone);
  unmap_and_free(first, size);
  unmap_and_free(second, size);
}

static hipDeviceptr_t shared_range;
static pthread_barrier_t barrier;

/* Grants a device access: the first device both kinds, the second device only reads. */
static void *grant_to(void *device) {
  int number = *(int *)device;
  hipMemAccessDesc desc = access_of(
      number, number == 0 ? hipMemAccessFlagsProtReadWrite : hipMemAccessFlagsProtRead);
  pthread_barrier_wait(&barrier);
  EXPECT_SUCCESS(hipMemSetAccess(shared_range, granularity_of(0), &desc, 1));
  return NULL;
}

/* In any order of the calls, the host gets the access of the first device, which is the highest. */
static void simultaneous_grants_give_host_highest_access(void) {
  int round;
  need_two_devices();
  CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
  for (round = 0; round < 300; round++) {
    size_t size = granularity_of(0);
    hipMemGenericAllocationHandle_t handle = create(0, size);
    int devices[2] = {0, 1};
    pthread_t thread;
    shared_range = reserve(size);
    EXPECT_SUCCESS(hipMemMap(shared_range, size, 0, handle, 0));
    EXPECT_SUCCESS(hipMemRelease(handle));
    CHECK(pthread_create(&thread, NULL, grant_to, &devices[1]) == 0);
    grant_to(&devices[0]);
    CHECK(pthread_join(thread, NULL) == 0);
    expect_host_access(shared_range, hipMemAccessFlagsProtReadWrite);
    unmap_and_free(shared_range, size);
  }
  CHECK(pthread_barrier_destroy(&barrier) == 0);
}

CASES(CASE(host_access_is_set_for_each_mapping), CASE(invalid_range_changes_no_access),
      CASE(simultaneous_grants_give_host_highest_access))
