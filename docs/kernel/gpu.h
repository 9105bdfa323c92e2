/*
 * Shared code of the programs in this folder: starts AMD's runtime, finds its first GPU, and creates memory that this
 * GPU can access.
 *
 * Build: cc -I hsa/sys/include docs/kernel/no_flush.c -ldl
 * Run as a user who may use the GPU, with AMD's runtime on the library path. The exit status is 1 if the program has
 * seen the defect, 0 if not, and 2 if a call fails.
 */
#define _GNU_SOURCE
#include "driver_abi.h"
#include "hsa_abi.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                  \
  X(hsa_init)                                                                                         \
  X(hsa_iterate_agents)                                                                               \
  X(hsa_agent_get_info)                                                                               \
  X(hsa_amd_agent_iterate_memory_pools)                                                               \
  X(hsa_amd_register_system_event_handler)                                                            \
  X(hsa_signal_create)                                                                                \
  X(hsa_signal_load_scacquire)                                                                        \
  X(hsa_amd_memory_async_copy)                                                                        \
  X(hsa_amd_memory_lock)                                                                              \
  X(hsa_amd_memory_unlock)                                                                            \
  X(hsa_amd_vmem_address_reserve)                                                                     \
  X(hsa_amd_vmem_handle_create)                                                                       \
  X(hsa_amd_vmem_handle_release)                                                                      \
  X(hsa_amd_vmem_export_shareable_handle)                                                             \
  X(hsa_amd_vmem_import_shareable_handle)                                                             \
  X(hsa_amd_vmem_map)                                                                                 \
  X(hsa_amd_vmem_unmap)                                                                               \
  X(hsa_amd_vmem_set_access)
#define DECLARE(name) static name##_fn name;
FUNCTIONS(DECLARE)

enum { SIZE = 4 << 20 };

static hsa_agent_t gpu;
static hsa_amd_memory_pool_t pool;
static volatile int faulted;

/* Memory of the GPU, mapped at addresses that the GPU can access. */
struct memory {
  char *address;
  hsa_amd_vmem_alloc_handle_t handle;
};

/* Exits if the status of a call is not 0. */
static void check(const char *call, int status) {
  if (status == 0) return;
  fprintf(stderr, "%s returned %#x\n", call, status);
  exit(2);
}

__attribute__((unused)) static void fail(const char *message) {
  fprintf(stderr, "%s\n", message);
  exit(2);
}

static void fail_without_function(const char *name) {
  fprintf(stderr, "the library has no function %s\n", name);
  exit(2);
}

#define CALL(name, ...) check(#name, name(__VA_ARGS__))

static void sleep_ms(long ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static hsa_status_t keep_first_pool(hsa_amd_memory_pool_t found, void *data) {
  (void)data;
  if (pool.handle == 0) pool = found;
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t keep_first_gpu(hsa_agent_t agent, void *data) {
  (void)data;
  uint32_t type = HSA_DEVICE_TYPE_CPU;
  hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
  if (type == HSA_DEVICE_TYPE_GPU && gpu.handle == 0) gpu = agent;
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t on_event(const hsa_amd_event_t *event, void *data) {
  (void)event;
  (void)data;
  faulted = 1;
  return HSA_STATUS_SUCCESS;
}

/* Starts AMD's runtime. A fault of the GPU sets `faulted`, and the runtime does not abort. */
static void start(void) {
  void *library = dlopen("libhsa-runtime64.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
#define LOAD(name)                                                                                    \
  if (!(name = (name##_fn)dlsym(library, #name))) fail_without_function(#name);
  FUNCTIONS(LOAD)
  CALL(hsa_init);
  CALL(hsa_amd_register_system_event_handler, on_event, NULL);
  CALL(hsa_iterate_agents, keep_first_gpu, NULL);
  CALL(hsa_amd_agent_iterate_memory_pools, gpu, keep_first_pool, NULL);
}

/* Creates memory of the GPU, maps it at new addresses, and grants the GPU access. */
__attribute__((unused)) static struct memory new_memory(void) {
  struct memory memory;
  CALL(hsa_amd_vmem_address_reserve, (void **)&memory.address, SIZE, 0, 0);
  CALL(hsa_amd_vmem_handle_create, pool, SIZE, MEMORY_TYPE_PINNED, 0, &memory.handle);
  CALL(hsa_amd_vmem_map, memory.address, SIZE, 0, memory.handle, 0);
  hsa_amd_memory_access_desc_t access = {HSA_ACCESS_PERMISSION_RW, gpu};
  CALL(hsa_amd_vmem_set_access, memory.address, SIZE, &access, 1);
  return memory;
}

/* Copies a page with the GPU. Returns 1 if the copy ends, 0 if it faults or takes more than five seconds. */
__attribute__((unused)) static int copy(void *to, const void *from) {
  hsa_signal_t done;
  CALL(hsa_signal_create, 1, 0, NULL, &done);
  CALL(hsa_amd_memory_async_copy, to, gpu, from, gpu, 4096, 0, NULL, done);
  for (int wait = 0; wait < 500 && !faulted; wait++) {
    if (hsa_signal_load_scacquire(done) == 0) return 1;
    sleep_ms(10);
  }
  return 0;
}

/* Makes all earlier changes of the page tables take effect. Locking memory waits for them and flushes the TLB. */
__attribute__((unused)) static void flush(void) {
  void *page = aligned_alloc(4096, 4096), *address;
  memset(page, 0, 4096);
  CALL(hsa_amd_memory_lock, page, 4096, NULL, 0, &address);
  CALL(hsa_amd_memory_unlock, page);
}

/* Prints whether the defect was seen, and exits. */
static void report(int has_defect, const char *defect) {
  puts(has_defect ? defect : "the defect was not seen");
  fflush(stdout);
  _exit(has_defect);
}
