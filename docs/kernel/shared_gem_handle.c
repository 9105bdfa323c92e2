/*
 * After imported memory was released, memory that the process allocates later cannot be exported or mapped.
 *
 * amdkfd imports a dma-buf with drm_gem_prime_fd_to_handle (amdgpu_amdkfd_gpuvm_import_dmabuf_fd). If this process
 * has already allocated or imported the memory, the function returns the existing GEM handle, and does not count this
 * use. When the import is freed, amdgpu_amdkfd_gpuvm_free_memory_of_gpu deletes the GEM handle, although the memory
 * still uses it. The next allocation gets the same handle number. When the first memory is freed, amdkfd deletes the
 * GEM handle of the next allocation.
 */
#include "gpu.h"

int main(void) {
  start();
  hsa_amd_vmem_alloc_handle_t first, imported, next;
  int descriptor;
  CALL(hsa_amd_vmem_handle_create, pool, SIZE, MEMORY_TYPE_PINNED, 0, &first);
  CALL(hsa_amd_vmem_export_shareable_handle, &descriptor, first, 0);
  CALL(hsa_amd_vmem_import_shareable_handle, descriptor, &imported);
  CALL(hsa_amd_vmem_handle_release, imported);
  CALL(hsa_amd_vmem_handle_create, pool, SIZE, MEMORY_TYPE_PINNED, 0, &next);
  CALL(hsa_amd_vmem_handle_release, first);
  report(hsa_amd_vmem_export_shareable_handle(&descriptor, next, 0) != HSA_STATUS_SUCCESS,
         "memory cannot be exported after other memory was released");
}
