/* hipMemImportFromShareableHandle: memory of this process, of the parent and of the grandparent.
 * The originals square numbers in a kernel. Here, the importer squares them on the host, between two copies. */
#include "process.h"
#include "shareable.h"

static void hipMemImportFromShareableHandle_Positive_Basic(void) {
  size_t size = rounded_size(0, BYTES);
  hipMemGenericAllocationHandle_t handle, imported;
  hipDeviceptr_t ptr, other = reserve(size);
  int descriptor;
  EXPECT_SUCCESS(hipFree(NULL));
  handle = create_shareable(0, size);
  descriptor = export_handle(handle);
  imported = import_descriptor(descriptor);
  CHECK(close(descriptor) == 0);
  /* The original only imports. This case also checks that both handles refer to the same memory. */
  ptr = reserve(size);
  map_and_grant(ptr, size, handle, 0);
  map_and_grant(other, size, imported, 0);
  write_numbers(ptr, 5);
  expect_numbers(other, 5);
  unmap_and_free(ptr, size);
  unmap_and_free(other, size);
  EXPECT_SUCCESS(hipMemRelease(imported));
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* HIP rejects a null pointer, although 0 is a valid descriptor. This library takes null for
 * descriptor 0, and rejects it if that descriptor does not refer to memory. HIP's releases of 2024
 * did not reject an invalid type. */
static void hipMemImportFromShareableHandle_Negative_Parameters(void) {
  const hipMemAllocationHandleType posix = hipMemHandleTypePosixFileDescriptor;
  hipMemGenericAllocationHandle_t handle = create_shareable(0, 2 * granularity_of(0)), other;
  int descriptor = export_handle(handle), none = -1;
  void *shareable = as_os_handle(&descriptor);
  EXPECT_ERROR(hipMemImportFromShareableHandle(NULL, shareable, posix), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemImportFromShareableHandle(&other, NULL, posix), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemImportFromShareableHandle(&other, as_os_handle(&none), posix),
               hipErrorInvalidValue);
  EXPECT_ERROR(hipMemImportFromShareableHandle(&other, shareable, hipMemHandleTypeNone),
               hipErrorInvalidValue);
  EXPECT_ERROR(hipMemImportFromShareableHandle(&other, shareable, hipMemHandleTypeWin32),
               hipErrorNotSupported);
  CHECK(close(descriptor) == 0);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* Receives memory over a socket, maps it, writes numbers to it and squares them. */
static void receive_and_square(int end) {
  static int values[N];
  size_t size = 0;
  int descriptor = receive_descriptor(end, &size), index;
  hipMemGenericAllocationHandle_t handle = import_descriptor(descriptor);
  hipDeviceptr_t ptr = reserve(size);
  CHECK(close(descriptor) == 0);
  map_and_grant(ptr, size, handle, 0);
  count_up(values, N, 0);
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, BYTES));
  memset(values, 0, sizeof values);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, BYTES));
  for (index = 0; index < N; index++) values[index] *= values[index];
  EXPECT_SUCCESS(hipMemcpyHtoD(ptr, values, BYTES));
  memset(values, 0, sizeof values);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, BYTES));
  for (index = 0; index < N; index++) CHECK(values[index] == index * index);
  unmap_and_free(ptr, size);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

static void send_memory(int end, hipMemGenericAllocationHandle_t handle, size_t size) {
  int descriptor = export_handle(handle);
  send_descriptor(end, descriptor, size);
  CHECK(close(descriptor) == 0);
}

/* Starts a child that receives memory, writes numbers to it and squares them. Returns the child's process ID.
 * Stores this process's end of the channel in `*end`. */
static pid_t start_squaring(int *end) {
  pid_t child = fork_child(end);
  if (child == 0) {
    receive_and_square(*end);
    end_child(*end);
  }
  return child;
}

static void hipMemImportFromShareableHandle_MulProc_ChldUseHdl(void) {
  hipMemGenericAllocationHandle_t handle;
  size_t size;
  int end;
  pid_t child = start_squaring(&end);
  size = rounded_size(0, BYTES);
  handle = create_shareable(0, size);
  send_memory(end, handle, size);
  wait_for(child, end);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* The parent reads what the child wrote. */
static void hipMemImportFromShareableHandle_MulProc_ParntChldUseHdl(void) {
  static int values[N];
  hipMemGenericAllocationHandle_t handle;
  hipDeviceptr_t ptr;
  size_t size;
  int end, index;
  pid_t child = start_squaring(&end);
  size = rounded_size(0, BYTES);
  handle = create_shareable(0, size);
  ptr = reserve(size);
  map_and_grant(ptr, size, handle, 0);
  send_memory(end, handle, size);
  wait_for(child, end);
  EXPECT_SUCCESS(hipMemcpyDtoH(values, ptr, BYTES));
  for (index = 0; index < N; index++) CHECK(values[index] == index * index);
  unmap_and_free(ptr, size);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

/* The child never opens a runtime. It only sends the descriptor to the grandchild. */
static void hipMemImportFromShareableHandle_MulProc_GrndChldUseHdl(void) {
  hipMemGenericAllocationHandle_t handle;
  int end;
  pid_t child = fork_child(&end);
  size_t size;
  if (child == 0) {
    int to_grandchild, descriptor;
    pid_t grandchild = fork_child(&to_grandchild);
    if (grandchild == 0) {
      CHECK(close(end) == 0);
      receive_and_square(to_grandchild);
      end_child(to_grandchild);
    }
    descriptor = receive_descriptor(end, &size);
    send_descriptor(to_grandchild, descriptor, size);
    wait_for(grandchild, to_grandchild);
    _exit(PASSED);
  }
  size = rounded_size(0, BYTES);
  handle = create_shareable(0, size);
  send_memory(end, handle, size);
  wait_for(child, end);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

CASES(CASE(hipMemImportFromShareableHandle_Positive_Basic),
      CASE(hipMemImportFromShareableHandle_Negative_Parameters),
      CASE(hipMemImportFromShareableHandle_MulProc_ChldUseHdl),
      CASE(hipMemImportFromShareableHandle_MulProc_ParntChldUseHdl),
      CASE(hipMemImportFromShareableHandle_MulProc_GrndChldUseHdl))
