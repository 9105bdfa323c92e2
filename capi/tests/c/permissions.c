/* Maps a whole handle, and maps its second half again at other addresses. Then calls the runtime
 * directly, so that the GPU copies from or to this second mapping. Arguments: the runtime's file,
 * the access flags of the second mapping (0, 1 or 3), and whether the GPU "reads" or "writes" the
 * second mapping. Prints "copied" or "faulted". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <hsavmm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)

/* Equivalents of declarations in hsa.h and hsa_ext_amd.h. */
typedef struct {
  uint64_t handle;
} agent_t;
typedef agent_t signal_t;
enum { AGENT_INFO_DEVICE = 17, DEVICE_TYPE_GPU = 1 };
typedef int (*iterate_agents_fn)(int (*)(agent_t, void *), void *);
typedef int (*agent_get_info_fn)(agent_t, int, void *);
typedef int (*signal_create_fn)(int64_t, uint32_t, const agent_t *, signal_t *);
typedef int64_t (*signal_load_fn)(signal_t);
typedef int (*async_copy_fn)(void *, agent_t, const void *, agent_t, size_t, uint32_t,
                             const signal_t *, signal_t);
typedef int (*register_handler_fn)(int (*)(const void *, void *), void *);

static agent_get_info_fn agent_get_info;
static agent_t gpu;
static volatile int faulted;

static int find_gpu(agent_t agent, void *data) {
  uint32_t type = 9;
  (void)data;
  EXPECT(agent_get_info(agent, AGENT_INFO_DEVICE, &type) == 0);
  if (type == DEVICE_TYPE_GPU && gpu.handle == 0) gpu = agent;
  return 0;
}

static int on_event(const void *event, void *data) {
  (void)event;
  (void)data;
  faulted = 1;
  return 0;
}

static void *look_up(void *runtime, const char *name) {
  void *found = dlsym(runtime, name);
  if (found == NULL) fail(__LINE__, name);
  return found;
}
/* A cast between a data pointer and a function pointer is not ISO C. */
#define FUNCTION(runtime, type, name, variable) \
  do {                                          \
    void *found = look_up(runtime, name);       \
    memcpy(&variable, &found, sizeof(type));    \
  } while (0)

static char *map_filled(size_t size, int value) {
  hipMemAllocationProp prop;
  hipMemAccessDesc desc;
  hipMemGenericAllocationHandle_t handle;
  void *start;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  desc.location = prop.location;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemAddressReserve(&start, size, 0, NULL, 0));
  OK(hipMemCreate(&handle, size, &prop, 0));
  OK(hipMemMap(start, size, 0, handle, 0));
  OK(hipMemSetAccess(start, size, &desc, 1));
  OK(hipMemsetD8(start, (unsigned char)value, size));
  return (char *)start;
}

int main(int argc, char **argv) {
  hipMemAllocationProp prop;
  hipMemAccessDesc desc;
  hipMemGenericAllocationHandle_t handle;
  size_t size;
  void *part, *runtime;
  char *whole, *other;
  int enforced = 0, polls;
  unsigned char byte = 0;
  signal_t done;
  iterate_agents_fn iterate_agents;
  signal_create_fn signal_create;
  signal_load_fn signal_load;
  async_copy_fn async_copy;
  register_handler_fn register_handler;
  EXPECT(argc == 4);
  int writes = strcmp(argv[3], "writes") == 0;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipMemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityMinimum));
  OK(hsavmm_enforcement(&enforced, &prop.location));
  EXPECT(enforced == 1);

  runtime = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
  EXPECT(runtime != NULL);
  FUNCTION(runtime, agent_get_info_fn, "hsa_agent_get_info", agent_get_info);
  FUNCTION(runtime, iterate_agents_fn, "hsa_iterate_agents", iterate_agents);
  FUNCTION(runtime, signal_create_fn, "hsa_signal_create", signal_create);
  FUNCTION(runtime, signal_load_fn, "hsa_signal_load_scacquire", signal_load);
  FUNCTION(runtime, async_copy_fn, "hsa_amd_memory_async_copy", async_copy);
  FUNCTION(runtime, register_handler_fn, "hsa_amd_register_system_event_handler", register_handler);
  EXPECT(register_handler(on_event, NULL) == 0);
  EXPECT(iterate_agents(find_gpu, NULL) == 0 && gpu.handle != 0);
  EXPECT(signal_create(1, 0, NULL, &done) == 0);

  whole = map_filled(2 * size, 1);
  OK(hipMemsetD8(whole + size, 2, size));
  other = map_filled(size, 3);
  OK(hipMemRetainAllocationHandle(&handle, whole));
  OK(hipMemAddressReserve(&part, size, 0, NULL, 0));
  OK(hipMemMap(part, size, size, handle, 0));
  desc.location = prop.location;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemSetAccess(part, size, &desc, 1));
  desc.flags = (hipMemAccessFlags)atoi(argv[2]);
  OK(hipMemSetAccess(part, size, &desc, 1));

  EXPECT(async_copy(writes ? part : other, gpu, writes ? other : part, gpu, size, 0, NULL, done) == 0);
  for (polls = 0; polls < 2000 && !faulted && signal_load(done) != 0; polls++) {
    struct timespec time;
    time.tv_sec = 0;
    time.tv_nsec = 5000000;
    nanosleep(&time, NULL);
  }
  if (signal_load(done) != 0 || faulted) {
    EXPECT(faulted);
    puts("faulted");
    fflush(stdout);
    _exit(0);
  }
  OK(hipMemcpyDtoH(&byte, writes ? whole + size : other, 1));
  EXPECT(byte == (writes ? 3 : 2));
  OK(hipMemcpyDtoH(&byte, whole, 1));
  EXPECT(byte == 1);
  puts("copied");
  return 0;
}
