/* Checks the calls that programs use together with virtual memory: properties, streams, events, contexts, registered
 * memory, attributes of pointers, reset. */
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

/* Compares attributes with the members of the same meaning. */
static void test_attributes_with_members(const hipDeviceProp_t *prop) {
  const struct { hipDeviceAttribute_t attribute; long long member; } pairs[] = {
      {hipDeviceAttributeMaxThreadsPerBlock, prop->maxThreadsPerBlock},
      {hipDeviceAttributeMaxBlockDimX, prop->maxThreadsDim[0]},
      {hipDeviceAttributeMaxBlockDimY, prop->maxThreadsDim[1]},
      {hipDeviceAttributeMaxBlockDimZ, prop->maxThreadsDim[2]},
      {hipDeviceAttributeMaxGridDimX, prop->maxGridSize[0]},
      {hipDeviceAttributeMaxGridDimY, prop->maxGridSize[1]},
      {hipDeviceAttributeMaxGridDimZ, prop->maxGridSize[2]},
      {hipDeviceAttributeMaxSharedMemoryPerBlock, (long long)prop->sharedMemPerBlock},
      {hipDeviceAttributeSharedMemPerBlockOptin, (long long)prop->sharedMemPerBlockOptin},
      {hipDeviceAttributeSharedMemPerMultiprocessor, (long long)prop->sharedMemPerMultiprocessor},
      {hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
       (long long)prop->maxSharedMemoryPerMultiProcessor},
      {hipDeviceAttributeL2CacheSize, prop->l2CacheSize},
      {hipDeviceAttributePersistingL2CacheMaxSize, prop->persistingL2CacheMaxSize},
      {hipDeviceAttributeGlobalL1CacheSupported, prop->globalL1CacheSupported},
      {hipDeviceAttributeLocalL1CacheSupported, prop->localL1CacheSupported},
      {hipDeviceAttributeMaxThreadsPerMultiProcessor, prop->maxThreadsPerMultiProcessor},
      {hipDeviceAttributeMaxBlocksPerMultiProcessor, prop->maxBlocksPerMultiProcessor},
      {hipDeviceAttributeMaxPitch, (long long)prop->memPitch},
      {hipDeviceAttributeStreamPrioritiesSupported, prop->streamPrioritiesSupported},
      {hipDeviceAttributeAsicRevision, prop->asicRevision},
      {hipDeviceAttributeUnifiedAddressing, prop->unifiedAddressing},
      {hipDeviceAttributeConcurrentManagedAccess, prop->concurrentManagedAccess},
      {hipDeviceAttributePhysicalMultiProcessorCount, prop->multiProcessorCount},
      {hipDeviceAttributeComputeMode, prop->computeMode},
      {hipDeviceAttributeKernelExecTimeout, prop->kernelExecTimeoutEnabled},
      {hipDeviceAttributeEccEnabled, prop->ECCEnabled},
      {hipDeviceAttributeComputePreemptionSupported, prop->computePreemptionSupported},
      {hipDeviceAttributeAccessPolicyMaxWindowSize, prop->accessPolicyMaxWindowSize},
      {hipDeviceAttributeReservedSharedMemPerBlock, (long long)prop->reservedSharedMemPerBlock},
      {hipDeviceAttributeIsMultiGpuBoard, prop->isMultiGpuBoard},
      {hipDeviceAttributeLuidDeviceNodeMask, prop->luidDeviceNodeMask},
      {hipDeviceAttributeConcurrentKernels, prop->concurrentKernels},
      {hipDeviceAttributeAsyncEngineCount, prop->asyncEngineCount},
      {hipDeviceAttributeDeviceOverlap, prop->deviceOverlap},
      {hipDeviceAttributeCooperativeMultiDeviceLaunch, prop->cooperativeMultiDeviceLaunch},
  };
  for (size_t index = 0; index < sizeof pairs / sizeof pairs[0]; index++) {
    int value = -1;
    OK(hipDeviceGetAttribute(&value, pairs[index].attribute, 0));
    EXPECT(value == pairs[index].member);
  }
  int value = -1;
  EXPECT(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxTexture1DWidth, 0) ==
         hipErrorInvalidValue);
  EXPECT(value == -1);
}

static void test_properties(void) {
  struct {
    hipDeviceProp_t prop;
    char guard[64];
  } guarded;
  int value = -1;
  memset(&guarded, 0x5a, sizeof guarded);
  OK(hipGetDeviceProperties(&guarded.prop, 0));
  for (size_t index = 0; index < sizeof guarded.guard; index++) EXPECT(guarded.guard[index] == 0x5a);
  EXPECT(strncmp(guarded.prop.gcnArchName, "gfx", 3) == 0);
  EXPECT(guarded.prop.name[0] != 0 && guarded.prop.totalGlobalMem > 0);
  EXPECT(guarded.prop.multiProcessorCount > 0 && guarded.prop.unifiedAddressing == 1);
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMultiprocessorCount, 0));
  EXPECT(value == guarded.prop.multiProcessorCount);
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 0));
  EXPECT(value == guarded.prop.warpSize && (value == 32 || value == 64));
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributePciBusId, 0));
  EXPECT(value == guarded.prop.pciBusID);
  EXPECT(guarded.prop.maxThreadsPerBlock == 1024 && guarded.prop.maxThreadsDim[0] == 1024);
  EXPECT(guarded.prop.maxThreadsDim[1] == 1024 && guarded.prop.maxThreadsDim[2] == 1024);
  EXPECT(guarded.prop.maxGridSize[0] == 2147483647 && guarded.prop.maxGridSize[1] == 65536);
  EXPECT(guarded.prop.maxGridSize[2] == 65536);
  EXPECT(guarded.prop.sharedMemPerBlock == 65536);
  EXPECT(guarded.prop.sharedMemPerMultiprocessor == 65536);
  EXPECT(guarded.prop.maxSharedMemoryPerMultiProcessor == 65536);
  /* Both the simulation and the emulated driver have an MI300X. */
  EXPECT(guarded.prop.maxThreadsPerMultiProcessor == 2048);
  EXPECT(guarded.prop.clockRate == 2100000);
  EXPECT(guarded.prop.memoryClockRate == 1300000 && guarded.prop.memoryBusWidth == 8192);
  EXPECT(guarded.prop.l2CacheSize == 4 << 20);
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributeClockRate, 0));
  EXPECT(value == guarded.prop.clockRate);
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMemoryClockRate, 0));
  EXPECT(value == guarded.prop.memoryClockRate);
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMemoryBusWidth, 0));
  EXPECT(value == guarded.prop.memoryBusWidth);
  EXPECT(guarded.prop.memPitch == INT_MAX && guarded.prop.sharedMemPerBlockOptin == 65536);
  EXPECT(guarded.prop.maxBlocksPerMultiProcessor == 2048 / 64);
  EXPECT(guarded.prop.persistingL2CacheMaxSize == guarded.prop.l2CacheSize);
  EXPECT(guarded.prop.globalL1CacheSupported == 1 && guarded.prop.localL1CacheSupported == 1);
  EXPECT(guarded.prop.streamPrioritiesSupported == 1);
  EXPECT(guarded.prop.clockInstructionRate == 1000000);
  test_attributes_with_members(&guarded.prop);
  EXPECT(guarded.prop.memoryPoolsSupported == 0 && guarded.prop.maxTexture1D == 0);
  EXPECT(hipGetDeviceProperties(NULL, 0) == hipErrorInvalidValue);
  EXPECT(hipGetDeviceProperties(&guarded.prop, 99) == hipErrorInvalidDevice);
  EXPECT(hipDeviceGetAttribute(&value, hipDeviceAttributeHdpMemFlushCntl, 0) ==
         hipErrorNotSupported);
  EXPECT(hipDeviceGetAttribute(NULL, hipDeviceAttributeWarpSize, 99) == hipErrorInvalidValue);
  EXPECT(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 99) == hipErrorInvalidDevice);
  OK(hipDeviceGetAttribute(&value, hipDeviceAttributeDmaBufSupported, 0));
  EXPECT(value == 1);
  char address[16];
  OK(hipDeviceGetPCIBusId(address, 13, 0));
  EXPECT(strlen(address) == 12);
  EXPECT(hipDeviceGetPCIBusId(address, 12, 0) == hipErrorInvalidValue);
  size_t free_memory = 0, total_memory = 0;
  OK(hipMemGetInfo(NULL, &total_memory));
  OK(hipMemGetInfo(&free_memory, NULL));
  OK(hipMemGetInfo(NULL, NULL));
  /* HIP_HIDDEN_FREE_MEM is in MiB. */
  const char *hidden = getenv("HIP_HIDDEN_FREE_MEM");
  const size_t hidden_memory = hidden == NULL ? 0 : (size_t)atoi(hidden) << 20;
  EXPECT(total_memory == guarded.prop.totalGlobalMem);
  EXPECT(free_memory <= total_memory - hidden_memory);
}

static void test_streams_and_events(int devices) {
  hipStream_t stream, other;
  hipEvent_t start, stop, untimed;
  unsigned int flags = 9;
  float milliseconds = -1;
  int least = 9, greatest = 9, device = 9, priority = 9;
  char from[SIZE], to[SIZE];
  void *memory;
  hipStreamCaptureStatus status = hipStreamCaptureStatusActive;
  hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
  OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  OK(hipStreamCreate(&other));
  EXPECT(stream != other && hipStreamCreateWithFlags(&other, 8) == hipErrorInvalidValue);
  OK(hipStreamGetFlags(stream, &flags));
  EXPECT(flags == hipStreamNonBlocking);
  OK(hipStreamGetDevice(stream, &device));
  EXPECT(device == 0);
  OK(hipDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT(least == 1 && greatest == -1);
  OK(hipStreamGetPriority(stream, &priority));
  EXPECT(priority == 0);
  OK(hipStreamGetPriority(NULL, &priority));
  EXPECT(priority == 0);
  for (int requested = -3; requested <= 3; requested++) {
    hipStream_t ranked;
    OK(hipStreamCreateWithPriority(&ranked, hipStreamDefault, requested));
    OK(hipStreamGetPriority(ranked, &priority));
    EXPECT(priority == (requested < 0 ? -1 : requested > 0));
    OK(hipStreamDestroy(ranked));
  }
  OK(hipEventCreate(&start));
  OK(hipEventCreateWithFlags(&stop, hipEventBlockingSync));
  OK(hipEventCreateWithFlags(&untimed, hipEventDisableTiming));
  EXPECT(hipEventElapsedTime(&milliseconds, start, stop) == hipErrorInvalidHandle);
  OK(hipEventRecord(start, stream));
  OK(hipMallocAsync(&memory, SIZE, stream));
  memset(from, 7, SIZE);
  OK(hipMemcpyHtoDAsync(memory, from, SIZE, stream));
  OK(hipMemcpyAsync(to, memory, SIZE, hipMemcpyDeviceToHost, stream));
  EXPECT(memcmp(from, to, SIZE) == 0);
  /* Copies to the second half of each row. */
  OK(hipMemset(memory, 1, SIZE));
  OK(hipMemcpy2DAsync((char *)memory + 8, 16, from, 8, 8, 64, hipMemcpyHostToDevice, stream));
  OK(hipMemcpy(to, memory, 64 * 16, hipMemcpyDeviceToHost));
  for (int index = 0; index < 64 * 16; index++) EXPECT(to[index] == (index % 16 < 8 ? 1 : 7));
  memset(to, 0, SIZE);
  OK(hipMemsetD8Async(memory, 0x12, SIZE, stream));
  OK(hipMemsetD16Async(memory, 0x3456, 3, stream));
  OK(hipMemsetD32Async((char *)memory + 8, 0x789abcde, 2, stream));
  OK(hipMemcpyWithStream(to, memory, SIZE, hipMemcpyDeviceToHost, stream));
  EXPECT(memcmp(to, "\x56\x34\x56\x34\x56\x34\x12\x12\xde\xbc\x9a\x78\xde\xbc\x9a\x78\x12", 17) == 0);
  EXPECT(to[SIZE - 1] == 0x12);
  EXPECT(hipMemsetD32Async(memory, 0, SIZE / 4 + 1, stream) == hipErrorInvalidValue);
  OK(hipMemcpyWithStream(NULL, NULL, 0, (hipMemcpyKind)77, stream));
  EXPECT(hipMemcpy2D(to, 4, memory, 16, 8, 2, hipMemcpyDeviceToHost) == hipErrorInvalidPitchValue);
  /* If there are no bytes to copy, nothing else is checked. The addresses are checked before the kind. */
  OK(hipMemcpy2D(to, 4, memory, 16, 8, 0, hipMemcpyDeviceToHost));
  OK(hipMemcpy(to, memory, 0, (hipMemcpyKind)77));
  /* Copies in a stream and copies of rectangles check the kind first. */
  EXPECT(hipMemcpy2D(to, 8, memory, 8, 4, 0, (hipMemcpyKind)77) == hipErrorInvalidMemcpyDirection);
  EXPECT(hipMemcpy2D(to, 4, NULL, 8, 8, 1, (hipMemcpyKind)77) == hipErrorInvalidMemcpyDirection);
  EXPECT(hipMemcpyAsync(NULL, NULL, 0, (hipMemcpyKind)77, stream) ==
         hipErrorInvalidMemcpyDirection);
  EXPECT(hipMemcpy(NULL, memory, 4, (hipMemcpyKind)77) == hipErrorInvalidValue);
  EXPECT(hipMemcpy(to, memory, 4, (hipMemcpyKind)77) == hipErrorInvalidMemcpyDirection);
  EXPECT(hipMemcpy2D(to, 8, memory, 8, 4, 1, (hipMemcpyKind)77) == hipErrorInvalidMemcpyDirection);
  OK(hipFreeAsync(memory, stream));
  OK(hipEventRecord(stop, stream));
  OK(hipEventRecord(untimed, NULL));
  OK(hipStreamWaitEvent(other, stop, hipEventWaitDefault));
  EXPECT(hipStreamWaitEvent(other, stop, hipEventWaitExternal) == hipErrorInvalidHandle);
  EXPECT(hipStreamWaitEvent(other, NULL, 0) == hipErrorInvalidHandle);
  EXPECT(hipStreamWaitEvent(other, NULL, 2) == hipErrorInvalidValue);
  OK(hipEventQuery(stop));
  OK(hipEventSynchronize(stop));
  OK(hipStreamQuery(stream));
  OK(hipStreamSynchronize(stream));
  OK(hipEventElapsedTime(&milliseconds, start, stop));
  EXPECT(milliseconds >= 0 && milliseconds < 60000);
  OK(hipEventElapsedTime(&milliseconds, stop, start));
  EXPECT(milliseconds <= 0);
  EXPECT(hipEventElapsedTime(&milliseconds, start, untimed) == hipErrorInvalidHandle);
  if (devices > 1) {
    hipEvent_t of_other_device;
    OK(hipSetDevice(1));
    OK(hipEventCreate(&of_other_device));
    OK(hipEventRecord(of_other_device, NULL));
    OK(hipSetDevice(0));
    EXPECT(hipEventElapsedTime(&milliseconds, start, of_other_device) == hipErrorInvalidHandle);
    OK(hipEventDestroy(of_other_device));
  }
  OK(hipStreamIsCapturing(stream, &status));
  EXPECT(status == hipStreamCaptureStatusNone);
  OK(hipThreadExchangeStreamCaptureMode(&mode));
  EXPECT(mode == hipStreamCaptureModeGlobal);
  OK(hipThreadExchangeStreamCaptureMode(&mode));
  EXPECT(mode == hipStreamCaptureModeRelaxed);
  EXPECT(hipStreamBeginCapture(stream, mode) == hipErrorNotSupported);
  EXPECT(hipEventCreateWithFlags(&start, hipEventInterprocess) == hipErrorInvalidValue);
  EXPECT(hipEventCreateWithFlags(&start, hipEventInterprocess | hipEventDisableTiming) ==
         hipErrorNotSupported);
  EXPECT(hipEventCreateWithFlags(&start, hipEventReleaseToDevice | hipEventReleaseToSystem) ==
         hipErrorInvalidValue);
  OK(hipEventDestroy(stop));
  EXPECT(hipEventQuery(stop) == hipErrorInvalidHandle);
  EXPECT(hipEventDestroy(stop) == hipErrorContextIsDestroyed);
  EXPECT(hipEventDestroy(NULL) == hipErrorInvalidHandle);
  OK(hipStreamDestroy(stream));
  EXPECT(hipStreamDestroy(stream) == hipErrorContextIsDestroyed);
  EXPECT(hipStreamQuery(stream) == hipErrorContextIsDestroyed);
  EXPECT(hipStreamSynchronize(stream) == hipErrorContextIsDestroyed);
  EXPECT(hipStreamGetDevice(stream, &device) == hipErrorContextIsDestroyed);
  EXPECT(hipStreamGetFlags(stream, &flags) == hipErrorContextIsDestroyed);
  EXPECT(hipStreamGetPriority(stream, &least) == hipErrorContextIsDestroyed);
  EXPECT(hipStreamGetFlags(NULL, &flags) == hipErrorInvalidValue);
  OK(hipStreamGetFlags(hipStreamPerThread, &flags));
  EXPECT(hipMemcpyAsync(to, from, 1, hipMemcpyDefault, stream) == hipErrorContextIsDestroyed);
  EXPECT(hipMemcpyWithStream(to, from, 1, hipMemcpyDefault, stream) == hipErrorContextIsDestroyed);
  EXPECT(hipMemsetD8Async(to, 0, 1, stream) == hipErrorContextIsDestroyed);
  EXPECT(hipMallocAsync(&memory, SIZE, stream) == hipErrorInvalidHandle);
  EXPECT(hipFreeAsync(NULL, stream) == hipErrorInvalidHandle);
  EXPECT(hipStreamWaitEvent(stream, start, 0) == hipErrorInvalidHandle);
  EXPECT(hipStreamDestroy(NULL) == hipErrorInvalidHandle);
  /* A stream is not an event. */
  EXPECT(hipEventDestroy((hipEvent_t)other) == hipErrorContextIsDestroyed);
  OK(hipStreamDestroy(other));
}

static void test_pitch(void) {
  void *memory;
  char from[3][300], to[3][300];
  size_t pitch = 7, size = 0;
  OK(hipMallocPitch(&memory, &pitch, 300, 0));
  EXPECT(memory == NULL && pitch == 7);
  OK(hipMallocPitch(&memory, &pitch, 300, 3));
  EXPECT(pitch == 512);
  OK(hipMemGetAddressRange(NULL, &size, memory));
  EXPECT(size == 3 * 512);
  memset(from, 9, sizeof from);
  OK(hipMemcpy2D(memory, pitch, from, 300, 300, 3, hipMemcpyHostToDevice));
  OK(hipMemcpy2D(to, 300, memory, pitch, 300, 3, hipMemcpyDeviceToHost));
  EXPECT(memcmp(from, to, sizeof from) == 0);
  OK(hipFree(memory));
  EXPECT(hipMallocPitch(NULL, &pitch, 300, 3) == hipErrorInvalidValue);
  EXPECT(hipMallocPitch(&memory, NULL, 300, 3) == hipErrorInvalidValue);
  EXPECT(hipMallocPitch(&memory, &pitch, (size_t)-1, 3) == hipErrorInvalidValue);
  EXPECT(hipMallocPitch(&memory, &pitch, (size_t)1 << 40, (size_t)1 << 40) == hipErrorOutOfMemory);
}

static void test_contexts(int devices) {
  hipCtx_t first, second, current;
  int device = -1;
  unsigned int flags = 9;
  OK(hipDevicePrimaryCtxRetain(&first, 0));
  OK(hipCtxGetCurrent(&current));
  EXPECT(current == first && first != NULL);
  if (devices > 1) {
    OK(hipDevicePrimaryCtxRetain(&second, 1));
    OK(hipCtxSetCurrent(second));
    OK(hipGetDevice(&device));
    EXPECT(device == 1);
    OK(hipCtxSetCurrent(NULL));
    OK(hipCtxGetDevice(&device));
    EXPECT(device == 1);
    OK(hipCtxSetCurrent(first));
  }
  EXPECT(hipCtxSetCurrent((hipCtx_t)(uintptr_t)12345) == hipErrorInvalidContext);
  EXPECT(hipCtxCreate(&current, 0, 0) == hipErrorNotSupported);
  OK(hipDevicePrimaryCtxRelease(0));
  OK(hipGetDeviceFlags(&flags));
  EXPECT(flags == hipDeviceScheduleSpin);
  OK(hipSetDeviceFlags(hipDeviceScheduleYield | hipDeviceMapHost));
  OK(hipGetDeviceFlags(&flags));
  EXPECT(flags == hipDeviceScheduleYield);
  EXPECT(hipSetDeviceFlags(3) == hipErrorInvalidValue);
}

/* A query of unknown memory fails, and writes a default value. */
static void test_attributes_of_unknown_memory(void) {
  static const struct { hipPointer_attribute attribute; size_t size; long long value; } expected[] = {
      {HIP_POINTER_ATTRIBUTE_MEMORY_TYPE, sizeof(int), 0},
      {HIP_POINTER_ATTRIBUTE_DEVICE_POINTER, sizeof(void *), 0},
      {HIP_POINTER_ATTRIBUTE_HOST_POINTER, sizeof(void *), 0},
      {HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, 1, 0},
      {HIP_POINTER_ATTRIBUTE_IS_MANAGED, 1, 0},
      {HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL, sizeof(int), -2},
      {HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, sizeof(void *), 0},
      {HIP_POINTER_ATTRIBUTE_RANGE_SIZE, sizeof(unsigned), 0},
      {HIP_POINTER_ATTRIBUTE_MAPPED, 1, 0},
      {HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE, sizeof(int), 0},
  };
  for (size_t index = 0; index < sizeof expected / sizeof expected[0]; index++) {
    long long found = 0x5a5a5a5a5a5a5a5a, value = found;
    memcpy(&value, &expected[index].value, expected[index].size);
    EXPECT(hipPointerGetAttribute(&found, expected[index].attribute, &found) ==
           hipErrorInvalidValue);
    EXPECT(found == value);
  }
}

static void test_registered_memory(void) {
  hipPointerAttribute_t attributes;
  unsigned int flags = 9, type = 0;
  size_t size = 0;
  void *device = NULL, *start = NULL, *memory, *host;
  /* Page-aligned, because AMD's driver locks whole pages. */
  char *own = aligned_alloc(4096, SIZE), back[16];
  EXPECT(own != NULL);
  OK(hipHostRegister(own, SIZE, hipHostRegisterPortable));
  /* The library keeps registered memory in an area of its own. No area number lets the program
   * unmap this memory. */
  for (uintptr_t number = 0; number < 1000; number++)
    EXPECT(hsavmm_area_munmap((hsavmm_area_t)number, own) == hipErrorInvalidHandle);
  EXPECT(hipHostRegister(own, 1, 0) == hipErrorHostMemoryAlreadyRegistered);
  EXPECT(hipHostRegister(own - 8, 16, 0) == hipErrorHostMemoryAlreadyRegistered);
  OK(hipHostGetDevicePointer(&device, own + 5, 0));
  EXPECT(device != NULL);
  EXPECT(hipHostGetFlags(&flags, own) == hipErrorInvalidValue);
  OK(hipPointerGetAttributes(&attributes, own + 5));
  EXPECT(attributes.allocationFlags == hipHostRegisterPortable);
  EXPECT(attributes.type == hipMemoryTypeHost && attributes.hostPointer == own + 5);
  EXPECT(attributes.devicePointer == device);
  OK(hipPointerGetAttributes(&attributes, device));
  EXPECT(attributes.allocationFlags == hipHostRegisterPortable);
  EXPECT(attributes.type == hipMemoryTypeHost && attributes.hostPointer == own + 5);
  EXPECT(attributes.devicePointer == device);
  EXPECT(hipPointerGetAttributes(NULL, own) == hipErrorInvalidValue);
  EXPECT(hipPointerGetAttributes(NULL, NULL) == hipErrorInvalidValue);
  EXPECT(attributes.type == hipMemoryTypeHost && attributes.hostPointer == own + 5);
  OK(hipPointerGetAttributes(&attributes, &size));
  EXPECT(attributes.type == hipMemoryTypeUnregistered && attributes.device == -2);
  EXPECT(attributes.devicePointer == NULL && attributes.hostPointer == NULL);
  /* The start is the host's address, even if the memory is named by the device's address. */
  OK(hipPointerGetAttribute(&start, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, device));
  EXPECT(start == own);
  start = NULL;
  OK(hipPointerGetAttribute(&start, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, own + 5));
  OK(hipPointerGetAttributes(&attributes, NULL));
  EXPECT(attributes.type == hipMemoryTypeUnregistered);
  /* The calls write only the value, and no byte after it. */
  struct { unsigned size, after; } range = {0, 7};
  OK(hipPointerGetAttribute(&range, HIP_POINTER_ATTRIBUTE_RANGE_SIZE, own + 5));
  EXPECT(range.size == SIZE && range.after == 7);
  struct { char synchronous, after[3]; } copies = {9, {7, 7, 7}};
  OK(hipPointerGetAttribute(&copies, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, own + 5));
  EXPECT(copies.synchronous == 0 && copies.after[0] == 7 && copies.after[2] == 7);
  OK(hipPointerGetAttribute(&type, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE, own + 5));
  EXPECT(start == own && type == hipMemoryTypeHost);
  OK(hipMalloc(&memory, SIZE));
  OK(hipHostGetDevicePointer(&start, (char *)memory + 5, 0));
  EXPECT(start == (char *)memory + 5);
  OK(hipMemset(memory, 3, SIZE));
  OK(hipMemcpy(own, memory, SIZE, hipMemcpyDeviceToHost));
  EXPECT(own[0] == 3 && own[SIZE - 1] == 3);
  OK(hipMemcpy(back, own + 5, sizeof back, hipMemcpyHostToHost));
  EXPECT(back[15] == 3);
  /* A copy that begins in registered memory ends there. */
  EXPECT(hipMemcpy(own + SIZE - 8, back, 16, hipMemcpyHostToHost) == hipErrorInvalidValue);
  EXPECT(hipMemcpy(back, own + SIZE - 8, 16, hipMemcpyHostToHost) == hipErrorInvalidValue);
  EXPECT(hipHostRegister((char *)memory + 64, 64, 0) == hipErrorInvalidValue);
  void *managed;
  OK(hipMallocManaged(&managed, SIZE, hipMemAttachGlobal));
  OK(hipPointerGetAttribute(&type, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE, managed));
  EXPECT(type == hipMemoryTypeHost);
  OK(hipPointerGetAttributes(&attributes, managed));
  EXPECT(attributes.isManaged && attributes.allocationFlags == 0);
  OK(hipHostGetFlags(&flags, managed));
  EXPECT(flags == 0);
  EXPECT(hipHostRegister((char *)managed + 64, 64, 0) == hipErrorInvalidValue);
  OK(hipFree(managed));
  EXPECT(hipHostUnregister(own + 1) == hipErrorHostMemoryNotRegistered);
  OK(hipHostUnregister(own));
  EXPECT(hipHostUnregister(own) == hipErrorHostMemoryNotRegistered);
  EXPECT(hipHostGetDevicePointer(&device, own, 0) == hipErrorInvalidValue);
  EXPECT(hipHostRegister(own, SIZE, hipHostRegisterIoMemory) == hipErrorNotSupported);
  EXPECT(hipHostRegister(own, SIZE, hipExtHostRegisterUncached) == hipErrorNotSupported);
  EXPECT(hipHostRegister(own, SIZE, 16) == hipErrorInvalidValue);
  EXPECT(hipHostRegister(NULL, SIZE, 0) == hipErrorInvalidValue);
  EXPECT(hipHostRegister(own, 0, 0) == hipErrorInvalidValue);
  EXPECT(hipHostRegister(own, (size_t)1 << 46, 0) == hipErrorInvalidValue);
  EXPECT(hipHostUnregister(NULL) == hipErrorInvalidValue);
  free(own);
  EXPECT(hipHostMalloc(&host, SIZE, hipHostMallocUncached) == hipErrorNotSupported);
  EXPECT(hipHostAlloc(&host, SIZE, hipHostAllocUncached) == hipErrorNotSupported);
  EXPECT(hipHostMalloc(&host, SIZE, 8) == hipErrorInvalidValue);
  const unsigned only_host_malloc[] = {hipHostMallocNumaUser, hipHostMallocCoherent,
                                       hipHostMallocNonCoherent};
  for (int i = 0; i < 3; i++) {
    EXPECT(hipHostAlloc(&host, SIZE, only_host_malloc[i]) == hipErrorInvalidValue);
    OK(hipHostMalloc(&host, SIZE, only_host_malloc[i]));
    OK(hipHostFree(host));
  }
  OK(hipHostAlloc(&host, SIZE, hipHostAllocMapped));
  OK(hipHostGetDevicePointer(&device, host, 0));
  EXPECT(device == host);
  OK(hipHostGetFlags(&flags, host));
  EXPECT(flags == hipHostAllocMapped);
  EXPECT(hipHostRegister(host, SIZE, 0) == hipErrorInvalidValue);
  OK(hipFreeHost(host));
  /* As in HIP, each function frees each kind of memory. */
  OK(hipMalloc(&host, SIZE));
  OK(hipHostFree(host));
  EXPECT(hipHostFree(host) == hipErrorInvalidValue);
  OK(hipMallocManaged(&host, SIZE, hipMemAttachGlobal));
  OK(hipFreeHost(host));
  OK(hipHostMalloc(&host, SIZE, 0));
  OK(hipFreeAsync(host, NULL));
  OK(hipMemAllocHost(&host, SIZE));
  memset(host, 1, SIZE);
  OK(hipHostFree(host));
  EXPECT(hipHostRegister(memory, SIZE, 0) == hipErrorInvalidValue);
  int one = 1, ordinal = -1;
  const char *text = NULL;
  const hipError_t before = hipPeekAtLastError();
  EXPECT(hipDrvGetErrorString((hipError_t)5000, &text) == hipErrorInvalidValue);
  EXPECT(strstr(hsavmm_last_message(), "hipDrvGetErrorString: `error` (5000) is not a known") != NULL);
  EXPECT(hipDrvGetErrorName(hipErrorUnknown, NULL) == hipErrorInvalidValue);
  EXPECT(strstr(hsavmm_last_message(), "hipDrvGetErrorName: `text` is null") != NULL);
  EXPECT(hipPeekAtLastError() == before);
  EXPECT(text != NULL && strcmp(text, "unknown error") == 0);
  EXPECT(hipDrvGetErrorString(hipErrorTbd, &text) == hipErrorInvalidValue);
  OK(hipDrvGetErrorName(hipErrorTbd, &text));
  OK(hipDrvGetErrorString(hipErrorUnknown, &text));
  EXPECT(strcmp(hipGetErrorName(hipErrorNoBinaryForGpu), "hipErrorNoBinaryForGpu") == 0);
  EXPECT(strcmp(hipGetErrorString(hipErrorLaunchOutOfResources),
                "too many resources requested for launch") == 0);
  const unsigned zero = 0, other = 256;
  OK(hipPointerSetAttribute(&one, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
  OK(hipPointerGetAttribute(&copies, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
  EXPECT(copies.synchronous == 1);
  OK(hipPointerSetAttribute(&zero, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
  OK(hipPointerGetAttribute(&copies, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
  EXPECT(copies.synchronous == 0);
  EXPECT(hipPointerSetAttribute(&other, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory) ==
         hipErrorInvalidValue);
  /* The address is checked last. */
  EXPECT(hipPointerSetAttribute(&one, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, &one) ==
         hipErrorInvalidDevicePointer);
  EXPECT(hipPointerSetAttribute(&one, HIP_POINTER_ATTRIBUTE_CONTEXT, &one) ==
         hipErrorInvalidValue);
  EXPECT(hipPointerSetAttribute(&other, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, &one) ==
         hipErrorInvalidValue);
  EXPECT(hipPointerSetAttribute(NULL, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, &one) ==
         hipErrorInvalidValue);
  EXPECT(hipPointerSetAttribute(&one, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS, NULL) ==
         hipErrorInvalidValue);
  OK(hipPointerGetAttribute(&ordinal, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
  EXPECT(ordinal == 0);
  EXPECT(hipPointerGetAttribute(&start, HIP_POINTER_ATTRIBUTE_P2P_TOKENS, memory) ==
         hipErrorNotSupported);
  start = &one;
  EXPECT(hipPointerGetAttribute(&start, HIP_POINTER_ATTRIBUTE_HOST_POINTER, memory) ==
         hipErrorInvalidValue);
  EXPECT(start == NULL);
  test_attributes_of_unknown_memory();
  OK(hipFree(memory));
  EXPECT(hipExtMallocWithFlags(&memory, SIZE, hipDeviceMallocUncached) == hipErrorNotSupported);
  EXPECT(hipExtMallocWithFlags(&memory, 8, hipMallocSignalMemory) == hipErrorNotSupported);
  EXPECT(hipExtMallocWithFlags(&memory, 9, hipMallocSignalMemory) == hipErrorInvalidValue);
  OK(hipExtMallocWithFlags(&memory, SIZE, hipDeviceMallocFinegrained));
  OK(hipMemset(memory, 1, SIZE));
  OK(hipFree(memory));
}

static void test_reset(int devices) {
  hipStream_t stream;
  unsigned int flags = 9;
  void *memory, *host, *managed;
  OK(hipStreamCreate(&stream));
  OK(hipMalloc(&memory, SIZE));
  OK(hipHostMalloc(&host, SIZE, 0));
  OK(hipMallocManaged(&managed, SIZE, hipMemAttachGlobal));
  OK(hipDeviceReset());
  /* Memory of the host belongs to all devices. */
  if (devices > 1) {
    memset(host, 1, SIZE);
    memset(managed, 1, SIZE);
  }
  EXPECT(hipHostFree(host) == (devices > 1 ? hipSuccess : hipErrorInvalidValue));
  EXPECT(hipFree(managed) == (devices > 1 ? hipSuccess : hipErrorInvalidValue));
  OK(hipGetDeviceFlags(&flags));
  EXPECT(flags == hipDeviceScheduleSpin);
  EXPECT(hipStreamQuery(stream) == hipErrorContextIsDestroyed);
  EXPECT(hipFree(memory) == hipErrorInvalidValue);
  OK(hipMalloc(&memory, SIZE));
  OK(hipFree(memory));
}

static void test_peers_and_reservations(int devices) {
  int can = 9;
  void *reserved = &can;
  OK(hipDeviceCanAccessPeer(&can, 99, 99));
  EXPECT(can == 0);
  EXPECT(hipDeviceCanAccessPeer(NULL, 99, 99) == hipErrorInvalidValue);
  EXPECT(hipDeviceCanAccessPeer(&can, 0, 99) == hipErrorInvalidDevice);
  if (devices > 1) OK(hipDeviceCanAccessPeer(&can, 0, 1));
  /* If valid arguments fail, null is written. */
  EXPECT(hipMemAddressReserve(&reserved, (size_t)1 << 62, 0, NULL, 0) == hipErrorOutOfMemory);
  EXPECT(reserved == NULL);
  reserved = &can;
  EXPECT(hipMemAddressReserve(&reserved, 1, 0, NULL, 0) == hipErrorInvalidValue);
  EXPECT(reserved == &can);
}

int main(void) {
  int devices = 0;
  OK(hipGetDeviceCount(&devices));
  test_properties();
  test_streams_and_events(devices);
  test_pitch();
  test_contexts(devices);
  test_registered_memory();
  test_peers_and_reservations(devices);
  test_reset(devices);
  OK(hsavmm_check());
  puts("all checks passed");
  return 0;
}
