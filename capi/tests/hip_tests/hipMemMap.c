/* hipMemMap: the same memory at many addresses, many handles at one address, parts of handles, and parts of
 * reservations. The kernels of the originals run only on NVIDIA. */
#include "memory.h"

enum { BUFFERS = 3 };

static void hipMemMap_SameMemoryReuse(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  int round;
  for (round = 0; round < 20; round++) {
    map_and_grant(ptr, size, handle, 0);
    /* The contents of the previous round are still there. */
    if (round > 0) expect_numbers(ptr, round - 1);
    write_and_read(ptr, round);
    EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  }
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

static void hipMemMap_PhysicalMemoryReuse_SingleGPU(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptrs[BUFFERS];
  int buffer;
  for (buffer = 0; buffer < BUFFERS; buffer++) ptrs[buffer] = reserve(size);
  for (buffer = 0; buffer < BUFFERS; buffer++) {
    map_and_grant(ptrs[buffer], size, handle, 0);
    write_and_read(ptrs[buffer], buffer);
    EXPECT_SUCCESS(hipMemUnmap(ptrs[buffer], size));
  }
  EXPECT_SUCCESS(hipMemRelease(handle));
  for (buffer = 0; buffer < BUFFERS; buffer++) {
    EXPECT_SUCCESS(hipMemAddressFree(ptrs[buffer], size));
  }
}

static void hipMemMap_PhysicalMemory_Map2MultVMMs(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptrs[BUFFERS];
  int buffer;
  for (buffer = 0; buffer < BUFFERS; buffer++) {
    ptrs[buffer] = reserve(size);
    map_and_grant(ptrs[buffer], size, handle, 0);
  }
  write_numbers(ptrs[0], 0);
  for (buffer = 0; buffer < BUFFERS; buffer++) expect_numbers(ptrs[buffer], 0);
  EXPECT_SUCCESS(hipMemRelease(handle));
  for (buffer = 0; buffer < BUFFERS; buffer++) unmap_and_free(ptrs[buffer], size);
}

/* Maps the memory of each device with access for one device at a time. */
static void hipMemMap_PhysicalMemoryReuse_MultiDev(void) {
  int owner, user, count = device_count();
  need_two_devices();
  for (owner = 0; owner < count; owner++) {
    size_t size = rounded_size(owner, BYTES);
    hipMemGenericAllocationHandle_t handle = create(owner, size);
    for (user = 0; user < count; user++) {
      hipDeviceptr_t ptr = reserve(size);
      EXPECT_SUCCESS(hipSetDevice(user));
      map_and_grant(ptr, size, handle, user);
      write_and_read(ptr, owner + 2 * user);
      unmap_and_free(ptr, size);
    }
    EXPECT_SUCCESS(hipSetDevice(0));
    EXPECT_SUCCESS(hipMemRelease(handle));
  }
}

static void hipMemMap_VMMMemoryReuse_SingleGPU(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handles[BUFFERS];
  hipDeviceptr_t ptr = reserve(size);
  int buffer;
  for (buffer = 0; buffer < BUFFERS; buffer++) handles[buffer] = create(0, size);
  for (buffer = 0; buffer < BUFFERS; buffer++) {
    map_and_grant(ptr, size, handles[buffer], 0);
    write_and_read(ptr, buffer);
    EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  }
  for (buffer = 0; buffer < BUFFERS; buffer++) EXPECT_SUCCESS(hipMemRelease(handles[buffer]));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

/* First each device accesses its own memory, then the first device accesses all memory. */
static void hipMemMap_VMMMemoryReuse_MultiGPU(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = reserve(size);
  int device, by_first_device, count = device_count();
  need_two_devices();
  for (by_first_device = 0; by_first_device <= 1; by_first_device++) {
    for (device = 0; device < count; device++) {
      hipMemGenericAllocationHandle_t handle = create(device, size);
      EXPECT_SUCCESS(hipSetDevice(by_first_device ? 0 : device));
      map_and_grant(ptr, size, handle, by_first_device ? 0 : device);
      write_and_read(ptr, device);
      EXPECT_SUCCESS(hipMemUnmap(ptr, size));
      EXPECT_SUCCESS(hipMemRelease(handle));
    }
  }
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

static void hipMemMap_MapPartialPhysicalMem(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, 2 * size);
  hipDeviceptr_t ptr = reserve(size);
  map_and_grant(ptr, size, handle, 0);
  write_and_read(ptr, 0);
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

static void hipMemMap_MapPartialVMMMem(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(2 * size);
  map_and_grant(ptr, size, handle, 0);
  write_and_read(ptr, 0);
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, 2 * size));
}

/* The original passes the address of a local variable, which is not a reservation. This case also tests a
 * reservation. */
static void hipMemMap_negative(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  EXPECT_ERROR(hipMemMap(NULL, size, 0, handle, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(&ptr, 0, 0, handle, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(&ptr, size, (size_t)-1, handle, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(&ptr, size, 0, handle, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(ptr, 0, 0, handle, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(ptr, size, (size_t)-1, handle, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(ptr, size, 0, NULL, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(ptr, size, 0, handle, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemMap(ptr, 2 * size, 0, handle, 0), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

CASES(CASE(hipMemMap_SameMemoryReuse), CASE(hipMemMap_PhysicalMemoryReuse_SingleGPU),
      CASE(hipMemMap_PhysicalMemory_Map2MultVMMs), CASE(hipMemMap_PhysicalMemoryReuse_MultiDev),
      CASE(hipMemMap_VMMMemoryReuse_SingleGPU), CASE(hipMemMap_VMMMemoryReuse_MultiGPU),
      CASE(hipMemMap_MapPartialPhysicalMem), CASE(hipMemMap_MapPartialVMMMem),
      CASE(hipMemMap_negative))
