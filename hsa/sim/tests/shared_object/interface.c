/* Calls functions that the shared library exports but `hsa_sim::Simulation::table` lacks. The test compiles this
 * program with AMD's headers. The functions query attributes (of the system, agents, caches, ISAs and regions), and use
 * signals, queues with barriers, copies on engines, and callbacks. */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ext_image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                 \
  do {                                                                   \
    if (!(condition)) {                                                  \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
      exit(1);                                                           \
    }                                                                    \
  } while (0)
#define OK(call) CHECK((call) == HSA_STATUS_SUCCESS)

/* The timeout of waits that must end: ten seconds. The unit of the simulation's timeouts is a nanosecond. */
static const uint64_t LIMIT = 10000000000u;
/* The timeout of waits that must expire: 20 milliseconds. */
static const uint64_t SHORT_TIMEOUT = 20000000;

enum { ROUNDS = 30, PACKETS_PER_ROUND = 3 };

struct agents {
  hsa_agent_t cpu, gpu;
  int gpus;
};

static hsa_status_t find_agents(hsa_agent_t agent, void *data) {
  struct agents *agents = data;
  hsa_device_type_t type;
  OK(hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type));
  if (type == HSA_DEVICE_TYPE_CPU)
    agents->cpu = agent;
  else if (agents->gpus++ == 0)
    agents->gpu = agent;
  return HSA_STATUS_SUCCESS;
}

/* Returns the number of bytes of an attribute. Calls the function twice, on buffers with different contents: a byte
 * that changes in either buffer was written. */
static size_t attribute_length(hsa_agent_t agent, int attribute, hsa_status_t expected) {
  unsigned char one[256], other[256];
  memset(one, 0x55, sizeof one);
  memset(other, 0xaa, sizeof other);
  CHECK(hsa_agent_get_info(agent, (hsa_agent_info_t)attribute, one) == expected);
  CHECK(hsa_agent_get_info(agent, (hsa_agent_info_t)attribute, other) == expected);
  size_t written = 0;
  while (written < sizeof one && (one[written] != 0x55 || other[written] != 0xaa)) ++written;
  return written;
}

static void agent_attributes(struct agents agents) {
  static const struct {
    int first, last;
  } ranges[] = {
      {HSA_AGENT_INFO_NAME, HSA_AGENT_INFO_FAST_F16_OPERATION},
      {HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS, HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS},
      {HSA_AMD_AGENT_INFO_CHIP_ID, HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY},
      {HSA_AMD_AGENT_INFO_ASIC_FAMILY_ID, HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG},
      {HSA_AMD_AGENT_INFO_IOMMU_SUPPORT, HSA_AMD_AGENT_INFO_AQL_EXTENSIONS},
  };
  for (size_t range = 0; range < sizeof ranges / sizeof *ranges; ++range)
    for (int attribute = ranges[range].first; attribute <= ranges[range].last; ++attribute)
      CHECK(attribute_length(agents.gpu, attribute, HSA_STATUS_SUCCESS) > 0);
  CHECK(attribute_length(agents.gpu, HSA_AGENT_INFO_CACHE_SIZE, HSA_STATUS_SUCCESS) == 4 * sizeof(uint32_t));
  CHECK(attribute_length(agents.cpu, HSA_AGENT_INFO_WORKGROUP_MAX_DIM, HSA_STATUS_SUCCESS) == 3 * sizeof(uint16_t));
  CHECK(attribute_length(agents.gpu, HSA_AGENT_INFO_GRID_MAX_DIM, HSA_STATUS_SUCCESS) == sizeof(hsa_dim3_t));
  CHECK(attribute_length(agents.gpu, HSA_AMD_AGENT_INFO_HDP_FLUSH, HSA_STATUS_SUCCESS) == sizeof(hsa_amd_hdp_flush_t));
  CHECK(attribute_length(agents.gpu, HSA_AGENT_INFO_EXTENSIONS, HSA_STATUS_SUCCESS) == 128);
#if HSA_AMD_INTERFACE_VERSION_MINOR >= 15
  size_t counters = attribute_length(agents.gpu, HSA_AMD_AGENT_INFO_CLOCK_COUNTERS, HSA_STATUS_SUCCESS);
  CHECK(counters == sizeof(hsa_amd_clock_counters_t));
#endif
  /* An unknown attribute, and an attribute that a CPU does not have. */
  CHECK(attribute_length(agents.gpu, 0xA0FF, HSA_STATUS_ERROR_INVALID_ARGUMENT) == 0);
  CHECK(attribute_length(agents.cpu, HSA_AMD_AGENT_INFO_MEMORY_AVAIL, HSA_STATUS_ERROR_INVALID_ARGUMENT) == 0);

  uint32_t simds, waves, units, line;
  OK(hsa_agent_get_info(agents.gpu, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU, &simds));
  OK(hsa_agent_get_info(agents.gpu, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU, &waves));
  OK(hsa_agent_get_info(agents.gpu, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT, &units));
  OK(hsa_agent_get_info(agents.gpu, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_CACHELINE_SIZE, &line));
  CHECK(simds > 0 && waves % simds == 0 && units > 0 && line >= 64);
}

static hsa_status_t check_cache(hsa_cache_t cache, void *data) {
  uint32_t name_length, size;
  uint8_t level;
  const char *name;
  OK(hsa_cache_get_info(cache, HSA_CACHE_INFO_NAME_LENGTH, &name_length));
  OK(hsa_cache_get_info(cache, HSA_CACHE_INFO_NAME, &name));
  OK(hsa_cache_get_info(cache, HSA_CACHE_INFO_LEVEL, &level));
  OK(hsa_cache_get_info(cache, HSA_CACHE_INFO_SIZE, &size));
  CHECK(strlen(name) == name_length && size > 0);
  CHECK(level == ++*(int *)data);
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t check_wavefront(hsa_wavefront_t wavefront, void *data) {
  uint32_t size;
  OK(hsa_wavefront_get_info(wavefront, HSA_WAVEFRONT_INFO_SIZE, &size));
  CHECK(size == *(uint32_t *)data);
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t check_isa(hsa_isa_t isa, void *data) {
  hsa_agent_t gpu = *(hsa_agent_t *)data;
  uint32_t size;
  OK(hsa_agent_get_info(gpu, HSA_AGENT_INFO_WAVEFRONT_SIZE, &size));
  OK(hsa_isa_iterate_wavefronts(isa, check_wavefront, &size));
  uint32_t name_length;
  char name[128];
  OK(hsa_isa_get_info_alt(isa, HSA_ISA_INFO_NAME_LENGTH, &name_length));
  CHECK(name_length < sizeof name);
  OK(hsa_isa_get_info_alt(isa, HSA_ISA_INFO_NAME, name));
  CHECK(strlen(name) + 1 == name_length);
  hsa_isa_t named;
  bool compatible = false;
  OK(hsa_isa_from_name(name, &named));
  OK(hsa_isa_compatible(named, isa, &compatible));
  CHECK(compatible && hsa_isa_from_name("gfx1", &named) == HSA_STATUS_ERROR_INVALID_ISA_NAME);
  bool models[2] = {true, false};
  OK(hsa_isa_get_info_alt(isa, HSA_ISA_INFO_MACHINE_MODELS, models));
  CHECK(!models[HSA_MACHINE_MODEL_SMALL] && models[HSA_MACHINE_MODEL_LARGE]);
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t find_region(hsa_region_t region, void *data) {
  hsa_region_segment_t segment;
  bool allowed, host;
  OK(hsa_region_get_info(region, HSA_REGION_INFO_SEGMENT, &segment));
  OK(hsa_region_get_info(region, HSA_REGION_INFO_RUNTIME_ALLOC_ALLOWED, &allowed));
  OK(hsa_region_get_info(region, (hsa_region_info_t)HSA_AMD_REGION_INFO_HOST_ACCESSIBLE, &host));
  CHECK(allowed == (segment == HSA_REGION_SEGMENT_GLOBAL));
  if (!allowed || !host) return HSA_STATUS_SUCCESS;
  *(hsa_region_t *)data = region;
  return HSA_STATUS_INFO_BREAK;
}

static void regions(struct agents agents) {
  hsa_region_t region = {0};
  CHECK(hsa_agent_iterate_regions(agents.cpu, find_region, &region) == HSA_STATUS_INFO_BREAK);
  char *memory;
  OK(hsa_memory_allocate(region, 8192, (void **)&memory));
  memset(memory, 1, 8192);
  OK(hsa_memory_assign_agent(memory, agents.gpu, HSA_ACCESS_PERMISSION_RW));
  OK(hsa_memory_free(memory));
  /* Registering accepts any address, and has no effect. */
  OK(hsa_memory_register(memory, 8192));
  OK(hsa_memory_deregister(memory, 8192));
  hsa_region_t invalid = {42};
  CHECK(hsa_memory_allocate(invalid, 8192, (void **)&memory) == HSA_STATUS_ERROR_INVALID_REGION);
}

static bool count_down(hsa_signal_value_t value, void *data) {
  CHECK(value == 0);
  hsa_signal_subtract_screlease(*(hsa_signal_t *)data, 1);
  return false;
}

static void signals(void) {
  hsa_signal_t signal, done;
  OK(hsa_signal_create(5, 0, NULL, &signal));
  OK(hsa_amd_signal_create(1, 0, NULL, 0, &done));
  hsa_signal_add_relaxed(signal, 3);
  hsa_signal_subtract_acq_rel(signal, 1);
  CHECK(hsa_signal_load_relaxed(signal) == 7);
  hsa_signal_and_screlease(signal, 6);
  hsa_signal_or_scacquire(signal, 9);
  CHECK(hsa_signal_load_acquire(signal) == 15);
  hsa_signal_xor_release(signal, 5);
  CHECK(hsa_signal_exchange_relaxed(signal, 20) == 10);
  CHECK(hsa_signal_cas_scacq_screl(signal, 21, 22) == 20);
  CHECK(hsa_signal_cas_relaxed(signal, 20, 30) == 20 && hsa_signal_load_scacquire(signal) == 30);
  hsa_signal_silent_store_relaxed(signal, 31);
  CHECK(hsa_signal_wait_relaxed(signal, HSA_SIGNAL_CONDITION_GTE, 31, LIMIT, HSA_WAIT_STATE_ACTIVE) == 31);
  CHECK(hsa_signal_wait_acquire(signal, HSA_SIGNAL_CONDITION_EQ, 0, 1000, HSA_WAIT_STATE_BLOCKED) == 31);

  /* The handler runs once, after a store through the pointer to the value. */
  OK(hsa_amd_signal_async_handler(signal, HSA_SIGNAL_CONDITION_EQ, 0, count_down, &done));
  volatile hsa_signal_value_t *value;
  OK(hsa_amd_signal_value_pointer(signal, &value));
  *value = 0;
  CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, LIMIT, HSA_WAIT_STATE_BLOCKED) == 0);

  hsa_signal_t both[] = {signal, done};
  hsa_signal_condition_t conditions[] = {HSA_SIGNAL_CONDITION_NE, HSA_SIGNAL_CONDITION_EQ};
  hsa_signal_value_t values[] = {0, 0}, found[] = {-1, -1};
  CHECK(hsa_amd_signal_wait_any(2, both, conditions, values, LIMIT, HSA_WAIT_STATE_BLOCKED, found) == 1);
  CHECK(found[0] == 0);
#if HSA_AMD_INTERFACE_VERSION_MINOR >= 7
  CHECK(hsa_amd_signal_wait_all(2, both, conditions, values, 1000, HSA_WAIT_STATE_BLOCKED, found) != 0);
  hsa_signal_store_release(signal, 4);
  CHECK(hsa_amd_signal_wait_all(2, both, conditions, values, LIMIT, HSA_WAIT_STATE_BLOCKED, found) == 0);
  CHECK(found[0] == 4 && found[1] == 0);
#endif

  /* Attaches a shared signal a second time, as another process would. */
  hsa_signal_t shared, attached;
  hsa_amd_ipc_signal_t handle;
  OK(hsa_amd_signal_create(2, 0, NULL, HSA_AMD_SIGNAL_IPC, &shared));
  OK(hsa_amd_ipc_signal_create(shared, &handle));
  OK(hsa_amd_ipc_signal_attach(&handle, &attached));
  hsa_signal_store_relaxed(attached, 9);
  CHECK(hsa_signal_wait_scacquire(shared, HSA_SIGNAL_CONDITION_EQ, 9, LIMIT, HSA_WAIT_STATE_BLOCKED) == 9);
  CHECK(hsa_amd_ipc_signal_create(signal, &handle) != HSA_STATUS_SUCCESS);
  OK(hsa_signal_destroy(attached));
  OK(hsa_signal_destroy(shared));
  OK(hsa_signal_destroy(signal));
  OK(hsa_signal_destroy(done));
  CHECK(hsa_signal_destroy(done) == HSA_STATUS_ERROR_INVALID_SIGNAL);
}

static void report_error(hsa_status_t status, hsa_queue_t *queue, void *data) {
  CHECK(status != HSA_STATUS_SUCCESS && queue->size >= 64);
  hsa_signal_store_screlease(*(hsa_signal_t *)data, status);
}

/* Writes a packet to the ring, with its header last. Then rings the doorbell. */
static void submit(hsa_queue_t *queue, const void *packet, uint16_t header) {
  uint64_t index = hsa_queue_add_write_index_screlease(queue, 1);
  char *slot = (char *)queue->base_address + index % queue->size * 64;
  memcpy(slot + 2, (const char *)packet + 2, 62);
  __atomic_store_n((uint16_t *)slot, header, __ATOMIC_RELEASE);
  hsa_signal_store_screlease(queue->doorbell_signal, (hsa_signal_value_t)index);
}

/* Waits until a signal is below 1, or until the timeout. Returns the value. */
static hsa_signal_value_t wait_below_1(hsa_signal_t signal, uint64_t nanoseconds) {
  return hsa_signal_wait_scacquire(signal, HSA_SIGNAL_CONDITION_LT, 1, nanoseconds, HSA_WAIT_STATE_BLOCKED);
}

static void queues(struct agents agents) {
  hsa_signal_t first, second, done, error;
  OK(hsa_signal_create(1, 0, NULL, &first));
  OK(hsa_signal_create(1, 0, NULL, &second));
  OK(hsa_signal_create(1, 0, NULL, &done));
  OK(hsa_signal_create(0, 0, NULL, &error));
  hsa_queue_t *queue;
  CHECK(hsa_queue_create(agents.cpu, 64, HSA_QUEUE_TYPE_MULTI, NULL, NULL, 0, 0, &queue) != HSA_STATUS_SUCCESS);
  CHECK(hsa_queue_create(agents.gpu, 65, HSA_QUEUE_TYPE_MULTI, NULL, NULL, 0, 0, &queue) ==
        HSA_STATUS_ERROR_INVALID_ARGUMENT);
  OK(hsa_queue_create(agents.gpu, 64, HSA_QUEUE_TYPE_MULTI, report_error, &error, UINT32_MAX, UINT32_MAX, &queue));
  CHECK(queue->size == 64 && hsa_queue_load_read_index_scacquire(queue) == 0);
#if HSA_AMD_INTERFACE_VERSION_MINOR >= 7
  hsa_agent_t owner = {0};
  OK(hsa_amd_queue_get_info(queue, HSA_AMD_QUEUE_INFO_AGENT, &owner));
  CHECK(owner.handle == agents.gpu.handle);
#endif
  OK(hsa_amd_queue_set_priority(queue, HSA_AMD_QUEUE_PRIORITY_HIGH));

  /* The first barrier waits for both signals, the second for either signal, and the third for a value. The loop
   * submits more packets than the ring has slots, but waits for each packet. */
  for (int round = 0; round < ROUNDS; ++round) {
    hsa_signal_store_relaxed(first, 1);
    hsa_signal_store_relaxed(second, 1);
    hsa_signal_store_relaxed(done, 1);
    hsa_barrier_and_packet_t all = {.dep_signal = {first, second}, .completion_signal = done};
    submit(queue, &all, HSA_PACKET_TYPE_BARRIER_AND);
    hsa_signal_store_relaxed(first, 0);
    if (round == 0) CHECK(wait_below_1(done, SHORT_TIMEOUT) == 1);
    hsa_signal_store_relaxed(second, 0);
    CHECK(wait_below_1(done, LIMIT) == 0);

    hsa_signal_store_relaxed(first, 1);
    hsa_signal_store_relaxed(done, 1);
    hsa_barrier_or_packet_t any = {.dep_signal = {first, second}, .completion_signal = done};
    submit(queue, &any, HSA_PACKET_TYPE_BARRIER_OR);
    CHECK(wait_below_1(done, LIMIT) == 0);

    hsa_signal_store_relaxed(done, 1);
    hsa_amd_barrier_value_packet_t value = {.signal = first, .value = 2, .mask = 6, .cond = HSA_SIGNAL_CONDITION_EQ};
    value.header.AmdFormat = HSA_AMD_PACKET_TYPE_BARRIER_VALUE;
    value.completion_signal = done;
    submit(queue, &value, HSA_PACKET_TYPE_VENDOR_SPECIFIC);
    if (round == 0) CHECK(wait_below_1(done, SHORT_TIMEOUT) == 1);
    hsa_signal_store_relaxed(first, 11);
    CHECK(wait_below_1(done, LIMIT) == 0);
  }
  CHECK(hsa_queue_load_read_index_relaxed(queue) == ROUNDS * PACKETS_PER_ROUND);
  CHECK(hsa_queue_load_write_index_relaxed(queue) == ROUNDS * PACKETS_PER_ROUND);

  /* A kernel dispatch is an error: the callback runs, and the completion signal becomes negative. */
  hsa_kernel_dispatch_packet_t kernel = {.setup = 1, .completion_signal = done};
  hsa_signal_store_relaxed(done, 1);
  submit(queue, &kernel, HSA_PACKET_TYPE_KERNEL_DISPATCH);
  CHECK(wait_below_1(done, LIMIT) < 0);
  CHECK(hsa_signal_wait_scacquire(error, HSA_SIGNAL_CONDITION_NE, 0, LIMIT, HSA_WAIT_STATE_BLOCKED) != 0);
  OK(hsa_queue_destroy(queue));
  CHECK(hsa_queue_destroy(queue) == HSA_STATUS_ERROR_INVALID_QUEUE);
  OK(hsa_signal_destroy(first));
  OK(hsa_signal_destroy(second));
  OK(hsa_signal_destroy(done));
  OK(hsa_signal_destroy(error));
}

static hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *data) {
  bool allowed;
  OK(hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, &allowed));
  if (!allowed) return HSA_STATUS_SUCCESS;
  *(hsa_amd_memory_pool_t *)data = pool;
  return HSA_STATUS_INFO_BREAK;
}

static int deallocated;

static void count_deallocation(void *address, void *data) {
  CHECK(address == data);
  ++deallocated;
}

static void memory(struct agents agents) {
  hsa_amd_memory_pool_t pool = {0};
  CHECK(hsa_amd_agent_iterate_memory_pools(agents.gpu, find_pool, &pool) == HSA_STATUS_INFO_BREAK);
  void *from, *to;
  OK(hsa_amd_memory_pool_allocate(pool, 65536, 0, &from));
  OK(hsa_amd_memory_pool_allocate(pool, 65536, 0, &to));
  OK(hsa_amd_memory_fill(from, 0x01020304, 16384));
  uint32_t engines = 0;
  OK(hsa_amd_memory_copy_engine_status(agents.gpu, agents.gpu, &engines));
  CHECK(engines & 1);
  hsa_signal_t done;
  OK(hsa_signal_create(1, 0, NULL, &done));
  OK(hsa_amd_memory_async_copy_on_engine(to, agents.gpu, from, agents.gpu, 65536, 0, NULL, done, HSA_AMD_SDMA_ENGINE_0,
                                         false));
  CHECK(wait_below_1(done, LIMIT) == 0);
  uint32_t copied[4] = {0};
  OK(hsa_memory_copy(copied, to, sizeof copied));
  CHECK(copied[0] == 0x01020304 && copied[3] == 0x01020304);
  OK(hsa_signal_destroy(done));

  OK(hsa_amd_pointer_info_set_userdata(from, &deallocated));
  hsa_amd_pointer_info_t info = {.size = sizeof info};
  OK(hsa_amd_pointer_info(from, &info, NULL, NULL, NULL));
  CHECK(info.userData == &deallocated && info.sizeInBytes == 65536);
  OK(hsa_amd_register_deallocation_callback(from, count_deallocation, from));
  OK(hsa_amd_register_deallocation_callback(to, count_deallocation, to));
  OK(hsa_amd_deregister_deallocation_callback(to, count_deallocation));
  OK(hsa_amd_memory_pool_free(from));
  OK(hsa_amd_memory_pool_free(to));
  CHECK(deallocated == 1);
}

static void system_attributes(void) {
  hsa_endianness_t endianness;
  hsa_machine_model_t model;
  uint8_t extensions[128];
  memset(extensions, 0xff, sizeof extensions);
  OK(hsa_system_get_info(HSA_SYSTEM_INFO_ENDIANNESS, &endianness));
  OK(hsa_system_get_info(HSA_SYSTEM_INFO_MACHINE_MODEL, &model));
  OK(hsa_system_get_info(HSA_SYSTEM_INFO_EXTENSIONS, extensions));
  CHECK(endianness == HSA_ENDIANNESS_LITTLE && model == HSA_MACHINE_MODEL_LARGE && extensions[127] == 0);
  bool supported = true;
  OK(hsa_system_extension_supported(HSA_EXTENSION_IMAGES, 1, 0, &supported));
  CHECK(!supported);
  const char *name;
  OK(hsa_extension_get_name(HSA_EXTENSION_IMAGES, &name));
  CHECK(strcmp(name, "HSA_EXTENSION_IMAGES") == 0);
}

int main(void) {
  hsa_signal_t signal;
  CHECK(hsa_amd_signal_create(1, 0, NULL, 0, &signal) == HSA_STATUS_ERROR_NOT_INITIALIZED);
  OK(hsa_init());
  struct agents agents = {0};
  OK(hsa_iterate_agents(find_agents, &agents));
  CHECK(agents.gpus > 0);
  system_attributes();
  agent_attributes(agents);
  int level = 0;
  OK(hsa_agent_iterate_caches(agents.gpu, check_cache, &level));
  CHECK(level == 3);
  OK(hsa_agent_iterate_isas(agents.gpu, check_isa, &agents.gpu));
  regions(agents);
  signals();
  queues(agents);
  memory(agents);
  /* A function that is not simulated prints its name, and returns a status that hsa_status_string() knows. */
  hsa_executable_t executable;
  hsa_status_t status = hsa_executable_create_alt(HSA_PROFILE_FULL, HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT, NULL,
                                                  &executable);
  const char *text = NULL;
  CHECK(status != HSA_STATUS_SUCCESS);
  OK(hsa_status_string(status, &text));
  CHECK(strstr(text, "HSA_STATUS_ERROR_NOT_SUPPORTED") == text);
  OK(hsa_shut_down());
  puts("all calls behaved as expected");
  return 0;
}
