/*
 * Freed memory stays accessible to a GPU: after AMDGPU_VA_OP_CLEAR has removed the end of a mapping, unmapping the
 * first part of the mapping does not remove the page-table entries of this part.
 *
 * amdgpu_vm_bo_clear_mappings splits the mapping, and adds the first part to the list of mappings that are not in the
 * page table yet (bo_va->invalids). Therefore the driver does not write the removal of the first part to the page
 * table.
 */
#include "gpu.h"

int main(void) {
  start();
  struct memory memory = new_memory(), other = new_memory();
  flush();
  if (!copy(memory.address, other.address)) fail("the first copy faulted or took more than five seconds");
  amdgpu_device_initialize_fn initialize =
      (amdgpu_device_initialize_fn)dlsym(RTLD_DEFAULT, "amdgpu_device_initialize");
  amdgpu_bo_va_op_raw_fn va_op = (amdgpu_bo_va_op_raw_fn)dlsym(RTLD_DEFAULT, "amdgpu_bo_va_op_raw");
  if (!initialize || !va_op) fail("libdrm_amdgpu is not loaded, or lacks a function");
  uint32_t major, minor;
  amdgpu_device_handle device;
  /* libdrm has one device for each GPU. Although this call passes a new descriptor, it returns the device that the
     runtime has opened. Therefore AMDGPU_VA_OP_CLEAR changes the runtime's address space. */
  check("amdgpu_device_initialize", initialize(open("/dev/dri/renderD128", O_RDWR), &major, &minor, &device));
  uint64_t half = SIZE / 2, middle = (uint64_t)(uintptr_t)memory.address + half;
  check("amdgpu_bo_va_op_raw", va_op(device, NULL, 0, half, middle, 0, AMDGPU_VA_OP_CLEAR));
  CALL(hsa_amd_vmem_unmap, memory.address, SIZE);
  CALL(hsa_amd_vmem_handle_release, memory.handle);
  flush();
  report(copy(memory.address, other.address), "the GPU wrote to memory that was unmapped and released");
}
