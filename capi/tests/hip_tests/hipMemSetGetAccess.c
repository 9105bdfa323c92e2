/* hipMemSetAccess and hipMemGetAccess: permissions, and copies by agents with access. */
#include "memory.h"
#include "process.h"

#include <pthread.h>

static void hipMemSetAccess_SetGet(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size);
  expect_access(ptr, 0, hipMemAccessFlagsProtReadWrite);
  if (device_count() > 1) expect_access(ptr, 1, hipMemAccessFlagsProtNone);
  unmap_and_free(ptr, size);
}

static void hipMemSetAccess_MultDevSetGet(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle;
  hipMemAccessDesc descs[2];
  hipDeviceptr_t ptr;
  need_two_devices();
  handle = create(0, size);
  ptr = reserve(size);
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  EXPECT_SUCCESS(hipMemRelease(handle));
  descs[0] = access_of(0, hipMemAccessFlagsProtReadWrite);
  descs[1] = access_of(1, hipMemAccessFlagsProtReadWrite);
  EXPECT_SUCCESS(hipMemSetAccess(ptr, size, descs, 2));
  expect_access(ptr, 0, hipMemAccessFlagsProtReadWrite);
  expect_access(ptr, 1, hipMemAccessFlagsProtReadWrite);
  unmap_and_free(ptr, size);
}

static void hipMemSetAccess_EntireVMMRangeSetGet(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size);
  expect_access(ptr, 0, hipMemAccessFlagsProtReadWrite);
  expect_access(at(ptr, size - 1), 0, hipMemAccessFlagsProtReadWrite);
  unmap_and_free(ptr, size);
}

static void hipMemGetAccess_NegTst(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size);
  hipMemAccessDesc desc = access_of(0, hipMemAccessFlagsProtReadWrite);
  unsigned long long flags = 0;
  EXPECT_ERROR(hipMemGetAccess(NULL, &desc.location, ptr), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemGetAccess(&flags, NULL, ptr), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemGetAccess(&flags, &desc.location, at(ptr, size)), hipErrorInvalidValue);
  unmap_and_free(ptr, size);
}

/* The original's kernel squares the numbers of each device. This case only writes and reads the numbers. */
static void hipMemSetAccess_FuncTstOnMultDev(void) {
  int device, count = device_count();
  for (device = 0; device < count; device++) {
    size_t size = rounded_size(device, BYTES);
    hipDeviceptr_t ptr = map_new(device, size);
    EXPECT_SUCCESS(hipSetDevice(device));
    write_and_read(ptr, device);
    EXPECT_SUCCESS(hipDeviceSynchronize());
    unmap_and_free(ptr, size);
  }
}

/* In HIP, the host can access memory to which a device has access. The original needs two devices,
 * but tests the devices one by one. */
static void hipMemSetAccess_AccessDirectlyFromHost(void) {
  int device, count = device_count();
  for (device = 0; device < count; device++) {
    size_t size = rounded_size(device, BYTES);
    hipDeviceptr_t ptr = map_new(device, size);
    count_up((int *)ptr, N, 0);
    CHECK(is_counting_up((const int *)ptr, N, 0));
    expect_numbers(ptr, 0);
    unmap_and_free(ptr, size);
  }
}

/* The original checks only on NVIDIA that copies obey permissions. In this library, copies always obey them. */
static void hipMemSetAccess_ChangeAccessProp(void) {
  static int values[N];
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  /* No access, then read and write. */
  grant(ptr, size, 0, hipMemAccessFlagsProtNone);
  EXPECT_ERROR(hipMemcpyHtoD(ptr, values, BYTES), hipErrorInvalidValue);
  grant(ptr, size, 0, hipMemAccessFlagsProtReadWrite);
  write_and_read(ptr, 1);
  /* Read and write, then read. */
  grant(ptr, size, 0, hipMemAccessFlagsProtRead);
  expect_numbers(ptr, 1);
  EXPECT_ERROR(hipMemcpyHtoD(ptr, values, BYTES), hipErrorInvalidValue);
  /* Read, then read and write. */
  grant(ptr, size, 0, hipMemAccessFlagsProtReadWrite);
  write_and_read(ptr, 2);
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_SUCCESS(hipMemRelease(handle));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
}

static void hipMemSetAccess_Vmm2UnifiedMemCpy(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size), other;
  void *source, *result;
  int managed = 0;
  EXPECT_SUCCESS(hipDeviceGetAttribute(&managed, hipDeviceAttributeManagedMemory, 0));
  CHECK(managed == 1);
  EXPECT_SUCCESS(hipMallocManaged(&source, BYTES, hipMemAttachGlobal));
  EXPECT_SUCCESS(hipMallocManaged(&result, BYTES, hipMemAttachGlobal));
  EXPECT_SUCCESS(hipMalloc(&other, BYTES));
  count_up((int *)source, N, 3);
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, source, BYTES));
  EXPECT_SUCCESS(hipMemcpyDtoD(other, ptr, BYTES));
  EXPECT_SUCCESS(hipMemcpyDtoH(result, other, BYTES));
  CHECK(is_counting_up((const int *)result, N, 3));
  EXPECT_SUCCESS(hipFree(other));
  EXPECT_SUCCESS(hipFree(result));
  EXPECT_SUCCESS(hipFree(source));
  unmap_and_free(ptr, size);
}

static void hipMemSetAccess_Vmm2DevMemCpy(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr = map_new(0, size), other;
  write_numbers(ptr, 0);
  EXPECT_SUCCESS(hipMalloc(&other, BYTES));
  EXPECT_SUCCESS(hipMemcpyDtoD(other, ptr, BYTES));
  expect_numbers(other, 0);
  EXPECT_SUCCESS(hipFree(other));
  unmap_and_free(ptr, size);
}

static void need_peer(int peer) {
  int can = 0;
  EXPECT_SUCCESS(hipDeviceCanAccessPeer(&can, 0, peer));
  if (!can) skip("the devices have no peer access");
}

static void hipMemSetAccess_Vmm2PeerDevMemCpy(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr, other;
  int peer, count = device_count();
  need_two_devices();
  ptr = map_new(0, size);
  write_numbers(ptr, 0);
  for (peer = 1; peer < count; peer++) {
    need_peer(peer);
    EXPECT_SUCCESS(hipSetDevice(peer));
    EXPECT_SUCCESS(hipMalloc(&other, BYTES));
    EXPECT_SUCCESS(hipMemcpyDtoD(other, ptr, BYTES));
    expect_numbers(other, 0);
    EXPECT_SUCCESS(hipFree(other));
  }
  unmap_and_free(ptr, size);
}

/* Granting a peer read access does not change the access of other agents: the first device and the host keep
 * their access. */
static void hipMemSetAccess_Vmm2PeerPeerMemCpy(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t ptr, other;
  int peer, count = device_count();
  need_two_devices();
  ptr = map_new(0, size);
  write_numbers(ptr, 0);
  for (peer = 1; peer < count; peer++) {
    need_peer(peer);
    grant(ptr, size, peer, hipMemAccessFlagsProtRead);
    EXPECT_SUCCESS(hipSetDevice(peer));
    EXPECT_SUCCESS(hipMalloc(&other, BYTES));
    EXPECT_SUCCESS(hipMemcpyPeer(other, peer, ptr, 0, BYTES));
    expect_numbers(other, 0);
    EXPECT_SUCCESS(hipFree(other));
    expect_access(ptr, 0, hipMemAccessFlagsProtReadWrite);
    expect_access(ptr, peer, hipMemAccessFlagsProtRead);
  }
  count_up((int *)ptr, N, 7);
  expect_numbers(ptr, 7);
  unmap_and_free(ptr, size);
}

static void hipMemSetAccess_Vmm2VMMMemCpy(void) {
  size_t size = rounded_size(0, BYTES);
  hipDeviceptr_t source = map_new(0, size), target = map_new(0, size);
  write_numbers(source, 0);
  EXPECT_SUCCESS(hipMemcpyDtoD(target, source, BYTES));
  expect_numbers(target, 0);
  unmap_and_free(source, size);
  unmap_and_free(target, size);
}

/* The original maps the first device's memory again for the peer by a released handle, which HIP accepts. It also
 * creates memory of the peer, and never uses this memory. This library rejects a released handle, so this case retains
 * the handle by the address of the mapping. This case also copies to the peer's own memory. */
static void hipMemSetAccess_Vmm2VMMInterDevMemCpy(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t released, retained;
  hipDeviceptr_t ptr;
  int peer, count = device_count();
  need_two_devices();
  released = create(0, size);
  ptr = reserve(size);
  map_and_grant(ptr, size, released, 0);
  EXPECT_SUCCESS(hipMemRelease(released));
  write_numbers(ptr, 0);
  for (peer = 1; peer < count; peer++) {
    hipDeviceptr_t alias = reserve(size), own;
    size_t own_size = rounded_size(peer, BYTES);
    need_peer(peer);
    EXPECT_SUCCESS(hipSetDevice(peer));
    EXPECT_ERROR(hipMemMap(alias, size, 0, released, 0), hipErrorInvalidValue);
    EXPECT_SUCCESS(hipMemRetainAllocationHandle(&retained, ptr));
    map_and_grant(alias, size, retained, peer);
    EXPECT_SUCCESS(hipMemRelease(retained));
    EXPECT_SUCCESS(hipMemcpyPeer(alias, peer, ptr, 0, BYTES));
    expect_numbers(alias, 0);
    own = map_new(peer, own_size);
    EXPECT_SUCCESS(hipMemcpyPeer(own, peer, ptr, 0, BYTES));
    expect_numbers(own, 0);
    unmap_and_free(alias, size);
    unmap_and_free(own, own_size);
  }
  unmap_and_free(ptr, size);
}

/* Maps memory of all devices in one range. Each device can access only its own memory. Each copy covers the
 * whole range. */
static void hipMemSetAccess_MapPhysChksFromMulDev(void) {
  int device, count = device_count();
  size_t size = 0, all;
  hipDeviceptr_t ptr;
  int *values;
  for (device = 0; device < count; device++) {
    if (rounded_size(device, BYTES) > size) size = rounded_size(device, BYTES);
  }
  all = (size_t)count * size;
  values = (int *)malloc(all);
  CHECK(values != NULL);
  ptr = reserve(all);
  for (device = 0; device < count; device++) {
    hipDeviceptr_t part = at(ptr, (size_t)device * size);
    hipMemGenericAllocationHandle_t handle = create(device, size);
    map_and_grant(part, size, handle, device);
    EXPECT_SUCCESS(hipMemRelease(handle));
  }
  count_up(values, (int)(all / sizeof(int)), 0);
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, all));
  memset(values, 0, all);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, all));
  CHECK(is_counting_up(values, (int)(all / sizeof(int)), 0));
  for (device = 0; device < count; device++) {
    EXPECT_SUCCESS(hipMemUnmap(at(ptr, (size_t)device * size), size));
  }
  EXPECT_SUCCESS(hipMemAddressFree(ptr, all));
  free(values);
}

/* Grows memory: in a larger range, maps the old handle first, and a new handle after it. One call sets the
 * access to both mappings, and one call unmaps both. */
static void hipMemSetAccess_GrowVMM(void) {
  static int values[2 * N];
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t first = create(0, size), second = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  CHECK(size == BYTES);
  map_and_grant(ptr, size, first, 0);
  write_numbers(ptr, 0);
  unmap_and_free(ptr, size);
  ptr = reserve(2 * size);
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, first, 0));
  EXPECT_SUCCESS(hipMemMap(at(ptr, size), size, 0, second, 0));
  grant(ptr, 2 * size, 0, hipMemAccessFlagsProtReadWrite);
  write_numbers(at(ptr, size), N);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, sizeof values));
  CHECK(is_counting_up(values, 2 * N, 0));
  EXPECT_SUCCESS(hipMemRelease(first));
  EXPECT_SUCCESS(hipMemRelease(second));
  unmap_and_free(ptr, 2 * size);
}

/* Creates, maps, unmaps and releases memory. While the memory is mapped, copies consecutive numbers, the first of which
 * is `first`, to the memory and back. */
static void *map_write_read(void *first) {
  int values[N];
  int first_number = (int)(intptr_t)first;
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  map_and_grant(ptr, size, handle, 0);
  count_up(values, N, first_number);
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, BYTES));
  memset(values, 0, sizeof values);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, BYTES));
  CHECK(is_counting_up(values, N, first_number));
  EXPECT_SUCCESS(hipMemRelease(handle));
  unmap_and_free(ptr, size);
  return NULL;
}

static void hipMemSetAccess_Multithreaded(void) {
  pthread_t threads[5];
  intptr_t index;
  for (index = 0; index < 5; index++) {
    CHECK(pthread_create(&threads[index], NULL, map_write_read, (void *)(index * N)) == 0);
  }
  for (index = 0; index < 5; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

/* The parent and a child, forked before the runtime is open, use memory of their own runtimes. */
static void hipMemSetAccess_MultiProc(void) {
  int end;
  pid_t child = fork_child(&end);
  map_write_read(NULL);
  if (child == 0) end_child(end);
  wait_for(child, end);
}

/* Checks that invalid calls of hipMemSetAccess fail for `ptr`, which is a mapping or another address. */
static void expect_invalid_calls_fail(hipDeviceptr_t ptr, size_t size) {
  const hipMemAccessDesc good = access_of(0, hipMemAccessFlagsProtReadWrite);
  hipMemAccessDesc desc = good;
  EXPECT_ERROR(hipMemSetAccess(ptr, 0, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(ptr, size + 1, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(ptr, size - 1, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(ptr, size, NULL, 1), hipErrorInvalidValue);
  desc.location.type = hipMemLocationTypeInvalid;
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 1), hipErrorInvalidValue);
  desc = good;
  desc.location.id = -1;
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 1), hipErrorInvalidValue);
  desc.location.id = device_count();
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 1), hipErrorInvalidValue);
  desc = good;
  desc.flags = (hipMemAccessFlags)-1;
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 1), hipErrorInvalidValue);
  /* Write-only access. */
  desc.flags = (hipMemAccessFlags)2;
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 1), hipErrorInvalidValue);
}

/* The original passes the address of a local variable, for which every call fails anyway. This case also passes a
 * mapping. */
static void hipMemSetAccess_negative(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipMemAccessDesc desc = access_of(0, hipMemAccessFlagsProtReadWrite);
  hipDeviceptr_t ptr = reserve(size), empty = reserve(size);
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  expect_invalid_calls_fail(&ptr, size);
  expect_invalid_calls_fail(ptr, size);
  expect_access(ptr, 0, hipMemAccessFlagsProtNone);
  EXPECT_ERROR(hipMemSetAccess(NULL, size, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(&ptr, size, &desc, 1), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemSetAccess(empty, size, &desc, 1), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemSetAccess(ptr, size, &desc, 1));
  EXPECT_SUCCESS(hipMemUnmap(ptr, size));
  EXPECT_ERROR(hipMemSetAccess(ptr, size, &desc, 1), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemAddressFree(empty, size));
  EXPECT_SUCCESS(hipMemAddressFree(ptr, size));
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* Grants access to the host, and to no device at first (in hip-tests since 2026). */
static void hipMemSetAccessHost_devicealloc(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle = create(0, size);
  hipDeviceptr_t ptr = reserve(size);
  hipMemAccessDesc desc = access_of(0, hipMemAccessFlagsProtReadWrite);
  desc.location.type = hipMemLocationTypeHost;
  EXPECT_SUCCESS(hipMemMap(ptr, size, 0, handle, 0));
  EXPECT_SUCCESS(hipMemSetAccess(ptr, size, &desc, 1));
  count_up((int *)ptr, N, 4);
  expect_access(ptr, 0, hipMemAccessFlagsProtNone);
  grant(ptr, size, 0, hipMemAccessFlagsProtRead);
  expect_numbers(ptr, 4);
  /* The host keeps the access that it was granted by name. */
  count_up((int *)ptr, N, 5);
  expect_numbers(ptr, 5);
  EXPECT_SUCCESS(hipMemRelease(handle));
  unmap_and_free(ptr, size);
}

CASES(CASE(hipMemSetAccess_SetGet), CASE(hipMemSetAccess_MultDevSetGet),
      CASE(hipMemSetAccess_EntireVMMRangeSetGet), CASE(hipMemGetAccess_NegTst),
      CASE(hipMemSetAccess_FuncTstOnMultDev), CASE(hipMemSetAccess_AccessDirectlyFromHost),
      CASE(hipMemSetAccess_ChangeAccessProp), CASE(hipMemSetAccess_Vmm2UnifiedMemCpy),
      CASE(hipMemSetAccess_Vmm2DevMemCpy), CASE(hipMemSetAccess_Vmm2PeerDevMemCpy),
      CASE(hipMemSetAccess_Vmm2PeerPeerMemCpy), CASE(hipMemSetAccess_Vmm2VMMMemCpy),
      CASE(hipMemSetAccess_Vmm2VMMInterDevMemCpy), CASE(hipMemSetAccess_MapPhysChksFromMulDev),
      CASE(hipMemSetAccess_GrowVMM), CASE(hipMemSetAccess_Multithreaded),
      CASE(hipMemSetAccess_MultiProc), CASE(hipMemSetAccess_negative),
      CASE(hipMemSetAccessHost_devicealloc))
