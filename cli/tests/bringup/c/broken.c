/* A runtime with all required functions. `hsa_init` executes the statement BROKEN. The other functions return 0.
 * WITHOUT_VMEM omits the functions of virtual memory management. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int hsa_init(void) {
  puts("message of the runtime on standard output");
  fputs("message of the runtime on standard error\n", stderr);
  fflush(NULL);
  BROKEN;
  return 0;
}
#define STUB(name) int name(void) { return 0; }
STUB(hsa_status_string)
STUB(hsa_shut_down)
STUB(hsa_system_get_info)
STUB(hsa_iterate_agents)
STUB(hsa_agent_get_info)
STUB(hsa_amd_agent_iterate_memory_pools)
STUB(hsa_amd_memory_pool_get_info)
#ifndef WITHOUT_VMEM
STUB(hsa_amd_vmem_address_reserve)
STUB(hsa_amd_vmem_address_free)
STUB(hsa_amd_vmem_handle_create)
STUB(hsa_amd_vmem_handle_release)
STUB(hsa_amd_vmem_map)
STUB(hsa_amd_vmem_unmap)
STUB(hsa_amd_vmem_set_access)
STUB(hsa_amd_vmem_get_access)
STUB(hsa_amd_vmem_export_shareable_handle)
STUB(hsa_amd_vmem_import_shareable_handle)
STUB(hsa_amd_vmem_retain_alloc_handle)
STUB(hsa_amd_vmem_get_alloc_properties_from_handle)
#endif
