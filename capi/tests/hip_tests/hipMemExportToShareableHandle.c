/* hipMemExportToShareableHandle: the result, and invalid calls. */
#include "shareable.h"

/* Like the original, passes the address of a null `void *` for the descriptor, and expects that the call changes it. */
static void hipMemExportToShareableHandle_Positive_Basic(void) {
  size_t size = 2 * granularity_of(0);
  hipMemGenericAllocationHandle_t handle;
  void *shareable = NULL;
  int descriptor;
  EXPECT_SUCCESS(hipFree(NULL));
  handle = create_shareable(0, size);
  EXPECT_SUCCESS(hipMemExportToShareableHandle(&shareable, handle,
                                               hipMemHandleTypePosixFileDescriptor, 0));
  CHECK(shareable != NULL);
  descriptor = (int)(uintptr_t)shareable;
  CHECK((uintptr_t)shareable == (uintptr_t)descriptor);
  CHECK(close(descriptor) == 0);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

static void hipMemExportToShareableHandle_Negative_Parameters(void) {
  const hipMemAllocationHandleType posix = hipMemHandleTypePosixFileDescriptor;
  hipMemGenericAllocationHandle_t handle = create_shareable(0, 2 * granularity_of(0));
  void *shareable = NULL;
  EXPECT_ERROR(hipMemExportToShareableHandle(NULL, handle, posix, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemExportToShareableHandle(&shareable, NULL, posix, 0), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemExportToShareableHandle(&shareable, handle, hipMemHandleTypeWin32, 0),
               hipErrorInvalidValue);
  EXPECT_ERROR(hipMemExportToShareableHandle(&shareable, handle, posix, 1), hipErrorInvalidValue);
  CHECK(shareable == NULL);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

CASES(CASE(hipMemExportToShareableHandle_Positive_Basic),
      CASE(hipMemExportToShareableHandle_Negative_Parameters))
