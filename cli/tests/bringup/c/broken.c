/* A runtime with all required functions. `hsa_init` executes the statement BROKEN. The other functions return 0.
 * WITHOUT_VMEM omits the functions of virtual memory management. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>

/* Keeps this process from ending after SIGKILL, for 20 seconds, as a wait in the kernel does: a child traces it, and
 * stops it when it exits. */
__attribute__((unused)) static void hold_exit(void) {
  int pipes[2];
  char byte;
  if (pipe(pipes) != 0) exit(1);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (fork() == 0) {
    setsid();
    ptrace(PTRACE_SEIZE, getppid(), 0, PTRACE_O_TRACEEXIT);
    close(pipes[0]);
    close(pipes[1]);
    sleep(20);
    _exit(0);
  }
  close(pipes[1]);
  if (read(pipes[0], &byte, 1) != 0) exit(1);
}

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
