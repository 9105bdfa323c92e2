/*
 * The parts of the interfaces of amdkfd and libdrm_amdgpu that hsa-vmm uses to change page tables.
 *
 * Written for this project from the public interfaces of the kernel (linux/kfd_ioctl.h)
 * and of libdrm (amdgpu.h, amdgpu_drm.h). This header is not a copy of those headers and
 * does not replace them. bindgen generates ../src/driver.rs from this header. tests/driver.rs compares
 * every size, offset and constant with the installed headers.
 */
#ifndef HSA_VMM_DRIVER_ABI_H
#define HSA_VMM_DRIVER_ABI_H

#include <stdint.h>

/* ---- /dev/kfd ------------------------------------------------------------------ */

/* Bits of kfd_ioctl_alloc_memory_of_gpu_args.flags. */
typedef enum {
  KFD_IOC_ALLOC_MEM_FLAGS_GTT = 0x2,
  KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE = 0x80000000
} kfd_alloc_memory_flags;

/* ALLOC_MEMORY_OF_GPU, number 0x16. */
struct kfd_ioctl_alloc_memory_of_gpu_args {
  uint64_t va_addr;
  uint64_t size;
  /* Written by the driver. */
  uint64_t handle;
  uint64_t mmap_offset;
  uint32_t gpu_id;
  uint32_t flags;
};

/* FREE_MEMORY_OF_GPU, number 0x17. */
struct kfd_ioctl_free_memory_of_gpu_args {
  uint64_t handle;
};

/* MAP_MEMORY_TO_GPU, number 0x18. UNMAP_MEMORY_FROM_GPU, number 0x19, has the same layout. */
struct kfd_ioctl_map_memory_to_gpu_args {
  uint64_t handle;
  /* An array of gpu_id. */
  uint64_t device_ids_array_ptr;
  uint32_t n_devices;
  /* The number of GPUs at the start of the array to skip: 0, or the value that an interrupted call has written. */
  uint32_t n_success;
};

/* ---- libdrm_amdgpu --------------------------------------------------------------- */

/* The operations of amdgpu_bo_va_op_raw. */
typedef enum {
  AMDGPU_VA_OP_MAP = 1,
  AMDGPU_VA_OP_UNMAP = 2,
  AMDGPU_VA_OP_CLEAR = 3,
  AMDGPU_VA_OP_REPLACE = 4
} amdgpu_va_operation;

/* The permissions of a mapping. */
typedef enum {
  AMDGPU_VM_PAGE_READABLE = 0x2,
  AMDGPU_VM_PAGE_WRITEABLE = 0x4,
  AMDGPU_VM_PAGE_EXECUTABLE = 0x8
} amdgpu_vm_page_flags;

typedef enum {
  amdgpu_bo_handle_type_dma_buf_fd = 2
} amdgpu_bo_handle_type;

typedef struct amdgpu_device *amdgpu_device_handle;
typedef struct amdgpu_bo *amdgpu_bo_handle;

struct amdgpu_bo_import_result {
  amdgpu_bo_handle buf_handle;
  uint64_t alloc_size;
};

/* All functions but amdgpu_device_get_fd return 0 or a negative errno. */
typedef int (*amdgpu_device_initialize_fn)(int fd, uint32_t *major, uint32_t *minor, amdgpu_device_handle *device);
typedef int (*amdgpu_device_deinitialize_fn)(amdgpu_device_handle device);
/* Returns the file descriptor, which libdrm still owns. */
typedef int (*amdgpu_device_get_fd_fn)(amdgpu_device_handle device);
typedef int (*amdgpu_bo_import_fn)(amdgpu_device_handle device, amdgpu_bo_handle_type type, uint32_t shared_handle, struct amdgpu_bo_import_result *result);
typedef int (*amdgpu_bo_free_fn)(amdgpu_bo_handle buffer);
typedef int (*amdgpu_bo_va_op_raw_fn)(amdgpu_device_handle device, amdgpu_bo_handle buffer, uint64_t offset, uint64_t size, uint64_t address, uint64_t flags, uint32_t operation);

#endif
