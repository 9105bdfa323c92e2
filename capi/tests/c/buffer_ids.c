/* Checks the attributes of pointers that identify memory: the buffer ID, the context and the flags; and the attribute
 * that says whether IPC can share the memory. */
#include <hip/hip_runtime.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)

enum { SIZE = 1 << 16 };

/* Returns the buffer ID of memory, which is never 0. */
static unsigned id_of(void *pointer) {
  struct { unsigned id, after; } data = {0, 7};
  OK(hipPointerGetAttribute(&data, HIP_POINTER_ATTRIBUTE_BUFFER_ID, pointer));
  EXPECT(data.id != 0 && data.after == 7);
  return data.id;
}

static void test_allocated_memory(void) {
  void *first, *second, *host, *device;
  OK(hipMalloc(&first, SIZE));
  OK(hipMalloc(&second, SIZE));
  unsigned id = id_of(first);
  EXPECT(id == id_of((char *)first + SIZE - 1) && id != id_of(second));
  OK(hipFree(first));
  OK(hipMalloc(&first, SIZE));
  EXPECT(id != id_of(first) && id_of(first) != id_of(second));
  host = aligned_alloc(4096, SIZE);
  EXPECT(host != NULL);
  OK(hipHostRegister(host, SIZE, hipHostRegisterMapped));
  OK(hipHostGetDevicePointer(&device, host, 0));
  EXPECT(id_of(host) == id_of(device) && id_of(host) != id_of(second));
  OK(hipHostUnregister(host));
  id = 7;
  EXPECT(hipPointerGetAttribute(&id, HIP_POINTER_ATTRIBUTE_BUFFER_ID, host) ==
         hipErrorInvalidValue);
  EXPECT(id == 0);
  free(host);
  OK(hipFree(first));
  OK(hipFree(second));
}

/* Mappings of the same handle have the same ID, also after the handle was released. */
static void test_mapped_memory(void) {
  hipMemAllocationProp prop;
  hipMemGenericAllocationHandle_t handles[2];
  size_t granule;
  void *base;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipMemGetAllocationGranularity(&granule, &prop, hipMemAllocationGranularityRecommended));
  OK(hipMemAddressReserve(&base, 3 * granule, 0, NULL, 0));
  OK(hipMemCreate(&handles[0], granule, &prop, 0));
  OK(hipMemCreate(&handles[1], granule, &prop, 0));
  char *first = (char *)base, *second = first + granule, *third = second + granule;
  OK(hipMemMap(first, granule, 0, handles[0], 0));
  OK(hipMemMap(second, granule, 0, handles[1], 0));
  unsigned id = id_of(first);
  EXPECT(id == id_of(first + granule - 1) && id != id_of(second));
  OK(hipMemMap(third, granule, 0, handles[0], 0));
  OK(hipMemRelease(handles[0]));
  OK(hipMemUnmap(first, granule));
  EXPECT(id == id_of(third));
  OK(hipMemUnmap(second, 2 * granule));
  OK(hipMemRelease(handles[1]));
  OK(hipMemAddressFree(base, 3 * granule));
}

static void test_context_and_flags(void) {
  hipCtx_t context = NULL, primary;
  unsigned flags = 9;
  void *memory, *host;
  OK(hipDevicePrimaryCtxRetain(&primary, 0));
  OK(hipExtMallocWithFlags(&memory, SIZE, hipDeviceMallocFinegrained));
  OK(hipPointerGetAttribute(&context, HIP_POINTER_ATTRIBUTE_CONTEXT, memory));
  EXPECT(context == primary);
  OK(hipPointerGetAttribute(&flags, HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS, memory));
  EXPECT(flags == hipDeviceMallocFinegrained);
  /* Only device memory has a context. Unknown memory has no flags. */
  OK(hipHostMalloc(&host, SIZE, hipHostMallocDefault));
  context = NULL;
  EXPECT(hipPointerGetAttribute(&context, HIP_POINTER_ATTRIBUTE_CONTEXT, host) ==
         hipErrorInvalidValue);
  EXPECT(hipPointerGetAttribute(&context, HIP_POINTER_ATTRIBUTE_CONTEXT, &flags) ==
         hipErrorInvalidValue);
  EXPECT(context == NULL);
  OK(hipPointerGetAttribute(&flags, HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS, &host));
  EXPECT(flags == 0);
  OK(hipHostFree(host));
  OK(hipFree(memory));
}

/* Programs select the kind of IPC by this attribute. */
static void expect_ipc_capable(void *pointer, int expected) {
  struct { int is_capable, after; } data = {9, 7};
  hipIpcMemHandle_t handle;
  OK(hipPointerGetAttribute(&data, HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE, pointer));
  EXPECT(data.is_capable == expected && data.after == 7);
  EXPECT((hipIpcGetMemHandle(&handle, pointer) == hipSuccess) == expected);
}

static void test_ipc_capability(void) {
  hipMemAllocationProp prop;
  hipMemGenericAllocationHandle_t handle;
  size_t granule;
  void *memory;
  OK(hipMalloc(&memory, SIZE));
  expect_ipc_capable(memory, 1);
  expect_ipc_capable((char *)memory + 1000, 1);
  OK(hipFree(memory));
  OK(hipExtMallocWithFlags(&memory, SIZE, hipDeviceMallocFinegrained));
  expect_ipc_capable(memory, 1);
  OK(hipFree(memory));
  OK(hipHostMalloc(&memory, SIZE, hipHostMallocDefault));
  expect_ipc_capable(memory, 0);
  OK(hipHostFree(memory));
  OK(hipMallocManaged(&memory, SIZE, hipMemAttachGlobal));
  expect_ipc_capable(memory, 0);
  OK(hipFree(memory));
  memory = aligned_alloc(4096, SIZE);
  EXPECT(memory != NULL);
  OK(hipHostRegister(memory, SIZE, hipHostRegisterMapped));
  expect_ipc_capable(memory, 0);
  OK(hipHostUnregister(memory));
  free(memory);
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipMemGetAllocationGranularity(&granule, &prop, hipMemAllocationGranularityRecommended));
  OK(hipMemAddressReserve(&memory, granule, 0, NULL, 0));
  OK(hipMemCreate(&handle, granule, &prop, 0));
  OK(hipMemMap(memory, granule, 0, handle, 0));
  expect_ipc_capable(memory, 0);
  OK(hipMemUnmap(memory, granule));
  OK(hipMemRelease(handle));
  OK(hipMemAddressFree(memory, granule));
}

int main(void) {
  test_allocated_memory();
  test_mapped_memory();
  test_context_and_flags();
  test_ipc_capability();
  OK(hsavmm_check());
  puts("all checks passed");
  return 0;
}
