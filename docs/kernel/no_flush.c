/*
 * After memory was unmapped, a GPU can still write to it: GEM_VA does not flush the GPU's TLB.
 *
 * If the CPU can access all memory of the GPU, amdgpu writes page-table entries with the CPU
 * (amdgpu_vm_update_mode). In this mode, amdgpu_gem_va_ioctl neither flushes the TLB nor waits. The GPU uses the old
 * translation until amdkfd maps or unmaps memory of the process.
 */
#include "gpu.h"

int main(void) {
  start();
  struct memory memory = new_memory(), other = new_memory();
  flush();
  /* Fills the TLB. */
  if (!copy(memory.address, other.address)) fail("the first copy faulted or took more than five seconds");
  CALL(hsa_amd_vmem_unmap, memory.address, SIZE);
  sleep_ms(300);
  report(copy(memory.address, other.address), "the GPU wrote to memory that was unmapped 0.3 s before");
}
