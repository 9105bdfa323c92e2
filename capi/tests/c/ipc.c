/* Cases of IPC that hip-tests lacks. */
#include "../hip_tests/memory.h"
#include "../hip_tests/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

static const unsigned int lazy_peer_access = hipIpcMemLazyEnablePeerAccess;

/* Two handles of the parent's memory: one for its start, and one for its second page. */
struct shared_handles {
  hipIpcMemHandle_t start, second_page;
};

/* Checks that no memory is open at the address: a query says "unregistered"; copies and closing fail. */
static void expect_closed(void *ptr) {
  static int values[N];
  hipPointerAttribute_t attributes;
  EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, ptr));
  CHECK(attributes.type == hipMemoryTypeUnregistered);
  CHECK(hipMemcpyHtoD(ptr, values, BYTES) != hipSuccess);
  EXPECT_ERROR(hipIpcCloseMemHandle(ptr), hipErrorInvalidValue);
}

/* Only the process that allocated memory can export it. */
static void expect_not_shareable(void *ptr) {
  hipIpcMemHandle_t handle;
  int is_capable = 9;
  EXPECT_ERROR(hipIpcGetMemHandle(&handle, ptr), hipErrorInvalidValue);
  CHECK(strstr(hsavmm_last_message(), "belongs to another process; pass on the handle") != NULL);
  EXPECT_SUCCESS(
      hipPointerGetAttribute(&is_capable, HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE, ptr));
  CHECK(is_capable == 0);
}

/* Only the process that allocated memory can free it. */
static void expect_not_freeable(void *ptr) {
  EXPECT_ERROR(hipFree(ptr), hipErrorInvalidValue);
  CHECK(strstr(hsavmm_last_message(), "another process: close it (hipIpcCloseMemHandle)") != NULL);
}

static void close_at_interior_addresses(const struct shared_handles *handles) {
  void *first, *second;
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->start, lazy_peer_access));
  expect_numbers(first, 1);
  expect_not_shareable(at(first, 16));
  expect_not_freeable(first);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, 16)));
  expect_closed(first);
  /* Memory that was opened twice must be closed twice. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->start, lazy_peer_access));
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&second, handles->start, lazy_peer_access));
  CHECK(first == second);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, BYTES - 1)));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, 1)));
  expect_closed(first);
  /* As in HIP, a handle for an address inside the allocation opens the whole allocation. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->second_page, lazy_peer_access));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&second, handles->start, lazy_peer_access));
  CHECK(first == second);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(first));
  expect_numbers(first, 1);
  /* Addresses before the opened memory are not open. */
  EXPECT_ERROR(hipIpcCloseMemHandle(at(first, (size_t)-8)), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(first));
  expect_closed(first);
}

/* The memory belongs to the device that was current when it was last opened. Its ID stays the same. */
static void open_on_two_devices(const struct shared_handles *handles) {
  hipPointerAttribute_t attributes;
  unsigned int first_id = 0, id = 0;
  void *first, *second;
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->start, lazy_peer_access));
  EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, first));
  CHECK(attributes.type == hipMemoryTypeDevice && attributes.device == 0);
  EXPECT_SUCCESS(hipPointerGetAttribute(&first_id, HIP_POINTER_ATTRIBUTE_BUFFER_ID, first));
  EXPECT_SUCCESS(hipSetDevice(1));
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&second, handles->start, lazy_peer_access));
  EXPECT_SUCCESS(hipSetDevice(0));
  EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, first));
  CHECK(first == second && attributes.device == 1);
  EXPECT_SUCCESS(hipPointerGetAttribute(&id, HIP_POINTER_ATTRIBUTE_BUFFER_ID, second));
  CHECK(id != 0 && id == first_id);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(first));
  EXPECT_SUCCESS(hipIpcCloseMemHandle(second));
  expect_closed(first);
}

static void close_accepts_interior_address(void) {
  struct shared_handles handles;
  int end;
  pid_t child = fork_child(&end);
  void *ptr;
  if (child == 0) {
    receive_bytes(end, &handles, sizeof handles);
    close_at_interior_addresses(&handles);
    open_on_two_devices(&handles);
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
  write_numbers(ptr, 1);
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handles.start, ptr));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handles.second_page, at(ptr, 4096)));
  send_bytes(end, &handles, sizeof handles);
  wait_for(child, end);
  expect_numbers(ptr, 1);
  EXPECT_SUCCESS(hipFree(ptr));
}

/* Opens the table of a process's exports. */
static int open_table(pid_t exporter) {
  static const char name[] = "/memfd:hsa-vmm:ipc ";
  char path[64], found[sizeof name];
  int descriptor;
  for (descriptor = 0; descriptor < 1024; ++descriptor) {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)exporter, descriptor);
    if (readlink(path, found, sizeof name - 1) == sizeof name - 1 &&
        memcmp(found, name, sizeof name - 1) == 0) {
      return open(path, O_RDWR | O_CLOEXEC);
    }
  }
  return -1;
}

/* Locks the entry of a handle in the exporter's table, like an exporter that hangs. Closing the
 * returned descriptor unlocks the entry. */
static int lock_entry(const hipIpcMemHandle_t *handle, pid_t exporter) {
  /* Bytes 56 and 57 of a handle contain the entry's slot. */
  const unsigned char *bytes = (const unsigned char *)handle->reserved + 56;
  struct flock range;
  int table = open_table(exporter);
  CHECK(table >= 0);
  memset(&range, 0, sizeof range);
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = 64 * (1 + (bytes[0] | bytes[1] << 8));
  range.l_len = 1;
  CHECK(fcntl(table, F_OFD_SETLK, &range) == 0);
  return table;
}

static void *open_and_close(void *handle) {
  void *ptr;
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&ptr, *(hipIpcMemHandle_t *)handle, lazy_peer_access));
  EXPECT_SUCCESS(hipIpcCloseMemHandle(ptr));
  return NULL;
}

/* While a thread waits for the exporter, another thread queries and copies memory. */
static void waiting_open_delays_no_other_call(void) {
  hipIpcMemHandle_t handle;
  int end;
  pid_t child = fork_child(&end);
  void *ptr;
  if (child == 0) {
    hipPointerAttribute_t attributes;
    struct timespec start, stop;
    pthread_t thread;
    int lock;
    receive_bytes(end, &handle, sizeof handle);
    EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
    lock = lock_entry(&handle, getppid());
    CHECK(pthread_create(&thread, NULL, open_and_close, &handle) == 0);
    CHECK(usleep(300000) == 0);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
    EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, &lock));
    write_and_read(ptr, 1);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &stop) == 0);
    CHECK(stop.tv_sec - start.tv_sec < 5);
    CHECK(close(lock) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    EXPECT_SUCCESS(hipFree(ptr));
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, ptr));
  send_bytes(end, &handle, sizeof handle);
  wait_for(child, end);
  EXPECT_SUCCESS(hipFree(ptr));
}

/* Each process sees another GPU. Memory of the hidden GPU can be read, written and filled. */
static void memory_of_hidden_gpu_is_copied(void) {
  static int values[N];
  hipIpcMemHandle_t handle;
  int end, i;
  pid_t child = fork_child(&end);
  void *ptr;
  CHECK(setenv("ROCR_VISIBLE_DEVICES", child == 0 ? "0" : "1", 1) == 0);
  if (child == 0) {
    receive_bytes(end, &handle, sizeof handle);
    EXPECT_SUCCESS(hipIpcOpenMemHandle(&ptr, handle, lazy_peer_access));
    expect_numbers(ptr, 1);
    write_numbers(ptr, 2);
    expect_numbers(ptr, 2);
    EXPECT_SUCCESS(hipMemsetD32(at(ptr, BYTES / 2), 7, BYTES / 8));
    EXPECT_SUCCESS(hipMemcpyDtoD(ptr, at(ptr, BYTES / 2), BYTES / 2));
    EXPECT_SUCCESS(hipIpcCloseMemHandle(ptr));
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
  write_numbers(ptr, 1);
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, ptr));
  send_bytes(end, &handle, sizeof handle);
  wait_for(child, end);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, BYTES));
  for (i = 0; i < N; ++i) CHECK(values[i] == 7);
  EXPECT_SUCCESS(hipFree(ptr));
}

static void on_signal(int signal) { (void)signal; }

/* A timer interrupts the thread that opens memory, as a profiler does. */
static void signals_interrupt_no_open(void) {
  hipIpcMemHandle_t handle;
  int end;
  pid_t child = fork_child(&end);
  void *ptr;
  if (child == 0) {
    const struct itimerval every_300_us = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    struct sigaction action;
    int i;
    receive_bytes(end, &handle, sizeof handle);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &every_300_us, NULL) == 0);
    for (i = 0; i < 100; ++i) {
      open_and_close(&handle);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handle, ptr));
  send_bytes(end, &handle, sizeof handle);
  wait_for(child, end);
  EXPECT_SUCCESS(hipFree(ptr));
}

CASES(CASE(close_accepts_interior_address), CASE(waiting_open_delays_no_other_call),
      CASE(memory_of_hidden_gpu_is_copied), CASE(signals_interrupt_no_open))
