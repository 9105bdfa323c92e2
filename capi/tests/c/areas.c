/* Copies and fills memory of areas, at the host's and at the device's address. With the argument
 * "destroy", destroys areas while another thread maps their memory. With "unregister", registers and unregisters memory
 * while other threads query it. */
#define _GNU_SOURCE
#include <hsavmm.h>
#include <pthread.h>
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

#define EXPECT_NOT_THE_PROGRAMS(call) \
  (EXPECT((call) == hipErrorInvalidValue), \
   EXPECT(strstr(hsavmm_last_message(), "must be writable memory of the program") != NULL))

#define SIZE 8192

static char bytes[SIZE], result[SIZE];

static void copy_and_fill(char *memory, int is_shared_with_host) {
  memset(bytes, 6, SIZE);
  OK(hipMemcpy(memory, bytes, SIZE, hipMemcpyHostToDevice));
  OK(hipMemset(memory + 4, 9, 4));
  memset(result, 0, SIZE);
  OK(hipMemcpy(result, memory, SIZE, hipMemcpyDeviceToHost));
  EXPECT(result[0] == 6 && result[4] == 9 && result[7] == 9 && result[8] == 6);
  EXPECT(result[SIZE - 1] == 6);
  OK(hipMemcpy(memory + 1, memory, SIZE - 1, hipMemcpyDefault));
  OK(hipMemcpy(result, memory, SIZE, hipMemcpyDefault));
  EXPECT(result[1] == 6 && result[4] == 6 && result[5] == 9 && result[8] == 9);
  bytes[0] = 3;
  OK(hipMemcpy(memory, bytes, 1, hipMemcpyDefault));
  OK(hipMemcpy(result, memory, 1, hipMemcpyDefault));
  EXPECT(result[0] == 3);
  hipError_t error = hipMemcpy(result, memory, 1, hipMemcpyHostToHost);
  EXPECT(error == (is_shared_with_host ? hipSuccess : hipErrorInvalidValue));
}

static void expect_attributes(char *memory, int is_on_host) {
  hipPointerAttribute_t attributes;
  void *start = NULL;
  size_t range = 0;
  OK(hipPointerGetAttributes(&attributes, memory + 5));
  EXPECT(attributes.type == hipMemoryTypeHost || attributes.type == hipMemoryTypeDevice);
  EXPECT(attributes.device == 0 && attributes.devicePointer == memory + 5);
  if (is_on_host) {
    EXPECT(attributes.type == hipMemoryTypeHost && attributes.hostPointer == memory + 5);
  }
  OK(hipMemGetAddressRange(&start, &range, memory + 5));
  EXPECT(start == memory && (is_on_host ? range == SIZE : range >= SIZE));
  OK(hipPointerGetAttribute(&start, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 5));
  EXPECT(start == memory);
  hipIpcMemHandle_t handle;
  int is_capable = 9;
  OK(hipPointerGetAttribute(&is_capable, HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE, memory));
  EXPECT(is_capable == (hipIpcGetMemHandle(&handle, memory) == hipSuccess));
}

static void test_new_memory(void) {
  for (unsigned int flags = 0; flags < 16; ++flags) {
    hsavmm_area_t area;
    void *memory;
    int has_host_access = flags & (HSAVMM_AREA_HOST | HSAVMM_AREA_UNIFIED);
    if ((flags & HSAVMM_AREA_MAPPED) && !has_host_access) continue;
    OK(hsavmm_area_create(&area, 0, flags));
    OK(hsavmm_area_mmap(area, &memory, SIZE, NULL));
    copy_and_fill((char *)memory, has_host_access);
    expect_attributes((char *)memory, has_host_access == HSAVMM_AREA_HOST);
    EXPECT(hipMemset(memory, 0, SIZE + 1) == hipErrorInvalidValue);
    EXPECT(hipMemset((char *)memory + SIZE, 0, (size_t)1 << 40) == hipErrorInvalidValue);
    OK(hsavmm_area_munmap(area, memory));
    EXPECT(hipMemset(memory, 0, SIZE) == hipErrorInvalidValue);
    OK(hsavmm_area_destroy(area));
  }
}

static void test_existing_memory(void) {
  static char own[4 * SIZE], copied[2 * SIZE];
  hsavmm_area_t area;
  void *memory, *on_device;
  char *host = own + SIZE;
  OK(hsavmm_area_create(&area, 0, HSAVMM_AREA_MAPPED));
  OK(hsavmm_area_mmap(area, &memory, SIZE, host));
  OK(hsavmm_area_device_pointer(area, &on_device, memory));
  hipPointerAttribute_t attributes;
  char *addresses[2] = {(char *)memory, (char *)on_device};
  for (int index = 0; index < 2; ++index) {
    void *start;
    size_t size;
    OK(hipPointerGetAttributes(&attributes, addresses[index] + 5));
    EXPECT(attributes.type == hipMemoryTypeHost && attributes.device == 0);
    EXPECT(attributes.hostPointer == host + 5);
    EXPECT(attributes.devicePointer == (char *)on_device + 5);
    OK(hipMemGetAddressRange(&start, &size, addresses[index] + 5));
    EXPECT(start == addresses[index] && size == SIZE);
  }
  OK(hipPointerGetAttributes(&attributes, host + SIZE));
  EXPECT(attributes.type == hipMemoryTypeUnregistered);
  host[SIZE - 1] = 7;
  OK(hipMemcpy(result, on_device, SIZE, hipMemcpyDefault));
  EXPECT(result[SIZE - 1] == 7);
  copy_and_fill((char *)memory, 1);
  copy_and_fill((char *)on_device, 1);
  EXPECT(host[0] == 3 && host[1] == 6);
  /* The program's memory before and after the mapped memory is unchanged. */
  OK(hipMemcpy(copied, own, 2 * SIZE, hipMemcpyDefault));
  EXPECT(copied[0] == 0 && copied[SIZE] == 3);
  OK(hipMemcpy(copied, host, 2 * SIZE, hipMemcpyHostToHost));
  EXPECT(copied[0] == 3 && copied[SIZE] == 0);
  if (on_device != memory) {
    EXPECT(hipMemset(on_device, 0, SIZE + 1) == hipErrorInvalidValue);
    OK(hipMemcpy((char *)on_device + 2, memory, SIZE - 2, hipMemcpyDefault));
    EXPECT(host[2] == 3 && host[3] == 6);
  }
  OK(hsavmm_area_munmap(area, memory));
  OK(hsavmm_area_destroy(area));
}

/* An area maps no memory of the library, and hipHostRegister registers none. */
static void test_memory_of_the_library(void) {
  enum { PART = 2 << 20 };
  hsavmm_area_t area;
  void *memory, *reserved, *mapped;
  OK(hsavmm_area_create(&area, 0, HSAVMM_AREA_MAPPED));
  OK(hipMalloc(&memory, 1 << 20));
  EXPECT_NOT_THE_PROGRAMS(hsavmm_area_mmap(area, &mapped, 4096, memory));
  EXPECT_NOT_THE_PROGRAMS(hsavmm_area_mmap(area, &mapped, 4096, (char *)memory + 4096));
  OK(hipMemset((char *)memory + 4096, 0, 4096));
  OK(hipFree(memory));
  /* A reservation between two parts of the program's memory. */
  char *start = (char *)mmap(NULL, 4 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(start != MAP_FAILED);
  char *middle = start + PART + (PART - (size_t)start % PART) % PART;
  EXPECT(munmap(middle, PART) == 0);
  if (hsavmm_reserve_at(middle, PART) == hipSuccess) {
    reserved = middle;
    EXPECT_NOT_THE_PROGRAMS(hsavmm_area_mmap(area, &mapped, 4 * PART, start));
    EXPECT_NOT_THE_PROGRAMS(hipHostRegister(start, 4 * PART, 0));
    EXPECT_NOT_THE_PROGRAMS(hipHostRegister(middle - 4096, 8192, 0));
    OK(hsavmm_area_mmap(area, &mapped, 4096, middle - 4096));
    OK(hsavmm_area_munmap(area, mapped));
    OK(hipMemAddressFree(reserved, PART));
  }
  OK(hsavmm_area_destroy(area));
  munmap(start, 4 * PART);
}

static char registered[SIZE];
static void *registered_on_device;
static volatile int stop;

static void *query(void *unused) {
  hipPointerAttribute_t attributes;
  while (!stop) {
    OK(hipPointerGetAttributes(&attributes, registered_on_device));
  }
  return unused;
}

/* Other memory, so that there is always a thread that waits for the list of registered memory. */
static void *register_another(void *unused) {
  static char another[SIZE];
  while (!stop) {
    OK(hipHostRegister(another, SIZE, 0));
    OK(hipHostUnregister(another));
  }
  return unused;
}

static void test_unregister_during_queries(void) {
  pthread_t threads[3];
  /* Ends the program if the threads wait for each other. */
  alarm(120);
  OK(hipHostRegister(registered, SIZE, 0));
  OK(hipHostGetDevicePointer(&registered_on_device, registered, 0));
  for (int index = 0; index < 3; ++index) {
    EXPECT(pthread_create(&threads[index], NULL, index < 2 ? query : register_another, NULL) == 0);
  }
  for (int round = 0; round < 3000; ++round) {
    OK(hipHostUnregister(registered));
    OK(hipHostRegister(registered, SIZE, 0));
  }
  stop = 1;
  for (int index = 0; index < 3; ++index) EXPECT(pthread_join(threads[index], NULL) == 0);
  OK(hipHostUnregister(registered));
}

static pthread_barrier_t barrier;
static hsavmm_area_t shared;
static hipError_t mmap_error;
static void *shared_memory;

static void *map_shared(void *unused) {
  (void)unused;
  pthread_barrier_wait(&barrier);
  mmap_error = hsavmm_area_mmap(shared, &shared_memory, SIZE, NULL);
  return NULL;
}

static void test_destroy_during_mmap(void) {
  EXPECT(pthread_barrier_init(&barrier, NULL, 2) == 0);
  for (int round = 0; round < 200; ++round) {
    pthread_t thread;
    OK(hsavmm_area_create(&shared, 0, 0));
    EXPECT(pthread_create(&thread, NULL, map_shared, NULL) == 0);
    pthread_barrier_wait(&barrier);
    hipError_t destroy_error = hsavmm_area_destroy(shared);
    EXPECT(pthread_join(thread, NULL) == 0);
    /* Exactly one of the two calls succeeds. */
    EXPECT((mmap_error == hipSuccess) != (destroy_error == hipSuccess));
    if (destroy_error == hipSuccess) {
      EXPECT(mmap_error == hipErrorInvalidHandle);
    } else {
      EXPECT(destroy_error == hipErrorIllegalState);
      OK(hsavmm_area_munmap(shared, shared_memory));
      OK(hsavmm_area_destroy(shared));
    }
  }
  pthread_barrier_destroy(&barrier);
}

int main(int count, char **arguments) {
  OK(hipInit(0));
  if (count > 1 && strcmp(arguments[1], "destroy") == 0) {
    test_destroy_during_mmap();
  } else if (count > 1) {
    test_unregister_during_queries();
  } else {
    test_memory_of_the_library();
    test_existing_memory();
    test_new_memory();
  }
  OK(hsavmm_shut_down());
  puts("all checks passed");
  return 0;
}
