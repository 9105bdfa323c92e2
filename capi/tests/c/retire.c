/* Retires mappings without signals. With an argument, the file of the loaded runtime, also retires
 * mappings with signals. The program creates the signals with the runtime's functions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <hsavmm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)
#define EXPECT_FAILURE(call, code, word) \
  (EXPECT((call) == (code)), EXPECT(strstr(hsavmm_last_message(), word) != NULL))

static size_t size;

/* Maps memory of `count` handles at consecutive addresses, and releases the handles. */
static char *map_handles(size_t count) {
  hipMemAllocationProp prop;
  hipMemAccessDesc desc;
  void *start;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  desc.location = prop.location;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemAddressReserve(&start, count * size, 0, NULL, 0));
  for (size_t index = 0; index < count; index++) {
    hipMemGenericAllocationHandle_t handle;
    OK(hipMemCreate(&handle, size, &prop, 0));
    OK(hipMemMap((char *)start + index * size, size, 0, handle, 0));
    OK(hipMemRelease(handle));
  }
  OK(hipMemSetAccess(start, count * size, &desc, 1));
  OK(hipMemset(start, 7, count * size));
  return (char *)start;
}

static void expect_readable(char *ptr) {
  char byte = 0;
  OK(hipMemcpyDtoH(&byte, ptr, 1));
  EXPECT(byte == 7);
}

static size_t count_quarantined(void) {
  hsavmm_usage usage;
  OK(hsavmm_count(&usage));
  return usage.quarantined;
}

static void test_without_signals(void) {
  hsavmm_retire_queue_t queue;
  hsavmm_retire_report report;
  char *start = map_handles(3);
  OK(hsavmm_retire_create(&queue, 2, 0, HSAVMM_RETIRE_NO_THREAD));
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start, 3 * size, NULL, 0), hipErrorInvalidValue,
                 "capacity of the queue");
  OK(hsavmm_retire_submit(queue, start, 2 * size, NULL, 0));
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start + 2 * size, size, NULL, 0), hipErrorOutOfMemory,
                 "pending retirements");
  expect_readable(start);
  EXPECT(hipMemAddressFree(start, 3 * size) != hipSuccess);
  OK(hsavmm_retire_poll(queue, &report));
  EXPECT(report.retired == 2 && report.pending == 0 && report.failed == 0);
  EXPECT(report.address == NULL && report.reason[0] == '\0');
  expect_readable(start + 2 * size);

  /* The program itself unmaps a submitted range, so the queue reports a failure. */
  OK(hsavmm_retire_submit(queue, start + 2 * size, size, NULL, 0));
  OK(hipMemUnmap(start + 2 * size, size));
  OK(hsavmm_retire_drain(queue, 1000, &report));
  EXPECT(report.retired == 0 && report.failed == 1 && report.address == start + 2 * size);
  EXPECT(report.size == size && strstr(report.reason, "not mapped") != NULL);
  EXPECT(count_quarantined() == 0);
  OK(hsavmm_retire_destroy(queue));
  EXPECT(hsavmm_retire_destroy(queue) == hipErrorInvalidHandle);
  OK(hipMemAddressFree(start, 3 * size));
}

static void test_invalid_arguments(void) {
  hsavmm_retire_queue_t queue;
  hsavmm_retire_report report;
  hsavmm_signal signals[HSAVMM_RETIRE_MAX_SIGNALS + 1];
  char *start = map_handles(1);
  memset(signals, 0, sizeof signals);
  EXPECT_FAILURE(hsavmm_retire_create(NULL, 1, 0, 0), hipErrorInvalidValue, "`queue` is null");
  EXPECT_FAILURE(hsavmm_retire_create(&queue, 0, 0, 0), hipErrorInvalidValue, "zero");
  EXPECT_FAILURE(hsavmm_retire_create(&queue, (size_t)-1, 0, 0), hipErrorInvalidValue, "too large");
  EXPECT_FAILURE(hsavmm_retire_create(&queue, 1, 0, 2), hipErrorInvalidValue, "flags");
  OK(hsavmm_retire_create(&queue, 1, 0, 0));
  EXPECT_FAILURE(hsavmm_retire_submit(queue, NULL, size, NULL, 0), hipErrorInvalidValue, "null");
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start, size, NULL, 1), hipErrorInvalidValue, "`signals`");
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start, size, signals, 1), hipErrorInvalidValue, "null");
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start, size, signals, HSAVMM_RETIRE_MAX_SIGNALS + 1),
                 hipErrorInvalidValue, "more than 8");
  signals[0].handle = 1;
  signals[0].condition = 2;
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start, size, signals, 1), hipErrorInvalidValue, "condition");
  EXPECT_FAILURE(hsavmm_retire_submit(queue, start, size / 2, NULL, 0), hipErrorInvalidValue, "splits");
  EXPECT_FAILURE(hsavmm_retire_poll(queue, NULL), hipErrorInvalidValue, "`report` is null");
  EXPECT(hsavmm_retire_poll((hsavmm_retire_queue_t)start, &report) == hipErrorInvalidHandle);
  expect_readable(start);
  OK(hsavmm_retire_submit(queue, start, size, NULL, 0));
  /* Waits until the queue is empty. */
  OK(hsavmm_retire_destroy(queue));
  OK(hipMemAddressFree(start, size));
}

static void test_pages(void) {
  hsavmm_paged_t buffer;
  hsavmm_retire_queue_t queue;
  hsavmm_retire_report report;
  OK(hsavmm_paged_reserve(&buffer, 0, 4 * size, size, 0));
  OK(hsavmm_retire_create(&queue, 2, 0, HSAVMM_RETIRE_NO_THREAD));
  OK(hsavmm_paged_map(buffer, 0, 3));
  EXPECT_FAILURE(hsavmm_paged_retire(buffer, 0, 3, queue, NULL, 0), hipErrorInvalidValue,
                 "capacity of the queue");
  EXPECT_FAILURE(hsavmm_paged_retire(buffer, 2, 2, queue, NULL, 0), hipErrorInvalidValue, "not mapped");
  OK(hsavmm_paged_retire(buffer, 1, 2, queue, NULL, 0));
  EXPECT_FAILURE(hsavmm_paged_map(buffer, 1, 1), hipErrorInvalidValue, "retiring");
  OK(hsavmm_retire_poll(queue, &report));
  EXPECT(report.retired == 2 && report.failed == 0);
  OK(hsavmm_paged_map(buffer, 1, 3));
  OK(hsavmm_retire_destroy(queue));
  OK(hsavmm_paged_destroy(buffer));
}

typedef struct {
  unsigned long long handle;
} hsa_signal;
typedef unsigned int (*signal_create_fn)(long long, unsigned int, const void *, hsa_signal *);
typedef void (*signal_store_fn)(hsa_signal, long long);

static void test_with_signals(void *runtime) {
  hsavmm_retire_queue_t queue;
  hsavmm_retire_report report;
  signal_create_fn create;
  signal_store_fn store;
  hsa_signal done, never;
  hsavmm_signal signals[2];
  void *symbol = dlsym(runtime, "hsa_signal_create");
  char *start = map_handles(2);
  EXPECT(symbol != NULL);
  memcpy(&create, &symbol, sizeof create);
  symbol = dlsym(runtime, "hsa_signal_store_screlease");
  EXPECT(symbol != NULL);
  memcpy(&store, &symbol, sizeof store);
  EXPECT(create(1, 0, NULL, &done) == 0 && create(0, 0, NULL, &never) == 0);
  memset(signals, 0, sizeof signals);
  signals[0].handle = done.handle;
  signals[1].handle = never.handle;
  signals[1].value = 3;
  signals[1].condition = HSAVMM_SIGNAL_AT_LEAST;

  OK(hsavmm_retire_create(&queue, 4, 200, 0));
  OK(hsavmm_retire_submit(queue, start, size, signals, 1));
  OK(hsavmm_retire_submit(queue, start + size, size, signals, 2));
  OK(hsavmm_retire_drain(queue, 20, &report));
  EXPECT(report.retired == 0 && report.pending == 2 && report.failed == 0);
  expect_readable(start);
  store(done, 0);
  /* The time limit of 200 ms quarantines the second range. */
  OK(hsavmm_retire_drain(queue, 60000, &report));
  EXPECT(report.retired == 1 && report.pending == 0 && report.failed == 1);
  EXPECT(report.address == start + size && strstr(report.reason, "stays mapped") != NULL);
  EXPECT(count_quarantined() == 1);
  store(never, 3);
  OK(hsavmm_retire_destroy(queue));
  expect_readable(start + size);
  EXPECT_FAILURE(hipMemUnmap(start + size, size), hipErrorUnknown, "quarantined");
  EXPECT(hipMemAddressFree(start, 2 * size) != hipSuccess);
}

static void *drain(void *queue) {
  hsavmm_retire_report report;
  OK(hsavmm_retire_drain((hsavmm_retire_queue_t)queue, 60000, &report));
  return NULL;
}

/* Destroys a queue while another thread waits for a signal that never fires. Afterwards, the queue does not use the
 * signal any more: its mapping is quarantined. */
static void test_destroy_during_drain(void *runtime) {
  hsavmm_retire_queue_t queue;
  signal_create_fn create;
  hsavmm_signal signal;
  hsa_signal never;
  pthread_t thread;
  void *symbol = dlsym(runtime, "hsa_signal_create");
  size_t before = count_quarantined();
  char *start = map_handles(1);
  EXPECT(symbol != NULL);
  memcpy(&create, &symbol, sizeof create);
  EXPECT(create(1, 0, NULL, &never) == 0);
  memset(&signal, 0, sizeof signal);
  signal.handle = never.handle;
  OK(hsavmm_retire_create(&queue, 1, 700, HSAVMM_RETIRE_NO_THREAD));
  OK(hsavmm_retire_submit(queue, start, size, &signal, 1));
  EXPECT(pthread_create(&thread, NULL, drain, queue) == 0);
  EXPECT(usleep(200000) == 0);
  OK(hsavmm_retire_destroy(queue));
  EXPECT(count_quarantined() == before + 1);
  EXPECT(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
  hipMemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipInit(0));
  OK(hipMemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityRecommended));
  test_without_signals();
  test_invalid_arguments();
  test_pages();
  if (argc > 1) {
    void *runtime = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
    EXPECT(runtime != NULL);
    test_with_signals(runtime);
    test_destroy_during_drain(runtime);
  }
  OK(hsavmm_check());
  OK(hsavmm_shut_down());
  puts("all checks passed");
  return 0;
}
