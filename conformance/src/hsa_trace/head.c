/* Repeats HSA calls that `hsa-vmm record` has recorded, and compares each status with the recorded status. Needs no
 * headers of ROCm. To build:
 *
 *   cc -g -o again again.c -L/opt/rocm/lib -l:libhsa-runtime64.so.1 -Wl,--allow-shlib-undefined
 *
 * The last option is needed if the runtime was built for a newer C library than this machine's. Run the program with
 * LD_LIBRARY_PATH=/opt/rocm/lib, or inside of `hsa-vmm emulate --rocr VERSION --`.
 *
 * Recorded program: PROGRAM
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

DECLARATIONS
#define UNUSED __attribute__((unused))
#define CALL(line, recorded, ...) compare(line, recorded, __VA_ARGS__, #__VA_ARGS__)
#define NONE ((void *)0)

typedef struct {
  hsa_agent_t agents[64];
  int count;
} agents_t;

static agents_t cpus, gpus;
static UNUSED void *block[BLOCKS];
static UNUSED hsa_amd_vmem_alloc_handle_t memory[MEMORIES];
static UNUSED int descriptor[DESCRIPTORS];
static UNUSED hsa_access_permission_t permission;
static UNUSED hsa_amd_memory_pool_t pool_of_memory;
static UNUSED hsa_amd_memory_type_t type_of_memory;
static UNUSED hsa_amd_ipc_memory_t ipc;
/* These variables receive the results of calls whose recorded status is an error. */
static UNUSED void *no_block;
static UNUSED hsa_amd_vmem_alloc_handle_t no_memory;
static UNUSED int no_descriptor;
static int agreed, calls;

static UNUSED void compare(int line, hsa_status_t recorded, hsa_status_t status, const char *call) {
  calls++;
  agreed += status == recorded;
  if (status != recorded)
    fprintf(stderr, "line %d: recorded status %#x, here %#x: %s\n", line, (unsigned)recorded,
            (unsigned)status, call);
}

static hsa_status_t add_agent(hsa_agent_t agent, void *unused) {
  hsa_device_type_t type;
  (void)unused;
  if (hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type) != HSA_STATUS_SUCCESS) exit(2);
  if (type == HSA_DEVICE_TYPE_CPU && cpus.count < 64) cpus.agents[cpus.count++] = agent;
  if (type == HSA_DEVICE_TYPE_GPU && gpus.count < 64) gpus.agents[gpus.count++] = agent;
  return HSA_STATUS_SUCCESS;
}

static UNUSED hsa_agent_t agent(agents_t list, int number) {
  if (number < list.count) return list.agents[number];
  fprintf(stderr, "the recording uses an agent that this machine does not have\n");
  exit(2);
}

static UNUSED hsa_agent_t cpu(int number) { return agent(cpus, number); }
static UNUSED hsa_agent_t gpu(int number) { return agent(gpus, number); }
/* These null handles replace recorded values that name no agent or pool: AMD's runtime uses each value except null as
 * an address. */
static UNUSED const hsa_agent_t invalid_agent;
static UNUSED const hsa_amd_memory_pool_t invalid_pool;

typedef struct {
  hsa_amd_memory_pool_t pool;
  int to_skip;
} search_t;

static UNUSED hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *found) {
  search_t *search = found;
  search->pool = pool;
  return search->to_skip-- == 0 ? HSA_STATUS_INFO_BREAK : HSA_STATUS_SUCCESS;
}

static UNUSED hsa_amd_memory_pool_t pool(hsa_agent_t agent, int number) {
  search_t search = {{0}, number};
  if (hsa_amd_agent_iterate_memory_pools(agent, find_pool, &search) == HSA_STATUS_INFO_BREAK)
    return search.pool;
  fprintf(stderr, "the recording uses a pool that this machine does not have\n");
  exit(2);
}

static UNUSED hsa_amd_vmem_alloc_handle_t invalid_memory(uint64_t handle) {
  return (hsa_amd_vmem_alloc_handle_t){handle};
}

static UNUSED hsa_amd_memory_access_desc_t access_of(hsa_agent_t agent, int permissions) {
  return (hsa_amd_memory_access_desc_t){(hsa_access_permission_t)permissions, agent};
}

static UNUSED hsa_status_t set_access(void *at, size_t size, size_t count,
                                      const hsa_amd_memory_access_desc_t *list) {
  return hsa_amd_vmem_set_access(at, size, count ? list : NONE, count);
}
