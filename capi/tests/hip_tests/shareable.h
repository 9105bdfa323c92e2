/*
 * Helpers that create, export and import memory as a file descriptor.
 */
#ifndef HIP_TESTS_SHAREABLE_H
#define HIP_TESTS_SHAREABLE_H

#include "memory.h"

static inline hipMemGenericAllocationHandle_t create_shareable(int device, size_t size) {
  return create_with(shareable_properties_of(device), size);
}

static inline int export_handle(hipMemGenericAllocationHandle_t handle) {
  int descriptor = -1;
  EXPECT_SUCCESS(hipMemExportToShareableHandle(&descriptor, handle,
                                               hipMemHandleTypePosixFileDescriptor, 0));
  CHECK(descriptor >= 0);
  return descriptor;
}

/* Returns the argument for hipMemImportFromShareableHandle. Since release 7.1, HIP takes the
 * descriptor itself. Earlier releases take a pointer to the descriptor. Programs distinguish the
 * releases: PyTorch checks ROCM_VERSION >= 70100. This library accepts both forms. The cases pass a
 * pointer with profile 6, and the descriptor with profile 7. */
static inline void *as_os_handle(int *descriptor) {
  return profile() == 6 ? (void *)descriptor : (void *)(uintptr_t)*descriptor;
}

/* Imports a descriptor, which the caller still owns. */
static inline hipMemGenericAllocationHandle_t import_descriptor(int descriptor) {
  hipMemGenericAllocationHandle_t handle;
  EXPECT_SUCCESS(hipMemImportFromShareableHandle(&handle, as_os_handle(&descriptor),
                                                 hipMemHandleTypePosixFileDescriptor));
  return handle;
}

#endif
