/* Prints the messages of frequent errors, each as "LABEL: MESSAGE". */
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 21 };

static void expect(hipError_t error, int line) {
  if (error == hipSuccess) return;
  fprintf(stderr, "line %d: %s\n", line, hsavmm_last_message());
  exit(1);
}
#define OK(call) expect(call, __LINE__)

static void print_failure(const char *label, hipError_t error, hipError_t expected, int line) {
  if (error != expected) {
    fprintf(stderr, "line %d: %s: %s\n", line, hipGetErrorName(error), hsavmm_last_message());
    exit(1);
  }
  printf("%s: %s\n", label, hsavmm_last_message());
}
#define FAILS(label, call, error) print_failure(label, call, error, __LINE__)

static const unsigned int lazy_peer_access = hipIpcMemLazyEnablePeerAccess;

static void print_ipc_messages(void) {
  hipIpcMemHandle_t handle;
  void *ptr, *opened;
  memset(&handle, 0x5a, sizeof handle);
  FAILS("garbage", hipIpcOpenMemHandle(&opened, handle, lazy_peer_access), hipErrorInvalidValue);
  OK(hipMalloc(&ptr, SIZE));
  OK(hipIpcGetMemHandle(&handle, ptr));
  FAILS("own", hipIpcOpenMemHandle(&opened, handle, lazy_peer_access), hipErrorInvalidContext);
  OK(hipFree(ptr));
  FAILS("own freed", hipIpcOpenMemHandle(&opened, handle, lazy_peer_access), hipErrorInvalidContext);
  FAILS("export freed", hipIpcGetMemHandle(&handle, ptr), hipErrorInvalidValue);
}

static void print_messages_about_freed_memory(void) {
  static char bytes[64];
  hipMemGenericAllocationHandle_t handle;
  void *ptr;
  OK(hipMalloc(&ptr, SIZE));
  OK(hipFree(ptr));
  FAILS("double free", hipFree(ptr), hipErrorInvalidValue);
  FAILS("range of freed", hipMemGetAddressRange(NULL, NULL, ptr), hipErrorNotFound);
  FAILS("copy to freed", hipMemcpy(ptr, bytes, 64, hipMemcpyHostToDevice), hipErrorInvalidValue);
  FAILS("copy from freed", hipMemcpy(bytes, ptr, 64, hipMemcpyDeviceToHost), hipErrorInvalidValue);
  FAILS("fill freed", hipMemset(ptr, 0, 64), hipErrorInvalidValue);
  OK(hipMalloc(&ptr, SIZE));
  FAILS("wrong kind", hipMemcpy(ptr, bytes, 64, hipMemcpyHostToHost), hipErrorInvalidValue);
  FAILS("free inside", hipFree((char *)ptr + 8), hipErrorInvalidValue);
  FAILS("unmap hipMalloc", hipMemUnmap(ptr, SIZE), hipErrorInvalidValue);
  FAILS("retain hipMalloc", hipMemRetainAllocationHandle(&handle, ptr), hipErrorInvalidValue);
  OK(hipFree(ptr));
}

static void print_messages_about_other_memory(void) {
  static int page[1024];
  hsavmm_area_t area;
  void *ptr, *device_ptr;
  OK(hipHostRegister(page, sizeof page, 0));
  OK(hipHostGetDevicePointer(&device_ptr, page, 0));
  FAILS("free registered", hipFree(page), hipErrorInvalidValue);
  FAILS("free device pointer", hipHostFree(device_ptr), hipErrorInvalidValue);
  OK(hipHostUnregister(page));
  OK(hsavmm_area_create(&area, 0, 0));
  OK(hsavmm_area_mmap(area, &ptr, SIZE, NULL));
  FAILS("free area", hipFreeAsync(ptr, NULL), hipErrorInvalidValue);
  OK(hsavmm_area_munmap(area, ptr));
  OK(hsavmm_area_destroy(area));
}

static void print_messages_about_reservations(void) {
  void *ptr, *device_ptr;
  unsigned int id;
  OK(hipMemAddressReserve(&ptr, SIZE, 0, NULL, 0));
  FAILS("range of reserved", hipMemGetAddressRange(NULL, NULL, ptr), hipErrorNotFound);
  FAILS("attribute of reserved",
        hipPointerGetAttribute(&id, HIP_POINTER_ATTRIBUTE_BUFFER_ID, ptr), hipErrorInvalidValue);
  FAILS("device pointer of reserved", hipHostGetDevicePointer(&device_ptr, ptr, 0),
        hipErrorInvalidValue);
  OK(hipMemAddressFree(ptr, SIZE));
  FAILS("double address free", hipMemAddressFree(ptr, SIZE), hipErrorInvalidValue);
  FAILS("unmap of freed", hipMemUnmap(ptr, SIZE), hipErrorInvalidValue);
  OK(hipMemAddressReserve(&ptr, SIZE, 0, NULL, 0));
  OK(hsavmm_shut_down());
  FAILS("address free after shut-down", hipMemAddressFree(ptr, SIZE), hipErrorInvalidValue);
}

static void print_messages_about_descriptors(void) {
  const hipMemAllocationHandleType posix = hipMemHandleTypePosixFileDescriptor;
  hipMemGenericAllocationHandle_t handle;
  int ends[2];
  FAILS("closed descriptor", hipMemImportFromShareableHandle(&handle, (void *)777, posix),
        hipErrorInvalidValue);
  if (pipe(ends) != 0) exit(1);
  FAILS("pipe", hipMemImportFromShareableHandle(&handle, ends, posix), hipErrorInvalidValue);
}

static void print_virtual_memory_messages(void) {
  hipMemAllocationProp prop;
  hipMemGenericAllocationHandle_t handle;
  hsavmm_paged_t buffer;
  void *ptr;
  int descriptor;
  char byte = 1;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  FAILS("granule", hipMemCreate(&handle, 100, &prop, 0), hipErrorInvalidValue);
  FAILS("flags", hipMemCreate(&handle, SIZE, &prop, 1), hipErrorInvalidValue);
  OK(hipMemCreate(&handle, 2 * SIZE, &prop, 0));
  FAILS("not requested",
        hipMemExportToShareableHandle(&descriptor, handle, hipMemHandleTypePosixFileDescriptor, 0),
        hipErrorInvalidValue);
  OK(hipMemAddressReserve(&ptr, 2 * SIZE, 0, NULL, 0));
  FAILS("not reserved", hipMemMap((char *)ptr + 4 * SIZE, 2 * SIZE, 0, handle, 0),
        hipErrorInvalidValue);
  FAILS("offset", hipMemMap(ptr, SIZE, SIZE, handle, 0), hipErrorInvalidValue);
  OK(hipMemMap(ptr, 2 * SIZE, 0, handle, 0));
  FAILS("no access", hipMemcpyHtoD(ptr, &byte, 1), hipErrorInvalidValue);
  FAILS("free mapped", hipFree(ptr), hipErrorInvalidValue);
  OK(hipMemUnmap(ptr, 2 * SIZE));
  OK(hipMemAddressFree(ptr, 2 * SIZE));
  OK(hipMemRelease(handle));
  FAILS("released", hipMemRelease(handle), hipErrorInvalidValue);
  OK(hsavmm_paged_reserve(&buffer, 0, SIZE, 0, HSAVMM_PAGED_ZERO));
  OK(hsavmm_paged_grant(buffer, &prop.location, 1, hipMemAccessFlagsProtReadWrite));
  OK(hsavmm_paged_place(buffer, &ptr, NULL, NULL));
  FAILS("zero page", hipMemcpyHtoD(ptr, &byte, 1), hipErrorInvalidValue);
  OK(hsavmm_paged_destroy(buffer));
}

static void print_messages_of_retire_queues(void) {
  hipMemAllocationProp prop;
  hsavmm_retire_queue_t queue;
  hsavmm_retire_report report;
  hipMemGenericAllocationHandle_t handle;
  void *ptr;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  FAILS("capacity", hsavmm_retire_create(&queue, 0, 0, 0), hipErrorInvalidValue);
  OK(hsavmm_retire_create(&queue, 1, 0, HSAVMM_RETIRE_NO_THREAD));
  OK(hipMemAddressReserve(&ptr, 2 * SIZE, 0, NULL, 0));
  OK(hipMemCreate(&handle, SIZE, &prop, 0));
  OK(hipMemMap(ptr, SIZE, 0, handle, 0));
  OK(hipMemMap((char *)ptr + SIZE, SIZE, 0, handle, 0));
  OK(hsavmm_retire_submit(queue, ptr, SIZE, NULL, 0));
  FAILS("queue is full", hsavmm_retire_submit(queue, (char *)ptr + SIZE, SIZE, NULL, 0),
        hipErrorOutOfMemory);
  FAILS("signals", hsavmm_retire_submit(queue, ptr, SIZE, NULL, 9), hipErrorInvalidValue);
  OK(hsavmm_retire_poll(queue, &report));
  OK(hsavmm_retire_destroy(queue));
  OK(hipMemUnmap((char *)ptr + SIZE, SIZE));
  OK(hipMemAddressFree(ptr, 2 * SIZE));
  OK(hipMemRelease(handle));
}

/* Each message must name the invalid argument. */
static void print_messages_about_lists(void) {
  static hsavmm_mapping mapping;
  static hipMemAccessDesc desc;
  static hsavmm_range range;
  void *device_ptr;
  desc.location.type = hipMemLocationTypeDevice;
  range.ptr = &range;
  range.size = sizeof range;
  FAILS("many descriptors", hsavmm_map_many(&mapping, 1, &desc, 70000), hipErrorInvalidValue);
  FAILS("no descriptors", hsavmm_set_access_many(&range, 1, &desc, 0), hipErrorInvalidValue);
  FAILS("no ranges", hsavmm_set_access_many(&range, 0, &desc, 1), hipErrorInvalidValue);
  FAILS("host pointer", hipHostGetDevicePointer(&device_ptr, &range, 0), hipErrorInvalidValue);
}

int main(void) {
  print_ipc_messages();
  print_messages_about_freed_memory();
  print_messages_about_other_memory();
  print_messages_about_reservations();
  print_messages_about_descriptors();
  print_virtual_memory_messages();
  print_messages_of_retire_queues();
  print_messages_about_lists();
  return 0;
}
