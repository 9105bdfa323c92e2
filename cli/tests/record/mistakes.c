/* The first argument names the mistake that the program makes. With `none`, `threads`, `measure`, `exit`, `crash` and
 * `fork`, the program makes no mistake. The second argument (default: 1) says how many times the program makes the
 * mistake. With `measure`, the second argument is the number of calls in a batch. */
#include <hsa_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION(name) extern __typeof__(*(name##_fn)0) name
FUNCTION(hsa_init);
FUNCTION(hsa_shut_down);
FUNCTION(hsa_iterate_agents);
FUNCTION(hsa_agent_get_info);
FUNCTION(hsa_amd_agent_iterate_memory_pools);
FUNCTION(hsa_amd_memory_pool_get_info);
FUNCTION(hsa_amd_memory_fill);
FUNCTION(hsa_amd_ipc_memory_create);
FUNCTION(hsa_amd_vmem_address_reserve);
FUNCTION(hsa_amd_vmem_address_free);
FUNCTION(hsa_amd_vmem_handle_create);
FUNCTION(hsa_amd_vmem_handle_release);
FUNCTION(hsa_amd_vmem_map);
FUNCTION(hsa_amd_vmem_unmap);
FUNCTION(hsa_amd_vmem_set_access);
FUNCTION(hsa_amd_vmem_get_access);

static hsa_agent_t gpus[8];
static int gpu_count;
static hsa_amd_memory_pool_t pool;
static const size_t size = 2 << 20;

static void expect(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "%s failed\n", what);
  exit(1);
}
#define CHECK(call) expect((call) == HSA_STATUS_SUCCESS, #call)

static hsa_status_t add_gpu(hsa_agent_t agent, void *unused) {
  unsigned type = 0;
  (void)unused;
  CHECK(hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type));
  if (type == HSA_DEVICE_TYPE_GPU && gpu_count < 8) gpus[gpu_count++] = agent;
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t take_pool(hsa_amd_memory_pool_t found, void *unused) {
  bool allowed = false;
  (void)unused;
  CHECK(hsa_amd_memory_pool_get_info(found, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, &allowed));
  if (allowed && pool.handle == 0) pool = found;
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t grant(void *at, size_t bytes, int first, int second) {
  hsa_amd_memory_access_desc_t list[2] = {{HSA_ACCESS_PERMISSION_RW, gpus[first]}};
  if (second >= 0) list[1] = (hsa_amd_memory_access_desc_t){HSA_ACCESS_PERMISSION_RW, gpus[second]};
  return hsa_amd_vmem_set_access(at, bytes, list, second >= 0 ? 2 : 1);
}

/* Not part of `run_once`, because a test searches the call stack for the name of this function. */
__attribute__((noinline)) void leak(void) {
  hsa_amd_vmem_alloc_handle_t memory;
  CHECK(hsa_amd_vmem_handle_create(pool, size, MEMORY_TYPE_NONE, 0, &memory));
}

static void run_once(const char *mistake) {
  int uses_after_unmap = !strcmp(mistake, "use-after-unmap"), ungranted = !strcmp(mistake, "never-granted");
  int owner_first = !strcmp(mistake, "owner-not-last"), cuts = !strcmp(mistake, "range-cut");
  int shares = !strcmp(mistake, "vmem-in-ipc");
  hsa_amd_vmem_alloc_handle_t memory, second;
  hsa_access_permission_t permission;
  char *at = NULL;
  CHECK(hsa_amd_vmem_address_reserve((void **)&at, 2 * size, 0, 0));
  CHECK(hsa_amd_vmem_handle_create(pool, size, MEMORY_TYPE_NONE, 0, &memory));
  CHECK(hsa_amd_vmem_handle_create(pool, size, MEMORY_TYPE_NONE, 0, &second));
  CHECK(hsa_amd_vmem_map(at, size, 0, memory, 0));
  CHECK(hsa_amd_vmem_map(at + size, size, 0, second, 0));
  if (gpu_count < 2) {
    CHECK(grant(at, size, 0, -1));
  } else {
    /* The first GPU owns the memory. Some releases reject a list that names the owner first. */
    hsa_status_t status = grant(at, size, owner_first ? 0 : 1, owner_first ? 1 : 0);
    if (!owner_first) CHECK(status);
  }
  if (!ungranted) CHECK(grant(at + size, size, 0, -1));
  if (cuts) (void)grant(at + size / 2, size, 0, -1);
  CHECK(hsa_amd_vmem_get_access(at, &permission, gpus[0]));
  if (shares) {
    hsa_amd_ipc_memory_t handle;
    (void)hsa_amd_ipc_memory_create(at, size, &handle);
  }
  CHECK(hsa_amd_vmem_unmap(at, size));
  if (uses_after_unmap) (void)hsa_amd_vmem_get_access(at, &permission, gpus[0]);
  CHECK(hsa_amd_vmem_unmap(at + size, size));
  CHECK(hsa_amd_vmem_handle_release(memory));
  CHECK(hsa_amd_vmem_handle_release(second));
  CHECK(hsa_amd_vmem_address_free(at, 2 * size));
  if (!strcmp(mistake, "leak")) leak();
}

static void *query(void *unused) {
  hsa_access_permission_t permission;
  for (int i = 0; i < 1000; i++) (void)hsa_amd_vmem_get_access(NULL, &permission, gpus[0]);
  return unused;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

/* Measures calls that fail in the runtime at once, so that recording is most of their cost. Prints the time of the
 * fastest of 50 batches, because the computer may be busy. */
static void measure(int rounds) {
  hsa_access_permission_t permission;
  double fastest = 1e9;
  for (int batch = 0; batch < 50; batch++) {
    double start = now(), took;
    for (int i = 0; i < rounds; i++) (void)hsa_amd_vmem_get_access(NULL, &permission, gpus[0]);
    took = (now() - start) / rounds;
    if (took < fastest) fastest = took;
  }
  printf("%.0f ns a call\n", fastest);
}

int main(int argc, char **argv) {
  const char *mistake = argc > 1 ? argv[1] : "none";
  int rounds = argc > 2 ? atoi(argv[2]) : 1;
  CHECK(hsa_init());
  CHECK(hsa_iterate_agents(add_gpu, NULL));
  CHECK(hsa_amd_agent_iterate_memory_pools(gpus[0], take_pool, NULL));
  if (!strcmp(mistake, "threads")) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, query, NULL);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    rounds = 0;
  }
  if (!strcmp(mistake, "measure")) {
    measure(rounds);
    rounds = 0;
  }
  for (int i = 0; i < rounds; i++) run_once(mistake);
  if (!strcmp(mistake, "exit")) return 7;
  if (!strcmp(mistake, "crash")) abort();
  if (!strcmp(mistake, "fork") && fork() == 0) {
    /* A forked child is not recorded. */
    hsa_access_permission_t permission;
    (void)hsa_amd_vmem_get_access(NULL, &permission, gpus[0]);
    _exit(0);
  }
  CHECK(hsa_shut_down());
  return 0;
}
