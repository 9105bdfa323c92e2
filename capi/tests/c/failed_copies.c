/* Checks that copies and fills that fail change no memory. */
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)

static const hipMemLocation gpu = {hipMemLocationTypeDevice, 0};
static char *host;
static void *device;

static void expect_unchanged(void *start, size_t size, int line) {
  char *bytes = (char *)malloc(size);
  OK(hipMemcpyDtoH(bytes, start, size));
  for (size_t index = 0; index < size; index++)
    if (bytes[index] != 1) fail(line, "the memory has changed");
  free(bytes);
}

/* Makes transfers to and from a range at `start`, of which only the first `valid` bytes are
 * accessible. Each transfer needs about twice as many bytes. Expects that each transfer fails and
 * changes nothing. */
static void expect_failures(void *start, size_t valid, int line) {
  const size_t size = 2 * valid;
#define FAILS(call) \
  (EXPECT((call) == hipErrorInvalidValue), expect_unchanged(start, valid, line))
  OK(hipMemset(start, 1, valid));
  FAILS(hipMemset(start, 'X', size));
  FAILS(hipMemsetD32(start, 0x58585858, size / 4));
  FAILS(hipMemcpyHtoD(start, host, size));
  FAILS(hipMemcpyDtoD(start, device, size));
  FAILS(hipMemcpyAsync(start, host, size, hipMemcpyHostToDevice, NULL));
  FAILS(hipMemcpy2D(start, valid, host, valid, valid - 64, 2, hipMemcpyHostToDevice));
  /* A failed copy from the range must not change the destination. */
  OK(hipMemset(device, 1, size));
  EXPECT(hipMemcpyDtoD(device, start, size) == hipErrorInvalidValue);
  expect_unchanged(device, size, line);
  OK(hipMemset(device, 'X', size));
}
#define EXPECT_FAILURES(start, valid) expect_failures(start, valid, __LINE__)

static void test_mappings(size_t granule) {
  char *start;
  void *ptr;
  hipMemAllocationProp prop;
  hipMemGenericAllocationHandle_t handle;
  hipMemAccessDesc desc;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location = desc.location = gpu;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemAddressReserve(&ptr, 4 * granule, 0, NULL, 0));
  start = (char *)ptr;
  OK(hipMemCreate(&handle, granule, &prop, 0));
  OK(hipMemMap(start, granule, 0, handle, 0));
  OK(hipMemSetAccess(start, granule, &desc, 1));
  EXPECT_FAILURES(start, granule);
  EXPECT(strstr(hsavmm_last_message(), "`source` is not mapped at 0x") != NULL);
  /* The second mapping grants no access. */
  OK(hipMemMap(start + granule, granule, 0, handle, 0));
  EXPECT_FAILURES(start, granule);
  EXPECT(strstr(hsavmm_last_message(), "neither a GPU nor the host has read access") != NULL);
  /* Unmaps the second granule and maps the third. Each range begins in a usable mapping, and ends in an unmapped
   * granule. */
  OK(hipMemUnmap(start + granule, granule));
  OK(hipMemMap(start + 2 * granule, granule, 0, handle, 0));
  OK(hipMemSetAccess(start + 2 * granule, granule, &desc, 1));
  EXPECT_FAILURES(start, granule);
  EXPECT_FAILURES(start + 2 * granule, granule);
  OK(hipMemUnmap(start, granule));
  OK(hipMemUnmap(start + 2 * granule, granule));
  OK(hipMemRelease(handle));
  OK(hipMemAddressFree(start, 4 * granule));
}

static void test_buffers(size_t granule) {
  hsavmm_growable_t growable;
  hsavmm_paged_t paged;
  void *ptr;
  OK(hsavmm_growable_reserve(&growable, 0, 4 * granule));
  OK(hsavmm_growable_grant(growable, &gpu, 1, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_growable_resize(growable, granule));
  OK(hsavmm_growable_place(growable, &ptr, NULL));
  EXPECT_FAILURES(ptr, granule);
  OK(hsavmm_growable_destroy(growable));
  OK(hsavmm_paged_reserve(&paged, 0, 4 * granule, granule, 0));
  OK(hsavmm_paged_grant(paged, &gpu, 1, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_paged_map(paged, 0, 1));
  OK(hsavmm_paged_map(paged, 2, 1));
  OK(hsavmm_paged_place(paged, &ptr, NULL, NULL));
  EXPECT_FAILURES(ptr, granule);
  OK(hsavmm_paged_destroy(paged));
}

/* The first row is inside the allocation. A later row extends beyond its end, into another allocation or not. */
static void test_rows(void) {
  void *ptr;
  char *first, *second;
  OK(hipMalloc((void **)&first, 4096));
  OK(hipMalloc((void **)&second, 4096));
  if (second < first) {
    char *lower = second;
    second = first;
    first = lower;
  }
  OK(hipMemset(first, 1, 4096));
  OK(hipMemset(second, 1, 4096));
  const size_t distance = (size_t)(second - first);
  EXPECT(hipMemcpy2D(first, distance, host, 64, 32, 2, hipMemcpyHostToDevice) ==
         hipErrorInvalidValue);
  EXPECT(hipMemcpy2D(host, 64, first, distance, 32, 2, hipMemcpyDeviceToHost) ==
         hipErrorInvalidValue);
  EXPECT(hipMemcpy2D(first, 64, host, 64, 32, 65, hipMemcpyHostToDevice) == hipErrorInvalidValue);
  EXPECT(hipMemcpy2D(first, (size_t)1 << 40, host, 64, 32, 2, hipMemcpyDefault) ==
         hipErrorInvalidValue);
  EXPECT(host[64] == 'X');
  expect_unchanged(first, 4096, __LINE__);
  expect_unchanged(second, 4096, __LINE__);
  OK(hipFree(first));
  OK(hipFree(second));
  OK(hipMalloc(&ptr, 4096));
  OK(hipMemset(ptr, 1, 4096));
  char *row = (char *)ptr + 4000;
  EXPECT(hipMemcpy2D(row, 80, host, 64, 64, 2, hipMemcpyHostToDevice) == hipErrorInvalidValue);
  expect_unchanged(ptr, 4096, __LINE__);
  /* Source and destination overlap: each row is read before it is overwritten. */
  for (char byte = 0; byte < 8; byte++) OK(hipMemset((char *)ptr + 64 * byte, byte, 64));
  OK(hipMemcpy2D((char *)ptr + 64, 64, ptr, 64, 32, 7, hipMemcpyDeviceToDevice));
  char rows[8 * 64];
  OK(hipMemcpy(rows, ptr, sizeof rows, hipMemcpyDeviceToHost));
  for (int row = 1; row < 8; row++) EXPECT(rows[64 * row] == row - 1 && rows[64 * row + 32] == row);
  /* Rows of width 0: the call copies nothing, so any number of rows is valid. */
  OK(hipMemcpy2D(row, 8, host, 8, 0, (size_t)1 << 58, hipMemcpyHostToDevice));
  OK(hipFree(ptr));
}

int main(void) {
  /* Larger than 4 MiB, so that the library copies a granule in several chunks. */
  const size_t granule = 6 << 20;
  host = (char *)malloc(2 * granule);
  EXPECT(host != NULL);
  memset(host, 'X', 2 * granule);
  OK(hipMalloc(&device, 2 * granule));
  OK(hipMemset(device, 'X', 2 * granule));
  test_mappings(granule);
  test_buffers(granule);
  test_rows();
  OK(hipFree(device));
  free(host);
  puts("all checks passed");
  return 0;
}
