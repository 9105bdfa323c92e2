/*
 * Helpers of most cases: create, map, write and read N ints of device memory.
 */
#ifndef HIP_TESTS_MEMORY_H
#define HIP_TESTS_MEMORY_H

#include "case.h"

/* The number of ints that the originals use. */
enum { N = 1 << 13 };
#define BYTES ((size_t)N * sizeof(int))

static inline int device_count(void) {
  int count = 0;
  EXPECT_SUCCESS(hipGetDeviceCount(&count));
  CHECK(count > 0);
  return count;
}

static inline void need_two_devices(void) {
  if (device_count() < 2) skip("needs two devices");
}

/* Returns the properties of pinned memory on a device, which must support virtual memory management. */
static inline hipMemAllocationProp properties_of(int number) {
  hipMemAllocationProp prop;
  hipDevice_t device;
  int supported = 0;
  EXPECT_SUCCESS(hipDeviceGet(&device, number));
  EXPECT_SUCCESS(hipDeviceGetAttribute(
      &supported, hipDeviceAttributeVirtualMemoryManagementSupported, device));
  CHECK(supported == 1);
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  prop.location.id = device;
  return prop;
}

static inline hipMemAllocationProp shareable_properties_of(int device) {
  hipMemAllocationProp prop = properties_of(device);
  prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  return prop;
}

static inline size_t granularity_of(int device) {
  hipMemAllocationProp prop = properties_of(device);
  size_t granularity = 0;
  EXPECT_SUCCESS(
      hipMemGetAllocationGranularity(&granularity, &prop, hipMemAllocationGranularityMinimum));
  CHECK(granularity > 0);
  return granularity;
}

/* Returns a size, rounded up to whole granules of a device. */
static inline size_t rounded_size(int device, size_t bytes) {
  size_t granularity = granularity_of(device);
  return (bytes + granularity - 1) / granularity * granularity;
}

static inline hipMemGenericAllocationHandle_t create_with(hipMemAllocationProp prop, size_t size) {
  hipMemGenericAllocationHandle_t handle;
  EXPECT_SUCCESS(hipMemCreate(&handle, size, &prop, 0));
  return handle;
}

static inline hipMemGenericAllocationHandle_t create(int device, size_t size) {
  return create_with(properties_of(device), size);
}

static inline hipDeviceptr_t reserve(size_t size) {
  hipDeviceptr_t ptr = NULL;
  EXPECT_SUCCESS(hipMemAddressReserve(&ptr, size, 0, 0, 0));
  CHECK(ptr != NULL);
  return ptr;
}

static inline hipDeviceptr_t at(hipDeviceptr_t ptr, size_t offset) {
  return (char *)ptr + offset;
}

static inline hipMemAccessDesc access_of(int device, hipMemAccessFlags flags) {
  hipMemAccessDesc desc;
  desc.location.type = hipMemLocationTypeDevice;
  desc.location.id = device;
  desc.flags = flags;
  return desc;
}

static inline void grant(hipDeviceptr_t ptr, size_t size, int device, hipMemAccessFlags flags) {
  hipMemAccessDesc desc = access_of(device, flags);
  EXPECT_SUCCESS(hipMemSetAccess(ptr, size, &desc, 1));
}

static inline void expect_access(hipDeviceptr_t ptr, int device, hipMemAccessFlags expected) {
  hipMemAccessDesc desc = access_of(device, expected);
  unsigned long long flags = ~0ull;
  EXPECT_SUCCESS(hipMemGetAccess(&flags, &desc.location, ptr));
  CHECK(flags == (unsigned long long)expected);
}

static inline void map_and_grant(hipDeviceptr_t ptr, size_t size,
                                 hipMemGenericAllocationHandle_t handle, int device) {
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  grant(ptr, size, device, hipMemAccessFlagsProtReadWrite);
}

/* Maps new memory of a device at new addresses. Releases the handle, so only the mapping keeps the memory allocated. */
static inline hipDeviceptr_t map_new(int device, size_t size) {
  hipMemGenericAllocationHandle_t handle = create(device, size);
  hipDeviceptr_t ptr = reserve(size);
  map_and_grant(ptr, size, handle, device);
  EXPECT_SUCCESS(hipMemRelease(handle));
  return ptr;
}

static inline void unmap_and_free(hipDeviceptr_t ptr, size_t size) {
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

/* Sets the values to `first`, `first + 1` and so on. */
static inline void count_up(int *values, int count, int first) {
  int index;
  for (index = 0; index < count; index++) values[index] = first + index;
}

static inline int is_counting_up(const int *values, int count, int first) {
  int index = 0;
  while (index < count && values[index] == first + index) index++;
  return index == count;
}

static inline void write_numbers(hipDeviceptr_t ptr, int first) {
  static int values[N];
  count_up(values, N, first);
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, BYTES));
}

static inline void expect_numbers(hipDeviceptr_t ptr, int first) {
  static int values[N];
  memset(values, 0xa5, sizeof values);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, BYTES));
  CHECK(is_counting_up(values, N, first));
}

static inline void write_and_read(hipDeviceptr_t ptr, int first) {
  write_numbers(ptr, first);
  expect_numbers(ptr, first);
}

#endif
