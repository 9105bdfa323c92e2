/*
 * A GPU cannot use memory immediately after it was granted access: GEM_VA returns before the page-table entries are
 * written.
 *
 * If the CPU cannot access all memory of the GPU, SDMA jobs write the entries (amdgpu_vm_sdma_commit).
 * amdgpu_gem_va_ioctl returns without waiting for the fence of these jobs.
 */
#include "gpu.h"

int main(void) {
  start();
  struct memory source = new_memory(), first = new_memory();
  flush();
  /* This copy creates the queue before the tested grant. If the queue were created after the grant, its creation would
     make the grant take effect, and hide the defect. */
  if (!copy(first.address, source.address)) fail("the first copy faulted or took more than five seconds");
  struct memory granted = new_memory();
  report(!copy(granted.address, source.address), "the GPU faulted on memory to which it had just been granted access");
}
