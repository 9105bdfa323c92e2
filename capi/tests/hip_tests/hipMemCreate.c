/* hipMemCreate: physical memory, its lifetime, and invalid calls. hipMemCreate_ChkWithKerLaunch is
 * omitted: it is hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPreUse with the launch of a kernel. */
#include "memory.h"

static void hipMemCreate_BasicAllocateDeAlloc_MultGranularity(void) {
  size_t granularity = granularity_of(0), multiple;
  for (multiple = 1; multiple < 64; multiple++) {
    EXPECT_SUCCESS(hipMemRelease(create(0, granularity * multiple)));
  }
}

static void hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPostUnmap(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  map_and_grant(ptr, size, handle, 0);
  write_and_read(ptr, 0);
  unmap_and_free(ptr, size);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* A mapping keeps the memory allocated after the handle is released. */
static void hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPreUse(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  EXPECT_SUCCESS(hipMemRelease(handle));
  grant(ptr, size, 0, hipMemAccessFlagsProtReadWrite);
  write_and_read(ptr, 0);
  unmap_and_free(ptr, size);
}

/* The original's kernel squares the numbers. Here, the host squares them. One copy covers the mappings of three
 * handles. */
static void hipMemCreate_MapNonContiguousChunks(void) {
  enum { CHUNKS = 3 };
  static int values[CHUNKS * N];
  /* A chunk is exactly as large as its ints, so that the ints are contiguous. */
  size_t size = rounded_size(0, BYTES), chunk;
  size_t all = CHUNKS * size;
  hipDeviceptr_t ptr;
  int index;
  CHECK(size == BYTES);
  ptr = reserve(all);
  for (chunk = 0; chunk < CHUNKS; chunk++) {
    hipMemGenericAllocationHandle_t handle = create(0, size);
    EXPECT_SUCCESS(hipMemMap(at(ptr, (chunk + 1) % CHUNKS * size), size, 0, handle, 0));
    EXPECT_SUCCESS(hipMemRelease(handle));
  }
  grant(ptr, all, 0, hipMemAccessFlagsProtReadWrite);
  count_up(values, CHUNKS * N, 0);
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, sizeof values));
  memset(values, 0, sizeof values);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, sizeof values));
  for (index = 0; index < CHUNKS * N; index++) values[index] *= values[index];
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, sizeof values));
  memset(values, 0, sizeof values);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, sizeof values));
  for (index = 0; index < CHUNKS * N; index++) CHECK(values[index] == index * index);
  for (chunk = 0; chunk < CHUNKS; chunk++) {
    EXPECT_SUCCESS(hipMemUnmap(at(ptr, chunk * size), size));
  }
  EXPECT_SUCCESS(hipMemAddressFree(ptr, all));
}

/* The original compares ints with the value of a byte, and can therefore only use 0. */
static void hipMemCreate_ChkWithMemset(void) {
  static unsigned char bytes[N * sizeof(int)];
  size_t size = rounded_size(0, BYTES), index;
  hipDeviceptr_t ptr = map_new(0, size);
  int value;
  for (value = 0; value <= 0x5a; value += 0x5a) {
    EXPECT_SUCCESS(hipMemset(ptr, value, BYTES));
    memset(bytes, 0xff, sizeof bytes);
    EXPECT_SUCCESS(hipMemcpyDtoH(bytes, ptr, BYTES));
    for (index = 0; index < BYTES; index++) CHECK(bytes[index] == value);
  }
  unmap_and_free(ptr, size);
}

static void hipMemCreate_Negative(void) {
  size_t granularity = granularity_of(0);
  hipMemGenericAllocationHandle_t handle;
  const hipMemAllocationProp good = properties_of(0);
  hipMemAllocationProp prop = good;
  hipError_t no_device = by_profile(hipErrorInvalidValue, hipErrorInvalidDevice);
  EXPECT_ERROR(hipMemCreate(NULL, granularity, &prop, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemCreate(&handle, granularity, NULL, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemCreate(&handle, 0, &prop, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemCreate(&handle, granularity - 1, &prop, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 1), hipErrorInvalidValue);
  prop.type = hipMemAllocationTypeInvalid;
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 0), hipErrorInvalidValue);
  prop.type = hipMemAllocationTypeManaged;
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 0), hipErrorInvalidValue);
  prop.type = hipMemAllocationTypeMax;
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 0), hipErrorInvalidValue);
  prop = good;
  prop.location.type = hipMemLocationTypeInvalid;
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 0), hipErrorInvalidValue);
  prop = good;
  prop.location.id = -1;
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 0), no_device);
  prop.location.id = device_count();
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 0), no_device);
  /* The size and the flags are checked before the device. The original lacks these two. */
  EXPECT_ERROR(hipMemCreate(&handle, 0, &prop, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemCreate(&handle, granularity, &prop, 1), hipErrorInvalidValue);
}

CASES(CASE(hipMemCreate_BasicAllocateDeAlloc_MultGranularity),
      CASE(hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPostUnmap),
      CASE(hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPreUse),
      CASE(hipMemCreate_MapNonContiguousChunks), CASE(hipMemCreate_ChkWithMemset),
      CASE(hipMemCreate_Negative))
