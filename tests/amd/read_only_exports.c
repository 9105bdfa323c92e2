/* A shim that passes calls to AMD's runtime, and makes the exported descriptors read-only. hsa-vmm
 * cannot map such descriptors for writing, so the runtime has to map the memory for the CPU. The
 * shim counts the calls that change access. */
#define _GNU_SOURCE
#include "hsa_abi.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int shim_changes_of_access;

hsa_status_t hsa_amd_vmem_export_shareable_handle(
    int *descriptor, hsa_amd_vmem_alloc_handle_t handle, uint64_t flags) {
  hsa_status_t (*real)(int *, hsa_amd_vmem_alloc_handle_t, uint64_t) =
      dlsym(RTLD_NEXT, "hsa_amd_vmem_export_shareable_handle");
  hsa_status_t status = real(descriptor, handle, flags);
  if (status) return status;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", *descriptor);
  int read_only = open(path, O_RDONLY | O_CLOEXEC);
  close(*descriptor);
  *descriptor = read_only;
  return read_only < 0 ? HSA_STATUS_ERROR : HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_set_access(
    void *address, size_t size, const hsa_amd_memory_access_desc_t *access, size_t count) {
  hsa_status_t (*real)(void *, size_t, const hsa_amd_memory_access_desc_t *, size_t) =
      dlsym(RTLD_NEXT, "hsa_amd_vmem_set_access");
  shim_changes_of_access++;
  return real(address, size, access, count);
}
