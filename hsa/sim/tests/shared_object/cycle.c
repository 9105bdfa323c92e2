/*
 * Reserves, maps, copies, shares and frees virtual memory with two GPUs. Like any HSA program, includes only AMD's own
 * headers. Exits with status 0 on success, with 3 if hsa_init fails, and with 1 after any other failure.
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_GPUS = 8 };
static const size_t SIZE = 4u << 20;

static void check(hsa_status_t got, hsa_status_t expected, const char *what, int line) {
  if (got != expected) {
    fprintf(stderr, "cycle.c:%d: %s: %#x instead of %#x\n", line, what, got, expected);
    _exit(1);
  }
}
#define EXPECT(call, status) check(call, status, #call, __LINE__)
#define OK(call) EXPECT(call, HSA_STATUS_SUCCESS)
#define TRUE(condition) check(!(condition), 0, #condition, __LINE__)

struct agents {
  hsa_agent_t cpu, gpu[MAX_GPUS];
  int gpus;
};

static hsa_status_t keep_agent(hsa_agent_t agent, void *data) {
  struct agents *agents = data;
  hsa_device_type_t type;
  OK(hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type));
  if (type == HSA_DEVICE_TYPE_CPU) agents->cpu = agent;
  if (type == HSA_DEVICE_TYPE_GPU && agents->gpus < MAX_GPUS) agents->gpu[agents->gpus++] = agent;
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t first_pool(hsa_amd_memory_pool_t pool, void *data) {
  *(hsa_amd_memory_pool_t *)data = pool;
  return HSA_STATUS_INFO_BREAK;
}

int main(void) {
  void *base;
  EXPECT(hsa_amd_vmem_address_reserve(&base, SIZE, 0, 0), HSA_STATUS_ERROR_NOT_INITIALIZED);
  hsa_status_t status = hsa_init();
  if (status != HSA_STATUS_SUCCESS) return 3;

  bool supported = false;
  OK(hsa_system_get_info((hsa_system_info_t)HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED, &supported));
  TRUE(supported);
  struct agents agents = {0};
  OK(hsa_iterate_agents(keep_agent, &agents));
  TRUE(agents.gpus == 2);
  hsa_amd_memory_pool_t pool;
  EXPECT(hsa_amd_agent_iterate_memory_pools(agents.gpu[0], first_pool, &pool), HSA_STATUS_INFO_BREAK);

  OK(hsa_amd_vmem_address_reserve(&base, 2 * SIZE, 0, 0));
  hsa_amd_vmem_alloc_handle_t handle;
  OK(hsa_amd_vmem_handle_create(pool, SIZE, MEMORY_TYPE_PINNED, 0, &handle));
  OK(hsa_amd_vmem_map(base, SIZE, 0, handle, 0));
  hsa_amd_memory_access_desc_t all[3] = {
      {HSA_ACCESS_PERMISSION_RW, agents.gpu[1]},
      {HSA_ACCESS_PERMISSION_RW, agents.cpu},
      {HSA_ACCESS_PERMISSION_RW, agents.gpu[0]},
  };
  OK(hsa_amd_vmem_set_access(base, SIZE, all, 3));
  hsa_access_permission_t permission;
  OK(hsa_amd_vmem_get_access(base, &permission, agents.gpu[1]));
  TRUE(permission == HSA_ACCESS_PERMISSION_RW);

  /* The CPU writes a page, and a GPU writes the next page. A second handle of the memory shows both pages. */
  memset(base, 0x5a, 4096);
  uint32_t pattern[1024];
  for (int word = 0; word < 1024; word++) pattern[word] = 0x01020304;
  OK(hsa_memory_copy((char *)base + 4096, pattern, sizeof pattern));
  int descriptor;
  OK(hsa_amd_vmem_export_shareable_handle(&descriptor, handle, 0));
  hsa_amd_vmem_alloc_handle_t imported;
  OK(hsa_amd_vmem_import_shareable_handle(descriptor, &imported));
  TRUE(imported.handle != handle.handle);
  char *alias = (char *)base + SIZE;
  OK(hsa_amd_vmem_map(alias, SIZE, 0, imported, 0));
  OK(hsa_amd_vmem_set_access(alias, SIZE, all, 3));
  /* The program closes the descriptor only now, because ROCm 7.14 first uses the descriptor when access is set. */
  TRUE(close(descriptor) == 0);
  TRUE(alias[0] == 0x5a && alias[4095] == 0x5a);
  uint32_t filled[2];
  OK(hsa_memory_copy(filled, alias + 8188, sizeof filled));
  TRUE(filled[0] == 0x01020304 && filled[1] == 0);

  hsa_amd_vmem_alloc_handle_t retained;
  OK(hsa_amd_vmem_retain_alloc_handle(&retained, base));
  TRUE(retained.handle == handle.handle);
  hsa_amd_memory_pool_t owner_pool;
  hsa_amd_memory_type_t type;
  OK(hsa_amd_vmem_get_alloc_properties_from_handle(handle, &owner_pool, &type));
  TRUE(owner_pool.handle == pool.handle && type == MEMORY_TYPE_PINNED);

  OK(hsa_amd_vmem_unmap(base, SIZE));
  OK(hsa_amd_vmem_unmap(alias, SIZE));
  OK(hsa_amd_vmem_handle_release(retained));
  OK(hsa_amd_vmem_handle_release(handle));
  OK(hsa_amd_vmem_handle_release(imported));
  EXPECT(hsa_amd_vmem_handle_release(handle), HSA_STATUS_ERROR_INVALID_ALLOCATION);
  OK(hsa_amd_vmem_address_free(base, 2 * SIZE));
  OK(hsa_shut_down());
  puts("the cycle is complete");
  return 0;
}
