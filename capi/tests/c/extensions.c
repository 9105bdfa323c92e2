/* Calls the functions of hsavmm.h, except those of retire queues (retire.c), with valid and invalid arguments. */
#define _DEFAULT_SOURCE
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)
#define EXPECT_FAILURE(call, code, word) \
  (EXPECT((call) == (code)), EXPECT(strstr(hsavmm_last_message(), word) != NULL))

static const hipMemLocation locations[2] = {{hipMemLocationTypeDevice, 0}, {hipMemLocationTypeHost, 0}};

static void test_runtime(void) {
  hsavmm_runtime_info info;
  OK(hsavmm_runtime(&info));
  EXPECT(info.virtual_memory == 1 && info.extension_major == 1 && info.name[0] != '\0');
  EXPECT_FAILURE(hsavmm_runtime(NULL), hipErrorInvalidValue, "`info` is null");
  /* The runtime is open already. */
  EXPECT_FAILURE(hsavmm_use_runtime("sim"), hipErrorSetOnActiveProcess, "hsavmm_shut_down");
  EXPECT_FAILURE(hsavmm_use_simulation("gpus=3"), hipErrorSetOnActiveProcess, "hsavmm_shut_down");
  EXPECT_FAILURE(hsavmm_use_simulation("gpus=many"), hipErrorInvalidValue,
                 "`configuration` is invalid: ");
  EXPECT_FAILURE(hsavmm_use_profile(7), hipErrorSetOnActiveProcess, "hsavmm_shut_down");
  EXPECT_FAILURE(hsavmm_use_profile(5), hipErrorInvalidValue, "6 and 7");
  EXPECT_FAILURE(hsavmm_use_page_tables(1), hipErrorSetOnActiveProcess, "hsavmm_shut_down");
}

static void test_virtual_memory(size_t granule) {
  void *taken, *other;
  OK(hipMemAddressReserve(&taken, granule, 0, NULL, 0));
  EXPECT_FAILURE(hsavmm_reserve_at(taken, granule), hipErrorInvalidValue, "hsavmm_reserve_at");
  OK(hipMemAddressFree(taken, granule));
  /* No other thread of this program maps memory, so the addresses are still free. */
  OK(hsavmm_reserve_at(taken, granule));
  OK(hipMemAddressFree(taken, granule));
  EXPECT_FAILURE(hsavmm_reserve_at(NULL, granule), hipErrorInvalidValue, "null");

  hipMemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = locations[0];
  hipMemGenericAllocationHandle_t handle;
  OK(hipMemAddressReserve(&other, granule, 0, NULL, 0));
  OK(hipMemCreate(&handle, granule, &prop, 0));
  OK(hipMemMap(other, granule, 0, handle, 0));
  hipMemAccessDesc desc;
  desc.location = locations[0];
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemSetAccess(other, granule, &desc, 1));
  unsigned long long flags = 9;
  OK(hipMemGetAccess(&flags, &locations[0], other));
  EXPECT(flags == 3);
  OK(hsavmm_revoke(other, granule, locations, 2));
  OK(hipMemGetAccess(&flags, &locations[0], other));
  EXPECT(flags == 0);
  EXPECT(hipMemset(other, 1, granule) == hipErrorInvalidValue);
  EXPECT_FAILURE(hsavmm_revoke(other, granule, locations, 0), hipErrorInvalidValue, "revoke");
  EXPECT_FAILURE(hsavmm_revoke(other, granule, NULL, 1), hipErrorInvalidValue, "null");
  int enforced = 9;
  OK(hsavmm_enforcement(&enforced, &locations[0]));
  EXPECT(enforced == 0);
  OK(hsavmm_enforcement(&enforced, &locations[1]));
  EXPECT(enforced == 1);

  hsavmm_usage usage;
  OK(hsavmm_count(&usage));
  EXPECT(usage.reservations == 1 && usage.handles == 1 && usage.mappings == 1);
  OK(hipMemUnmap(other, granule));
  OK(hipMemRelease(handle));
  OK(hipMemAddressFree(other, granule));
  OK(hsavmm_count(&usage));
  EXPECT(usage.reservations + usage.handles + usage.mappings + usage.quarantined == 0);
  hsavmm_quarantined list[1];
  size_t count = 1;
  OK(hsavmm_quarantine(list, &count));
  EXPECT(count == 0);
  OK(hsavmm_check());
}

static void test_batches(size_t granule) {
  char *one, *other;
  void *ptr;
  OK(hipMemAddressReserve(&ptr, 2 * granule, 0, NULL, 0));
  one = (char *)ptr;
  OK(hipMemAddressReserve(&ptr, granule, 0, NULL, 0));
  other = (char *)ptr;
  hipMemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = locations[0];
  hipMemGenericAllocationHandle_t handle;
  OK(hipMemCreate(&handle, granule, &prop, 0));
  hipMemAccessDesc desc[2];
  int index;
  for (index = 0; index < 2; ++index) {
    desc[index].location = locations[index];
    desc[index].flags = hipMemAccessFlagsProtReadWrite;
  }
  hsavmm_mapping mappings[3];
  hsavmm_range ranges[2];
  mappings[0].ptr = other;
  mappings[1].ptr = one;
  mappings[2].ptr = one + granule;
  for (index = 0; index < 3; ++index) {
    mappings[index].size = granule;
    mappings[index].handle = handle;
  }
  hsavmm_usage usage;
  /* If one entry is invalid, no mapping is created. */
  mappings[2].ptr = one;
  EXPECT_FAILURE(hsavmm_map_many(mappings, 3, desc, 2), hipErrorInvalidValue, ": mappings 0x");
  mappings[2].ptr = one + 2 * granule;
  EXPECT_FAILURE(hsavmm_map_many(mappings, 3, desc, 2), hipErrorInvalidValue, "reservation");
  EXPECT_FAILURE(hsavmm_map_many(mappings, 0, desc, 2), hipErrorInvalidValue, "mappings is empty");
  EXPECT_FAILURE(hsavmm_map_many(NULL, 1, desc, 2), hipErrorInvalidValue, "`mappings` is null");
  OK(hsavmm_count(&usage));
  EXPECT(usage.mappings == 0);
  mappings[2].ptr = one + granule;
  OK(hsavmm_map_many(mappings, 3, NULL, 0));
  unsigned long long flags = 9;
  OK(hipMemGetAccess(&flags, &locations[0], other));
  EXPECT(flags == 0);
  ranges[0].ptr = one;
  ranges[0].size = 2 * granule;
  ranges[1].ptr = other;
  ranges[1].size = granule;
  EXPECT_FAILURE(hsavmm_set_access_many(ranges, 2, NULL, 2), hipErrorInvalidValue, "`desc` is null");
  OK(hsavmm_set_access_many(ranges, 2, desc, 1));
  OK(hipMemGetAccess(&flags, &locations[0], one + granule));
  EXPECT(flags == 3);
  OK(hsavmm_unmap_many(ranges, 2));
  EXPECT_FAILURE(hsavmm_unmap_many(ranges, 2), hipErrorInvalidValue, "not mapped");
  OK(hsavmm_map_many(mappings, 3, desc, 2));
  OK(hipMemsetD8(other, 5, 1));
  EXPECT(one[0] == 5 && one[granule] == 5);
  ranges[0].size = granule;
  OK(hsavmm_unmap_many(ranges, 2));
  OK(hsavmm_count(&usage));
  EXPECT(usage.mappings == 1);
  ranges[0].ptr = one + granule;
  OK(hsavmm_unmap_many(ranges, 1));
  OK(hipMemRelease(handle));
  OK(hipMemAddressFree(one, 2 * granule));
  OK(hipMemAddressFree(other, granule));
}

/* Maps the two granules of a handle in reverse order. Expects an error if the library does not
 * control page tables (`controlled` is 0). */
static void test_parts(size_t granule, int controlled) {
  void *ptr;
  OK(hipMemAddressReserve(&ptr, 4 * granule, 0, NULL, 0));
  char *whole = (char *)ptr, *swapped = whole + 2 * granule;
  hipMemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = locations[0];
  hipMemGenericAllocationHandle_t handle;
  OK(hipMemCreate(&handle, 2 * granule, &prop, 0));
  OK(hipMemMap(whole, 2 * granule, 0, handle, 0));
  hipMemAccessDesc desc;
  desc.location = locations[0];
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemSetAccess(whole, 2 * granule, &desc, 1));
  OK(hipMemsetD8(whole, 1, granule));
  OK(hipMemsetD8(whole + granule, 2, granule));
  hsavmm_part list[2];
  int index;
  for (index = 0; index < 2; ++index) {
    list[index].ptr = swapped + index * granule;
    list[index].size = granule;
    list[index].offset = (1 - index) * granule;
    list[index].handle = handle;
  }
  EXPECT_FAILURE(hsavmm_map_parts(NULL, 2, &desc, 1), hipErrorInvalidValue, "`parts` is null");
  hsavmm_usage usage;
  if (controlled) {
    list[0].offset = 2 * granule;
    EXPECT_FAILURE(hsavmm_map_parts(list, 2, &desc, 1), hipErrorInvalidValue, "offset");
    list[0].offset = granule;
    OK(hsavmm_map_parts(list, 2, &desc, 1));
    unsigned char first = 0, second = 0;
    OK(hipMemcpyDtoH(&first, swapped, 1));
    OK(hipMemcpyDtoH(&second, swapped + granule, 1));
    EXPECT(first == 2 && second == 1);
    OK(hipMemUnmap(swapped, 2 * granule));
  } else {
    EXPECT_FAILURE(hsavmm_map_parts(list, 2, &desc, 1), hipErrorInvalidValue, "control of every GPU");
    list[0].offset = 0;
    OK(hsavmm_map_parts(list, 1, NULL, 0));
    OK(hipMemUnmap(swapped, granule));
  }
  OK(hsavmm_count(&usage));
  EXPECT(usage.mappings == 1);
  OK(hipMemUnmap(whole, 2 * granule));
  OK(hipMemRelease(handle));
  OK(hipMemAddressFree(whole, 4 * granule));
}

/* Returns whether each byte of a segment is `value`. Closes the segment's descriptor. */
static int close_and_compare(hsavmm_segment segment, int value) {
  size_t size = segment.offset + segment.length;
  void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, segment.descriptor, 0);
  const unsigned char *bytes = (const unsigned char *)mapped;
  EXPECT(mapped != MAP_FAILED);
  int equal = 1;
  for (size_t at = segment.offset; at < size; ++at) equal = equal && bytes[at] == value;
  EXPECT(munmap(mapped, size) == 0 && close(segment.descriptor) == 0);
  return equal;
}

static void test_ranges(size_t granule) {
  const hipMemRangeHandleType dma_buf = hipMemRangeHandleTypeDmaBufFd;
  hipMemGenericAllocationHandle_t handles[2];
  hsavmm_segment segments[2];
  hipMemAccessDesc desc;
  hipMemAllocationProp prop;
  void *ptr;
  OK(hipMemAddressReserve(&ptr, 3 * granule, 0, NULL, 0));
  char *base = (char *)ptr;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = desc.location = locations[0];
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemCreate(&handles[0], granule, &prop, 0));
  OK(hipMemCreate(&handles[1], 2 * granule, &prop, 0));
  OK(hipMemMap(base, granule, 0, handles[0], 0));
  OK(hipMemMap(base + granule, 2 * granule, 0, handles[1], 0));
  OK(hipMemSetAccess(base, 3 * granule, &desc, 1));
  OK(hipMemsetD8(base, 3, granule));
  OK(hipMemsetD8(base + granule, 4, 2 * granule));

  size_t count = 2;
  OK(hsavmm_export_address_range(base + granule - 8, granule + 8, segments, &count));
  EXPECT(count == 2);
  EXPECT(segments[0].offset == granule - 8 && segments[0].length == 8);
  EXPECT(segments[1].offset == 0 && segments[1].length == granule);
  EXPECT(close_and_compare(segments[0], 3) && close_and_compare(segments[1], 4));
  for (count = 0; count < 2; ++count) {
    size_t room = count;
    EXPECT_FAILURE(hsavmm_export_address_range(base, 3 * granule, segments, &room), hipErrorInvalidValue,
                   "2 segments");
    EXPECT(room == 2);
  }
  EXPECT_FAILURE(hsavmm_export_address_range(base, granule, NULL, &count), hipErrorInvalidValue,
                 "`segments` is null");
  EXPECT_FAILURE(hsavmm_export_address_range(base, granule, segments, NULL), hipErrorInvalidValue, "null");
  EXPECT_FAILURE(hsavmm_export_address_range(base, 4 * granule, segments, &count), hipErrorInvalidValue,
                 "reservation");

  hsavmm_segment one;
  one.offset = 0;
  one.length = granule;
  OK(hipMemGetHandleForAddressRange(&one.descriptor, base, granule, dma_buf, 0));
  EXPECT(close_and_compare(one, 3));
  one.descriptor = -7;
  EXPECT_FAILURE(hipMemGetHandleForAddressRange(&one.descriptor, base, 3 * granule, dma_buf, 0),
                 hipErrorInvalidValue, "2 segments");
  EXPECT_FAILURE(hipMemGetHandleForAddressRange(&one.descriptor, base + 2 * granule, granule, dma_buf, 0),
                 hipErrorInvalidValue, "offset");
  EXPECT_FAILURE(hipMemGetHandleForAddressRange(NULL, base, granule, dma_buf, 0), hipErrorInvalidValue, "null");
  EXPECT_FAILURE(hipMemGetHandleForAddressRange(&one.descriptor, base, granule, hipMemRangeHandleTypeMax, 0),
                 hipErrorInvalidValue, "type");
  EXPECT_FAILURE(hipMemGetHandleForAddressRange(&one.descriptor, base, granule, dma_buf, 1),
                 hipErrorInvalidValue, "flags");
  EXPECT_FAILURE(hipMemGetHandleForAddressRange(&one.descriptor, base, 0, dma_buf, 0), hipErrorInvalidValue,
                 "zero");
  EXPECT(one.descriptor == -7);

  /* Small allocations may share a dma-buf. */
  void *pool;
  OK(hipMalloc(&pool, 1 << 20));
  OK(hipMemsetD8(pool, 6, 1 << 20));
  count = 1;
  OK(hsavmm_export_address_range((char *)pool + 4096, 8192, segments, &count));
  EXPECT(count == 1 && segments[0].length == 8192);
  EXPECT(close_and_compare(segments[0], 6));
  OK(hipFree(pool));

  OK(hipMemUnmap(base, 3 * granule));
  OK(hipMemAddressFree(base, 3 * granule));
  OK(hipMemRelease(handles[0]));
  OK(hipMemRelease(handles[1]));

  /* GPUDirect RDMA needs dma-bufs with mapping types. Runtimes support them since version 1.9 of
   * AMD's extension. Before, the flag has no effect, as in HIP. */
  hsavmm_runtime_info info;
  OK(hsavmm_runtime(&info));
  prop.allocFlags.gpuDirectRDMACapable = 1;
  OK(hipMemCreate(&handles[0], granule, &prop, 0));
  memset(&prop, 0, sizeof prop);
  OK(hipMemGetAllocationPropertiesFromHandle(&prop, handles[0]));
  EXPECT(prop.allocFlags.gpuDirectRDMACapable == (info.extension_minor >= 9));
  OK(hipMemRelease(handles[0]));
}

static void test_host_memory(size_t granule) {
  hipMemGenericAllocationHandle_t handle;
  hipMemAccessDesc desc;
  hipMemAllocationProp prop;
  void *ptr;
  size_t size = 0;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = locations[1];
  OK(hipMemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityMinimum));
  EXPECT(size > 0 && granule % size == 0);
  OK(hipMemCreate(&handle, granule, &prop, 0));
  memset(&prop, 0, sizeof prop);
  OK(hipMemGetAllocationPropertiesFromHandle(&prop, handle));
  EXPECT(prop.location.type == hipMemLocationTypeHost);
  OK(hipMemAddressReserve(&ptr, granule, 0, NULL, 0));
  OK(hipMemMap(ptr, granule, 0, handle, 0));
  desc.location = locations[1];
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemSetAccess(ptr, granule, &desc, 1));
  memset(ptr, 9, granule);
  desc.location = locations[0];
  OK(hipMemSetAccess(ptr, granule, &desc, 1));
  unsigned char byte = 0;
  OK(hipMemcpy(&byte, (char *)ptr + granule - 1, 1, hipMemcpyDeviceToHost));
  EXPECT(byte == 9);
  OK(hipMemsetD8(ptr, 8, granule));
  EXPECT(((unsigned char *)ptr)[granule / 2] == 8);
  /* A copy may declare the memory as memory of the host, too. */
  OK(hipMemcpy(&byte, ptr, 1, hipMemcpyHostToHost));
  EXPECT(byte == 8);
  OK(hipMemcpy(ptr, &byte, 1, hipMemcpyHostToHost));
  EXPECT_FAILURE(hipHostRegister((char *)ptr + 4096, 4096, 0), hipErrorInvalidValue, "program");
  hipPointerAttribute_t attributes;
  OK(hipPointerGetAttributes(&attributes, ptr));
  EXPECT(attributes.device == 0);
  OK(hipMemUnmap(ptr, granule));
  OK(hipMemRelease(handle));
  OK(hipMemAddressFree(ptr, granule));
  prop.location.type = hipMemLocationTypeHostNuma;
  prop.location.id = 77;
  EXPECT_FAILURE(hipMemCreate(&handle, granule, &prop, 0), hipErrorInvalidValue, "NUMA");
}

/* Returns an agent's access to an address. */
static unsigned long long access_of(const hipMemLocation *location, void *at) {
  unsigned long long flags = 9;
  OK(hipMemGetAccess(&flags, location, at));
  return flags;
}

static void test_areas(void) {
  static char own[3 * 4096];
  for (unsigned int flags = 0; flags < 16; ++flags) {
    hsavmm_area_t area;
    OK(hsavmm_area_create(&area, 0, flags));
    int existing = (flags & HSAVMM_AREA_MAPPED) && !(flags & (HSAVMM_AREA_HOST | HSAVMM_AREA_UNIFIED));
    void *memory, *on_device;
    if (existing) EXPECT_FAILURE(hsavmm_area_mmap(area, &memory, 5, NULL), hipErrorInvalidValue, "mmap");
    hipError_t error = hsavmm_area_mmap(area, &memory, 5, existing ? own + 100 : NULL);
    EXPECT(error == hipSuccess);
    OK(hsavmm_area_device_pointer(area, &on_device, memory));
    EXPECT(existing ? memory == own + 100 : memory == on_device);
    EXPECT_FAILURE(hsavmm_area_destroy(area), hipErrorIllegalState, "still mapped");
    OK(hsavmm_area_munmap(area, memory));
    EXPECT_FAILURE(hsavmm_area_munmap(area, memory), hipErrorInvalidValue, "not the start of memory");
    OK(hsavmm_area_destroy(area));
    EXPECT_FAILURE(hsavmm_area_destroy(area), hipErrorInvalidHandle, "invalid handle of a stream, an event or another object");
  }
  hsavmm_area_t area;
  EXPECT_FAILURE(hsavmm_area_create(&area, 99, 0), hipErrorInvalidDevice, "device 99");
  EXPECT(hsavmm_area_create(&area, 0, 16) == hipErrorInvalidValue);
  EXPECT_FAILURE(hsavmm_area_mmap(NULL, NULL, 1, NULL), hipErrorInvalidValue, "null");
}

static void test_growable(size_t granule) {
  hsavmm_growable_t buffer;
  void *start, *after;
  size_t size;
  char text[6] = "";
  OK(hsavmm_growable_reserve(&buffer, 0, 64 * granule));
  OK(hsavmm_growable_grant(buffer, locations, 2, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_growable_resize(buffer, 10));
  OK(hsavmm_growable_place(buffer, &start, &size));
  EXPECT(size == 10);
  OK(hipMemcpy(start, "hello", 6, hipMemcpyHostToDevice));
  OK(hsavmm_growable_resize(buffer, 40 * granule));
  OK(hsavmm_growable_place(buffer, &after, NULL));
  EXPECT(after == start);
  OK(hipMemcpy(text, start, 6, hipMemcpyDeviceToHost));
  EXPECT(strcmp(text, "hello") == 0);
  EXPECT(hsavmm_growable_resize(buffer, (size_t)1 << 60) == hipErrorInvalidValue);
  EXPECT_FAILURE(hsavmm_growable_grant(buffer, locations, 2, (hipMemAccessFlags)2), hipErrorInvalidValue, "flags");
  OK(hsavmm_growable_revoke(buffer, &locations[0], 1));
  OK(hsavmm_growable_resize(buffer, 50 * granule));
  EXPECT(access_of(&locations[0], start) == 0 && access_of(&locations[0], (char *)start + 45 * granule) == 0);
  EXPECT(access_of(&locations[1], (char *)start + 45 * granule) == 3);
  EXPECT_FAILURE(hsavmm_growable_revoke(buffer, NULL, 1), hipErrorInvalidValue, "null");
  /* The number of an object of another type is invalid. */
  EXPECT_FAILURE(hsavmm_ring_destroy((hsavmm_ring_t)(void *)buffer), hipErrorInvalidHandle, "invalid handle of a stream, an event or another object");
  OK(hsavmm_growable_destroy(buffer));
  EXPECT_FAILURE(hsavmm_growable_resize(buffer, 1), hipErrorInvalidHandle, "invalid handle of a stream, an event or another object");
}

/* Shares page 9 of `buffer`, which is mapped, with another buffer. */
static void test_shared_pages(hsavmm_paged_t buffer, void *start, size_t page) {
  hsavmm_paged_t other;
  void *target;
  size_t users = 7;
  unsigned char byte = 0;
  OK(hsavmm_paged_reserve(&other, 0, (size_t)64 << 20, page, 0));
  OK(hsavmm_paged_grant(other, locations, 2, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_paged_place(other, &target, NULL, NULL));
  OK(hsavmm_paged_share_pages(buffer, 9, 1, other, 2));
  OK(hipMemset((char *)target + 2 * page, 5, page));
  OK(hsavmm_paged_page_users(buffer, 9, &users));
  EXPECT(users == 2);
  EXPECT(access_of(&locations[0], (char *)start + 9 * page) == 0);
  EXPECT(access_of(&locations[0], (char *)target + 2 * page) == 3);
  EXPECT(hsavmm_paged_share_pages(buffer, 9, 1, other, 2) == hipErrorInvalidValue);
  EXPECT(hsavmm_paged_share_pages(buffer, 8, 1, other, 3) == hipErrorInvalidValue);
  EXPECT_FAILURE(hsavmm_paged_page_users(buffer, 9, NULL), hipErrorInvalidValue, "`users`");
  OK(hsavmm_paged_unmap(buffer, 9, 1));
  OK(hipMemcpyDtoH(&byte, (char *)target + 2 * page, 1));
  EXPECT(byte == 5);
  OK(hsavmm_paged_page_users(other, 2, &users));
  EXPECT(users == 1);
  OK(hsavmm_paged_destroy(other));
  OK(hsavmm_paged_map(buffer, 9, 1));
}

static void test_paged(void) {
  hsavmm_paged_t buffer;
  void *start;
  size_t page, count;
  unsigned char byte = 9;
  OK(hsavmm_paged_reserve(&buffer, 0, (size_t)64 << 20, (size_t)2 << 20, HSAVMM_PAGED_ZERO));
  OK(hsavmm_paged_grant(buffer, locations, 2, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_paged_place(buffer, &start, &page, &count));
  EXPECT(page == (size_t)2 << 20 && count == 32);
  OK(hsavmm_paged_map(buffer, 3, 2));
  OK(hipMemset((char *)start + 3 * page, 7, 2 * page));
  OK(hipMemcpyDtoH(&byte, (char *)start + 4 * page, 1));
  EXPECT(byte == 7);
  OK(hipMemcpyDtoH(&byte, (char *)start + 5 * page, 1));
  EXPECT(byte == 0);
  EXPECT(hsavmm_paged_map(buffer, 4, 1) == hipErrorInvalidValue);
  EXPECT(hsavmm_paged_map(buffer, 32, 1) == hipErrorInvalidValue);
  EXPECT(hsavmm_paged_map(buffer, 1, (size_t)-1) == hipErrorInvalidValue);
  OK(hsavmm_paged_revoke(buffer, &locations[0], 1));
  OK(hsavmm_paged_map(buffer, 9, 1));
  EXPECT(access_of(&locations[0], (char *)start + 3 * page) == 0);
  EXPECT(access_of(&locations[0], (char *)start + 9 * page) == 0);
  EXPECT(access_of(&locations[1], (char *)start + 9 * page) == 3);
  OK(hsavmm_paged_unmap(buffer, 3, 2));
  EXPECT(hsavmm_paged_unmap(buffer, 3, 1) == hipErrorInvalidValue);
  test_shared_pages(buffer, start, page);
  OK(hsavmm_paged_destroy(buffer));
  EXPECT(hsavmm_paged_reserve(&buffer, 0, 1, 0, 2) == hipErrorInvalidValue);
}

static void test_pausable(void) {
  hsavmm_pausable_t buffer;
  void *start, *after;
  char text[5] = "";
  OK(hsavmm_pausable_create(&buffer, 0, 100));
  OK(hsavmm_pausable_grant(buffer, locations, 2, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_pausable_place(buffer, &start, NULL));
  OK(hipMemcpyHtoD(start, "kept", 5));
  OK(hsavmm_pausable_pause(buffer, 1));
  EXPECT(hsavmm_pausable_pause(buffer, 1) == hipErrorInvalidValue);
  OK(hsavmm_pausable_resume(buffer));
  OK(hsavmm_pausable_place(buffer, &after, NULL));
  EXPECT(after == start);
  OK(hipMemcpyDtoH(text, start, 5));
  EXPECT(strcmp(text, "kept") == 0);
  OK(hsavmm_pausable_pause(buffer, 0));
  OK(hsavmm_pausable_revoke(buffer, &locations[0], 1));
  OK(hsavmm_pausable_resume(buffer));
  EXPECT(access_of(&locations[0], start) == 0 && access_of(&locations[1], start) == 3);
  OK(hsavmm_pausable_revoke(buffer, &locations[1], 1));
  EXPECT(access_of(&locations[1], start) == 0);
  OK(hsavmm_pausable_destroy(buffer));
}

static void test_ring(void) {
  hsavmm_ring_t buffer;
  char *start;
  void *ptr;
  size_t size;
  char text[6] = "";
  OK(hsavmm_ring_map(&buffer, 0, 1, 2));
  OK(hsavmm_ring_grant(buffer, locations, 2, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_ring_place(buffer, &ptr, &size));
  start = (char *)ptr;
  OK(hipMemcpyHtoD(start + size - 3, "around", 6));
  OK(hipMemcpyDtoH(text, start, 3));
  EXPECT(strncmp(text, "und", 3) == 0);
  OK(hsavmm_ring_revoke(buffer, &locations[0], 1));
  EXPECT(access_of(&locations[0], start + size) == 0 && access_of(&locations[1], start + size) == 3);
  OK(hsavmm_ring_destroy(buffer));
  EXPECT(hsavmm_ring_map(&buffer, 0, 1, 1) == hipErrorInvalidValue);
}

/* Memory that is not writable cannot be registered, whatever the flags: AMD's driver pins it for writing. */
static void test_registered_memory(void) {
  const size_t size = 8 * (size_t)sysconf(_SC_PAGESIZE);
  const unsigned flags[] = {hipHostRegisterDefault, hipHostRegisterReadOnly};
  for (int index = 0; index < 2; index++) {
    char *memory = (char *)mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    EXPECT_FAILURE(hipHostRegister(memory, size, flags[index]), hipErrorInvalidValue, "writable");
    EXPECT(hipMemset(memory, 1, size) == hipErrorInvalidValue);
    EXPECT(mprotect(memory, size, PROT_READ | PROT_WRITE) == 0);
    EXPECT(mprotect(memory + size / 2, size / 2, PROT_READ) == 0);
    EXPECT_FAILURE(hipHostRegister(memory, size, flags[index]), hipErrorInvalidValue, "writable");
    OK(hipHostRegister(memory, size / 2, flags[index]));
    OK(hipMemset(memory, 1, size / 2));
    EXPECT(memory[size / 2 - 1] == 1 && memory[size / 2] == 0);
    OK(hipHostUnregister(memory));
    EXPECT(munmap(memory, size) == 0);
  }
}

int main(void) {
  size_t granule;
  hipMemAllocationProp prop;
  EXPECT(strcmp(hsavmm_last_message(), "") == 0);
  OK(hipInit(0));
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = locations[0];
  OK(hipMemGetAllocationGranularity(&granule, &prop, hipMemAllocationGranularityRecommended));
  test_runtime();
  test_virtual_memory(granule);
  test_batches(granule);
  test_parts(granule, 0);
  test_ranges(granule);
  test_host_memory(granule);
  test_registered_memory();
  test_areas();
  test_growable(granule);
  test_paged();
  test_pausable();
  test_ring();
  hsavmm_usage usage;
  OK(hsavmm_count(&usage));
  EXPECT(usage.reservations + usage.handles + usage.mappings + usage.quarantined == 0);
  OK(hsavmm_check());
  /* A call that succeeds resets the last error only in HIP 6. */
  int count;
  EXPECT(hipFree(&count) == hipErrorInvalidValue);
  OK(hipGetDeviceCount(&count));
  EXPECT(hipGetLastError() == hipErrorInvalidValue && hipGetLastError() == hipSuccess);
  OK(hsavmm_shut_down());
  /* The next call opens the runtime again, with the configuration that the program chooses. */
  OK(hsavmm_use_simulation("mi300x,gpus=3"));
  OK(hsavmm_use_profile(6));
  OK(hsavmm_use_page_tables(1));
  OK(hipGetDeviceCount(&count));
  EXPECT(count == 3);
  hsavmm_runtime_info info;
  OK(hsavmm_runtime(&info));
  EXPECT(info.is_simulation == 1 && info.profile == 6);
  test_parts(granule, 1);
  void *nowhere;
  EXPECT(hipMemAddressReserve(&nowhere, 0, 0, NULL, 0) == hipErrorOutOfMemory);
  EXPECT(hipGetLastError() == hipErrorOutOfMemory && hipGetLastError() == hipSuccess);
  EXPECT(hipFree(&count) == hipErrorInvalidValue);
  EXPECT(hipPeekAtLastError() == hipErrorInvalidValue);
  const char *text;
  EXPECT(hipFreeAsync(NULL, NULL) == hipErrorInvalidValue);
  OK(hipDrvGetErrorString(hipErrorOutOfMemory, &text));
  EXPECT(hipPeekAtLastError() == hipErrorInvalidValue);
  OK(hipGetDeviceCount(&count));
  EXPECT(hipPeekAtLastError() == hipSuccess);
  /* A shut-down resets the current device and the flags of each device. */
  unsigned flags;
  int device;
  OK(hipSetDevice(2));
  OK(hipSetDeviceFlags(4));
  OK(hsavmm_shut_down());
  OK(hipGetDevice(&device));
  EXPECT(device == 0);
  OK(hipSetDevice(2));
  OK(hipGetDeviceFlags(&flags));
  EXPECT(flags == 1);
  OK(hsavmm_shut_down());
  puts("all checks passed");
  return 0;
}
