/* Cancels threads (pthread_cancel, deferred) while they make calls. A call finishes, and leaves the library usable. */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 21, THREADS = 20 };

static void expect(int condition, int line) {
  if (condition) return;
  printf("line %d: %s\n", line, hsavmm_last_message());
  exit(1);
}
#define OK(call) expect((call) == hipSuccess, __LINE__)

static void *allocate(void *unused) {
  for (;;) {
    void *ptr;
    OK(hipMalloc(&ptr, SIZE));
    OK(hipMemset(ptr, 1, SIZE));
    OK(hipFree(ptr));
    pthread_testcancel();
  }
  return unused;
}

static void *map(void *unused) {
  hipMemAllocationProp prop;
  hipMemAccessDesc access;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  access.location = prop.location;
  access.flags = hipMemAccessFlagsProtReadWrite;
  for (;;) {
    void *ptr;
    hipMemGenericAllocationHandle_t handle;
    OK(hipMemAddressReserve(&ptr, SIZE, 0, NULL, 0));
    OK(hipMemCreate(&handle, SIZE, &prop, 0));
    OK(hipMemMap(ptr, SIZE, 0, handle, 0));
    OK(hipMemSetAccess(ptr, SIZE, &access, 1));
    OK(hipMemset(ptr, 1, SIZE));
    OK(hipMemUnmap(ptr, SIZE));
    OK(hipMemRelease(handle));
    OK(hipMemAddressFree(ptr, SIZE));
    pthread_testcancel();
  }
  return unused;
}

int main(void) {
  OK(hipInit(0));
  for (int index = 0; index < THREADS; index++) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, index % 2 ? allocate : map, NULL) != 0) abort();
    usleep(2000 + (unsigned)index * 300);
    if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0) abort();
    expect(result == PTHREAD_CANCELED, __LINE__);
  }
  int is_enabled;
  if (pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &is_enabled) != 0) abort();
  expect(is_enabled == PTHREAD_CANCEL_ENABLE, __LINE__);
  puts("all checks passed");
  return 0;
}
