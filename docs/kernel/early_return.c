/*
 * Memory cannot be used immediately after a GPU was granted access: GEM_VA returns before the entries are written.
 *
 * Where the CPU cannot access all memory of the GPU, SDMA jobs write page-table entries
 * (amdgpu_vm_sdma_commit), and amdgpu_gem_va_ioctl returns without waiting for their fence.
 */
#include "gpu.h"

int main(void) {
  start();
  struct memory source = new_memory(), first = new_memory();
  flush();
  /* This copy creates the queue before the grant that is tested: creating a queue makes earlier grants take effect,
     and would hide the defect. */
  if (!copy(first.address, source.address)) fail("the first copy faulted or took more than five seconds");
  struct memory granted = new_memory();
  report(!copy(granted.address, source.address), "the GPU faulted on memory to which it had just been granted access");
}
